"""An engine whose address falls silent, and one that is only stopped for a while."""

import time

from tests.containers.docker import Docker
from tests.live.sidecar import get, wait_until
from tests.live.standstill import Standstill

STOPPED_S = 7.0
"""Longer than an address that is gone is waited for, shorter than an answer that is late."""


def test_silent_address_shuts_the_gate_and_a_stopped_engine_does_not(
    docker: Docker, image: str, network: str, quick_vllm: str, standstill: Standstill
) -> None:
    """Whoever is frozen still acknowledges, and keeps its users; whoever is cut off does not."""
    inside = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
    sidecar = docker.start(
        image,
        *("--network", network, "--publish", "127.0.0.1::8900", "--env", "WARMUP_SHAPES=tiny"),
        # By its number: a name that is gone would be refused by Docker's own DNS.
        *(
            "--env",
            f"WARMUP_ENGINE_URL=http://{docker('inspect', '--format', inside, quick_vllm)}:8000",
        ),
    )
    ready = f"{docker.url(sidecar)}/ready"

    def shut_because() -> str | None:
        answer = get(ready)
        if answer is None:
            return "nothing answers"
        return None if answer.status == 200 else str(answer.body["reasons"])

    def shut_while_stopped() -> str | None:
        began = time.monotonic()
        docker("pause", quick_vllm)
        try:
            while time.monotonic() < began + STOPPED_S:
                if (why := shut_because()) is not None:
                    return why
                time.sleep(0.2)
        finally:
            docker("unpause", quick_vllm)
        return None

    for _ in range(3):
        wait_until("the gate is open", lambda: shut_because() is None, 120)
        began = time.monotonic()
        why = shut_while_stopped()
        if why is None:
            break
        # It is right to shut the gate if it was held up itself, or if the engine was for longer.
        assert standstill.lost_since_s(began) > 1.0, why
    assert why is None

    heard = docker.logs(quick_vllm).count("GET /health")
    wait_until(
        "it is looked at as before",
        lambda: docker.logs(quick_vllm).count("GET /health") > heard + 6,
        60,
    )
    cut = time.monotonic()
    docker("network", "disconnect", network, quick_vllm)
    # As late it would be "/health has not answered for 13 s".
    wait_until("it is gone", lambda: "the engine is gone: " in (shut_because() or ""), 30)
    print(f"shut after {time.monotonic() - cut:.1f} s")

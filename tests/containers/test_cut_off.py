"""An engine whose address falls silent, and one that is only stopped for a while."""

import time

import pytest

from tests.containers.docker import Docker, get, wait_until

pytestmark = [pytest.mark.containers, pytest.mark.timeout(180)]

STOPPED_S = 7.0
"""Longer than an address that is gone is waited for, shorter than an answer that is late."""


def test_silent_address_shuts_the_gate_and_a_stopped_engine_does_not(
    docker: Docker, image: str, network: str, quick_vllm: str
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

    def is_ready() -> bool:
        answer = get(ready)
        return answer is not None and answer.status == 200

    wait_until("the gate is open", is_ready, 60)
    docker("pause", quick_vllm)
    until = time.monotonic() + STOPPED_S
    try:
        while time.monotonic() < until:
            assert is_ready(), get(ready)
            time.sleep(0.2)
    finally:
        docker("unpause", quick_vllm)

    heard = docker.logs(quick_vllm).count("GET /health")
    wait_until(
        "it is looked at as before",
        lambda: docker.logs(quick_vllm).count("GET /health") > heard + 6,
        30,
    )
    cut = time.monotonic()
    docker("network", "disconnect", network, quick_vllm)
    wait_until("the gate is shut", lambda: not is_ready(), 30)
    print(f"shut after {time.monotonic() - cut:.1f} s")
    answer = get(ready)
    assert answer is not None
    # As late it would be "/health has not answered for 13 s".
    assert answer.body["reasons"][0].startswith("the engine is gone: ")

"""What the image promises to whoever runs it."""

import json
import time

import pytest

from tests.containers.docker import Docker, get, wait_until

pytestmark = [pytest.mark.containers, pytest.mark.timeout(300)]

HARDENED = (
    *("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
    *("--publish", "127.0.0.1:0:8900"),
)


def start_sidecar(docker: Docker, image: str, network: str, *options: str) -> str:
    return docker.start(
        image, *HARDENED, "--network", network, "--env", "WARMUP_SHAPES=tiny", *options
    )


def state_of(docker: Docker, container: str) -> str | None:
    answer = get(f"{docker.url(container)}/ready")
    return answer.body["state"] if answer else None


def test_image_runs_as_a_number_and_forwards_signals(docker: Docker, image: str) -> None:
    """Kubernetes' runAsNonRoot needs a numeric user; a shell as PID 1 would swallow SIGTERM."""
    config = json.loads(docker("image", "inspect", "--format", "{{json .Config}}", image))
    assert config["User"] == "65532:65532"
    assert config["Entrypoint"] == ["vllm-warmup"]
    assert config["Healthcheck"]["Test"] == ["CMD", "vllm-warmup", "check"]
    assert config["Healthcheck"]["StartPeriod"] == 24 * 3600 * 10**9
    shown = docker("run", "--rm", *HARDENED[:5], "--entrypoint", "id", image, "-u")
    assert shown == "65532"


@pytest.mark.usefixtures("simulated_vllm")
def test_healthcheck_turns_healthy_when_the_gate_opens(
    docker: Docker, image: str, network: str
) -> None:
    """Not healthy before the verdict, healthy soon after it, on a read-only root."""
    sidecar = start_sidecar(docker, image, network)
    wait_until("probes answer", lambda: state_of(docker, sidecar) is not None, 30)
    before = get(f"{docker.url(sidecar)}/ready")
    assert before is not None
    assert before.status == 503, before
    assert docker.health(sidecar) == "starting"
    assert docker.code("exec", sidecar, "vllm-warmup", "check") == 1
    wait_until("the gate is open", lambda: state_of(docker, sidecar) == "ready", 120)
    assert docker.code("exec", sidecar, "vllm-warmup", "check") == 0
    wait_until("the container is healthy", lambda: docker.health(sidecar) == "healthy", 30)


@pytest.mark.usefixtures("simulated_vllm")
def test_a_second_start_adopts_the_verdict(docker: Docker, image: str, network: str) -> None:
    """The state folder outlives the container's process: a restart doesn't replay."""
    sidecar = start_sidecar(docker, image, network)
    wait_until("the gate is open", lambda: state_of(docker, sidecar) == "ready", 120)
    docker("restart", "--time", "10", sidecar)
    wait_until("the gate is open again", lambda: state_of(docker, sidecar) == "ready", 20)
    ready = get(f"{docker.url(sidecar)}/ready")
    assert ready is not None
    assert ready.body["adopted"] is True, ready.body


@pytest.mark.parametrize("when", ["waiting", "warming", "ready"])
def test_sigterm_ends_it_in_two_seconds(
    docker: Docker, image: str, network: str, when: str, request: pytest.FixtureRequest
) -> None:
    """An orchestrator's stop is obeyed at once, in the middle of a wave too."""
    if when != "waiting":
        request.getfixturevalue("simulated_vllm")
    sidecar = start_sidecar(docker, image, network)
    wait_until(f"it is {when}", lambda: state_of(docker, sidecar) == when, 120)
    began = time.monotonic()
    docker("kill", "--signal", "TERM", sidecar)
    docker("wait", sidecar)
    took = time.monotonic() - began
    assert took < 2.0 + 1.0, f"{took:.1f} s, of which Docker itself takes part"
    assert docker.state(sidecar)["ExitCode"] == 0, docker.logs(sidecar)

"""What a kill -9 does to the two containers of the override, and to whoever looks at them."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.containers.docker import Docker, wait_until
from tests.containers.project import VLLM, Project, made

pytestmark = [pytest.mark.containers, pytest.mark.timeout(300)]

SLOW = VLLM.replace('"0.1"', '"1"')
"""A warm-up that lasts long enough to be interrupted."""


@pytest.fixture
def project(docker: Docker, image: str, tmp_path: Path) -> Iterator[Project]:
    with made(docker, image, tmp_path) as project:
        project.add("compose.override.yaml")
        yield project


def boot(project: Project) -> int:
    answer = project.ask()
    return answer.body["boot"]["number"] if answer and answer.body.get("boot") else 0


def test_killed_while_the_gate_is_open(docker: Docker, project: Project) -> None:
    """The engine: warmed again. The sidecar: adopts. The engine gone: unhealthy, then healthy."""
    project("up", "--detach", "--quiet-pull")
    project.wait_for("ready")
    warmup = project.container("warmup")
    wait_until("the container is healthy", lambda: docker.health(warmup) == "healthy", 30)

    project.crash("vllm")
    wait_until(
        "it is warm again", lambda: boot(project) == 2 and project.state() == "ready", limit_s=60
    )

    project.crash("warmup")
    project.wait_for("ready", limit_s=30)
    answer = project.ask()
    assert answer is not None
    assert answer.body["adopted"] is True, answer.body
    # Only a container that was healthy once in this life of its process can be unhealthy.
    wait_until("the container is healthy", lambda: docker.health(warmup) == "healthy", 30)

    project("stop", "--timeout", "3", "vllm")
    wait_until("the container is unhealthy", lambda: docker.health(warmup) == "unhealthy", 60)
    project("start", "vllm")
    wait_until("the container is healthy", lambda: docker.health(warmup) == "healthy", 60)
    answer = project.ask()
    assert answer is not None
    assert answer.status == 200


def test_killed_while_it_warms(docker: Docker, project: Project) -> None:
    """The sidecar blames no cell for its own end; the engine's keeps the gate shut and is told."""
    (project.folder / "compose.yaml").write_text(SLOW)
    project("up", "--detach", "--quiet-pull")
    project.wait_for("warming")
    project.crash("warmup")
    project.wait_for("warming")
    held = ("exec", "--no-TTY", "warmup", "vllm-warmup", "state", "show", "--json")
    assert json.loads(project(*held))["deaths"] == [], "the engine did not die"
    wait_until("a wave is in flight", lambda: json.loads(project(*held))["in_flight"], 60)
    project.crash("vllm")
    wait_until("the death is remembered", lambda: json.loads(project(*held))["deaths"], 60)
    assert docker.state(project.container("vllm"))["Running"], "its policy brought it back"

    def says_what_to_do() -> bool:
        answer = project.ask()
        reasons = answer.body["reasons"] if answer and answer.status == 503 else []
        return any("vllm-warmup state clear" in reason for reason in reasons)

    wait_until("the reasons say what to do", says_what_to_do, 90)

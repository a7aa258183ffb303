"""What a kill -9 does to the two containers of the override, and to whoever looks at them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.containers.docker import Docker
from tests.containers.project import Project, made
from tests.live.sidecar import wait_until

LONG = """\
services:
  vllm:
    command: [sim, --host, 0.0.0.0, --port, "8000", --start-delay-s, "0.5"]
  warmup:
    environment: {WARMUP_SHAPES: /long.yaml}
    volumes: ["./long.yaml:/long.yaml:ro"]
"""
SHAPES = "cells: [{concurrency: 2, prompt_tokens: 64, output_tokens: 7000}]\n"
"""A wave of it takes half a minute: it can be interrupted, however slow Docker's answers are."""


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
    wait_until("the container is healthy", lambda: docker.health(warmup) == "healthy", 120)

    project.crash("vllm")
    wait_until(
        "it is warm again", lambda: boot(project) == 2 and project.state() == "ready", limit_s=180
    )

    project.crash("warmup")
    body = project.wait_for("ready")
    assert body["adopted"] is True, body
    # Only a container that was healthy once in this life of its process can be unhealthy.
    wait_until("the container is healthy", lambda: docker.health(warmup) == "healthy", 120)

    project("stop", "--timeout", "3", "vllm")
    wait_until("the container is unhealthy", lambda: docker.health(warmup) == "unhealthy", 120)
    project("start", "vllm")
    wait_until("the container is healthy", lambda: docker.health(warmup) == "healthy", 120)
    project.wait_for("ready")


def test_killed_while_it_warms(docker: Docker, project: Project) -> None:
    """The sidecar blames no cell for its own end; the engine's keeps the gate shut and is told."""
    (project.folder / "long.yaml").write_text(SHAPES)
    (project.folder / "compose.long.yaml").write_text(LONG)
    project.set(COMPOSE_FILE="compose.yaml:compose.override.yaml:compose.long.yaml")

    def shown() -> dict[str, Any]:
        inside = ("exec", "--no-TTY", "warmup", "vllm-warmup", "state", "show", "--json")
        state: dict[str, Any] = json.loads(project(*inside))
        return state

    def is_sent() -> bool:
        return project.state() == "warming" and "-c2-" in json.dumps(shown()["in_flight"])

    project("up", "--detach", "--quiet-pull")
    wait_until("its long wave is in flight", is_sent, 180)
    project.crash("warmup")
    wait_until("it is in flight again", is_sent, 180)
    assert shown()["deaths"] == [], "the engine did not die"
    project.crash("vllm")
    wait_until("the death is remembered", lambda: bool(shown()["deaths"]), 180)
    assert docker.state(project.container("vllm"))["Running"], "its policy brought it back"

    def says_what_to_do() -> bool:
        answer = project.ask()
        reasons = answer.body["reasons"] if answer and answer.status == 503 else []
        return any("vllm-warmup state clear" in reason for reason in reasons)

    wait_until("the reasons say what to do", says_what_to_do, 180)

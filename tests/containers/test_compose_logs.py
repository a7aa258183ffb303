"""compose.logs.yaml and deploy/compose/compose.socket.yaml, as they are shipped."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.containers.conftest import BASE
from tests.containers.docker import Docker
from tests.containers.project import Project, made
from tests.containers.test_log_sources import engine_socket  # noqa: F401 - a fixture
from tests.live.process import free_port
from tests.live.sidecar import assert_heard, wait_until

ASK = """
import socket, sys
with socket.socket(socket.AF_UNIX) as connection:
    connection.settimeout(10)
    connection.connect("/run/docker-logs/docker.sock")
    head = ("Host: docker", "Connection: close", "", "")
    connection.sendall("\\r\\n".join((f"{sys.argv[1]} HTTP/1.1", *head)).encode())
    print(connection.recv(65536).split(b"\\r\\n")[0].decode())
"""


@pytest.fixture
def project(docker: Docker, image: str, tmp_path: Path) -> Iterator[Project]:
    with made(docker, image, tmp_path) as project:
        project.add("compose.override.yaml")
        yield project


def kernels(status: dict[str, Any]) -> list[str]:
    """What compiled during the waves."""
    return [name for cell in status["cells"] for name in cell["kernels"]]


def test_syslog_names_kernels_and_the_engine_needs_no_sidecar(
    docker: Docker, project: Project
) -> None:
    """It starts before the sidecar and comes back without it; `docker logs` still shows its log."""
    project.add("compose.logs.yaml")
    project.set(
        COMPOSE_FILE="compose.yaml:compose.override.yaml:compose.logs.yaml",
        WARMUP_LOG_PORT=free_port(),
    )
    alone = project.config("compose.yaml")["services"]["vllm"]
    merged = project.config()["services"]["vllm"]
    assert merged["logging"]["driver"] == "syslog"
    assert "max-size" not in merged["logging"]["options"]
    assert merged["environment"] == {"PYTHONUNBUFFERED": "1"}
    untouched = alone.keys() - {"logging", "environment"}
    assert {name: merged[name] for name in untouched} == {name: alone[name] for name in untouched}

    project("up", "--detach", "--quiet-pull", "vllm")
    vllm = project.container("vllm")
    assert docker.state(vllm)["Running"]
    project("up", "--detach", "--quiet-pull")
    status = project.wait_for("ready", "/status")
    assert kernels(status)
    assert status["log"].startswith("none: lines may be lost"), status["log"]
    assert "GET /version?warmup_fence=" in project("logs", "vllm")

    project("stop", "--timeout", "5", "warmup")
    began = docker.state(vllm)["StartedAt"]
    project.crash("vllm")
    wait_until(
        "the engine is back without the sidecar",
        lambda: docker.state(vllm)["StartedAt"] != began and docker.state(vllm)["Running"],
        90,
    )


def test_the_socket_proxy_gives_whole_evidence_and_nothing_else(
    docker: Docker,
    project: Project,
    engine_socket: str,  # noqa: F811
) -> None:
    """Windows are complete; what is no question about a log is refused, whoever asks."""
    project.add("deploy/compose/compose.socket.yaml", "deploy/compose/socket-proxy")
    project.set(
        COMPOSE_FILE="compose.yaml:compose.override.yaml:compose.socket.yaml",
        WARMUP_SOCKET_PROXY_BASE=BASE,
        WARMUP_DOCKER_SOCKET=engine_socket,
    )
    # Other projects on this machine may have a service of that name, too.
    name = f"{project.config()['name']}-vllm-1"
    project.set(WARMUP_LOG_CONTAINER=name)
    own = project.config("compose.yaml", "compose.override.yaml")["services"]["vllm"]
    assert project.config()["services"]["vllm"] == own

    project("up", "--detach", "--quiet-pull", "--build")
    status = project.wait_for("ready", "/status")
    assert_heard(status, "complete")
    assert status["evidence"] == "log+latency+metrics"
    assert kernels(status)

    def asked(question: str) -> str:
        inside = ("exec", "--no-TTY", "warmup", "python", "-c", ASK, question)
        return project(*inside).split()[1]

    assert asked(f"GET /containers/{name}/json") == "200"
    for question in (
        "GET /version",
        "GET /containers/../version",
        f"GET /containers/{name}/..%2f..%2fversion",
        f"GET /containers/{name}/export",
        f"GET /containers/{name}/attach/ws?stream=1",
        f"GET //containers/{name}/archive?path=/",
        "GET /images/json",
        "GET /secrets",
        f"POST /containers/{name}/stop",
        "POST /containers/create",
        f"DELETE /containers/{name}",
        f"HEAD /containers/{name}/archive",
    ):
        assert asked(question) in ("400", "403"), question
    proxy = project.container("docker-logs")
    shown = json.loads(docker("inspect", "--format", "{{json .HostConfig}}", proxy))
    assert (shown["NetworkMode"], shown["CapDrop"], shown["ReadonlyRootfs"]) == (
        "none",
        ["ALL"],
        True,
    )

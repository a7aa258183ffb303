"""compose.override.yaml beside somebody's compose.yaml."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.containers.docker import Docker
from tests.containers.project import VLLM, Project, made, opened, started

WEB = """\
  web:  # whatever must not get a request before the engine is warm
    image: ${TEST_IMAGE}
    entrypoint: [sleep, infinity]
    healthcheck: {disable: true}
    stop_signal: SIGKILL
    depends_on:
      warmup: {condition: service_healthy}
"""
CACHES = ("/root/.cache/vllm", "/root/.triton/cache", "/root/.cache/flashinfer")


@pytest.fixture
def project(docker: Docker, image: str, tmp_path: Path) -> Iterator[Project]:
    with made(docker, image, tmp_path) as project:
        project.add("compose.override.yaml")
        yield project


def test_override_warms_before_a_service_that_waits(project: Project) -> None:
    """`up` starts what depends on the sidecar only once the gate is open."""
    (project.folder / "compose.yaml").write_text(VLLM + WEB)
    project("up", "--detach", "--quiet-pull")
    assert started(project, "web") > opened(project)
    assert project.wait_for("ready")["engine"]["url"] == "http://vllm:8000"
    kept = project.docker("inspect", "--format", "{{json .Mounts}}", project.container("vllm"))
    assert all(f'"Destination":"{place}"' in kept for place in CACHES)


def test_override_leaves_the_engine_as_it_was(project: Project) -> None:
    """The merged `vllm` is the user's own, its logging driver too; four volumes come to it."""
    before = project.config("compose.yaml")["services"]["vllm"]
    after = project.config()["services"]["vllm"]
    assert before["logging"]["driver"] == "json-file"
    added = after.pop("volumes")
    assert after == before
    assert [(one["type"], one["target"]) for one in added] == [
        ("volume", place) for place in (*CACHES, "/root/.tilelang/cache")
    ]


def test_the_sidecar_is_hardened(docker: Docker, project: Project) -> None:
    """As it runs, not as it is written."""
    project("up", "--detach", "--quiet-pull", "warmup")
    shown = docker("inspect", "--format", "{{json .HostConfig}}", project.container("warmup"))
    for part in (
        '"ReadonlyRootfs":true',
        '"CapDrop":["ALL"]',
        '"SecurityOpt":["no-new-privileges:true"]',
        '"RestartPolicy":{"Name":"unless-stopped"',
    ):
        assert part in shown
    assert docker.state(project.container("vllm"))["Running"], "it is brought along"


OWN = """\
    volumes:
      - ./mine:/root/.cache/vllm
      - ./models:/root/.cache/huggingface
"""


def test_a_volume_of_the_user_s_own_at_the_same_place(project: Project) -> None:
    """Compose takes ours, and a line in .env gives the user's back; others are left alone."""
    (project.folder / "compose.yaml").write_text(VLLM + OWN)

    def sources() -> dict[str, str]:
        volumes = project.config()["services"]["vllm"]["volumes"]
        assert len(volumes) == 5
        return {one["target"]: Path(one["source"]).name for one in volumes}

    assert sources()["/root/.cache/vllm"] == "warmup-cache-torch"
    project.set(WARMUP_CACHE_TORCH="./mine")
    assert sources()["/root/.cache/vllm"] == "mine"
    assert sources()["/root/.cache/huggingface"] == "models"


@pytest.mark.parametrize("file", ["compose.override.yaml", "compose.logs.yaml"])
def test_a_service_that_is_not_called_vllm(project: Project, file: str) -> None:
    """The one line that the file itself gives is enough."""
    project.add(file)
    (project.folder / "compose.yaml").write_text(VLLM.replace("vllm:", "llm:"))
    files = sorted({"compose.override.yaml", file}, reverse=True)
    for name in files:
        text = (project.folder / name).read_text()
        (command,) = re.findall(r"sed -i 's.*$", text, re.MULTILINE)
        subprocess.run(["sh", "-c", command], cwd=project.folder, check=True)
    config = project.config("compose.yaml", *files)
    assert config["services"].keys() == {"llm", "warmup"}
    warmup = config["services"]["warmup"]
    assert warmup["environment"]["WARMUP_ENGINE_URL"] == "http://llm:8000"
    assert warmup["depends_on"].keys() == {"llm"}


def test_variables_have_defaults(project: Project) -> None:
    """Without any of them the file still says something sensible."""
    (project.folder / ".env").write_text("TEST_IMAGE=any\n")
    config = project.config()
    warmup = config["services"]["warmup"]
    assert warmup["environment"]["WARMUP_SHAPES"] == "default"
    assert [(p["host_ip"], p["published"], p["target"]) for p in warmup["ports"]] == [
        ("127.0.0.1", "8900", 8900)
    ]
    check = warmup["healthcheck"]
    assert (check["interval"], check["timeout"], check["retries"]) == ("5s", "3s", 3)
    assert check["start_period"] == "24h0m0s"

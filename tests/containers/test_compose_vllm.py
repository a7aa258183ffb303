"""A real vLLM (CPU) in a container, with the override beside it as it is shipped."""

import json
import sys
from pathlib import Path

import pytest
import yaml

from tests.containers.conftest import BASE
from tests.containers.docker import Docker
from tests.containers.project import made
from tests.live.sidecar import wait_until
from tests.live.vllm import Installation, VllmServer

pytestmark = pytest.mark.live


def compose_of(installation: Installation, folder: Path) -> str:
    """The container gets this machine's userland: the vLLM that is here was installed for it."""
    server = VllmServer(installation, folder)
    environment = server._environment(Path("/tmp"))
    flags = server._command[1:]
    where = {"--host": "0.0.0.0", "--port": "8000"}
    for flag, value in where.items():
        flags[flags.index(flag) + 1] = value
    python = installation.python
    needed = {"/usr", sys.base_prefix, str(python.parents[1]), str(installation.models)}
    environment |= {"HOME": "/root", "VLLM_CACHE_ROOT": "/root/.cache/vllm"}
    del environment["PATH"]
    service = {
        "image": BASE,
        "entrypoint": [str(python), *flags],
        "environment": environment,
        "volumes": [f"{place}:{place}:ro" for place in sorted(needed)],
        "restart": "unless-stopped",
    }
    return yaml.safe_dump({"services": {"vllm": service}})


def test_a_real_vllm_beside_the_override(
    docker: Docker, image: str, tmp_path: Path, vllm_installation: Installation
) -> None:
    """`up --wait` returns when it is warm; killed, the gate shuts and Docker starts it again."""
    folder = tmp_path / "project"
    folder.mkdir()
    compose = compose_of(vllm_installation, tmp_path)
    with made(docker, image, folder, compose) as project:
        project.add("compose.override.yaml")
        project("up", "--detach", "--quiet-pull", "--wait", limit_s=600)
        status = project.wait_for("ready", "/status")
        assert status["engine"]["version"] == vllm_installation.version
        waves = [wave for cell in status["cells"] for wave in cell["waves"]]
        assert len(waves) >= len(status["cells"]) > 1
        kept = docker("inspect", "--format", "{{json .Mounts}}", project.container("vllm"))
        assert "/root/.cache/vllm" in {mount["Destination"] for mount in json.loads(kept)}

        began = docker.state(project.container("vllm"))["StartedAt"]
        project.crash("vllm")
        wait_until("the gate is shut", lambda: project.state() not in (None, "ready"), 30)
        wait_until(
            "the engine is started again",
            lambda: docker.state(project.container("vllm"))["StartedAt"] != began,
            120,
        )

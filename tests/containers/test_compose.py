"""compose.override.yaml beside somebody's compose.yaml."""

import json
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.containers.conftest import ROOT
from tests.containers.docker import Docker, get

pytestmark = [pytest.mark.containers, pytest.mark.timeout(300)]

COMPOSE = """\
services:
  vllm:  # the simulated engine stands in for a real one
    image: {image}
    command: [sim, --host, 0.0.0.0, --port, "8000"]
    healthcheck: {{disable: true}}
    logging: {{driver: json-file, options: {{max-size: 1m}}}}
  web:  # whatever must not get a request before the engine is warm
    image: {image}
    entrypoint: [sleep, infinity]
    healthcheck: {{disable: true}}
    stop_signal: SIGKILL
    depends_on:
      warmup: {{condition: service_healthy}}
"""


@pytest.fixture
def project(docker: Docker, image: str, tmp_path: Path) -> Iterator[Path]:
    """Somebody's folder with a compose.yaml; ours is dropped beside it, as it is shipped."""
    (tmp_path / "compose.yaml").write_text(COMPOSE.format(image=image))
    shutil.copy(ROOT / "compose.override.yaml", tmp_path)
    name = f"warmup-test-{uuid.uuid4().hex[:8]}"
    (tmp_path / ".env").write_text(
        f"COMPOSE_PROJECT_NAME={name}\nWARMUP_IMAGE={image}\nWARMUP_PORT=0\n"
    )
    try:
        yield tmp_path
    finally:
        docker("compose", "down", "--volumes", "--timeout", "3", cwd=tmp_path, check=False)


def test_override_warms_before_a_service_that_waits(docker: Docker, project: Path) -> None:
    """`up` starts what depends on the sidecar only once the gate is open."""
    docker("compose", "up", "--detach", "--quiet-pull", cwd=project, limit_s=240)
    warmup = docker("compose", "ps", "--quiet", "warmup", cwd=project)
    assert docker.health(warmup) == "healthy"
    answer = get(f"{docker.url(warmup)}/ready")
    assert answer is not None
    assert answer.status == 200, answer
    assert answer.body["engine"]["url"] == "http://vllm:8000"
    web = docker("compose", "ps", "--quiet", "web", cwd=project)
    assert docker.state(web)["StartedAt"] > docker.state(warmup)["StartedAt"]


def test_override_leaves_the_engine_as_it_was(docker: Docker, project: Path) -> None:
    """The merged `vllm` service, its logging driver too, is the user's own."""
    alone = project / "alone.yaml"
    alone.write_text((project / "compose.yaml").read_text().split("  web:")[0])
    shown = ("config", "--format", "json")
    before = json.loads(docker("compose", "--file", alone.name, *shown, cwd=project))
    after = json.loads(docker("compose", *shown, cwd=project))
    assert before["services"]["vllm"]["logging"]["driver"] == "json-file"
    assert after["services"]["vllm"] == before["services"]["vllm"]

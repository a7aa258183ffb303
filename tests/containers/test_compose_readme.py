"""The blocks of README.md and deploy/compose/README.md, run as they stand there."""

import re
import shutil
from pathlib import Path

from tests.containers.conftest import ROOT
from tests.containers.docker import Docker
from tests.containers.project import VLLM, made, opened, started

README = (ROOT / "README.md").read_text()
PAGE = (ROOT / "deploy" / "compose" / "README.md").read_text()
BLOCKS = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
NAME = "vllm-warmup-sidecar:0.1.0"


def block(word: str) -> str:
    """The one block of the page that has this word."""
    (text,) = (text for text in BLOCKS if word in text)
    return str(text)


WEB = """
  web:
    image: ${TEST_IMAGE}
    entrypoint: [sleep, infinity]
    healthcheck: {disable: true}
    stop_signal: SIGKILL
    depends_on: {warmup: {condition: service_healthy}}
"""


def test_the_ten_lines_of_the_readme(docker: Docker, image: str, tmp_path: Path) -> None:
    """Beside an engine and a service that waits, by any shapes and at any port."""
    (ten,) = re.findall(
        r"^```yaml\n(services:\n  warmup:.*?)^```", README, re.MULTILINE | re.DOTALL
    )
    ours = ten.replace(NAME, image).replace("SHAPES: default", "SHAPES: tiny")
    with made(docker, image, tmp_path, VLLM + WEB) as project:
        (tmp_path / "compose.override.yaml").write_text(ours.replace("1:8900:", "1:0:"))
        project("up", "--detach", "--quiet-pull")
        assert started(project, "web") > opened(project)
        project.wait_for("ready")


def test_it_can_be_tried_without_a_gpu(docker: Docker, image: str, tmp_path: Path) -> None:
    """`up --wait` returns: with the image's own health check for the engine it never would."""
    engine = block("sim").replace(NAME, image)
    with made(docker, image, tmp_path, engine) as project:
        project.add("compose.override.yaml")
        project("up", "--detach", "--wait")
        project.wait_for("ready")
        assert docker.health(project.container("vllm")) == "healthy"


def test_a_secret_and_a_shapes_file_are_mounted(docker: Docker, image: str, tmp_path: Path) -> None:
    """By the lines of the page; a key that its owner alone may read is said, with the remedy."""
    engine = block("sim").replace(NAME, image).replace("0.0.0.0]", "0.0.0.0, --api-key, sesame]")
    with made(docker, image, tmp_path, engine) as project:
        project.add("compose.override.yaml")
        (tmp_path / "compose.mine.yaml").write_text(block("secrets:"))
        shutil.copy(ROOT / "shapes" / "tiny.yaml", tmp_path / "my-shapes.yaml")
        key = tmp_path / "engine-key"
        key.write_text("sesame\n")
        key.chmod(0o600)
        project.set(COMPOSE_FILE="compose.yaml:compose.override.yaml:compose.mine.yaml")
        once = ("compose", "run", "--rm", "--no-deps", "warmup", "once")
        told = docker(*once, cwd=tmp_path, check=False, merge=True, limit_s=300)
        assert "/run/secrets/engine-key can't be read (permission denied); let the user" in told
        key.chmod(0o644)
        project("up", "--detach", "--wait")
        project.wait_for("ready")

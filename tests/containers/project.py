"""Somebody's folder with a compose.yaml, and our files beside it as they are shipped."""

import json
import os
import shutil
import signal
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conftest import unavailable
from tests.containers.conftest import QUICK_SIM, ROOT
from tests.containers.docker import Answer, Docker, get, wait_until

VLLM = f"""\
services:
  vllm:  # the simulated engine stands in for a real one
    image: ${{TEST_IMAGE}}
    command: {json.dumps(QUICK_SIM)}
    healthcheck: {{disable: true}}
    restart: unless-stopped
    logging: {{driver: json-file, options: {{max-size: 5m}}}}
"""
"""`unless-stopped`: vLLM exits 0 when its engine dies, and `on-failure` would leave it there."""


@dataclass(slots=True)
class Project:
    """One compose project; `made` ends it."""

    docker: Docker
    folder: Path

    def __call__(self, *arguments: str, limit_s: float = 120.0, check: bool = True) -> str:
        return self.docker("compose", *arguments, cwd=self.folder, limit_s=limit_s, check=check)

    def add(self, *names: str) -> None:
        """Files and folders of the repository, dropped beside the compose.yaml."""
        for name in names:
            source = ROOT / name
            copy = shutil.copytree if source.is_dir() else shutil.copy
            copy(source, self.folder / source.name)

    def set(self, **values: object) -> None:
        """Lines of the .env file."""
        with (self.folder / ".env").open("a") as file:
            file.writelines(f"{name}={value}\n" for name, value in values.items())

    def config(self, *files: str) -> dict[str, Any]:
        """What Compose makes of the files, the usual ones if none is named."""
        chosen = [word for file in files for word in ("--file", file)]
        shown: dict[str, Any] = json.loads(self(*chosen, "config", "--format", "json"))
        return shown

    def container(self, service: str) -> str:
        return self("ps", "--all", "--quiet", service)

    def ask(self, path: str = "/ready") -> Answer | None:
        """The sidecar; None while it does not answer."""
        container = self.container("warmup")
        try:
            return get(f"{self.docker.url(container)}{path}") if container else None
        except (AssertionError, IndexError):  # just now it has no port
            return None

    def state(self) -> str | None:
        answer = self.ask()
        return answer.body["state"] if answer else None

    def wait_for(self, state: str, limit_s: float = 90.0) -> None:
        wait_until(f"the sidecar is {state}", lambda: self.state() == state, limit_s)

    def crash(self, service: str) -> None:
        """SIGKILL from outside. `docker kill` would switch the restart policy off."""
        try:
            os.kill(self.docker.state(self.container(service))["Pid"], signal.SIGKILL)
        except (PermissionError, ProcessLookupError) as problem:
            unavailable(f"processes of containers can't be killed from here ({problem.strerror})")


@contextmanager
def made(docker: Docker, image: str, folder: Path, compose: str = VLLM) -> Iterator[Project]:
    """A project in an empty folder, gone at the end with all its volumes."""
    project = Project(docker, folder)
    (folder / "compose.yaml").write_text(compose)
    project.set(
        COMPOSE_PROJECT_NAME=f"warmup-test-{uuid.uuid4().hex[:8]}",
        TEST_IMAGE=image,
        WARMUP_IMAGE=image,
        WARMUP_PORT=0,
        WARMUP_SHAPES="tiny",
    )
    try:
        yield project
    finally:
        project("down", "--volumes", "--remove-orphans", "--timeout", "3", check=False)

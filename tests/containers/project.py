"""Somebody's folder with a compose.yaml, and our files beside it as they are shipped."""

import json
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.containers.conftest import QUICK_SIM, ROOT
from tests.containers.docker import Docker
from tests.live.sidecar import Answer, get, wait_until

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

    def __call__(self, *arguments: str, limit_s: float = 300.0, check: bool = True) -> str:
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

    def wait_for(self, state: str, path: str = "/ready") -> dict[str, Any]:
        """What the sidecar said when it was so: of `path`, of which its own state may move on."""
        body: dict[str, Any] = {}

        def is_so() -> bool:
            nonlocal body
            answer = self.ask(path)
            body = answer.body if answer else {}
            return body.get("state") == state

        wait_until(f"the sidecar is {state}", is_so, 180)
        return body

    def crash(self, service: str) -> None:
        self.docker.crash(self.container(service))


def started(project: Project, service: str) -> datetime:
    """By Docker's clock, which is that of the sidecar."""
    return _moment(project.docker.state(project.container(service))["StartedAt"])


def opened(project: Project) -> datetime:
    """When the sidecar opened its gate for the first time. Docker forgets all but the last five
    health checks, and /ready tells the last opening alone."""
    log = project.docker("logs", "--timestamps", project.container("warmup"), merge=True)
    first = next(line for line in log.splitlines() if "state=ready " in line)
    return _moment(first.split()[0])


def _moment(stamp: str) -> datetime:
    """Docker writes nanoseconds, and UTC or its own zone."""
    return datetime.fromisoformat(re.sub(r"(\.\d{6})\d*", r"\1", stamp).replace("Z", "+00:00"))


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
        gone = ("--volumes", "--remove-orphans", "--rmi", "local")  # what Compose built, too
        project("down", *gone, "--timeout", "3", check=False)

"""A Docker Engine through its command line, and containers that are gone when a test is over."""

import json
import os
import shlex
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.conftest import unavailable

COMMAND = tuple(shlex.split(os.environ.get("WARMUP_TEST_DOCKER") or "docker"))
"""How to reach the engine; a wrapper that sets DOCKER_HOST can stand before `docker`."""


class NoDocker(Exception):
    """There is no Docker Engine that answers; says what was tried."""


@dataclass(slots=True)
class Docker:
    """Runs `docker …` and remembers what has to be removed."""

    made: list[tuple[str, ...]] = field(default_factory=list)

    def __call__(
        self,
        *arguments: str,
        limit_s: float = 60.0,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        check: bool = True,
        merge: bool = False,
    ) -> str:
        """Its stdout, stripped, with `merge` its stderr too; raises AssertionError with its
        stderr when it fails."""
        done = subprocess.run(
            [*COMMAND, *arguments],
            cwd=cwd,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
        if check and done.returncode:
            line = " ".join(("docker", *arguments))
            raise AssertionError(f"`{line}` ended with {done.returncode}:\n{done.stderr}")
        return (done.stdout + done.stderr if merge else done.stdout).strip()

    def code(self, *arguments: str) -> int:
        """The exit status alone."""
        done = subprocess.run([*COMMAND, *arguments], capture_output=True, timeout=60, check=False)
        return done.returncode

    def start(self, image: str, *options: str, command: tuple[str, ...] = ()) -> str:
        """Start a container in the background; its id."""
        container = self("run", "--detach", *options, image, *command)
        self.made.append(("rm", "--force", "--volumes", container))
        return container

    def network(self, name: str) -> str:
        self("network", "create", name)
        self.made.append(("network", "rm", name))
        return name

    def state(self, container: str) -> dict[str, Any]:
        state: dict[str, Any] = json.loads(
            self("inspect", "--format", "{{json .State}}", container)
        )
        return state

    def health(self, container: str) -> str:
        return str(self.state(container)["Health"]["Status"])

    def logs(self, container: str) -> str:
        done = subprocess.run(
            [*COMMAND, "logs", container],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            check=False,
        )
        return done.stdout

    def url(self, container: str) -> str:
        """Where the container's port 8900 was published on loopback."""
        return f"http://{self('port', container, '8900/tcp').splitlines()[0]}"

    def crash(self, container: str) -> None:
        """SIGKILL from outside. `docker kill` would switch the restart policy off."""
        pid = self.state(container)["Pid"]
        assert pid > 0, "it does not run, and 0 would be this very process group"
        try:
            os.kill(pid, signal.SIGKILL)
        except (PermissionError, ProcessLookupError) as problem:
            unavailable(f"processes of containers can't be killed from here ({problem.strerror})")

    def clean(self) -> None:
        """Every one of them, whatever becomes of the others."""
        made, self.made = self.made, []
        late = []
        for arguments in reversed(made):
            try:
                self(*arguments, check=False)
            except subprocess.TimeoutExpired:
                late.append(" ".join(arguments))
        assert not late, f"left behind: {late}"


def engine_version() -> str:
    """Raises NoDocker when no engine answers."""
    try:
        return Docker()("version", "--format", "{{.Server.Version}}", limit_s=20)
    except (OSError, AssertionError, subprocess.TimeoutExpired) as problem:
        why = str(problem).strip().splitlines()[-1]
        raise NoDocker(f"no Docker Engine answers to `{' '.join(COMMAND)}` ({why})") from None

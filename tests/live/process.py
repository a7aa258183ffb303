"""A process that a test started, in a group of its own, with its output in a file."""

import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self


class Process:
    """Runs from construction on; `end` ends it and all its children."""

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                command,
                env=env,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def code(self) -> int | None:
        """Its exit status once it has ended by itself."""
        return self._process.poll()

    def end(self, how: signal.Signals = signal.SIGTERM, *, limit_s: float = 20.0) -> int:
        """Signal the group, and SIGKILL what is left after `limit_s`; the leader's exit status."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, how)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(limit_s)
        with suppress(ProcessLookupError):  # the leader is gone, a child may not be
            os.killpg(self.pid, signal.SIGKILL)
        return self._process.wait(60.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


_given: set[int] = set()


def free_port() -> int:
    """An ephemeral port that nobody holds just now, at whatever address, and that was not given
    to anybody before: they may not have come to bind it yet."""
    while True:
        with socket.socket() as probe:
            probe.bind(("", 0))
            port = int(probe.getsockname()[1])
        if port not in _given:
            _given.add(port)
            return port

"""A process that a test started, in a group of its own, with its output in a file."""

import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
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
        return self._process.wait(10.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()


def free_port() -> int:
    """An ephemeral port of loopback that nobody holds just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

"""The ready file: there while the gate is open, for probes that look at a path."""

import logging
from pathlib import Path

from anyio import to_thread

from sidecar.adapters.atomic import write_atomically
from sidecar.core.errors import ConfigError

log = logging.getLogger(__name__)


class ReadyFile:
    """One path. What can't be done is logged and told in `troubles`."""

    def __init__(self, path: Path) -> None:
        """Removes a file of an earlier life and tries to write. Raises ConfigError if it can't."""
        self._path = path
        self._trouble: str | None = None
        try:
            write_atomically(path, "")
            path.unlink()
        except OSError as problem:
            raise ConfigError(
                f"the ready file {path} can't be written ({problem.strerror}): set "
                "WARMUP_READY_FILE to a path in a folder that exists and is writable"
            ) from problem

    @property
    def troubles(self) -> tuple[str, ...]:
        return () if self._trouble is None else (self._trouble,)

    async def write(self) -> None:
        """It appears at once and whole."""
        await to_thread.run_sync(self._try_write)

    async def remove(self) -> None:
        await to_thread.run_sync(self._try_remove)

    def _try_write(self) -> None:
        try:
            write_atomically(self._path, "ready\n")
            self._trouble = None
        except OSError as problem:
            self._trouble = f"the ready file {self._path} can't be written: {problem.strerror}"
            log.error("%s", self._trouble)

    def _try_remove(self) -> None:
        try:
            self._path.unlink(missing_ok=True)
            self._trouble = None
        except OSError as problem:
            # The worst of all: it promises what the gate doesn't.
            self._trouble = (
                f"the ready file {self._path} can't be removed, so it lies: {problem.strerror}"
            )
            log.error("%s", self._trouble)

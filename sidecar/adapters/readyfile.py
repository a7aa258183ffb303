"""The ready file: there while the gate is open, for probes that look at a path."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio

from sidecar.adapters.atomic import write_atomically
from sidecar.adapters.onethread import OneThread
from sidecar.core.errors import ConfigError

log = logging.getLogger(__name__)

_LIMIT_S = 1.0
"""For a folder that doesn't answer, a lost network share: the gate must not wait for it."""


class ReadyFile:
    """One path. What can't be done is logged, told in `troubles`, and tried at the next call.

    One thread at a time looks after it, and leaves it only as it was wanted last: one that a slow
    folder held up can't bring back a file that was removed meanwhile.
    """

    def __init__(
        self, path: Path, *, write: Callable[[Path, str], None] = write_atomically
    ) -> None:
        """Removes a file of an earlier life and tries to write. Raises ConfigError if it can't."""
        self._path = path
        self._write = write
        self._trouble: str | None = None
        self._is_wanted = False
        self._thread = OneThread()
        try:
            write(path, "")
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
        """It is there, whole from the first moment; one that is there already is left alone."""
        await self._want(True, "can't be written")

    async def remove(self) -> None:
        """It is gone, if it was there."""
        # The worst of all: it promises what the gate doesn't.
        await self._want(False, "can't be removed, so it lies")

    async def _want(self, is_wanted: bool, what: str) -> None:
        self._is_wanted = is_wanted
        trouble: str | None = f"no answer within {_LIMIT_S:g} s"
        with anyio.move_on_after(_LIMIT_S):
            try:
                await self._thread.run(self._follow)
                trouble = None
            except OSError as problem:
                trouble = problem.strerror or str(problem)
        told = None if trouble is None else f"the ready file {self._path} {what}: {trouble}"
        if told is not None and told != self._trouble:
            log.error("%s", told)
        self._trouble = told

    def _follow(self) -> None:
        is_there = None
        while is_there is not self._is_wanted:
            is_there = self._is_wanted
            if not is_there:
                self._path.unlink(missing_ok=True)
            elif not self._path.is_file():
                self._write(self._path, "ready\n")


class Share:
    """What one of several engines has to say about the file: it is there while all want it."""

    def __init__(self, file: ReadyFile, wanted: list[bool], index: int) -> None:
        self._file = file
        self._wanted = wanted
        self._index = index

    @property
    def troubles(self) -> tuple[str, ...]:
        return self._file.troubles

    async def write(self) -> None:
        """It is there, unless another engine's gate is shut."""
        self._wanted[self._index] = True
        await (self._file.write() if all(self._wanted) else self._file.remove())

    async def remove(self) -> None:
        self._wanted[self._index] = False
        await self._file.remove()


def shared(file: ReadyFile, count: int) -> Iterator[Share]:
    """One share for each of `count` engines."""
    wanted = [False] * count
    return iter([Share(file, wanted, index) for index in range(count)])

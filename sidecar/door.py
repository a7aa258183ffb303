"""The gate with what hangs on it: the ready file, a line in the log, the warnings.

Only the conductor holds it, so the gate keeps its one writer.
"""

import logging
from collections.abc import Callable
from typing import Protocol

import anyio

from sidecar.core.errors import ExitCode
from sidecar.core.judge.verdict import Opening
from sidecar.core.watch.gate import Event, Gate, Snapshot, State

log = logging.getLogger(__name__)


class ReadyFile(Protocol):
    """A file that is there while the gate is open. No method raises, and each has a limit."""

    @property
    def troubles(self) -> tuple[str, ...]: ...

    async def write(self) -> None:
        """It is there, if it wasn't."""
        ...

    async def remove(self) -> None: ...


class Door:
    """Moves the gate. What comes after `stop` changes nothing any more."""

    def __init__(
        self,
        url: str,
        *,
        utc: Callable[[], float],
        ready_file: ReadyFile | None,
        on_change: Callable[[Snapshot], None] | None,
    ) -> None:
        self._utc = utc
        self._ready_file = ready_file
        self._settling = anyio.Lock()
        self.gate = Gate(url, at=utc(), on_change=on_change)
        self.moved = anyio.Event()
        """Set, and replaced by another one, when the gate has opened or shut."""

    @property
    def snapshot(self) -> Snapshot:
        return self.gate.snapshot

    @property
    def troubles(self) -> tuple[str, ...]:
        """What is wrong with the ready file."""
        return () if self._ready_file is None else self._ready_file.troubles

    def move(
        self, event: Event, *, reasons: tuple[str, ...] = (), exit_code: ExitCode | None = None
    ) -> None:
        """Any event that does not open."""
        if self.gate.state is State.STOPPING:
            return
        state = self.gate.apply(event, at=self._utc(), reasons=reasons, exit_code=exit_code).state
        log.info("state=%s event=%s%s", state, event, listed(reasons))
        self._has_moved()

    def open(self, event: Event, decided: Opening, *, adopted: bool) -> None:
        """Open; the ready file follows."""
        if self.gate.state is State.STOPPING:
            return
        proven, reasons = decided.proven, decided.reasons
        self.gate.apply(event, at=self._utc(), reasons=reasons, proven=proven, adopted=adopted)
        log.info("state=ready event=%s proven=%s%s", event, proven, listed(reasons))
        self._has_moved()

    async def settle(self) -> None:
        """Make the ready file say what the gate says, whatever became of it meanwhile."""
        if self._ready_file is None:
            return
        # One at a time, and not cut off: a file could appear after it was removed.
        with anyio.CancelScope(shield=True):
            async with self._settling:
                is_open = None
                while is_open is not self.snapshot.is_ready:
                    is_open = self.snapshot.is_ready
                    await (self._ready_file.write() if is_open else self._ready_file.remove())

    async def stop(self) -> None:
        """Shut for good."""
        if self.gate.state is not State.STOPPING:
            self.move(Event.STOP, reasons=("the sidecar is stopping",))
        await self.settle()

    def _has_moved(self) -> None:
        self.moved.set()
        self.moved = anyio.Event()

    def tell(self, reasons: tuple[str, ...]) -> None:
        """Other reasons for the same state."""
        if self.gate.state is not State.STOPPING and self.snapshot.reasons != reasons:
            log.info("state=%s%s", self.gate.state, listed(reasons))
            self.gate.note(reasons=reasons)


def listed(reasons: tuple[str, ...]) -> str:
    """Reasons at the end of a log line."""
    return f" reasons={'; '.join(reasons)}" if reasons else ""

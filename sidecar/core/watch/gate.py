"""The gate: one readiness state, one table of its transitions, one frozen view for everybody.

The conductor is its only writer. An event that the table doesn't list raises and changes nothing:
a gate that is wrong must not be wrong quietly.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import TypedDict, Unpack

from sidecar.core.errors import ExitCode
from sidecar.core.facts import EngineFacts
from sidecar.core.grid.cost import Speed
from sidecar.core.judge.passes import Progress
from sidecar.core.judge.verdict import GridVerdict
from sidecar.core.logs.items import SourceState
from sidecar.core.tally import Totals, WaveRow
from sidecar.core.watch.boot import BootMark
from sidecar.core.watch.escapes import EscapeLog


class State(StrEnum):
    """Where the sidecar stands."""

    WAITING = "waiting"
    """The engine is not there, or not known yet."""
    WARMING = "warming"
    READY = "ready"
    """The only state in which the gate is open."""
    FAILED = "failed"
    """Not warm, with reasons; tried again by itself after a pause."""
    STOPPING = "stopping"


class Event(StrEnum):
    """What can happen to the gate."""

    FOUND = "found"
    """An engine that has to be warmed is there, or its next try begins."""
    PASSED = "passed"
    """The verdict opens the gate."""
    ADOPTED = "adopted"
    """A verdict from before the sidecar's own restart holds for this boot."""
    RETURNED = "returned"
    """The boot that had been warmed is back; it never died."""
    LOST = "lost"
    """The engine is gone, late, restarted, or not one engine."""
    GAVE_UP = "gave_up"
    """The start deadline or the budget is spent, or the plan can't be run."""
    STOP = "stop"


TRANSITIONS: Mapping[State, Mapping[Event, State]] = MappingProxyType(
    {
        State.WAITING: {
            Event.FOUND: State.WARMING,
            Event.ADOPTED: State.READY,
            Event.RETURNED: State.READY,
            Event.LOST: State.WAITING,
            Event.GAVE_UP: State.FAILED,
            Event.STOP: State.STOPPING,
        },
        State.WARMING: {
            Event.PASSED: State.READY,
            Event.LOST: State.WAITING,
            Event.GAVE_UP: State.FAILED,
            Event.STOP: State.STOPPING,
        },
        State.READY: {
            Event.LOST: State.WAITING,
            Event.STOP: State.STOPPING,
        },
        State.FAILED: {
            Event.FOUND: State.WARMING,
            Event.ADOPTED: State.READY,
            Event.RETURNED: State.READY,
            Event.LOST: State.WAITING,
            Event.STOP: State.STOPPING,
        },
        State.STOPPING: {},
    }
)
"""From a state, by an event, to a state. FAILED leads on as WAITING does, because the start
deadline leads there while the search for the engine goes on. WAITING knows LOST, because an engine
may go again while it is looked up whether it is to be warmed at all."""


class IllegalEvent(Exception):
    """A bug of the writer: an event that its state doesn't know."""

    def __init__(self, state: State, event: Event) -> None:
        super().__init__(f"event {event} is not legal in state {state}")
        self.state = state
        self.event = event


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that probes, pages and metrics show, as of one moment.

    `since` and the rows' times are seconds since 1970, UTC: they are for people.
    """

    url: str
    state: State
    since: float
    proven: bool = False
    """The gate is open and every cell has its evidence."""
    adopted: bool = False
    """The gate is open on a verdict from before the sidecar's restart."""
    reasons: tuple[str, ...] = ()
    """Why the gate is shut, or open without proof."""
    warnings: tuple[str, ...] = ()
    exit_code: ExitCode | None = None
    """In FAILED: what `vllm-warmup once` answers to this."""
    progress: Progress | None = None
    eta_s: float | None = None
    engine: EngineFacts | None = None
    boot: BootMark | None = None
    verdict: GridVerdict | None = None
    waves: tuple[WaveRow, ...] = ()
    """Of this boot, oldest first, the last MAX_ROWS of them."""
    waves_dropped: int = 0
    totals: Totals = field(default_factory=Totals)
    is_active: bool = False
    """Waves are being sent now."""
    cell: str | None = None
    """Of the wave that is being sent, or of the last one in this warm-up."""
    speed: Speed | None = None
    """Of this boot, as its waves showed it; None: not known yet."""
    warmup_s: float | None = None
    """How long the running warm-up has taken so far, or the last one took."""
    nonce: str | None = None
    """Of the run: it stands in every request id and cache salt that was sent."""
    escapes: EscapeLog | None = None
    """What compiled while the gate was open; None: no log is read."""
    held: tuple[str, ...] = ()
    """Ids of cells that an engine died on, and that are not sent."""
    logs: tuple[SourceState, ...] = ()
    """Where the engine's log is read from."""
    parts: Mapping[str, "Snapshot"] = field(default_factory=dict)
    """Of several engines, each by its name; none where there is one."""

    @property
    def is_ready(self) -> bool:
        return self.state is State.READY

    def shut(self, reason: str, *, at: float) -> "Snapshot":
        """How it looks once the gate is shut for that reason; the gate itself is not moved."""
        return replace(
            self, state=State.WAITING, since=at, proven=False, adopted=False, reasons=(reason,)
        )


class Notes(TypedDict, total=False):
    """What may change without a change of state."""

    reasons: tuple[str, ...]
    warnings: tuple[str, ...]
    progress: Progress | None
    eta_s: float | None
    engine: EngineFacts | None
    boot: BootMark | None
    verdict: GridVerdict | None
    waves: tuple[WaveRow, ...]
    waves_dropped: int
    totals: Totals
    is_active: bool
    cell: str | None
    speed: Speed | None
    warmup_s: float | None
    nonce: str | None
    escapes: EscapeLog | None
    held: tuple[str, ...]


class Gate:
    """Holds the snapshot of now. `on_change` hears of each new one, in order."""

    def __init__(
        self, url: str, *, at: float, on_change: Callable[[Snapshot], None] | None = None
    ) -> None:
        self._snapshot = Snapshot(url=url, state=State.WAITING, since=at)
        self._on_change = on_change

    @property
    def snapshot(self) -> Snapshot:
        return self._snapshot

    @property
    def state(self) -> State:
        return self._snapshot.state

    def apply(
        self,
        event: Event,
        *,
        at: float,
        reasons: tuple[str, ...] = (),
        proven: bool = False,
        adopted: bool = False,
        exit_code: ExitCode | None = None,
    ) -> Snapshot:
        """Move by the table. Raises IllegalEvent, and then nothing has changed.

        All but the event and the time belongs to the state: it is replaced by what is given, and
        a gate that is not open is neither proven nor adopted, whatever is given.
        """
        state = TRANSITIONS[self.state].get(event)
        if state is None:
            raise IllegalEvent(self.state, event)
        opens = state is State.READY
        return self._publish(
            replace(
                self._snapshot,
                state=state,
                since=at,
                proven=proven and opens,
                adopted=adopted and opens,
                reasons=reasons,
                exit_code=exit_code,
                is_active=False,
                cell=None,
            )
        )

    def note(self, **changes: Unpack[Notes]) -> Snapshot:
        """Change what is shown; the state stays."""
        return self._publish(replace(self._snapshot, **changes))

    def _publish(self, snapshot: Snapshot) -> Snapshot:
        self._snapshot = snapshot
        if self._on_change is not None:
            self._on_change(snapshot)
        return snapshot

"""One life of the engine, as far as the conductor has come with it."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from sidecar.core.facts import EngineFacts
from sidecar.core.grid.cells import Look
from sidecar.core.grid.cost import Basis
from sidecar.core.grid.plan import Plan
from sidecar.core.judge.speed import Speedometer
from sidecar.core.judge.verdict import Judge, Opening
from sidecar.core.results import WaveResult
from sidecar.core.tally import MAX_ROWS, WaveRow
from sidecar.core.watch.boot import BootMark
from sidecar.core.watch.deaths import Death


class Replay(Protocol):
    """Sends the waves of one plan to one boot."""

    async def run(self, looks: Sequence[Look]) -> Sequence[WaveResult]:
        """A wave of each look, all at the same time, in this order. A failed request is a Result;
        cancelled, it closes what it had opened."""
        ...


@dataclass(slots=True)
class Boot:
    """One life of the engine and what is known of it. Owned by the conductor."""

    facts: EngineFacts
    mark: BootMark
    nonce: str
    met_at: float = 0.0
    """Seconds since 1970, UTC."""
    plan: Plan | None = None
    judge: Judge | None = None
    replay: Replay | None = None
    opened: Opening | None = None
    """Set once the gate has been opened on this boot: it needs no second warm-up."""
    adopted: bool = False
    adoptable: bool = True
    """False: what was kept of it no longer holds."""
    attempts: int = 0
    in_flight: Look | None = None
    failure: str = ""
    """How the last wave failed, if it did."""
    held: tuple[Death, ...] = ()
    """Cells of the plan that an engine died on: they are not sent."""
    rows: deque[WaveRow] = field(default_factory=lambda: deque(maxlen=MAX_ROWS))
    rows_dropped: int = 0
    warnings: dict[str, str] = field(default_factory=dict)
    """By cell: what its waves gave reason to warn of."""
    speeds: Speedometer = field(default_factory=Speedometer)
    basis: Basis = field(default_factory=Basis)
    """What was known of its speed before its first wave."""

    def add(self, row: WaveRow) -> None:
        self.rows_dropped += len(self.rows) == self.rows.maxlen
        self.rows.append(row)

    def start_over(self, nonce: str) -> None:
        """The same process has to be warmed again. The nonce is a new one: its prefix cache may
        know the prompts of the last."""
        self.nonce = nonce
        self.plan = self.judge = self.replay = self.opened = None
        self.adopted = self.adoptable = False
        self.rows.clear()
        self.rows_dropped = 0
        self.warnings.clear()

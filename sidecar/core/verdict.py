"""Evidence → verdict, by the rules R1-R10 (CONTRIBUTING.md tells them)."""

from dataclasses import dataclass
from enum import StrEnum

from sidecar.core.cells import Cell, Converge, Gait, Look
from sidecar.core.facts import EngineFacts
from sidecar.core.plan import Plan
from sidecar.core.results import WaveResult


class Call(StrEnum):
    """The verdict on a cell or on the grid."""

    WARM = "warm"
    PASSED = "passed"
    """R10: `heaviest` succeeded; says nothing about its latency."""
    NOT_YET = "not_yet"
    UNKNOWN = "unknown"


class Standing(StrEnum):
    """What a cell that is not warm means for the gate when the budget is spent."""

    DONE = "done"
    UNPROVEN = "unproven"
    """Nothing cold was seen, but the evidence doesn't reach. Opens or not by `on_unproven`."""
    COLD = "cold"
    """Seen paying. Keeps the gate shut."""
    FAILED = "failed"
    """Can't be done. Keeps the gate shut."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One wave and what it is worth as evidence: the row in /status and in the report."""

    wave: WaveResult
    valid: bool
    invalid_because: tuple[str, ...]
    shown: bool
    """R3: that the wave made the batch that its gait promises."""
    foreign: bool
    """R9: the engine served others meanwhile."""
    failed: str | None
    """What to tell the operator when a request of it failed."""


@dataclass(frozen=True, slots=True)
class GaitFigures:
    """Of one cell and gait on this boot, in seconds; None where there is no wave yet."""

    gait: Gait
    waves: int
    valid: int
    first_f_s: float | None
    baseline_f_s: float | None
    last_f_s: float | None
    first_g_s: float | None
    baseline_g_s: float | None
    last_g_s: float | None
    last_is_loud: bool


@dataclass(frozen=True, slots=True)
class CellVerdict:
    """The verdict on one cell."""

    cell: Cell
    call: Call
    standing: Standing
    reasons: tuple[str, ...]
    resolution_s: float | None
    """R7: a cost below it would not be seen."""
    figures: tuple[GaitFigures, ...]


@dataclass(frozen=True, slots=True)
class GridVerdict:
    """The verdict on the declared grid, and nothing more."""

    call: Call
    cells: tuple[CellVerdict, ...]
    reasons: tuple[str, ...]
    evidence: str = "latency+metrics"
    resolution_s: float | None = None


@dataclass(frozen=True, slots=True)
class Opening:
    """Whether the gate may open on a verdict."""

    open: bool
    proven: bool
    reasons: tuple[str, ...]


class Judge:
    """Takes waves, gives the verdict. One Judge per boot of the engine."""

    def __init__(self, plan: Plan, facts: EngineFacts, converge: Converge) -> None:
        raise NotImplementedError

    def feed(self, wave: WaveResult) -> Judged:
        """Judge one wave by R2 and remember it."""
        raise NotImplementedError

    def lacks(self) -> tuple[Look, ...]:
        """The looks that cells still lack, in plan order."""
        raise NotImplementedError

    def verdict(self) -> GridVerdict:
        """The verdict as of now; earlier waves are re-judged against today's baselines."""
        raise NotImplementedError


def opening(verdict: GridVerdict, *, open_unproven: bool) -> Opening:
    """Whether the gate may open on this verdict (`on_unproven: open|closed`)."""
    raise NotImplementedError

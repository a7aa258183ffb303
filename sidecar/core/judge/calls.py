"""What a verdict says: on a wave, a cell, the grid, and whether the gate may open on it."""

from dataclasses import dataclass
from enum import StrEnum

from sidecar.core.grid.cells import Cell, Gait, Role
from sidecar.core.logs.evidence import Hearing
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
    refused: bool = False
    """The engine admitted no more requests just now (503): back off, then ask again."""
    not_shown_because: str | None = None
    unknowable: tuple[str, ...] = ()
    """What R2 asks and the engine doesn't tell. Such a wave proves no more than `unknown`."""


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
class Kernel:
    """A kernel that the log named in waves of one cell, on this boot."""

    backend: str
    kernel: str
    lines: int
    """Compile lines, of all specializations and ranks."""
    cost_s: float | None
    """What the waves that named it took longer than their baseline, in F or in G, together; those
    that were named in one wave share it. None: no such wave came to its first tokens."""


@dataclass(frozen=True, slots=True)
class CellLog:
    """How far the log carries what is said of a cell: of the weakest of its gaits' last looks."""

    hearing: Hearing
    words: str


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
    kernels: tuple[Kernel, ...] = ()
    """The dearest first, the first MAX_KERNELS of them."""
    compile_s: float | None = None
    """What all waves with a compile line took longer than their baseline; None: there is none."""
    log: CellLog | None = None
    """None: no log is read, or nothing was sent yet."""


@dataclass(frozen=True, slots=True)
class GridVerdict:
    """The verdict on the declared grid, and nothing more."""

    call: Call
    cells: tuple[CellVerdict, ...]
    reasons: tuple[str, ...]
    evidence: str = "latency+metrics"
    resolution_s: float | None = None
    log: CellLog | None = None
    """Of the cell that the log carries least; None: no log is read."""


@dataclass(frozen=True, slots=True)
class Opening:
    """Whether the gate may open on a verdict."""

    open: bool
    proven: bool
    reasons: tuple[str, ...]


def opening(verdict: GridVerdict, *, open_unproven: bool, require_log: bool = False) -> Opening:
    """Whether the gate may open on this verdict (`on_unproven: open|closed`).

    What failed or was seen paying keeps it shut. So does a grid of which nothing was shown: it has
    no cells, or each wave was refused, or the budget ended before the first answer.
    `require_log` (WARMUP_REQUIRE_EVIDENCE=log) keeps it shut where the log was not seen whole.
    """
    if not any(c.cell.role is Role.GRID for c in verdict.cells):
        return Opening(
            False, False, ("no cell was warmed: the grid is empty or nothing of it fits",)
        )
    shut = [c for c in verdict.cells if c.standing in (Standing.FAILED, Standing.COLD)]
    if shut:
        return Opening(False, False, _told(shut))
    if require_log and (missing := log_missing(verdict)) is not None:
        return Opening(False, False, (f"WARMUP_REQUIRE_EVIDENCE=log: {missing}",))
    unproven = [c for c in verdict.cells if c.standing is Standing.UNPROVEN]
    if not has_answers(verdict):
        return Opening(
            False, False, ("the engine has answered no wave of the grid", *_told(unproven))
        )
    if unproven:
        return Opening(open_unproven, False, _told(unproven))
    return Opening(True, True, ())


def has_answers(verdict: GridVerdict) -> bool:
    """Whether any wave of the grid came to its first tokens."""
    grid = (c for c in verdict.cells if c.cell.role is Role.GRID)
    return any(f.first_f_s is not None for c in grid for f in c.figures)


def log_missing(verdict: GridVerdict) -> str | None:
    """Why this verdict does not stand on the log too; None: it does.

    That a kernel is named once a process only (no --jit-monitor-verbose) is no such reason: each
    was heard of once, or never.
    """
    if verdict.log is None:
        return "no log was read; set WARMUP_LOG to where the engine's log can be had"
    if verdict.log.hearing in (Hearing.COMPLETE, Hearing.ONCE_ONLY):
        return None
    return f"log: {verdict.log.words}"


def _told(cells: list[CellVerdict]) -> tuple[str, ...]:
    return tuple(f"{c.cell.id}: {'; '.join(c.reasons)}" for c in cells)

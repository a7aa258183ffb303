"""Which wave comes next: R1's first prompt, large before small, then what is lacking, shuffled."""

from dataclasses import dataclass

from sidecar.core.cells import Look
from sidecar.core.plan import Plan
from sidecar.core.verdict import Judge


@dataclass(frozen=True, slots=True)
class Rest:
    """R9: leave the engine to its users for a while."""

    wait_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class Progress:
    """For people."""

    passes: int
    cells_done: int
    cells_total: int
    waves_left: int
    """Of the current pass, and at least what is lacking now."""


class Passes:
    """Walks a plan until nothing is lacking or the budget is spent."""

    def __init__(
        self, plan: Plan, judge: Judge, *, budget_s: float, max_passes: int, seed: int
    ) -> None:
        raise NotImplementedError

    def next(self, elapsed_s: float) -> Look | Rest | None:
        """The next wave to run, a rest to take first, or None: done, or the budget is spent."""
        raise NotImplementedError

    def progress(self) -> Progress:
        raise NotImplementedError

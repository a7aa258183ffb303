"""Which wave comes next: R1's first prompt, large before small, then what is lacking, shuffled."""

import random
from collections import defaultdict, deque
from dataclasses import dataclass, replace

from sidecar.core.grid.cells import Look
from sidecar.core.grid.plan import Plan
from sidecar.core.judge.ruling import FOREIGN_WAVES
from sidecar.core.judge.verdict import Judge, Standing

_FIRST_REST_S, _LONGEST_REST_S = 5.0, 60.0


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
    """Walks a plan until nothing is lacking or the budget is spent.

    A pass takes each look that is lacking when it begins once, and skips what is no longer lacking
    when its turn comes. The first pass goes in plan order, large before small; each later one is
    shuffled from the seed, so that two passes don't prove the same order twice. The wave that is
    running when the budget ends is not cut off.

    One Passes per round: it begins the judge's round, so that what an earlier round gave up is
    tried again.
    """

    def __init__(
        self, plan: Plan, judge: Judge, *, budget_s: float, max_passes: int, seed: int
    ) -> None:
        self._judge = judge
        self._budget_s = budget_s
        self._max_passes = max_passes
        self._random = random.Random(seed)
        self._passes = 0
        self._left: deque[Look] = deque()
        self._rested_at = judge.waves
        self._asked_alike: defaultdict[Look, list[Look]] = defaultdict(list)
        """Looks that differ by the rank alone."""
        for look in judge.looks:
            self._asked_alike[_of_any_rank(look)].append(look)
        judge.begin_round()

    def next(self, elapsed_s: float) -> Look | Rest | None:
        """The next wave to run, a rest to take first, or None: done, or the budget is spent.

        `elapsed_s` is the time since the round began. None is final: ask no further.
        """
        lacking = self._judge.lacks()
        if not lacking or elapsed_s >= self._budget_s:
            return None
        rest = self._rest(self._budget_s - elapsed_s)
        if rest is not None:
            return rest
        still = set(lacking)
        while True:
            while self._left:
                look = self._left.popleft()
                if look in still:
                    return look
            if self._passes >= self._max_passes:
                return None
            self._begin_pass(lacking)

    def beside(self, look: Look) -> tuple[Look, ...]:
        """The same wave on the other ranks: it goes at the same time, also to those that do not
        lack it, so that every wave of a look meets the machine alike. It counts for this pass."""
        if look.cell.rank is None:
            return ()
        others = tuple(one for one in self._asked_alike[_of_any_rank(look)] if one != look)
        gone = set(others)
        self._left = deque(one for one in self._left if one not in gone)
        return others

    def _begin_pass(self, lacking: tuple[Look, ...]) -> None:
        looks = list(lacking)
        if self._passes:
            self._random.shuffle(looks)
        self._passes += 1
        self._left.extend(looks)

    def _rest(self, left_s: float) -> Rest | None:
        """R9, and an engine that admits nobody: a pause after each such wave, growing."""
        if self._rested_at == self._judge.waves:
            return None
        foreign, refused = self._judge.foreign_streak, self._judge.refused_streak
        if foreign < FOREIGN_WAVES and not refused:
            return None
        self._rested_at = self._judge.waves
        times = refused or foreign - FOREIGN_WAVES + 1
        wait_s = min(_FIRST_REST_S * 2 ** min(times - 1, 10), _LONGEST_REST_S, left_s)
        if refused:
            return Rest(wait_s, "the engine admits no more requests just now")
        return Rest(wait_s, f"the engine served others during {foreign} waves in a row")

    def progress(self) -> Progress:
        """As of now."""
        lacking = self._judge.lacks()
        still = set(lacking)
        cells = self._judge.verdict().cells
        return Progress(
            passes=self._passes,
            cells_done=sum(c.standing is Standing.DONE for c in cells),
            cells_total=len(cells),
            waves_left=max(len(lacking), sum(look in still for look in self._left)),
        )


def _of_any_rank(look: Look) -> Look:
    return look if look.cell.rank is None else replace(look, cell=replace(look.cell, rank=None))

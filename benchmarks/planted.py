"""Judges that are wrong on purpose. The harness must catch each, or its draws are too gentle."""

import dataclasses
from collections import deque

from benchmarks.draws import Case
from benchmarks.warming import CONVERGE, Method
from sidecar.core.grid.cells import Cell, Drafts, Gait, Look, Role, Variant
from sidecar.core.grid.plan import Plan
from sidecar.core.judge.passes import Passes
from sidecar.core.judge.ruling import Grid
from sidecar.core.judge.verdict import Call, GridVerdict, Judge, Judged, Standing
from sidecar.core.results import WaveResult


class _Generous(Judge):
    """Calls a cell warm when each of its looks has `waves` valid waves and the last is quiet."""

    waves_needed = 1

    def verdict(self) -> GridVerdict:
        told = super().verdict()
        cells = tuple(
            dataclasses.replace(c, call=Call.WARM, standing=Standing.DONE)
            if c.cell.role is Role.GRID
            and c.standing in (Standing.UNPROVEN, Standing.COLD)
            and all(f.valid >= self.waves_needed and not f.last_is_loud for f in c.figures)
            else c
            for c in told.cells
        )
        calls = {c.call for c in cells}
        call = Call.NOT_YET if Call.NOT_YET in calls else Call.WARM
        return dataclasses.replace(told, call=call, cells=cells)


class OnePass(Method):
    """Every look once, and done."""

    name = "one pass only"

    def judge(self, plan: Plan) -> Judge:
        return _Generous(plan, plan.facts, CONVERGE)

    def passes(self, plan: Plan, judge: Judge, case: Case) -> Passes:
        return Passes(plan, judge, budget_s=case.budget_s, max_passes=1, seed=case.seed)


class LedOnly(Method):
    """All the rules, but no wave is ever held."""

    name = "led only"

    def plan(self, plan: Plan) -> Plan:
        cells = tuple(dataclasses.replace(c, gaits=(Gait.LED,)) for c in plan.cells)
        return dataclasses.replace(plan, cells=cells)


class _Deaf(Judge):
    """Hears the first token, and nothing after it."""

    def feed(self, wave: WaveResult) -> Judged:
        judged = super().feed(wave)
        track = self._places[wave.look].track
        track.entries[-1].g_s = 0.0
        track._reading = None  # noqa: SLF001 - to plant the fault
        return judged

    def _grid(self) -> Grid:
        """That drafts end requests at ever new moments is seen in the streams only."""
        return dataclasses.replace(super()._grid(), speculates=False)


class FirstTokenOnly(Method):
    """All the rules, with F and without G."""

    name = "F without G"

    def judge(self, plan: Plan) -> Judge:
        return _Deaf(plan, plan.facts, CONVERGE)


class _Twice(_Generous):
    waves_needed = 2


class _SameOrder(Passes):
    """Twice over the grid as it is written, whatever was seen."""

    def __init__(self, plan: Plan, judge: Judge, case: Case) -> None:
        super().__init__(plan, judge, budget_s=case.budget_s, max_passes=2, seed=case.seed)
        sent = [cell for each in plan.cells for cell in plan.on_each_rank(each)]
        once = [Look(cell, gait) for cell in sent for gait in cell.gaits]
        self._to_do = deque(once * 2)
        self._case = case

    def next(self, elapsed_s: float) -> Look | None:
        if elapsed_s >= self._case.budget_s or not self._to_do:
            return None
        return self._to_do.popleft()


class SameOrderTwice(Method):
    """No first prompt, small before large, two passes in one order, no rule about other cells."""

    name = "no R1, same order twice"

    def plan(self, plan: Plan) -> Plan:
        return dataclasses.replace(plan, first=None, heaviest=None, cells=plan.cells[::-1])

    def judge(self, plan: Plan) -> Judge:
        return _Twice(plan, plan.facts, CONVERGE)

    def passes(self, plan: Plan, judge: Judge, case: Case) -> Passes:
        return _SameOrder(plan, judge, case)


class Blind(Method):
    """All the rules, but the requests leave out what is special: fields, prefix, text, rank."""

    name = "requests without their axis"

    def made(self, cell: Cell) -> Cell:
        other = None if cell.drafts is None else _OTHER[cell.drafts]
        plain = dataclasses.replace(cell, prefix_tokens=0, drafts=other, rank=None)
        return dataclasses.replace(plain, variant=Variant("completions"))


_OTHER = {Drafts.ACCEPTED: Drafts.REJECTED, Drafts.REJECTED: Drafts.ACCEPTED}


PLANTED: tuple[Method, ...] = (OnePass(), LedOnly(), FirstTokenOnly(), SameOrderTwice())

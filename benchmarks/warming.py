"""One engine warmed in virtual time by a judge, the real one or a planted one."""

from dataclasses import dataclass
from statistics import fmean

from benchmarks.draws import Case
from benchmarks.logged import VirtualLog
from benchmarks.virtual import VirtualReplay
from sidecar.core.grid.cells import Cell, Converge, Look
from sidecar.core.grid.plan import Plan, expand
from sidecar.core.judge.pacing import Pacer
from sidecar.core.judge.passes import Passes, Rest
from sidecar.core.judge.verdict import GridVerdict, Judge
from sidecar.simulator.engine import Engine

CONVERGE = Converge()
MAX_PASSES = 200


@dataclass(frozen=True, slots=True)
class Run:
    """One wave of ours."""

    look: Look
    took_s: float
    """With its plug and the scrapes around it."""
    paid_s: float
    """What its engine steps paid for cold keys, whoever else was in them."""


@dataclass(frozen=True, slots=True)
class Warmed:
    """How it ended. `engine` is as it stood when the verdict was given."""

    case: Case
    plan: Plan
    engine: Engine
    verdict: GridVerdict
    took_s: float
    runs: tuple[Run, ...]
    rested_s: float

    @property
    def looks(self) -> int:
        return len({run.look for run in self.runs})

    @property
    def passes_beyond_cold(self) -> float:
        """Time to warm less cold costs and rests, in warm passes."""
        alone_s: dict[Look, list[float]] = {}
        for run in self.runs:
            alone_s.setdefault(run.look, []).append(run.took_s - run.paid_s)
        paid_s = sum(run.paid_s for run in self.runs)
        return (self.took_s - paid_s - self.rested_s) / sum(map(fmean, alone_s.values()))

    @property
    def passes_allowed(self) -> float:
        """2 + f, f being the share of looks that paid."""
        return 2 + len({run.look for run in self.runs if run.paid_s}) / self.looks


class Method:
    """How a judge works; the real one. A planted one changes a part (`planted.py`)."""

    name = "real"
    listens = False
    """Whether the engine's log is read too."""

    def plan(self, plan: Plan) -> Plan:
        return plan

    def made(self, cell: Cell) -> Cell:
        """What the requests of a cell are made for."""
        return cell

    def judge(self, plan: Plan) -> Judge:
        return Judge(plan, plan.facts, CONVERGE)

    def passes(self, plan: Plan, judge: Judge, case: Case) -> Passes:
        return Passes(plan, judge, budget_s=case.budget_s, max_passes=MAX_PASSES, seed=case.seed)

    def verdict(self, judge: Judge) -> GridVerdict:
        return judge.verdict()


class Listening(Method):
    """The real judge, with the engine's log as a leg of it."""

    name = "real, with the log"
    listens = True


REAL = Method()
LISTENING = Listening()


def warm(case: Case, method: Method = REAL) -> Warmed | None:
    """Wait for nothing, learn nothing, just the passes. None where nothing of the grid fits."""
    declared = expand(case.shapes, case.facts)
    if not declared.cells:
        return None
    plan = method.plan(declared)
    engine = Engine(case.config, case.rules, seed=case.seed)
    log = VirtualLog(case, engine) if method.listens else None
    replay = VirtualReplay(case, engine, Pacer(plan), log, method.made)
    judge = method.judge(plan)
    passes = method.passes(plan, judge, case)
    runs: list[Run] = []
    rested_s = 0.0
    while (step := passes.next(engine.now_s)) is not None:
        if isinstance(step, Rest):
            replay.rest(step.wait_s)
            rested_s += step.wait_s
            continue
        paid, began_s = len(engine.ledger), engine.now_s
        waves = replay.run((step, *passes.beside(step)))
        paid_s = sum(entry.cost_s for entry in engine.ledger[paid:])
        runs.append(Run(step, engine.now_s - began_s, paid_s))
        judge.feed_together(waves)
    return Warmed(
        case, declared, engine, method.verdict(judge), engine.now_s, tuple(runs), rested_s
    )

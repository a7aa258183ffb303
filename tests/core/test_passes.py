"""Which wave comes next (R1, R6, R9)."""

import random

from sidecar.core.facts import EngineFacts
from sidecar.core.grid.cells import Cell, Converge, Gait, Look, Role
from sidecar.core.grid.plan import Plan
from sidecar.core.judge.passes import Passes, Rest
from sidecar.core.judge.verdict import Judge
from sidecar.core.results import Outcome, Result
from tests.core.waves import cell, counters, held, led, wave

FIRST = Cell(1, 4096, 1, role=Role.HIGH_WATER)
HEAVY = Cell(1, 8000, 8, role=Role.HEAVIEST)
CELLS = (cell(8, 200), cell(4, 100), cell(2, 50), cell(1, 100), cell(1, 10))
PLAN = Plan(CELLS, first=FIRST, heaviest=HEAVY, plug_tokens=2048, batched_tokens_known=True)


def passes_of(judge: Judge, plan: Plan = PLAN, **more) -> Passes:
    return Passes(plan, judge, **{"budget_s": 100.0, "max_passes": 10, "seed": 1, **more})


def new_judge(plan: Plan = PLAN) -> Judge:
    return Judge(plan, EngineFacts(), Converge())


def quiet(look: Look, **more):
    return held(look.cell, **more) if look.gait is Gait.HELD else led(look.cell, **more)


def walk(judge: Judge, passes: Passes, *, cold: int = 0) -> list[Look]:
    """All looks to the end; the first `cold` of them pay."""
    looks = []
    while isinstance(look := passes.next(0.0), Look):
        judge.feed(quiet(look, cold_s=3.0 if len(looks) < cold else 0.0))
        looks.append(look)
    return looks


def test_the_first_pass_goes_from_large_to_small():
    """R1's prompt, then the heaviest, then the plan's order, each cell held before it is led."""
    judge = new_judge()
    looks = walk(judge, passes_of(judge))
    first_pass = looks[:10]
    assert [look.cell for look in first_pass[:2]] == [FIRST, HEAVY]
    assert [look.cell for look in first_pass[2:]] == [
        *(CELLS[0],) * 2,
        *(CELLS[1],) * 2,
        *(CELLS[2],) * 2,
        *CELLS[3:],
    ]
    assert [look.gait for look in first_pass[2:4]] == [Gait.HELD, Gait.LED]


def test_nothing_cold_takes_two_passes():
    """A warm engine is shown to be warm with two waves a look, and one of R1's and of heaviest."""
    judge = new_judge()
    passes = passes_of(judge)
    assert len(walk(judge, passes)) == 2 + 2 * 8
    assert passes.progress().passes == 2
    assert passes.progress().cells_done == passes.progress().cells_total == 7
    assert passes.progress().waves_left == 0


def test_what_paid_takes_a_third_pass():
    """Looks that paid in the first pass need two quiet ones after it, and no more."""
    judge = new_judge()
    passes = passes_of(judge)
    assert len(walk(judge, passes, cold=10)) == 2 + 3 * 8
    assert passes.progress().passes == 3


def test_later_passes_are_shuffled_by_the_seed():
    """The second pass has another order than the first, the same for the same seed."""
    orders = []
    for seed in (1, 1, 2):
        judge = new_judge()
        looks = walk(judge, passes_of(judge, seed=seed))
        orders.append(looks[10:])
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]
    assert orders[0] != looks[2:10]
    assert set(orders[0]) == set(looks[2:10])


def test_the_budget_and_the_passes_end_it():
    """No wave starts once the budget is spent or the last pass is done."""
    judge = new_judge()
    assert passes_of(judge).next(100.0) is None
    assert isinstance(passes_of(judge).next(99.9), Look)
    assert len(walk(judge, passes_of(judge, max_passes=1))) == 10


def test_a_new_round_asks_only_for_what_is_lacking():
    """A retry with a fresh budget does not run again what this boot has shown already."""
    judge = new_judge()
    walk(judge, passes_of(judge, max_passes=1))
    again = walk(judge, passes_of(judge))
    assert FIRST not in [look.cell for look in again]
    assert HEAVY not in [look.cell for look in again]
    assert len(again) == 8


def test_others_are_left_alone_for_growing_times():
    """From three foreign waves running on, each is followed by a longer rest, within the budget."""
    plan = Plan((cell(1),), batched_tokens_known=True)
    judge = new_judge(plan)
    passes = passes_of(judge, plan, budget_s=1000.0)
    rests = []
    for _ in range(9):
        step = passes.next(900.0)
        if isinstance(step, Rest):
            rests.append(step.wait_s)
            step = passes.next(900.0)
        assert isinstance(step, Look)
        judge.feed(led(step.cell, delta=counters(step.cell, requests=9)))
    assert rests == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0]
    step = passes.next(990.0)
    assert isinstance(step, Rest)
    assert step.wait_s == 10.0
    assert "served others" in step.reason
    judge.feed(led(cell(1)))
    assert isinstance(passes.next(0.0), Look)


def test_a_refusal_is_followed_by_a_rest():
    """An engine that admits nobody is asked again after a pause."""
    plan = Plan((cell(1),), batched_tokens_known=True)
    judge = new_judge(plan)
    passes = passes_of(judge, plan)
    refused = Result(Outcome.HTTP_ERROR, 0.0, status=503)
    judge.feed(wave(cell(1), Gait.LED, [refused]))
    step = passes.next(0.0)
    assert isinstance(step, Rest)
    assert "admits no more" in step.reason
    assert isinstance(passes.next(0.0), Look)


def test_any_costs_end_in_a_verdict():
    """Whatever pays when, a walk ends: by being warm, or by the passes."""
    for seed in range(20):
        dice = random.Random(seed)
        judge = new_judge()
        passes = passes_of(judge, max_passes=30, seed=seed)
        count = 0
        while isinstance(look := passes.next(0.0), Look):
            count += 1
            cold_s = dice.choice((0.0, 0.0, 0.0, 0.05, 0.4, 3.0)) if count < 60 else 0.0
            judge.feed(quiet(look, cold_s=cold_s))
        assert judge.verdict().call == "warm"


def fail(look: Look):
    broken = Result(Outcome.HTTP_ERROR, 0.0, status=500)
    return wave(look.cell, look.gait, [broken] * look.cell.concurrency)


def test_a_failed_cell_is_tried_again_in_the_next_round_only():
    """Two failed waves of a gait end a cell for this round, its other gait too."""
    four, one = cell(4), cell(1)
    plan = Plan((four, one), plug_tokens=2048, batched_tokens_known=True)
    judge = new_judge(plan)
    for _ in range(2):
        tried = 0
        passes = passes_of(judge, plan, max_passes=3)
        while isinstance(look := passes.next(0.0), Look):
            lost = led(one, delta=counters(one, preemptions=1))  # proves nothing: goes on lacking
            judge.feed(fail(look) if look.cell is four else lost)
            tried += look.cell is four
        assert tried == 3  # each gait once, then the one whose turn came first

"""Data-parallel ranks: every cell on each of them, at the same time, each judged by itself."""

from dataclasses import replace

import pytest

from sidecar.core.facts import EngineFacts
from sidecar.core.grid.cells import Cell, Converge, Gait, Look, Role
from sidecar.core.grid.plan import Plan, expand
from sidecar.core.grid.shapes import parse
from sidecar.core.judge.passes import Passes
from sidecar.core.judge.ranks import own_of
from sidecar.core.judge.verdict import Judge
from sidecar.core.logs.events import Compile, Step
from sidecar.core.logs.evidence import Heard, Listening, combined
from sidecar.core.logs.head import Origin
from sidecar.core.logs.window import Completeness, WindowReport
from sidecar.core.wire.metrics import delta
from sidecar.core.wire.metrics import parse as scrape
from tests.core.waves import cell, held, led

CELLS = (cell(4, 100), cell(1, 10))
FIRST = Cell(1, 4096, 1, role=Role.HIGH_WATER)
PLAN = Plan(CELLS, first=FIRST, plug_tokens=2048, batched_tokens_known=True, ranks=(0, 1))
TWO = EngineFacts(ranks=2, sources={"ranks": "/metrics"})


def planned(more: str = "", ranks: int | None = 2) -> Plan:
    facts = EngineFacts(ranks=ranks, sources={"ranks": "/metrics"})
    return expand(parse(f"cells: [{{prompt_tokens: 33}}]\n{more}", "f.yaml"), facts)


def wave_of(look: Look, **more):
    return held(look.cell, **more) if look.gait is Gait.HELD else led(look.cell, **more)


@pytest.mark.parametrize(
    ("more", "known", "ranks"),
    [
        ("", None, (None,)),
        ("", 1, (None,)),
        ("", 3, (0, 1, 2)),
        ("ranks: all", 2, (0, 1)),
        ("ranks: [1]", 2, (1,)),
        ("ranks: [0, 3]", None, (0, 3)),
    ],
)
def test_all_known_ranks_are_asked_unless_some_are_named(more, known, ranks):
    """A wave names its rank wherever there is a choice, and only there."""
    plan = planned(more, known)
    assert plan.ranks == ranks
    assert [c.rank for c in plan.on_each_rank(plan.cells[0])] == list(ranks)
    assert plan.refusal is None


def test_ranks_that_stay_cold_are_warned_of():
    """Users of the rank that nobody named would pay."""
    (warning,) = [w for w in planned("ranks: [1]").warnings if "rank" in w]
    assert warning.startswith("1 of 2 data-parallel ranks stay cold")
    assert "ranks: all" in warning


def test_a_rank_that_the_engine_lacks_is_refused_before_it_is_asked():
    """With what there is, and from where that is known."""
    assert planned("ranks: [0, 2]").refusal == (
        "f.yaml: ranks names 2, and the engine has 2, from 0 on (from /metrics); correct it, or "
        "say ranks: all"
    )


def test_cells_on_all_ranks_have_a_limit():
    """A verdict on more than 4,000 would hold up the probes: declared ones are refused with the
    remedy, derived ones left out and counted, and a small file may have any rank that there is."""
    lengths = ", ".join(str(n) for n in range(16, 216))
    grid = parse(f"grid: {{concurrency: [1, 2], prompt_tokens: [{lengths}]}}", "f.yaml")
    assert expand(grid, EngineFacts(model="m", ranks=10)).refusal is None
    assert expand(grid, EngineFacts(model="m", ranks=11)).refusal == (
        "f.yaml: 400 cells to each of 11 data-parallel ranks are 4400, and the limit is 4000; "
        "shorten the grid, or name some of the ranks under ranks:"
    )
    assert planned("ranks: [7]", 100_000).refusal is None
    assert "100000" in str(planned("", 100_000).refusal)
    plan = planned("profiles: [agents]\nspecial: {cudagraph: true}", 1000)
    assert len(plan.on_each_rank(plan.cells[0])) * len(plan.cells) <= 4000
    assert any("special cells are left out: no more than 4" in w for w in plan.warnings)


def test_a_look_goes_to_every_rank_at_once_and_counts_once_a_pass():
    """R1's prompt and the cells alike; what goes beside another is not sent again."""
    judge = Judge(PLAN, TWO, Converge())
    passes = Passes(PLAN, judge, budget_s=100.0, max_passes=10, seed=1)
    volleys = []
    while isinstance(look := passes.next(0.0), Look):
        volley = (look, *passes.beside(look))
        assert {one.cell.rank for one in volley} == {0, 1}
        assert len({replace(one.cell, rank=None) for one in volley}) == 1
        volleys.append(volley)
        judge.feed_together([wave_of(one) for one in volley])
    assert len(volleys) == 1 + 2 * 3
    assert judge.waves == len(volleys)
    assert judge.verdict().call == "warm"
    assert {c.cell.rank for c in judge.verdict().cells} == {0, 1}


def test_without_ranks_nothing_goes_beside():
    """A wave of an engine without ranks is alone."""
    plan = replace(PLAN, ranks=(None,))
    judge = Judge(plan, EngineFacts(), Converge())
    passes = Passes(plan, judge, budget_s=100.0, max_passes=10, seed=1)
    look = passes.next(0.0)
    assert isinstance(look, Look)
    assert passes.beside(look) == ()


def test_one_rank_that_stays_cold_keeps_the_grid_from_warm():
    """And the verdict names it."""
    judge = Judge(PLAN, TWO, Converge())
    passes = Passes(PLAN, judge, budget_s=100.0, max_passes=6, seed=1)
    while isinstance(look := passes.next(0.0), Look):
        volley = (look, *passes.beside(look))
        dear = {one: one.cell.rank == 1 and one.cell.concurrency == 4 for one in volley}
        first = judge.waves < 4
        judge.feed_together(
            [wave_of(one, cold_s=3.0 if dear[one] and not first else 0.0) for one in volley]
        )
    verdict = judge.verdict()
    assert verdict.call == "not_yet"
    cold = [c.cell.id for c in verdict.cells if c.standing == "cold"]
    assert cold == ["completions-c4-p100-o9-dp1"]


def test_what_paid_on_one_rank_asks_for_a_later_wave_on_all():
    """Waves of one volley are none later than the other: a compile may stall them all (R6)."""
    judge = Judge(PLAN, TWO, Converge())
    looks = [look for look in judge.looks if look.cell.concurrency == 1]
    grid = [look for look in looks if look.cell.role is Role.GRID]
    for _ in range(2):
        judge.feed_together([wave_of(look) for look in grid])
    judge.feed_together([wave_of(grid[0], cold_s=3.0), wave_of(grid[1])])
    assert set(grid) <= set(judge.lacks())


def test_a_wave_that_could_not_choose_its_rank_proves_nothing():
    """R8: it is not known which rank answered."""
    plan = replace(PLAN, ranks=(None,))
    judge = Judge(plan, TWO, Converge())
    for _ in range(3):
        judge.feed(led(CELLS[1]))
    (told,) = [c for c in judge.verdict().cells if c.cell == CELLS[1]]
    assert told.reasons[0].startswith("2 data-parallel ranks answer at this URL")


def test_a_rank_is_judged_by_its_own_counters():
    """What the other one served meanwhile is none of its business."""
    page = 'vllm:request_success_total{{engine="{0}",finished_reason="length"}} {1}\n'
    before = scrape(page.format(0, 5) + page.format(1, 7))
    after = scrape(page.format(0, 6) + page.format(1, 11))
    assert before.engines == ("0", "1")
    for engine, count in (("0", 1), ("1", 4), (None, 5)):
        counted = delta(before, after, engine=engine)
        assert counted is not None
        assert counted.requests == count
    assert delta(before, after, engine="2") is None


def test_ranks_count_from_the_lowest_label():
    """A server that owns ranks 8 to 11 of a deployment counts them from 0 in the header."""
    page = "".join(f'vllm:num_preemptions_total{{engine="{n}"}} 0\n' for n in (8, 11, 9, 10))
    assert scrape(page).engines == ("8", "9", "10", "11")


def compiled(process: str) -> Compile:
    return Compile(Origin(process, 7), "Triton", "kernel JIT compilation", process)


def step(engine: int, number: int, *shape: int) -> Step:
    return Step(Origin("EngineCore_DP" + str(engine)), engine, number, *shape, 0, 0, 1.0)


def test_a_line_of_the_log_is_its_own_ranks():
    """Compiles and steps are told apart by their process; what names none is of each."""
    report = WindowReport(
        Completeness.COMPLETE,
        "",
        compiles=tuple(
            map(compiled, ("EngineCore_DP0", "Worker_DP1_TP0", "Worker_DP10", "EngineCore"))
        ),
        steps=(step(0, 1, 1, 33), step(1, 9, 1, 34), step(0, 2, 0, 0), step(1, 10, 0, 0)),
    )
    told = combined([Heard(report)], Listening(monitors=2, ranks=2, verbose=True))
    assert not told.shows_steps
    one = told.of_engine("1")
    assert [c.kernel for c in one.compiles] == ["Worker_DP1_TP0", "EngineCore"]
    assert one.shows_steps
    assert one.steps is not None
    assert [s.context_tokens for s in one.steps.prefills] == [34]
    assert told.of_engine(None) == told


def test_the_steps_of_one_rank_show_nothing_of_another():
    """With two nodes rank 1 logs elsewhere: what rank 0 did is no proof of its batch."""
    report = WindowReport(Completeness.COMPLETE, "", steps=(step(0, 1, 2, 66), step(0, 2, 0, 0)))
    told = combined([Heard(report)], Listening(monitors=2, ranks=2, verbose=True))
    assert told.of_engine("0").shows_steps
    assert told.of_engine("1").steps is None
    look = Look(Cell(2, 33, 1, rank=0), Gait.HELD)
    unread = own_of(told, None, look)
    assert (unread.steps, unread.compiles) == (None, told.compiles)
    assert own_of(told, scrape('vllm:num_preemptions_total{engine="0"} 0'), look).shows_steps

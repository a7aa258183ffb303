"""What a plan costs, by speeds that were measured or assumed, and whether the budget holds it."""

from dataclasses import replace

import pytest

from sidecar.core.facts import EngineFacts
from sidecar.core.grid.cells import Cell, Gait
from sidecar.core.grid.cost import Basis, Speed, over_budget, plan_cost, wave_cost
from sidecar.core.grid.plan import Plan, expand
from sidecar.core.grid.shapes import parse
from sidecar.core.judge.speed import Speedometer
from sidecar.core.report import basis_of, from_json, to_json, to_text
from sidecar.core.results import Outcome
from tests.core.test_report import REPORT
from tests.core.waves import cell, held, led

ROUND = Speed(1000.0, 10.0, 0.5)


def test_a_wave_costs_all_its_requests_and_computes_what_is_not_in_the_cache():
    """Plug, primes and the one that arrives are requests too; a prefix is computed once."""
    plain = wave_cost(Cell(4, 250, 10), Gait.HELD, 1000, ROUND)
    assert (plain.requests, plain.prompt_tokens, plain.output_tokens) == (5, 2000, 41)
    assert plain.seconds == pytest.approx(2.0 + 1.0 + 0.5)
    hit = wave_cost(Cell(2, 500, 10, prefix_tokens=400), Gait.LED, 1000, ROUND)
    assert (hit.requests, hit.prompt_tokens, hit.output_tokens) == (4, 1800, 22)
    assert hit.seconds == pytest.approx(1.0 + 1.0 + 0.5)
    mixed = wave_cost(Cell(3, 100, 10, arriving_tokens=700), Gait.MIXED, 1000, ROUND)
    assert (mixed.requests, mixed.prompt_tokens, mixed.output_tokens) == (5, 2000, 32)
    # One that decodes has nobody to wait for.
    alone = wave_cost(Cell(1, 100, 10, arriving_tokens=700), Gait.MIXED, 1000, ROUND)
    assert (alone.requests, alone.prompt_tokens, alone.output_tokens) == (2, 800, 11)


def test_ranks_are_asked_at_the_same_time():
    """A plan for two ranks counts the requests and tokens of both, and the seconds of one."""
    shapes = parse("cells: [{concurrency: 2, prompt_tokens: 500}]", "f.yaml")
    alone, both = (
        plan_cost(expand(shapes, EngineFacts(model="m", ranks=n)), ROUND) for n in (1, 2)
    )
    for one, two in ((alone.a_pass, both.a_pass), (alone.once, both.once)):
        assert two == one.on_ranks(2)
        assert (two.requests, two.prompt_tokens) == (2 * one.requests, 2 * one.prompt_tokens)
        assert two.seconds == one.seconds
    assert both.total.seconds == alone.total.seconds


def test_the_budget_is_judged_by_what_is_known():
    """One sentence with both figures, the speeds and where they come from; none if it holds."""
    plan = Plan(cells=(Cell(1, 100_000, 16),))
    assert over_budget(plan, Basis(), 600.0) is None
    said = over_budget(plan, Basis(), 30.0)
    assert said is not None
    assert said.startswith("the grid needs about 38 s in 3 passes at the assumed 8,000 prompt tok")
    assert "the budget is 30 s: raise budget.total_s" in said
    slow = Basis(Speed(100.0, 10.0), "measured on m at u")
    assert "100 prompt tokens/s and 10 output tokens/s a stream, measured on m at u" in str(
        over_budget(plan, slow, 600.0)
    )


def test_measured_speeds_give_back_what_the_waves_took():
    """Of each look the best wave, cold ones left out: the sum of their estimates is their time."""
    meter = Speedometer()
    cells = (cell(1, 1000, 20), cell(4, 300, 30))
    waves = [
        *(led(cells[0], ttft_s=0.1, cold_s=cold) for cold in (9.0, 0.0)),
        *(led(cells[1], ttft_s=0.15, cold_s=cold) for cold in (5.0, 0.0)),
        *(held(cells[1], plug_tokens=2000, cold_s=cold) for cold in (5.0, 0.0)),
    ]
    for wave in waves:
        meter.feed(wave, wave.took_s + 0.25)
    speed = meter.speed
    assert speed is not None
    # 1000 tokens in 0.1 s and 4 x 300 in 0.16 s; a step is 10 ms
    assert speed.prefill_tokens_per_s == pytest.approx(2200 / 0.26)
    assert speed.decode_tokens_per_s == pytest.approx(100.0)
    took = sum(wave.took_s + 0.25 for wave in waves[1::2])
    estimated = sum(wave_cost(w.look.cell, w.look.gait, 2000, speed).seconds for w in waves[1::2])
    assert estimated == pytest.approx(took, rel=0.01)


def test_a_speed_that_is_not_known_is_none():
    """One wave of a look may have been a cold one, and a failed one says nothing."""
    meter = Speedometer()
    good = led(cell(1, 1000, 20))
    meter.feed(good, 1.0)
    assert meter.speed is None
    broken = replace(good, results=(replace(good.results[0], outcome=Outcome.BROKEN),))
    meter.feed(broken, 1.0)
    assert meter.speed is None
    meter.feed(good, 1.0)
    assert meter.speed is not None


def test_tokens_that_came_in_a_burst_say_nothing_of_decoding():
    """A busy server sends them together: such a wave would make it endlessly fast."""
    meter, one = Speedometer(), cell(1, 1000, 21)
    good = led(one)
    (answer,) = good.results
    burst = replace(good, results=(replace(answer, token_s=(0.25,) * 21),))
    for wave in (burst, burst):
        meter.feed(wave, 1.0)
    assert meter.speed is None
    meter.feed(good, 1.0)
    assert meter.speed is not None
    assert meter.speed.decode_tokens_per_s == pytest.approx(100.0)


def test_a_report_lends_its_speed_to_the_same_engine_alone():
    """By address and model; it comes back from JSON and stands in the text."""
    report = replace(REPORT, speed=ROUND, facts=EngineFacts(model="m"), url="http://a")
    assert from_json(to_json(report)) == report
    assert "speed, warm: 1,000 prompt tokens/s and 10 output tokens/s a stream" in to_text(report)
    known = basis_of(report, url="http://a", model="m")
    assert known.speed == ROUND
    assert "measured on m at http://a" in str(known)
    assert basis_of(report, url=None, model=None).speed == ROUND
    for other in (
        basis_of(report, url="http://b", model="m"),
        basis_of(report, url="http://a", model="n"),
        basis_of(replace(report, speed=None), url="http://a", model="m"),
        basis_of(None, url=None, model=None),
    ):
        assert other == Basis()

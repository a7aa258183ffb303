"""The rules of the verdict, each by itself (R2, R5-R10)."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from sidecar.core.facts import EngineFacts
from sidecar.core.grid.cells import Cell, Converge, Gait, Look, Role
from sidecar.core.grid.plan import Plan
from sidecar.core.judge.figures import Entry
from sidecar.core.judge.misses import Miss
from sidecar.core.judge.plugs import MAX_RUNS, Plugs
from sidecar.core.judge.track import MAX_ENTRIES, Track
from sidecar.core.judge.verdict import Call, Judge, Standing, opening
from sidecar.core.results import Outcome, Result
from sidecar.core.wire.metrics import CounterDelta
from tests.core.waves import cell, counters, held, led, recorded, result, wave

ONE, FOUR = cell(1), cell(4)
FIRST = Cell(1, 4096, 1, role=Role.HIGH_WATER)
HEAVY = Cell(1, 8000, 8, role=Role.HEAVIEST)
GOLDEN_HELD = json.loads(Path("tests/data/waves/held-vllm-0.26.0-h200.json").read_text())


def judge_of(*cells: Cell, facts: EngineFacts | None = None, **more) -> Judge:
    plan = Plan(cells, plug_tokens=2048, batched_tokens_known=True, **more)
    return Judge(plan, facts or EngineFacts(), Converge())


def told(judge: Judge, of: Cell):
    return next(c for c in judge.verdict().cells if c.cell == of)


def run(judge: Judge, of: Cell, *costs: float) -> None:
    """Led waves of a cell of one, each with its cold cost."""
    for cost in costs:
        judge.feed(led(of, cold_s=cost))


def failing(of: Cell, status: int = 500, outcome: Outcome = Outcome.HTTP_ERROR, **more):
    broken = Result(outcome, 0.0, status=status, **{"message": "it broke", **more})
    return wave(of, Gait.LED, [broken] * of.concurrency)


# --- R6: loud and quiet --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("costs", "call", "standing"),
    [
        ((), Call.NOT_YET, Standing.UNPROVEN),
        ((0,), Call.NOT_YET, Standing.UNPROVEN),
        ((0, 0), Call.WARM, Standing.DONE),
        ((5, 0), Call.NOT_YET, Standing.UNPROVEN),
        ((5, 0, 0), Call.WARM, Standing.DONE),
        ((0, 0, 5), Call.NOT_YET, Standing.COLD),
        ((0, 0, 5, 0), Call.NOT_YET, Standing.UNPROVEN),
        ((0, 0, 5, 0, 0), Call.WARM, Standing.DONE),
        ((5, 0, 5, 0, 5), Call.NOT_YET, Standing.COLD),
        ((0.09, 0), Call.WARM, Standing.DONE),  # below τ: it can't be told from noise
        ((0.11, 0), Call.NOT_YET, Standing.UNPROVEN),
    ],
)
def test_a_cell_is_warm_when_it_ends_in_two_quiet_waves(costs, call, standing):
    """Two valid waves at least, the last two of them quiet; what was paid last keeps it cold."""
    judge = judge_of(ONE)
    run(judge, ONE, *costs)
    verdict = told(judge, ONE)
    assert (verdict.call, verdict.standing) == (call, standing)
    assert bool(verdict.reasons) is (call is not Call.WARM)
    assert bool(judge.lacks()) is (call is not Call.WARM)


def test_earlier_waves_are_judged_again_when_the_baseline_falls():
    """Two equal slow waves look quiet until a fast one shows what warm is."""
    judge = judge_of(ONE)
    run(judge, ONE, 3, 3)
    assert told(judge, ONE).call is Call.WARM
    run(judge, ONE, 0)
    assert told(judge, ONE).reasons == ("led: 1 of 2 quiet waves at the end",)


def test_a_stall_between_tokens_is_loud():
    """G counts as F does: a wave whose first tokens are fast and whose decode stalls is loud."""
    judge = judge_of(ONE)
    for gap_s in (0, 0, 2):
        judge.feed(led(ONE, gap_s=gap_s))
    verdict = told(judge, ONE)
    assert verdict.standing is Standing.COLD
    assert "stalled 2.010 s between two tokens, 0.010 s at best" in verdict.reasons[0]


def test_a_gap_that_began_before_the_last_first_token_is_no_stall():
    """It holds the prefill of the last request, which F has; verdict and rows tell the same G."""
    two = cell(2, output_tokens=3)
    stamps = ((0.05, 0.5, 0.51), (0.45, 0.46, 0.48))
    ran = wave(two, Gait.LED, [result(0, cell=two, token_s=each) for each in stamps])
    assert ran.g_s == pytest.approx(0.02)
    judge = judge_of(two)
    judge.feed(ran)
    (figures, _) = sorted(told(judge, two).figures, key=lambda f: f.gait is not Gait.LED)
    assert figures.last_g_s == ran.g_s


def test_each_gait_is_judged_by_itself():
    """A cell with two gaits is warm only when both are."""
    judge = judge_of(FOUR)
    for _ in range(3):
        judge.feed(led(FOUR))
    judge.feed(held(FOUR))
    judge.feed(held(FOUR, cold_s=0.5))
    assert told(judge, FOUR).standing is Standing.COLD
    judge.feed(held(FOUR))
    judge.feed(held(FOUR))
    assert [look.gait for look in judge.lacks()] == [Gait.LED]  # held came after led's last
    judge.feed(led(FOUR))
    assert told(judge, FOUR).call is Call.WARM


def test_a_large_excess_anywhere_asks_every_cell_once_more():
    """A cell's last quiet wave must come after the grid's last excess above a second."""
    other = cell(1, 200)
    for cost, lacking in ((2.0, True), (0.5, False)):
        judge = judge_of(ONE, other)
        run(judge, other, 0)
        run(judge, ONE, 0)
        run(judge, ONE, 0)
        run(judge, other, cost)
        assert (ONE in [look.cell for look in judge.lacks()]) is lacking


def test_the_first_wave_of_a_batch_asks_every_cell_once_more():
    """A batch made for the first time may have made others cold, however little it cost."""
    other = cell(1, 200)
    judge = judge_of(ONE, other)
    run(judge, ONE, 0, 0)
    assert ONE not in [look.cell for look in judge.lacks()]
    run(judge, other, 0)
    assert ONE in [look.cell for look in judge.lacks()]
    assert "since another cell paid" in told(judge, ONE).reasons[0]


def test_a_slow_plug_is_the_waves_own_cost_and_asks_every_cell_once_more():
    """The wave's compile can come before the plug's token: what delays that is the wave's."""
    judge = judge_of(FOUR, ONE)
    judge.feed(held(FOUR))
    judge.feed(led(FOUR))
    run(judge, ONE, 0, 0)
    judge.feed(held(FOUR, plug_s=5.0))
    verdict = told(judge, FOUR)
    assert verdict.standing is Standing.COLD
    assert "took 4.830 s to the last first token, 0.030 s at best" in verdict.reasons[0]
    assert ONE in [look.cell for look in judge.lacks()]
    judge.feed(held(FOUR))
    assert told(judge, FOUR).standing is Standing.UNPROVEN


def test_a_plugs_token_that_is_read_late_makes_no_baseline():
    """A busy sidecar reads it along with the wave's: 0.5 s of F seem to be none, and had every
    later wave been loud."""
    judge = judge_of(FOUR)
    for plug_s, step_s in ((0.2, 0.5), (0.7, 0.0001), (0.2, 0.5), (0.2, 0.52)):
        judge.feed(held(FOUR, plug_s=plug_s, step_s=step_s))
        judge.feed(led(FOUR))
    verdict = told(judge, FOUR)
    assert (verdict.call, verdict.reasons) == (Call.WARM, ())
    held_figures = next(f for f in verdict.figures if f.gait is Gait.HELD)
    assert held_figures.baseline_f_s == pytest.approx(0.5)


def test_a_plugs_noise_is_not_loud():
    """A plug within its own tolerance of the fastest one tells nothing; R7's resolution says so."""
    judge = judge_of(FOUR)
    for plug_s in (0.5, 0.9, 0.6):
        judge.feed(held(FOUR, plug_s=plug_s))
        judge.feed(led(FOUR))
    verdict = told(judge, FOUR)
    assert verdict.call is Call.WARM
    assert verdict.resolution_s == pytest.approx(0.54)


@pytest.mark.parametrize("executor", GOLDEN_HELD)
def test_a_compile_behind_a_plug_is_seen_wherever_it_lands(executor):
    """Three ways to run vLLM 0.26.0 on an H200: in one the compile delays the plug's own token."""
    of = Cell(3, 171, 9, gaits=(Gait.HELD,))
    judge = judge_of(of)
    first, second, third = (recorded(of, row) for row in GOLDEN_HELD[executor])
    judge.feed(first)
    judge.feed(second)
    assert judge.lacks()  # the first was loud
    judge.feed(third)
    figures = told(judge, of).figures[0]
    assert figures.first_f_s > 0.9
    assert figures.last_f_s < 0.05


def test_figures_and_resolution():
    """A cell's row holds first, baseline and last; its resolution is the larger of its τ."""
    judge = judge_of(ONE)
    run(judge, ONE, 2.0, 0.2, 0.0)
    verdict = told(judge, ONE)
    figures = verdict.figures[0]
    assert figures.first_f_s == pytest.approx(2.05)
    assert figures.baseline_f_s == figures.last_f_s == pytest.approx(0.05)
    assert (figures.waves, figures.valid, figures.last_is_loud) == (3, 3, False)
    assert verdict.resolution_s == pytest.approx(0.1)
    slow = cell(1, 900)
    judge = judge_of(slow)
    judge.feed(led(slow, ttft_s=0.7))
    assert told(judge, slow).resolution_s == pytest.approx(0.7)
    assert judge.verdict().evidence == "latency+metrics"


def test_noise_that_never_ends_is_unknown():
    """Quiet, loud, quiet, loud within six looks, and nothing large: too noisy to tell."""
    judge = judge_of(ONE)
    run(judge, ONE, 0, 0.3, 0, 0.3, 0, 0.3)
    verdict = told(judge, ONE)
    assert (verdict.call, verdict.standing) == (Call.UNKNOWN, Standing.UNPROVEN)
    assert "too noisy to tell" in verdict.reasons[0]
    assert judge.lacks()
    run(judge, ONE, *(0, 0.3) * 4)
    assert not judge.lacks()  # it rests: more looks would not tell more
    judge.begin_round()
    assert judge.lacks()


# --- R2: validity --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"prompt_tokens": 101}, "usage says 101 prompt tokens, not 100"),
        ({"prompt_tokens": None}, "usage says None prompt tokens"),
        ({"completion_tokens": 8}, "usage says 8 output tokens, not 9"),
        ({"finish_reason": "stop"}, "finished by 'stop'"),
        ({"cached_tokens": 96}, "96 prompt tokens came from a cache"),
    ],
)
def test_a_wave_of_another_kind_is_invalid(wrong, says):
    """A wave proves something only if it was what its cell declares."""
    judge = judge_of(ONE)
    judged = judge.feed(wave(ONE, Gait.LED, [result(0.05, cell=ONE, **wrong)], delta=counters(ONE)))
    assert not judged.valid
    assert says in judged.invalid_because[0]


@pytest.mark.parametrize(
    ("delta", "says", "foreign"),
    [
        (counters(ONE, cached_tokens=64), "64 prompt tokens came from a cache", False),
        (counters(ONE, computed_tokens=36), "only 36 of 100 tokens were computed", False),
        (counters(ONE, preemptions=1), "1 requests were preempted", False),
        (counters(ONE, requests=0), "counted 0 requests of 1", False),
        (counters(ONE, requests=2), "served others", True),
        (counters(ONE, prompt_tokens=700), "served others", True),
        (counters(ONE, generation_tokens=30), "served others", True),
    ],
)
def test_the_engine_must_agree(delta, says, foreign):
    """Counter deltas are those of the wave, or it is invalid; more than that is foreign traffic."""
    judged = judge_of(ONE).feed(led(ONE, delta=delta))
    assert not judged.valid
    assert says in judged.invalid_because[0]
    assert judged.foreign is foreign


def test_the_plug_is_ours():
    """A held wave's plug is in the counters and no foreign traffic."""
    assert judge_of(FOUR).feed(held(FOUR)).valid
    assert judge_of(FOUR).feed(held(FOUR, delta=counters(FOUR))).invalid_because


@pytest.mark.parametrize(
    ("delta", "says"),
    [
        (None, "counters could not be read"),
        (CounterDelta(), "whether the engine served others"),
        (counters(ONE, computed_tokens=None, cached_tokens=None), "came from a cache"),
        (counters(ONE, preemptions=None), "preempted"),
    ],
)
def test_what_the_engine_does_not_tell_is_unknown(delta, says):
    """Missing is never zero: without counters a quiet cell is unknown, not warm."""
    judge = judge_of(ONE)
    for _ in range(3):
        judge.feed(wave(ONE, Gait.LED, [result(0.05, cell=ONE)], delta=delta))
    verdict = told(judge, ONE)
    assert (verdict.call, verdict.standing) == (Call.UNKNOWN, Standing.UNPROVEN)
    assert says in verdict.reasons[0]
    assert not judge.lacks()  # more waves would not tell more


def test_counters_that_were_missing_once_cost_one_more_wave():
    """Where the engine has counters, a wave whose scrape failed is not enough."""
    judge = judge_of(ONE)
    run(judge, ONE, 0)
    judge.feed(wave(ONE, Gait.LED, [result(0.05, cell=ONE)], delta=None))
    assert judge.lacks()
    run(judge, ONE, 0, 0)
    assert told(judge, ONE).call is Call.WARM


def test_what_others_sent_asks_every_cell_once_more():
    """A last quiet wave comes after the last foreign one: their requests may have grown a mark."""
    other = cell(1, 200)
    judge = judge_of(ONE, other)
    run(judge, other, 0)
    run(judge, ONE, 0, 0)
    judge.feed(led(other, delta=counters(other, requests=2)))
    assert ONE in [look.cell for look in judge.lacks()]
    run(judge, ONE, 0)
    assert ONE not in [look.cell for look in judge.lacks()]


# --- R3, R8: not shown, not knowable -------------------------------------------------------------


def test_a_batch_that_is_never_shown_is_unknown():
    """Quiet waves that did not share a step prove nothing, and after six of them the look rests."""
    judge = judge_of(FOUR)
    for _ in range(2):
        judge.feed(led(FOUR))
    for _ in range(6):
        assert judge.lacks()
        judged = judge.feed(held(FOUR, split=1))
        assert judged.valid
        assert not judged.shown
    judge.feed(led(FOUR))
    verdict = told(judge, FOUR)
    assert verdict.call is Call.UNKNOWN
    assert "batch not shown" in verdict.reasons[0]
    assert not judge.lacks()


def test_a_cold_wave_that_is_not_shown_still_counts_as_cold():
    """What an invalid or unshown wave shows as cold counts, and a later quiet one ends it."""
    judge = judge_of(FOUR)
    judge.feed(held(FOUR))
    judge.feed(held(FOUR, split=1, cold_s=9))
    assert told(judge, FOUR).standing is Standing.COLD
    judge.feed(held(FOUR, split=1))
    assert told(judge, FOUR).standing is Standing.UNPROVEN


def test_a_warm_ttft_that_falls_takes_back_what_it_showed():
    """Where events are grouped, a batch shown by a cold TTFT is judged again by the warm one."""
    judge = judge_of(FOUR, ONE)
    grouped = [
        result(0.6 + 0.03 * i, cell=FOUR, token_s=(0.6 + 0.03 * i, 0.8, 0.9)) for i in range(4)
    ]
    plug = held(FOUR, plug_s=0.5).plug
    run(judge, ONE, 5)
    ran = wave(FOUR, Gait.HELD, grouped, plug=plug, delta=counters(FOUR, 2048))
    assert judge.feed(ran).shown
    run(judge, ONE, 0)
    assert told(judge, FOUR).figures[0].valid == 0


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        (EngineFacts(ranks=2), "2 data-parallel ranks"),
        (EngineFacts(max_num_seqs=2), "above --max-num-seqs 2"),
        (EngineFacts(speculation=True), "no draft was accepted"),
    ],
)
def test_what_can_not_be_known_is_unknown(facts, says):
    """Several ranks, a concurrency above max_num_seqs, drafts never accepted: never warm."""
    judge = judge_of(FOUR, facts=facts)
    for _ in range(3):
        judge.feed(held(FOUR))
        judge.feed(led(FOUR))
    verdict = told(judge, FOUR)
    assert (verdict.call, verdict.standing) == (Call.UNKNOWN, Standing.UNPROVEN)
    assert says in " ".join(verdict.reasons)


def test_accepted_drafts_make_a_speculating_cell_warm():
    """With drafts accepted in each gait, a cell of one is warm as any other."""
    judge = judge_of(ONE, facts=EngineFacts(speculation=True, draft_tokens=2))
    for _ in range(2):
        judge.feed(led(ONE, delta=counters(ONE, drafts=4, draft_tokens=8, accepted_tokens=5)))
    assert told(judge, ONE).call is Call.WARM


def test_a_cell_that_only_prefills_needs_no_drafts():
    """One output token is decoded by nobody: speculation is nothing to it."""
    prefill = cell(1, 100, 1)
    judge = judge_of(prefill, facts=EngineFacts(speculation=True))
    for _ in range(2):
        judge.feed(led(prefill))
    assert told(judge, prefill).call is Call.WARM


def test_speculating_batches_are_never_proven():
    """With accepted drafts the next wave may decode in a batch that none has met: unknown."""
    judge = judge_of(FOUR, facts=EngineFacts(speculation=True))
    accepted = {"drafts": 4, "draft_tokens": 8, "accepted_tokens": 5}
    for _ in range(3):
        judge.feed(held(FOUR, delta=counters(FOUR, 2048, **accepted)))
        judge.feed(led(FOUR, delta=counters(FOUR, **accepted)))
    verdict = told(judge, FOUR)
    assert (verdict.call, verdict.standing) == (Call.UNKNOWN, Standing.UNPROVEN)
    assert "accepted drafts make a new sequence of batches" in verdict.reasons[0]
    assert not judge.lacks()  # more waves would not tell more


# --- R9: others ----------------------------------------------------------------------------------


def test_others_served_in_three_waves_running_is_unknown():
    """Foreign traffic makes waves invalid; in three running the engine serves others."""
    judge = judge_of(ONE)
    for streak in (1, 2, 3):
        judge.feed(led(ONE, delta=counters(ONE, requests=5)))
        assert judge.foreign_streak == streak
        expected = Call.UNKNOWN if streak == 3 else Call.NOT_YET
        assert told(judge, ONE).call is expected
    assert judge.verdict().reasons[0] == "the engine serves others"
    judge.feed(led(ONE))
    assert judge.foreign_streak == 0


def test_what_others_cost_is_not_ours():
    """A small excess while others are served is not called cold; a large one is, until R9 holds."""
    judge = judge_of(ONE)
    run(judge, ONE, 0)
    judge.feed(led(ONE, cold_s=0.5, delta=counters(ONE, requests=5)))
    assert told(judge, ONE).standing is Standing.UNPROVEN
    for standing in (Standing.COLD, Standing.UNPROVEN):
        judge.feed(led(ONE, cold_s=5, delta=counters(ONE, requests=5)))
        assert told(judge, ONE).standing is standing


# --- R1, R10 -------------------------------------------------------------------------------------


def test_heaviest_must_pass_and_once_is_enough():
    """`heaviest` keeps the gate shut until it went well once, whatever it took."""
    judge = judge_of(ONE, heaviest=HEAVY)
    run(judge, ONE, 0, 0)
    assert told(judge, HEAVY).standing is Standing.FAILED
    judge.feed(failing(HEAVY))
    assert "HTTP 500" in told(judge, HEAVY).reasons[0]
    judge.feed(led(HEAVY, cold_s=90))
    assert (told(judge, HEAVY).call, told(judge, HEAVY).resolution_s) == (Call.PASSED, None)
    assert [look.cell for look in judge.lacks()] == [ONE]  # it may have made others cold
    run(judge, ONE, 0)
    assert judge.verdict().call is Call.WARM


def test_the_first_prompt_that_fails_leaves_the_grid_unproven():
    """R1's prompt is not the operator's: its failure does not keep the gate shut."""
    judge = judge_of(ONE, first=FIRST)
    judge.feed(failing(FIRST))
    judge.feed(failing(FIRST))
    assert FIRST not in [look.cell for look in judge.lacks()]
    run(judge, ONE, 0, 0)
    assert told(judge, FIRST).standing is Standing.UNPROVEN
    assert opening(judge.verdict(), open_unproven=True).open


# --- failures ------------------------------------------------------------------------------------


def test_two_failed_waves_in_a_row_end_a_cell_for_this_round():
    """A cell that failed twice is left alone until the next round, and keeps the gate shut."""
    judge = judge_of(ONE)
    judge.feed(failing(ONE))
    assert judge.lacks()
    judge.feed(failing(ONE))
    assert not judge.lacks()
    assert told(judge, ONE).standing is Standing.FAILED
    (reason,) = told(judge, ONE).reasons
    assert reason.startswith("led: 2 waves in a row: its request "), "the cell is named before it"
    judge.begin_round()
    assert judge.lacks()
    run(judge, ONE, 0, 0)
    assert told(judge, ONE).call is Call.WARM


def test_a_refusal_is_no_failure():
    """503 means later: the cell goes on lacking, and nothing is called failed."""
    judge = judge_of(ONE)
    for streak in (1, 2, 3):
        judged = judge.feed(failing(ONE, status=503))
        assert (judged.refused, judge.refused_streak) == (True, streak)
    assert judge.lacks()
    assert told(judge, ONE).standing is Standing.UNPROVEN


@pytest.mark.parametrize(
    ("status", "outcome", "message", "took_s", "says"),
    [
        (400, Outcome.HTTP_ERROR, "maximum context length (8192)", 1, "raise --max-model-len"),
        (400, Outcome.HTTP_ERROR, "bad field", 1, "change the cell or its variant"),
        (401, Outcome.HTTP_ERROR, "Unauthorized", 1, "WARMUP_API_KEY"),
        (404, Outcome.HTTP_ERROR, "no model", 1, "WARMUP_MODEL"),
        (500, Outcome.HTTP_ERROR, "internal", 1, "see the engine's log"),
        (500, Outcome.HTTP_ERROR, "internal", 301, "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"),
        (200, Outcome.STREAM_ERROR, "CUDA out of memory", 1, "--gpu-memory-utilization"),
        (200, Outcome.BROKEN, "", 1, "it may have died on this cell"),
        (None, Outcome.TIMEOUT, "", 30, "budget.request_timeout_s"),
    ],
)
def test_a_failure_names_the_flag(status, outcome, message, took_s, says):
    """A failed request is told with its cell, what came back, and what to change."""
    broken = Result(outcome, 0.0, token_s=(took_s,), status=status, message=message)
    told_failure = judge_of(FOUR).feed(wave(FOUR, Gait.LED, [broken] * 4)).failed
    assert told_failure is not None
    assert told_failure.startswith("completions-c4-p100-o9: 4 of 4 requests ")
    assert says in told_failure
    assert "\n" not in told_failure


# --- a boot that is tried for ever ---------------------------------------------------------------


def track_of(*waves) -> Track:
    track = Track(Look(ONE, Gait.LED), Plan((ONE,)), Converge(), Plugs())
    for at, one in enumerate(waves):
        is_valid = not one.counters.preemptions
        track.add(Entry(at, one, is_valid, False, False, False, True, None, None))
    return track


def test_what_a_look_remembers_is_bounded():
    """The first waves, whose cost is told, and the last ones."""
    track = track_of(*(led(ONE, ttft_s=0.05 + i / 1e6, cold_s=5.0 * (i < 1)) for i in range(300)))
    assert len(track.entries) == MAX_ENTRIES
    assert (track.entries[0].f_s, track.entries[-1].at) == (5.05, 299)
    assert track.forgotten == 300 - MAX_ENTRIES


def test_what_a_reading_rests_on_is_not_forgotten():
    """The baseline, the last cost and what it cost the grid, however many waves proved nothing."""
    nothing = led(ONE, ttft_s=0.06, delta=counters(ONE, preemptions=1))
    paid = led(ONE, cold_s=0.5, delta=counters(ONE, preemptions=1))
    quiet = led(ONE, ttft_s=0.07)
    before = (*(quiet,) * 10, led(ONE, gap_s=0.05), quiet)
    before += (led(ONE, cold_s=5.0), led(ONE, cold_s=0.5))
    for after, is_cold in ((nothing, False), (paid, True)):
        short, long = track_of(*before, after), track_of(*before, *(after,) * 300)
        assert len(long.entries) == MAX_ENTRIES
        assert long.reading() == replace(short.reading(), looks=long.reading().looks)
        assert (long.reading().is_cold, long.reading().event_at) == (is_cold, 12)


def test_a_cost_to_the_grid_stays_one_when_it_is_forgotten():
    """The first wave, which is remembered, is an event too, but not the last."""
    track = track_of(led(ONE, cold_s=5.0), *(led(ONE),) * 20)
    late = replace(failing(ONE), took_s=2.0)
    track.add(Entry(21, late, False, False, True, False, True, None, Miss.UNFINISHED))
    for at in range(22, 22 + 2 * MAX_ENTRIES):
        assert track.reading().event_at == 21
        track.add(Entry(at, led(ONE), True, False, False, False, True, None, None))


def test_waves_that_were_forgotten_are_told_with_the_others():
    """As waves, and as valid ones."""
    judge = judge_of(ONE)
    run(judge, ONE, *(0,) * (MAX_ENTRIES + 50))
    (figures,) = told(judge, ONE).figures
    assert (figures.waves, figures.valid) == (MAX_ENTRIES + 50, MAX_ENTRIES + 50)


def test_drafts_that_were_others_once_are_not_forgotten():
    """Whether a cell decodes in the same steps in each wave is asked of all its waves."""
    alike = led(ONE, delta=counters(ONE, drafts=8, accepted_tokens=0))
    other = led(ONE, delta=counters(ONE, drafts=3, accepted_tokens=0))
    track = track_of(*(alike,) * 20, other, *(alike,) * 300)
    assert {entry.wave.counters.drafts for entry in track.entries} == {3, 8}


def test_a_plug_that_was_slow_once_was_so_for_ever():
    """Of plugs the last ones are remembered, and which was the last to take too long."""
    plugs, slow = Plugs(), replace(held(FOUR).plug, token_s=(5.0,))
    plugs.feed(0, held(FOUR))
    plugs.feed(1, replace(held(FOUR), plug=slow))
    for at in range(2, 2 + 2 * MAX_RUNS):
        assert plugs.last_excess_at(1.0, 3.0) == 1
        plugs.feed(at, held(FOUR))


def test_a_round_that_began_long_ago_is_counted_as_far_as_it_is_remembered():
    """What failed before the round is no failure of it, also when older waves were forgotten."""
    track = track_of(*(led(ONE),) * MAX_ENTRIES)
    broken = Entry(1000, failing(ONE), False, False, True, False, True, None, Miss.UNFINISHED)
    track.add(broken)
    track.begin_round()
    track.add(replace(broken, at=1001))
    assert (track.trailing_failures(), track.trailing_failures(this_round=True)) == (2, 1)


# --- opening -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("costs", "open_unproven", "is_open", "proven"),
    [
        ((0, 0), False, True, True),
        ((0,), True, True, False),
        ((0,), False, False, False),
        ((0, 0, 9), True, False, False),
    ],
)
def test_opening(costs, open_unproven, is_open, proven):
    """Warm opens; unproven opens by setting; what was seen paying keeps the gate shut."""
    judge = judge_of(ONE)
    run(judge, ONE, *costs)
    gate = opening(judge.verdict(), open_unproven=open_unproven)
    assert (gate.open, gate.proven) == (is_open, proven)
    assert bool(gate.reasons) is not proven


def test_what_was_never_answered_never_opens():
    """Neither refusals all the way to the end of the budget nor a grid that was not sent at all."""
    judge = judge_of(ONE)
    assert not opening(judge.verdict(), open_unproven=True).open
    for _ in range(3):
        judge.feed(failing(ONE, status=503))
    refused = opening(judge.verdict(), open_unproven=True)
    assert not refused.open
    assert "HTTP 503" in "; ".join(refused.reasons)
    judge.feed(led(ONE))
    assert opening(judge.verdict(), open_unproven=True).open


def test_an_empty_grid_never_opens():
    """Readiness never opens on nothing: no cells, no gate, whatever went well beside them."""
    judge = judge_of(first=FIRST, heaviest=HEAVY)
    judge.feed(led(FIRST))
    judge.feed(led(HEAVY))
    assert judge.verdict().call is Call.UNKNOWN
    assert not opening(judge.verdict(), open_unproven=True).open


def test_a_wave_that_failed_late_asks_every_cell_once_more():
    """A wave that ran for seconds before it failed may have made others cold; a refusal may not."""
    other = cell(1, 200)
    for took_s, lacking in ((3.0, True), (0.1, False)):
        judge = judge_of(ONE, other)
        run(judge, other, 0)
        run(judge, ONE, 0, 0)
        judge.feed(replace(failing(other), took_s=took_s))
        assert (ONE in [look.cell for look in judge.lacks()]) is lacking


def test_a_wave_that_was_cut_off_late_asks_every_cell_once_more():
    """Nobody saw what it compiled: each cell needs a quiet wave after it, and one is enough."""
    other = cell(1, 200)
    for took_s, lacking in ((3.0, {ONE, other}), (0.1, set())):
        judge = judge_of(ONE, other)
        for _ in range(3):
            run(judge, ONE, 0)
            run(judge, other, 0)
        judge.cut_off(took_s)
        assert {look.cell for look in judge.lacks()} == lacking
        run(judge, ONE, 0)
        assert ONE not in {look.cell for look in judge.lacks()}


def test_a_quiet_wave_that_is_invalid_still_ends_what_is_cold():
    """Preempted or of another length: it proves nothing, but it did not pay."""
    judge = judge_of(ONE)
    run(judge, ONE, 0, 9)
    judge.feed(led(ONE, delta=counters(ONE, preemptions=1)))
    assert told(judge, ONE).standing is Standing.UNPROVEN


def test_an_invalid_wave_that_paid_ends_nothing():
    """It proves no cost, for it may have been another batch, and it was not quiet either."""
    judge = judge_of(ONE)
    run(judge, ONE, 0, 0.5)
    judge.feed(led(ONE, cold_s=0.5, delta=counters(ONE, preemptions=1)))
    assert told(judge, ONE).standing is Standing.COLD


@pytest.mark.parametrize(
    ("ran", "says"),
    [
        (wave(FOUR, Gait.LED, [result(0.1, cell=FOUR)] * 3), "3 of 4 requests ran"),
        (wave(ONE, Gait.LED, [result(0.1, cell=ONE, token_s=())]), "had no token"),
        (
            wave(FOUR, Gait.HELD, held(FOUR).results, plug=Result(Outcome.TIMEOUT, 0.0)),
            "the plug failed: timeout",
        ),
    ],
)
def test_a_wave_that_is_not_whole_is_invalid(ran, says):
    """Requests that never ran, streams without a token and a failed plug make a wave invalid."""
    judged = judge_of(FOUR, ONE).feed(ran)
    assert not judged.valid
    assert says in judged.invalid_because[0]


def test_heaviest_says_what_was_wrong_with_it():
    """A heaviest wave of another length than declared has not passed, and says so."""
    judge = judge_of(ONE, heaviest=HEAVY)
    judge.feed(wave(HEAVY, Gait.LED, [result(9, cell=HEAVY, finish_reason="stop")]))
    assert told(judge, HEAVY).standing is Standing.FAILED
    assert "finished by 'stop'" in told(judge, HEAVY).reasons[0]


def test_what_is_lacking_is_said():
    """Not yet warm for others' sake, or for want of counters: the reason tells which."""
    judge = judge_of(ONE)
    judge.feed(led(ONE, delta=counters(ONE, requests=5)))
    assert told(judge, ONE).reasons == ("led: others were served during each wave",)
    run(judge, ONE, 0)
    judge.feed(wave(ONE, Gait.LED, [result(0.05, cell=ONE)], delta=None))
    assert "could not be read" in told(judge, ONE).reasons[0]

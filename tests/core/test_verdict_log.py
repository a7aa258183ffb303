"""The log half of R3, R6 and R8: what a compile line, silence and step lines do to a verdict."""

from dataclasses import replace

import pytest

from sidecar.core.facts import EngineFacts
from sidecar.core.grid.cells import Converge, Gait
from sidecar.core.grid.plan import Plan
from sidecar.core.judge.calls import Call, Standing, opening
from sidecar.core.judge.verdict import Judge
from sidecar.core.logs.events import Compile, Step
from sidecar.core.logs.evidence import Hearing, Listening, LogEvidence, summed
from sidecar.core.logs.head import Origin
from sidecar.core.logs.window import Completeness
from sidecar.core.results import Outcome, Result
from tests.core.waves import cell, held, led, wave

ONE = cell(1, 300, 9)
OTHER = cell(1, 100, 9)
FOUR = cell(4, 100, 16)
HEARD = LogEvidence(Completeness.COMPLETE, listening=Listening(1, 1, verbose=True))
COMPILE = Compile(Origin("EngineCore", 7), "Triton", "kernel JIT compilation", "moe")
NAMED = replace(HEARD, compiles=(COMPILE,))
ONCE = replace(HEARD, listening=Listening(1, 1, verbose=False))
LEAST = [
    ONCE,
    replace(HEARD, listening=Listening(1, 2, verbose=True)),
    replace(HEARD, completeness=Completeness.PARTIAL, reason="a gap"),
    replace(HEARD, completeness=Completeness.NONE, reason="no fence"),
    replace(HEARD, listening=Listening()),
    replace(HEARD, is_lossy=True),
    None,
]


def judge_of(*cells) -> Judge:
    plan = Plan(cells, batched_tokens=2048, batched_tokens_known=True, plug_tokens=2048)
    return Judge(plan, EngineFacts(), Converge())


def with_log(wave, log):
    return replace(wave, log=log)


def call_of(judge, which):
    return next(c for c in judge.verdict().cells if c.cell.id == which.id)


def test_a_compile_line_is_loud_where_latency_is_not():
    """A kernel of 20 ms is below every tolerance; the line still says that it was cold."""
    judge = judge_of(ONE)
    for log in (HEARD, HEARD, NAMED):
        judge.feed(with_log(led(ONE), log))
    told = call_of(judge, ONE)
    assert (told.call, told.standing) == (Call.NOT_YET, Standing.COLD)
    assert told.reasons == ("led: its last wave compiled moe (Triton), says the log",)
    judge.feed(with_log(led(ONE), HEARD))
    assert call_of(judge, ONE).call is Call.WARM


@pytest.mark.parametrize("log", [NAMED, *(replace(e, compiles=(COMPILE,)) for e in LEAST if e)])
def test_a_compile_line_counts_however_little_was_seen(log):
    """Forged or from a lossy source: at worst the gate stays shut."""
    judge = judge_of(ONE)
    for each in (HEARD, HEARD, log):
        judge.feed(with_log(led(ONE), each))
    assert call_of(judge, ONE).standing is Standing.COLD


def test_one_quiet_wave_is_enough_where_the_log_would_have_told():
    """After the cold one; latency alone asks for two."""
    for log, warm in ((HEARD, True), *((each, False) for each in LEAST)):
        judge = judge_of(ONE)
        judge.feed(with_log(led(ONE, cold_s=2.0), log))
        judge.feed(with_log(led(ONE), log))
        assert (call_of(judge, ONE).call is Call.WARM) is warm, log
        judge.feed(with_log(led(ONE), log))
        assert call_of(judge, ONE).call is Call.WARM


def test_two_valid_waves_are_asked_for_all_the_same():
    """A single wave is its own baseline: a silent cost in it could not be seen."""
    judge = judge_of(ONE)
    judge.feed(with_log(led(ONE), HEARD))
    assert call_of(judge, ONE).call is Call.NOT_YET
    judge.feed(with_log(led(ONE), HEARD))
    assert call_of(judge, ONE).call is Call.WARM


def test_the_silence_that_counts_is_that_of_the_last_quiet_wave():
    """A whole window before and a hole now: one more is needed."""
    judge = judge_of(ONE)
    judge.feed(with_log(led(ONE, cold_s=2.0), HEARD))
    judge.feed(with_log(led(ONE), LEAST[2]))
    assert call_of(judge, ONE).call is Call.NOT_YET


def test_a_compile_anywhere_asks_all_others_for_a_quiet_wave_after_it():
    """It may have grown what they were compiled for."""
    judge = judge_of(ONE, OTHER)
    for which in (ONE, OTHER, ONE, OTHER):
        judge.feed(with_log(led(which), HEARD))
    assert judge.verdict().call is Call.WARM
    judge.feed(with_log(led(OTHER), NAMED))
    judge.feed(with_log(led(OTHER), HEARD))
    assert [look.cell for look in judge.lacks()] == [ONE]


def test_a_wave_that_failed_as_it_compiled_is_an_event_too():
    """However soon it failed: what was compiled may have grown what others need."""
    judge = judge_of(ONE, OTHER)
    for which in (ONE, OTHER, ONE, OTHER):
        judge.feed(with_log(led(which), HEARD))
    failed = Result(Outcome.HTTP_ERROR, 0.0, status=500, message="oops")
    judge.feed(with_log(wave(OTHER, Gait.LED, [failed]), NAMED))
    assert {look.cell for look in judge.lacks()} == {ONE, OTHER}


def test_a_wave_that_failed_as_it_compiled_is_loud():
    """What compiled in it was cold: two quiet waves after it, and no longer one before."""
    judge = judge_of(ONE)
    failed = Result(Outcome.HTTP_ERROR, 0.0, status=503, message="queue full")
    for one in (led(ONE), led(ONE), wave(ONE, Gait.LED, [failed])):
        judge.feed(with_log(one, NAMED if one.results == (failed,) else ONCE))
    assert call_of(judge, ONE).standing is Standing.COLD
    for call in (Call.NOT_YET, Call.WARM):
        judge.feed(with_log(led(ONE), ONCE))
        assert call_of(judge, ONE).call is call


def test_a_compile_between_two_waves_is_an_event_of_the_whole_grid():
    """It is of no cell: the wave after it is quiet, and counts; those before it don't."""
    judge = judge_of(ONE, OTHER)
    for which in (ONE, OTHER, ONE, OTHER):
        judge.feed(with_log(led(which), HEARD))
    judge.feed(with_log(led(OTHER), replace(HEARD, earlier=(COMPILE,))))
    assert call_of(judge, OTHER).call is Call.WARM
    assert [look.cell for look in judge.lacks()] == [ONE]


def test_answers_to_others_in_the_log_make_a_wave_foreign():
    """Their request may still run, and so stand in no counter yet."""
    judged = judge_of(ONE).feed(with_log(led(ONE), replace(HEARD, foreign=1)))
    assert (judged.foreign, judged.valid) == (True, False)


def test_the_verdict_says_what_it_stands_on():
    """`log` only where the log was heard, and how far it carries in the weakest cell."""
    judge = judge_of(ONE, OTHER)
    assert judge.verdict().log is None
    judge.feed(with_log(led(ONE), HEARD))
    judge.feed(with_log(led(OTHER), ONCE))
    verdict = judge.verdict()
    assert verdict.evidence == "log+latency+metrics"
    assert verdict.log is not None
    assert verdict.log.hearing is Hearing.ONCE_ONLY
    judge.feed(with_log(led(OTHER), LEAST[4]))
    assert judge.verdict().evidence == "latency+metrics"


@pytest.mark.parametrize(
    ("log", "opens"), [(HEARD, True), (ONCE, True), *((e, False) for e in LEAST[1:])]
)
def test_log_evidence_can_be_required(log, opens):
    """WARMUP_REQUIRE_EVIDENCE=log: a warm grid whose log was not seen whole stays shut."""
    judge = judge_of(ONE)
    for _ in range(3):
        judge.feed(with_log(led(ONE), log))
    verdict = judge.verdict()
    assert opening(verdict, open_unproven=True).open
    told = opening(verdict, open_unproven=True, require_log=True)
    assert told.open is opens
    assert opens or told.reasons[0].startswith("WARMUP_REQUIRE_EVIDENCE=log: ")


def test_a_cell_names_its_kernels_and_what_they_cost():
    """The dearest first, with what the waves that named them took longer than the baseline."""
    judge = judge_of(ONE)
    cheap = replace(COMPILE, kernel="topk")
    judge.feed(with_log(led(ONE, cold_s=2.0), replace(HEARD, compiles=(COMPILE, COMPILE))))
    assert call_of(judge, ONE).compile_s is None  # its only wave is no baseline
    judge.feed(with_log(led(ONE, gap_s=0.5), replace(HEARD, compiles=(cheap,))))
    judge.feed(with_log(led(ONE), HEARD))
    kernels = call_of(judge, ONE).kernels
    assert [(k.kernel, k.lines) for k in kernels] == [("moe", 2), ("topk", 1)]
    assert [round(k.cost_s or 0, 3) for k in kernels] == [2.0, 0.5]
    assert call_of(judge, ONE).compile_s == pytest.approx(2.5)


# --- R3: steps ----------------------------------------------------------------------------------


def steps(*shapes) -> LogEvidence:
    """(context requests, context tokens, generation requests) of each step."""
    return replace(HEARD, steps=summed(made(*shapes)))


def made(*shapes) -> list[Step]:
    return [Step(Origin(), 0, n, c, t, g, g, 0.04) for n, (c, t, g) in enumerate(shapes)]


DECODE = (0, 0, 4)


@pytest.mark.parametrize(
    ("gait", "shapes", "because"),
    [
        (Gait.HELD, [(1, 2048, 0), (4, 400, 0), DECODE], None),
        (Gait.HELD, [(1, 2048, 0), (3, 300, 0), (1, 100, 3), DECODE], "did not share a step"),
        (Gait.HELD, [(1, 1948, 0), (5, 500, 0), DECODE], "the plug's own step"),
        (Gait.HELD, [(1, 2048, 0), (4, 400, 0), (0, 0, 3)], "ended before"),
        (Gait.LED, [(1, 100, 0), (3, 300, 1), DECODE], None),
        (Gait.LED, [(1, 100, 0), (0, 0, 1), (3, 300, 1), DECODE], None),
        (Gait.LED, [(2, 200, 0), (2, 200, 2), DECODE], "did not run alone"),
        (Gait.LED, [(1, 100, 0), (2, 200, 1), (1, 100, 3), DECODE], "not packed"),
        (Gait.LED, [(1, 100, 0), (3, 300, 0), DECODE], "not packed"),
    ],
)
def test_steps_show_or_refute_a_batch_against_the_stamps(gait, shapes, because):
    """Stamps that look right don't save a batch that was another, nor do late ones spoil it."""
    right = held(FOUR) if gait is Gait.HELD else led(FOUR)
    wrong = held(FOUR, split=2) if gait is Gait.HELD else led(FOUR, firsts=[0.05, 0.06, 0.07, 0.08])
    for each in (right, wrong):
        judged = judge_of(FOUR).feed(with_log(each, steps(*shapes)))
        assert judged.shown is (because is None)
        assert because is None or because in (judged.not_shown_because or "")


def test_steps_that_are_not_all_of_the_wave_tell_nothing():
    """Missing, forged, or of several engines: the stamps decide."""
    shown = steps((1, 2048, 0), (4, 400, 0), DECODE)
    first, second, last = made((1, 2048, 0), (4, 400, 0), DECODE)
    split = held(FOUR, split=2)
    two = replace(HEARD, steps=summed([first, second, last, replace(last, number=3, engine=1)]))
    holed = replace(shown, completeness=Completeness.PARTIAL)
    forged = steps((1, 2048, 0), (2, 200, 0), (4, 400, 0), (2, 200, 0), DECODE)
    again = replace(HEARD, steps=summed([first, second, last, last]))
    lost = replace(HEARD, steps=summed([second, last]))
    for log in (holed, two, forged, again, lost):
        assert not judge_of(FOUR).feed(with_log(split, log)).shown
    assert judge_of(FOUR).feed(with_log(split, shown)).shown


def test_the_first_steps_of_a_long_wave_are_enough_for_its_prefill():
    """What is kept is bounded; that all decode together then shows by the stamps."""
    log = replace(steps((1, 2048, 0), (4, 400, 0)), dropped=5)
    assert judge_of(FOUR).feed(with_log(held(FOUR), log)).shown
    assert not judge_of(FOUR).feed(with_log(held(FOUR, split=2), log)).shown

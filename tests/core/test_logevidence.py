"""What several streams together prove of one wave, and in which words that is said."""

from dataclasses import replace

import pytest

from sidecar.core.logs.events import Compile, Finished, Step
from sidecar.core.logs.evidence import (
    MAX_COMPILES,
    MAX_DETAIL,
    MAX_PREFILLS,
    Heard,
    Hearing,
    Listening,
    LogEvidence,
    combined,
    summed,
)
from sidecar.core.logs.head import Origin
from sidecar.core.logs.window import Completeness, WindowReport

RANK0, RANK1 = Origin("Worker_TP0", 7), Origin("Worker_TP1", 8)
DP0, DP1 = Origin("EngineCore_DP0", 7), Origin("EngineCore_DP1", 8)
FULL = Listening(monitors=1, ranks=1, verbose=True)
WHOLE = WindowReport(Completeness.COMPLETE, "")
HOLED = WindowReport(Completeness.PARTIAL, "gap of 3.2 s: it was gone")
UNSEEN = WindowReport(Completeness.NONE, "no line was seen during the wave")


def compiled(kernel: str = "moe", origin: Origin = RANK0, **more) -> Compile:
    return Compile(origin, "Triton", "kernel JIT compilation", kernel, **more)


@pytest.mark.parametrize(
    ("report", "listening", "hearing", "words"),
    [
        (WHOLE, FULL, Hearing.COMPLETE, "complete"),
        (WHOLE, replace(FULL, verbose=False), Hearing.ONCE_ONLY, "once-only: without --jit-mon"),
        (WHOLE, replace(FULL, verbose=None), Hearing.ONCE_ONLY, "once-only"),
        (WHOLE, replace(FULL, doubtful="who knows"), Hearing.ONCE_ONLY, "once-only: who knows"),
        (WHOLE, replace(FULL, ranks=2), Hearing.SOME_RANKS, "1 of 2 ranks seen"),
        (WHOLE, replace(FULL, ranks=None), Hearing.SOME_RANKS, "1 of unknown ranks seen"),
        (WHOLE, Listening(0, 1, True), Hearing.NONE, "none: no JIT monitor said"),
        (WHOLE, Listening(0, 1, True, off="eager"), Hearing.NONE, "none: eager"),
        (HOLED, FULL, Hearing.PARTIAL, "partial: gap of 3.2 s"),
        (UNSEEN, FULL, Hearing.NONE, "none: no line was seen"),
    ],
)
def test_silence_proves_as_much_as_was_listened_to(report, listening, hearing, words):
    """Whole, of every rank, and verbose; else it is said what it lacks."""
    told = combined([Heard(report, frozenset({RANK0}))], listening)
    assert told.hearing is hearing
    assert told.words.startswith(words)


def test_a_lossy_source_proves_nothing_and_still_tells():
    """Over UDP silence may be loss; a line that came did come."""
    told = combined([Heard(replace(HOLED, compiles=(compiled(),)), is_lossy=True)], FULL)
    assert told.hearing is Hearing.NONE
    assert "UDP" in told.words
    assert told.compiles


def test_every_monitor_must_have_been_seen_in_a_whole_stream():
    """The second node's log has no fence: what it is silent about is not known to be quiet."""
    both = [Heard(WHOLE, frozenset({RANK0})), Heard(UNSEEN, frozenset({RANK1}))]
    told = combined(both, Listening(2, 2, verbose=True))
    assert told.hearing is Hearing.PARTIAL
    assert "another rank" in told.words
    assert combined(both[:1], Listening(1, 1, verbose=True)).hearing is Hearing.COMPLETE


def test_a_stream_without_monitors_of_its_own_takes_nothing_away():
    """A proxy's log beside the engine's."""
    told = combined([Heard(UNSEEN), Heard(WHOLE, frozenset({RANK0}))], FULL)
    assert told.hearing is Hearing.COMPLETE


def test_a_line_that_comes_by_two_ways_is_one():
    """By file and by syslog; but two specializations in one stream are two."""
    twice = replace(WHOLE, compiles=(compiled(), compiled()))
    once = replace(WHOLE, compiles=(compiled(), compiled("other")))
    told = combined([Heard(twice), Heard(once)], FULL)
    assert sorted(c.kernel for c in told.compiles) == ["moe", "moe", "other"]


def test_a_compile_has_the_seconds_that_its_end_told():
    """Each end goes to one beginning of the same kernel in the same process."""
    begun = (compiled(), compiled(), compiled(origin=RANK1))
    ends = (
        Finished(RANK0, "Triton", "kernel JIT compilation", "moe", 1.5),
        Finished(RANK1, "Triton", "kernel JIT compilation", "moe", 2.5),
    )
    told = combined([Heard(replace(WHOLE, compiles=begun, finished=ends))], FULL)
    assert sorted(c.duration_s or 0 for c in told.compiles) == [0, 1.5, 2.5]


def test_steps_show_a_batch_only_in_a_whole_window():
    """A missing line would be a missing step."""
    steps = summed([Step(RANK0, 0, 1, 2, 700, 0, 0, 0.04)])
    assert LogEvidence(Completeness.COMPLETE, steps=steps).shows_steps
    assert not LogEvidence(Completeness.PARTIAL, steps=steps).shows_steps
    assert not LogEvidence(Completeness.COMPLETE).shows_steps


def test_no_stream_is_no_evidence():
    """A source that never gave a line."""
    assert combined([], FULL).words == "none: no line was ever read"


def test_what_is_kept_of_a_wave_is_bounded_and_counted():
    """It stays for as long as the boot lives: a flood of lines, long details, steps without end."""
    flood = tuple(compiled(f"k{n}", detail="x" * 4000) for n in range(1000))
    steps = tuple(Step(RANK0, 0, n, 1, 16, 1, 1, 0.04) for n in range(1000))
    told = combined([Heard(replace(WHOLE, compiles=flood, steps=steps))], FULL, flood)
    assert len(told.compiles) == len(told.earlier) == MAX_COMPILES
    assert told.dropped == 1000 - MAX_COMPILES
    assert {len(c.detail) for c in (*told.compiles, *told.earlier)} == {MAX_DETAIL}
    assert told.steps is not None
    assert (len(told.steps.prefills), told.steps.is_whole) == (MAX_PREFILLS, False)


@pytest.mark.parametrize(("before", "heard"), [(MAX_COMPILES - 1, ["mine"]), (MAX_COMPILES, None)])
def test_lines_of_one_rank_do_not_hide_those_of_another(before, heard):
    """Of lines too many to keep, those that were dropped may be any rank's: none was quiet."""
    flood = tuple(compiled(f"k{n}", DP0) for n in range(before))
    report = replace(WHOLE, compiles=(*flood, compiled("mine", DP1)))
    own = combined([Heard(report)], FULL).of_engine("1")
    assert own.compiles
    assert heard is None or [c.kernel for c in own.compiles] == heard

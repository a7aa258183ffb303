"""The truth harness with the engine's log as a leg of the verdict."""

from statistics import median

from benchmarks.draws import draw
from benchmarks.logged import draw_habits
from benchmarks.truth import examine_all
from benchmarks.warming import LISTENING, warm

SEEDS = range(40)


def test_with_the_log_still_nobody_is_warm_that_is_not_and_it_takes_fewer_waves():
    """Over the same engines as without: gaps, lossy sources and forged lines are among them."""
    without = {o.seed: o for o in examine_all(SEEDS)}
    heard = {o.seed: o for o in examine_all(SEEDS, method=LISTENING)}
    assert [o.false_warm for o in heard.values() if o.false_warm] == []
    assert sum(bool(o.false_not_yet) for o in heard.values()) <= 1
    both = [s for s in without if without[s].proven and heard[s].proven]
    assert median(heard[s].waves_per_look for s in both) < median(
        without[s].waves_per_look for s in both
    )


def test_the_drawn_logs_tell_more_and_less():
    """From complete to none, and users write into some: good logs alone would prove little."""
    habits = [draw_habits(seed) for seed in SEEDS]
    assert {h.verbose for h in habits} == {h.iterations for h in habits} == {False, True}
    assert any(h.forged for h in habits)
    warmed = [warm(draw(seed), LISTENING) for seed in SEEDS[:12]]
    logs = [w.verdict.log for w in warmed if w is not None]
    assert len({log.hearing for log in logs if log is not None}) >= 3

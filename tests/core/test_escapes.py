"""Compile lines that came while the gate was open."""

from sidecar.core.logs.events import Compile, Step
from sidecar.core.logs.head import Origin
from sidecar.core.watch.escapes import (
    MAX_DETAIL,
    MAX_KEPT,
    MAX_LABELS,
    Batch,
    Escapes,
    told,
)

RANK = Origin("Worker_TP1", 7)


def line(kernel="moe_kernel", **changes):
    return Compile(RANK, "Triton", "kernel JIT compilation", kernel, **changes)


def step(tokens):
    return Step(RANK, 0, 1, 2, tokens, 3, 3, 0.04)


def test_an_escape_is_kept_with_all_that_is_known():
    """Time, source, rank, detail; and the step that comes next is the one it was in."""
    escapes = Escapes()
    escapes.add(line(detail="key=(1)"), at=5.0, source="file:///a")
    escapes.was_in(step(700), "file:///a")
    escapes.was_in(step(9), "file:///a")
    (one,) = escapes.log.recent
    assert (one.at, one.kernel, one.process, one.detail) == (
        5.0,
        "moe_kernel",
        "Worker_TP1",
        "key=(1)",
    )
    assert one.step == "2 prefills of 700 tokens, 3 decodes of 3 tokens"
    assert one.batch == Batch(2, 700, 3, 3)
    assert "hole in the declared grid" in told(escapes.log, since=4.0)[0]
    assert told(escapes.log, since=6.0) == ()


def test_a_step_belongs_to_its_own_source():
    """Two nodes log apart: the step of one says nothing of the other."""
    escapes = Escapes()
    escapes.add(line(), at=1.0, source="a")
    escapes.was_in(step(700), "b")
    assert escapes.log.recent[0].step is None


def test_a_storm_is_counted_in_full_and_kept_in_part():
    """The ring, the labels and the detail are bounded; the total is not, and nothing is lost."""
    escapes = Escapes()
    for i in range(MAX_LABELS + 300):
        escapes.add(line(f"k{i}", detail="x" * 9999), at=float(i), source="a")
    escapes.add(line("a kernel of a user's, perhaps"), at=1.0, source="a")
    escapes.add(line("k0", repeated=7), at=1.0, source="a")
    log = escapes.log
    assert log.total == sum(log.counts.values()) == MAX_LABELS + 300 + 1 + 7
    assert len(log.recent) == MAX_KEPT
    assert len(log.counts) == MAX_LABELS + 1
    assert log.counts["other", "other"] == 301
    assert log.counts["Triton", "k0"] == 8
    assert len(log.recent[0].detail) == MAX_DETAIL


def test_labels_stay_what_they_were():
    """A counter that moved between labels would seem to fall."""
    escapes = Escapes()
    for i in range(MAX_LABELS):
        escapes.add(line(f"k{i}"), at=0.0, source="a")
    for _ in range(500):
        escapes.add(line("frequent"), at=0.0, source="a")
    assert escapes.log.counts["other", "other"] == 500
    assert all(count == 1 for label, count in escapes.log.counts.items() if label[0] != "other")


def test_the_shapes_of_tilelang_outlive_the_cut():
    """A cache key of 400 characters stands before them."""
    escapes = Escapes()
    detail = f"cache_key={'k' * 600}; runtime_shapes={{x=(896, 4, 4096)}}"
    escapes.add(line(detail=detail), at=1.0, source="a")
    assert escapes.log.recent[0].shapes == "x=(896, 4, 4096)"

"""Several gates as one: open while all are, and else where the one furthest behind is."""

from dataclasses import replace
from itertools import pairwise

import pytest

from sidecar.core.errors import ExitCode
from sidecar.core.judge.passes import Progress
from sidecar.core.results import Outcome
from sidecar.core.tally import Totals, WaveOutcome
from sidecar.core.urls import MAX_ENGINES, EngineAddress, checked_engines, parse_engines
from sidecar.core.watch.gate import Snapshot, State
from sidecar.core.watch.together import together

READY = Snapshot("http://a:1", State.READY, since=10.0, proven=True, adopted=True)
OTHER = replace(READY, url="http://b:2", since=20.0)


def test_the_gate_is_open_while_all_are():
    """Since the last one opened, proven if all are."""
    whole = together({"a": READY, "b": OTHER})
    assert (whole.state, whole.is_ready, whole.proven, whole.adopted) == ("ready", True, True, True)
    assert (whole.since, whole.url) == (20.0, "http://a:1, http://b:2")
    assert dict(whole.parts) == {"a": READY, "b": OTHER}
    assert not together({"a": READY, "b": replace(OTHER, proven=False)}).proven


@pytest.mark.parametrize("state", [s for s in State if s is not State.READY])
def test_one_that_is_not_ready_shuts_it(state):
    """The whole is where that one is, since that one is."""
    whole = together({"a": READY, "b": replace(OTHER, state=state, since=5.0)})
    assert (whole.state, whole.is_ready, whole.since) == (state, False, 5.0)


def test_the_one_furthest_behind_counts():
    """What failed is worse than what waits, and that than what is being warmed."""
    order = (State.READY, State.WARMING, State.WAITING, State.FAILED, State.STOPPING)
    for better, worse in pairwise(order):
        parts = {"a": replace(READY, state=better), "b": replace(OTHER, state=worse)}
        assert together(parts).state is worse


def test_every_reason_says_whose_it_is():
    """Reasons and warnings of all, in the order of the engines."""
    parts = {
        "a": replace(READY, warnings=("hot",)),
        "b": replace(OTHER, state=State.FAILED, reasons=("cold", "late"), exit_code=ExitCode(3)),
    }
    whole = together(parts)
    assert whole.reasons == ("b: cold", "b: late")
    assert whole.warnings == ("a: hot",)


def test_an_open_gate_gives_no_reason_why_the_whole_is_shut():
    """What is not proven of it is told once all are open."""
    unproven = replace(READY, proven=False, reasons=("batch not shown",))
    shut = replace(OTHER, state=State.WAITING, reasons=("gone",))
    assert together({"a": unproven, "b": shut}).reasons == ("b: gone",)
    assert together({"a": unproven, "b": OTHER}).reasons == ("a: batch not shown",)


def test_progress_and_totals_add_up():
    """The slowest says how long it takes, and where it can't, nobody does."""
    progress = Progress(passes=2, cells_done=3, cells_total=5, waves_left=4)
    totals = Totals(1, 2, {WaveOutcome.VALID: 3}, {Outcome.OK: 4}, 100, 10)
    part = replace(READY, state=State.WARMING, progress=progress, totals=totals, eta_s=7.0)
    whole = together({"a": part, "b": replace(part, eta_s=9.0), "c": READY})
    assert whole.progress == Progress(passes=2, cells_done=6, cells_total=10, waves_left=8)
    assert whole.totals == Totals(2, 4, {WaveOutcome.VALID: 6}, {Outcome.OK: 8}, 200, 20)
    assert whole.eta_s == 9.0
    assert together({"a": part, "b": replace(part, eta_s=None)}).eta_s is None


def test_engines_are_named_or_called_by_their_address():
    """Spaces or commas between them."""
    assert parse_engines("r0=http://h:8000, http://h:8001/x/") == (
        EngineAddress("r0", "http://h:8000"),
        EngineAddress("h-8001", "http://h:8001/x"),
    )
    assert parse_engines("") == ()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a=http://h a=http://g", '"a" is there twice'),
        ("a=http://h b=http://h/", '"http://h" is there twice'),
        ("http://h:1/a http://h:1/b", '"h-1" is there twice'),
        ("../x=http://h", "the scheme"),
        ("a b=http://h", "no scheme"),
        ("é=http://h", "is no name"),
        (" , ", "names no server"),
        ("http://[::1]:9", "is no name"),
        ("a=http://u:p@h", "credentials"),
        (" ".join(f"http://h:{n}" for n in range(1, MAX_ENGINES + 2)), "64 are the most"),
    ],
)
def test_what_names_no_engines_gets_a_sentence(text, sentence):
    """Names stand in paths and labels; each server is there once."""
    with pytest.raises(ValueError, match=sentence):
        checked_engines(text)

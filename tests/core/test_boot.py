"""Telling one boot of the engine from another."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from sidecar.core.watch.boot import BootMark, Sameness, Sightings, compare, mark_of
from sidecar.core.wire.metrics import parse

PAGES = Path(__file__).parent.parent / "data" / "metrics"
TIMED = BootMark(1000.5, 10, 100, 50, "0.32.0", ("m",), "abc")
UNTIMED = replace(TIMED, process_start_s=None)
SAME, OTHER, UNTOLD = Sameness.SAME, Sameness.OTHER, Sameness.UNTOLD


@pytest.mark.parametrize(
    ("earlier", "later", "expected"),
    [
        (TIMED, TIMED, SAME),
        (TIMED, replace(TIMED, requests=99), SAME),
        (TIMED, replace(TIMED, process_start_s=1001.5, requests=99), OTHER),
        (TIMED, replace(TIMED, version="0.33.0"), OTHER),
        (TIMED, replace(TIMED, models=("n",)), OTHER),
        (TIMED, replace(TIMED, cache_config="abd"), OTHER),
        (TIMED, replace(TIMED, models=None, version=None, cache_config=None), SAME),
        (UNTIMED, replace(UNTIMED, requests=11, prompt_tokens=120), SAME),
        (UNTIMED, replace(UNTIMED, requests=9, prompt_tokens=120), OTHER),
        (UNTIMED, replace(UNTIMED, requests=11, generation_tokens=3), OTHER),
        (TIMED, UNTIMED, SAME),
        (BootMark(requests=0, prompt_tokens=0), BootMark(requests=0, prompt_tokens=0), UNTOLD),
        (BootMark(requests=0), BootMark(requests=5), UNTOLD),
        (BootMark(), TIMED, UNTOLD),
        (TIMED, BootMark(), UNTOLD),
        (BootMark(version="1", models=("m",)), BootMark(version="1", models=("m",)), UNTOLD),
    ],
)
def test_whether_two_marks_are_of_one_boot(
    earlier: BootMark, later: BootMark, expected: Sameness
) -> None:
    """Start time first, then counters; what is not known decides nothing."""
    assert compare(earlier, later) is expected


def test_a_mark_survives_the_state_folder() -> None:
    """JSON and back gives the same mark, also an empty one."""
    for mark in (TIMED, BootMark()):
        assert BootMark.from_json(json.loads(json.dumps(mark.to_json()))) == mark


@pytest.mark.parametrize(
    "stored", [{"models": "m"}, {"models": [1]}, {"requests": "3"}, {"version": 3}]
)
def test_a_damaged_mark_is_refused(stored: dict[str, object]) -> None:
    """Another type where a field should be is a ValueError, not a wrong identity."""
    with pytest.raises(ValueError, match=next(iter(stored))):
        BootMark.from_json(stored)


def test_marks_of_real_pages() -> None:
    """Two pages of one boot are the same, those of two servers are not."""
    before, after, gpu, dp2 = (
        mark_of(parse((PAGES / f"{name}.txt").read_text()), version=None, models=None)
        for name in (
            "before.vllm-0.32.0",
            "after.vllm-0.32.0",
            "gpu.vllm-0.26.0",
            "dp2.vllm-0.32.0",
        )
    )
    assert compare(before, after) is SAME
    assert compare(after, gpu) is OTHER
    assert dp2.process_start_s is None
    assert compare(dp2, dp2) is SAME


def test_identities_that_alternate_are_a_load_balancer() -> None:
    """A, B, A: a boot that has ended never comes back."""
    other = replace(TIMED, process_start_s=2000.0)
    sightings = Sightings()
    assert [sightings.see(m) for m in (TIMED, TIMED, other, other, TIMED)] == [False] * 4 + [True]


def test_restarts_are_no_load_balancer() -> None:
    """New boots, one after the other, each stay what they are."""
    sightings = Sightings()
    marks = [replace(TIMED, process_start_s=1000.0 + i) for i in range(20)]
    assert not any(sightings.see(mark) for mark in marks)


def test_counters_that_step_back_again_and_again_are_a_load_balancer() -> None:
    """Without start times two engines show as counters that jump back twice with no break."""
    sightings = Sightings()
    marks = [replace(UNTIMED, requests=n) for n in (100, 3, 101, 4, 102)]
    assert [sightings.see(mark) for mark in marks] == [False, False, False, True, False]
    restarting = Sightings()
    assert not any(restarting.see(mark, after_break=True) for mark in marks)

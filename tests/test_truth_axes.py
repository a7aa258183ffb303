"""Each axis of a grid against the truth: a few seeds of `benchmarks/axes.py`, on every run."""

import pytest

from benchmarks.axes import PROVING, UNSEEN, examine_all
from benchmarks.axisdraws import AXES
from benchmarks.planted import Blind
from benchmarks.warming import LISTENING

SEEDS = range(4)


@pytest.mark.parametrize("axis", AXES)
def test_an_axis_is_proven_where_declared_and_paid_for_where_not(axis):
    """No cell is called warm falsely, none held back for nothing; its user pays without it."""
    outcomes = examine_all(axis, SEEDS)
    assert [o.false_warm for o in outcomes if o.false_warm] == []
    assert [o.false_not_yet for o in outcomes if o.false_not_yet] == []
    assert sum(o.proven for o in outcomes) > 0.6 * sum(o.own for o in outcomes)
    assert sum(o.pays for o in outcomes) > len(outcomes) / 3


@pytest.mark.parametrize("axis", ["context", "mixed", "drafts", "rank"])
def test_the_log_makes_no_axis_warm_that_is_not(axis):
    """The same where the engine's log, with all its gaps and forgeries, is a leg of the verdict."""
    outcomes = examine_all(axis, range(2), LISTENING)
    assert [o.false_warm for o in outcomes if o.false_warm] == []
    assert any(o.proven for o in outcomes)


@pytest.mark.parametrize("axis", UNSEEN)
def test_a_field_that_is_not_sent_is_found_out(axis):
    """Nothing of the waves tells that requests lack it: the harness does."""
    assert all(o.false_warm for o in examine_all(axis, range(3), Blind()))


@pytest.mark.parametrize("axis", PROVING)
def test_what_a_wave_has_to_prove_can_t_be_left_out(axis):
    """No hit, the other text, another rank: such waves call nothing warm that isn't."""
    outcomes = examine_all(axis, SEEDS, Blind())
    assert outcomes
    assert [o.false_warm for o in outcomes if o.false_warm] == []


@pytest.mark.parametrize("axis", ["context", "drafts"])
def test_nor_is_anything_called_warm_then(axis):
    """Waves without their hit or their text are invalid, every one."""
    assert sum(o.proven for o in examine_all(axis, range(3), Blind())) == 0

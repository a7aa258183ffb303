"""Which batches a speculating wave decoded in."""

from sidecar.core.cells import Gait
from sidecar.core.decoding import decoding, is_settled
from tests.core.waves import STEP_S, cell, led, result, wave

THREE = cell(3, 1000, 8)


def ending(*events: int):
    """A wave whose requests all begin at once and take so many events for their eight tokens."""
    results = [
        result(0.1, cell=THREE, token_s=tuple(0.1 + STEP_S * i for i in range(count)))
        for count in events
    ]
    return wave(THREE, Gait.HELD, results)


def test_sizes_are_those_between_the_ends():
    """A batch size was run if two requests ended in different steps."""
    assert decoding(ending(4, 6, 8)).sizes == {3, 2, 1}
    assert decoding(ending(4, 4, 8)).sizes == {3, 1}
    assert decoding(ending(8, 8, 8)).sizes == {3}
    assert decoding(led(cell(1))).sizes == {1}


def test_every_size_must_be_met_twice():
    """One sight of a size may have been luck, and a size that was never met may come next."""
    assert not is_settled([decoding(ending(4, 6, 8))], THREE)
    assert is_settled([decoding(ending(4, 6, 8))] * 2, THREE)
    assert not is_settled([decoding(ending(4, 4, 8))] * 9, THREE)


def test_no_power_of_two_may_lie_among_the_ends():
    """Where contexts grow past a power of two while requests end, it is luck who meets it."""
    across = cell(3, 1020, 8)
    waves = [decoding(ending(4, 6, 8))] * 2
    assert not is_settled(waves, across)

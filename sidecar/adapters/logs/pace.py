"""How long a source waits, and how often it lets the others have their turn."""

from collections.abc import Iterator

AT_ONCE = 256
"""Items between two turns of the event loop: at some microseconds each, a millisecond or two. A
burst that is read in one go would hold up the waves, whose latencies are being measured."""

_PAUSES_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


def pauses_s() -> Iterator[float]:
    """Growing ones, between attempts to have a lost source again; the last is for ever."""
    yield from _PAUSES_S
    while True:
        yield _PAUSES_S[-1]

"""How long a source waits, how often it lets the others have their turn, and how much it takes."""

import time
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


class Allowance:
    """Time that a listener may spend on what strangers send: a share, and a reserve for bursts.

    The same thread answers the probes and stamps the waves. An engine writes some hundred lines a
    second; with nothing but line ends 64 KiB take 0.1 s, and a sender gives gigabytes a second.
    """

    def __init__(self, share: float = 0.2, reserve_s: float = 2.0) -> None:
        self._share = share
        self._reserve_s = reserve_s
        self._left_s = reserve_s
        self._at_s = time.monotonic()

    @property
    def is_spent(self) -> bool:
        """Whether what comes now has to be dropped."""
        now_s = time.monotonic()
        gained_s = self._share * (now_s - self._at_s)
        self._left_s, self._at_s = min(self._reserve_s, self._left_s + gained_s), now_s
        return self._left_s <= 0

    def spend(self, seconds: float) -> None:
        """Of `time.monotonic`: on a machine that gives us little, little is left for probes too."""
        self._left_s -= seconds

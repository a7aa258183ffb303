"""How long this machine kept a process from running: what a bound on its time has to allow for."""

import threading
import time
from typing import Self

_EVERY_S = 0.02
_JITTER_S = 0.05
"""What comes later than this was held up; two busy cores alone make that of most of it."""


class Standstill:
    """A thread that wants to run again and again, and notes when it could not. It sees what holds
    up everybody: a machine that stands still, cores that others have."""

    def __init__(self) -> None:
        self._gaps: list[tuple[float, float]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._stop.is_set():
            due = time.monotonic() + _EVERY_S
            self._stop.wait(_EVERY_S)
            now = time.monotonic()
            if now - due > _JITTER_S:
                self._gaps.append((due, now))

    def lost_s(self, began: float, ended: float) -> float:
        """Of the time between two moments of `time.monotonic`, so much nobody could use."""
        overlaps = (min(ended, end) - max(began, begin) for begin, end in tuple(self._gaps))
        return sum(max(0.0, overlap) for overlap in overlaps)

    def lost_since_s(self, began: float) -> float:
        return self.lost_s(began, time.monotonic())

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)

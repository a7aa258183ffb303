"""Pages that take long to render: one at a time, in a thread, and shared by all who ask."""

from collections.abc import Callable
from typing import Generic, TypeVar

import anyio
from anyio import CapacityLimiter, to_thread

MAX_ASKING = 32
"""Of one page, at the same time. A flood of them may not take the connections that probes need."""

_THREADS = CapacityLimiter(1)
"""Apart from the threads that the conductor needs for its files: a flood may not take those, and
two renderings at once would only share one interpreter."""


_T = TypeVar("_T")


class Page(Generic[_T]):
    """One page of a value; the last rendering is kept for as long as the value is the same."""

    def __init__(self, now: Callable[[], _T], render: Callable[[_T], bytes]) -> None:
        self._now = now
        self._render = render
        self._lock = anyio.Lock()
        self._asking = 0
        self._of: _T | None = None
        self._body = b""

    async def of_now(self) -> bytes | None:
        """The page; None where too many ask for it."""
        if self._asking >= MAX_ASKING:
            return None
        self._asking += 1
        try:
            async with self._lock:
                return await to_thread.run_sync(self._newest, self._now(), limiter=_THREADS)
        finally:
            self._asking -= 1

    def _newest(self, value: _T) -> bytes:
        if value != self._of:
            self._body = self._render(value)
            self._of = value
        return self._body

"""A thread for what may never return: visits to a folder that can be a lost network share."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from threading import Thread
from typing import Any, TypeVar

_T = TypeVar("_T")


class OneThread:
    """Visits to one place, one after another: a place that doesn't answer keeps one thread, not one
    for each that was given up. The thread doesn't keep the process alive."""

    def __init__(self) -> None:
        self._last: Future[Any] | None = None

    async def run(self, act: Callable[[], _T]) -> _T:
        """What `act` gives, or raises, once the visit before has ended.

        Cancelled, it leaves: a visit that has begun goes on, one that waits is not made.
        """
        while self._last is not None and not self._last.done():
            ended = asyncio.Event()
            self._last.add_done_callback(partial(_tell, asyncio.get_running_loop(), ended))
            await ended.wait()
        visit: Future[_T] = Future()
        visit.set_running_or_notify_cancel()  # from here on nobody can cancel it
        self._last = visit
        Thread(target=_make, args=(visit, act), name="visit", daemon=True).start()
        return await asyncio.wrap_future(visit)


def _tell(loop: asyncio.AbstractEventLoop, ended: asyncio.Event, _: Future[Any]) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(ended.set)


def _make(visit: Future[_T], act: Callable[[], _T]) -> None:
    try:
        told = act()
    except BaseException as problem:
        visit.set_exception(problem)
    else:
        visit.set_result(told)

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
        """What `act` gives, or raises, once all visits that were asked for before have ended.

        Cancelled, it leaves: a visit that has begun goes on, one that waits is not made.
        """
        before, visit = self._last, Future[_T]()
        visit.set_running_or_notify_cancel()  # from here on nobody can cancel it
        self._last = visit
        if before is not None:
            try:
                await _ended(before)
            except asyncio.CancelledError:
                # Whoever comes after this one waits for the one before it.
                before.add_done_callback(partial(_pass_on, visit))
                raise
        Thread(target=_make, args=(visit, act), name="visit", daemon=True).start()
        return await asyncio.wrap_future(visit)


async def _ended(visit: Future[Any]) -> None:
    if not visit.done():
        ended = asyncio.Event()
        visit.add_done_callback(partial(_tell, asyncio.get_running_loop(), ended))
        await ended.wait()


def _tell(loop: asyncio.AbstractEventLoop, ended: asyncio.Event, _: Future[Any]) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(ended.set)


def _pass_on(visit: Future[Any], _: Future[Any]) -> None:
    visit.set_result(None)


def _make(visit: Future[_T], act: Callable[[], _T]) -> None:
    try:
        told = act()
    except BaseException as problem:
        visit.set_exception(problem)
    else:
        visit.set_result(told)

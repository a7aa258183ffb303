"""A thread for what may never return: visits to a folder that can be a lost network share."""

import asyncio
import errno
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

_T = TypeVar("_T")

_Visits = SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]


class OneThread:
    """Visits to one place, one after another: a place that doesn't answer keeps one thread, not one
    for each that was given up. The thread doesn't keep the process alive.

    It is started once: each start holds the event loop up until the machine has a core for it.
    """

    def __init__(self) -> None:
        self._visits: _Visits = SimpleQueue()
        self._is_started = False
        weakref.finalize(self, self._visits.put, None)

    async def run(self, act: Callable[[], _T]) -> _T:
        """What `act` gives, or raises, once all visits that were asked for before have ended.

        Cancelled, it leaves: a visit that has begun goes on, one that waits is not made. Raises
        OSError where the system has no thread left for it.
        """
        if not self._is_started:
            try:
                Thread(target=_work, args=(self._visits,), name="visits", daemon=True).start()
            except RuntimeError as problem:
                raise OSError(errno.EAGAIN, "the system has no thread left") from problem
            self._is_started = True
        visit: Future[_T] = Future()
        self._visits.put((visit, act))
        return await asyncio.wrap_future(visit)


def _work(visits: _Visits) -> None:
    while _make_next(visits):
        pass


def _make_next(visits: _Visits) -> bool:
    """False: there will be none."""
    asked = visits.get()
    if asked is None:
        return False
    visit, act = asked
    del asked
    if visit.set_running_or_notify_cancel():
        try:
            told = act()
        except BaseException as problem:
            visit.set_exception(problem)
        else:
            del act  # whoever is told may be the last to need what it belongs to: a lock ends so
            visit.set_result(told)
    return True

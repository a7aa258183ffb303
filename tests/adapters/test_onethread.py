"""Visits to a place that may not answer: in order, and by one thread."""

import gc
import threading

import anyio
import pytest
from anyio import to_thread
from anyio.lowlevel import checkpoint

from sidecar.adapters.onethread import OneThread


class Place:
    """Visits by name; the first is slow."""

    def __init__(self):
        self.thread, self.may_end, self.made = OneThread(), threading.Event(), []

    async def visit(self, *names):
        for name in names:
            await self.thread.run(lambda name=name: self._make(name))

    def _make(self, name):
        if not self.made:
            self.may_end.wait(20)
        self.made.append(name)


@pytest.fixture
def place():
    return Place()


async def test_visits_are_made_in_the_order_they_were_asked_for(place):
    """Who asks just as the place is free does not overtake who has waited for that."""
    async with anyio.create_task_group() as group:
        group.start_soon(place.visit, "first", "third")
        group.start_soon(place.visit, "second")
        await checkpoint()
        place.may_end.set()
    assert place.made == ["first", "second", "third"]


async def test_who_gives_up_waiting_keeps_the_order_of_the_others(place):
    """A visit that was given up is not made, and the next one waits for the one before it."""
    async with anyio.create_task_group() as group:
        group.start_soon(place.visit, "slow")
        await checkpoint()
        with anyio.move_on_after(0.01):
            await place.visit("given up")
        group.start_soon(place.visit, "last")
        await checkpoint()
        assert place.made == []
        place.may_end.set()
    assert place.made == ["slow", "last"]


async def test_the_thread_ends_with_what_it_is_for():
    """And is one for all visits; it holds nobody who asked for one."""
    before = set(threading.enumerate())
    thread = OneThread()
    first, second = [await thread.run(threading.current_thread) for _ in range(2)]
    assert first is second
    assert set(threading.enumerate()) - before == {first}
    del thread
    gc.collect()
    await to_thread.run_sync(first.join, 20)
    assert not first.is_alive()


async def test_a_thread_that_can_not_be_had_is_asked_for_again():
    """A container has a limit of them: that is an error of this visit, and not of the next."""
    thread, made = OneThread(), []
    before = threading.stack_size(1 << 47)  # more than there is
    try:
        with pytest.raises(OSError, match="no thread left"):
            await thread.run(lambda: made.append("first"))
    finally:
        threading.stack_size(before)
    await thread.run(lambda: made.append("second"))
    assert made == ["second"]

"""`GET /ready?wait=60`: requests that wait for the gate, few of them and none too long."""

from collections.abc import Awaitable, Callable

import anyio

from sidecar.core.watch.gate import Snapshot, State

MAX_WAIT_S = 300
"""Longer than that proxies in between give up by themselves."""

MAX_WAITERS = 64
"""Each holds a connection and some 50 kB."""


class Crowded(Exception):
    """MAX_WAITERS wait already."""


class Waiting:
    """Those who wait. `hear` is told of each new snapshot."""

    def __init__(self, snapshot_of_now: Callable[[], Snapshot]) -> None:
        self._now = snapshot_of_now
        self._waiters: set[_Waiter] = set()

    @property
    def count(self) -> int:
        return len(self._waiters)

    def hear(self, snapshot: Snapshot) -> None:
        """Wakes all as soon as there is something to tell them."""
        for waiter in self._waiters:
            if _ends(waiter.view(snapshot)):
                waiter.woken.set()

    async def until_ready(
        self,
        limit_s: float,
        *,
        gone: Callable[[], Awaitable[None]],
        view: Callable[[Snapshot], Snapshot] = lambda snapshot: snapshot,
    ) -> Snapshot:
        """The snapshot once the gate is open, or the sidecar stops, or the time is up.

        `gone` returns when nobody waits for the answer any more; `view` is which of several
        engines' gates is waited for. Raises Crowded at once.
        """
        if len(self._waiters) >= MAX_WAITERS:
            raise Crowded
        waiter = _Waiter(view)
        self._waiters.add(waiter)
        try:
            with anyio.move_on_after(limit_s):
                await self._wait(waiter, gone)
        finally:
            self._waiters.discard(waiter)
        return view(self._now())

    async def _wait(self, waiter: "_Waiter", gone: Callable[[], Awaitable[None]]) -> None:
        async with anyio.create_task_group() as group:

            async def leave() -> None:
                await gone()
                group.cancel_scope.cancel()

            group.start_soon(leave)
            # It may have shut again before this runs: then there is more to wait for.
            while not _ends(waiter.view(self._now())):
                waiter.woken = anyio.Event()
                await waiter.woken.wait()
            group.cancel_scope.cancel()


class _Waiter:
    """One of them, and what wakes it."""

    def __init__(self, view: Callable[[Snapshot], Snapshot]) -> None:
        self.view = view
        self.woken = anyio.Event()


def _ends(snapshot: Snapshot) -> bool:
    return snapshot.is_ready or snapshot.state is State.STOPPING

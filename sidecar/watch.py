"""Watches one boot, beside everything else, and says when and why it can't be counted on."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

import anyio

from sidecar.core.boot import BootMark, Sameness, Sightings, compare
from sidecar.core.health import Health
from sidecar.core.policy import Rhythm

NOT_ONE_ENGINE = (
    "this URL is a load balancer: more than one engine answers behind it; "
    "point the sidecar at one engine"
)


class Probed(Protocol):
    """What the watch asks of an engine. Neither call raises; both have limits of their own."""

    async def health(self) -> Health: ...

    async def mark(self) -> BootMark: ...


@dataclass(frozen=True, slots=True)
class Loss:
    """Why the gate has to be shut."""

    reason: str
    broken: bool
    """A connection broke or was refused: a restart can't be ruled out."""


def is_telling(mark: BootMark) -> bool:
    """Whether /metrics could be read for this mark; without it there is nothing to compare."""
    return mark.process_start_s is not None or mark.requests is not None


class Watch:
    """One boot's watch, for one stretch of time: it ends with a Loss or by cancellation."""

    def __init__(self, engine: Probed, sightings: Sightings, rhythm: Rhythm) -> None:
        self._engine = engine
        self._sightings = sightings
        self._rhythm = rhythm
        self._loss: Loss | None = None
        self._lost = anyio.Event()
        self._look_closer = anyio.Event()

    def report(self, loss: Loss) -> None:
        """End the watch; the first loss is the one that counts."""
        if self._loss is None:
            self._loss = loss
            self._lost.set()

    async def until_lost(
        self, mark: BootMark, on_mark: Callable[[BootMark], Awaitable[None]]
    ) -> Loss:
        """Wait for the end of what left `mark`. `on_mark` is given each newer mark of it."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._watch_health)
            group.start_soon(self._watch_identity, mark, on_mark)
            await self._lost.wait()
            group.cancel_scope.cancel()
        assert self._loss is not None
        return self._loss

    async def stop_if_lost(self) -> None:
        """Ask once more, now, because something broke. If the engine is gone this never returns:
        the loss is reported, and who asked waits to be cancelled."""
        self._judge(await self._engine.health())
        if self._loss is not None:
            await anyio.sleep_forever()

    async def _watch_health(self) -> None:
        late, late_since = 0, 0.0
        due = anyio.current_time()
        while self._loss is None:
            due = max(due + self._rhythm.health_every_s, anyio.current_time())
            await anyio.sleep_until(due)
            asked_at = anyio.current_time()
            health = await self._engine.health()
            if health is not Health.TIMEOUT:
                if late:
                    self._look_closer.set()
                late = 0
                self._judge(health)
                continue
            late_since = late_since if late else asked_at
            late += 1
            late_for_s = anyio.current_time() - late_since
            if late >= self._rhythm.late_answers and late_for_s >= self._rhythm.late_s:
                reason = f"/health has not answered for {late_for_s:.0f} s ({late} times in a row)"
                self.report(Loss(reason, broken=False))

    def _judge(self, health: Health) -> None:
        if health is Health.REFUSED:
            self.report(Loss("the engine is gone: its connection broke or was refused", True))
        elif health is Health.UNAVAILABLE:
            self.report(Loss("the engine says that it is dead: /health answers 5xx", True))

    async def _watch_identity(
        self, mark: BootMark, on_mark: Callable[[BootMark], Awaitable[None]]
    ) -> None:
        while self._loss is None:
            with anyio.move_on_after(self._rhythm.mark_every_s):
                await self._look_closer.wait()
            self._look_closer = anyio.Event()
            later = await self._engine.mark()
            if not is_telling(later):
                continue
            if self._sightings.see(later):
                self.report(Loss(NOT_ONE_ENGINE, broken=False))
            elif compare(mark, later) is Sameness.OTHER:
                self.report(Loss("the engine was restarted", broken=True))
            else:
                # Untold is the same here: no connection broke since the mark before.
                mark = later
                await on_mark(later)

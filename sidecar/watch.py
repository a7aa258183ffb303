"""Watches one boot, beside everything else, and says when and why it can't be counted on."""

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

import anyio

from sidecar.core.policy import Rhythm
from sidecar.core.watch.boot import BootMark, Sameness, Sightings, compare
from sidecar.core.watch.presence import Presence, sentence
from sidecar.core.wire.health import Health

RESTARTED = "the engine was restarted"
UNTOLD = (
    "the engine's connection broke, and it doesn't tell whether it is still the same process "
    "(no /metrics, or no start time and no counters in it)"
)
SILENT = "/health answers, but neither /metrics nor /v1/models nor /version does: no vLLM is there"

NOT_ONE_ENGINE = (
    "this URL is a load balancer: more than one engine answers behind it; "
    "give the address of one engine, or of each in WARMUP_ENGINE_URLS"
)


class Probed(Protocol):
    """What the watch asks of an engine. No call raises, and each has a limit of its own."""

    async def health(self) -> Health: ...

    async def mark(self) -> BootMark: ...

    async def presence(self) -> Presence: ...


_TRIES = 3
"""Marks asked for before it is said that /metrics tells nothing."""

_NOTHING = BootMark()

_HINTS_EVERY_S = 1.0
_SOON_S = 0.5
"""For a second look while the gate still is open, and should be shut within two seconds."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Why the gate has to be shut."""

    reason: str
    broken: bool
    """A connection broke or was refused: a restart can't be ruled out."""
    presence: Presence = Presence.SERVING
    """What the engine does instead of serving, though its process lives."""
    voids: bool = False
    """Other than that, why the verdict no longer holds for the same process."""
    says_dead: bool = False


def is_telling(mark: BootMark) -> bool:
    """Whether /metrics could be read for this mark; without it there is nothing to compare."""
    return mark.process_start_s is not None or mark.requests is not None


async def telling_mark(engine: Probed, rhythm: Rhythm) -> BootMark:
    """A mark; an engine that has just come back may be late with its first /metrics."""
    mark = await engine.mark()
    for _ in range(_TRIES - 1):
        if is_telling(mark):
            break
        await anyio.sleep(rhythm.between_marks_s)
        mark = await engine.mark()
    return mark


class Watch:
    """One boot's watch, for one stretch of time: it ends with a Loss or by cancellation."""

    def __init__(self, engine: Probed, sightings: Sightings, rhythm: Rhythm) -> None:
        self._engine = engine
        self._sightings = sightings
        self._rhythm = rhythm
        self._loss: Loss | None = None
        self._lost = anyio.Event()
        self._look_closer = anyio.Event()
        self._breaks = 0
        self._judged_breaks = 0
        """After so many of them a mark was compared."""
        self._is_late = False
        self._hint = ""
        self._hinted_at_s = -_HINTS_EVERY_S
        self._due = math.inf
        """When `_watch_itself` wants to run next."""

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
            group.start_soon(self._watch_presence)
            group.start_soon(self._watch_itself)
            await self._lost.wait()
            group.cancel_scope.cancel()
        assert self._loss is not None
        return self._loss

    def standstill(self) -> Loss | None:
        """Whether this sidecar itself stood still, also where `until_lost` did not get to say so
        yet: the event loop serves a request that came meanwhile before it looks at its timers."""
        held_up_s = anyio.current_time() - self._due
        if held_up_s < self._rhythm.held_up_s:
            return None
        reason = f"the sidecar itself was held up for {held_up_s:.0f} s; it looks again"
        return Loss(reason, broken=False)

    def hint(self, what: str, *, broke: bool) -> None:
        """Somebody else saw something of the engine's end or start: look now. `broke` says that
        it is sure, so that an engine which can't be told from the one before counts as new."""
        self._hint = what
        # Users can write such lines without end; each look is three requests to the engine.
        if broke or anyio.current_time() - self._hinted_at_s >= _HINTS_EVERY_S:
            self._hinted_at_s = anyio.current_time()
            self._look(broke=broke)

    async def stop_if_lost(self, mark: BootMark) -> None:
        """Ask once more, now, for the life and the identity of what left `mark`. If that is gone
        this never returns: the loss is reported, and who asked waits to be cancelled.

        An answer that is late is waited for, and the watch beside this says when it is too late.
        """
        health = await self._engine.health()
        broke = health.breaks
        while health.is_late:
            await anyio.sleep(self._rhythm.between_marks_s)
            health = await self._engine.health()
            broke = broke or health.breaks
        await self._judge(health)
        if self._loss is None:
            broke = broke or self._breaks > self._judged_breaks
            self._compare(mark, await self._mark(broke=broke), broke=broke)
        if self._loss is None:
            self._judge_presence(await self._engine.presence())
        if self._loss is not None:
            await anyio.sleep_forever()

    async def _watch_health(self) -> None:
        late, late_since, unreached = 0, 0.0, False
        due = anyio.current_time()
        while self._loss is None:
            due = max(due + self._rhythm.health_every_s, anyio.current_time())
            await anyio.sleep_until(due)
            asked_at = anyio.current_time()
            health = await self._engine.health()
            self._is_late = health.is_late
            if not health.is_late:
                if late:
                    self._look(broke=unreached)
                late, unreached = 0, False
                await self._judge(health)
                continue
            late_since = late_since if late else asked_at
            late += 1
            unreached = unreached or health.breaks
            late_for_s = anyio.current_time() - late_since
            if late >= self._rhythm.late_answers and late_for_s >= self._rhythm.late_s:
                reason = f"/health has not answered for {late_for_s:.0f} s ({late} times in a row)"
                self.report(Loss(reason, broken=unreached))

    async def _judge(self, health: Health) -> None:
        if health is Health.REFUSED:
            reason = "the engine is gone: its connection broke or was refused"
            self.report(Loss(self._with_hint(reason), True))
        elif health is Health.VANISHED:
            reason = "the engine is gone: its address takes no connections any more"
            self.report(Loss(self._with_hint(reason), True))
        elif health is Health.UNAVAILABLE:
            # A dead engine's API process still answers what needs no engine; a rescaling one
            # does not.
            presence = Presence.UNTOLD
            with anyio.move_on_after(_SOON_S):
                presence = await self._engine.presence()
            if presence is Presence.RESCALING:
                self._judge_presence(presence)
                return
            reason = "the engine says that it is dead: /health answers 5xx"
            self.report(Loss(self._with_hint(reason), True, says_dead=True))
        elif health is Health.RECONNECTED:
            self._look(broke=True)

    def _judge_presence(self, presence: Presence) -> None:
        if presence.is_away:
            self.report(Loss(sentence(presence), broken=False, presence=presence))

    async def _watch_presence(self) -> None:
        while self._loss is None:
            await anyio.sleep(self._rhythm.presence_every_s)
            self._judge_presence(await self._engine.presence())

    async def _watch_itself(self) -> None:
        """A container that was paused, a core that others held: nobody looked meanwhile. Without
        this the gate stood open for up to two seconds more, whatever had become of the engine."""
        while self._loss is None:
            self._due = anyio.current_time() + self._rhythm.health_every_s
            await anyio.sleep_until(self._due)
            standstill = self.standstill()
            if standstill is not None:
                self.report(standstill)

    def _with_hint(self, reason: str) -> str:
        return f"{reason} ({self._hint})" if self._hint else reason

    def _look(self, *, broke: bool) -> None:
        """Have the identity looked at now, and not when it is due."""
        self._breaks += broke
        self._look_closer.set()

    async def _watch_identity(
        self, mark: BootMark, on_mark: Callable[[BootMark], Awaitable[None]]
    ) -> None:
        silent = 0
        while self._loss is None:
            with anyio.move_on_after(self._rhythm.mark_every_s):
                await self._look_closer.wait()
            self._look_closer = anyio.Event()
            breaks = self._breaks
            broke = breaks > self._judged_breaks
            later = await self._mark(broke=broke)
            silent = silent + 1 if later == _NOTHING and not self._is_late else 0
            if silent >= self._rhythm.late_answers:
                self.report(Loss(SILENT, broken=True))
            elif is_telling(later) and self._sightings.see(later, after_break=broke):
                self.report(Loss(NOT_ONE_ENGINE, broken=False))
            elif self._compare(mark, later, broke=broke) and later != _NOTHING:
                self._hint = ""
                if is_telling(later):
                    mark = later
                    await on_mark(later)
            self._judged_breaks = breaks

    async def _mark(self, *, broke: bool) -> BootMark:
        """After a break one that tells nothing is no answer yet."""
        if broke:
            return await telling_mark(self._engine, self._rhythm)
        return await self._engine.mark()

    def _compare(self, mark: BootMark, later: BootMark, *, broke: bool) -> bool:
        """Whether `later` may count as the same boot's; else the loss is reported."""
        sameness = compare(mark, later)
        if sameness is Sameness.OTHER:
            self.report(Loss(self._with_hint(RESTARTED), broken=True))
        elif sameness is Sameness.UNTOLD and broke:
            self.report(Loss(self._with_hint(UNTOLD), broken=True))
        # Where no connection broke since the mark before, untold is the same.
        return self._loss is None

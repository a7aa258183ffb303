"""Waits for the engine, and tells a boot that is back from a new one."""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Protocol

import anyio

from sidecar.core.errors import EngineRejected, EngineUnavailable
from sidecar.core.facts import EngineFacts
from sidecar.core.policy import Rhythm
from sidecar.core.watch.boot import BootMark, Sameness, Sightings, compare
from sidecar.core.watch.presence import Presence, sentence
from sidecar.core.wire.health import Health
from sidecar.watch import NOT_ONE_ENGINE, Probed, is_telling, telling_mark

log = logging.getLogger(__name__)

_MARKS = 3
"""Marks taken before a new boot is believed: two engines behind one address answer in turn."""
_MARKS_AFTER_SEVERAL = 6


class Learned(Probed, Protocol):
    """What the search asks of an engine."""

    async def learn(self) -> EngineFacts:
        """Raises EngineUnavailable, or EngineRejected where something is there and says no."""
        ...


@dataclass(frozen=True, slots=True)
class Found:
    """An engine that answers. `facts` is None where `mark` is of the boot that was known."""

    mark: BootMark
    facts: EngineFacts | None
    presence: Presence = Presence.SERVING
    """What it did instead of serving while it was waited for, if anything; the deepest of it."""
    was_several: bool = False
    """More than one engine answered meanwhile: another identity means no restart."""


class Search:
    """Asks until an engine is there. What it was told last goes to `tell`, each time."""

    def __init__(
        self,
        engine: Learned,
        sightings: Sightings,
        rhythm: Rhythm,
        tell: Callable[[EngineUnavailable, float], None],
        on_away: Callable[[Presence], Awaitable[None]],
    ) -> None:
        """`on_away` is told at once of an engine that lives and does not serve."""
        self._engine = engine
        self._sightings = sightings
        self._rhythm = rhythm
        self._tell = tell
        self._on_away = on_away
        self._saw_several = False
        self._bug = ""
        self._presence = Presence.SERVING

    async def find(self, known: BootMark | None, *, broken: bool) -> Found:
        """Wait, without end, for an engine. `tell` is given the problem and the seconds waited.

        `known` is the mark of the boot that was lost; `broken` says that its connection broke,
        so that a boot which can't be told from it counts as new.
        """
        began_at = anyio.current_time()
        self._presence, was_several = Presence.SERVING, False
        while True:
            health = await self._engine.health()
            broken = broken or health.breaks
            try:
                await self._must_serve(health)
                found = await self._try(health, known, broken)
                return replace(found, presence=self._presence, was_several=was_several)
            except EngineUnavailable as problem:
                trouble = problem
                was_several = was_several or self._saw_several
            except Exception as bug:
                # Shut and tried again, as with everything else: a gate must outlive a bug.
                if repr(bug) != self._bug:
                    log.exception("a bug: the engine can't be looked at")
                self._bug = repr(bug)
                trouble = EngineUnavailable(f"a bug of the sidecar: {bug!r}; see its log")
            self._tell(trouble, anyio.current_time() - began_at)
            await anyio.sleep(self._rhythm.search_every_s)

    async def _must_serve(self, health: Health) -> None:
        """Raises EngineUnavailable while a living engine sleeps, is paused or is rescaled."""
        if health.is_late or health in (Health.REFUSED, Health.VANISHED):
            return
        presence = await self._engine.presence()
        if not presence.is_away:
            return
        if self._presence is Presence.SERVING or not presence.keeps_kernels:
            self._presence = presence
        await self._on_away(presence)
        raise EngineUnavailable(sentence(presence))

    async def _try(self, health: Health, known: BootMark | None, broken: bool) -> Found:
        if health.is_up and known is not None and not self._saw_several:
            mark = await telling_mark(self._engine, self._rhythm)
            several = self._is_another(mark, after_break=broken)
            sameness = Sameness.OTHER if several else compare(known, mark)
            if sameness is Sameness.SAME or (sameness is Sameness.UNTOLD and not broken):
                return Found(mark, facts=None)
            self._saw_several = several
        before = await self._engine.mark() if health.is_up else BootMark()
        if self._is_another(before, after_break=broken):
            self._saw_several = True
        facts = await self._engine.learn()
        if not health.is_up:
            # Asked all the same: a wrong key or model is said while the engine still starts.
            health = await self._engine.health()
            if not health.is_up:
                raise EngineUnavailable(
                    f"the engine is not up yet: /health is {health}; wait, or see its log"
                )
            return await self._try(health, known, broken)
        mark = await self._one_identity(broken)
        if compare(before, mark) is Sameness.OTHER:
            raise EngineUnavailable("the engine was restarted while it was asked what it is")
        return Found(mark, facts)

    def _is_another(self, mark: BootMark, *, after_break: bool) -> bool:
        """Whether this mark shows that more than one engine answers here."""
        return is_telling(mark) and self._sightings.see(mark, after_break=after_break)

    async def _one_identity(self, broken: bool) -> BootMark:
        """The mark of the one engine that is there. Raises EngineRejected if there are several."""
        mark = await telling_mark(self._engine, self._rhythm)
        several = self._is_another(mark, after_break=broken)
        for _ in range((_MARKS_AFTER_SEVERAL if self._saw_several else _MARKS) - 1):
            if not is_telling(mark) or several:
                break
            await anyio.sleep(self._rhythm.between_marks_s)
            later = await self._engine.mark()
            if is_telling(later):
                several = self._sightings.see(later) or compare(mark, later) is Sameness.OTHER
                mark = later
        self._saw_several = several
        if several:
            raise EngineRejected(NOT_ONE_ENGINE)
        return mark

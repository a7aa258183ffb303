"""The engine as the conductor sees it, with what its log tells of its start."""

from dataclasses import dataclass

from sidecar.adapters.engine import Engine
from sidecar.adapters.evidence import Evidence
from sidecar.core.facts import EngineFacts
from sidecar.core.logs.facts import from_log
from sidecar.core.watch.boot import BootMark
from sidecar.core.watch.presence import Presence
from sidecar.core.wire.health import Health


@dataclass(frozen=True, slots=True)
class LoggedEngine:
    """One engine and its log."""

    engine: Engine
    evidence: Evidence

    async def health(self) -> Health:
        """One look at /health. Never raises."""
        return await self.engine.health()

    async def mark(self) -> BootMark:
        """What tells this boot from another. Never raises."""
        return await self.engine.mark()

    async def presence(self) -> Presence:
        """Whether it serves. Never raises."""
        return await self.engine.presence()

    async def learn(self) -> EngineFacts:
        """What the engine answers, and where it is silent what its start lines told.

        Raises what `Engine.learn` does.
        """
        facts = await self.engine.learn()
        return from_log(facts, await self.evidence.adopt(self.engine.touch))

"""Whether the engine serves, asked over HTTP: three small answers every two seconds at most, of one
that is paused twice as many.

/is_sleeping and /is_paused are there in vLLM's development mode only, which is also the only way
to put a server to sleep or to pause it over HTTP. /version tells a rescaling server, which answers
503 to it as to everything else.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable

import httpx

from sidecar.adapters.answer import Answer
from sidecar.core.watch.presence import Presence, of_sleep
from sidecar.core.wire.metrics import Scrape

_RESCALING = 503


class PresenceLine:
    """Asks one engine. It remembers that a path wasn't there, until `forget`."""

    def __init__(
        self,
        get: Callable[[str], Awaitable[Answer]],
        scrape: Callable[[], Awaitable[Scrape | None]],
    ) -> None:
        """`get` raises httpx.HTTPError where there is no answer."""
        self._get = get
        self._scrape = scrape
        self._has_flags = True
        self.saw_asleep = False
        """By the last scrape, whoever took it."""

    def forget(self) -> None:
        """Another boot may have other paths."""
        self._has_flags = True

    async def ask(self) -> Presence:
        """Never raises."""
        try:
            if self._has_flags:
                return await self._by_flags()
            version = await self._get("/version")
        except httpx.HTTPError:
            return Presence.UNTOLD
        if version.status == _RESCALING:
            return Presence.RESCALING
        return await self._by_metrics() if self.saw_asleep else Presence.SERVING

    async def _by_flags(self, *, again: bool = True) -> Presence:
        sleeping, paused = await asyncio.gather(self._get("/is_sleeping"), self._get("/is_paused"))
        if _RESCALING in (sleeping.status, paused.status):
            return Presence.RESCALING
        flags = [_flag(sleeping, "is_sleeping"), _flag(paused, "is_paused")]
        self._has_flags = any(flag is not None for flag in flags)
        if not any(flags):
            return await self._by_metrics() if self.saw_asleep else Presence.SERVING
        # Both say yes to either (vLLM 0.32 v1/engine/core.py, is_sleeping): the metric tells.
        asleep = await self._by_metrics()
        if asleep.is_away:
            return asleep
        if again and asleep is Presence.SERVING:  # paused; or it has just woken up
            return await self._by_flags(again=False)
        return Presence.PAUSED if flags[1] else Presence.ASLEEP

    async def _by_metrics(self) -> Presence:
        scrape = await self._scrape()
        return Presence.UNTOLD if scrape is None else of_sleep(scrape.asleep, scrape.sleep_level)


def _flag(answer: Answer, name: str) -> bool | None:
    try:
        body = json.loads(answer.body) if answer.status == 200 else None
    except (ValueError, RecursionError):
        return None
    flag = body.get(name) if isinstance(body, dict) else None
    return flag if isinstance(flag, bool) else None

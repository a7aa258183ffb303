"""/health over one kept connection, whose breaking tells what no answer does."""

import asyncio
import time
from typing import Any

import httpx

from sidecar.core.wire.health import Health

_MAX_BYTES = 1 << 20
"""Of the body, which is empty."""

_CONNECT_SHARE = 0.8
"""Of the limit: so that a connection that was never made is told from an answer that never came."""


_IDLE_S = 4.0


class HealthLine:
    """Owns its client. An engine that is replaced between two looks breaks the connection, and the
    new one answers the next look as if nothing had been."""

    def __init__(self, client: httpx.AsyncClient, timeout_s: float) -> None:
        self._client = client
        self._limit_s = timeout_s
        self._timeout = httpx.Timeout(timeout_s, connect=_CONNECT_SHARE * timeout_s)
        self._asked_at = 0.0
        self._served = 0
        """Answers that came over the connection of now. Who keeps none open breaks none."""

    async def aclose(self) -> None:
        await self._client.aclose()

    async def ask(self) -> Health:
        """One look. Never raises."""
        asked_at = time.monotonic()
        # After a pause the connection may have been closed for idleness (vLLM: after 5 s).
        served = self._served if asked_at - self._asked_at < _IDLE_S else 0
        self._asked_at = asked_at
        try:
            try:
                status, connected = await self._look()
            except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
                # A kept connection may be closed just as it is used again.
                status, connected = await self._look()
        except (httpx.ConnectTimeout, httpx.PoolTimeout) as late:
            self._served = 0
            is_ours = isinstance(late, httpx.PoolTimeout)  # the look before is still waiting
            return Health.TIMEOUT if is_ours else Health.UNREACHED
        except (httpx.TimeoutException, TimeoutError):
            self._served = 0  # the connection is given up, and by us
            return Health.TIMEOUT
        except httpx.HTTPError:
            self._served = 0
            return Health.REFUSED
        if status >= 500:
            return Health.UNAVAILABLE
        return Health.RECONNECTED if connected and served > 1 else Health.UP

    async def _look(self) -> tuple[int, bool]:
        """The status, and whether a connection had to be made for it."""
        connected = False

        async def trace(event: str, _: dict[str, Any]) -> None:
            nonlocal connected
            connected = connected or event == "connection.connect_tcp.started"

        async with (
            asyncio.timeout(self._limit_s),
            self._client.stream(
                "GET", "health", timeout=self._timeout, extensions={"trace": trace}
            ) as answer,
        ):
            read = 0
            async for piece in answer.aiter_raw():
                read += len(piece)
                if read > _MAX_BYTES:
                    break
        announced = "close" in answer.headers.get("connection", "").lower()
        self._served = 0 if announced else 1 if connected else self._served + 1
        return answer.status_code, connected

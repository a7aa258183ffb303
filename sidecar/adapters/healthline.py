"""/health over one kept connection, whose breaking tells what no answer does."""

import asyncio
import socket
import ssl
import time
from typing import Any

import httpx

from sidecar.core.wire.health import Health

_MAX_BYTES = 1 << 20
"""Of the body, which is empty."""

_CONNECT_SHARE = 0.8
"""Of the limit: so that a connection that was never made is told from an answer that never came."""

_IDLE_S = 4.0
"""Between two looks, at most, for the kept connection's end to mean anything."""

_CONNECT_AGAIN_S = 2.0
"""For a connection in place of one that broke: Linux sends its first packet twice in that time."""

_WITNESS = (
    ("SO_KEEPALIVE", socket.SOL_SOCKET, 1),
    ("TCP_KEEPIDLE", socket.IPPROTO_TCP, 1),
    ("TCP_KEEPINTVL", socket.IPPROTO_TCP, 1),
    ("TCP_USER_TIMEOUT", socket.IPPROTO_TCP, 2500),
)
"""The kernel of a process that is too busy to read acknowledges all the same, however full the
backlog is; at an address where nobody is left nothing does. So the kept connection is broken by the
kernel here when nothing was acknowledged for 2.5 s: of a look, or of the probes while an answer is
waited for, of which two have to be lost."""


def line_transport(tls: ssl.SSLContext) -> httpx.AsyncHTTPTransport:
    """One connection, which breaks when the engine's address is gone (on Linux)."""
    known = [(name, level, value) for name, level, value in _WITNESS if hasattr(socket, name)]
    return httpx.AsyncHTTPTransport(
        verify=tls,
        trust_env=False,
        limits=httpx.Limits(max_connections=1),
        socket_options=[(level, getattr(socket, name), value) for name, level, value in known],
    )


class HealthLine:
    """Owns its client. An engine that is replaced between two looks breaks the connection, and the
    new one answers the next look as if nothing had been."""

    def __init__(self, client: httpx.AsyncClient, timeout_s: float) -> None:
        self._client = client
        self._limit_s = timeout_s
        self._connect_s = _CONNECT_SHARE * timeout_s
        self._asked_at = 0.0
        self._served = 0
        """Answers that came over the connection of now. Who keeps none open breaks none."""
        self._was_taken = False
        """Whether a connection that the last look had to make was made. Of TLS httpx says that it
        could not connect, though it is the engine that is late with its part of the handshake."""

    async def aclose(self) -> None:
        await self._client.aclose()

    async def ask(self) -> Health:
        """One look. Never raises."""
        asked_at = time.monotonic()
        # After a pause the connection may have been closed for idleness (vLLM: after 5 s).
        served = self._served if asked_at - self._asked_at < _IDLE_S else 0
        self._asked_at = asked_at
        again_s = min(self._connect_s, _CONNECT_AGAIN_S)
        broke = served > 1  # where a connection has to be made now, the kept one is no more
        try:
            try:
                status, connected = await self._look(again_s if broke else self._connect_s)
            except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
                # A kept connection may be closed just as it is used again.
                broke = True
                status, connected = await self._look(again_s)
        except httpx.PoolTimeout:  # the look before is still waiting
            self._served = 0
            return Health.TIMEOUT
        except httpx.ConnectTimeout:
            self._served = 0
            if self._was_taken:
                return Health.TIMEOUT
            return Health.VANISHED if broke else Health.UNREACHED
        except (httpx.TimeoutException, TimeoutError):
            self._served = 0  # the connection is given up, and by us
            return Health.TIMEOUT
        except httpx.HTTPError:
            self._served = 0
            return Health.REFUSED
        if status >= 500:
            return Health.UNAVAILABLE
        return Health.RECONNECTED if connected and served > 1 else Health.UP

    async def _look(self, connect_s: float) -> tuple[int, bool]:
        """The status, and whether a connection had to be made for it."""
        timeout = httpx.Timeout(self._limit_s, connect=connect_s)
        connected = self._was_taken = False

        async def trace(event: str, _: dict[str, Any]) -> None:
            nonlocal connected
            connected = connected or event == "connection.connect_tcp.started"
            self._was_taken = self._was_taken or event == "connection.connect_tcp.complete"

        async with (
            asyncio.timeout(self._limit_s),
            self._client.stream(
                "GET", "health", timeout=timeout, extensions={"trace": trace}
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

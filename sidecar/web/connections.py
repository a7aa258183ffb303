"""Who may stay connected to the port, and for how long: uvicorn knows no limit on either.

Probes are new connections that ask at once and are answered within milliseconds. So whoever is
connected and has no request under way makes room for the next: the longest connected first.
Bounded are the connections, the bytes that each sends and leaves unread, and the time for each
request's head and for taking an answer.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

log = logging.getLogger(__name__)

_TELL_EVERY_S = 60.0


class Why(StrEnum):
    """Why a connection was closed on whoever held it."""

    IDLE = "idle"
    """No whole head of a request within the time."""
    CROWD = "crowd"
    """Another one needed its place."""
    TOO_MUCH = "too_much"
    """More bytes than any honest request has."""
    SLOW = "slow"
    """It did not take its answer."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the port bears."""

    connections: int = 256
    """Waiters hold at most 64 of them, the two long pages 32 each."""
    head_s: float = 10.0
    """From the beginning, or the last answer, to the end of the next request's head."""
    take_s: float = 10.0
    """For taking what doesn't fit into the kernel's buffers."""
    in_bytes: int = 32 << 10
    """Of one request; a probe has a few hundred."""
    out_bytes: int = 32 << 20
    """Of all answers that are not taken yet; a status page of a thousand cells has two million."""


class Doorman:
    """Holds the list, and counts."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.closed: Counter[str] = Counter({why.value: 0 for why in Why})
        self._inside: set[Connection] = set()
        self._told_at_s = -_TELL_EVERY_S

    def protocol(self) -> Callable[..., asyncio.Protocol]:
        """What uvicorn makes of each connection."""
        return lambda **given: Connection(self, **given)

    def take_in(self, connection: "Connection") -> None:
        """Another one goes, if there is no room; if none may, this one."""
        self._inside.add(connection)
        if len(self._inside) > self.limits.connections:
            others = self._inside - {connection}
            idle = [one for one in others if not one.is_answering]
            stuck = [one for one in others if one.is_stuck]
            oldest = min(idle or stuck or [connection], key=lambda one: one.since_s)
            oldest.close(Why.CROWD)

    def let_go(self, connection: "Connection") -> None:
        self._inside.discard(connection)

    def bound_output(self) -> None:
        """Whoever is stuck longest goes first, while more waits to be taken than may."""
        stuck = sorted((one for one in self._inside if one.is_stuck), key=lambda one: one.stuck_s)
        total = sum(one.unsent_bytes for one in stuck)
        for one in stuck[:-1]:  # the last may be a page that is just being written
            if total <= self.limits.out_bytes:
                return
            total -= one.unsent_bytes
            one.close(Why.SLOW)

    def count(self, why: Why, now_s: float) -> None:
        self.closed[why] += 1
        if now_s - self._told_at_s >= _TELL_EVERY_S:
            self._told_at_s = now_s
            log.info("closed connections: %s", dict(self.closed))


class Connection(H11Protocol):
    """One of them. h11 takes one request at a time and bounds its head."""

    def __init__(self, doorman: Doorman, **given: Any) -> None:
        super().__init__(**given)
        self._doorman = doorman
        self._limits = doorman.limits
        self._received = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._take_timer: asyncio.TimerHandle | None = None
        self.since_s = self.stuck_s = 0.0

    @property
    def is_answering(self) -> bool:
        """A request is under way."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def is_stuck(self) -> bool:
        """Its other end does not take what was written."""
        return self._take_timer is not None

    @property
    def unsent_bytes(self) -> int:
        return self.transport.get_write_buffer_size()

    def close(self, why: Why) -> None:
        """At once, with all that is unsent: an orderly close would wait for it to be taken."""
        self._doorman.count(why, self.loop.time())
        self._leave()
        self.transport.abort()

    # What asyncio and uvicorn call.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()
        self._doorman.take_in(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        if self._received > self._limits.in_bytes:
            self.close(Why.TOO_MUCH)
            return
        super().data_received(data)
        self._stop_head_timer_if_asked()

    def on_response_complete(self) -> None:
        self._received = 0
        self._await_head()
        super().on_response_complete()  # may begin with a request that was sent along
        self._stop_head_timer_if_asked()

    def send_400_response(self, msg: str) -> None:
        # The head was good and what follows is not: what the handler answers has no place any more,
        # and trying to send it would leave a traceback in the log for each such request.
        if self.is_answering:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        try:
            super().send_400_response(msg)
        except h11.LocalProtocolError:  # the answer had begun
            self.transport.abort()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._take_timer is None:
            self.stuck_s = self.loop.time()
            self._take_timer = self.loop.call_later(self._limits.take_s, self.close, Why.SLOW)
        self._doorman.bound_output()

    def resume_writing(self) -> None:
        _stop(self._take_timer)
        self._take_timer = None
        super().resume_writing()

    def _await_head(self) -> None:
        self.since_s = self.loop.time()
        _stop(self._head_timer)
        self._head_timer = self.loop.call_later(self._limits.head_s, self.close, Why.IDLE)

    def _stop_head_timer_if_asked(self) -> None:
        if self.is_answering:
            _stop(self._head_timer)

    def _leave(self) -> None:
        self._doorman.let_go(self)
        _stop(self._head_timer, self._take_timer)


def _stop(*timers: asyncio.TimerHandle | None) -> None:
    for timer in timers:
        if timer is not None:
            timer.cancel()

"""The connections of a syslog server: a few senders that stay, and whoever else comes."""

import asyncio
import time

from sidecar.adapters.logs.inbox import Inbox
from sidecar.adapters.logs.pace import Allowance
from sidecar.core.logs.items import Began, Ended, Gap
from sidecar.core.logs.lines import Cut
from sidecar.core.logs.source import SyslogSpec
from sidecar.core.logs.syslog import SyslogLines, TaggedLine

MAX_CONNECTIONS = 64
_READ_BYTES = 16 << 10
"""A turn's worth: a hundred lines, or at worst 25 ms of empty ones."""
_MAX_ORIGIN = 128
MUTE_S = 5.0
"""A connection without one whole message after that time may be closed for another."""


class Connection(asyncio.BufferedProtocol):
    """One sender. Reads whatever comes, at once: its other end may be the engine's output."""

    def __init__(self, senders: "Senders") -> None:
        self._senders = senders
        self._frames = SyslogLines()
        self._buffer = bytearray(_READ_BYTES)
        self._transport: asyncio.Transport | None = None
        self._is_taken = False
        self.began_s = time.monotonic()
        self.heard_s = self.began_s
        self.origin: str | None = None
        """The tag of its first message; None: there was none yet."""

    @property
    def cut(self) -> Cut:
        return self._frames.cut

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._is_taken = self._senders.take_in(self, transport.get_extra_info("peername"))
        if not self._is_taken:
            transport.abort()

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._is_taken:
            self.heard_s = time.monotonic()
            data, allowance = bytes(self._buffer[:nbytes]), self._senders.allowance
            if allowance.is_spent:
                self._senders.inbox.miss(max(1, data.count(b"\n")))
                self._frames.lose(nbytes)
                return
            began_s = time.monotonic()
            self._put(self._frames.feed(data))
            allowance.spend(time.monotonic() - began_s)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._is_taken:
            return
        self.finish_line()
        self._senders.let_go(self, exc)

    def finish_line(self) -> None:
        """Of a message that was held back for its other pieces no more will come."""
        self._put(self._frames.end())

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _put(self, lines: list[TaggedLine]) -> None:
        if not lines:
            return
        at_s = time.monotonic()
        if self.origin is None:
            self.origin = lines[0].tag[:_MAX_ORIGIN]
            self._senders.inbox.put(Began(at_s, self.origin, why="a sender connected"))
        self._senders.inbox.put_lines(lines, at_s)


class Senders:
    """Who is connected, and who may not be."""

    def __init__(self, spec: SyslogSpec, inbox: Inbox, mute_s: float, allowance: Allowance) -> None:
        self.inbox = inbox
        self.allowance = allowance
        self._mute_s = mute_s
        self._spec = spec
        self._connections: set[Connection] = set()
        self._cut = Cut()
        """Of connections that are gone."""
        self.refused = 0

    @property
    def cut(self) -> Cut:
        cuts = [self._cut, *(connection.cut for connection in self._connections)]
        return Cut(sum(cut.lines for cut in cuts), sum(cut.bytes for cut in cuts))

    def take_in(self, connection: Connection, peer: object) -> bool:
        """Whether it may stay."""
        if isinstance(peer, tuple) and not self._spec.allows(str(peer[0])):
            self.refused += 1
            return False
        if len(self._connections) >= MAX_CONNECTIONS and not self._make_room():
            self.refused += 1
            return False
        self._connections.add(connection)
        return True

    def let_go(self, connection: Connection, problem: Exception | None) -> None:
        self._connections.discard(connection)
        self._cut = Cut(
            self._cut.lines + connection.cut.lines, self._cut.bytes + connection.cut.bytes
        )
        if connection.origin is None:
            return
        at_s = time.monotonic()
        if problem is not None:
            self.inbox.put(Gap(at_s, f"the connection of {connection.origin} broke ({problem})"))
        self.inbox.put(Ended(at_s, connection.origin, "its sender closed the connection"))

    def finish_lines(self, silent_s: float) -> None:
        """Lines that nobody goes on with are given as they are."""
        now_s = time.monotonic()
        for connection in self._connections:
            if now_s - connection.heard_s > silent_s:
                connection.finish_line()

    def close(self) -> None:
        for connection in tuple(self._connections):
            connection.close()

    def _make_room(self) -> bool:
        """Close the oldest connection that has said nothing; False if there is none."""
        now_s = time.monotonic()
        mute = [
            connection
            for connection in self._connections
            if connection.origin is None and now_s - connection.began_s > self._mute_s
        ]
        if not mute:
            return False
        oldest = min(mute, key=lambda connection: connection.began_s)
        self._connections.discard(oldest)
        oldest.close()
        self.refused += 1
        return True

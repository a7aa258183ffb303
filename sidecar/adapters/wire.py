"""One request on one connection of its own, its bytes stamped where they arrive.

A wave needs all its requests at the engine within milliseconds. A shared pool spread 64 requests
over 0.1-0.7 s (`benchmarks/wave.py` measures both). Here the connection is open and everything but
the last few bytes of the body has been written before the gun; letting go is one small write for
each request. The engine can't begin before those bytes, for they end the JSON.
"""

import asyncio
import time
from dataclasses import dataclass

import httptools

from sidecar.adapters.target import Target
from sidecar.core.wire.replies import Ending, Reply
from sidecar.core.wire.sse import Decoder, Kind

HELD_BACK_BYTES = 64
_MAX_HEAD_BYTES = 64 << 10
_DONE_GRACE_S = 0.25
"""After [DONE] nothing more can come; a server that keeps the connection open is not waited for."""


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request as bytes, and what its answer may cost."""

    head: bytes
    body: bytes
    max_answer_bytes: int
    """Above it the connection is given up: an endless stream ends here."""
    streamed: bool = True

    @property
    def before(self) -> bytes:
        """What is written before the gun."""
        return self.head + self.body[:-HELD_BACK_BYTES]

    @property
    def last(self) -> bytes:
        """What is held back for the gun."""
        return self.body[-HELD_BACK_BYTES:]


class Exchange(asyncio.Protocol):
    """One request and its answer. `ended` is done when nothing more will come."""

    def __init__(self, request: Request) -> None:
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._request = request
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._pieces: list[tuple[float, bytes]] = []
        self._received = 0
        self._now_s = 0.0
        self._tail = b""
        self._status: int | None = None
        self._content_type = ""
        self._in_body = False
        self._writable = asyncio.Event()
        self._writable.set()
        self._let_go_s: float | None = None
        self._sent_s: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._grace: asyncio.TimerHandle | None = None
        self._ending: Ending | None = None
        self._problem = ""
        self.ended_s: float | None = None
        self.ended: asyncio.Future[None] = loop.create_future()
        self._early: Decoder | None = None
        self._decodes: asyncio.Future[None] = loop.create_future()

    # What the replay does with it.

    async def prepare(self) -> None:
        """Write all but the last bytes; returns when the socket has taken them."""
        if self._transport is not None and not self.ended.done():
            self._transport.write(self._request.before)
            await self._writable.wait()

    def release(self, timeout_s: float) -> None:
        """Let the request go. Does nothing if the other side has ended the exchange already."""
        self._let_go_s = time.monotonic()
        if self._transport is None or self.ended.done():
            return
        self._timer = self._loop.call_later(timeout_s, self._time_out, timeout_s)
        self._transport.write(self._request.last)
        if self._writable.is_set():
            self._sent_s = time.monotonic()

    def decodes(self) -> asyncio.Future[None]:
        """Done as soon as the answer has a token, or has ended. To be asked for before the release:
        whoever does not ask pays nothing for it."""
        self._early = Decoder()
        return self._decodes

    def abort(self) -> None:
        """Close the connection at once. vLLM then drops the request (0.33 with_cancellation)."""
        self._end(Ending.CLOSED, "given up")
        if self._transport is not None:
            self._transport.abort()

    @property
    def let_go_s(self) -> float:
        """Just before the last byte went to the socket."""
        return self.sent_s if self._let_go_s is None else self._let_go_s

    @property
    def sent_s(self) -> float:
        """When the last byte went to the socket; of a request that never went, when it was due."""
        return self._sent_s or self._let_go_s or self.ended_s or time.monotonic()

    @property
    def peer(self) -> str | None:
        """The IP address of the other side."""
        peer = None if self._transport is None else self._transport.get_extra_info("peername")
        return peer[0] if isinstance(peer, tuple) else None

    def reply(self) -> Reply:
        """What came back."""
        return Reply(
            sent_s=self.sent_s,
            let_go_s=self.let_go_s,
            ending=self._ending or Ending.CLOSED,
            status=self._status,
            content_type=self._content_type,
            pieces=tuple(self._pieces),
            problem=self._problem,
            streamed=self._request.streamed,
        )

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=0)  # pause_writing means: not all of it is out

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()
        if self._let_go_s is not None and self._sent_s is None:
            self._sent_s = time.monotonic()

    def data_received(self, data: bytes) -> None:
        self._now_s = time.monotonic()
        if self.ended.done():
            return
        self._received += len(data)
        if self._received > self._request.max_answer_bytes:
            self._give_up(f"more than {self._request.max_answer_bytes} bytes of answer came back")
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._give_up("it wants to change the protocol")
        except httptools.HttpParserError:
            self._give_up("what came back is no HTTP")
        if not self._in_body and self._received > _MAX_HEAD_BYTES:
            self._give_up(f"more than {_MAX_HEAD_BYTES} bytes of head of an answer came back")

    def connection_lost(self, exc: Exception | None) -> None:
        self._now_s = time.monotonic()
        self._end(Ending.CLOSED, "connection reset" if exc is not None else "connection closed")
        self._writable.set()

    # What httptools calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"content-type":
            self._content_type = value.decode("latin-1").strip().lower()

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()
        self._in_body = True

    def on_body(self, body: bytes) -> None:
        self._pieces.append((self._now_s, body))
        if self._early is not None:
            self._look_early(self._early, body)
        self._tail = (self._tail + body)[-16:]
        if self._grace is None and b"data: [DONE]" in self._tail and self._status == 200:
            self._grace = self._loop.call_later(_DONE_GRACE_S, self._end, Ending.COMPLETE, "")

    def _look_early(self, decoder: Decoder, body: bytes) -> None:
        if any(event.kind is Kind.OUTPUT for event in decoder.feed(body)):
            self._early = None
            self._decodes.set_result(None)

    def on_message_complete(self) -> None:
        if self._status is not None and self._status >= 200:  # 1xx only announces
            self._end(Ending.COMPLETE, "")

    def _give_up(self, problem: str) -> None:
        self._end(Ending.REFUSED, problem)
        if self._transport is not None:
            self._transport.abort()

    def _time_out(self, timeout_s: float) -> None:
        self._end(Ending.TIMEOUT, f"no end of the answer within {timeout_s:g} s")
        if self._transport is not None:
            self._transport.abort()

    def _end(self, ending: Ending, problem: str) -> None:
        if self.ended.done():
            return
        self._ending, self._problem = ending, problem
        self.ended_s = self._pieces[-1][0] if self._grace and self._pieces else time.monotonic()
        for timer in (self._timer, self._grace):
            if timer is not None:
                timer.cancel()
        self.ended.set_result(None)
        if not self._decodes.done():
            self._decodes.set_result(None)
            self._early = None
        self._writable.set()


async def open_exchange(
    target: Target, request: Request, *, address: str | None, timeout_s: float
) -> Exchange:
    """Connect, TLS included. `address` is an IP known to be the engine's, to look up no name again.

    Raises OSError (ssl.SSLError is one) or TimeoutError.
    """
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(timeout_s):
        _, exchange = await loop.create_connection(
            lambda: Exchange(request),
            address or target.host,
            target.port,
            ssl=target.tls,
            server_hostname=target.host if target.tls is not None else None,
        )
    return exchange

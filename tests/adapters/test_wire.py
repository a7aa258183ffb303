"""adapters/wire: when an exchange says that it was let go."""

import asyncio

from sidecar.adapters.wire import Exchange, Request
from sidecar.core.wire.replies import Reading

ANSWER = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
    b'data: {"choices": [{"index": 0, "text": "x"}]}\n\ndata: [DONE]\n\n'
)


class Quick(asyncio.Transport):
    """Its engine has answered before `write` returns, as where it takes the only core."""

    def __init__(self, exchange: Exchange) -> None:
        super().__init__()
        self._exchange = exchange

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if data:
            self._exchange.data_received(ANSWER)
            self._exchange.connection_lost(None)


async def test_an_answer_that_comes_before_the_stamp_is_not_too_quick() -> None:
    """A time to first token counts from before the write: the engine that it wakes may have the
    core until its token is there, and one such time too short would make all later ones slow."""
    exchange = Exchange(Request(b"", b"x", 10_000))
    exchange.connection_made(Quick(exchange))
    exchange.release(5.0)
    await exchange.ended
    reply = exchange.reply()
    reading = Reading(reply, release_s=reply.sent_s)
    for piece in reply.pieces:
        reading.feed(*piece)
    result = reading.result()
    assert result.first_s is not None
    assert result.first_s <= result.sent_s
    assert result.ttft_s is not None
    assert result.ttft_s > 0

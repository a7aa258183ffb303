"""A relay between the sidecar and an engine: several engines behind one address, strangers' answers
on some paths, connections that are cut or never answered."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


class Relay:
    """Each connection goes to the next of `ports`. `answers` has, by path, the raw bytes (or a
    sequence of them, without end if it has none) that are sent instead of the engine's answer."""

    def __init__(self, *ports: int) -> None:
        self.ports = list(ports)
        self.answers: dict[str, object] = {}
        self.asked: set[str] = set()
        """Paths that were answered so."""
        self.stalls = False
        self.url = ""
        self.connections = 0
        self._turn = itertools.count()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def cut(self) -> None:
        """Reset every connection; later ones are taken."""
        for writer in self._writers:
            writer.transport.abort()

    def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One that was accepted when all ended, and is made only now, ends too."""
        if self._is_closed:
            writer.transport.abort()
            return
        self._writers.add(writer)
        self.connections += 1
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        port = self.ports[next(self._turn) % len(self.ports)]
        try:
            with suppress(OSError, asyncio.CancelledError):
                await self._relay(reader, writer, port)
        finally:
            writer.transport.abort()
            self._writers.discard(writer)

    async def _relay(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int
    ) -> None:
        engine, up = await asyncio.open_connection("127.0.0.1", port)
        back = asyncio.create_task(_pump(engine, writer))
        try:
            while data := await reader.read(1 << 16):
                while self.stalls:  # noqa: ASYNC110 - until a test says otherwise
                    await asyncio.sleep(0.02)
                answer = self._answer(data)
                if answer is None:
                    up.write(data)
                    await up.drain()
                else:
                    await _send(answer, writer)
        finally:
            back.cancel()
            up.transport.abort()

    def _answer(self, data: bytes) -> object:
        first, _, _ = data.partition(b"\r\n")
        words = first.split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/"):
            return None
        path = words[1].decode("latin-1").partition("?")[0]
        if path in self.answers:
            self.asked.add(path)
        return self.answers.get(path)

    async def close(self) -> None:
        self._is_closed = True
        for writer in self._writers:  # a task that has not begun would not do it
            writer.transport.abort()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=5)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.close()


async def _send(answer: object, writer: asyncio.StreamWriter) -> None:
    pieces = [answer] if isinstance(answer, bytes) else answer
    for piece in pieces:  # type: ignore[attr-defined]
        writer.write(piece)
        await writer.drain()


def reply(status: int, body: bytes = b"", *heads: str, kind: str = "application/json") -> bytes:
    """A whole HTTP answer."""
    lines = (f"HTTP/1.1 {status} x", f"content-type: {kind}", f"content-length: {len(body)}")
    return "\r\n".join([*lines, *heads, "", ""]).encode() + body


@asynccontextmanager
async def relay(*ports: int) -> AsyncIterator[Relay]:
    between = Relay(*ports)
    server = await asyncio.start_server(between.take, "127.0.0.1", 0)
    between.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield between
    finally:
        server.close()
        await between.close()

"""A hand-made HTTP server that answers as it is told, also as no server should."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent.parent / "data"
METRICS = (DATA / "metrics" / "after.vllm-0.32.0.txt").read_bytes()

STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)


@dataclass
class Asked:
    """One request as the server saw it."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    reader: asyncio.StreamReader

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Handler = Callable[[Asked, asyncio.StreamWriter], Awaitable[None]]


def answer(status: int, body: Any = b"", kind: str = "application/json", **headers: str) -> Handler:
    """A plain answer with its length."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()

    async def handle(asked: Asked, writer: asyncio.StreamWriter) -> None:
        extra = "".join(f"{k.replace('_', '-')}: {v}\r\n" for k, v in headers.items())
        writer.write(
            f"HTTP/1.1 {status} x\r\ncontent-type: {kind}\r\ncontent-length: {len(data)}\r\n"
            f"{extra}\r\n".encode()
            + data
        )

    return handle


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked answer."""
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def event(body: Any) -> bytes:
    return b"data: " + (body if isinstance(body, bytes) else json.dumps(body).encode()) + b"\n\n"


def stream(asked: Asked) -> list[bytes]:
    """The events of a well-behaved engine for a request."""
    body = asked.json
    is_chat = "messages" in body
    tokens = body.get("max_completion_tokens") or body.get("max_tokens")
    prompt = len(body["messages"][0]["content"].split()) + 9 if is_chat else len(body["prompt"])
    events: list[Any] = []
    if is_chat:
        events.append({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
    for i in range(tokens):
        finish = "length" if i == tokens - 1 else None
        told = {"delta": {"content": "x"}} if is_chat else {"text": "x"}
        events.append({"choices": [{**told, "finish_reason": finish}]})
    events.append({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": tokens}})
    return [*map(event, events), event(b"[DONE]")]


async def generate(asked: Asked, writer: asyncio.StreamWriter) -> None:
    writer.write(STREAM_HEAD + b"".join(map(chunk, stream(asked))) + b"0\r\n\r\n")


def streams(*parts: bytes, end: bool = True) -> Handler:
    """200 and these bytes as an event stream; without `end` it is cut off."""

    async def handle(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD + b"".join(map(chunk, parts)) + (b"0\r\n\r\n" if end else b""))
        await writer.drain()
        if not end:
            writer.close()

    return handle


async def tokenize(asked: Asked, writer: asyncio.StreamWriter) -> None:
    """A word is a token, and the chat template takes nine."""
    body = asked.json
    text = body["prompt"] if "prompt" in body else body["messages"][0]["content"]
    overhead = 0 if "prompt" in body else 9
    words = [2000 + i for i in range(len(text.split()) + overhead)]
    await answer(200, {"count": len(words), "tokens": words})(asked, writer)


async def hang(asked: Asked, writer: asyncio.StreamWriter) -> None:
    """Say nothing until the client goes away."""
    await asked.reader.read()


@dataclass
class Stub:
    """The running server. `handlers` may be changed at any time; unknown paths are 404."""

    url: str
    handlers: dict[str, Handler]
    asked: list[Asked] = field(default_factory=list)
    connections: int = 0
    open_now: int = 0
    all_closed: asyncio.Event = field(default_factory=asyncio.Event)

    def of(self, path: str) -> list[Asked]:
        return [one for one in self.asked if one.path == path]


def vllm_handlers() -> dict[str, Handler]:
    """A small engine that does what vLLM does."""
    return {
        "/health": answer(200),
        "/v1/models": answer(200, {"data": [{"id": "tiny", "max_model_len": 8192}]}),
        "/version": answer(200, {"version": "0.32.0"}),
        "/metrics": answer(200, METRICS, "text/plain"),
        "/tokenize": tokenize,
        "/v1/completions": generate,
        "/v1/chat/completions": generate,
    }


@asynccontextmanager
async def running(
    handlers: dict[str, Handler] | None = None, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Stub]:
    stub = Stub("", vllm_handlers() | (handlers or {}))
    tasks: dict[asyncio.Task[Any], asyncio.StreamWriter] = {}
    is_closed = False

    def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One that was accepted when all ended, and is made only now, ends too."""
        if is_closed:
            writer.transport.abort()
            return
        stub.connections += 1
        stub.open_now += 1
        task = asyncio.create_task(serve(reader, writer))
        tasks[task] = writer
        task.add_done_callback(tasks.pop)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while (asked := await _read(reader)) is not None:
                stub.asked.append(asked)
                handler = stub.handlers.get(asked.path.partition("?")[0])
                await (handler or answer(404, {"detail": "Not Found"}))(asked, writer)
                await writer.drain()
                if asked.headers.get("connection") == "close":
                    break
        writer.close()
        stub.open_now -= 1
        if not stub.open_now:
            stub.all_closed.set()

    server = await asyncio.start_server(take, "127.0.0.1", 0, ssl=tls, limit=1 << 20)
    port = server.sockets[0].getsockname()[1]
    stub.url = f"http{'s' if tls else ''}://127.0.0.1:{port}"
    try:
        yield stub
    finally:
        is_closed = True
        server.close()
        for task, writer in list(tasks.items()):
            writer.close()  # a task that has not begun would not do it
            task.cancel()
        if tasks:
            await asyncio.wait(list(tasks))
        await server.wait_closed()


async def _read(reader: asyncio.StreamReader) -> Asked | None:
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    method, path, _ = first.split(" ")
    headers = dict(line.lower().split(": ", 1) for line in lines if line)
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Asked(method, path, headers, body, reader)

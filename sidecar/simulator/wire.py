"""The little HTTP that the simulated server needs, on plain ASGI."""

import json
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl

import anyio

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
MAX_BODY_BYTES = 64 * 2**20


class Gone(Exception):
    """The client has closed the connection."""


@dataclass(frozen=True, slots=True)
class Call:
    """One HTTP request, its body read to the end."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes
    target: str
    """As it stands in the request line."""
    client: str


@dataclass(frozen=True, slots=True)
class Reply:
    status: int = 200
    body: bytes = b""
    content_type: str | None = "application/json"
    headers: dict[str, str] = field(default_factory=dict)


def json_reply(content: Any, status: int = 200) -> Reply:
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False)
    return Reply(status, text.encode())


async def read_call(scope: Message, receive: Receive) -> Call:
    """Raises Gone if the client leaves before its body has come."""
    parts = []
    size = 0
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Gone
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > MAX_BODY_BYTES:
            raise Gone
        more = message.get("more_body", False)
    query = scope["query_string"].decode("latin-1")
    raw_path = scope.get("raw_path", scope["path"].encode()).decode("latin-1")
    client = scope.get("client") or ("", 0)
    return Call(
        method=scope["method"],
        path=scope["path"],
        query=dict(parse_qsl(query, keep_blank_values=True)),
        headers={k.decode("latin-1"): v.decode("latin-1") for k, v in scope["headers"]},
        body=b"".join(parts),
        target=f"{raw_path}?{query}" if query else raw_path,
        client=f"{client[0]}:{client[1]}",
    )


class Answer:
    """Sends one response; `on_start` hears of its status with the headers."""

    def __init__(self, send: Send, receive: Receive, on_start: Callable[[str], None]) -> None:
        self._send = send
        self._receive = receive
        self._on_start = on_start

    async def whole(self, reply: Reply) -> None:
        headers = dict(reply.headers)
        headers["content-length"] = str(len(reply.body))
        await self.start(reply.status, reply.content_type, headers)
        await self._send({"type": "http.response.body", "body": reply.body})

    async def start(
        self, status: int, content_type: str | None, headers: dict[str, str] | None = None
    ) -> None:
        named = {"date": formatdate(usegmt=True), "server": "uvicorn", **(headers or {})}
        if content_type is not None:
            named["content-type"] = content_type
        self._on_start(f"{status} {HTTPStatus(status).phrase}")
        await self._send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [(k.encode(), v.encode("latin-1")) for k, v in named.items()],
            }
        )

    async def part(self, body: bytes) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": True})

    async def end(self) -> None:
        await self._send({"type": "http.response.body", "body": b""})

    async def while_connected(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run `work`; it is cancelled when the client leaves, as vLLM's with_cancellation does."""

        async def watch() -> None:
            while (await self._receive())["type"] != "http.disconnect":
                pass
            group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            group.start_soon(watch)
            await work()
            group.cancel_scope.cancel()

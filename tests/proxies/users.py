"""Users of an engine behind a proxy: some who wait for their answer, some who come anyhow."""

import asyncio
import itertools
import json
import math
import random
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

MARK = "?user"
"""In the path of each user's request, so that an engine's access log tells users from waves."""

_LENGTHS = (350, 48, 65)
_LIMIT_S = 60.0
_MOST = 200
"""Requests under way at once: more would only queue, in the test's own process too."""
_AFTER_REFUSAL_S = 0.1
_END_LIMIT_S = 30.0


@dataclass(frozen=True, slots=True)
class Asked:
    """One request as its user saw it. Times are `time.monotonic`."""

    id: str
    began: float
    ended: float
    status: int | None
    """None: no answer at all."""
    ttft_s: float | None
    """To the first event of the stream, if one came."""
    is_whole: bool
    """The stream came to its end."""
    retry_after: str | None = None
    trouble: str | None = None
    """What cut it off."""

    @property
    def is_served(self) -> bool:
        return self.status == 200 and self.is_whole and self.ttft_s is not None


class Users:
    """Send to one URL from the block's begin to its end, on a thread with a loop of its own.

    `closed` of them send, read to the end and send again; beside them one comes every `every_s`
    seconds whatever became of those before, for only who does not wait sees a stall in full.
    """

    def __init__(
        self,
        url: str,
        *,
        name: str = "proxy",
        model: str = "sim",
        closed: int = 2,
        every_s: float = 0.25,
        lengths: tuple[int, ...] = _LENGTHS,
        **fields: object,
    ) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        self.name = name
        self._address, self._host = (parts.hostname, parts.port), parts.netloc
        self._fields = {"model": model, "max_tokens": 6, "ignore_eos": True, "stream": True}
        self._fields |= fields
        self._closed = closed
        self._every_s = every_s
        self._lengths = lengths
        self._numbers = itertools.count()
        self._asked: list[Asked] = []
        self._under_way = 0
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def asked(self) -> tuple[Asked, ...]:
        """Every request that has ended, in the order of their ends."""
        return tuple(self._asked)

    def served_since(self, moment: float) -> list[Asked]:
        return [one for one in self.asked if one.is_served and one.began >= moment]

    def wait_served(self, count: int, *, since: float, limit_s: float = 60.0) -> list[Asked]:
        """Wait until so many requests that began after `since` were served; those."""
        until = time.monotonic() + limit_s
        while len(served := self.served_since(since)) < count:
            assert time.monotonic() < until, (
                f"{self.name}: after {limit_s:.0f} s {len(served)} of {count} were served; "
                f"the last: {self.asked[-5:]}"
            )
            time.sleep(0.05)
        return served

    @property
    def unserved(self) -> list[Asked]:
        return [one for one in self.asked if not one.is_served]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Nobody new comes; who is under way is served to the end."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(_LIMIT_S + _END_LIMIT_S)
        assert not self._thread.is_alive(), "the users did not come to an end"

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._everybody())

    async def _everybody(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(self._closed):
                group.create_task(self._one_after_another())
            due = time.monotonic()
            while not self._stop.is_set():
                if self._under_way < _MOST:
                    group.create_task(self._ask())
                due = max(due + self._every_s, time.monotonic())
                await self._pause(due - time.monotonic())

    async def _one_after_another(self) -> None:
        while not self._stop.is_set():
            asked = await self._ask()
            if not asked.is_served:
                await self._pause(_AFTER_REFUSAL_S)

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stop.wait()
        except TimeoutError:
            pass

    async def _ask(self) -> Asked:
        name = f"user-{self.name}-{next(self._numbers)}"
        self._under_way += 1
        began = time.monotonic()
        seen = _Seen()
        try:
            async with asyncio.timeout(_LIMIT_S):
                await self._exchange(name, seen)
        except (OSError, asyncio.IncompleteReadError, ValueError) as problem:
            seen.trouble = repr(problem)  # what came until then stands there too
        finally:
            self._under_way -= 1
        first = None if seen.first_at is None else seen.first_at - began
        asked = Asked(
            *(name, began, time.monotonic(), seen.status, first, seen.is_whole),
            *(seen.retry_after, seen.trouble),
        )
        self._asked.append(asked)
        return asked

    async def _exchange(self, name: str, seen: "_Seen") -> None:
        prompt = [random.randrange(300, 1500) for _ in range(random.choice(self._lengths))]
        body = json.dumps(self._fields | {"prompt": prompt}).encode()
        head = (
            f"POST /v1/completions{MARK} HTTP/1.1\r\nHost: {self._host}\r\nX-Request-Id: {name}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            "Connection: close\r\n\r\n"
        )
        reader, writer = await asyncio.open_connection(*self._address)
        try:
            writer.write(head.encode() + body)
            await writer.drain()
            first_line = await reader.readline()
            if not first_line:
                raise ConnectionResetError("closed before a status line")
            seen.status = int(first_line.split()[1])
            while (line := await reader.readline()) not in (b"\r\n", b""):
                field, _, value = line.decode("latin-1").partition(":")
                if field.lower() == "retry-after":
                    seen.retry_after = value.strip()
            while line := await reader.readline():
                if line.startswith(b"data: {") and seen.first_at is None:
                    seen.first_at = time.monotonic()
                seen.is_whole = seen.is_whole or line.startswith(b"data: [DONE]")
        finally:
            writer.close()


@dataclass(slots=True)
class _Seen:
    status: int | None = None
    first_at: float | None = None
    is_whole: bool = False
    retry_after: str | None = None
    trouble: str | None = None


def p99(asked: Iterable[Asked]) -> float:
    """The 99th percentile of the first tokens, the next observed one upwards."""
    figures = sorted(one.ttft_s for one in asked if one.ttft_s is not None)
    return figures[math.ceil(0.99 * len(figures)) - 1]


def worst(asked: Iterable[Asked]) -> float:
    return max(one.ttft_s for one in asked if one.ttft_s is not None)

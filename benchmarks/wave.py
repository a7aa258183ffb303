"""How true a wave is: its spread, its stamps, and what it does to the event loop meanwhile.

    python -m benchmarks.wave [--repeat N]

The server is a small asyncio program in a process of its own that notes on the same monotonic
clock when each body was complete and when it wrote each first token, so the truth is known. The
bounds are the project's; a broken one makes the exit code 1.

Why the waves don't go through httpx: a shared pool hands its kept connections out at once and
opens the others while the first requests are being answered, in one thread, behind its own lock.
On two cores (httpx 0.28) the last of 64 bodies left 0.1-0.7 s after the first, and of 256 0.7-1.4
s: the engine was through with its first step by then, and no batch ever formed. Connections opened
beforehand, with all but the last 64 bytes of each body written, spread 64 over 1-2 ms and 256 over
7 ms; the table ends with the ratio of the two in the same run.
"""

import argparse
import asyncio
import http.client
import json
import multiprocessing
import socket
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection

import httpx
import uvicorn

from sidecar.adapters.bodies import Bodies
from sidecar.adapters.engine import Engine
from sidecar.adapters.replay import Replay
from sidecar.core.facts import EngineFacts
from sidecar.core.grid.cells import Cell, Gait, Look
from sidecar.core.grid.plan import Plan
from sidecar.core.judge.pacing import Pace, Pacer
from sidecar.core.results import WaveResult
from sidecar.core.watch.gate import Snapshot, State
from sidecar.web.app import create_app

FIRST_TOKEN_S = 0.05
"""The server's time from a body to its first token."""
GAP_S = 0.01
FACTS = EngineFacts(model="bench")


@dataclass(frozen=True, slots=True)
class Served:
    """What the server knows of one request, on the shared monotonic clock."""

    body_s: float
    first_s: float


# The server, in a process of its own.


async def _serve_one(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, served: dict[str, Served]
) -> None:
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            lines = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if line)
            length = int(lines.get("content-length", "0"))
            body = await reader.readexactly(length)
            body_s = time.monotonic()
            if head.startswith("get /served"):
                await _answer(
                    writer, json.dumps({k: (v.body_s, v.first_s) for k, v in served.items()})
                )
                served.clear()
            elif head.startswith("get"):
                await _answer(writer, "vllm:prompt_tokens_total 0\n")
            else:
                await _stream(writer, body, lines["x-request-id"], body_s, served)
            if lines.get("connection") == "close":
                break
    except (asyncio.IncompleteReadError, OSError):
        pass
    writer.close()


async def _answer(writer: asyncio.StreamWriter, text: str) -> None:
    data = text.encode()
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n")
    writer.write(f"content-length: {len(data)}\r\n\r\n".encode() + data)
    await writer.drain()


async def _stream(
    writer: asyncio.StreamWriter, body: bytes, name: str, body_s: float, served: dict[str, Served]
) -> None:
    tokens = int(body.rpartition(b'"max_tokens": ')[2].partition(b",")[0])
    chunk = _chunk(b'data: {"choices":[{"index":0,"text":"x","finish_reason":null}]}\n\n')
    await asyncio.sleep(body_s + FIRST_TOKEN_S - time.monotonic())
    served[name] = Served(body_s, time.monotonic())
    writer.write(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        + chunk
    )
    for _ in range(tokens - 1):
        await asyncio.sleep(GAP_S)
        writer.write(chunk)
    usage = json.dumps({"choices": [], "usage": {"completion_tokens": tokens}}).encode()
    writer.write(_chunk(b"data: " + usage + b"\n\n") + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
    await writer.drain()


def _chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def _server(ready: Connection) -> None:
    async def serve() -> None:
        served: dict[str, Served] = {}
        server = await asyncio.start_server(
            lambda r, w: _serve_one(r, w, served), "127.0.0.1", 0, limit=1 << 22, backlog=1024
        )
        ready.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(serve())


def _probe(to: Connection, port: int) -> None:
    """A prober in a process of its own: /ready every 10 ms on one connection, until told to end."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    took = []
    while not to.poll(0.01):
        started = time.monotonic()
        connection.request("GET", "/ready")
        connection.getresponse().read()
        took.append(time.monotonic() - started)
    to.send(took)


# The client, and what is measured.


class Together(Pacer):
    """All at once: what is measured is the wire, not the gait."""

    def __init__(self) -> None:
        super().__init__(Plan(cells=()))

    def pace(self, look: Look) -> Pace:
        return Pace()

    def feed(self, wave: WaveResult) -> None:
        pass


@dataclass
class Row:
    """One line of the table."""

    what: str
    worst: float
    bound: float | None
    typical: float | None = None

    @property
    def is_broken(self) -> bool:
        return self.bound is not None and self.worst > self.bound

    def __str__(self) -> str:
        typical = "" if self.typical is None else f"{self.typical:.2f}"
        bound = "" if self.bound is None else f"{self.bound:g}"
        verdict = "" if self.bound is None else "BROKEN" if self.is_broken else "ok"
        return f"{self.what:<62}{typical:>10}{self.worst:>10.2f}{bound:>8}  {verdict}"


def p99(values: Sequence[float]) -> float:
    """The 99th percentile, by rank: of fewer than a hundred values the largest."""
    return sorted(values)[max(0, -(-len(values) * 99 // 100) - 1)]


def row(what: str, seconds: Sequence[float], bound_ms: float | None) -> Row:
    return Row(what, p99(seconds) * 1e3, bound_ms, statistics.median(seconds) * 1e3)


def worst(what: str, seconds: Sequence[float], bound_ms: float) -> Row:
    """A row whose bound holds for the very worst."""
    return Row(what, max(seconds) * 1e3, bound_ms, statistics.median(seconds) * 1e3)


@dataclass
class Lag:
    """How late the loop came back, and how long this thread itself held it."""

    late_s: list[float]
    held_s: list[float]


async def watch_loop(stop: asyncio.Event, lag: Lag, tick_s: float = 0.002) -> None:
    """What a probe would wait, tick by tick."""
    while not stop.is_set():
        due_s, used_s = time.monotonic() + tick_s, time.thread_time()
        await asyncio.sleep(tick_s)
        lag.late_s.append(max(0.0, time.monotonic() - due_s))
        lag.held_s.append(time.thread_time() - used_s)


async def served(url: str) -> dict[str, Served]:
    async with httpx.AsyncClient(trust_env=False) as client:
        told = (await client.get(f"{url}/served")).json()
    return {name: Served(*stamps) for name, stamps in told.items()}


async def waves(url: str, cell: Cell, repeat: int) -> list[WaveResult]:
    """`repeat` waves of a cell; a request that failed ends the benchmark."""
    engine = Engine(url)
    replay = Replay(engine, FACTS, Together(), "bench")
    ran = [(await replay.run([Look(cell, Gait.HELD)]))[0] for _ in range(repeat)]
    await engine.aclose()
    for wave in ran:
        for result in wave.results:
            if result.first_s is None:
                raise SystemExit(f"{cell.id}: {result.outcome} {result.message}")
    return ran


async def spread(
    url: str, concurrency: int, tokens: int, repeat: int, bound_ms: float
) -> list[Row]:
    """First to last body, as the client wrote them and as the server had them whole."""
    written, arrived = [], []
    for _ in range(repeat):
        [wave] = await waves(url, Cell(concurrency, tokens, 2), 1)
        written.append(wave.spread_s)
        bodies = [one.body_s for one in (await served(url)).values()]
        arrived.append(max(bodies) - min(bodies))
    what = f"spread of {concurrency} x {tokens} tokens, ms"
    return [
        row(f"{what}, written", written, bound_ms),
        row(f"{what}, at the server", arrived, None),
    ]


async def stamps(url: str, repeat: int) -> Row:
    """The client's first-token stamp against the moment the server wrote it."""
    errors = []
    await served(url)
    for _ in range(repeat):
        [wave] = await waves(url, Cell(64, 350, 16), 1)
        truth = await served(url)
        for i, result in enumerate(wave.results):
            [told] = [v for name, v in truth.items() if name.endswith(f"-{i}")]
            errors.append(wave.at_s + (result.first_s or 0.0) - told.first_s)
    return row("first token of 64 streams, stamped late by, ms", [abs(e) for e in errors], 5)


async def lag_during(work: Callable[[], Awaitable[object]]) -> Lag:
    """The loop's lag while `work` runs."""
    stop, lag = asyncio.Event(), Lag([], [])
    watcher = asyncio.create_task(watch_loop(stop, lag))
    await work()
    stop.set()
    await watcher
    return lag


async def probed(url: str) -> Row:
    """What a prober waits for /ready while 64 prompts of 8,192 tokens are made, sent and read."""
    snapshot = Snapshot(url=url, state=State.WARMING, since=0.0)
    options = {"log_config": None, "access_log": False, "lifespan": "off", "ws": "none"}
    server = uvicorn.Server(uvicorn.Config(create_app(lambda: snapshot), **options))  # type: ignore[arg-type]
    listener = socket.create_server(("127.0.0.1", 0))
    # asyncio sets it only on sockets made with a protocol number, which these are not; without it
    # a kept connection waits 40 ms for the peer's delayed acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    serving = asyncio.create_task(server.serve([listener]))
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    prober = context.Process(target=_probe, args=(theirs, listener.getsockname()[1]), daemon=True)
    prober.start()
    await asyncio.sleep(1.0)  # the prober's interpreter starts
    await waves(url, Cell(64, 8192, 16), 4)
    ours.send("end")
    took = await asyncio.to_thread(ours.recv)
    prober.join(10)
    server.should_exit = True
    await serving
    return row("/ready during 64 x 8192 tokens, ms", took, 20)


async def pooled(url: str, repeat: int, tokens: int) -> list[float]:
    """The same wave of 64 by one shared httpx client: first to last body written.

    The first wave finds an empty pool, where all connect alike; the ones that count come after it.
    """
    spreads = []
    engine = Engine(url)
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        for number in range(repeat + 1):
            salvo = await Bodies(engine, FACTS, "pool").wave(Cell(64, tokens, 16), number)
            requests = salvo.requests
            written: list[float] = []
            async with asyncio.TaskGroup() as group:
                for i, request in enumerate(requests):
                    group.create_task(post(client, url, request.body, f"pool-{i}", written))
            spreads.append(max(written) - min(written))
    await engine.aclose()
    return spreads[1:]


async def post(
    client: httpx.AsyncClient, url: str, body: bytes, name: str, written: list[float]
) -> None:
    """One streamed request of a pool, its answer read line by line."""

    async def trace(event: str, info: object) -> None:
        if event == "http11.send_request_body.complete":
            written.append(time.monotonic())

    async with client.stream(
        "POST",
        f"{url}/v1/completions",
        content=body,
        headers={"X-Request-Id": name},
        extensions={"trace": trace},
    ) as response:
        async for _ in response.aiter_lines():
            pass


async def measure(url: str, repeat: int) -> list[Row]:
    """Every figure."""
    await waves(url, Cell(64, 350, 2), 1)  # code and sockets of both sides are warm
    await served(url)
    rows = [
        *await spread(url, 64, 350, repeat, 10),
        *await spread(url, 64, 8192, max(3, repeat // 4), 10),
        *await spread(url, 256, 350, max(3, repeat // 2), 30),
        await stamps(url, repeat),
    ]

    async def wide() -> None:
        await waves(url, Cell(64, 8192, 16), 3)

    async def long() -> None:
        engine = Engine(url)
        await Bodies(engine, FACTS, "long").wave(Cell(8, 131_072, 1), 1)
        await engine.aclose()

    idle = await lag_during(lambda: asyncio.sleep(1.0))
    during = await lag_during(wide)
    making = await lag_during(long)
    rows += [
        row("event loop late with nothing to do, ms (others on this machine)", idle.late_s, None),
        row("event loop late during 64 x 8192 tokens, ms", during.late_s, 20),
        row("  held by our own thread between two ticks, ms", during.held_s, 20),
        await probed(url),
        worst("event loop late at most, making 8 x 131072 tokens, ms", making.late_s, 50),
        worst("  held by our own thread at most, ms", making.held_s, 50),
    ]
    await served(url)
    pool = await pooled(url, max(3, repeat // 4), 350)
    rows.append(row("spread of 64 x 350 tokens by one httpx pool, written, ms", pool, None))
    ratio = statistics.median(pool) * 1e3 / max(rows[0].typical or 0.0, 1e-3)
    rows.append(Row("  that is, times ours", ratio, None))
    return rows


def main() -> int:
    """Print the table; 1 if a bound is broken."""
    parser = argparse.ArgumentParser(description="How true a wave is: spread, stamps, event loop.")
    parser.add_argument("--repeat", type=int, default=20, help="waves for each figure")
    repeat = parser.parse_args().repeat
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_server, args=(theirs,), daemon=True)
    process.start()
    try:
        if not ours.poll(30):
            raise SystemExit("the server did not start within 30 s")
        rows = asyncio.run(measure(f"http://127.0.0.1:{ours.recv()}", repeat))
    finally:
        process.terminate()
        process.join(10)
    print(f"{'':<62}{'median':>10}{'p99':>10}{'bound':>8}")
    print(*rows, sep="\n")
    return int(any(one.is_broken for one in rows))


if __name__ == "__main__":
    sys.exit(main())

"""One wave: everything ready, the gun, every answer to its end, what was counted meanwhile."""

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from sidecar.adapters.bodies import Bodies
from sidecar.adapters.engine import Engine
from sidecar.adapters.evidence import Evidence
from sidecar.adapters.wire import Exchange, Request, open_exchange
from sidecar.core.errors import WarmupError
from sidecar.core.facts import EngineFacts
from sidecar.core.grid.cells import Endpoint, Gait, Look
from sidecar.core.judge.pacing import Pace, Pacer
from sidecar.core.logs.evidence import LogEvidence
from sidecar.core.logs.window import Expected
from sidecar.core.results import Outcome, Result, WaveResult
from sidecar.core.wire.metrics import CounterDelta, Scrape, delta
from sidecar.core.wire.replies import Reading

CONNECT_TIMEOUT_S = 10.0
_PREPARE_TIMEOUT_S = 60.0
"""For the bodies to be taken by the engine's socket: 8 x 131,072 tokens are 8 MB."""

_COUNTERS_AGREE_S = 1.0
_COUNTERS_WAITS_S = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3)
"""vLLM counts in its output handler, a few milliseconds after the last byte."""

_PIECES_PER_TICK = 64
"""Pieces of a stream read in one go: about 1 ms."""


class Replay:
    """Runs looks against one boot of an engine, one at a time.

    `nonce` goes into every prompt and request id; it must differ from boot to boot, or an external
    KV store would know the prompts. The pacer is fed here, with every wave.
    """

    def __init__(
        self,
        engine: Engine,
        facts: EngineFacts,
        pacer: Pacer,
        nonce: str,
        *,
        request_timeout_s: float = 900.0,
        evidence: Evidence | None = None,
    ) -> None:
        self._engine = engine
        self._pacer = pacer
        self._bodies = Bodies(engine, facts, nonce)
        self._request_timeout_s = request_timeout_s
        self._evidence = evidence
        self._number = 0
        # A full collection of everything imported takes 45 ms, and would pass for latency of the
        # engine if it fell into a wave: what is there by now stays, and is not looked at again.
        gc.collect()
        gc.freeze()

    async def run(self, look: Look) -> WaveResult:
        """One wave of a look. A request that fails is a Result; nothing is sent twice.

        Cancelling it closes every connection, which makes vLLM drop the requests.
        """
        self._number += 1
        pace = self._pacer.pace(look)
        try:
            requests = await self._bodies.wave(look.cell, self._number)
            plug = pace.plug_tokens and await self._bodies.plug(pace.plug_tokens, self._number)
        except WarmupError as problem:
            return self._unsent(look, str(problem))
        wave = await self._send(look, pace, requests, plug or None)
        self._pacer.feed(wave)
        return wave

    async def _send(
        self, look: Look, pace: Pace, requests: Sequence[Request], plug: Request | None
    ) -> WaveResult:
        exchanges: list[Exchange] = []
        try:
            try:
                await self._open([plug, *requests] if plug else requests, exchanges)
            except TimeoutError:
                return self._unsent(look, "the engine took no connection or no body in time")
            except OSError as problem:
                return self._unsent(look, f"no connection: {problem.strerror or problem}")
            before = await self._engine.scrape()
            ours = exchanges[1:] if plug else exchanges
            async with self._listening(look, plug) as heard:
                release_s = await self._fire(look, pace, exchanges, ours)
                await asyncio.wait([exchange.ended for exchange in exchanges])
        finally:
            for exchange in exchanges:
                exchange.abort()
        results = [await self._read(exchange, release_s) for exchange in exchanges]
        together = ours[1:] if look.gait is Gait.LED else ours
        return WaveResult(
            look=look,
            results=tuple(results[-len(ours) :]),
            spread_s=_spread_s(together),
            took_s=max(exchange.ended_s or release_s for exchange in ours) - release_s,
            at_s=release_s,
            plug=results[0] if plug else None,
            counters=await self._count(before, results),
            log=heard[0] if heard else None,
        )

    @asynccontextmanager
    async def _listening(
        self, look: Look, plug: Request | None
    ) -> AsyncIterator[list[LogEvidence]]:
        """Fences around what runs inside; the list has what stood between them once it is over."""
        heard: list[LogEvidence] = []
        if self._evidence is None:
            yield heard
            return
        window = await self._evidence.begin(self._engine.touch, _expected(look, plug))
        try:
            yield heard
            heard.append(await window.end())
        finally:
            window.drop()

    async def _open(self, requests: Sequence[Request], exchanges: list[Exchange]) -> None:
        """Open a connection for each request, in order, and write all but its end.

        The first connection resolves the name, the others go to the same address.
        """
        address: str | None = None
        for request in requests:
            exchange = await open_exchange(
                self._engine.target, request, address=address, timeout_s=CONNECT_TIMEOUT_S
            )
            exchanges.append(exchange)
            address = exchange.peer
        async with asyncio.timeout(_PREPARE_TIMEOUT_S):
            for exchange in exchanges:
                await exchange.prepare()
                await asyncio.sleep(0)

    async def _fire(
        self, look: Look, pace: Pace, everyone: Sequence[Exchange], ours: Sequence[Exchange]
    ) -> float:
        """Let the requests go at their gait; the release, on the monotonic clock."""
        timeout_s = self._request_timeout_s
        if len(everyone) > len(ours):
            plug = everyone[0]
            plug.release(timeout_s)
            await _until(plug.sent_s + pace.wave_after_s)
        release_s = time.monotonic()
        if look.gait is Gait.LED and len(ours) > 1:
            ours[0].release(timeout_s)
            await _until(ours[0].sent_s + pace.rest_after_s)
            rest = ours[1:]
        else:
            rest = ours
        for exchange in rest:
            exchange.release(timeout_s)
        return release_s

    async def _count(self, before: Scrape | None, results: Sequence[Result]) -> CounterDelta | None:
        """Scrape until the engine has counted what we did, at most a second."""
        if before is None:
            return None
        counted: CounterDelta | None = None
        deadline_s = time.monotonic() + _COUNTERS_AGREE_S
        for wait_s in _COUNTERS_WAITS_S:
            await asyncio.sleep(wait_s)
            counted = delta(before, await self._engine.scrape()) or counted
            if counted is None or _agrees(counted, results) or time.monotonic() > deadline_s:
                break
        return counted

    async def _read(self, exchange: Exchange, release_s: float) -> Result:
        reply = exchange.reply()
        reading = Reading(reply, release_s)
        if reading.is_stream:
            for i, (at_s, data) in enumerate(reply.pieces):
                reading.feed(at_s, data)
                if i % _PIECES_PER_TICK == 0:
                    await asyncio.sleep(0)
        result = reading.result()
        message = self._engine.target.without_key(result.message.encode("utf-8", "replace"))
        return replace(result, message=message.decode())

    @staticmethod
    def _unsent(look: Look, message: str) -> WaveResult:
        failed = Result(Outcome.BROKEN, sent_s=0.0, message=message)
        results = (failed,) * look.cell.concurrency
        return WaveResult(look, results, spread_s=0.0, took_s=0.0, at_s=time.monotonic())


def _expected(look: Look, plug: Request | None) -> tuple[Expected, ...]:
    """The access lines that a wave leaves."""
    counts = {look.cell.variant.endpoint: look.cell.concurrency}
    if plug is not None:
        counts[Endpoint.COMPLETIONS] = counts.get(Endpoint.COMPLETIONS, 0) + 1
    return tuple(Expected(endpoint.path, count) for endpoint, count in counts.items())


async def _until(moment_s: float) -> None:
    await asyncio.sleep(max(0.0, moment_s - time.monotonic()))


def _spread_s(exchanges: Sequence[Exchange]) -> float:
    sent = [exchange.sent_s for exchange in exchanges]
    return max(sent) - min(sent) if sent else 0.0


def _agrees(counted: CounterDelta, results: Sequence[Result]) -> bool:
    """Whether everything of ours is in the counters, be it alone or with what others did."""
    if any(result.outcome is not Outcome.OK for result in results):
        return False
    ours = (
        (counted.requests, len(results)),
        (counted.prompt_tokens, sum(r.prompt_tokens or 0 for r in results)),
        (counted.generation_tokens, sum(r.completion_tokens or 0 for r in results)),
    )
    return all(known is None or known >= own for known, own in ours)

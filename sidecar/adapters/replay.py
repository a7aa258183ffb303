"""One wave, or one on each rank: all made ready, the gun, each answer to its end, the counters."""

import asyncio
import gc
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import cache

from sidecar.adapters.bodies import Bodies
from sidecar.adapters.engine import Engine
from sidecar.adapters.evidence import Evidence
from sidecar.adapters.gun import Loaded, fire
from sidecar.adapters.wire import Exchange, Request, open_exchange
from sidecar.core.errors import WarmupError
from sidecar.core.facts import EngineFacts
from sidecar.core.grid.cells import Endpoint, Look
from sidecar.core.judge.pacing import Pace, Pacer
from sidecar.core.judge.ranks import label_of, own_of
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

_NOT_TAKEN = "the engine took no connection or no body in time"

_PIECES_PER_TICK = 64
"""Pieces of a stream read in one go: about 1 ms."""


@dataclass(frozen=True, slots=True)
class _Order:
    """What one wave is to be."""

    look: Look
    pace: Pace
    requests: Sequence[Request]
    primes: Sequence[Request]
    plug: Request | None

    @property
    def all(self) -> tuple[Request, ...]:
        """The plug first, if there is one."""
        return (*(() if self.plug is None else (self.plug,)), *self.requests)


class Replay:
    """Runs looks against one boot of an engine.

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
        gc.collect()
        _freeze()

    async def run(self, looks: Sequence[Look]) -> tuple[WaveResult, ...]:
        """One wave of each look, all at the same time: they ask different ranks.

        A request that fails is a Result; nothing is sent twice. Cancelling it closes every
        connection, which makes vLLM drop the requests.
        """
        orders = []
        try:
            for look in looks:
                orders.append(await self._order(look))
        except WarmupError as problem:
            return _unsent(looks, _broken(str(problem)))
        waves = await self._send(orders)
        for wave in waves:
            self._pacer.feed(wave)
        return waves

    async def _order(self, look: Look) -> _Order:
        self._number += 1
        pace = self._pacer.pace(look)
        salvo = await self._bodies.wave(look.cell, self._number, pace.more_tokens)
        plug = None
        if pace.plug_tokens:
            plug = await self._bodies.plug(pace.plug_tokens, self._number, look.cell.rank)
        return _Order(look, pace, salvo.requests, salvo.primes, plug)

    async def _send(self, orders: Sequence[_Order]) -> tuple[WaveResult, ...]:
        began_s = time.monotonic()
        primed = await self._prime(orders)
        primed_s = time.monotonic() - began_s
        waves: dict[Look, WaveResult] = {}
        able: list[int] = []
        for i, (order, own) in enumerate(zip(orders, primed, strict=True)):
            failed = next((r for r in own if r.outcome is not Outcome.OK), None)
            if failed is None:
                able.append(i)
            else:  # the fault of its rank, and not of the others
                waves[order.look] = _unsent((order.look,), failed, [own], primed_s)[0]
        if able:
            sent = await self._volley([orders[i] for i in able], [primed[i] for i in able])
            waves |= {wave.look: wave for wave in sent}
        return tuple(waves[order.look] for order in orders)

    async def _volley(
        self, orders: Sequence[_Order], primed: Sequence[tuple[Result, ...]]
    ) -> tuple[WaveResult, ...]:
        looks = [order.look for order in orders]
        exchanges: list[Exchange] = []
        try:
            try:
                await self._open([r for order in orders for r in order.all], exchanges)
            except TimeoutError:
                return _unsent(looks, _broken(_NOT_TAKEN), primed)
            except OSError as problem:
                return _unsent(looks, _broken(_no_connection(problem)), primed)
            before = await self._engine.scrape()
            loaded = _loaded(orders, exchanges)
            async with self._listening(orders) as heard:
                async with asyncio.TaskGroup() as group:
                    guns = [
                        group.create_task(fire(wave, self._request_timeout_s)) for wave in loaded
                    ]
                await asyncio.wait([exchange.ended for exchange in exchanges])
        finally:
            for exchange in exchanges:
                exchange.abort()
        releases = [gun.result() for gun in guns]
        results = [
            [await self._read(exchange, release_s) for exchange in wave.exchanges]
            for wave, release_s in zip(loaded, releases, strict=True)
        ]
        counted = await self._count(before, looks, results)
        log = heard[0] if heard else None
        return tuple(
            WaveResult(
                look=wave.look,
                results=tuple(answers[-len(wave.ours) :]),
                spread_s=_spread_s(wave.together),
                took_s=max(e.ended_s or release_s for e in wave.ours) - release_s,
                at_s=release_s,
                plug=None if wave.plug is None else answers[0],
                counters=counters,
                log=None if log is None else own_of(log, before, wave.look),
                primes=primes,
                more_tokens=wave.pace.more_tokens,
            )
            for wave, release_s, answers, counters, primes in zip(
                loaded, releases, results, counted, primed, strict=True
            )
        )

    async def _prime(self, orders: Sequence[_Order]) -> list[tuple[Result, ...]]:
        """Put the prefixes of the waves into the cache, and wait until that is counted: what the
        engine counts from then on is the waves' own."""
        if not any(order.primes for order in orders):
            return [()] * len(orders)
        before = await self._engine.scrape()
        async with asyncio.TaskGroup() as group:
            ranks = [group.create_task(self._in_turn(order.primes)) for order in orders]
        primed = [rank.result() for rank in ranks]
        await self._count(before, [order.look for order in orders], primed)
        return primed

    async def _in_turn(self, requests: Sequence[Request]) -> tuple[Result, ...]:
        """One after another, so that each is a step of its own in every wave; up to the first
        that fails."""
        results: list[Result] = []
        for request in requests:
            exchanges: list[Exchange] = []
            try:
                await self._open([request], exchanges)
                (exchange,) = exchanges
                exchange.release(self._request_timeout_s)
                await asyncio.wait([exchange.ended])
                results.append(await self._read(exchange, exchange.sent_s))
            except TimeoutError:
                results.append(_broken(_NOT_TAKEN))
            except OSError as problem:
                results.append(_broken(_no_connection(problem)))
            finally:
                for exchange in exchanges:
                    exchange.abort()
            if results[-1].outcome is not Outcome.OK:
                break
        return tuple(results)

    @asynccontextmanager
    async def _listening(self, orders: Sequence[_Order]) -> AsyncIterator[list[LogEvidence]]:
        """Fences around what runs inside; the list has what stood between them once it is over."""
        heard: list[LogEvidence] = []
        if self._evidence is None:
            yield heard
            return
        window = await self._evidence.begin(self._engine.touch, _expected(orders))
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

    async def _count(
        self,
        before: Scrape | None,
        looks: Sequence[Look],
        results: Sequence[Sequence[Result]],
    ) -> list[CounterDelta | None]:
        """For each wave what its rank counted: scrape until that is what we did, at most 1 s."""
        counted: list[CounterDelta | None] = [None] * len(looks)
        if before is None:
            return counted
        deadline_s = time.monotonic() + _COUNTERS_AGREE_S
        for wait_s in _COUNTERS_WAITS_S:
            await asyncio.sleep(wait_s)
            after = await self._engine.scrape()
            if after is None:
                break
            counted = [delta(before, after, engine=label_of(before, look)) for look in looks]
            agree = all(
                one is None or _agrees(one, own) for one, own in zip(counted, results, strict=True)
            )
            if agree or time.monotonic() > deadline_s:
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


@cache
def _freeze() -> None:
    """A full collection of everything imported takes 45 ms, and would pass for latency of the
    engine if it fell into a wave: what is there by now stays, and is not looked at again. Once a
    process: a connection that is frozen and closed later would never be freed.
    """
    gc.freeze()


def _loaded(orders: Sequence[_Order], exchanges: Sequence[Exchange]) -> list[Loaded]:
    """Exchanges were opened in the orders' order."""
    waves, left = [], list(exchanges)
    for order in orders:
        own, left = left[: len(order.all)], left[len(order.all) :]
        plug = own[0] if order.plug is not None else None
        waves.append(Loaded(order.look, order.pace, plug, own[-len(order.requests) :]))
    return waves


def _broken(message: str) -> Result:
    return Result(Outcome.BROKEN, sent_s=0.0, message=message)


def _no_connection(problem: OSError) -> str:
    return f"no connection: {problem.strerror or problem}"


def _unsent(
    looks: Sequence[Look],
    failed: Result,
    primed: Sequence[tuple[Result, ...]] = (),
    took_s: float = 0.0,
) -> tuple[WaveResult, ...]:
    """Nothing of the waves was let go, because of what became of one request, after so long."""
    began_s = time.monotonic() - took_s
    return tuple(
        WaveResult(
            look,
            (replace(failed, token_s=()),) * look.cell.requests,
            spread_s=0.0,
            took_s=took_s,
            at_s=began_s,
            primes=primes,
        )
        for look, primes in zip(looks, primed or [()] * len(looks), strict=True)
    )


def _expected(orders: Sequence[_Order]) -> tuple[Expected, ...]:
    """The access lines that the waves leave."""
    counts: Counter[Endpoint] = Counter()
    for order in orders:
        counts[order.look.cell.variant.endpoint] += len(order.requests)
        counts[Endpoint.COMPLETIONS] += order.plug is not None
    return tuple(Expected(endpoint.path, count) for endpoint, count in counts.items() if count)


def _spread_s(exchanges: Sequence[Exchange]) -> float:
    sent = [exchange.sent_s for exchange in exchanges]
    return max(sent) - min(sent) if sent else 0.0


def _agrees(counted: CounterDelta, results: Sequence[Result]) -> bool:
    """Whether everything of ours is in the counters, be it alone or with what others did."""
    if any(result.outcome is not Outcome.OK for result in results):
        return False
    ours = (
        (counted.requests, sum(r.choices for r in results)),
        (counted.prompt_tokens, sum(r.choices * (r.prompt_tokens or 0) for r in results)),
        (counted.generation_tokens, sum(r.completion_tokens or 0 for r in results)),
    )
    return all(known is None or known >= own for known, own in ours)

"""Special waves on the wire: hits, arrivals and decode batches, by the simulated engine's books."""

import asyncio
from dataclasses import replace

import pytest

from sidecar.adapters.engine import Engine
from sidecar.adapters.replay import Replay
from sidecar.core.grid.cells import Cell, Endpoint, Gait, Look, Variant
from sidecar.core.grid.plan import expand
from sidecar.core.grid.shapes import parse
from sidecar.core.judge.calls import Call
from sidecar.core.judge.pacing import Pace, Pacer
from sidecar.core.judge.passes import Passes, Rest
from sidecar.core.judge.shown import miss
from sidecar.core.judge.validity import examine
from sidecar.core.judge.verdict import Judge
from sidecar.core.results import Outcome
from tests.adapters.stub import Asked, answer, generate, running
from tests.adapters.test_replay import FACTS, FixedPacer, run, short_counting
from tests.adapters.test_replay_sim import FAST, TRIES, bench

__all__ = ["short_counting"]

CHAT = Variant("chat", Endpoint.CHAT)


@pytest.mark.parametrize("variant", [Variant("completions"), CHAT])
async def test_a_prefix_is_in_the_cache_when_the_wave_is_counted(variant: Variant) -> None:
    """Each prompt finds its own whole blocks, by either endpoint; what put them there is over, and
    is not in the wave's counters."""
    async with bench() as on:
        block = on.facts.block_size
        assert block is not None
        prefix = 40 * block
        cell = Cell(2, prefix + 100, 4, variant, prefix_tokens=prefix, least_hit=prefix)
        for _ in range(2):  # another wave has other prompts, or other salts
            wave = await on.run(cell)
            assert [r.cached_tokens for r in wave.results] == [prefix, prefix]
            assert [(r.outcome, r.prompt_tokens) for r in wave.primes] == [(Outcome.OK, prefix)] * 2
            assert wave.counters is not None
            assert (wave.counters.requests, wave.counters.cached_tokens) == (2, 2 * prefix)
            assert examine(wave).invalid_because == ()


async def test_without_a_prefix_cache_it_was_no_hit() -> None:
    """The wave says so, and is no evidence."""
    async with bench(replace(FAST, engine=replace(FAST.engine, prefix_caching=False))) as on:
        assert on.facts.prefix_caching is False
        wave = await on.run(Cell(1, 1000, 2, prefix_tokens=640, least_hit=640))
    assert "the prefix was not in the cache" in examine(wave).invalid_because[0]


async def test_a_prime_has_the_salt_and_the_start_of_its_request() -> None:
    """One after another, before anything of the wave; one token of output and no field of the
    variant."""
    async with running() as stub:
        cell = Cell(2, 50, 4, Variant("hot", fields={"temperature": 0.5}), prefix_tokens=32)
        wave = await run(stub, cell)
        bodies = [one.json for one in stub.of("/v1/completions")]
        ids = [one.headers["x-request-id"] for one in stub.of("/v1/completions")]
    assert len(wave.primes) == 2
    assert ids[:2] == ["warmup-n0nce-1-prime-0", "warmup-n0nce-1-prime-1"]
    for prime, request in zip(bodies[:2], bodies[2:], strict=True):
        assert prime["prompt"] == request["prompt"][:32]
        assert prime["cache_salt"] == request["cache_salt"]
        assert (prime["max_tokens"], "temperature" in prime) == (1, False)
    assert bodies[2]["cache_salt"] != bodies[3]["cache_salt"]


async def test_where_a_prefix_fails_nothing_else_is_sent() -> None:
    """The wave has failed as its prime has, with the engine's words, and took as long as that: what
    fails late may have compiled."""
    refusal = answer(400, {"error": {"message": "no"}})

    async def late(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.2)
        await refusal(asked, writer)

    async with running({"/v1/completions": late}) as stub:
        wave = await run(stub, Cell(2, 50, 4, prefix_tokens=32))
        assert len(stub.of("/v1/completions")) == 1
    assert [(r.outcome, r.status, r.message) for r in wave.results] == [
        (Outcome.HTTP_ERROR, 400, "no")
    ] * 2
    assert wave.took_s >= 0.2


async def test_a_rank_whose_prefix_fails_is_the_only_one_that_fails() -> None:
    """The other's wave is sent: it is not to blame."""
    looks = [Look(Cell(1, 50, 4, prefix_tokens=32, rank=rank), Gait.LED) for rank in (0, 1)]
    async with running() as stub:
        well = stub.handlers["/v1/completions"]
        ill = answer(400, {"error": {"message": "no such rank"}})

        async def completions(asked: Asked, writer: asyncio.StreamWriter) -> None:
            handler = ill if asked.headers["x-data-parallel-rank"] == "1" else well
            await handler(asked, writer)

        stub.handlers["/v1/completions"] = completions
        engine = Engine(stub.url)
        try:
            waves = await Replay(engine, FACTS, FixedPacer(Pace()), "n").run(looks)
        finally:
            await engine.aclose()
    assert [wave.look for wave in waves] == looks
    assert [wave.results[0].outcome for wave in waves] == [Outcome.OK, Outcome.HTTP_ERROR]
    assert waves[1].results[0].message == "no such rank"


@pytest.mark.parametrize("variant", [Variant("completions"), CHAT])
async def test_a_prompt_arrives_while_the_others_decode(variant: Variant) -> None:
    """Its steps hold the decode of each of them, and the wave shows it."""
    async with bench() as on:
        assert on.sim.life is not None
        plan = expand(parse("cells: [{prompt_tokens: 9}]", "f.yaml"), on.facts)
        cell = Cell(3, 40, 60, variant, gaits=(Gait.MIXED,), arriving_tokens=3000)
        pace = Pace(plug_tokens=3 * 2048, wave_after_s=0.01)
        for _ in range(TRIES):
            on.sim.life.engine.steps.clear()
            wave = await on.run(cell, Gait.MIXED, pace)
            assert examine(wave).invalid_because == ()
            if miss(wave, plan, None) is None:
                break
        steps = [s for s in on.sim.life.engine.steps if s.context_requests]
    mixed = [s for s in steps if s.generation_requests]
    assert {s.generation_requests for s in mixed} == {3}
    assert sum(s.context_tokens for s in mixed) == 3000
    assert (3, 120) in [(s.context_requests, s.context_tokens) for s in steps]
    assert wave.f_s is not None
    assert wave.results[-1].first_s is not None
    assert wave.f_s < wave.results[-1].first_s  # from its own release


async def test_the_other_is_sent_when_all_have_a_token() -> None:
    """Not when the first has one: it waits for the slowest, and goes even if one of them fails."""
    slowest = asyncio.Event()

    async def handle(asked: Asked, writer: asyncio.StreamWriter) -> None:
        number = asked.headers["x-request-id"].rpartition("-")[2]
        if number == "1":
            await asyncio.sleep(0.05)
            slowest.set()
            await answer(500, b"")(asked, writer)
            return
        if number == "2":
            assert slowest.is_set()
        await generate(asked, writer)

    async with running({"/v1/completions": handle}) as stub:
        cell = Cell(2, 10, 4, gaits=(Gait.MIXED,), arriving_tokens=70)
        wave = await run(stub, cell, Gait.MIXED)
    ok, failed = Outcome.OK, Outcome.HTTP_ERROR
    assert [r.outcome for r in wave.results] == [ok, failed, ok]
    assert [r.prompt_tokens for r in wave.results] == [10, None, 70]


async def test_more_tokens_are_asked_of_those_that_decode_alone() -> None:
    """What the pace adds is asked for, and stands in the wave."""
    async with running() as stub:
        cell = Cell(2, 10, 4, gaits=(Gait.MIXED,), arriving_tokens=70)
        wave = await run(stub, cell, Gait.MIXED, Pace(more_tokens=5))
        asked = sorted(one.json["max_tokens"] for one in stub.of("/v1/completions"))
    assert (asked, wave.more_tokens) == ([1, 9, 9], 5)
    assert examine(replace(wave, counters=None)).invalid_because == ()


SPECIAL = """
special:
  chunk_crossing: [1]
  cudagraph: true
  prefix_hit:
    - {prefix_tokens: 1000, prompt_tokens: 1350, concurrency: 2}
    - {prefix_tokens: 600, prompt_tokens: 700, variant: chat}
  mixed:
    - {concurrency: 3, arriving_tokens: 3000}
engine: {capture_sizes: [1, 2, 4]}
converge: {floor_s: 2.0}
"""


async def test_a_file_of_special_cells_is_proven_on_an_engine_with_nothing_cold() -> None:
    """From the shapes file to the verdict: every kind is sent, shown, and warm."""
    async with bench(replace(FAST, dev_mode=True)) as on:
        facts = replace(on.facts, capture_sizes=None)
        plan = expand(parse(SPECIAL, "f.yaml"), facts)
        assert (plan.refusal, plan.unfit) == (None, ())
        assert len(plan.cells) == 3 + 3 + 2 + 1
        judge = Judge(plan, facts, parse(SPECIAL, "f.yaml").converge)
        replay = Replay(on.engine, facts, Pacer(plan), "n0nce")
        for _ in range(5):  # what a busy machine kept from being shown is tried again
            passes = Passes(plan, judge, budget_s=60, max_passes=20, seed=1)
            while (step := passes.next(0.0)) is not None:
                assert not isinstance(step, Rest)
                for wave in await replay.run([step]):
                    judge.feed(wave)
            verdict = judge.verdict()
            if verdict.call is Call.WARM:
                break
    assert {c.cell.id: c.reasons for c in verdict.cells if c.reasons} == {}

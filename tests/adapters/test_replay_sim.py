"""Waves against the simulated engine, whose own books say what they were."""

import asyncio
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from sidecar.adapters import evidence as evidence_module
from sidecar.adapters.engine import Engine
from sidecar.adapters.evidence import Evidence
from sidecar.adapters.logs.file import FileLog
from sidecar.adapters.replay import Replay
from sidecar.core.facts import EngineFacts
from sidecar.core.grid.cells import Cell, Drafts, Endpoint, Gait, Look, Variant
from sidecar.core.judge.pacing import Pace
from sidecar.core.logs.source import FileSpec
from sidecar.core.results import Outcome, WaveResult
from sidecar.simulator.faults import Knobs
from sidecar.simulator.model import EngineConfig
from sidecar.simulator.profile import Profile
from sidecar.simulator.server import Simulator, simulator
from tests.adapters.test_replay import FixedPacer

FAST = Profile(
    engine=EngineConfig(
        max_model_len=8192,
        max_num_seqs=32,
        max_num_batched_tokens=2048,
        kv_cache_tokens=65_536,
        prefill_s_per_token=2e-5,
        decode_step_s=0.002,
    ),
    prompt_tokens_details=True,
    rules=(),
)
TRIES = 20
"""Of what a busy machine may break up: a plug prefills for 40 ms, and the wave has to come then."""
THINKING = {"chat_template_kwargs": {"enable_thinking": False}}


@dataclass
class Bench:
    """A running simulator with a client."""

    sim: Simulator
    engine: Engine
    facts: EngineFacts

    async def run(self, cell: Cell, gait: Gait = Gait.LED, pace: Pace | None = None) -> WaveResult:
        pacer = FixedPacer(pace or Pace())
        return (await Replay(self.engine, self.facts, pacer, "n").run([Look(cell, gait)]))[0]


@asynccontextmanager
async def bench(profile: Profile = FAST) -> AsyncIterator[Bench]:
    async with simulator(profile, log=io.StringIO()) as sim:
        engine = Engine(sim.url, api_key=profile.api_key)
        yield Bench(sim, engine, await engine.learn())
        await engine.aclose()


async def test_a_held_wave_shares_one_step() -> None:
    """Behind a plug, four prompts of 350 run as one step of 1400."""
    async with bench() as on:
        assert on.sim.life is not None
        for _ in range(TRIES):
            on.sim.life.engine.steps.clear()
            pace = Pace(plug_tokens=2048, wave_after_s=0.01)
            wave = await on.run(Cell(4, 350, 4), Gait.HELD, pace)
            shapes = [(s.context_requests, s.context_tokens) for s in on.sim.life.engine.steps]
            if (4, 1400) in shapes:
                break
    assert (1, 2048) in shapes
    assert (4, 1400) in shapes
    assert wave.counters is not None
    assert (wave.counters.requests, wave.counters.prompt_tokens) == (5, 2048 + 1400)


async def test_every_length_is_exact_by_both_endpoints() -> None:
    """From one id, and from the template and one, to the limit; nothing comes from a cache."""
    async with bench() as on:
        for variant in (Variant("c"), Variant("chat", Endpoint.CHAT, THINKING)):
            lengths = (1, 2, 8191) if variant.endpoint is Endpoint.COMPLETIONS else (30, 31, 2001)
            for tokens in lengths:
                for _ in range(2):
                    [result] = (await on.run(Cell(1, tokens, 1, variant))).results
                    assert (result.outcome, result.prompt_tokens) == (Outcome.OK, tokens)
                    assert not result.cached_tokens


async def test_an_engine_that_dies_in_a_wave_is_a_result() -> None:
    """Every request of it is broken, and the machinery goes on."""
    async with bench() as on:
        on.sim.turn(Knobs(oom_above_tokens=1000))
        wave = await on.run(Cell(2, 2000, 1), Gait.HELD)
        assert {r.outcome for r in wave.results} == {Outcome.BROKEN}
        assert all(r.message for r in wave.results)


async def test_limits_are_learned_in_dev_mode() -> None:
    """/server_info of the simulator is read as that of vLLM."""
    async with bench(replace(FAST, dev_mode=True, api_key="sekret")) as on:
        assert (on.facts.max_num_seqs, on.facts.max_num_batched_tokens) == (32, 2048)
        [result] = (await on.run(Cell(1, 10, 1))).results
        assert result.outcome is Outcome.OK


async def test_drafts_are_accepted_where_the_engine_speculates() -> None:
    """By both endpoints and already in short prompts: random ids never have one accepted."""
    async with bench(replace(FAST, engine=replace(FAST.engine, draft_tokens=3))) as on:
        assert (on.facts.speculation, on.facts.draft_tokens) == (True, 3)
        for variant, tokens in ((Variant("c"), 40), (Variant("chat", Endpoint.CHAT), 80)):
            wave = await on.run(Cell(2, tokens, 40, variant))
            assert {r.prompt_tokens for r in wave.results} == {tokens}
            assert wave.counters is not None
            assert (wave.counters.accepted_tokens or 0) > 0


@pytest.mark.parametrize("variant", [Variant("c"), Variant("chat", Endpoint.CHAT)])
async def test_a_cell_s_drafts_choose_its_text(variant: Variant) -> None:
    """Of the same variant and length, drafts are accepted in one cell and in the other none."""
    async with bench(replace(FAST, engine=replace(FAST.engine, draft_tokens=3))) as on:
        for drafts in (Drafts.ACCEPTED, Drafts.REJECTED, Drafts.ACCEPTED):
            counted = (await on.run(Cell(2, 80, 40, variant, drafts=drafts))).counters
            assert counted is not None
            assert counted.drafts
            assert bool(counted.accepted_tokens) is (drafts is Drafts.ACCEPTED)


async def test_a_wave_and_its_plug_are_found_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By both endpoints: whole windows, all access lines accounted for, the batch in its steps."""
    monkeypatch.setattr(evidence_module, "FENCE_WAIT_S", 60.0)
    path = tmp_path / "vllm.log"
    profile = replace(FAST, log_iterations=True, jit_monitor_verbose=True)
    with path.open("a") as written:
        async with simulator(profile, log=written) as sim:
            engine = Engine(sim.url)
            evidence = Evidence([("file", FileLog(FileSpec(str(path))))])
            reading = asyncio.create_task(evidence.run())
            facts = await engine.learn()
            assert (await evidence.adopt(engine.touch)).max_num_batched_tokens == 2048
            pacer = FixedPacer(Pace(plug_tokens=2048, wave_after_s=0.01))
            replay = Replay(engine, facts, pacer, "n", evidence=evidence)
            for variant in (Variant("c"), Variant("chat", Endpoint.CHAT, THINKING)):
                for _ in range(TRIES):
                    (wave,) = await replay.run([Look(Cell(4, 350, 4, variant), Gait.HELD)])
                    assert wave.log is not None
                    assert (wave.log.words, wave.log.foreign) == ("complete", 0)
                    assert wave.log.steps is not None
                    steps = wave.log.steps.prefills
                    shapes = [(s.context_requests, s.context_tokens) for s in steps]
                    if (4, 1400) in shapes:
                        break
                assert (1, 2048) in shapes
                assert (4, 1400) in shapes
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            await engine.aclose()

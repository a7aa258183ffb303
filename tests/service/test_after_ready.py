"""A whole sidecar after its gate has opened: escapes, sleep, pause, rescale, and deaths."""

from dataclasses import replace

import anyio
import httpx
import pytest
from anyio import to_thread

from sidecar.adapters import statefiles
from sidecar.adapters.state import IN_FLIGHT, LAST_REPORT
from sidecar.core.learned.proposals import suggested
from sidecar.core.report import from_json
from sidecar.simulator.faults import Knobs
from sidecar.simulator.server import simulator
from tests.patience import until
from tests.service.running import NEVER_HELD_UP, PROFILE, WARM, serving
from tests.service.test_log import VERBOSE, Written

QUICK = replace(
    NEVER_HELD_UP,
    health_every_s=0.1,
    mark_every_s=0.3,
    search_every_s=0.1,
    between_marks_s=0.02,
    presence_every_s=0.1,
    held_every_s=0.2,
)

BOTH = """
cells:
  - {concurrency: 1, prompt_tokens: 900, output_tokens: 2}
  - {concurrency: 1, prompt_tokens: 65, output_tokens: 2}
"""


async def ask(url, tokens):
    """What a user sends: a shape of his own."""
    body = {"model": "sim", "prompt": list(range(1, tokens + 1)), "max_tokens": 2}
    async with httpx.AsyncClient(trust_env=False) as client:
        answer = await client.post(f"{url}/v1/completions", json=body, timeout=60)
    assert answer.status_code == 200


async def test_what_a_user_compiles_is_an_escape_and_what_we_compile_is_none(tmp_path):
    """Counted, shown with its step, added to the report, and a cell to add to the grid is made of
    it; waves of ours never are."""
    path, state = tmp_path / "vllm.log", tmp_path / "state"
    async with (
        simulator(VERBOSE, log=Written(path)) as sim,
        serving(sim.url, rhythm=QUICK, log=f"file://{path}", state_dir=state) as sidecar,
    ):
        await sidecar.until_ready()
        body = (await sidecar.client.get("/status")).json()
        assert any(cell["kernels"] for cell in body["cells"])
        assert body["escapes"] == {"total": 0, "recent": []}
        await ask(sim.url, 17)

        async def is_told():
            nonlocal body
            body = (await sidecar.client.get("/status")).json()
            return body["escapes"]["total"] > 0 and body["escapes"]["recent"][0]["step"]

        await until(is_told)
        page = (await sidecar.client.get("/metrics")).text
        ready = await sidecar.ready()
        report = state / LAST_REPORT

        async def is_reported():
            told = from_json(await to_thread.run_sync(report.read_text))
            cells = [proposal.cell for proposal in suggested(told).proposals]
            is_proposed = any((c.concurrency, c.prompt_tokens) == (1, 17) for c in cells)
            return told.escapes_total == body["escapes"]["total"] and is_proposed

        await until(is_reported)
    first = body["escapes"]["recent"][0]
    assert (first["kernel"], first["process"]) == ("moe_kernel", "EngineCore")
    assert "1 prefills of 17 tokens" in first["step"]
    assert 'warmup_jit_escapes_total{backend="Triton",kernel="moe_kernel"}' in page
    assert ready["ready"]
    assert any("a hole in the declared grid" in warning for warning in ready["warnings"])


async def test_a_forged_start_line_moves_nothing(tmp_path):
    """A user writes into the log that a server starts: open, one boot, facts as they were."""
    path = tmp_path / "vllm.log"
    async with (
        simulator(replace(VERBOSE, rules=()), log=Written(path)) as sim,
        serving(sim.url, rhythm=QUICK, log=f"file://{path}") as sidecar,
    ):
        before = await sidecar.until_ready()
        sim.life.log._api("INFO", "api_utils.py:286", "non-default args: {'max_num_seqs': 1}")
        await ask(sim.url, 17)
        await anyio.sleep(1)
        assert await sidecar.ready() == before


@pytest.mark.parametrize(
    ("away", "back", "reason"),
    [
        (Knobs(sleep_level=1), Knobs(sleep_level=0), "sleeping (level 1)"),
        (Knobs(sleep_level=2), Knobs(sleep_level=0), "sleeping (level 2)"),
        (Knobs(paused=True), Knobs(paused=False), "paused (/pause)"),
        (Knobs(rescaling=True), Knobs(rescaling=False), "it is being rescaled"),
    ],
)
async def test_an_absence_shuts_with_its_reason_and_costs_a_warm_up(away, back, reason):
    """/health says 200 throughout; one boot, other prompts, open again with proof."""
    async with simulator(WARM) as sim, serving(sim.url, rhythm=QUICK) as sidecar:
        before = await sidecar.until_ready()
        sim.turn(away)
        shut = await sidecar.until(lambda body: not body["ready"], limit_s=10)
        assert reason in shut["reasons"][0]
        sim.turn(back)
        after = await sidecar.until_ready()
    assert after["boot"]["number"] == 1
    assert after["boot"]["nonce"] != before["boot"]["nonce"]
    assert after["proven"]


async def test_by_a_setting_a_light_sleep_opens_again_at_once():
    """Nothing is sent."""
    settings = {"rhythm": QUICK, "sleep_keeps_verdict": True}
    async with simulator(WARM) as sim, serving(sim.url, **settings) as sidecar:
        before = await sidecar.until_ready()
        requests = sim.life.generation_requests
        sim.turn(Knobs(sleep_level=1))
        await sidecar.until(lambda body: not body["ready"], limit_s=10)
        sim.turn(Knobs(sleep_level=0))
        after = await sidecar.until_ready()
        assert sim.life.generation_requests == requests
    assert after["boot"] == before["boot"]


async def test_without_development_mode_the_metric_tells_of_a_sleep():
    """Something else than HTTP put it to sleep; /is_sleeping is not there."""
    profile = replace(WARM, dev_mode=False)
    async with simulator(profile) as sim, serving(sim.url, rhythm=QUICK) as sidecar:
        await sidecar.until_ready()
        sim.turn(Knobs(sleep_level=1))
        shut = await sidecar.until(lambda body: not body["ready"], limit_s=10)
        assert "sleeping (level 1)" in shut["reasons"][0]
        sim.turn(Knobs(sleep_level=0))
        assert (await sidecar.until_ready())["boot"]["number"] == 1


async def test_a_cell_that_the_engine_died_on_is_held_back_until_it_is_cleared(tmp_path):
    """The next boot lives; the rest is warmed; `state clear` and a changed engine open the gate."""
    shapes = f"{BOTH}engine: {{max_num_batched_tokens: 32, max_model_len: 1000}}\n"

    async def revive():
        while True:
            await sim.died()
            sim.start()
            await sim.opened()

    async with simulator(replace(PROFILE, rules=())) as sim, anyio.create_task_group() as group:
        sim.turn(Knobs(oom_above_tokens=800))
        group.start_soon(revive)
        async with serving(sim.url, rhythm=QUICK, shapes=shapes, state_dir=tmp_path) as sidecar:
            # The first prompt of a boot is as long as that cell: two boots die.
            body = await sidecar.until(lambda b: b["state"] == "failed", limit_s=60)
            held = [reason for reason in body["reasons"] if "is held back" in reason]
            assert [reason.split("-")[2] for reason in held] == ["p1024", "p900"]
            page = (await sidecar.client.get("/metrics")).text
            assert "warmup_held_cells 2.0" in page
            assert not await to_thread.run_sync((tmp_path / IN_FLIGHT).exists)
            life = sim.life
            assert life.number == 3
            sim.turn(Knobs(oom_above_tokens=0))
            assert await to_thread.run_sync(statefiles.clear, tmp_path)
            ready = await sidecar.until_ready()
            assert sim.life is life, "no other boot was needed"
        group.cancel_scope.cancel()
    assert ready["proven"]

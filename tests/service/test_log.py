"""A whole sidecar that reads its engine's log."""

import io
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from sidecar import running as program
from sidecar.adapters import evidence
from sidecar.core.errors import ExitCode
from sidecar.core.grid.shapes import parse
from sidecar.simulator.rulesfile import parse_rules
from sidecar.simulator.server import simulator
from tests.service.running import PROFILE, QUICK, SHAPES, serving, settings

LOGGED = parse_rules("- {name: moe_kernel, key: [tokens_pow2], cost_s: 0.5, logged: true}", "test")
VERBOSE = replace(
    PROFILE, jit_monitor_verbose=True, log_iterations=True, dev_mode=False, rules=LOGGED
)


class Written(io.StringIO):
    """The simulator's log as a file that another process writes."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._path.touch()

    def write(self, text: str) -> int:
        with self._path.open("a", encoding="utf-8") as file:  # left open by nobody
            return file.write(text)


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """A machine that stands still must not cut a window off."""
    monkeypatch.setattr(evidence, "FENCE_WAIT_S", 60.0)


@pytest.fixture
def short_waits(monkeypatch):
    """Where fences never come."""
    monkeypatch.setattr(evidence, "FENCE_WAIT_S", 0.6)
    monkeypatch.setattr(evidence, "_HOPELESS_WAIT_S", 0.05)


async def status(sidecar) -> dict:
    return (await sidecar.client.get("/status")).json()


async def once(url, log, **changes):
    return await program.once(
        settings(url, log=log, **changes), parse(SHAPES, "shapes.yaml"), rhythm=QUICK
    )


async def test_every_compile_line_is_tied_to_its_cell(tmp_path):
    """Complete windows, the kernel and its seconds at the cell, limits out of the start lines."""
    path = tmp_path / "vllm.log"
    async with (
        simulator(VERBOSE, log=Written(path)) as sim,
        serving(sim.url, log=f"file://{path}") as sidecar,
    ):
        await sidecar.until_ready()
        body = await status(sidecar)
        metrics = (await sidecar.client.get("/metrics")).text
    assert (body["evidence"], body["log"]) == ("log+latency+metrics", "complete")
    assert body["facts"]["sources"]["max_num_batched_tokens"] == "log"
    assert body["facts"]["max_num_batched_tokens"] == 512
    told = {kernel["kernel"] for cell in body["cells"] for kernel in cell["kernels"]}
    assert told == {"moe_kernel"}
    assert 'warmup_jit_compiles{backend="Triton",kernel="moe_kernel"}' in metrics
    assert {wave["log"] for cell in body["cells"] for wave in cell["waves"]} == {"complete"}
    assert body["proven"] is True


async def test_a_log_that_is_another_engines_proves_nothing_and_opens_all_the_same(
    tmp_path, short_waits
):
    """No fence shows in it: its start lines are not this engine's, and latency decides."""
    path = tmp_path / "other.log"
    async with simulator(replace(VERBOSE, rules=()), log=Written(path)) as other:
        async with httpx.AsyncClient() as client:
            await client.get(f"{other.url}/version")
        async with simulator(replace(VERBOSE, rules=()), log=io.StringIO()) as sim:
            outcome = await once(sim.url, f"file://{path}")
    assert outcome.exit_code == ExitCode.WARM
    verdict = outcome.report.verdict
    assert verdict.evidence == "latency+metrics"
    assert verdict.log.words.startswith("none: no line was seen")
    assert outcome.report.facts.max_num_batched_tokens is None


async def test_a_log_that_never_comes_ends_in_5_where_it_is_required(tmp_path, short_waits):
    """With the setting that requires it, and why."""
    async with simulator(replace(VERBOSE, rules=())) as sim:
        outcome = await once(sim.url, f"file://{tmp_path}/none.log", require_evidence="log")
    assert outcome.exit_code == ExitCode.EVIDENCE_MISSING
    assert outcome.reasons[0].startswith("WARMUP_REQUIRE_EVIDENCE=log: log: none")


async def test_a_log_without_a_monitor_ends_in_5_where_it_is_required(tmp_path):
    """A log that is whole is enough, one of a monitor that is off is not."""
    right = tmp_path / "vllm.log"
    async with simulator(replace(VERBOSE, rules=()), log=Written(right)) as sim:
        outcome = await once(sim.url, f"file://{right}", require_evidence="log")
        assert outcome.exit_code == ExitCode.WARM
    silent = replace(VERBOSE, rules=(), jit_monitor=False)
    path = tmp_path / "silent.log"
    async with simulator(silent, log=Written(path)) as sim:
        outcome = await once(sim.url, f"file://{path}", require_evidence="log")
        assert outcome.exit_code == ExitCode.EVIDENCE_MISSING
        assert "no JIT monitor" in outcome.reasons[0]


async def test_an_adopted_verdict_must_stand_on_the_log_too_where_that_is_required(tmp_path):
    """Kept without a log, and then the setting is made: it is warmed again."""
    log, state = tmp_path / "vllm.log", tmp_path / "state"
    async with simulator(replace(VERBOSE, rules=()), log=Written(log)) as sim:
        async with serving(sim.url, state_dir=state) as sidecar:
            await sidecar.until_ready()
        required = {"log": f"file://{log}", "require_evidence": "log", "state_dir": state}
        async with serving(sim.url, **required) as sidecar:
            assert (await sidecar.until_ready())["adopted"] is False
        async with serving(sim.url, **required) as sidecar:
            assert (await sidecar.until_ready())["adopted"] is True


async def test_the_costly_settings_and_a_missing_log_are_warned_of(tmp_path):
    """CUDA graphs off, said in /ready and /metrics; an eager engine has no monitor; and of two logs
    the one that is not there is named."""
    path, missing = tmp_path / "vllm.log", tmp_path / "nothing.log"
    eager = replace(VERBOSE, engine=replace(VERBOSE.engine, enforce_eager=True), rules=())
    async with (
        simulator(eager, log=Written(path)) as sim,
        serving(sim.url, log=f"file://{path} file://{missing}") as sidecar,
    ):
        body = await sidecar.until_ready()
        metrics = (await sidecar.client.get("/metrics")).text
        assert (await status(sidecar))["log"].startswith("none: with --enforce-eager")
    assert any("CUDA graphs are off" in warning for warning in body["warnings"])
    assert f"log file://{missing}: {missing} is not there yet" in body["warnings"]
    assert 'warmup_engine_costly_setting{setting="cudagraphs_off"} 1.0' in metrics
    assert f'warmup_log_up{{source="file://{missing}"}} 0.0' in metrics


async def test_a_warm_up_on_the_log_survives_a_restart_of_the_engine(tmp_path):
    """The same file, a new boot: its own start lines, complete windows again."""
    path = tmp_path / "vllm.log"
    async with (
        simulator(VERBOSE, log=Written(path)) as sim,
        serving(sim.url, log=f"file://{path}") as sidecar,
    ):
        await sidecar.until_ready()
        sim.die()
        await sim.died()
        sim.start()
        await sidecar.until(lambda body: body["ready"] and body["boot"]["number"] == 2)
        body = await status(sidecar)
    assert body["log"] == "complete"
    assert any(cell["kernels"] for cell in body["cells"])

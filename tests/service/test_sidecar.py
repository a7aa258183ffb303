"""The whole sidecar beside a simulated engine: real sockets, real waves, the real judge."""

import socket

import anyio
import pytest
from anyio import to_thread

from sidecar import running as program
from sidecar import wiring
from sidecar.core.errors import ConfigError, ExitCode
from sidecar.core.grid.shapes import parse
from sidecar.core.watch.gate import State
from sidecar.simulator.faults import Knobs
from sidecar.simulator.server import simulator
from sidecar.watch import NOT_ONE_ENGINE
from sidecar.web.server import listen
from tests.patience import until
from tests.service.running import NEVER_HELD_UP, PROFILE, QUICK, SHAPES, WARM, serving, settings

TWO = """
cells:
  - {concurrency: 1, prompt_tokens: 65, output_tokens: 2}
  - {concurrency: 1, prompt_tokens: 96, output_tokens: 2, variant: chat}
"""


def served(sim):
    """Requests that the engine of this life has ended."""
    lines = sim.life.metrics().splitlines()
    return sum(
        float(line.rsplit(" ", 1)[1])
        for line in lines
        if line.startswith("vllm:request_success_total")
    )


async def test_warms_opens_and_is_warmed_again_after_a_restart():
    """Cold at first, open with proof; a new boot shuts the gate and is warmed anew."""
    async with simulator(PROFILE) as sim, serving(sim.url, shapes=TWO) as sidecar:
        first = await sidecar.until_ready()
        assert first["proven"], first["reasons"]
        assert (first["adopted"], first["boot"]["number"]) == (False, 1)
        assert first["progress"]["cells_done"] == first["progress"]["cells_total"] >= 2
        status = (await sidecar.client.get("/status")).json()
        assert any(f["first_f_s"] > 0.02 for c in status["cells"] for f in c["figures"])
        assert sum(w["requests"] for c in status["cells"] for w in c["waves"]) <= served(sim)
        assert sum(status["totals"]["requests"].values()) == served(sim)

        sim.turn(Knobs(restart_after_s=0.3))
        shut = await sidecar.until(lambda body: not body["ready"], limit_s=2.0)
        assert shut["reasons"]
        second = await sidecar.until_ready()
        assert second["boot"]["number"] == 2
        assert second["boot"]["nonce"] != first["boot"]["nonce"]
        assert served(sim) > 0


async def test_a_restarted_sidecar_adopts_and_sends_nothing(tmp_path):
    """Its verdict outlives it: the next one opens at once, and the engine counts no request."""
    async with simulator(WARM) as sim:
        async with serving(sim.url, state_dir=tmp_path) as sidecar:
            await sidecar.until_ready()
        before = served(sim)
        async with serving(sim.url, state_dir=tmp_path) as sidecar:
            body = await sidecar.until_ready()
            assert (body["adopted"], body["proven"]) == (True, True)
            assert body["progress"]["cells_done"] == body["progress"]["cells_total"]
            await anyio.sleep(0.7)
            assert (await sidecar.ready())["ready"]
        assert served(sim) == before
        other = SHAPES.replace("65", "67")
        async with serving(sim.url, state_dir=tmp_path, shapes=other) as sidecar:
            body = await sidecar.until_ready()
            assert not body["adopted"]
        assert served(sim) > before


async def test_a_state_folder_that_can_t_be_written_is_said_or_ends_the_start(tmp_path):
    """Where it is optional, as in the image, the warm-up goes on without; else nothing starts."""
    folder = tmp_path / "file" / "state"
    folder.parent.write_text("")
    async with simulator(WARM) as sim:
        async with serving(sim.url, state_dir=folder, state_optional=True) as sidecar:
            body = await sidecar.until_ready()
        said = [text for text in body["warnings"] if str(folder) in text]
        assert len(said) == 1
        assert "can't be written" in said[0]
        needed = settings(sim.url, state_dir=folder)
        with pytest.raises(ConfigError, match="can't be written"):
            await to_thread.run_sync(wiring.build, needed, parse(SHAPES, "shapes.yaml"))


async def test_a_dead_engine_is_gone_within_two_seconds_with_the_usual_rhythm(tmp_path):
    """By the default rhythm: the gate is shut and the ready file gone 2 s after the death."""
    file = tmp_path / "ready"
    async with (
        simulator(WARM) as sim,
        serving(sim.url, rhythm=NEVER_HELD_UP, ready_file=file) as sidecar,
    ):
        await sidecar.until_ready()
        await until(anyio.Path(file).exists)  # it follows the gate
        sim.turn(Knobs(die=True))
        await sidecar.until(lambda body: not body["ready"], limit_s=2.0)

        async def is_gone():
            return not await anyio.Path(file).exists()

        await until(is_gone, limit_s=2.0)


async def test_an_api_loop_that_answers_late_is_not_taken_out():
    """A slow /health leaves the gate open."""
    async with simulator(WARM) as sim, serving(sim.url) as sidecar:
        await sidecar.until_ready()
        sim.turn(Knobs(health_delay_s=0.6))
        for _ in range(20):
            assert (await sidecar.ready())["ready"]
            await anyio.sleep(0.05)


async def test_a_503_from_health_shuts_and_the_same_boot_reopens_without_waves():
    """Dead by its own word: shut. The same process well again: open, nothing sent."""
    async with simulator(WARM) as sim, serving(sim.url) as sidecar:
        await sidecar.until_ready()
        before = served(sim)
        sim.turn(Knobs(health_status=503))
        await sidecar.until(lambda body: not body["ready"], limit_s=2.0)
        sim.turn(Knobs(health_status=200))
        body = await sidecar.until_ready()
        assert body["boot"]["number"] == 1
        assert served(sim) == before


async def test_a_load_balancer_is_named():
    """Identities that alternate: shut, and the reason says what to change."""
    async with simulator(WARM) as sim, serving(sim.url) as sidecar:
        await sidecar.until_ready()
        sim.turn(Knobs(alternate=True))
        await sidecar.until(lambda body: NOT_ONE_ENGINE in body["reasons"])
        for _ in range(10):
            assert not (await sidecar.ready())["ready"]
            await anyio.sleep(0.05)


async def test_a_wrong_key_is_named_at_once_and_mended_without_restart():
    """401 by name while waiting; once the engine takes the key it goes on by itself."""
    async with simulator(WARM) as sim:
        sim.turn(Knobs(api_key="right"))
        async with serving(sim.url, api_key="wrong") as sidecar:
            body = await sidecar.until(
                lambda body: any("WARMUP_API_KEY" in r for r in body["reasons"])
            )
            assert body["state"] == "waiting"
            sim.turn(Knobs(api_key="wrong"))
            await sidecar.until_ready()


async def test_an_unknown_model_is_named_with_those_that_there_are():
    """A wrong model name is said at once; nothing is sent to another model."""
    async with simulator(WARM) as sim, serving(sim.url, model="nope") as sidecar:
        body = await sidecar.until(lambda body: any("nope" in r for r in body["reasons"]))
        assert "sim" in body["reasons"][0]
        assert served(sim) == 0


async def test_an_engine_that_dies_in_a_wave_is_named_with_the_cell():
    """A prompt that kills the engine: the gate stays shut and the cell is named."""
    async with simulator(WARM) as sim:
        sim.turn(Knobs(oom_above_tokens=1000))
        async with serving(sim.url) as sidecar:
            body = await sidecar.until(lambda body: any("in flight" in r for r in body["reasons"]))
            assert body["state"] == "waiting"
            assert any("-high_water" in r for r in body["reasons"])


async def once(url, shapes=SHAPES, **changes):
    seen = []
    outcome = await program.once(
        settings(url, **changes), parse(shapes, "shapes.yaml"), show=seen.append, rhythm=QUICK
    )
    return outcome, seen


async def test_once_ends_warm_with_a_report(tmp_path):
    """Exit 0, the states in order, the report, and a ready file that stays."""
    file = tmp_path / "ready"
    async with simulator(WARM) as sim:
        outcome, seen = await once(sim.url, ready_file=file)
    assert outcome.exit_code == ExitCode.WARM
    assert outcome.report.opening.proven
    assert seen[-1].state is State.READY
    assert await anyio.Path(file).exists()


async def test_once_gives_up_on_nobody_at_the_deadline():
    """Exit 4, with what was waited for."""
    async with simulator(WARM) as sim:
        sim.die()
        with anyio.fail_after(60):
            outcome, _ = await once(sim.url, start_deadline_s=0.5)
    assert outcome.exit_code == ExitCode.ENGINE_UNAVAILABLE
    assert sim.url in " ".join(outcome.reasons)
    assert outcome.report is None


async def test_once_says_that_a_cell_fails():
    """Exit 3 with the cell, the status and the engine's words."""
    async with simulator(WARM) as sim:
        sim.turn(Knobs(fail={"min_prompt_tokens": 65, "max_prompt_tokens": 65}))
        outcome, seen = await once(sim.url)
    assert outcome.exit_code == ExitCode.NOT_CONVERGED
    told = [*outcome.reasons, *(reason for snapshot in seen for reason in snapshot.reasons)]
    assert not any("tried again" in reason for reason in told), "it ends"
    said = " ".join(outcome.reasons)
    assert "completions-c1-p65" in said
    assert "500" in said


async def test_once_refuses_a_plan_that_does_not_fit():
    """Exit 2, with the limit and what would make it fit."""
    shapes = "cells: [{concurrency: 1, prompt_tokens: 9000, output_tokens: 2}]"
    async with simulator(WARM) as sim:
        outcome, _ = await once(sim.url, shapes=shapes)
    assert outcome.exit_code == ExitCode.CONFIG
    assert "max" in outcome.reasons[0]


async def test_the_port_answers_at_once_and_over_both_protocols():
    """TCP_NODELAY on what is accepted (asyncio: where the protocol is named); `::` takes IPv4 too,
    which is what `check` asks."""
    listener = listen("::", 0)
    with listener:
        assert listener.proto == socket.IPPROTO_TCP
        for host in ("127.0.0.1", "::1"):
            stream = await anyio.connect_tcp(host, listener.getsockname()[1])
            await stream.aclose()


async def test_a_taken_port_is_one_sentence():
    """The port is bound before anything runs; taken, it is a configuration error."""
    async with simulator(WARM) as sim:
        taken = settings(sim.url).model_copy(update={"port": sim.port})
        with pytest.raises(ConfigError, match=f"port {sim.port}.*WARMUP_PORT"):
            await program.serve(taken, parse(SHAPES, "shapes.yaml"))

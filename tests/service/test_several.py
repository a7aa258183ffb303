"""One sidecar for several servers, one of each data-parallel rank: open when all are warm."""

from functools import partial

import anyio
import pytest
from anyio import to_thread

from sidecar import running as program
from sidecar import wiring
from sidecar.core.errors import ConfigError, ExitCode
from sidecar.core.grid.shapes import parse
from sidecar.settings import Settings
from sidecar.simulator.faults import Knobs
from sidecar.simulator.server import simulator
from tests.live.sidecar import vllm_warmup
from tests.service.running import PROFILE, QUICK, SHAPES, WARM, serving


def urls(*sims, **named):
    return " ".join([s.url for s in sims] + [f"{name}={s.url}" for name, s in named.items()])


async def until(condition):
    """A file has no event to wait for."""
    with anyio.fail_after(10):
        while not await to_thread.run_sync(condition):  # noqa: ASYNC110
            await anyio.sleep(0.02)


async def test_the_gate_is_open_when_both_are_warm_and_shut_when_one_is_gone(tmp_path):
    """Each has its own page; the ready file is there only while both are."""
    ready_file = tmp_path / "ready"
    async with simulator(PROFILE) as one, simulator(PROFILE) as two:
        more = {"engine_urls": urls(r0=one, r1=two), "ready_file": ready_file}
        async with serving(one.url, **more) as sidecar:
            first = await sidecar.until(
                lambda body: body["ready"] or any(engine["ready"] for engine in body["engines"])
            )
            assert first["ready"] == all(engine["ready"] for engine in first["engines"])
            body = await sidecar.until_ready()
            assert [(e["name"], e["state"]) for e in body["engines"]] == [
                ("r0", "ready"),
                ("r1", "ready"),
            ]
            await until(lambda: ready_file.exists())
            two.turn(Knobs(restart_after_s=0.5))
            shut = await sidecar.until(lambda body: not body["ready"], limit_s=3.0)
            assert [engine["ready"] for engine in shut["engines"]] == [True, False]
            assert all(reason.startswith("r1: ") for reason in shut["reasons"])
            answers = [
                (await sidecar.client.get(f"/ready/{name}")).status_code for name in ("r0", "r1")
            ]
            assert answers == [200, 503]
            await until(lambda: not ready_file.exists())
            waited = await sidecar.client.get("/ready/r1?wait=20", timeout=25)
            assert (waited.status_code, waited.json()["boot"]["number"]) == (200, 2)
            await sidecar.until_ready()


async def test_each_is_shown_by_its_name(tmp_path):
    """In /status, in /metrics, and by a sentence where there is none of that name."""
    async with (
        simulator(WARM) as one,
        simulator(WARM) as two,
        serving(one.url, engine_urls=urls(a=one, b=two)) as sidecar,
    ):
        await sidecar.until_ready()
        status = (await sidecar.client.get("/status")).json()
        page = (await sidecar.client.get("/metrics")).text
        missing = await sidecar.client.get("/ready/c")
    assert list(status["of_engines"]) == ["a", "b"]
    assert all(part["cells"] for part in status["of_engines"].values())
    assert 'warmup_ready{engine="a"} 1.0' in page
    assert 'warmup_ready{engine="b"} 1.0' in page
    assert page.count("# TYPE warmup_ready gauge") == 1
    assert (missing.status_code, missing.json()["detail"]) == (
        404,
        "'c' is no engine of this sidecar (a, b)",
    )


async def test_one_engine_has_no_page_by_name():
    """/ready is its gate."""
    async with simulator(WARM) as sim, serving(sim.url) as sidecar:
        answer = await sidecar.client.get("/ready/engine")
    assert answer.status_code == 404
    assert "there is one engine, ask /ready" in answer.json()["detail"]


async def test_each_verdict_outlives_the_sidecar(tmp_path):
    """Both are adopted; their reports are told apart by --engine."""
    async with simulator(WARM) as one, simulator(WARM) as two:
        more = {"engine_urls": urls(a=one, b=two), "state_dir": tmp_path}
        async with serving(one.url, **more) as sidecar:
            await sidecar.until_ready()
        async with serving(one.url, **more) as sidecar:
            body = await sidecar.until_ready()
        assert body["adopted"]
    more = {"WARMUP_ENGINE_URLS": urls(a=one, b=two), "WARMUP_STATE_DIR": str(tmp_path)}
    told = await to_thread.run_sync(partial(vllm_warmup, "report", "--engine", "b", **more))
    assert two.url in told.out, told.err
    for arguments, sentence in (((), "give --engine"), (("--engine", "c"), "no engine 'c'")):
        told = await to_thread.run_sync(partial(vllm_warmup, "report", *arguments, **more))
        assert told.code == ExitCode.CONFIG
        assert sentence in told.err
        assert "warms a, b" in told.err


async def test_once_waits_for_all_and_ends_by_the_worst(tmp_path):
    """A report of each that was warmed; one that never came decides the exit code."""
    async with simulator(WARM) as one, simulator(WARM) as two:
        settings = Settings(engine_urls=urls(a=one, b=two))
        outcome = await program.once(settings, parse(SHAPES, "s"), rhythm=QUICK)
        assert outcome.exit_code == ExitCode.WARM
        assert set(outcome.reports) == {"a", "b"}
        lost = Settings(engine_urls=f"a={one.url} b=http://127.0.0.1:1", start_deadline_s=1.0)
        outcome = await program.once(lost, parse(SHAPES, "s"), rhythm=QUICK)
    assert outcome.exit_code == ExitCode.ENGINE_UNAVAILABLE
    assert set(outcome.reports) == {"a"}
    assert outcome.reasons[0].startswith("b: ")


def test_one_port_can_t_be_the_log_of_two():
    """A place with {engine} in it is each one's own."""
    two = "a=http://h:1 b=http://h:2"
    with pytest.raises(ConfigError, match="can't be the log of several engines"):
        wiring.build(
            Settings(engine_urls=two, log="syslog+udp://127.0.0.1:5514"), parse(SHAPES, "s")
        )
    settings = Settings(engine_urls=two, log="file:///logs/{engine}.log")
    members = wiring.build(settings, parse(SHAPES, "s")).members
    sources = [state.source for m in members.values() for state in m.snapshot.logs]
    assert sources == ["file:///logs/a.log", "file:///logs/b.log"]

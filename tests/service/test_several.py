"""One sidecar for several servers, one of each data-parallel rank: open when all are warm."""

import json
from dataclasses import replace
from functools import partial

import pytest
from anyio import to_thread

from sidecar import running as program
from sidecar import wiring
from sidecar.core.errors import ConfigError, ExitCode
from sidecar.core.grid.shapes import parse
from sidecar.core.watch.gate import Snapshot, State
from sidecar.core.watch.together import together
from sidecar.settings import Settings
from sidecar.simulator.faults import Knobs
from sidecar.simulator.server import simulator
from tests.live.sidecar import vllm_warmup
from tests.patience import until
from tests.service.running import PROFILE, QUICK, SHAPES, WARM, serving


def urls(**named):
    return " ".join(f"{name}={sim.url}" for name, sim in named.items())


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
            await until(partial(to_thread.run_sync, ready_file.exists))
            two.turn(Knobs(restart_after_s=0.5))
            shut = await sidecar.until(lambda body: not body["ready"], limit_s=3.0)
            assert [engine["ready"] for engine in shut["engines"]] == [True, False]
            assert all(reason.startswith("r1: ") for reason in shut["reasons"])
            answers = [
                (await sidecar.client.get(f"/ready/{name}")).status_code for name in ("r0", "r1")
            ]
            assert answers == [200, 503]

            async def is_gone():
                return not await to_thread.run_sync(ready_file.exists)

            await until(is_gone)
            waited = await sidecar.client.get("/ready/r1?wait=60", timeout=90)
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


@pytest.mark.programs
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
        lost = Settings(engine_urls=f"a={one.url} b=http://127.0.0.1:1", start_deadline_s=4.0)
        outcome = await program.once(lost, parse(SHAPES, "s"), rhythm=QUICK)
    assert outcome.exit_code == ExitCode.ENGINE_UNAVAILABLE
    assert set(outcome.reports) == {"a"}
    assert outcome.reasons[0].startswith("b: ")


def test_a_verdict_once_given_ends_it_while_that_engine_is_tried_again():
    """The first verdict on each decides, unless a better one came before the end."""
    bad = Snapshot("u", State.FAILED, 0.0, reasons=("cold",), exit_code=ExitCode.NOT_CONVERGED)
    again, late = (
        replace(bad, state=State.WARMING, reasons=(), exit_code=None),
        Snapshot("v", State.WAITING, 0.0),
    )
    ready = Snapshot("v", State.READY, 0.0)
    verdicts = program.Verdicts()
    assert not verdicts.hear(together({"a": bad, "b": late}))
    assert not verdicts.hear(together({"a": again, "b": late}))
    end = together({"a": again, "b": ready})
    assert verdicts.hear(end)
    outcome = verdicts.outcome(end, {})
    assert (outcome.exit_code, outcome.reasons) == (ExitCode.NOT_CONVERGED, ("a: cold",))
    assert verdicts.hear(together({"a": ready, "b": ready}))
    assert not verdicts.hear(together({"a": late, "b": ready}))


@pytest.mark.programs
async def test_once_reports_what_was_adopted_too(tmp_path):
    """A second run sends nothing, and prints the reports of the first in the engines' order."""
    async with simulator(WARM) as one, simulator(WARM) as two:
        shapes = tmp_path / "s.yaml"
        shapes.write_text(SHAPES)
        more = {
            "WARMUP_ENGINE_URLS": urls(b=two, a=one),
            "WARMUP_STATE_DIR": str(tmp_path / "state"),
            "WARMUP_SHAPES": str(shapes),
        }
        run = partial(vllm_warmup, "once", "--json", "--log-level", "debug", **more)
        first, second = await to_thread.run_sync(run), await to_thread.run_sync(run)
    assert (first.code, second.code) == (0, 0), second.err
    assert list(json.loads(second.out)["engines"]) == ["b", "a"]
    assert json.loads(second.out) == json.loads(first.out)
    assert "a: adopted" in second.err
    assert "sidecar.door: a: state=ready event=adopted" in second.err, "whose line it is"


@pytest.mark.programs
async def test_a_list_of_one_is_named_as_a_longer_one_is(tmp_path):
    """Its page, its folder and its log don't move when a second server comes."""
    log = tmp_path / "a.log"
    log.touch()
    more = {"state_dir": tmp_path / "state", "log": f"file://{tmp_path}/{{engine}}.log"}
    async with (
        simulator(WARM) as one,
        serving(one.url, engine_urls=urls(a=one), **more) as sidecar,
    ):
        await sidecar.until_ready()
        assert (await sidecar.client.get("/ready/a")).status_code == 200
        status = (await sidecar.client.get("/status")).json()
    assert list(status["of_engines"]) == ["a"]
    assert [log["source"] for log in status["of_engines"]["a"]["logs"]] == [f"file://{log}"]
    assert (tmp_path / "state" / "a" / "verdict.json").is_file()
    more = {"WARMUP_ENGINE_URLS": urls(a=one), "WARMUP_STATE_DIR": str(tmp_path / "state")}
    told = await to_thread.run_sync(partial(vllm_warmup, "report", **more))
    assert one.url in told.out, told.err


def built(log, **engines):
    return wiring.build(Settings(log=log, **engines), parse(SHAPES, "s")).members


TWO = "a=http://h:1 b=http://h:2"


@pytest.mark.parametrize("more", [{}, {"engine_urls": "a=http://h:1"}])
@pytest.mark.parametrize("log", ["syslog+udp://127.0.0.1:5514", "syslog+unix:///run/x.sock"])
def test_one_port_is_the_log_of_one(more, log):
    """Named or not."""
    (parts,) = wiring.build(Settings(log=log, **more), parse(SHAPES, "s")).members.values()
    assert [state.source for state in parts.snapshot.logs] == [log]


@pytest.mark.parametrize(
    ("log", "engines", "sentence"),
    [
        ("syslog+udp://127.0.0.1:5514", TWO, "can't be the log of several engines"),
        ("file:///{engine} syslog+udp://127.0.0.1:5514", TWO, "can't be the log of several"),
        ("docker:///{engine}", "", "which is not set"),
        (f"syslog+unix:///{'d' * 80}/{{engine}}", f"{'a' * 60}=http://h:1", "the path of"),
    ],
)
def test_a_log_that_can_t_be_each_one_s_gets_a_sentence(log, engines, sentence):
    """A port is one engine's, and a name has to give a place that can be."""
    with pytest.raises(ConfigError, match=sentence):
        built(log, engine_urls=engines)


@pytest.mark.parametrize("log", ["file:///logs/{engine}", "docker:///{engine}"])
def test_a_place_with_engine_in_it_is_each_one_s_own(log):
    """It stands for the name."""
    sources = [s.source for m in built(log, engine_urls=TWO).values() for s in m.snapshot.logs]
    assert sources == [log.format(engine="a"), log.format(engine="b")]

"""The conductor among fakes, on a clock that jumps: every road through the gate."""

import asyncio
from dataclasses import replace
from functools import partial

import anyio
import pytest

from sidecar.core.errors import EngineRejected, EngineUnavailable, ExitCode
from sidecar.core.grid.cells import Cell
from sidecar.core.policy import Rhythm
from sidecar.core.results import Outcome
from sidecar.core.tally import WaveOutcome
from sidecar.core.watch.boot import BootMark
from sidecar.core.watch.gate import State
from sidecar.core.watch.kept import objection
from sidecar.core.wire.health import Health
from sidecar.watch import NOT_ONE_ENGINE, RESTARTED, SILENT, UNTOLD
from tests.service.fakes import CELLS, FACTS, FakeEngine, MemoryStore, Stage
from tests.service.virtualtime import VirtualLoop

OPENED = [State.WARMING, State.READY]


@pytest.fixture(scope="module")
def anyio_backend():
    return "asyncio", {"loop_factory": VirtualLoop}


def is_ready(snapshot):
    return snapshot.is_ready


async def test_opens_when_warm_and_says_what_was_sent():
    """A cold engine is warmed, the gate opens proven, the ready file appears, totals agree."""
    stage = Stage()
    async with stage.running():
        await stage.until(is_ready)
        await anyio.sleep(1)
        assert stage.file.is_there
    snapshot = stage.snapshot
    assert [State.WAITING, *OPENED] == stage.states()
    assert (snapshot.proven, snapshot.adopted, snapshot.reasons) == (True, False, ())
    assert stage.sent == len(snapshot.waves) == snapshot.totals.requests[Outcome.OK]
    assert sum(row.requests for row in snapshot.waves) == stage.sent
    assert snapshot.totals.waves == {WaveOutcome.VALID: stage.sent}
    assert {c.cell for c in snapshot.verdict.cells} == set(CELLS)
    assert not snapshot.is_active


async def test_a_shut_gate_has_a_reason_from_the_first_moment():
    """While the first look at the engine still hangs, the reason says what is waited for."""
    stage = Stage()
    stage.engine.health_takes_s = 30.0
    async with stage.running():
        await anyio.sleep(1)
        assert stage.snapshot.reasons == ("the engine at http://engine:8000 has not answered yet",)


async def test_a_ready_file_of_an_earlier_life_is_removed_first():
    """Before anything is known of the engine, the ready file is gone."""
    stage = Stage()
    stage.engine.state = Health.REFUSED
    stage.engine.rejects = EngineUnavailable("nobody there")
    async with stage.running():
        await anyio.sleep(5)
        assert not stage.file.is_there
        assert stage.snapshot.state is State.WAITING
        assert stage.snapshot.reasons == ("nobody there",)


@pytest.mark.parametrize("gone", [Health.REFUSED, Health.UNAVAILABLE])
async def test_a_dead_engine_shuts_the_gate_within_two_seconds_and_is_warmed_again(gone):
    """Refused or 503: shut within 2 s; another boot is warmed anew, and counted."""
    stage = Stage()
    async with stage.running():
        await stage.until(is_ready)
        await anyio.sleep(30.3)
        stage.engine.state = gone
        died_at = anyio.current_time()
        await stage.until(lambda s: not s.is_ready)
        assert anyio.current_time() - died_at <= 2.0
        await anyio.sleep(1)
        assert not stage.file.is_there
        assert stage.snapshot.reasons
        stage.engine.boot += 50
        stage.engine.state = Health.UP
        await stage.until(is_ready)
    assert stage.snapshot.totals.boots == 2
    assert [State.WAITING, *OPENED, State.WAITING, *OPENED] == stage.states()
    assert len(stage.replays) == 2
    assert stage.replays[0].nonce != stage.replays[1].nonce


async def test_restarts_behind_a_broken_connection_are_no_second_engine():
    """Counters that go backwards after a connection broke are a restart, each time again."""
    stage = Stage()
    stage.engine.tells_start = False
    async with stage.running():
        for boots in (2, 3, 4):
            await stage.until(is_ready)
            await anyio.sleep(100)
            stage.engine.marks, stage.engine.state = 0, Health.RECONNECTED
            await stage.until(lambda s, boots=boots: s.totals.boots == boots)
    told = {reason for s in stage.snapshots for reason in s.reasons}
    assert RESTARTED in told
    assert NOT_ONE_ENGINE not in told


@pytest.mark.parametrize("is_bug", [False, True])
async def test_a_wave_that_was_cut_off_asks_every_cell_once_more(is_bug):
    """The engine was away while a wave ran for seconds, and is back, the same boot; or the sidecar
    itself failed: what that wave compiled nobody saw, and it may have made cold what was quiet
    before."""
    last = 3 * len(CELLS)

    def setup(replay):
        async def on_wave(_look):
            if len(replay.looks) == last:
                await anyio.sleep(2)
                if is_bug:
                    raise RuntimeError
                stage.engine.state = Health.REFUSED
                await anyio.sleep_forever()

        replay.on_wave = on_wave

    stage = Stage(setup=setup)
    async with stage.running():
        if not is_bug:
            await stage.until(lambda s: WaveOutcome.CANCELLED in s.totals.waves)
            stage.engine.state = Health.UP
        await stage.until(is_ready)
    (replay,) = stage.replays
    assert {look.cell for look in replay.looks[last:]} == set(CELLS)


async def test_the_same_boot_back_reopens_at_once_without_replay():
    """A connection that broke for a while costs no warm-up when the same process is back."""
    stage = Stage()
    async with stage.running():
        await stage.until(is_ready)
        sent = stage.sent
        stage.engine.state = Health.REFUSED
        await stage.until(lambda s: s.state is State.WAITING)
        await anyio.sleep(20)
        stage.engine.state = Health.UP
        back_at = anyio.current_time()
        await stage.until(is_ready)
        assert anyio.current_time() - back_at <= 2.0
        await anyio.sleep(1)
        assert stage.file.is_there
    assert (sent, 1) == (stage.sent, stage.snapshot.totals.boots)
    assert [State.WAITING, *OPENED, State.WAITING, State.READY] == stage.states()
    assert stage.snapshot.proven
    assert not stage.snapshot.adopted


async def test_a_restart_that_no_probe_saw_is_seen_by_the_mark():
    """A process that was replaced between two probes is found out within the mark's interval."""
    stage = Stage()
    async with stage.running():
        await stage.until(is_ready)
        stage.engine.boot += 50
        await stage.until(lambda s: not s.is_ready, limit_s=12)
        assert stage.snapshot.reasons == ("the engine was restarted",)
        await stage.until(is_ready)
    assert stage.snapshot.totals.boots == 2


async def test_a_late_health_answer_is_not_a_death():
    """Two late answers, and three within ten seconds, leave the gate open."""
    stage = Stage()
    async with stage.running():
        await stage.until(is_ready)
        stage.engine.state = Health.TIMEOUT
        stage.engine.health_takes_s = 2.0
        await anyio.sleep(9)
        assert stage.snapshot.is_ready
        stage.engine.state = Health.UP
        stage.engine.health_takes_s = 0.0
        await anyio.sleep(30)
        assert stage.snapshot.is_ready
    assert stage.snapshot.totals.boots == 1


async def test_health_that_stays_late_shuts_and_reopens_without_replay():
    """Three in a row and ten seconds: shut. Back as the same boot: open, nothing sent."""
    stage = Stage()
    async with stage.running():
        await stage.until(is_ready)
        sent = stage.sent
        stage.engine.state = Health.TIMEOUT
        stage.engine.health_takes_s = 4.0
        hung_at = anyio.current_time()
        await stage.until(lambda s: not s.is_ready)
        assert 10 <= anyio.current_time() - hung_at <= 16
        assert "/health has not answered" in stage.snapshot.reasons[0]
        stage.engine.state = Health.UP
        stage.engine.health_takes_s = 0.0
        await stage.until(is_ready)
    assert sent == stage.sent


async def test_an_engine_that_dies_in_a_wave_is_named_with_its_cell():
    """The wave is cut off, the cell in flight is named, and the next boot starts over."""
    stage = Stage()
    died = []

    async def die_once(look):
        if not died and look.cell.prompt_tokens == 513:
            died.append(look)
            stage.engine.state = Health.REFUSED
            await anyio.sleep(300)

    stage.setup = lambda replay: setattr(replay, "on_wave", die_once)
    async with stage.running():
        await stage.until(lambda s: s.state is State.WAITING and s.engine and s.reasons)
        cell = died[0].cell.id
        assert any(f"a wave of {cell} (led) was in flight" in r for r in stage.snapshot.reasons)
        stage.engine.boot += 1
        stage.engine.state = Health.UP
        await stage.until(lambda s: s.totals.boots == 2 and s.state is State.WARMING)
        assert any(cell in warning for warning in stage.snapshot.warnings)
        await stage.until(is_ready)
    assert stage.snapshot.totals.waves[WaveOutcome.CANCELLED] == 1
    assert stage.snapshot.waves[0].at > stage.snapshots[0].since


async def test_a_broken_wave_asks_at_once_whether_the_engine_lives():
    """A wave that breaks together with the engine is not followed by another one, and is named."""
    stage = Stage(rhythm=Rhythm(health_every_s=1000.0))

    async def die(look):
        if len(stage.replays) == 1 and len(stage.replays[0].looks) == 2:
            stage.engine.state = Health.UNAVAILABLE

    stage.setup = lambda replay: setattr(replay, "on_wave", die)
    async with stage.running():
        await stage.until(lambda s: s.state is State.WAITING and s.engine and s.reasons)
        assert any("in flight" in reason for reason in stage.snapshot.reasons)
    assert stage.sent == 2


async def test_a_restart_between_two_probes_is_seen_by_its_connection():
    """A broken kept connection has the identity looked at at once, not within the interval."""
    stage = Stage()
    async with stage.running():
        await stage.until(is_ready)
        await anyio.sleep(0.5)
        stage.engine.boot += 50
        stage.engine.state = Health.RECONNECTED
        await stage.until(lambda s: not s.is_ready, limit_s=2.0)
        assert stage.snapshot.reasons == (RESTARTED,)
        await stage.until(is_ready)
    assert stage.snapshot.totals.boots == 2


async def test_a_proxy_that_was_restarted_costs_nothing():
    """A connection that broke while the same process answers on leaves the gate open."""
    stage = Stage()
    async with stage.running():
        await stage.until(is_ready)
        seen = len(stage.snapshots)
        stage.engine.state = Health.RECONNECTED
        await anyio.sleep(60)
        assert all(s.is_ready for s in stage.snapshots[seen:])


async def test_a_broken_connection_to_an_engine_that_can_not_be_told_is_a_new_boot():
    """Without /metrics nothing but the connection tells a restart: shut, and warmed again."""
    stage = Stage()
    stage.engine.has_metrics = False
    async with stage.running():
        await stage.until(is_ready)
        await anyio.sleep(60)
        assert stage.snapshot.is_ready
        stage.engine.state = Health.RECONNECTED
        await stage.until(lambda s: not s.is_ready, limit_s=5.0)
        assert stage.snapshot.reasons == (UNTOLD,)
        await stage.until(is_ready)
    assert stage.snapshot.totals.boots == 2


async def test_a_host_that_was_away_may_have_been_restarted():
    """No connection in time is late like a busy engine, but back it must be told or warmed."""
    stage = Stage()
    stage.engine.has_metrics = False
    async with stage.running():
        await stage.until(is_ready)
        stage.engine.state, stage.engine.health_takes_s = Health.UNREACHED, 4.0
        await anyio.sleep(5)
        assert stage.snapshot.is_ready
        await stage.until(lambda s: not s.is_ready, limit_s=20)
        stage.engine.state, stage.engine.health_takes_s = Health.UP, 0.0
        await stage.until(is_ready)
    assert stage.snapshot.totals.boots == 2


async def test_an_address_that_vanished_shuts_the_gate_at_once():
    """Not late but gone: no third look is waited for, and what is back must be told or warmed."""
    stage = Stage()
    stage.engine.has_metrics = False
    async with stage.running():
        await stage.until(is_ready)
        stage.engine.state, stage.engine.health_takes_s = Health.VANISHED, 4.5
        await stage.until(lambda s: not s.is_ready, limit_s=6)
        assert "takes no connections any more" in stage.snapshot.reasons[0]
        stage.engine.state, stage.engine.health_takes_s = Health.UP, 0.0
        await stage.until(is_ready)
    assert stage.snapshot.totals.boots == 2


async def test_health_alone_is_no_engine():
    """Something that answers /health and nothing else took the address: shut within a minute."""
    stage = Stage()
    async with stage.running():
        await stage.until(is_ready)
        stage.engine.answers = False
        stage.engine.rejects = EngineRejected("it is no vLLM server")
        await stage.until(lambda s: not s.is_ready, limit_s=60)
        assert stage.snapshot.reasons == (SILENT,)
        await anyio.sleep(60)
        assert stage.snapshot.reasons[-1] == "it is no vLLM server"
        stage.engine.answers, stage.engine.rejects = True, None
        await stage.until(is_ready)


@pytest.mark.parametrize("change", ["dies", "restarts", "breaks", "broke", "unreached"])
async def test_an_engine_that_goes_after_the_last_wave_is_not_opened(change):
    """Between the last wave and the opening the engine is asked once more."""
    store = MemoryStore()
    store.keep_takes_s = 0.5
    every_s = 0.1 if change == "broke" else 1000.0  # so that the watch knows before
    rhythm = Rhythm(health_every_s=every_s, mark_every_s=1000.0, between_marks_s=0.5)
    stage = Stage(store=store, rhythm=rhythm)
    gone = []

    async def go(report):
        if not gone:
            gone.append(report)
            if change == "dies":
                stage.engine.state = Health.REFUSED
            elif change in ("breaks", "broke"):  # and can't be told from the one before
                stage.engine.state = Health.RECONNECTED
            elif change == "unreached":
                stage.engine.state = Health.UNREACHED
                back = partial(setattr, stage.engine, "state", Health.UP)
                asyncio.get_running_loop().call_later(0.7, back)
            else:
                stage.engine.boot += 50

    store.add_report = go
    stage.engine.has_metrics = change in ("dies", "restarts")
    async with stage.running():
        await stage.until(lambda s: s.state is State.WAITING and s.engine and s.reasons)
        assert State.READY not in stage.states()
        stage.engine.state = Health.UP
        if change == "dies":
            stage.engine.boot += 1
        await stage.until(is_ready)
    assert stage.snapshot.totals.boots == 2


async def test_an_engine_that_goes_while_the_state_folder_is_read_is_waited_for():
    """Lost before it was known whether to adopt: the conductor goes on, and opens nothing."""
    store = MemoryStore()
    first = Stage(store=store)
    async with first.running():
        await first.until(is_ready)
    store.load_takes_s = 3.0
    second = Stage(store=store, engine=first.engine)
    async with second.running():
        await second.until(lambda s: s.engine is not None)
        second.engine.state = Health.REFUSED
        await anyio.sleep(60)
        assert State.READY not in second.states()
        store.load_takes_s = 0.0
        second.engine.state = Health.UP
        second.engine.boot += 1
        await second.until(is_ready)
        assert not second.snapshot.adopted


async def test_what_was_learned_is_of_the_boot_that_is_warmed():
    """Restarted between the learning and the plan: learned again, from the new process."""
    stage = Stage()

    def restart():
        stage.engine.on_learn = None
        stage.engine.boot += 50
        stage.engine.facts = replace(FACTS, max_model_len=2048)

    stage.engine.on_learn = restart
    async with stage.running():
        await stage.until(is_ready)
    assert [r.plan.facts.max_model_len for r in stage.replays] == [2048]
    assert stage.snapshot.totals.boots == 1


async def test_a_bug_in_the_search_is_a_reason_and_no_end(caplog):
    """Whatever an engine's answer does to the client: shut, said, tried again."""
    stage = Stage()
    stage.engine.rejects = ZeroDivisionError("oops")
    async with stage.running():
        await anyio.sleep(60)
        assert "oops" in stage.snapshot.reasons[0]
        stage.engine.rejects = None
        await stage.until(is_ready)
    assert caplog.text.count("Traceback") == 1


async def test_a_refused_plan_is_made_anew_from_what_is_learned_then():
    """A plan may rest on what could not be learned at that moment: it is no verdict for ever."""
    stage = Stage(retry_first_s=10.0)
    stage.refusal = "it does not fit"
    async with stage.running():
        await stage.until(lambda s: s.state is State.FAILED)
        stage.refusal = None
        stage.engine.facts = replace(FACTS, max_model_len=2048)
        await stage.until(is_ready)
    assert stage.snapshot.engine.max_model_len == 2048
    assert stage.snapshot.totals.boots == 1


async def test_the_ready_file_follows_whatever_becomes_of_it():
    """Deleted while open it comes back; put there while shut it goes."""
    stage = Stage()
    async with stage.running():
        await stage.until(is_ready)
        await anyio.sleep(1)
        stage.file.is_there = False
        await anyio.sleep(10)
        assert stage.file.is_there
        stage.engine.state = Health.REFUSED
        await stage.until(lambda s: not s.is_ready)
        await anyio.sleep(0.1)
        assert not stage.file.is_there
        stage.file.is_there = True
        await anyio.sleep(10)
        assert not stage.file.is_there


async def test_a_load_balancer_is_named_and_never_open():
    """Identities that alternate keep the gate shut, with the reason by name."""
    stage = Stage()
    async with stage.running():
        await stage.until(is_ready)
        stage.engine.boots_in_turn = (100.0, 200.0)
        await stage.until(lambda s: NOT_ONE_ENGINE in s.reasons, limit_s=60)
        seen = len(stage.snapshots)
        await anyio.sleep(120)
        assert not any(s.is_ready for s in stage.snapshots[seen:])
        assert NOT_ONE_ENGINE in stage.snapshot.reasons
        stage.engine.boots_in_turn = None
        await stage.until(is_ready)


async def test_a_load_balancer_is_named_from_the_start():
    """Two engines behind one address are found before anything is sent to them."""
    engine = FakeEngine()
    engine.boots_in_turn = (100.0, 200.0)
    stage = Stage(engine=engine)
    async with stage.running():
        await stage.until(lambda s: NOT_ONE_ENGINE in s.reasons, limit_s=10)
    assert stage.sent == 0


async def test_a_refusal_is_said_at_once_and_mended_without_restart():
    """A wrong key is named by the first try, and forgotten when it is right."""
    stage = Stage()
    stage.engine.rejects = EngineRejected("the engine refuses the API key")
    async with stage.running():
        await stage.until(lambda s: s.reasons == ("the engine refuses the API key",), limit_s=1)
        await anyio.sleep(60)
        stage.engine.rejects = None
        await stage.until(is_ready)
    assert stage.snapshot.reasons == ()


async def test_the_start_deadline_is_said_and_the_search_goes_on():
    """Past the deadline: failed, with its exit code; an engine that comes still is found."""
    stage = Stage(start_deadline_s=100.0)
    stage.engine.state = Health.REFUSED
    stage.engine.rejects = EngineUnavailable("nobody there")
    async with stage.running():
        await stage.until(lambda s: s.state is State.FAILED)
        assert stage.snapshot.exit_code is ExitCode.ENGINE_UNAVAILABLE
        assert "start deadline of 100 s" in " ".join(stage.snapshot.reasons)
        await anyio.sleep(500)
        stage.engine.state, stage.engine.rejects = Health.UP, None
        await stage.until(is_ready)


async def test_a_cold_cell_keeps_the_gate_shut_and_is_tried_again():
    """Seen paying at the end of the budget: failed with reasons, then a new round, on and on."""
    stage = Stage(budget_s=20.0, retry_first_s=10.0)

    def never_warm(replay):
        replay.never_warm = frozenset({CELLS[1]})

    stage.setup = never_warm
    async with stage.running():
        await stage.until(lambda s: s.state is State.FAILED)
        assert stage.snapshot.exit_code is ExitCode.NOT_CONVERGED
        assert any(CELLS[1].id in reason for reason in stage.snapshot.reasons)
        assert stage.snapshot.reasons[-1] == "tried again in 10 s"
        failed_at = anyio.current_time()
        await stage.until(lambda s: s.state is State.WARMING)
        assert anyio.current_time() - failed_at == pytest.approx(10, abs=1)
        await stage.until(lambda s: s.state is State.FAILED)
        assert stage.snapshot.reasons[-1] == "tried again in 20 s"
        stage.replays[0].never_warm = frozenset()
        await stage.until(is_ready)
    assert len(stage.replays) == 1, "evidence belongs to the boot"
    assert State.READY not in stage.states()[:-1]


async def test_a_cell_that_fails_keeps_the_gate_shut_and_the_rest_goes_on():
    """A cell whose requests fail is named with status and message; the others get their waves."""
    stage = Stage(retry_first_s=10.0)
    stage.setup = lambda replay: setattr(
        replay, "fails", lambda look: look.cell.prompt_tokens == 513
    )
    async with stage.running():
        await stage.until(lambda s: s.state is State.FAILED)
    said = " ".join(stage.snapshot.reasons)
    assert CELLS[1].id in said
    assert "500" in said
    assert "boom" in said
    done = {row.cell for row in stage.snapshot.waves if row.outcome is WaveOutcome.VALID}
    assert {CELLS[0].id, CELLS[2].id} == done


async def test_an_engine_that_refuses_every_wave_stays_behind_a_shut_gate():
    """Nothing is broken and nothing cold was seen, but nothing was seen at all: not converged."""

    def refuse(replay):
        replay.fails, replay.fails_with = lambda _: True, 503

    stage = Stage(budget_s=60.0, open_unproven=True)
    stage.setup = refuse
    async with stage.running():
        await stage.until(lambda s: s.state is State.FAILED)
        assert "the engine has answered no wave of the grid" in stage.snapshot.reasons
        assert stage.snapshot.exit_code is ExitCode.NOT_CONVERGED
        stage.replays[-1].fails = None
        await stage.until(is_ready)


@pytest.mark.parametrize("is_open", [True, False])
async def test_missing_proof_opens_or_not_as_the_operator_says(is_open):
    """Nothing cold seen but not all proven: open without proof, or shut with exit code 5."""
    stage = Stage(open_unproven=is_open)
    stage.engine.facts = type(FACTS)(version="0.33.0", models=("tiny",), model="tiny", ranks=2)
    async with stage.running():
        await stage.until(lambda s: s.is_ready or s.state is State.FAILED)
    snapshot = stage.snapshot
    assert (is_open, False) == (snapshot.is_ready, snapshot.proven)
    assert snapshot.reasons
    assert snapshot.exit_code is (None if is_open else ExitCode.EVIDENCE_MISSING)


async def test_a_plan_that_is_refused_is_failed_with_its_sentence():
    """What can't run on this engine is said, with exit code 2, and nothing is sent."""
    stage = Stage()
    stage.refusal = "completions-c1-p99999-o2 can't run: too long"
    async with stage.running():
        await stage.until(lambda s: s.state is State.FAILED)
    assert stage.snapshot.exit_code is ExitCode.CONFIG
    assert stage.snapshot.reasons[0] == stage.refusal
    assert stage.sent == 0


async def test_an_empty_grid_never_opens():
    """No wave, no evidence, no open gate."""
    stage = Stage(cells=())
    async with stage.running():
        await stage.until(lambda s: s.state is State.FAILED)
    assert stage.sent == 0


async def test_a_bug_keeps_the_gate_shut_and_is_tried_again(caplog):
    """Any exception inside a warm-up is a reason, exit code 1, never an open gate."""
    stage = Stage(retry_first_s=5.0)
    bugs = []

    async def bug(look):
        if not bugs:
            bugs.append(look)
            raise ZeroDivisionError("oops")

    stage.setup = lambda replay: setattr(replay, "on_wave", bug)
    async with stage.running():
        await stage.until(lambda s: s.state is State.FAILED)
        assert stage.snapshot.exit_code is ExitCode.BUG
        assert "oops" in stage.snapshot.reasons[0]
        await stage.until(is_ready)
    assert "ZeroDivisionError" in caplog.text


async def test_a_kept_verdict_is_adopted_and_nothing_is_sent():
    """A sidecar that restarts beside the same boot opens at once."""
    store = MemoryStore()
    first = Stage(store=store)
    async with first.running():
        await first.until(is_ready)
        await anyio.sleep(15)
    second = Stage(store=store, engine=first.engine)
    started_at = anyio.current_time()
    async with second.running():
        await second.until(is_ready)
        assert anyio.current_time() - started_at <= 3
    assert (second.snapshot.adopted, second.snapshot.proven) == (True, True)
    assert second.sent == 0
    assert second.snapshot.verdict == first.snapshot.verdict
    assert second.states() == [State.WAITING, State.READY]


async def test_a_verdict_that_could_not_be_kept_is_kept_when_it_can():
    """The volume was full at the opening: once it isn't, a restart adopts and sends nothing."""
    store = MemoryStore()
    store.is_full = True
    first = Stage(store=store)
    async with first.running():
        await first.until(is_ready)
        await anyio.sleep(30)
        assert store.kept is None
        store.is_full = False
        await anyio.sleep(15)
    second = Stage(store=store, engine=first.engine)
    async with second.running():
        await second.until(is_ready)
    assert second.snapshot.adopted
    assert second.sent == 0


async def test_an_adopted_boot_that_blinks_is_still_adopted():
    """The same boot back: open again, and still said to be adopted."""
    store = MemoryStore()
    first = Stage(store=store)
    async with first.running():
        await first.until(is_ready)
    second = Stage(store=store, engine=first.engine)
    async with second.running():
        await second.until(is_ready)
        second.engine.state = Health.REFUSED
        await second.until(lambda s: not s.is_ready)
        second.engine.state = Health.UP
        await second.until(is_ready)
    assert second.snapshot.adopted
    assert second.sent == 0


async def test_another_boot_does_not_adopt():
    """A verdict belongs to the boot that was warmed."""
    store = MemoryStore()
    first = Stage(store=store)
    async with first.running():
        await first.until(is_ready)
    first.engine.boot += 7
    second = Stage(store=store, engine=first.engine)
    async with second.running():
        await second.until(is_ready)
    assert not second.snapshot.adopted
    assert second.sent > 0


async def test_an_engine_told_by_its_counters_is_adopted_while_they_are_fresh():
    """Without a start time the counters tell the boot, and they are looked at again and again."""
    store = MemoryStore()
    engine = FakeEngine()
    engine.tells_start = False
    first = Stage(store=store, engine=engine)
    async with first.running():
        await first.until(is_ready)
        await anyio.sleep(600)
    assert len(store.refreshed) >= 50
    second = Stage(store=store, engine=engine)
    async with second.running():
        await second.until(is_ready)
    assert second.snapshot.adopted
    await anyio.sleep(100)
    third = Stage(store=store, engine=engine)
    async with third.running():
        await third.until(is_ready)
    assert not third.snapshot.adopted


async def test_what_stands_between_a_kept_verdict_and_its_adoption():
    """Other shapes, another engine, an untold boot, stale counters or missing proof."""
    store = MemoryStore()
    stage = Stage(store=store)
    async with stage.running():
        await stage.until(is_ready)
    kept = store.kept
    now = {
        "boot": kept.boot,
        "now": kept.marked_at + 1e6,
        "shapes_digest": "d1",
        "url": kept.url,
        "facts": FACTS,
        "open_unproven": True,
    }
    assert objection(kept, **now) is None
    assert "shapes" in objection(kept, **{**now, "shapes_digest": "d2"})
    assert "max_model_len" in objection(kept, **{**now, "facts": replace(FACTS, max_model_len=9)})
    assert objection(kept, **{**now, "facts": replace(FACTS, max_model_len=None)}) is None
    assert "boot" in objection(kept, **{**now, "boot": BootMark(version="0.33.0")})
    by_counters = replace(kept.boot, process_start_s=None)
    counted = replace(kept, boot=by_counters)
    assert "counters" in objection(counted, **{**now, "boot": by_counters})
    soon = {**now, "boot": by_counters, "now": kept.marked_at + 30}
    assert objection(counted, **soon) is None
    assert "address" in objection(counted, **{**soon, "url": "http://other:8000"})
    assert objection(kept, **{**now, "url": "http://other:8000"}) is None
    unproven = replace(kept, proven=False)
    assert objection(unproven, **now) is None
    assert "not proven" in objection(unproven, **{**now, "open_unproven": False})


async def test_stop_shuts_first_and_for_good(caplog):
    """After stop nothing opens the gate, though the warm-up still runs to its end, quietly."""
    stage = Stage()
    async with stage.running():
        await stage.until(lambda s: len(s.waves) >= 1)
        await stage.conductor.stop()
        assert stage.snapshot.state is State.STOPPING
        await anyio.sleep(60)
        assert not stage.file.is_there
        await stage.conductor.stop()
    assert stage.states()[-1] is State.STOPPING
    assert "bug" not in caplog.text


async def test_the_report_tells_the_cost():
    """The report of a warm-up has cold against warm of each cell, and the window it took."""
    store = MemoryStore()
    stage = Stage(store=store)
    async with stage.running():
        await stage.until(is_ready)
    report = stage.conductor.report
    assert [report] == store.reports
    assert report.opening.open
    assert (report.ended - report.began).total_seconds() >= 3.0
    assert report.totals.waves == {WaveOutcome.VALID: stage.sent}
    for cell in report.verdict.cells:
        assert cell.figures[0].first_f_s == pytest.approx(1.0)
        assert cell.figures[0].baseline_f_s == pytest.approx(0.02)


async def test_a_step_near_the_engines_own_limit_is_warned_of():
    """A compile of minutes is survived this time; the next may kill the engine, so it is said."""
    stage = Stage(budget_s=5000.0)
    stage.setup = lambda replay: setattr(replay, "cold_s", 200.0)
    async with stage.running():
        await stage.until(is_ready)
        said = " ".join(stage.snapshot.warnings)
    assert "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS" in said
    assert all(cell.id in said for cell in CELLS)


async def test_a_budget_that_cant_be_met_is_said_before_the_first_request():
    """By assumed speeds at first, by the last warm-up's after it; a guess refuses nothing."""
    cells = (Cell(1, 4000, 2000),)
    store = MemoryStore()
    stage = Stage(cells=cells, store=store, budget_s=60.0)
    async with stage.running():
        await stage.until(lambda s: s.is_active)
        assert any(
            "the grid needs about 122 s in 3 passes at" in w for w in stage.snapshot.warnings
        )
        assert stage.sent == 1
        await stage.until(is_ready)
        assert not any("the grid needs" in w for w in stage.snapshot.warnings)
    (report,) = store.reports
    assert report.speed == stage.snapshot.speed is not None
    later = Stage(cells=cells, store=store, budget_s=20.0)
    later.engine.boot += 50
    async with later.running():
        await later.until(lambda s: s.is_active)
        (told,) = (w for w in later.snapshot.warnings if "the grid needs about 30 s" in w)
        assert "measured on tiny at http://engine:8000" in told
        assert later.snapshot.eta_s is not None

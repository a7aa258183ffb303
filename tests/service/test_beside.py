"""The conductor among fakes: what the log tells beside the waves, absences, deaths."""

from contextlib import asynccontextmanager

import anyio
import pytest

from sidecar.core.grid.cells import Gait
from sidecar.core.logs.events import Compile, Complaint, Phase, Started, Step, Trouble
from sidecar.core.logs.head import Origin
from sidecar.core.logs.items import Began, Ended
from sidecar.core.logs.seen import Seen
from sidecar.core.policy import Rhythm
from sidecar.core.watch.boot import BootMark
from sidecar.core.watch.deaths import InFlight
from sidecar.core.watch.escapes import Batch
from sidecar.core.watch.gate import State
from sidecar.core.watch.presence import Presence, sentence
from sidecar.core.wire.health import Health
from sidecar.watch import NOT_ONE_ENGINE
from tests.service.fakes import CELLS, MemoryStore, Stage
from tests.service.virtualtime import VirtualLoop

ENGINE = Origin("EngineCore", 7)


@pytest.fixture(scope="module")
def anyio_backend():
    return "asyncio", {"loop_factory": VirtualLoop}


def is_ready(snapshot):
    return snapshot.is_ready


def compiled(kernel="moe_kernel"):
    return Compile(ENGINE, "Triton", "kernel JIT compilation", kernel)


def tell(stage, what, *, in_wave=False):
    stage.conductor.hear(Seen("file:///log", anyio.current_time(), what, in_wave))


# --- escapes -------------------------------------------------------------------------------------


async def test_only_what_compiles_while_the_gate_is_open_is_an_escape():
    """Not before it opened, not in a wave of ours, not after it shut."""
    stage = Stage(store=MemoryStore())
    async with stage.running():
        await stage.until(lambda s: s.state is State.WARMING)
        tell(stage, compiled("before"))
        await stage.until(is_ready)
        tell(stage, compiled("ours"), in_wave=True)
        assert stage.snapshot.escapes.total == 0
        tell(stage, compiled())
        tell(stage, Step(ENGINE, 0, 1, 2, 700, 0, 0, 0.04))
        assert stage.snapshot.is_ready, "counted, and no more, unless the file says otherwise"
        assert any("hole in the declared grid" in w for w in stage.snapshot.warnings)
        stage.engine.state = Health.REFUSED
        await stage.until(lambda s: not s.is_ready)
        tell(stage, compiled("after"))
    (escape,) = stage.snapshot.escapes.recent
    assert (escape.kernel, escape.at) == ("moe_kernel", pytest.approx(1_700_001_000, abs=100))
    assert "700 tokens" in escape.step


async def test_escapes_are_added_to_the_report_of_the_warm_up_before_them():
    """With their steps, within one look at the engine's identity, and each once."""
    store = MemoryStore()
    stage = Stage(store=store)
    async with stage.running():
        await stage.until(is_ready)
        for kernel in ("a", "b"):
            tell(stage, compiled(kernel))
        tell(stage, Step(ENGINE, 0, 1, 2, 700, 0, 0, 0.04))
        await anyio.sleep(25)
    assert [(nonce, e.kernel, bool(e.step)) for nonce, e in store.escapes] == [
        ("n1", "a", True),
        ("n1", "b", True),
    ]
    assert stage.conductor.report.escapes_total == 2


async def test_a_step_that_comes_late_reaches_the_report_all_the_same():
    """A compile may last for minutes behind its line; each escape is counted once."""
    store = MemoryStore()
    stage = Stage(store=store)
    async with stage.running():
        await stage.until(is_ready)
        tell(stage, compiled())
        await anyio.sleep(25)
        assert [e.batch for _, e in store.escapes] == [None]
        tell(stage, Step(ENGINE, 0, 1, 1, 513, 0, 0, 0.04))
        await anyio.sleep(25)
    (escape,) = stage.conductor.report.escapes
    assert escape.batch == Batch(1, 513, 0, 0)
    assert stage.conductor.report.escapes_total == 1


async def test_a_sidecar_that_is_stopped_leaves_its_escapes_behind():
    """They are not lost because they came since the last look at the engine."""
    store = MemoryStore()
    stage = Stage(store=store)
    async with stage.running():
        await stage.until(is_ready)
        tell(stage, compiled())
        await stage.conductor.stop()
        assert [e.kernel for _, e in store.escapes] == ["moe_kernel"]


async def test_rewarm_shuts_with_a_reason_warms_the_same_boot_and_opens():
    """Other prompts, for the prefix cache knows the first; one boot is counted once."""
    store = MemoryStore()
    stage = Stage(store=store, rewarm_on_escape=True, rewarm_pause_s=60.0)
    async with stage.running():
        await stage.until(is_ready)
        await anyio.sleep(70)
        tell(stage, compiled())
        await stage.until(lambda s: not s.is_ready, limit_s=2)
        assert "moe_kernel (Triton) was compiled" in stage.snapshot.reasons[0]
        await stage.until(lambda s: s.is_active)
        assert store.kept is None, "a sidecar that is killed now must not adopt it"
        await stage.until(is_ready)
        assert stage.snapshot.reasons == ()
    assert (stage.snapshot.totals.boots, len(stage.replays)) == (1, 2)
    assert stage.replays[0].nonce != stage.replays[1].nonce == stage.snapshot.nonce
    assert stage.replays[1].looks


async def test_rewarm_is_limited_and_catches_up_after_the_pause():
    """A grid with a hole must not be warmed without end while users wait."""
    stage = Stage(rewarm_on_escape=True, rewarm_pause_s=60.0)
    async with stage.running():
        await stage.until(is_ready)
        opened_at = anyio.current_time()
        tell(stage, compiled())
        await anyio.sleep(50)
        assert stage.snapshot.is_ready
        await stage.until(lambda s: not s.is_ready, limit_s=30)
        assert anyio.current_time() - opened_at >= 60
        await stage.until(is_ready)
        await anyio.sleep(200)
        assert stage.snapshot.is_ready, "one escape, one warm-up"
    assert len(stage.replays) == 2


# --- boots ---------------------------------------------------------------------------------------


async def test_a_sign_of_a_restart_is_looked_into_at_once_and_counted_once():
    """The container's restart, its end and the start line of one boot lead to one more boot."""
    stage = Stage(rhythm=Rhythm(health_every_s=50.0, mark_every_s=50.0))
    async with stage.running():
        await stage.until(is_ready)
        stage.engine.boot += 50
        tell(stage, Ended(1.0, "abc", "exit code 0", exit_code=0))
        tell(stage, Began(1.0, "abc", "2099-01-01T00:00:00.123456789Z", 1, "restarted"))
        await stage.until(lambda s: not s.is_ready, limit_s=2)
        assert stage.snapshot.reasons[0].startswith("the engine was restarted (its container was")
        await stage.until(is_ready)
        tell(stage, Started(ENGINE, Phase.ARGUMENTS))
        await anyio.sleep(2)
        assert stage.snapshot.is_ready
    assert stage.snapshot.totals.boots == 2


async def test_a_start_line_alone_is_believed_by_nobody():
    """A user may have written it: the engine is asked, and the log's word is taken back."""
    stage = Stage()
    async with stage.running():
        await stage.until(is_ready)
        tell(stage, Started(ENGINE, Phase.ARGUMENTS))
        tell(stage, Trouble(ENGINE, Complaint.ENGINE_DEAD, "…"))
        await anyio.sleep(1)
        assert stage.snapshot.is_ready
        assert len(stage.rejected) == 1
        await anyio.sleep(30)
        assert len(stage.rejected) == 1
    assert stage.snapshot.totals.boots == 1


async def test_a_flood_of_such_lines_is_no_flood_of_questions():
    """Anybody can write them; the engine is asked once a second at most."""
    stage = Stage()
    async with stage.running():
        await stage.until(is_ready)
        marks = stage.engine.marks
        for _ in range(1000):
            tell(stage, Trouble(ENGINE, Complaint.ENGINE_DEAD, "…"))
            tell(stage, Started(ENGINE, Phase.ARGUMENTS))
            await anyio.sleep(0.01)
        assert stage.engine.marks - marks <= 13
        assert stage.snapshot.is_ready


@pytest.mark.parametrize(
    ("moment", "boots"), [("2000-01-01T00:00:00Z", 1), ("2099-01-01T00:00:00Z", 2)]
)
async def test_an_engine_that_tells_nothing_is_new_when_docker_says_so(moment, boots):
    """But not for a run of the container that was met already: the word came late."""
    stage = Stage(open_unproven=True)
    stage.engine.has_metrics = False
    async with stage.running():
        await stage.until(is_ready)
        tell(stage, Began(1.0, "abc", moment, 1, "restarted"))
        await anyio.sleep(5)
        await stage.until(is_ready)
    assert stage.snapshot.totals.boots == boots


# --- asleep, paused, rescaling -------------------------------------------------------------------

AWAY = [each for each in Presence if each.is_away]


@pytest.mark.parametrize("presence", AWAY)
async def test_an_engine_that_is_away_shuts_with_its_reason_and_is_warmed_again(presence):
    """The process lives, /health is 200: shut within three seconds; the return costs a warm-up."""
    store = MemoryStore()
    stage = Stage(store=store)
    async with stage.running():
        await stage.until(is_ready)
        stage.engine.presence_is = presence
        went_at = anyio.current_time()
        await stage.until(lambda s: not s.is_ready)
        assert anyio.current_time() - went_at <= 3.0
        await anyio.sleep(60)
        assert stage.snapshot.reasons == (sentence(presence),)
        assert stage.snapshot.state is State.WAITING
        assert store.kept is None, "a sidecar that restarts meanwhile must not adopt it"
        stage.engine.presence_is = Presence.SERVING
        await stage.until(is_ready)
    assert (stage.snapshot.totals.boots, len(stage.replays)) == (1, 2)
    assert stage.replays[1].looks
    assert not stage.snapshot.adopted


@pytest.mark.parametrize("presence", AWAY)
async def test_by_a_setting_a_light_sleep_keeps_the_verdict(presence):
    """Level 1 and a pause leave what was compiled; level 2, a rescale and the unknown do not."""
    stage = Stage(store=MemoryStore(), sleep_keeps_verdict=True)
    async with stage.running():
        await stage.until(is_ready)
        stage.engine.presence_is = presence
        await stage.until(lambda s: not s.is_ready)
        stage.engine.presence_is = Presence.SERVING
        await stage.until(is_ready)
    assert len(stage.replays) == (1 if presence.keeps_kernels else 2)


async def test_a_sleep_that_deepens_while_it_lasts_is_a_deep_one():
    """Level 1, then level 2: what counts is the deepest."""
    stage = Stage(sleep_keeps_verdict=True)
    async with stage.running():
        await stage.until(is_ready)
        stage.engine.presence_is = Presence.SLEEP_1
        await stage.until(lambda s: not s.is_ready)
        await anyio.sleep(5)
        stage.engine.presence_is = Presence.SLEEP_2
        await anyio.sleep(5)
        stage.engine.presence_is = Presence.SLEEP_1
        await anyio.sleep(5)
        stage.engine.presence_is = Presence.SERVING
        await stage.until(is_ready)
    assert len(stage.replays) == 2


async def test_a_sidecar_that_meets_a_sleeping_engine_waits_and_does_not_adopt():
    """What it slept through is not known."""
    store = MemoryStore()
    first = Stage(store=store)
    async with first.running():
        await first.until(is_ready)
    second = Stage(store=store, engine=first.engine)
    first.engine.presence_is = Presence.SLEEP_2
    async with second.running():
        await anyio.sleep(10)
        assert second.snapshot.reasons == (sentence(Presence.SLEEP_2),)
        assert second.sent == 0
        assert store.kept is None, "it may be killed before the engine wakes"
        first.engine.presence_is = Presence.SERVING
        await second.until(is_ready)
    assert not second.snapshot.adopted
    assert second.sent


async def test_a_verdict_that_can_not_be_forgotten_is_not_adopted_all_the_same():
    """A state folder that hangs at the wrong moment."""

    class Stubborn(MemoryStore):
        async def forget(self):
            await anyio.sleep(5)

    store = Stubborn()
    first = Stage(store=store)
    async with first.running():
        await first.until(is_ready)
    second = Stage(store=store, engine=first.engine)
    first.engine.presence_is = Presence.RESCALING
    async with second.running():
        await anyio.sleep(20)
        first.engine.presence_is = Presence.SERVING
        await second.until(is_ready)
    assert (second.snapshot.adopted, bool(second.sent)) == (False, True)


async def test_a_pause_in_the_middle_of_a_wave_blames_no_cell():
    """Its requests hang; the wave is cut off, and the cell is sent again after it."""
    store = MemoryStore()
    stage = Stage(store=store)
    hung = []

    async def hang_once(look):
        if not hung:
            hung.append(look)
            stage.engine.presence_is = Presence.PAUSED
            await anyio.sleep(3000)

    stage.setup = lambda replay: setattr(replay, "on_wave", hang_once)
    async with stage.running():
        await stage.until(lambda s: any("/resume" in reason for reason in s.reasons), limit_s=10)
        await anyio.sleep(1)
        assert store.wave is None, "were the engine restarted now, nobody would be to blame"
        stage.engine.presence_is = Presence.SERVING
        await stage.until(is_ready)
    assert store.dead == ()
    assert stage.snapshot.proven


async def test_an_engine_that_is_paused_after_the_last_wave_is_not_opened():
    """The last look before the opening sees it."""
    stage = Stage(rhythm=Rhythm(presence_every_s=1000.0))

    async def pause(look):
        if len(stage.replays[0].looks) == 6:
            stage.engine.presence_is = Presence.PAUSED

    stage.setup = lambda replay: setattr(replay, "on_wave", pause)
    async with stage.running():
        await stage.until(lambda s: any("/resume" in reason for reason in s.reasons))
    assert State.READY not in stage.states()


# --- cells that an engine died on ----------------------------------------------------------------


class Killer:
    """An engine that dies whenever one cell is sent, and is back as another boot."""

    def __init__(self, store, cell=CELLS[1], **policy):
        self.cell = cell
        self.stage = Stage(store=store, **policy)
        self.stage.setup = lambda replay: setattr(replay, "on_wave", self)
        self.kills = 0
        self.is_harmless = False

    async def __call__(self, look):
        if look.cell != self.cell or self.is_harmless:
            return
        self.kills += 1
        self.stage.engine.state = Health.REFUSED
        await anyio.sleep(3000)

    async def revive(self):
        while True:
            await anyio.sleep(3)
            if not self.stage.engine.state.is_up:
                self.stage.engine.boot += 1
                self.stage.engine.state = Health.UP

    @asynccontextmanager
    async def running(self):
        async with self.stage.running(), anyio.create_task_group() as group:
            group.start_soon(self.revive)
            yield
            group.cancel_scope.cancel()


def is_held(snapshot):
    return any("is held back" in reason for reason in snapshot.reasons)


async def test_a_cell_that_killed_the_engine_is_held_back_and_the_rest_is_warmed():
    """The next boot does not get it; the gate stays shut and says what to change."""
    store = MemoryStore()
    killer = Killer(store)
    stage = killer.stage
    async with killer.running():
        await stage.until(is_held)
        tell(stage, compiled())
        assert stage.snapshot.state is State.FAILED
        assert "vllm-warmup state clear" in stage.snapshot.reasons[0]
        assert stage.snapshot.held == (CELLS[1].id,)
        await anyio.sleep(3000)
        assert (killer.kills, stage.snapshot.totals.boots) == (1, 2)
        assert {look.cell for look in stage.replays[-1].looks} == set(CELLS) - {CELLS[1]}
        done = [cell.standing for cell in stage.snapshot.verdict.cells]
        assert done == ["done"] * 2
    assert State.READY not in stage.states()


async def test_while_it_is_held_back_nothing_is_tried():
    """A new attempt would send nothing, and put an empty report over the one that says it all."""
    store = MemoryStore()
    killer = Killer(store)
    stage = killer.stage
    async with killer.running():
        await stage.until(is_held)
        before = stage.states(), len(store.reports)
        assert not any("tried again" in reason for reason in stage.snapshot.reasons)
        await anyio.sleep(3000)
        assert (stage.states(), len(store.reports)) == before


async def test_clearing_it_goes_on_within_seconds():
    """The operator has changed a flag, and does not wait for the next try."""
    store = MemoryStore()
    killer = Killer(store)
    stage = killer.stage
    async with killer.running():
        await stage.until(is_held)
        await anyio.sleep(2000)
        killer.is_harmless, store.dead = True, ()
        cleared_at = anyio.current_time()
        await stage.until(is_ready)
        assert anyio.current_time() - cleared_at < 60
    assert stage.snapshot.held == ()
    assert {c.cell for c in stage.snapshot.verdict.cells} == set(CELLS)


async def test_what_the_log_said_of_the_end_is_remembered():
    """Out of memory is more telling than the death that followed from it."""
    store = MemoryStore()
    killer = Killer(store)
    stage = killer.stage
    async with killer.running():
        await stage.until(lambda s: s.is_active and stage.replays[0].looks[-1].cell == CELLS[1])
        tell(
            stage, Trouble(ENGINE, Complaint.OUT_OF_MEMORY, "torch.OutOfMemoryError"), in_wave=True
        )
        tell(stage, Trouble(ENGINE, Complaint.ENGINE_DEAD, "EngineDeadError"), in_wave=True)
        await stage.until(is_held)
    (death,) = store.dead
    assert death.cause == "out of memory"
    assert "--gpu-memory-utilization" in stage.snapshot.reasons[0]


async def test_a_start_that_was_none_hides_no_sign_of_the_end():
    """A user wrote it in the middle of a wave: what the log says after it is of this life."""
    store = MemoryStore()
    killer = Killer(store)
    stage = killer.stage

    async def forge(look):
        if look.cell == killer.cell and not killer.kills:
            tell(stage, Started(ENGINE, Phase.ARGUMENTS), in_wave=True)
            await anyio.sleep(2)
            tell(stage, Trouble(ENGINE, Complaint.OUT_OF_MEMORY, "…"), in_wave=True)
        await killer(look)

    stage.setup = lambda replay: setattr(replay, "on_wave", forge)
    async with killer.running():
        await stage.until(is_held)
    assert len(stage.rejected) == 1
    assert [death.cause for death in store.dead] == ["out of memory"]


async def test_a_server_that_was_stopped_in_order_did_not_die_of_its_cell():
    """An operator who restarts a container in the middle of a warm-up need not clear anything."""
    store = MemoryStore()
    killer = Killer(store)
    stage = killer.stage
    async with killer.running():
        await stage.until(lambda s: s.is_active and stage.replays[0].looks[-1].cell == CELLS[1])
        tell(stage, Ended(1.0, "abc", "exit code 0", exit_code=0), in_wave=True)
        killer.is_harmless = True
        await stage.until(is_ready)
    assert (store.dead, killer.kills) == ((), 1)


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_how_it_ended_may_be_told_after_it_was_gone(is_restarted):
    """Docker says so a moment after the connection broke; of the next life's end nothing counts."""
    store = MemoryStore()
    killer = Killer(store)
    stage = killer.stage
    async with killer.running():
        await stage.until(lambda s: store.wave is not None and store.wave.lost)
        if is_restarted:
            tell(stage, Began(1.0, "abc", "2026-11-29T17:14:24Z", 1, "restarted"))
        tell(stage, Ended(1.0, "abc", "exit code 0", exit_code=0))
        killer.is_harmless = True
        await stage.until(is_held if is_restarted else is_ready)
    assert len(store.dead) == int(is_restarted)


@pytest.mark.parametrize("dies", [False, True])
async def test_a_sidecar_that_was_killed_in_a_wave(dies):
    """Kill -9 of both is a death of that cell; of the sidecar alone it is none."""
    store = MemoryStore()
    first = Stage(store=store)
    kept = []

    async def hang(look):
        if look.cell == CELLS[1]:
            kept.append(store.wave)
            await anyio.sleep(3000)

    first.setup = lambda replay: setattr(replay, "on_wave", hang)
    async with first.running():
        await first.until(lambda s: bool(kept))
    assert kept[0].cell == CELLS[1].id
    store.wave = kept[0]
    first.engine.boot += int(dies)
    second = Stage(store=store, engine=first.engine)
    async with second.running():
        await second.until(is_held if dies else is_ready)
    assert len(store.dead) == int(dies)
    assert store.wave is None


async def test_a_sidecar_that_ends_in_order_leaves_nothing_in_flight():
    """`docker compose down` in the middle of a wave blames no cell of the next day."""
    store = MemoryStore()
    stage = Stage(store=store)
    seen = []

    async def hang(look):
        seen.append(store.wave)
        await anyio.sleep(3000)

    stage.setup = lambda replay: setattr(replay, "on_wave", hang)
    async with stage.running():
        await stage.until(lambda s: bool(seen))
        await stage.conductor.stop()
        assert store.wave is None
    assert seen[0] is not None


@asynccontextmanager
async def hanging(stage):
    """Run the conductor until its first wave hangs."""
    hung = anyio.Event()

    async def hang(look):
        hung.set()
        await anyio.sleep(3000)

    stage.setup = lambda replay: setattr(replay, "on_wave", hang)
    async with stage.running():
        await hung.wait()
        yield


async def test_once_leaves_nothing_in_flight_either():
    """Of several engines one is tried again when the others have ended: that wave is cut off."""
    store = MemoryStore()
    stage = Stage(store=store)
    async with hanging(stage):
        assert store.wave is not None
    await stage.conductor.settle()
    assert store.wave is None


async def test_a_slow_folder_is_given_a_second_chance_at_the_end():
    """The first try to say that nothing is in flight was cut off by its limit."""
    store = MemoryStore()
    stage = Stage(store=store)
    land, takes_s = store.land, [0.6, 0.0]

    async def slow_land():
        await anyio.sleep(takes_s.pop(0))
        await land()

    store.land = slow_land
    async with hanging(stage):
        await stage.conductor.stop()
        assert store.wave is not None
        await stage.conductor.stop()
    assert store.wave is None


async def test_an_engine_that_ends_with_its_sidecar_died_of_no_cell():
    """The end of a Pod reaches both, and the engine is gone while the sidecar still stops."""
    store = MemoryStore()
    stage = Stage(store=store)

    async def slow_remove():
        await anyio.sleep(5)

    async with hanging(stage), anyio.create_task_group() as group:
        stage.file.remove = slow_remove
        group.start_soon(stage.conductor.stop)
        await stage.until(lambda s: s.state is State.STOPPING)
        stage.engine.state = Health.REFUSED
    assert store.wave is None


async def test_between_waves_nothing_is_in_flight():
    """An engine that dies at rest did not die of the cell before."""
    store = MemoryStore()
    stage = Stage(store=store)
    async with stage.running():
        await stage.until(is_ready)
        assert store.wave is None
        stage.engine.state = Health.REFUSED
        await stage.until(lambda s: not s.is_ready)
        stage.engine.boot += 1
        stage.engine.state = Health.UP
        await stage.until(is_ready)
    assert store.dead == ()


async def test_two_engines_behind_one_address_blame_no_cell():
    """Another identity in the middle of a wave, and then the first again: nobody died."""
    store = MemoryStore()
    stage = Stage(store=store)
    hung = []

    async def hang_once(look):
        if not hung:
            hung.append(look)
            stage.engine.boots_in_turn = (100.0, 200.0)
            await anyio.sleep(3000)

    stage.setup = lambda replay: setattr(replay, "on_wave", hang_once)
    async with stage.running():
        await stage.until(lambda s: NOT_ONE_ENGINE in s.reasons)
        stage.engine.boots_in_turn = None
        stage.engine.boot = 200.0
        await stage.until(is_ready)
    assert (store.dead, store.wave) == ((), None)


async def test_what_happened_at_another_address_says_nothing_of_this_one():
    """The sidecar was pointed at another engine after it was killed in a wave."""
    store = MemoryStore()
    stage = Stage(store=store)
    store.wave = InFlight(
        CELLS[1].id, Gait.LED, 5.0, BootMark(process_start_s=1.0), "http://other:8000", "tiny", "1"
    )
    async with stage.running():
        await stage.until(is_ready)
    assert (store.dead, store.wave) == ((), None)

"""Hand-made stand-ins for everything around the conductor, on a virtual clock."""

from dataclasses import replace

import anyio
import anyio.lowlevel

from sidecar.core.facts import EngineFacts
from sidecar.core.grid.cells import Cell, Look, Variant
from sidecar.core.grid.plan import Plan
from sidecar.core.policy import Policy
from sidecar.core.results import Outcome, Result, WaveResult
from sidecar.core.watch.boot import BootMark
from sidecar.core.watch.presence import Presence
from sidecar.core.wire.health import Health
from sidecar.core.wire.metrics import CounterDelta
from sidecar.warmup import Conductor

FACTS = EngineFacts(version="0.33.0", models=("tiny",), model="tiny", max_model_len=4096, ranks=1)
CELLS = (Cell(1, 64, 2), Cell(1, 513, 2), Cell(1, 16, 2, Variant("other")))


class FakeEngine:
    """Says what its fields say. `boot` is the start time of its process."""

    def __init__(self):
        self.state = Health.UP
        self.boot = 100.0
        self.facts = FACTS
        self.rejects = None
        self.boots_in_turn = None
        self.health_takes_s = 0.0
        self.marks = 0
        self.tells_start = True
        self.has_metrics = True
        self.learned = 0
        self.on_learn = None
        self.answers = True
        self.presence_is = Presence.SERVING

    async def presence(self):
        await anyio.lowlevel.checkpoint()
        return self.presence_is if self.state.is_up else Presence.UNTOLD

    async def health(self):
        await anyio.sleep(self.health_takes_s)
        state = self.state
        if state is Health.RECONNECTED:  # said once: then the new connection is the kept one
            self.state = Health.UP
        return state

    async def learn(self):
        await anyio.sleep(0.01)
        if self.rejects is not None:
            raise self.rejects
        self.learned += 1
        facts = self.facts
        if self.on_learn is not None:
            self.on_learn()
        return facts

    async def mark(self):
        await anyio.sleep(0.01)
        self.marks += 1
        if not self.state.is_up or not self.answers:
            return BootMark()
        if not self.has_metrics:
            return BootMark(version="0.33.0")
        if self.boots_in_turn:
            self.boot = self.boots_in_turn[self.marks % len(self.boots_in_turn)]
        start_s = self.boot if self.tells_start else None
        return BootMark(process_start_s=start_s, requests=float(self.marks), version="0.33.0")


class FakeReplay:
    """Each cell is cold once for each boot of `engine`; a broken engine breaks the wave."""

    def __init__(self, engine, plan, nonce):
        self.engine = engine
        self.plan = plan
        self.nonce = nonce
        self.looks = []
        self.seen = set()
        self.cold_s = 1.0
        self.warm_s = 0.02
        self.never_warm = frozenset()
        self.fails = None
        self.fails_with = 500
        self.on_wave = None

    async def run(self, looks):
        """This engine has one rank."""
        (look,) = looks
        return [await self._wave(look)]

    async def _wave(self, look: Look) -> WaveResult:
        self.looks.append(look)
        if self.on_wave is not None:
            await self.on_wave(look)
        key = (self.engine.boot, look)
        is_cold = key not in self.seen
        self.seen.add(key)
        if look.cell in self.never_warm:  # quick once, so that it is known how quick it could be
            is_cold = self.looks.count(look) > 1
        took_s = self.cold_s if is_cold else self.warm_s
        at_s = anyio.current_time()
        await anyio.sleep(took_s + 0.01)
        if not self.engine.state.is_up:
            result = Result(Outcome.BROKEN, sent_s=0.0, message="connection reset")
        elif self.fails is not None and self.fails(look):
            result = Result(Outcome.HTTP_ERROR, sent_s=0.0, status=self.fails_with, message="boom")
        else:
            result = good(look.cell, took_s)
        return WaveResult(
            look=look,
            results=(result,),
            spread_s=0.0,
            took_s=took_s,
            at_s=at_s,
            counters=CounterDelta(
                requests=1,
                prompt_tokens=look.cell.prompt_tokens,
                generation_tokens=look.cell.output_tokens,
                computed_tokens=look.cell.prompt_tokens,
                cached_tokens=0,
                preemptions=0,
            ),
        )


def good(cell, ttft_s):
    tokens = cell.output_tokens
    return Result(
        Outcome.OK,
        sent_s=0.0,
        token_s=tuple(ttft_s + 0.005 * i for i in range(tokens)),
        prompt_tokens=cell.prompt_tokens,
        completion_tokens=tokens,
        cached_tokens=0,
        finish_reason="length",
        status=200,
    )


class MemoryStore:
    """The state folder, without a folder."""

    def __init__(self):
        self.kept = None
        self.load_takes_s = 0.0
        self.keep_takes_s = 0.0
        self.is_full = False
        self.reports = []
        self.refreshed = []
        self.troubles = ()
        self.wave = None
        self.dead = ()
        self.escapes = []

    async def load(self):
        await anyio.sleep(self.load_takes_s)
        return self.kept

    async def keep(self, kept):
        await anyio.sleep(self.keep_takes_s)
        if not self.is_full:
            self.kept = kept
        return not self.is_full

    async def refresh(self, mark, at):
        self.refreshed.append(mark)
        self.kept = replace(self.kept, boot=mark, marked_at=at)

    async def last_report(self):
        return self.reports[-1] if self.reports else None

    async def add_report(self, report):
        self.reports.append(report)

    async def add_escapes(self, nonce, escapes):
        self.escapes += [(nonce, escape) for escape in escapes]

    async def forget(self):
        self.kept = None

    async def take_off(self, wave):
        self.wave = wave

    async def land(self):
        self.wave = None

    async def in_flight(self):
        return self.wave

    async def bury(self, death):
        self.dead, self.wave = (*self.dead, death), None

    async def deaths(self):
        return self.dead


class MemoryFile:
    """The ready file, and what the gate said each time it was touched."""

    def __init__(self):
        self.is_there = True  # of an earlier life
        self.troubles = ()

    async def write(self):
        await anyio.lowlevel.checkpoint()
        self.is_there = True

    async def remove(self):
        await anyio.lowlevel.checkpoint()
        self.is_there = False


class Stage:
    """A conductor among fakes."""

    def __init__(self, *, cells=CELLS, store=None, engine=None, setup=None, **policy):
        self.engine = engine or FakeEngine()
        self.store = store
        self.file = MemoryFile()
        self.replays = []
        self.snapshots = []
        self.refusal = None
        self.rejected = []
        self.setup = setup
        self._changed = anyio.Event()
        nonces = iter(range(1, 1000))
        self.conductor = Conductor(
            Policy(url="http://engine:8000", sidecar_version="0.1.0", shapes_digest="d1", **policy),
            engine=self.engine,
            plan_for=lambda facts: Plan(cells=cells, facts=facts, refusal=self.refusal),
            replay_for=self._replay,
            utc=lambda: 1_700_000_000.0 + anyio.current_time(),
            nonce=lambda: f"n{next(nonces)}",
            store=store,
            ready_file=self.file,
            on_change=self._hear,
            reject_start=lambda: self.rejected.append(anyio.current_time()),
        )

    def _hear(self, snapshot):
        self.snapshots.append(snapshot)
        self._changed.set()

    def _replay(self, plan, nonce):
        replay = FakeReplay(self.engine, plan, nonce)
        if self.setup is not None:
            self.setup(replay)
        self.replays.append(replay)
        return replay

    @property
    def snapshot(self):
        return self.conductor.snapshot

    @property
    def sent(self):
        return sum(len(replay.looks) for replay in self.replays)

    def states(self):
        """The states that the gate went through, each once in a row."""
        states = [s.state for s in self.snapshots]
        return [s for i, s in enumerate(states) if i == 0 or s != states[i - 1]]

    async def until(self, condition, limit_s=5000.0):
        """Wait on the virtual clock until the snapshot meets `condition`."""
        with anyio.fail_after(limit_s):
            while not condition(self.snapshot):
                self._changed = anyio.Event()
                await self._changed.wait()

    def running(self):
        return _Running(self.conductor)


class _Running:
    def __init__(self, conductor):
        self.conductor = conductor
        self.group = anyio.create_task_group()

    async def __aenter__(self):
        await self.group.__aenter__()
        self.group.start_soon(self.conductor.run)

    async def __aexit__(self, *problem):
        self.group.cancel_scope.cancel()
        return await self.group.__aexit__(*problem)

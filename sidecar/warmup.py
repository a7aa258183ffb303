"""The conductor: wait → learn → plan → passes → verdict → gate → watch; a new boot starts over.

It orders and decides nothing itself: decisions are `core`'s, effects the adapters'. It is the
gate's only writer. Its parts: `search` finds a `boot`, `record` says whether an earlier sidecar had
warmed it, `warming` sends one `attempt` after another until the gate is open, `watch` loses it
again, `ear` hears of it beside that, `door` moves the gate and what hangs on it. All its time is
the event loop's (`anyio.current_time`, `anyio.sleep`), so that it runs on a virtual clock too.
"""

import logging
from collections.abc import Callable

import anyio

from sidecar.boot import Boot, Replay
from sidecar.core.errors import EngineUnavailable
from sidecar.core.facts import EngineFacts, costly
from sidecar.core.grid.cells import Look
from sidecar.core.grid.plan import Plan
from sidecar.core.logs.seen import Seen
from sidecar.core.policy import Policy
from sidecar.core.report import Report
from sidecar.core.watch import deaths, escapes
from sidecar.core.watch.boot import BootMark, Sightings
from sidecar.core.watch.gate import Event, Snapshot, State
from sidecar.core.watch.presence import Presence
from sidecar.door import Door, ReadyFile
from sidecar.ear import Ear
from sidecar.record import Record, Store
from sidecar.search import Found, Learned, Search
from sidecar.warming import Warming
from sidecar.watch import Loss, Watch

log = logging.getLogger(__name__)

_STOP_LIMIT_S = 0.5
"""For the state folder, when the sidecar is told to end."""


class Conductor:
    """Keeps one gate right for one engine, for as long as `run` runs."""

    def __init__(
        self,
        policy: Policy,
        *,
        engine: Learned,
        plan_for: Callable[[EngineFacts], Plan],
        replay_for: Callable[[Plan, str], Replay],
        utc: Callable[[], float],
        nonce: Callable[[], str],
        store: Store | None = None,
        ready_file: ReadyFile | None = None,
        on_change: Callable[[Snapshot], None] | None = None,
        more_warnings: Callable[[], tuple[str, ...]] = tuple,
        reject_start: Callable[[], None] | None = None,
    ) -> None:
        """`replay_for` is given the plan and the nonce of the run; `utc` are seconds since 1970;
        `more_warnings` are those of what runs beside the conductor. Where a log is read, `hear`
        is told of it, and `reject_start` called when a start that it told of was none."""
        self._policy = policy
        self._engine = engine
        self._utc = utc
        self._nonce = nonce
        self._more_warnings = more_warnings
        self._record = Record(policy, store, utc)
        self._door = Door(policy.url, utc=utc, ready_file=ready_file, on_change=on_change)
        self._gate = self._door.gate
        self._sightings = Sightings()
        self._search = Search(
            engine, self._sightings, policy.rhythm, self._tell_waiting, self._forget_if_void
        )
        self._ear = Ear(policy, self._gate, utc=utc, reject_start=reject_start or _nothing)
        if reject_start is not None:
            self._gate.note(escapes=self._ear.escapes)
        self._warming = Warming(
            policy,
            engine=engine,
            plan_for=plan_for,
            replay_for=replay_for,
            door=self._door,
            record=self._record,
            utc=utc,
            nonce=nonce,
            warn=self._warn,
            on_wave=self._ear.clear,
            on_open=self._on_open,
        )
        self._boot: Boot | None = None
        self._lost_because: tuple[str, ...] = ()
        self._fallen: Look | None = None
        """The look whose wave was in flight when the engine was lost last."""

    @property
    def snapshot(self) -> Snapshot:
        """The gate's. One that is open is shown shut after a standstill of this process, from the
        first question on: what it knew is old, and the watch is about to say so."""
        snapshot, watch = self._gate.snapshot, self._ear.watch
        standstill = watch.standstill() if snapshot.is_ready and watch is not None else None
        return snapshot if standstill is None else snapshot.shut(standstill.reason, at=self._utc())

    @property
    def report(self) -> Report | None:
        """Of the last warm-up that ended with a verdict."""
        return self._record.report

    def hear(self, seen: Seen) -> None:
        """Something that the engine's log showed beside the waves."""
        before = self._ear.escapes.total
        self._ear.hear(seen)
        if self._ear.escapes.total != before:
            self._warn(self._boot)

    async def run(self) -> None:
        """Until cancelled."""
        # Until the first try has ended, which a resolver may hold up for long.
        self._door.tell((f"the engine at {self._policy.url} has not answered yet",))
        await self._door.settle()
        self._warn(None)
        async with anyio.create_task_group() as group:
            group.start_soon(self._keep_ready_file)
            await self._find_and_live()

    async def _keep_ready_file(self) -> None:
        """It follows the gate at once, and is mended when others have meddled with it."""
        while True:
            troubles = self._door.troubles
            await self._door.settle()
            if self._door.troubles != troubles:
                self._warn(self._boot)
            with anyio.move_on_after(self._policy.rhythm.ready_file_every_s):
                await self._door.moved.wait()

    async def _find_and_live(self) -> None:
        broken, voids = True, False
        loss: Loss | None = None
        while True:
            known = None if self._boot is None else self._boot.mark
            found = await self._search.find(known, broken=broken)
            voids = voids or self._does_void(found.presence)
            if loss is not None and self._boot is not None and loss.broken:
                # A connection breaks before Docker, or a log, says how the engine ended.
                await self._record.fall(self._cause(loss, self._boot))
            boot = self._boot = self._ear.boot = self._meet(found, self._boot, voids=voids)
            await self._record.judge_flight(boot, is_sure=not found.was_several)
            loss = await self._live(boot)
            broken, voids = loss.broken, loss.voids or self._does_void(loss.presence)
            log.warning("the engine was lost: %s (nonce=%s)", loss.reason, boot.nonce)
            await self._write_down(loss, boot, voids=voids)

    async def _write_down(self, loss: Loss, boot: Boot, *, voids: bool) -> None:
        """What must not be forgotten if the sidecar goes too."""
        if voids:
            await self._record.forget()
        if loss.presence.is_away or self._fallen is None:
            await self._record.land()
        elif loss.broken:
            await self._record.fall(self._cause(loss, boot))
        await self._record.add_escapes(boot, self._ear.take_unreported())

    def _cause(self, loss: Loss, boot: Boot) -> deaths.Cause:
        return deaths.cause_of(self._ear.signs, says_dead=loss.says_dead, failure=boot.failure)

    async def _forget_if_void(self, presence: Presence) -> None:
        if self._does_void(presence):
            await self._record.forget()

    def _does_void(self, presence: Presence) -> bool:
        """Whether an engine that was away must be warmed again, though its process lives."""
        is_kept = self._policy.sleep_keeps_verdict and presence.keeps_kernels
        return presence.is_away and not is_kept

    async def stop(self) -> None:
        """Shut the gate for good. What still runs may not open it any more."""
        await self._door.stop()
        await self._close_record()

    async def settle(self) -> None:
        """`run` was cancelled: leave the ready file and the state folder as they have to be found.
        The gate stays as it is."""
        await self._door.settle()
        await self._close_record()

    async def _close_record(self) -> None:
        with anyio.move_on_after(_STOP_LIMIT_S):
            await self._record.close()
            if self._boot is not None:
                await self._record.add_escapes(self._boot, self._ear.take_unreported())

    def _meet(self, found: Found, boot: Boot | None, *, voids: bool) -> Boot:
        if found.facts is None and boot is not None:
            boot.mark = found.mark
            log.info("engine=%s is back, the same boot", self._policy.url)
            if voids:
                self._start_over(boot)
            return boot
        facts = found.facts or EngineFacts()
        boot = Boot(facts=facts, mark=found.mark, nonce=self._nonce(), met_at=self._utc())
        boot.adoptable = not voids
        self._ear.met()
        totals = self._gate.snapshot.totals.with_boot()
        self._gate.note(engine=facts, boot=found.mark, reasons=(), totals=totals)
        self._note_nothing_sent(boot)
        log.info(
            "engine=%s found: model=%s version=%s boot=%d nonce=%s",
            self._policy.url,
            facts.model,
            facts.version,
            totals.boots,
            boot.nonce,
        )
        return boot

    def _start_over(self, boot: Boot) -> None:
        boot.start_over(self._nonce())
        self._note_nothing_sent(boot)

    def _note_nothing_sent(self, boot: Boot) -> None:
        self._gate.note(
            nonce=boot.nonce,
            verdict=None,
            waves=(),
            waves_dropped=0,
            progress=None,
            speed=None,
            warmup_s=None,
            held=(),
        )

    async def _live(self, boot: Boot) -> Loss:
        """All that happens during one boot, or during one stretch of it without interruption."""
        watch = Watch(self._engine, self._sightings, self._policy.rhythm)

        async def on_mark(mark: BootMark) -> None:
            boot.mark = mark
            self._ear.still_there()
            self._gate.note(boot=mark)
            self._warn(boot)
            await self._record.refresh(boot)
            await self._record.add_escapes(boot, self._ear.take_unreported())

        async with anyio.create_task_group() as group:
            group.start_soon(self._warming.run, boot, watch)
            self._ear.watch = watch
            try:
                loss = await watch.until_lost(boot.mark, on_mark)
            finally:
                self._ear.watch = None
            # Shut before what runs is cancelled: a probe may come in between.
            self._shut(loss, boot)
            group.cancel_scope.cancel()
        return loss

    def _on_open(self) -> None:
        self._lost_because = ()
        self._ear.opened()

    def _shut(self, loss: Loss, boot: Boot) -> None:
        reasons: tuple[str, ...] = (loss.reason,)
        look, boot.in_flight = boot.in_flight, None
        # What ends the sidecar may end the engine too: a Pod's end, `docker compose down`.
        self._fallen = None if self.snapshot.state is State.STOPPING else look
        if look is not None:
            reasons = (*reasons, f"a wave of {look.cell.id} ({look.gait}) was in flight")
        self._lost_because = reasons
        self._door.move(Event.LOST, reasons=reasons)

    def _tell_waiting(self, problem: EngineUnavailable, waited_s: float) -> None:
        reasons = tuple(dict.fromkeys((*self._lost_because, str(problem))))
        deadline_s = self._policy.start_deadline_s
        is_over = waited_s >= deadline_s
        if is_over:
            reasons = (*reasons, f"waited longer than the start deadline of {deadline_s:g} s")
        if is_over and self.snapshot.state is State.WAITING:
            self._door.move(Event.GAVE_UP, reasons=reasons, exit_code=problem.exit_code)
        else:
            self._door.tell(reasons)

    def _warn(self, boot: Boot | None) -> None:
        """Everything that is worth a warning now; what is gone is no longer said."""
        plan = () if boot is None or boot.plan is None else boot.plan.warnings
        engine = () if boot is None else costly(boot.facts)
        waves = () if boot is None else tuple(boot.warnings.values())
        log_of = self._ear.escapes
        escaped = () if boot is None else escapes.told(log_of, since=boot.met_at)
        before = tuple(f"before: {reason}" for reason in self._lost_because)
        warnings = (
            *self._policy.warnings,
            *self._record.troubles,
            *self._door.troubles,
            *before,
            *engine,
            *escaped,
            *self._more_warnings(),
            *waves,
            *plan,
        )
        self._gate.note(warnings=warnings)


def _nothing() -> None:
    """No log is read."""

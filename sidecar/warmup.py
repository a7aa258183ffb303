"""The conductor: wait → learn → plan → passes → verdict → gate → watch; a new boot starts over.

It orders and decides nothing itself: decisions are `core`'s, effects the adapters'. It is the
gate's only writer. Its parts: `search` finds a boot, `record` says whether an earlier sidecar had
warmed it, `attempt` sends the waves, `watch` loses it again, `door` moves the gate and what hangs
on it. All its time is the event loop's (`anyio.current_time`, `anyio.sleep`), so that
it runs on a virtual clock too.
"""

import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass

import anyio

from sidecar.attempt import Attempt, Boot, Replay
from sidecar.core.boot import BootMark, Sightings
from sidecar.core.errors import ConfigError, EngineUnavailable, ExitCode, WarmupError
from sidecar.core.facts import EngineFacts, costly
from sidecar.core.gate import Event, Snapshot, State
from sidecar.core.passes import Passes, Progress
from sidecar.core.plan import Plan
from sidecar.core.policy import Policy
from sidecar.core.report import Report
from sidecar.core.verdict import GridVerdict, Judge, Opening, Standing, opening
from sidecar.door import Door, ReadyFile
from sidecar.record import Record, Store
from sidecar.search import Found, Learned, Search
from sidecar.watch import Loss, Watch

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Shut:
    """Why an attempt did not open the gate."""

    reasons: tuple[str, ...]
    exit_code: ExitCode


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
    ) -> None:
        """`replay_for` is given the plan and the nonce of the run; `utc` are seconds since 1970;
        `more_warnings` are those of what runs beside the conductor."""
        self._policy = policy
        self._engine = engine
        self._plan_for = plan_for
        self._replay_for = replay_for
        self._utc = utc
        self._nonce = nonce
        self._more_warnings = more_warnings
        self._record = Record(policy, store, utc)
        self._door = Door(policy.url, utc=utc, ready_file=ready_file, on_change=on_change)
        self._gate = self._door.gate
        self._sightings = Sightings()
        self._search = Search(engine, self._sightings, policy.rhythm, self._tell_waiting)
        self._boot: Boot | None = None
        self._lost_because: tuple[str, ...] = ()

    @property
    def snapshot(self) -> Snapshot:
        return self._gate.snapshot

    @property
    def report(self) -> Report | None:
        """Of the last warm-up that ended with a verdict."""
        return self._record.report

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
        broken = True
        while True:
            known = None if self._boot is None else self._boot.mark
            boot = self._boot = self._meet(
                await self._search.find(known, broken=broken), self._boot
            )
            loss = await self._live(boot)
            broken = loss.broken
            log.warning("the engine was lost: %s (nonce=%s)", loss.reason, boot.nonce)

    async def stop(self) -> None:
        """Shut the gate for good. What still runs may not open it any more."""
        await self._door.stop()

    async def settle(self) -> None:
        """See to it that the ready file says what the gate says."""
        await self._door.settle()

    def _meet(self, found: Found, boot: Boot | None) -> Boot:
        if found.facts is None and boot is not None:
            boot.mark = found.mark
            log.info("engine=%s is back, the same boot", self._policy.url)
            return boot
        facts = found.facts or EngineFacts()
        boot = Boot(facts=facts, mark=found.mark, nonce=self._nonce())
        totals = self._gate.snapshot.totals.with_boot()
        self._gate.note(
            engine=facts,
            boot=found.mark,
            nonce=boot.nonce,
            reasons=(),
            totals=totals,
            verdict=None,
            waves=(),
            waves_dropped=0,
            progress=None,
            warmup_s=None,
        )
        log.info(
            "engine=%s found: model=%s version=%s boot=%d nonce=%s",
            self._policy.url,
            facts.model,
            facts.version,
            totals.boots,
            boot.nonce,
        )
        return boot

    async def _live(self, boot: Boot) -> Loss:
        """All that happens during one boot, or during one stretch of it without interruption."""
        watch = Watch(self._engine, self._sightings, self._policy.rhythm)

        async def on_mark(mark: BootMark) -> None:
            boot.mark = mark
            self._gate.note(boot=mark)
            self._warn(boot)
            await self._record.refresh(boot)

        async with anyio.create_task_group() as group:
            group.start_soon(self._work, boot, watch)
            loss = await watch.until_lost(boot.mark, on_mark)
            # Shut before what runs is cancelled: a probe may come in between.
            self._shut(loss, boot)
            group.cancel_scope.cancel()
        return loss

    async def _work(self, boot: Boot, watch: Watch) -> None:
        if boot.opened is not None:
            self._open(Event.RETURNED, boot)
            return
        if await self._adopt(boot, watch):
            return
        pause_s = self._policy.retry_first_s
        while True:
            self._door.move(Event.FOUND)
            shut = await self._attempt(boot, watch)
            if shut is None:
                return
            reasons = (*shut.reasons, f"tried again in {pause_s:.0f} s")
            self._door.move(Event.GAVE_UP, reasons=reasons, exit_code=shut.exit_code)
            await anyio.sleep(pause_s)
            pause_s = min(2 * pause_s, self._policy.retry_longest_s)

    async def _adopt(self, boot: Boot, watch: Watch) -> bool:
        """Open on the verdict that was kept, where it holds for this boot; nothing is sent."""
        kept = await self._record.kept_for(boot)
        self._warn(boot)
        if kept is None:
            return False
        await watch.stop_if_lost(boot.mark)
        boot.adopted = True
        boot.nonce = kept.nonce
        boot.opened = Opening(open=True, proven=kept.proven, reasons=kept.reasons)
        cells = kept.verdict.cells
        done = sum(cell.standing is Standing.DONE for cell in cells)
        self._gate.note(
            verdict=kept.verdict,
            nonce=kept.nonce,
            progress=Progress(passes=0, cells_done=done, cells_total=len(cells), waves_left=0),
        )
        self._open(Event.ADOPTED, boot)
        return True

    async def _attempt(self, boot: Boot, watch: Watch) -> _Shut | None:
        """One warm-up and what it led to; None: the gate is open."""
        try:
            return await self._warm(boot, watch)
        except WarmupError as problem:
            if isinstance(problem, ConfigError):
                # It may rest on what could not be learned at that moment: learn and plan anew.
                boot.plan = boot.judge = boot.replay = None
            if isinstance(problem, EngineUnavailable):
                await watch.stop_if_lost(boot.mark)
            return _Shut((str(problem),), problem.exit_code)
        except Exception as problem:
            boot.in_flight = None
            log.exception("a bug: the gate stays shut")
            return _Shut((f"a bug of the sidecar: {problem!r}; see its log",), ExitCode.BUG)

    async def _warm(self, boot: Boot, watch: Watch) -> _Shut | None:
        if boot.plan is None and boot.attempts:
            boot.facts = await self._engine.learn()
            self._gate.note(engine=boot.facts)
        boot.attempts += 1
        plan = boot.plan = boot.plan or self._plan_for(boot.facts)
        self._warn(boot)
        if plan.refusal is not None:
            raise ConfigError(plan.refusal)
        policy = self._policy
        judge = boot.judge = boot.judge or Judge(plan, plan.facts, policy.converge)
        replay = boot.replay = boot.replay or self._replay_for(plan, boot.nonce)
        passes = Passes(
            plan,
            judge,
            budget_s=policy.budget_s,
            max_passes=policy.max_passes,
            seed=_seed(boot.nonce, boot.attempts - 1),
        )
        attempt = Attempt(
            boot,
            judge=judge,
            replay=replay,
            passes=passes,
            gate=self._gate,
            watch=watch,
            utc=self._utc,
            on_warning=lambda: self._warn(boot),
        )
        began = self._utc()
        await attempt.run()
        verdict = judge.verdict()
        decided = opening(
            verdict, open_unproven=policy.open_unproven, require_log=policy.require_log
        )
        await self._record.add(
            boot,
            plan,
            verdict,
            decided,
            began=began,
            totals=attempt.totals,
            warnings=self._gate.snapshot.warnings,
        )
        self._warn(boot)
        if not decided.open:
            return _Shut(decided.reasons, _exit_code(verdict))
        # Nothing was asked since the last wave: the engine may have gone or been replaced.
        await watch.stop_if_lost(boot.mark)
        boot.opened = decided
        self._open(Event.PASSED, boot)
        return None

    def _open(self, event: Event, boot: Boot) -> None:
        assert boot.opened is not None
        self._lost_because = ()
        self._door.open(event, boot.opened, adopted=boot.adopted)
        self._warn(boot)

    def _shut(self, loss: Loss, boot: Boot) -> None:
        reasons: tuple[str, ...] = (loss.reason,)
        if boot.in_flight is not None:
            look, boot.in_flight = boot.in_flight, None
            reasons = (*reasons, f"a wave of {look.cell.id} ({look.gait}) was in flight")
        self._lost_because = reasons
        self._door.move(Event.LOST, reasons=reasons)

    def _tell_waiting(self, problem: EngineUnavailable, waited_s: float) -> None:
        reasons = (*self._lost_because, str(problem))
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
        before = tuple(f"before, on the last boot: {reason}" for reason in self._lost_because)
        warnings = (
            *self._policy.warnings,
            *self._record.troubles,
            *self._door.troubles,
            *before,
            *engine,
            *self._more_warnings(),
            *waves,
            *plan,
        )
        self._gate.note(warnings=warnings)


def _seed(nonce: str, attempt: int) -> int:
    """The order of looks follows from the nonce, so that a run can be told from its report."""
    return int.from_bytes(hashlib.sha256(f"{nonce}/{attempt}".encode()).digest()[:8])


def _exit_code(verdict: GridVerdict) -> ExitCode:
    """Of a gate that stays shut: cold or failed cells, or nothing but missing proof."""
    bad = any(c.standing in (Standing.COLD, Standing.FAILED) for c in verdict.cells)
    return ExitCode.NOT_CONVERGED if bad else ExitCode.EVIDENCE_MISSING

"""What is done with a boot that was found: adopted, or warmed until the gate may open.

One attempt after another, with growing pauses, for as long as the boot lives.
"""

import hashlib
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import anyio

from sidecar.attempt import Attempt
from sidecar.boot import Boot, Replay
from sidecar.core.errors import ConfigError, EngineUnavailable, ExitCode, WarmupError
from sidecar.core.facts import EngineFacts
from sidecar.core.grid.cells import Look
from sidecar.core.grid.cost import over_budget
from sidecar.core.grid.plan import Plan
from sidecar.core.judge.calls import has_answers
from sidecar.core.judge.passes import Passes, Progress
from sidecar.core.judge.verdict import GridVerdict, Judge, Opening, Standing, opening
from sidecar.core.policy import Policy
from sidecar.core.watch import deaths
from sidecar.core.watch.gate import Event
from sidecar.door import Door
from sidecar.record import Record
from sidecar.search import Learned
from sidecar.watch import Watch

log = logging.getLogger(__name__)

_BUDGET = "budget"
"""Among the warnings of a boot, beside the ids of cells."""
TRIED_AGAIN = "tried again in "
"""Begins the last reason of a gate that stays shut for now; untrue once the program ends."""


@dataclass(frozen=True, slots=True)
class _Shut:
    """Why an attempt did not open the gate."""

    reasons: tuple[str, ...]
    exit_code: ExitCode
    is_final: bool = False
    """Nothing but cells that are held back keeps it shut: a new attempt would send nothing."""


class Warming:
    """Owns nothing: the boot is the conductor's, and is changed here while this runs."""

    def __init__(
        self,
        policy: Policy,
        *,
        engine: Learned,
        plan_for: Callable[[EngineFacts], Plan],
        replay_for: Callable[[Plan, str], Replay],
        door: Door,
        record: Record,
        utc: Callable[[], float],
        nonce: Callable[[], str],
        warn: Callable[[Boot], None],
        on_wave: Callable[[], None],
        on_open: Callable[[], None],
    ) -> None:
        """`on_wave` is called before each wave, `on_open` before the gate opens."""
        self._policy = policy
        self._engine = engine
        self._plan_for = plan_for
        self._replay_for = replay_for
        self._door = door
        self._gate = door.gate
        self._record = record
        self._utc = utc
        self._nonce = nonce
        self._warn = warn
        self._on_wave = on_wave
        self._on_open = on_open

    async def run(self, boot: Boot, watch: Watch) -> None:
        """Until the gate is open on this boot. Cancelled when the boot is lost."""
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
            again = () if shut.is_final else (f"{TRIED_AGAIN}{pause_s:.0f} s",)
            reasons = (*shut.reasons, *again)
            self._door.move(Event.GAVE_UP, reasons=reasons, exit_code=shut.exit_code)
            await self._pause(math.inf if shut.is_final else pause_s, boot)
            pause_s = min(2 * pause_s, self._policy.retry_longest_s)

    async def _pause(self, pause_s: float, boot: Boot) -> None:
        """Shorter, if the operator releases a cell that is held back."""
        with anyio.move_on_after(pause_s):
            while True:
                await anyio.sleep(self._policy.rhythm.held_every_s)
                if boot.plan and boot.held and await self._record.held(boot.plan) != boot.held:
                    return

    async def _adopt(self, boot: Boot, watch: Watch) -> bool:
        """Open on the verdict that was kept, where it holds for this boot; nothing is sent."""
        kept = await self._record.kept_for(boot) if boot.adoptable else None
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
            await self._record.land()
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
        plan = await self._without_held(boot, plan)
        policy = self._policy
        await self._look_ahead(boot, plan)
        judge = boot.judge = boot.judge or Judge(plan, plan.facts, policy.converge)
        replay = boot.replay = boot.replay or self._replay_for(plan, boot.nonce)
        passes = Passes(
            plan,
            judge,
            budget_s=policy.budget_s,
            max_passes=policy.max_passes,
            seed=_seed_of(boot.nonce, boot.attempts - 1),
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
            before_wave=partial(self._take_off, boot),
            after_wave=self._record.land,
        )
        began = self._utc()
        await attempt.run()
        verdict = judge.verdict()
        decided = opening(
            verdict, open_unproven=policy.open_unproven, require_log=policy.require_log
        )
        is_final = bool(boot.held) and (decided.open or not plan.cells)
        if boot.held:
            decided = Opening(False, False, (*map(deaths.told, boot.held), *decided.reasons))
        await self._record.add(
            boot,
            plan,
            verdict,
            decided,
            began=began,
            totals=attempt.totals,
            warnings=self._gate.snapshot.warnings,
        )
        if decided.open:
            boot.warnings.pop(_BUDGET, None)
        self._warn(boot)
        if not decided.open:
            code = ExitCode.NOT_CONVERGED if boot.held else _exit_code_of(verdict)
            return _Shut(decided.reasons, code, is_final)
        # Nothing was asked since the last wave: the engine may have gone or been replaced.
        await watch.stop_if_lost(boot.mark)
        boot.opened = decided
        self._open(Event.PASSED, boot)
        return None

    async def _look_ahead(self, boot: Boot, plan: Plan) -> None:
        """Say before the first request that the budget can't be met, as far as can be known."""
        boot.basis = await self._record.basis(boot)
        warning = over_budget(plan, boot.basis, self._policy.budget_s)
        boot.warnings.pop(_BUDGET, None)
        if warning is not None:
            boot.warnings[_BUDGET] = warning
            log.warning("%s", warning)
        self._warn(boot)

    async def _without_held(self, boot: Boot, plan: Plan) -> Plan:
        held = await self._record.held(plan)
        if held != boot.held and boot.judge is not None:
            boot.start_over(self._nonce())
            self._gate.note(nonce=boot.nonce, verdict=None, waves=(), waves_dropped=0)
            boot.plan = plan
        boot.held = held
        self._gate.note(held=tuple(death.cell for death in held))
        return deaths.without(plan, held)

    async def _take_off(self, boot: Boot, look: Look) -> None:
        self._on_wave()
        await self._record.take_off(boot, look)

    def _open(self, event: Event, boot: Boot) -> None:
        assert boot.opened is not None
        self._on_open()
        self._door.open(event, boot.opened, adopted=boot.adopted)
        self._warn(boot)


def _seed_of(nonce: str, attempt: int) -> int:
    """The order of looks follows from the nonce, so that a run can be told from its report."""
    return int.from_bytes(hashlib.sha256(f"{nonce}/{attempt}".encode()).digest()[:8])


def _exit_code_of(verdict: GridVerdict) -> ExitCode:
    """Of a gate that stays shut: cold or failed cells, or nothing but missing proof."""
    bad = any(c.standing in (Standing.COLD, Standing.FAILED) for c in verdict.cells)
    is_lacking = not bad and has_answers(verdict)
    return ExitCode.EVIDENCE_MISSING if is_lacking else ExitCode.NOT_CONVERGED

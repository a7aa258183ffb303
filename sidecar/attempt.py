"""One warm-up: waves by the passes' order until nothing is lacking or the budget is spent."""

from collections.abc import Awaitable, Callable, Sequence

import anyio

from sidecar.boot import Boot, Replay
from sidecar.core.grid.cells import Look
from sidecar.core.grid.cost import Speed, wave_cost
from sidecar.core.judge.passes import Passes, Rest
from sidecar.core.judge.verdict import Judge, Judged
from sidecar.core.results import Outcome
from sidecar.core.tally import Totals, near_the_limit, row_of
from sidecar.core.watch.gate import Gate
from sidecar.watch import Watch

_SHARE_FOR_EYES = 20
"""Judging a grid of a thousand cells takes 0.1 s, in which no probe is answered: what is only for
the eyes is told so seldom that it takes no more than one twentieth of the time."""


class Attempt:
    """Runs one walk of the passes, and notes on the gate how far it is."""

    def __init__(
        self,
        boot: Boot,
        *,
        judge: Judge,
        replay: Replay,
        passes: Passes,
        gate: Gate,
        watch: Watch,
        utc: Callable[[], float],
        on_warning: Callable[[], None],
        before_wave: Callable[[Look], Awaitable[None]],
        after_wave: Callable[[], Awaitable[None]],
    ) -> None:
        """`before_wave` and `after_wave` note what is in flight; neither raises."""
        self._before_wave = before_wave
        self._after_wave = after_wave
        self._boot = boot
        self._judge = judge
        self._replay = replay
        self._passes = passes
        self._gate = gate
        self._watch = watch
        self._utc = utc
        self._on_warning = on_warning
        self._took_s: dict[Look, float] = {}
        self._told_again_at = 0.0
        self._passes_told = 0
        self.totals = Totals()
        """Of this warm-up alone."""

    async def run(self) -> None:
        """Until the passes have nothing more to send. Raises what the replay raises."""
        began_at = anyio.current_time()
        try:
            while True:
                step = self._passes.next(anyio.current_time() - began_at)
                if step is None:
                    break
                if anyio.current_time() >= self._told_again_at:
                    self._tell(began_at)
                if isinstance(step, Rest):
                    self._gate.note(reasons=(step.reason,))
                    await anyio.sleep(step.wait_s)
                    self._gate.note(reasons=())
                else:
                    await self._waves(step)
        finally:
            self._tell(began_at)
            self._gate.note(is_active=False, eta_s=None)

    async def _waves(self, look: Look) -> None:
        boot, gate = self._boot, self._gate
        looks = (look, *self._passes.beside(look))
        boot.failure = ""
        await self._before_wave(look)
        released_at, began_at = self._utc(), anyio.current_time()
        boot.in_flight = look
        gate.note(is_active=True, cell=look.cell.id)
        try:
            waves = await self._replay.run(looks)
        except BaseException as ended:
            self._judge.cut_off(anyio.current_time() - began_at)
            if isinstance(ended, anyio.get_cancelled_exc_class()):
                gate.note(totals=gate.snapshot.totals.with_cancelled())
            raise
        took_s = anyio.current_time() - began_at
        for judged in self._judge.feed_together(waves):
            boot.speeds.feed(judged.wave, took_s)
            self._note(judged, released_at, took_s / len(waves))
        gate.note(is_active=False, waves=tuple(boot.rows), waves_dropped=boot.rows_dropped)
        if any(r.outcome is not Outcome.OK for wave in waves for r in wave.results):
            # The next wave would only be blamed for an engine that this one may have killed.
            await self._watch.stop_if_lost(boot.mark)
        boot.in_flight = None
        await self._after_wave()

    def _note(self, judged: Judged, released_at: float, took_s: float) -> None:
        boot, gate, look = self._boot, self._gate, judged.wave.look
        boot.failure = boot.failure or judged.failed or ""
        boot.add(row_of(judged, at=released_at))
        self._took_s[look] = took_s
        self.totals = self.totals.with_wave(judged)
        gate.note(totals=gate.snapshot.totals.with_wave(judged))
        if (warning := near_the_limit(judged.wave)) is not None:
            boot.warnings[look.cell.id] = warning
            self._on_warning()

    def _tell(self, began_at: float) -> None:
        """How far it is, and the verdict as of now."""
        now = anyio.current_time()
        gate, progress = self._gate, self._passes.progress()
        new_passes = progress.passes - self._passes_told
        self._passes_told = progress.passes
        self.totals = self.totals.with_passes(new_passes)
        gate.note(
            progress=progress,
            totals=gate.snapshot.totals.with_passes(new_passes),
            eta_s=self._eta_s(self._judge.lacks(), progress.waves_left),
            warmup_s=now - began_at,
            speed=self._boot.speeds.speed,
            verdict=self._judge.verdict(),
        )
        done_at = anyio.current_time()
        self._told_again_at = done_at + _SHARE_FOR_EYES * (done_at - now)

    def _eta_s(self, lacking: Sequence[Look], waves_left: int) -> float | None:
        """As long as the same looks took last time; those that had none yet by the speed that was
        measured, else as long as the others took on average."""
        new = [look for look in lacking if look not in self._took_s]
        boot = self._boot
        speed = boot.speeds.speed or (boot.basis.speed if boot.basis.measured else None)
        estimates = {} if speed is None else {look: self._estimate_s(look, speed) for look in new}
        known = [*self._took_s.values(), *estimates.values()]
        if not known:
            return None
        mean_s = sum(known) / len(known)
        left_s = sum(self._took_s.get(look) or estimates.get(look) or mean_s for look in lacking)
        return left_s + mean_s * max(0, waves_left - len(lacking))

    def _estimate_s(self, look: Look, speed: Speed) -> float:
        """Of one wave; those on several ranks go at the same time."""
        plan = self._boot.plan
        assert plan is not None
        alone = wave_cost(look.cell, look.gait, plan.plug_tokens, speed)
        return alone.seconds / len(plan.ranks)

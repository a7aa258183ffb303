"""What outlives the sidecar: the verdict of a boot, the report of each warm-up, and which cell was
in flight when an engine died."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Protocol

from sidecar.boot import Boot
from sidecar.core.grid.cells import Look
from sidecar.core.grid.cost import Basis
from sidecar.core.grid.plan import Plan
from sidecar.core.judge.verdict import GridVerdict, Opening
from sidecar.core.policy import Policy
from sidecar.core.report import Report, basis_of, with_escapes
from sidecar.core.tally import Totals
from sidecar.core.watch.boot import BootMark
from sidecar.core.watch.deaths import Cause, Death, InFlight, death_of, held, is_death, told
from sidecar.core.watch.escapes import Escape
from sidecar.core.watch.kept import Kept, objection

log = logging.getLogger(__name__)


class Store(Protocol):
    """Remembers across restarts of the sidecar. No method raises, and each has a limit: trouble is
    told in `troubles`."""

    @property
    def troubles(self) -> tuple[str, ...]: ...

    async def load(self) -> Kept | None: ...

    async def keep(self, kept: Kept) -> bool:
        """Whether it is kept now."""
        ...

    async def refresh(self, mark: BootMark, at: float) -> None:
        """A newer mark of the kept verdict's boot: counters go on, and only they may tell."""
        ...

    async def add_report(self, report: Report) -> None: ...

    async def last_report(self) -> Report | None: ...

    async def add_escapes(self, nonce: str, escapes: Sequence[Escape]) -> None:
        """To the last report, where it is the one of this run."""
        ...

    async def forget(self) -> None:
        """The kept verdict does not hold any more."""
        ...

    async def take_off(self, wave: InFlight) -> None:
        """This wave is in flight, and no other; written before it is sent."""
        ...

    async def land(self) -> None:
        """Nothing is in flight."""
        ...

    async def in_flight(self) -> InFlight | None: ...

    async def bury(self, death: Death) -> None:
        """Remember it, and that nothing is in flight."""
        ...

    async def deaths(self) -> tuple[Death, ...]:
        """Those that no operator has cleared, oldest first."""
        ...


class Record:
    """Writes down what was found, and reads what an earlier sidecar had found."""

    def __init__(self, policy: Policy, store: Store | None, utc: Callable[[], float]) -> None:
        self._policy = policy
        self._store = store
        self._utc = utc
        self._lacking: Kept | None = None
        """A verdict that could not be kept: the volume was full, or away."""
        self.report: Report | None = None
        """Of the last warm-up that ended with a verdict."""
        self._wave: InFlight | None = None
        self._is_closed = False

    @property
    def troubles(self) -> tuple[str, ...]:
        return () if self._store is None else self._store.troubles

    async def kept_for(self, boot: Boot) -> Kept | None:
        """The verdict that was kept, where it holds for this boot."""
        kept = None if self._store is None else await self._store.load()
        if kept is None:
            return None
        why_not = objection(
            kept,
            boot=boot.mark,
            now=self._utc(),
            url=self._policy.url,
            shapes_digest=self._policy.shapes_digest,
            facts=boot.facts,
            open_unproven=self._policy.open_unproven,
            require_log=self._policy.require_log,
        )
        if why_not is None:
            return kept
        log.info("the kept verdict is not adopted: %s", why_not)
        return None

    async def refresh(self, boot: Boot) -> None:
        """Keep the counters of an open boot fresh, where nothing else tells it from another; and
        its verdict, if the folder did not take it before."""
        lacking = self._lacking
        if self._store is not None and lacking is not None and lacking.nonce == boot.nonce:
            lacking = replace(lacking, boot=boot.mark, marked_at=self._utc())
            if boot.opened and await self._store.keep(lacking):
                self._lacking = None
        if self._store is not None and boot.opened and boot.mark.process_start_s is None:
            await self._store.refresh(boot.mark, self._utc())

    async def add(
        self,
        boot: Boot,
        plan: Plan,
        verdict: GridVerdict,
        decided: Opening,
        *,
        began: float,
        totals: Totals,
        warnings: tuple[str, ...],
    ) -> None:
        """A warm-up that came to a verdict. `began` is in seconds since 1970."""
        policy, ended = self._policy, self._utc()
        self.report = Report(
            sidecar_version=policy.sidecar_version,
            url=policy.url,
            facts=boot.facts,
            boot=boot.mark,
            began=datetime.fromtimestamp(began, UTC),
            ended=datetime.fromtimestamp(ended, UTC),
            nonce=boot.nonce,
            verdict=verdict,
            opening=decided,
            unfit=plan.unfit,
            totals=totals,
            waves=tuple(boot.rows),
            warnings=warnings,
            waves_dropped=boot.rows_dropped,
            speed=boot.speeds.speed,
        )
        if self._store is None:
            return
        await self._store.add_report(self.report)
        if decided.open:
            kept = Kept(
                boot=boot.mark,
                marked_at=ended,
                url=policy.url,
                shapes_digest=policy.shapes_digest,
                facts=boot.facts,
                verdict=verdict,
                proven=decided.proven,
                reasons=decided.reasons,
                nonce=boot.nonce,
            )
            self._lacking = None if await self._store.keep(kept) else kept

    async def basis(self, boot: Boot) -> Basis:
        """What is known of the engine's speed: by this boot, else by the last warm-up."""
        report = self.report
        if report is None and self._store is not None:
            report = await self._store.last_report()
        known = basis_of(report, url=self._policy.url, model=boot.facts.model)
        speed = boot.speeds.speed
        return known if speed is None else Basis(speed, "as measured on this boot")

    async def add_escapes(self, boot: Boot, escapes: Sequence[Escape]) -> None:
        """What compiled while the gate was open belongs to the report of the warm-up before."""
        if self.report is not None and self.report.nonce == boot.nonce:
            self.report = with_escapes(self.report, escapes)
        if self._store is not None and escapes:
            await self._store.add_escapes(boot.nonce, escapes)

    async def forget(self) -> None:
        """What was kept no longer holds, though the same process lives."""
        self._lacking = None
        if self._store is not None:
            await self._store.forget()

    # --- cells that an engine died on ------------------------------------------------------------

    async def take_off(self, boot: Boot, look: Look) -> None:
        """A wave is about to be sent."""
        if self._store is None or self._is_closed:
            return
        self._wave = InFlight(
            cell=replace(look.cell, rank=None).id,  # it goes to all of them
            gait=look.gait,
            at=self._utc(),
            boot=boot.mark,
            url=self._policy.url,
            model=boot.facts.model,
            version=boot.facts.version,
        )
        await self._store.take_off(self._wave)

    async def land(self) -> None:
        """It came back, or was cut off by us while the engine lived."""
        if self._store is not None and self._wave is not None:
            await self._store.land()
            self._wave = None  # not before: who is cut off here has to try again

    async def fall(self, cause: Cause) -> None:
        """The engine went while it was in flight."""
        if self._store is not None and self._wave is not None:
            self._wave = replace(self._wave, lost=True, cause=cause)
            await self._store.take_off(self._wave)

    async def close(self) -> None:
        """The sidecar ends in order: what it cuts off did not kill the engine."""
        self._is_closed = True
        if self._wave is not None and not self._wave.lost:
            await self.land()

    async def judge_flight(self, boot: Boot, *, is_sure: bool) -> None:
        """A boot is there: whether the wave that was in flight last had killed the one before.

        It had not where several engines answered in turn, or at another address.
        """
        wave = None if self._store is None else await self._store.in_flight()
        if self._store is None or wave is None:
            return
        self._wave = None
        is_known = is_sure and wave.url == self._policy.url
        if not is_known or not is_death(wave, boot.mark):
            await self._store.land()
            return
        death = death_of(wave)
        log.warning("%s", told(death))
        await self._store.bury(death)

    async def held(self, plan: Plan) -> tuple[Death, ...]:
        """Cells of this plan that must not be sent."""
        return () if self._store is None else held(await self._store.deaths(), plan)

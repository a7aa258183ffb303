"""What outlives the sidecar: the verdict of a boot, and the report of each warm-up."""

import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Protocol

from sidecar.attempt import Boot
from sidecar.core.boot import BootMark
from sidecar.core.kept import Kept, objection
from sidecar.core.plan import Plan
from sidecar.core.policy import Policy
from sidecar.core.report import Report
from sidecar.core.tally import Totals
from sidecar.core.verdict import GridVerdict, Opening

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

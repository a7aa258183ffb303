"""Evidence → verdict, by the rules R1-R10 (CONTRIBUTING.md tells them).

Four things are stricter than the rules say, because the truth harness showed that they must be:

* A cell's last quiet wave comes after the *first* shown wave of every other look too, not only
  after the grid's last large excess. A batch that was made for the first time may have raised a
  high-water mark at a cost too small to be seen, and have made cold what was warm.
* A held wave's F counts from the plug's end, and G begins at the last first token (`figures.py`).
* A last quiet wave comes after the last foreign one: what others sent may have done the same.
* With speculation on, a cell of several requests is `unknown` at best, drafts accepted or not: how
  many tokens each step accepts, and so who decodes with whom until the end, is drawn anew in every
  wave, and however many were quiet, the next may meet a batch that none has met.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sidecar.core.facts import EngineFacts
from sidecar.core.grid.cells import Cell, Converge, Gait, Look, Role
from sidecar.core.grid.plan import Plan
from sidecar.core.judge.attribution import weakest
from sidecar.core.judge.calls import (
    Call,
    CellVerdict,
    GaitFigures,
    GridVerdict,
    Judged,
    Kernel,
    Opening,
    Standing,
    opening,
)
from sidecar.core.judge.failures import failure
from sidecar.core.judge.figures import Entry
from sidecar.core.judge.pacing import WarmTtft
from sidecar.core.judge.plugs import Plugs
from sidecar.core.judge.ruling import FOREIGN_WAVES, Grid, is_quiet, rule
from sidecar.core.judge.shown import miss
from sidecar.core.judge.track import EVENT_FACTOR, EVENT_FLOOR_S, MAX_FAILURES, Track
from sidecar.core.judge.validity import examine, is_success
from sidecar.core.logs.evidence import Hearing
from sidecar.core.results import WaveResult

__all__ = [
    "Call",
    "CellVerdict",
    "GaitFigures",
    "GridVerdict",
    "Judge",
    "Judged",
    "Kernel",
    "Opening",
    "Standing",
    "opening",
]


@dataclass(slots=True)
class _Case:
    """A cell, its tracks, and when its one look went well where one is all it needs."""

    cell: Cell
    tracks: tuple[Track, ...]
    succeeded_at: int | None = None


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a look's waves are kept."""

    case: _Case
    track: Track


class Judge:
    """Takes waves, gives the verdict. One Judge per boot of the engine."""

    def __init__(self, plan: Plan, facts: EngineFacts, converge: Converge) -> None:
        self._plan = plan
        self._facts = facts
        self._plugs = Plugs()
        once = (c for c in (plan.first, plan.heaviest) if c is not None)
        self._cases = tuple(
            _Case(cell, tuple(Track(look, plan, converge, self._plugs) for look in looks_of(cell)))
            for declared in (*once, *plan.cells)
            for cell in plan.on_each_rank(declared)
        )
        self._places = {
            track.look: _Place(case, track) for case in self._cases for track in case.tracks
        }
        self._warm_ttft = WarmTtft(plan)
        self._waves = 0
        self._foreign_streak = 0
        self._foreign_at = -1
        self._refused_streak = 0
        self._counters_seen = False
        self._speculates = bool(facts.speculation)
        self._compiled_before = -1
        """The wave before which something was, or may have been, compiled that no wave shows."""

    @property
    def looks(self) -> tuple[Look, ...]:
        """Every look of the plan, on each rank."""
        return tuple(self._places)

    @property
    def waves(self) -> int:
        """Waves fed on this boot; those of several ranks at the same time are one."""
        return self._waves

    @property
    def foreign_streak(self) -> int:
        """R9: waves in a row during which the engine served others."""
        return self._foreign_streak

    @property
    def refused_streak(self) -> int:
        """Waves in a row that the engine did not admit (503)."""
        return self._refused_streak

    def begin_round(self) -> None:
        """A fresh budget on the same boot: what was given up is lacking again."""
        for track in self._tracks():
            track.begin_round()

    def cut_off(self, took_s: float) -> None:
        """A wave was cut off after so many seconds: what it compiled is not seen. As one that
        failed, it asks every cell once more."""
        if took_s > EVENT_FLOOR_S:
            self._compiled_before = self._waves

    def feed(self, wave: WaveResult) -> Judged:
        """Judge one wave by R2 and remember it.

        Raises KeyError for a look that the plan doesn't have.
        """
        return self.feed_together((wave,))[0]

    def feed_together(self, waves: Sequence[WaveResult]) -> tuple[Judged, ...]:
        """The same for waves that ran at the same time, each on its rank: none is the later."""
        judged = tuple(self._feed(wave) for wave in waves)
        foreign, refused = any(j.foreign for j in judged), any(j.refused for j in judged)
        self._foreign_streak = self._foreign_streak + 1 if foreign else 0
        self._refused_streak = self._refused_streak + 1 if refused else 0
        self._waves += 1
        return judged

    def _feed(self, wave: WaveResult) -> Judged:
        place = self._places[wave.look]
        failed = failure(wave)
        checked = examine(wave)
        if not failed:
            self._warm_ttft.feed(wave)
        warm_ttft_s = self._warm_ttft.of(wave.look.cell)
        missed = miss(wave, self._plan, warm_ttft_s)
        delta = wave.counters
        if delta is not None and (delta.drafts or delta.draft_tokens):
            self._speculates = True
        entry = Entry(
            at=self._waves,
            wave=wave,
            valid=not checked.invalid_because,
            foreign=checked.foreign,
            failed=failed is not None,
            refused=failed is not None and failed.is_refusal,
            known=not checked.unknowable,
            accepted=None
            if delta is None or delta.accepted_tokens is None
            else delta.accepted_tokens > 0,
            missed=missed,
        )
        place.track.add(entry)
        self._rejudge_shown(wave.look.cell)
        self._note(entry, place.case)
        return Judged(
            wave=wave,
            valid=entry.valid,
            invalid_because=checked.invalid_because,
            shown=missed is None,
            foreign=entry.foreign,
            failed=None if failed is None else failed.sentence,
            refused=entry.refused,
            not_shown_because=None if missed is None else missed.value,
            unknowable=checked.unknowable,
        )

    def _note(self, entry: Entry, case: _Case) -> None:
        self._foreign_at = entry.at if entry.foreign else self._foreign_at
        self._counters_seen = self._counters_seen or (entry.valid and entry.known)
        wave = entry.wave
        if wave.log is not None and wave.log.earlier:
            self._compiled_before = entry.at
        if case.succeeded_at is None and case.cell.role is not Role.GRID and is_success(wave):
            case.succeeded_at = entry.at
        if self._plugs.feed(entry.at, wave):
            for track in self._tracks():
                track.rejudge_plugs()

    def _rejudge_shown(self, like: Cell) -> None:
        for case in self._cases:
            if case.cell.variant.name == like.variant.name and case.cell.requests > 1:
                warm_ttft_s = self._warm_ttft.of(case.cell)
                for track in case.tracks:
                    track.rejudge_shown(warm_ttft_s)

    def _tracks(self) -> Iterator[Track]:
        return (track for case in self._cases for track in case.tracks)

    def lacks(self) -> tuple[Look, ...]:
        """The looks that cells still lack, in plan order. What was given up is not lacking."""
        grid = self._grid()
        return tuple(look for case in self._cases for look in self._lacking(case, grid))

    def _lacking(self, case: _Case, grid: Grid) -> list[Look]:
        if any(t.trailing_failures(this_round=True) >= MAX_FAILURES for t in case.tracks):
            return []
        if case.cell.role is not Role.GRID:
            done = case.succeeded_at is not None
            return [t.look for t in case.tracks if not done and not t.rests()]
        return [t.look for t in case.tracks if not is_quiet(t, grid) and not t.rests()]

    def _grid(self) -> Grid:
        return Grid(
            facts=self._facts,
            since=self._since(),
            foreign_streak=self._foreign_streak,
            counters_seen=self._counters_seen,
            speculates=self._speculates,
        )

    def _since(self) -> int:
        """The wave after which a last quiet one must come: the grid's last event or novelty."""
        at = max((c.succeeded_at for c in self._cases if c.succeeded_at is not None), default=-1)
        at = max(at, self._foreign_at)
        for track in self._tracks():
            reading = track.reading()
            at = max(at, reading.event_at, reading.first_at)
        plugs_at = self._plugs.last_excess_at(EVENT_FLOOR_S, EVENT_FACTOR)
        return max(at, self._compiled_before - 1, plugs_at)

    def verdict(self) -> GridVerdict:
        """The verdict as of now; earlier waves are re-judged against today's baselines."""
        grid = self._grid()
        cells = tuple(
            rule(case.cell, case.tracks, grid, succeeded=case.succeeded_at is not None)
            for case in self._cases
        )
        calls = {c.call for c in cells}
        call = Call.WARM
        if Call.UNKNOWN in calls or not self._plan.cells:
            call = Call.UNKNOWN
        if Call.NOT_YET in calls:
            call = Call.NOT_YET
        resolutions = [c.resolution_s for c in cells if c.resolution_s is not None]
        log = weakest([c.log for c in cells if c.log is not None])
        is_heard = log is not None and log.hearing is not Hearing.NONE
        return GridVerdict(
            call,
            cells,
            self._grid_reasons(cells),
            evidence=f"{'log+' if is_heard else ''}latency+metrics",
            resolution_s=max(resolutions, default=None),
            log=log,
        )

    def _grid_reasons(self, cells: tuple[CellVerdict, ...]) -> tuple[str, ...]:
        reasons: tuple[str, ...] = ()
        if self._foreign_streak >= FOREIGN_WAVES:
            reasons += ("the engine serves others",)
        for standing, words in (
            (Standing.FAILED, "failed"),
            (Standing.COLD, "seen paying"),
            (Standing.UNPROVEN, "not proven"),
        ):
            count = sum(c.standing is standing for c in cells)
            if count:
                reasons += (f"{count} of {len(cells)} cells {words}",)
        return reasons


def looks_of(cell: Cell) -> tuple[Look, ...]:
    """A cell's looks, the one with the larger step first (R1). Heaviest and first have one."""
    if cell.role is not Role.GRID:
        return (Look(cell, cell.gaits[0]),)
    return tuple(
        Look(cell, gait) for gait in (Gait.HELD, Gait.LED, Gait.MIXED) if gait in cell.gaits
    )

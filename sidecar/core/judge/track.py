"""R5 and R6 for one look: its waves in order, its baselines, which are loud, where it stands."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from sidecar.core.grid.cells import Converge, Look
from sidecar.core.grid.plan import Plan
from sidecar.core.judge.figures import Entry
from sidecar.core.judge.plugs import Plugs
from sidecar.core.judge.shown import miss

QUIET_WAVES = 2
"""R6: quiet waves at the end that each gait needs. One is enough where the log would have told a
compile; latency alone is not. That it was not the only valid wave follows from `Grid.since`: it
comes after the look's own first."""

EVENT_FLOOR_S, EVENT_FACTOR = 1.0, 3.0
"""R6: an excess above max(1 s, 3 × baseline) may have made other cells cold again."""

_NOISY_LOOKS, _NOISY_FLIPS = 6, 2
"""R7: quiet, loud, quiet, loud within six looks is a spread, not a cost that was paid."""

MAX_TRIES = 6
"""Waves in a row that prove nothing (invalid, or their batch not shown) before a look rests."""

MAX_LOOKS = 14
"""Waves in one round before a look rests that is noisy or never shows its batch."""

MAX_FAILURES = 2
"""Failed waves in a row before a cell has failed for this round."""

MAX_ENTRIES, _FIRST_ENTRIES = 100, 10
"""Waves of a look that are remembered: a boot that never gets warm is tried for ever. Of the first
ones the costs are told, the last ones are five rounds of twenty passes."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A look's waves, read against today's baselines. `-1`: there was none."""

    f_base_s: float | None
    g_base_s: float | None
    d_base_s: float | None
    looks: int
    """Waves that count."""
    quiet_run: int
    """Quiet waves that count, since the last loud one."""
    last_quiet_at: int
    loud_at: int
    loud_is_foreign: bool
    event_at: int
    """The last excess that may have made others cold."""
    first_at: int
    """The first wave that counts: the batch's first appearance on this boot."""
    is_noisy: bool
    is_heard: bool
    """The last quiet wave that counts was so by the log too, which would have told a compile."""
    known_quiet: bool
    """All that the verdict rests on could be checked by R2."""
    accepted: bool | None

    is_cold: bool
    """The last wave paid. A later quiet one says that it pays no more, even if it proves nothing
    else: its batch not shown, a request preempted."""


class Track:
    """The waves of one look on this boot, the first and the last MAX_ENTRIES of them."""

    def __init__(self, look: Look, plan: Plan, converge: Converge, plugs: Plugs) -> None:
        self.look = look
        self.entries: list[Entry] = []
        self._plugs = plugs
        self._plan = plan
        self._converge = converge
        self._reading: Reading | None = None
        self._round_from = 0
        self.forgotten = self.forgotten_looks = 0
        self._event_at = self._first_at = -1
        """Of the waves that were forgotten."""
        self._warm_ttft_s: float | None = None

    def add(self, entry: Entry) -> None:
        if len(self.entries) >= MAX_ENTRIES:
            self._forget()
        self.entries.append(entry)
        self._reading = None

    def _forget(self) -> None:
        """The oldest wave but for the first ones, and for what today's reading rests on."""
        reading = self.reading()
        rests_on = {reading.loud_at, reading.last_quiet_at}
        if counting := [entry for entry in self.entries if entry.counts]:
            rests_on |= _unlike(counting)
            rests_on.add(min(counting, key=lambda e: self._least_f_s(e) or 0.0).at)
            rests_on.add(min(counting, key=lambda e: e.g_s).at)
            rests_on.add(min(counting, key=lambda e: e.d_s).at)
        later = range(_FIRST_ENTRIES, len(self.entries))
        at = next(i for i in later if self.entries[i].at not in rests_on)
        gone = self.entries.pop(at)
        self._event_at, self._first_at = reading.event_at, reading.first_at
        self._round_from -= at < self._round_from
        self.forgotten += 1
        self.forgotten_looks += gone.counts

    def rejudge_plugs(self) -> None:
        """A plug's least time fell: a delay that had none to be told by may be one now."""
        self._reading = None

    def begin_round(self) -> None:
        """A fresh budget: what was given up is tried again."""
        self._round_from = len(self.entries)

    def rejudge_shown(self, warm_ttft_s: float | None) -> None:
        """Where the warm TTFT fell, a batch that a cold one seemed to show may be shown no more."""
        if warm_ttft_s == self._warm_ttft_s:
            return
        self._warm_ttft_s = warm_ttft_s
        for entry in self.entries:
            if entry.missed is None and entry.valid:
                entry.missed = miss(entry.wave, self._plan, warm_ttft_s)
        self._reading = None

    def reading(self) -> Reading:
        if self._reading is None:
            self._reading = self._read()
        return self._reading

    def trailing_failures(self, *, this_round: bool = False) -> int:
        """Failed waves in a row, up to the last one. Refusals are no failures."""
        count = 0
        for entry in reversed(self.entries[self._round_from if this_round else 0 :]):
            if entry.refused:
                continue
            if not entry.failed:
                break
            count += 1
        return count

    def trailing_tries(self) -> int:
        """Waves of this round in a row that proved nothing, by their own fault."""
        return sum(1 for _ in self._wasted())

    def _wasted(self) -> Iterator[Entry]:
        for entry in reversed(self.entries[self._round_from :]):
            if entry.counts:
                return
            if not (entry.foreign or entry.refused):
                yield entry

    def rests(self) -> bool:
        """Whether this look is given up for this round.

        A wave that paid is not wasted: whatever its batch was, it is warmer now. But a wave that
        never shows its batch is ever another one, and some only look as if they paid.
        """
        loud_at = self.reading().loud_at
        tries = quiet_tries = 0
        for entry in self._wasted():
            tries += 1
            quiet_tries += entry.at > loud_at
        if quiet_tries >= MAX_TRIES or (tries >= MAX_LOOKS and quiet_tries):
            return True
        looks = sum(e.counts for e in self.entries[self._round_from :])
        return looks >= MAX_LOOKS and self.reading().is_noisy

    def last_look(self) -> Entry | None:
        """The last wave that counts, or the last of all where none does."""
        counting = (entry for entry in reversed(self.entries) if entry.counts)
        return next(counting, self.entries[-1] if self.entries else None)

    def is_quiet_enough(self) -> bool:
        """R6: the last two valid waves were quiet; the log makes one enough."""
        reading = self.reading()
        return reading.quiet_run >= (1 if reading.is_heard else QUIET_WAVES)

    def _delay_s(self, entry: Entry, f_base_s: float) -> float:
        """By how much the plug's token came too late, if by more than its noise; else 0."""
        delay_s = entry.delay_s(self._plugs)
        plug_s = self._plugs.least_s(entry.wave) or 0.0
        return delay_s if delay_s > self._converge.tolerance_s(f_base_s + plug_s) else 0.0

    def _least_f_s(self, entry: Entry) -> float | None:
        """F for a baseline. Where the plug's token was read late, perhaps along with the wave's,
        what is left of F would be too little, and every other wave loud: then it counts from where
        the plug should have ended, which is never too little."""
        delay_s = entry.delay_s(self._plugs)
        if entry.f_s is None or delay_s <= self._converge.floor_s / 2:
            return entry.f_s
        return entry.f_s + delay_s

    def told_f_s(self, entry: Entry) -> float | None:
        """F for people: with what held up the plug's token."""
        if entry.f_s is None:
            return None
        return entry.f_s + self._delay_s(entry, self.reading().f_base_s or 0.0)

    def resolution_s(self) -> float | None:
        """R7: a cost below it would not be seen in this gait; None before the first wave."""
        taus_s = self.tolerances_s()
        if taus_s is None:
            return None
        plug_s = max((self._plugs.least_s(e.wave) or 0.0 for e in self.entries), default=0.0)
        f_base_s = self.reading().f_base_s or 0.0
        return max(*taus_s, self._converge.tolerance_s(f_base_s + plug_s))

    def tolerances_s(self) -> tuple[float, float, float] | None:
        """τ of F, of G and of D; None before the first wave."""
        reading = self.reading()
        if reading.f_base_s is None or reading.g_base_s is None or reading.d_base_s is None:
            return None
        tolerance_s = self._converge.tolerance_s
        bases_s = (reading.f_base_s, reading.g_base_s, reading.d_base_s)
        f_tau_s, g_tau_s, d_tau_s = map(tolerance_s, bases_s)
        return f_tau_s, g_tau_s, d_tau_s

    def _read(self) -> Reading:
        timed = [e for e in self.entries if e.f_s is not None]
        base = [e for e in timed if e.counts] or [e for e in timed if e.valid] or timed
        f_base = min((f_s for e in base if (f_s := self._least_f_s(e)) is not None), default=None)
        g_base = min((e.g_s for e in base), default=None)
        d_base = min((e.d_s for e in base), default=None)
        looks = quiet_run = 0
        last_quiet_at = loud_at = -1
        event_at, first_at = self._event_at, self._first_at
        loud_is_foreign = is_cold = False
        calls: list[bool] = []
        events: list[bool] = []
        run: list[Entry] = []
        for entry in self.entries:
            paid, event = self._paid(entry, f_base or 0.0, g_base or 0.0, d_base or 0.0)
            if event or (entry.failed and entry.wave.took_s > EVENT_FLOOR_S):
                event_at = max(event_at, entry.at)
            if entry.f_s is None and not paid:
                continue
            # Of a wave that does not count a small excess may be of others who were served, or of
            # another batch than the one that made the baseline: it is neither loud nor quiet.
            loud = paid if entry.counts else event
            if loud or not (paid or entry.foreign):
                is_cold = loud
                calls.append(loud)
                events.append(event)
            if loud:
                loud_at, loud_is_foreign, quiet_run = entry.at, entry.foreign, 0
                run.clear()
            if entry.counts:
                looks += 1
                first_at = entry.at if first_at < 0 else first_at
                if not loud:
                    quiet_run += 1
                    last_quiet_at = entry.at
                    run.append(entry)
        is_noisy = _is_noisy(calls, events)
        rests_on = run[-QUIET_WAVES:]
        accepted = [e.accepted for e in rests_on]
        return Reading(
            f_base_s=f_base,
            g_base_s=g_base,
            d_base_s=d_base,
            looks=looks,
            quiet_run=quiet_run,
            last_quiet_at=last_quiet_at,
            loud_at=loud_at,
            loud_is_foreign=loud_is_foreign,
            event_at=event_at,
            first_at=first_at,
            is_noisy=is_noisy,
            is_cold=is_cold and not is_noisy,
            is_heard=bool(run) and run[-1].is_heard,
            known_quiet=all(e.known for e in rests_on),
            accepted=True if True in accepted else False if False in accepted else None,
        )

    def _paid(
        self, entry: Entry, f_base_s: float, g_base_s: float, d_base_s: float
    ) -> tuple[bool, bool]:
        """Whether the wave shows a cost, and whether so much that it counts for the whole grid, as
        every compile line does."""
        if entry.compiled:
            return True, True
        if entry.f_s is None:
            return False, False
        paid = self._delay_s(entry, f_base_s) > 0
        event = False
        figures = ((entry.f_s, f_base_s), (entry.g_s, g_base_s), (entry.d_s, d_base_s))
        for figure_s, base_s in figures:
            excess_s = figure_s - base_s
            paid = paid or excess_s > self._converge.tolerance_s(base_s)
            event = event or excess_s > max(EVENT_FLOOR_S, EVENT_FACTOR * base_s)
        return paid, event


def _unlike(counting: list[Entry]) -> set[int]:
    """The first of these waves, and the first with other drafts than it: `drafted.repeats` asks
    whether all were alike."""

    def drafts_of(entry: Entry) -> tuple[float | None, float | None] | None:
        counted = entry.wave.counters
        return None if counted is None else (counted.drafts, counted.accepted_tokens)

    first = counting[0]
    other = next((e for e in counting if drafts_of(e) != drafts_of(first)), first)
    return {first.at, other.at}


def _is_noisy(calls: list[bool], events: list[bool]) -> bool:
    """R7: whether loud and quiet alternate, without an excess that could only be a compile."""
    if len(calls) < _NOISY_LOOKS:
        return False
    last, large = calls[-_NOISY_LOOKS:], events[-_NOISY_LOOKS:]
    flips = sum(loud and not before for before, loud in pairwise(last))
    return flips >= _NOISY_FLIPS and not any(large)

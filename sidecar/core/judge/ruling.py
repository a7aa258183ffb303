"""R6-R10 for one cell: from its tracks to call, standing and reasons."""

from collections.abc import Sequence
from dataclasses import dataclass

from sidecar.core.facts import EngineFacts
from sidecar.core.grid.cells import Cell, Drafts, Role
from sidecar.core.judge.attribution import attributed, compile_s, heard, named
from sidecar.core.judge.calls import Call, CellVerdict, GaitFigures, Standing
from sidecar.core.judge.drafted import repeats
from sidecar.core.judge.failures import Failure, failure
from sidecar.core.judge.track import MAX_TRIES, QUIET_WAVES, Track
from sidecar.core.judge.validity import examine

FOREIGN_WAVES = 3
"""R9: foreign traffic in so many waves running is the engine serving others."""


@dataclass(frozen=True, slots=True)
class Grid:
    """What a cell's verdict needs to know of the whole boot."""

    facts: EngineFacts
    since: int
    """The wave after which a last quiet one must come (R6)."""
    foreign_streak: int
    counters_seen: bool
    speculates: bool

    @property
    def serves_others(self) -> bool:
        return self.foreign_streak >= FOREIGN_WAVES


def is_quiet(track: Track, grid: Grid) -> bool:
    """R6 for one gait. Where counters exist, a wave without them is not enough."""
    reading = track.reading()
    known = reading.known_quiet or not grid.counters_seen
    return track.is_quiet_enough() and reading.last_quiet_at > grid.since and known


def rule(cell: Cell, tracks: Sequence[Track], grid: Grid, *, succeeded: bool) -> CellVerdict:
    """The verdict on one cell. `succeeded`: the one look that R1's first or R10 asks went well."""
    if cell.role is not Role.GRID:
        return _once(cell, tracks, succeeded)
    failed = tuple(f"{t.look.gait}: {_failed(t)}" for t in tracks if t.trailing_failures())
    cold = tuple(
        f"{t.look.gait}: {_cold(t)}"
        for t in tracks
        if t.reading().is_cold and not (t.reading().loud_is_foreign and grid.serves_others)
    )
    if failed or cold:
        standing = Standing.FAILED if failed else Standing.COLD
        return _verdict(cell, tracks, Call.NOT_YET, standing, failed + cold)
    unknown = _unknown(cell, tracks, grid)
    lacking = tuple(
        f"{t.look.gait}: {_lacking(t, grid)}"
        for t in tracks
        if not is_quiet(t, grid) and t.trailing_tries() < MAX_TRIES  # else it is told above
    )
    if not unknown and not lacking:
        return _verdict(cell, tracks, Call.WARM, Standing.DONE, ())
    call = Call.UNKNOWN if unknown else Call.NOT_YET
    return _verdict(cell, tracks, call, Standing.UNPROVEN, unknown + lacking)


def _once(cell: Cell, tracks: Sequence[Track], succeeded: bool) -> CellVerdict:
    """R10, and R1's first prompt. The first was not declared by anybody, so that its failure only
    leaves the order of sizes unproven; `heaviest` keeps the gate shut until it has passed."""
    if succeeded:
        return _verdict(cell, tracks, Call.PASSED, Standing.DONE, ())
    required = cell.role is Role.HEAVIEST
    standing = Standing.FAILED if required else Standing.UNPROVEN
    waves = [entry.wave for track in tracks for entry in track.entries]
    if not waves:
        reason = "it has not been run yet"
    elif told := failure(waves[-1]):
        reason = _of_cell(told, cell)
    else:
        reason = "; ".join(examine(waves[-1]).invalid_because)
    return _verdict(cell, tracks, Call.NOT_YET, standing, (reason,))


def _failed(track: Track) -> str:
    told = next(failure(e.wave) for e in reversed(track.entries) if e.failed and not e.refused)
    count = track.trailing_failures()
    said = _of_cell(told, track.look.cell) if told else ""
    return f"{'' if count < 2 else f'{count} waves in a row: '}{said}"


def _of_cell(told: Failure, cell: Cell) -> str:
    """Its sentence among the reasons of its cell, which name that before all of them."""
    return told.sentence.removeprefix(f"{cell.id}: ")


def _cold(track: Track) -> str:
    reading = track.reading()
    entry = next(e for e in reversed(track.entries) if e.at == reading.loud_at)
    if entry.compiled:
        return f"its last wave compiled {', '.join(named(entry.wave))}, says the log"
    f_s, f_base_s = track.told_f_s(entry) or 0.0, reading.f_base_s or 0.0
    g_s, g_base_s = entry.g_s, reading.g_base_s or 0.0
    d_s, d_base_s = entry.d_s, reading.d_base_s or 0.0
    f_tau_s, g_tau_s, d_tau_s = track.tolerances_s() or (1.0, 1.0, 1.0)
    f_over, g_over = (f_s - f_base_s) / f_tau_s, (g_s - g_base_s) / g_tau_s
    if (d_s - d_base_s) / d_tau_s > max(f_over, g_over):
        return (
            f"those that decode in its last wave took {d_s:.3f} s to their last first token, "
            f"{d_base_s:.3f} s at best"
        )
    if f_over >= g_over:
        return f"its last wave took {f_s:.3f} s to the last first token, {f_base_s:.3f} s at best"
    return f"its last wave stalled {g_s:.3f} s between two tokens, {g_base_s:.3f} s at best"


def _unknown(cell: Cell, tracks: Sequence[Track], grid: Grid) -> tuple[str, ...]:
    """R7, R8, R9: why this can't be known, as far as it goes today."""
    reasons: list[str] = []
    facts = grid.facts
    if facts.ranks is not None and facts.ranks > 1 and cell.rank is None:
        reasons.append(
            f"{facts.ranks} data-parallel ranks answer at this URL and the wave did not choose one"
        )
    if facts.max_num_seqs is not None and cell.requests > facts.max_num_seqs:
        reasons.append(f"concurrency {cell.requests} is above --max-num-seqs {facts.max_num_seqs}")
    if grid.speculates and cell.requests > 1 and not _drafts_repeat(cell, tracks):
        reasons.append(f"{_differ(cell)}: a batch that no wave has met can't be ruled out")
    for track in tracks:
        reading, gait = track.reading(), track.look.gait
        decodes = max(cell.output_tokens, cell.ramp) > 1 and cell.drafts is not Drafts.REJECTED
        if grid.speculates and decodes and reading.looks and not reading.accepted:
            reasons.append(f"{gait}: speculation is on, but no draft was accepted")
        if not reading.known_quiet:
            reasons.append(f"{gait}: can't be known: {'; '.join(_unknowable(track))}")
        if reading.is_noisy and not is_quiet(track, grid):
            reasons.append(
                f"{gait}: quiet waves spread by more than the tolerance: too noisy to tell"
            )
        if track.trailing_tries() >= MAX_TRIES and not is_quiet(track, grid):
            reasons.append(f"{gait}: {_last_fault(track)}, {track.trailing_tries()} times in a row")
    if grid.serves_others and not all(is_quiet(t, grid) for t in tracks):
        reasons.append(f"the engine serves others, in the last {grid.foreign_streak} waves")
    return tuple(reasons)


def _differ(cell: Cell) -> str:
    if cell.drafts is Drafts.REJECTED:
        return "its waves differ in the drafts that were made or accepted"
    return "accepted drafts make a new sequence of batches in every wave"


def _drafts_repeat(cell: Cell, tracks: Sequence[Track]) -> bool:
    """Whether a cell of rejected drafts decoded in the same steps in all waves that count."""
    if cell.drafts is not Drafts.REJECTED:
        return False
    counting = [[e.wave for e in track.entries if e.counts] for track in tracks]
    return all(repeats(cell, waves) for waves in counting if waves)


def _unknowable(track: Track) -> tuple[str, ...]:
    for entry in reversed(track.entries):
        if not entry.known:
            return examine(entry.wave).unknowable
    return ()


def _last_fault(track: Track) -> str:
    """Why the last wave of ours that did not count, did not."""
    for entry in reversed(track.entries):
        if not entry.counts and not entry.foreign and not entry.refused:
            return _fault(entry.missed.value if entry.missed else None, track, entry.at)
    return "others were served during each wave"


def _fault(missed: str | None, track: Track, at: int) -> str:
    entry = next(e for e in track.entries if e.at == at)
    because = examine(entry.wave).invalid_because
    return because[0] if because else f"batch not shown ({missed})"


def _lacking(track: Track, grid: Grid) -> str:
    reading = track.reading()
    if not track.entries:
        return "no wave yet"
    if track.entries[-1].refused:
        told = failure(track.entries[-1].wave)
        return told.sentence if told else "not admitted"
    if not reading.looks:
        return _last_fault(track)
    if not track.is_quiet_enough():
        return f"{reading.quiet_run} of {QUIET_WAVES} quiet waves at the end"
    if reading.last_quiet_at <= grid.since:
        return "no quiet wave since another cell paid, or made its batch for the first time"
    return "its quiet waves could not be checked against the engine's counters"


def _verdict(
    cell: Cell,
    tracks: Sequence[Track],
    call: Call,
    standing: Standing,
    reasons: tuple[str, ...],
) -> CellVerdict:
    resolutions = [r for r in (t.resolution_s() for t in tracks) if r is not None]
    resolution_s = max(resolutions, default=None) if cell.role is Role.GRID else None
    figures = tuple(_figures(track) for track in tracks)
    return CellVerdict(
        cell,
        call,
        standing,
        reasons,
        resolution_s,
        figures,
        kernels=attributed(tracks),
        compile_s=compile_s(tracks),
        log=heard(tracks) if cell.role is Role.GRID else None,
    )


def _figures(track: Track) -> GaitFigures:
    reading = track.reading()
    timed = [e for e in track.entries if e.f_s is not None]
    return GaitFigures(
        gait=track.look.gait,
        waves=len(track.entries) + track.forgotten,
        valid=reading.looks + track.forgotten_looks,
        first_f_s=track.told_f_s(timed[0]) if timed else None,
        baseline_f_s=reading.f_base_s,
        last_f_s=track.told_f_s(timed[-1]) if timed else None,
        first_g_s=timed[0].g_s if timed else None,
        baseline_g_s=reading.g_base_s,
        last_g_s=timed[-1].g_s if timed else None,
        last_is_loud=bool(timed) and reading.loud_at == timed[-1].at,
    )

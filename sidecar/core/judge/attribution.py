"""Which cell compiled what, by the log, and what that cost; and how far the log carries."""

from collections.abc import Iterable, Sequence

from sidecar.core.judge.calls import CellLog, Kernel
from sidecar.core.judge.figures import Entry
from sidecar.core.judge.track import Track
from sidecar.core.logs.evidence import ORDER
from sidecar.core.results import WaveResult

MAX_KERNELS = 20
"""Of one cell that are told; a cold engine's first wave compiles some dozens at most."""
_MAX_NAMED = 3


def named(wave: WaveResult) -> tuple[str, ...]:
    """The kernels of one wave for a sentence: the first few, and how many more."""
    if wave.log is None:
        return ()
    names = tuple(dict.fromkeys(f"{c.kernel} ({c.backend})" for c in wave.log.compiles))
    more = len(names) - _MAX_NAMED
    return names if more <= 0 else (*names[:_MAX_NAMED], f"{more} more")


def attributed(tracks: Sequence[Track]) -> tuple[Kernel, ...]:
    """The kernels that the waves of one cell compiled, the dearest first."""
    lines: dict[tuple[str, str], int] = {}
    costs: dict[tuple[str, str], float] = {}
    for track in tracks:
        for entry in track.entries:
            names = _names(entry)
            cost_s = _excess_s(entry, track)
            for name, count in names.items():
                lines[name] = lines.get(name, 0) + count
                if cost_s is not None:
                    costs[name] = costs.get(name, 0.0) + cost_s
    kernels = [Kernel(*name, lines=count, cost_s=costs.get(name)) for name, count in lines.items()]
    kernels.sort(key=lambda k: (-(k.cost_s or 0.0), -k.lines, k.kernel))
    return tuple(kernels[:MAX_KERNELS])


def compile_s(tracks: Sequence[Track]) -> float | None:
    """What the waves of one cell with a compile line cost together; None where there is none."""
    costs = [_excess_s(e, track) for track in tracks for e in track.entries if e.compiled]
    known = [cost_s for cost_s in costs if cost_s is not None]
    return sum(known) if known else None


def _names(entry: Entry) -> dict[tuple[str, str], int]:
    counts: dict[tuple[str, str], int] = {}
    for line in () if entry.wave.log is None else entry.wave.log.compiles:
        name = (line.backend, line.kernel)
        counts[name] = counts.get(name, 0) + line.repeated
    return counts


def _excess_s(entry: Entry, track: Track) -> float | None:
    """None: not known, as of a wave that has no other to be compared with."""
    if len(track.entries) < 2:
        return None
    reading, f_s = track.reading(), track.told_f_s(entry)
    if f_s is None or reading.f_base_s is None or reading.g_base_s is None:
        return None
    d_excess_s = entry.d_s - (reading.d_base_s or 0.0)
    return max(f_s - reading.f_base_s, entry.g_s - reading.g_base_s, d_excess_s, 0.0)


def heard(tracks: Iterable[Track]) -> CellLog | None:
    """Of the last look of each gait, the one that the log carries least."""
    last = [track.last_look() for track in tracks]
    logs = [entry.wave.log for entry in last if entry is not None and entry.wave.log is not None]
    return weakest([CellLog(log.hearing, log.words) for log in logs])


def weakest(logs: Sequence[CellLog]) -> CellLog | None:
    return max(logs, key=lambda log: ORDER.index(log.hearing), default=None)

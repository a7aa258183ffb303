"""Several gates as one: it is open while all of them are."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from sidecar.core.judge.passes import Progress
from sidecar.core.tally import Totals
from sidecar.core.watch.gate import Snapshot, State

_WORST = (State.STOPPING, State.FAILED, State.WAITING, State.WARMING, State.READY)
"""The state of the whole is that of its part that is furthest from ready."""


def together(parts: Mapping[str, Snapshot]) -> Snapshot:
    """One snapshot of several engines by name; reasons and warnings say whose they are."""
    each = tuple(parts.values())
    state = next(one for one in _WORST if any(part.state is one for part in each))
    # Reasons of an open gate say what is not proven: no reason why the whole is shut.
    telling = parts
    if state is not State.READY:
        telling = {name: part for name, part in parts.items() if not part.is_ready}
    return Snapshot(
        url=", ".join(part.url for part in each),
        state=state,
        since=max(part.since for part in each if part.state is state),
        proven=all(part.proven for part in each),
        adopted=all(part.adopted for part in each),
        reasons=_named(telling, lambda part: part.reasons),
        warnings=_named(parts, lambda part: part.warnings),
        progress=_progress(part.progress for part in each),
        eta_s=_slowest([part.eta_s for part in each if not part.is_ready]),
        totals=Totals.of_all([part.totals for part in each]),
        is_active=any(part.is_active for part in each),
        cell=next((f"{name} {part.cell}" for name, part in parts.items() if part.cell), None),
        warmup_s=max((p.warmup_s for p in each if p.warmup_s is not None), default=None),
        waves_dropped=sum(part.waves_dropped for part in each),
        held=tuple(dict.fromkeys(cell for part in each for cell in part.held)),
        parts=dict(parts),
    )


def _named(
    parts: Mapping[str, Snapshot], of: Callable[[Snapshot], tuple[str, ...]]
) -> tuple[str, ...]:
    return tuple(f"{name}: {text}" for name, part in parts.items() for text in of(part))


def _slowest(etas_s: Sequence[float | None]) -> float | None:
    """None as soon as one is not known: it may be the slowest."""
    known = [eta_s for eta_s in etas_s if eta_s is not None]
    return max(known) if known and len(known) == len(etas_s) else None


def _progress(parts: Iterable[Progress | None]) -> Progress | None:
    known = [part for part in parts if part is not None]
    if not known:
        return None
    return Progress(
        passes=max(part.passes for part in known),
        cells_done=sum(part.cells_done for part in known),
        cells_total=sum(part.cells_total for part in known),
        waves_left=sum(part.waves_left for part in known),
    )

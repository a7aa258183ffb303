"""Why the gate is shut, for those who can do something about it, and when to ask again."""

import math

from sidecar.core.watch.gate import Snapshot, State

ASK_AGAIN_S = 5
"""Where nobody can say how long it takes: an engine that is gone may be back any moment."""

_LONGEST_S = 300
"""A first wave that compiles makes every estimate far too long."""


def reasons_of(snapshot: Snapshot) -> tuple[str, ...]:
    """Never empty while the gate is shut; while it is open, why it is not proven."""
    match snapshot.state:
        case State.WARMING:
            return (_warming(snapshot), *snapshot.reasons)
        case State.WAITING if not snapshot.reasons:
            return (f"the engine at {snapshot.url} is being looked at; wait",)
        case _:
            return snapshot.reasons


def retry_after_s(snapshot: Snapshot) -> int:
    """Whole seconds until asking again makes sense: 1 to 300."""
    if snapshot.state is not State.WARMING or snapshot.eta_s is None:
        return ASK_AGAIN_S
    return min(_LONGEST_S, max(1, math.ceil(snapshot.eta_s)))


def _warming(snapshot: Snapshot) -> str:
    progress = snapshot.progress
    if progress is None or progress.passes == 0:
        return "warming: the first wave is being made ready; wait"
    waves = "wave" if progress.waves_left == 1 else "waves"
    now = "" if snapshot.cell is None else f", now {snapshot.cell}"
    left = "how long is not known yet" if snapshot.eta_s is None else _about(snapshot.eta_s)
    return (
        f"warming: pass {progress.passes}{now}; {progress.cells_done} of "
        f"{progress.cells_total} cells done, at least {progress.waves_left} {waves} to go; wait, "
        f"{left}"
    )


def _about(eta_s: float) -> str:
    return f"about {max(1, math.ceil(eta_s))} s"

"""Speculation: whether the drafts of a wave became what its cell declares."""

from collections.abc import Iterable

from sidecar.core.grid.cells import Cell, Drafts
from sidecar.core.results import WaveResult
from sidecar.core.wire.metrics import CounterDelta

REJECTED_MOST = 0.05
"""Accepted tokens that a wave of rejected drafts may have, as a share of its drafted or its output
tokens, whichever are more: random text hits a guess now and then."""


def undeclared(wave: WaveResult) -> tuple[str, ...]:
    """Why the drafts of this wave are not those of its cell, in words; () if they are, or if
    nothing is declared or told."""
    declared, delta = wave.look.cell.drafts, wave.counters
    if declared is None or delta is None or delta.accepted_tokens is None:
        return ()
    if declared is Drafts.ACCEPTED:
        if delta.accepted_tokens:
            return ()
        return (f"no draft was accepted, and the cell is one of accepted drafts{_of(delta)}",)
    most = REJECTED_MOST * max(delta.draft_tokens or 0, wave.look.cell.wave_output_tokens)
    if delta.accepted_tokens <= most:
        return ()
    return (
        f"{delta.accepted_tokens:g} drafted tokens were accepted, and the cell is one of rejected "
        f"drafts{_of(delta)}",
    )


def untold(wave: WaveResult) -> tuple[str, ...]:
    """What of it can't be known."""
    declared, delta = wave.look.cell.drafts, wave.counters
    if declared is None or (delta is not None and delta.accepted_tokens is not None):
        return ()
    return (f"whether drafts were {declared} (no spec_decode counters in /metrics)",)


def repeats(cell: Cell, waves: Iterable[WaveResult]) -> bool:
    """Whether all of these waves decoded in the same steps, so that the next one will.

    Accepted drafts end requests at ever other moments. Where none is accepted, each request makes
    one step for each of its tokens; and whether those steps carry drafts is the same in each wave
    if all of them did or none.
    """
    steps = cell.wave_output_tokens - cell.requests
    # The step for a request's last token may go without: there is nothing left to guess for.
    fewest = steps - cell.requests
    drafts = set()
    for wave in waves:
        delta = wave.counters
        if delta is None or delta.accepted_tokens is None or delta.accepted_tokens:
            return False
        drafts.add(delta.drafts)
    only = drafts.pop() if len(drafts) == 1 else None
    return only is not None and (only == 0 or only >= fewest)


def _of(delta: CounterDelta) -> str:
    return "" if delta.draft_tokens is None else f" ({delta.draft_tokens:g} tokens were drafted)"

"""R3 by iteration-detail lines: the engine's own account of its steps, where a log is complete.

It is stronger than the streams' stamps, in both directions: no delay on the way blurs it, and it
can't look right by chance. What it does not decide (a rest that takes several steps, several
engines in one log) the stamps do; so do they where the lines don't add up to the wave, as with one
among them that a user has written.
"""

from collections.abc import Sequence

from sidecar.core.grid.cells import Cell, Gait
from sidecar.core.grid.plan import Plan
from sidecar.core.judge.misses import Miss
from sidecar.core.logs.events import Step
from sidecar.core.results import WaveResult


def decode_tokens(plan: Plan) -> int:
    """Of a step's budget, what one decoding request takes: 1 + k."""
    return 1 + (plan.facts.draft_tokens or 0)


def rest_fits(wave: WaveResult, plan: Plan) -> bool:
    """Whether the rest of a led wave fits into one step beside the lead's decode."""
    cell = wave.look.cell
    rest = (cell.concurrency - 1) * cell.computed_tokens
    return rest + decode_tokens(plan) <= plan.batched_tokens


def told(wave: WaveResult, plan: Plan) -> tuple[Miss | None] | None:
    """(None,) if the steps show the batch, (why,) if they show another; None: they don't tell."""
    log = wave.log
    if log is None or log.steps is None or not log.shows_steps:
        return None
    cell, prefills = wave.look.cell, log.steps.prefills
    if not _adds_up(prefills, wave):
        return None
    if cell.captured:
        missed = None
    elif wave.look.gait is Gait.MIXED:
        missed = _mixed(cell, prefills)
    elif wave.look.gait is Gait.HELD:
        missed = _held(cell.concurrency, cell.wave_computed_tokens, prefills)
    elif cell.computed_tokens <= plan.batched_tokens and rest_fits(wave, plan):
        missed = _led(cell.concurrency, cell.computed_tokens, prefills)
    else:
        return None
    if missed is None and log.steps.most_decoding < cell.concurrency:
        # Of a long wave only the first steps are kept; then the stamps must tell.
        return None if log.dropped else (Miss.NO_OVERLAP,)
    return (missed,)


def _adds_up(prefills: Sequence[Step], wave: WaveResult) -> bool:
    """Whether all of the wave's prompts are in these steps, and nothing else."""
    plug_tokens = 0 if wave.plug is None else wave.plug.prompt_tokens or 0
    prompts = wave.look.cell.wave_computed_tokens + plug_tokens
    return sum(step.context_tokens for step in prefills) == prompts


def _mixed(cell: Cell, prefills: Sequence[Step]) -> Miss | None:
    """Those that decode in one step, and behind it nothing but the arriving prompt, all of it in
    steps in which each of them decoded."""
    together = (cell.concurrency, cell.concurrency * cell.prompt_tokens)
    shapes = [(step.context_requests, step.context_tokens) for step in prefills]
    if together not in shapes:
        return _held(*together, prefills)
    arriving = prefills[shapes.index(together) + 1 :]
    computed = sum(s.context_tokens for s in arriving if s.context_requests == 1)
    if computed != cell.arriving_tokens:
        return Miss.ARRIVED_EARLY
    decoded = all(step.generation_requests == cell.concurrency for step in arriving)
    return None if decoded else Miss.OUTRUN


def _held(concurrency: int, tokens: int, prefills: Sequence[Step]) -> Miss | None:
    shapes = [(step.context_requests, step.context_tokens) for step in prefills]
    if (concurrency, tokens) in shapes:
        return None
    shared = any(requests > concurrency for requests, _ in shapes)
    return Miss.PLUG_SHARED if shared else Miss.SPLIT


def _led(concurrency: int, tokens: int, prefills: Sequence[Step]) -> Miss | None:
    if not prefills or (prefills[0].context_requests, prefills[0].context_tokens) != (1, tokens):
        return Miss.LEAD_NOT_ALONE
    if len(prefills) != 2:
        return Miss.REST_SPLIT
    rest = prefills[1]
    wanted = (concurrency - 1, (concurrency - 1) * tokens, 1)
    seen = (rest.context_requests, rest.context_tokens, rest.generation_requests)
    return None if seen == wanted else Miss.REST_SPLIT

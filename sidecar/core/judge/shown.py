"""R3 and R4: whether a wave made the batch that its gait promises, told from its own streams.

Where a complete log has iteration-detail lines, those tell (`steps.py`); else the streams do.

The streams are the clock. vLLM decodes every running request in every step and sends one event a
request and step, so two requests that got their first token in different steps are told apart by
the earlier one's *second* token, which comes with the later one's first. That needs no idea of how
long a step should take, and noise can't blur it: both stamps belong to the same step. Where events
are grouped (`--stream-interval`, a busy API server) only R3's bound on the first tokens is left.

What each gait promises:

* `held`: one step for all. No second token before the last first one, the plug still running when
  the last body was written, and the first tokens within half the warm TTFT of one such prompt.
* `led`: the lead alone; then the rest as the scheduler packs what is all waiting: in one step
  where it fits under B, else spread over steps exactly as first come, first served fills them, for
  which B must be known. The lead's stream counts those steps. A constant delay is no matter: with
  asynchronous scheduling the rest comes one step later than without.
* both: `max(first) < min(last)`, so that there was a step in which all of them decoded.
* `mixed`: those that decode as `held`, if they are several; the other's body written when the last
  of them had its first token, and its own first token while all of them still decode.

A cell that is there for its decode batch promises that all decode together for some steps, and
nothing of how they came there. A wave of one shares its steps with nobody and is always shown.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

from sidecar.core.grid.cells import Gait
from sidecar.core.grid.plan import Plan
from sidecar.core.judge.misses import Miss
from sidecar.core.judge.steps import decode_tokens, rest_fits, told
from sidecar.core.results import Result, WaveResult

__all__ = ["Miss", "miss", "nearest", "packing"]


_GROUPED = 0.75
"""Fewer events than this share of the tokens, without speculation: events don't tell steps."""

_SEVERAL = 2
"""Steps of one decode batch that are enough to show it."""


def miss(wave: WaveResult, plan: Plan, warm_ttft_s: float | None) -> Miss | None:
    """Why `wave` doesn't show its batch, or None if it does.

    `warm_ttft_s` is the best known time to the first token of one prompt of the same length and
    variant, alone; None while there is none, and then the streams decide by themselves.
    """
    cell = wave.look.cell
    firsts = [r.first_s for r in wave.results if r.first_s is not None]
    lasts = [r.last_s for r in wave.results if r.last_s is not None]
    if len(firsts) < cell.requests:
        return Miss.UNFINISHED
    if cell.requests == 1:
        return None
    by_steps = told(wave, plan)
    if by_steps is not None:
        return by_steps[0]
    if wave.look.gait is Gait.MIXED:
        return _mixed_miss(wave, plan, warm_ttft_s)
    if max(firsts) >= min(lasts):
        return Miss.NO_OVERLAP
    if cell.captured:
        return _decoded_miss(wave, max(firsts), min(lasts))
    if wave.look.gait is Gait.HELD:
        return _held_miss(wave, plan, warm_ttft_s)
    return _led_miss(wave, plan, warm_ttft_s)


def _decoded_miss(wave: WaveResult, from_s: float, until_s: float) -> Miss | None:
    """Whether the last to begin made several steps while all the others were there."""
    last = max(wave.results, key=lambda r: r.token_s[0])
    steps = sum(from_s < at_s <= until_s for at_s in last.token_s)
    return None if steps >= _SEVERAL or _is_grouped(wave) else Miss.NO_OVERLAP


def _mixed_miss(wave: WaveResult, plan: Plan, warm_ttft_s: float | None) -> Miss | None:
    arriving, all_decode_s = wave.results[-1], wave.all_decode_s
    if all_decode_s is None or arriving.sent_s < all_decode_s:
        return Miss.ARRIVED_EARLY
    if arriving.token_s[0] >= min(r.token_s[-1] for r in wave.together):
        return Miss.OUTRUN
    if wave.look.cell.concurrency == 1:
        return None
    return _held_miss(replace(wave, results=wave.together), plan, warm_ttft_s)


def _held_miss(wave: WaveResult, plan: Plan, warm_ttft_s: float | None) -> Miss | None:
    plug_s = None if wave.plug is None else wave.plug.first_s
    if plug_s is None or plug_s <= max(r.sent_s for r in wave.results):
        return Miss.PLUG_GONE
    if _may_share(wave, plan) and not _is_grouped(wave):
        first_s, second_s = min(_firsts(wave.results)), _second(wave.results)
        if second_s is not None and first_s - plug_s < (second_s - first_s) / 4:
            return Miss.PLUG_SHARED
    return None if _is_one_step(wave, wave.results, warm_ttft_s) else Miss.SPLIT


def _may_share(wave: WaveResult, plan: Plan) -> bool:
    """Whether the plug's last chunk leaves room: not if it is whole chunks of a B that is known."""
    tokens = 0 if wave.plug is None else wave.plug.prompt_tokens or 0
    return not plan.batched_tokens_known or tokens % plan.batched_tokens != 0


def _led_miss(wave: WaveResult, plan: Plan, warm_ttft_s: float | None) -> Miss | None:
    cell = wave.look.cell
    lead, rest = wave.results[0], wave.results[1:]
    if max(r.sent_s for r in rest) >= _lead_step_s(wave, plan, warm_ttft_s):
        return Miss.REST_LATE
    fits = rest_fits(wave, plan)
    if _is_grouped(wave):
        if min(_firsts(rest)) <= lead.token_s[0]:
            return Miss.LEAD_NOT_ALONE
        return None if fits and _is_one_step(wave, rest, warm_ttft_s) else Miss.REST_SPLIT
    steps = sorted(nearest(lead.token_s, first_s) for first_s in _firsts(rest))
    if steps[0] == 0 and cell.computed_tokens <= plan.batched_tokens:
        return Miss.LEAD_NOT_ALONE
    if fits or not plan.batched_tokens_known:
        if _is_one_step(wave, rest, warm_ttft_s):
            return None
        return Miss.REST_SPLIT if fits else Miss.B_UNKNOWN
    expected = packing(
        cell.concurrency, cell.computed_tokens, plan.batched_tokens, decode_tokens(plan)
    )
    if not expected or steps[0] < expected[0]:
        return Miss.REST_SPLIT
    seen = [step - steps[0] + expected[0] for step in steps]
    return None if seen == expected else Miss.REST_SPLIT


def _lead_step_s(wave: WaveResult, plan: Plan, warm_ttft_s: float | None) -> float:
    """When the lead's first step had surely not ended. Of a prompt of several chunks only the last
    one's end is seen; a rest that came after the first is packed otherwise."""
    first_s = wave.results[0].token_s[0]
    steps = -(-wave.look.cell.computed_tokens // plan.batched_tokens)
    if steps == 1 or not plan.batched_tokens_known or warm_ttft_s is None:
        return first_s
    return min(first_s, warm_ttft_s / steps)


def packing(
    concurrency: int, prompt_tokens: int, batched_tokens: int, decode_tokens: int
) -> list[int]:
    """For each request of the rest, how many steps after the lead's first token its own one comes.

    First come, first served, running requests before waiting ones, chunked prefill: the scheduler
    of vLLM V1 (`v1/core/sched/scheduler.py`), with the rest waiting from the lead's second step on.
    Empty if they would never all be admitted: decodes alone fill a step.
    """
    left = [prompt_tokens] * concurrency
    done_at = [0] * concurrency
    step = 0
    while any(left):
        step += 1
        budget = start = batched_tokens - decode_tokens * left.count(0)
        for i, tokens in enumerate(left[:1] if step == 1 else left):
            took = min(tokens, max(budget, 0))
            budget -= took
            left[i] -= took
            if took and not left[i]:
                done_at[i] = step
        if budget == start:
            return []
    return sorted(at - done_at[0] for at in done_at[1:])


def _firsts(results: Sequence[Result]) -> list[float]:
    return [r.token_s[0] for r in results]


def _second(results: Sequence[Result]) -> float | None:
    return min((r.token_s[1] for r in results if len(r.token_s) > 1), default=None)


def _is_one_step(wave: WaveResult, results: Sequence[Result], warm_ttft_s: float | None) -> bool:
    """Whether all of `results` got their first token in the same step."""
    if len(results) == 1:
        return True
    firsts = _firsts(results)
    spread_s = max(firsts) - min(firsts)
    second_s = None if _is_grouped(wave) else _second(results)
    if second_s is None:
        return warm_ttft_s is not None and spread_s < warm_ttft_s / 2
    if spread_s >= (second_s - min(firsts)) / 2:
        return False
    return warm_ttft_s is None or spread_s < warm_ttft_s / 2


def _is_grouped(wave: WaveResult) -> bool:
    """Whether one event stands for several steps. With accepted drafts it stands for one."""
    if wave.counters is not None and wave.counters.accepted_tokens:
        return False
    tokens = sum(r.completion_tokens or 0 for r in wave.results)
    return sum(len(r.token_s) for r in wave.results) < _GROUPED * tokens


def nearest(ticks: Sequence[float], at_s: float) -> int:
    """Index of the tick nearest to `at_s`."""
    i = bisect_left(ticks, at_s)
    if i == 0 or (i < len(ticks) and ticks[i] - at_s < at_s - ticks[i - 1]):
        return i
    return i - 1

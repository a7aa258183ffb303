"""R2: whether a wave was what its cell declares, and whether the engine had it to itself."""

from dataclasses import dataclass

from sidecar.core.judge import cached
from sidecar.core.judge.drafted import undeclared, untold
from sidecar.core.judge.unruly import unruly
from sidecar.core.results import Outcome, Result, WaveResult
from sidecar.core.wire.metrics import CounterDelta

_SAME = 0.5
"""Counters are whole numbers sent as floats."""


@dataclass(frozen=True, slots=True)
class Validity:
    """What R2 says of one wave."""

    invalid_because: tuple[str, ...] = ()
    unknowable: tuple[str, ...] = ()
    """What could not be checked, because the engine doesn't tell: caps the verdict at unknown."""
    foreign: bool = False
    """The engine counted more than the wave: it served others meanwhile."""


@dataclass(frozen=True, slots=True)
class _Ours:
    requests: int
    prompt_tokens: int
    generation_tokens: int


def examine(wave: WaveResult) -> Validity:
    """Check a wave by R2. A wave with failed requests is invalid; who failed is told elsewhere."""
    invalid = _as_declared(wave)
    ours = _ours(wave)
    delta = wave.counters
    by_log = 0 if wave.log is None else wave.log.foreign
    if by_log:
        invalid += (f"the engine served others meanwhile ({by_log} more answers in its log)",)
    if delta is None:
        return Validity(invalid, ("the engine's counters could not be read",), bool(by_log))
    pairs = (
        ("requests", delta.requests, ours.requests),
        ("prompt tokens", delta.prompt_tokens, ours.prompt_tokens),
        ("output tokens", delta.generation_tokens, ours.generation_tokens),
    )
    foreign = any(counted is not None and counted > sent + _SAME for _, counted, sent in pairs)
    if foreign:
        told = ", ".join(f"{n:g} {what} for {m}" for what, n, m in pairs if n is not None)
        return Validity((*invalid, f"the engine served others meanwhile ({told})"), (), True)
    if by_log:
        return Validity(invalid, (), True)
    if invalid:
        return Validity(invalid)  # the counters can't agree with a wave that did not end well
    for what, counted, sent in pairs:
        if counted is not None and counted < sent - _SAME:
            invalid += (f"the engine counted {counted:g} {what} of {sent}",)
    invalid += _recomputed(wave, delta, ours) + undeclared(wave)
    return Validity(invalid, _unknowable(wave, delta))


def is_success(wave: WaveResult) -> bool:
    """Every request answered in full, as declared: all that R1's first prompt and R10 ask for."""
    return not _as_declared(wave)


def _as_declared(wave: WaveResult) -> tuple[str, ...]:
    cell = wave.look.cell
    invalid: list[str] = []
    if len(wave.results) != cell.requests:
        invalid.append(f"{len(wave.results)} of {cell.requests} requests ran")
    failed = sum(r.outcome is not Outcome.OK for r in wave.results)
    if failed:
        return (*invalid, f"{failed} of {cell.requests} requests failed")
    for index, result in enumerate(wave.results):
        more = wave.more_tokens if index < cell.concurrency else 0
        output_tokens = (cell.output_tokens_of(index) + more) * cell.variant.choices
        wrong = _wrong(result, cell.prompt_tokens_of(index), output_tokens)
        wrong = wrong or unruly(result, cell.variant)
        if wrong:
            invalid.append(wrong)
            break  # one example: they mostly all have the same fault
    if not invalid:
        invalid += cached.by_usage(wave)
    if wave.plug is not None and wave.plug.outcome is not Outcome.OK:
        invalid.append(f"the plug failed: {wave.plug.outcome} {wave.plug.message}".rstrip())
    return tuple(invalid)


def _wrong(result: Result, prompt_tokens: int, output_tokens: int) -> str | None:
    if result.prompt_tokens != prompt_tokens:
        return f"usage says {result.prompt_tokens} prompt tokens, not {prompt_tokens}"
    if result.completion_tokens != output_tokens:
        return f"usage says {result.completion_tokens} output tokens, not {output_tokens}"
    if result.finish_reason != "length":
        return f"a request finished by {result.finish_reason!r}, not 'length'"
    return None if result.token_s else "a request had no token in its stream"


def _ours(wave: WaveResult) -> _Ours:
    cell, plug = wave.look.cell, wave.plug
    plug_tokens = 0 if plug is None else plug.prompt_tokens or 0
    plugs = 0 if plug is None else 1
    return _Ours(
        cell.requests * cell.variant.choices + plugs,
        cell.wave_prompt_tokens * cell.variant.choices + plug_tokens,
        cell.wave_output_tokens + plugs + cell.concurrency * wave.more_tokens,
    )


def _recomputed(wave: WaveResult, delta: CounterDelta, ours: _Ours) -> tuple[str, ...]:
    invalid = cached.by_counters(wave, delta, ours.prompt_tokens)
    if delta.preemptions:
        invalid += (f"{delta.preemptions:g} requests were preempted",)
    return invalid


def _unknowable(wave: WaveResult, delta: CounterDelta) -> tuple[str, ...]:
    unknown: tuple[str, ...] = ()
    if delta.prompt_tokens is None and delta.requests is None:
        unknown += ("whether the engine served others (no request counters in /metrics)",)
    if not cached.is_told(wave, delta):
        unknown += ("whether prompts came from a cache (no cache counters in /metrics)",)
    if delta.preemptions is None:
        unknown += ("whether requests were preempted (no preemption counter in /metrics)",)
    return unknown + untold(wave)

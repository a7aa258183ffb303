"""Waves as an engine of plain steps would answer them, for the tests of verdict and pacing."""

from collections.abc import Mapping, Sequence
from typing import Any

from sidecar.core.grid.cells import Cell, Gait, Look
from sidecar.core.results import Outcome, Result, WaveResult
from sidecar.core.wire.metrics import CounterDelta

STEP_S = 0.01


def cell(concurrency: int = 1, prompt_tokens: int = 100, output_tokens: int = 9, **more) -> Cell:
    """A cell, both gaits from concurrency 2 on."""
    gaits = (Gait.LED, Gait.HELD) if concurrency > 1 else (Gait.LED,)
    return Cell(concurrency, prompt_tokens, output_tokens, **{"gaits": gaits, **more})


def result(first_s: float, *, cell: Cell, index: int = 0, sent_s: float = 0.0, **more) -> Result:
    """One request that went well: a token a step from `first_s` on."""
    tokens = cell.output_tokens_of(index)
    values = {
        "outcome": Outcome.OK,
        "sent_s": sent_s,
        "token_s": tuple(first_s + STEP_S * i for i in range(tokens)),
        "prompt_tokens": cell.prompt_tokens,
        "completion_tokens": tokens,
        "cached_tokens": None,
        "finish_reason": "length",
        "status": 200,
    }
    return Result(**{**values, **more})


def counters(cell: Cell, plug_tokens: int | None = None, **more) -> CounterDelta:
    """What /metrics counts when nobody else is there."""
    plugs = 0 if plug_tokens is None else 1
    prompt_tokens = cell.wave_prompt_tokens + (plug_tokens or 0)
    values = {
        "requests": cell.requests + plugs,
        "prompt_tokens": prompt_tokens,
        "generation_tokens": cell.wave_output_tokens + plugs,
        "computed_tokens": prompt_tokens,
        "cached_tokens": 0,
        "preemptions": 0,
    }
    return CounterDelta(**{**values, **more})


def led(
    cell: Cell,
    *,
    ttft_s: float = 0.05,
    at_s: float = 0.0,
    cold_s: float = 0.0,
    gap_s: float = 0.0,
    firsts: Sequence[float] | None = None,
    delta: CounterDelta | None = None,
) -> WaveResult:
    """A led wave, the rest one step later. `cold_s` delays all, `gap_s` the decode."""
    if firsts is None:
        firsts = [ttft_s + cold_s] + [ttft_s + cold_s + STEP_S] * (cell.concurrency - 1)
    results = [
        _stalled(result(f, cell=cell, index=i, sent_s=0.0 if i == 0 else 0.005), gap_s)
        for i, f in enumerate(firsts)
    ]
    return wave(cell, Gait.LED, results, at_s=at_s, delta=delta or counters(cell))


def held(
    cell: Cell,
    *,
    plug_tokens: int = 2048,
    plug_s: float = 0.2,
    step_s: float = 0.03,
    at_s: float = 0.0,
    cold_s: float = 0.0,
    gap_s: float = 0.0,
    split: int = 0,
    delta: CounterDelta | None = None,
) -> WaveResult:
    """A held wave: all in the step after the plug's, but for the last `split`, one step later."""
    late = cell.concurrency - split
    first_s = plug_s + step_s + cold_s
    results = [
        _stalled(
            result(first_s + (STEP_S if i >= late else 0), cell=cell, index=i, sent_s=0.001), gap_s
        )
        for i in range(cell.concurrency)
    ]
    plug = Result(Outcome.OK, -0.01, (plug_s,), plug_tokens, 1, None, "length", 200)
    return wave(
        cell, Gait.HELD, results, at_s=at_s, plug=plug, delta=delta or counters(cell, plug_tokens)
    )


def recorded(cell: Cell, row: Mapping[str, Any]) -> WaveResult:
    """A held wave of a real server: a row of a file of tests/data/waves."""
    results = [
        result(first, cell=cell, token_s=(first, *(second + STEP_S * i for i in range(8))))
        for first, second in zip(row["firsts"], row["seconds"], strict=True)
    ]
    plug = row["plug"]
    plug_result = Result(
        Outcome.OK, plug["sent"], (plug["first"],), plug["tokens"], 1, None, "length", 200
    )
    delta = counters(cell, plug["tokens"])
    return wave(cell, Gait.HELD, results, plug=plug_result, delta=delta)


def wave(
    cell: Cell,
    gait: Gait,
    results: Sequence[Result],
    *,
    at_s: float = 0.0,
    plug: Result | None = None,
    delta: CounterDelta | None = None,
    spread_s: float = 0.002,
) -> WaveResult:
    """Any wave."""
    took_s = max((r.last_s for r in results if r.last_s is not None), default=0.0)
    return WaveResult(Look(cell, gait), tuple(results), spread_s, took_s, at_s, plug, delta)


def _stalled(good: Result, gap_s: float) -> Result:
    """The same with the fifth token and what follows late by `gap_s`."""
    stamps = tuple(t + (gap_s if i >= 4 else 0.0) for i, t in enumerate(good.token_s))
    return Result(
        good.outcome,
        good.sent_s,
        stamps,
        good.prompt_tokens,
        good.completion_tokens,
        good.cached_tokens,
        good.finish_reason,
        good.status,
        good.message,
    )

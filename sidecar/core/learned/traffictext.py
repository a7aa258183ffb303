"""Traffic as a shapes file, with what it rests on, and the one in use beside it, in comments."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sidecar.core.grid.cells import Endpoint
from sidecar.core.learned.beside import Row
from sidecar.core.learned.proposalstext import shown
from sidecar.core.learned.traffic import OUTPUT_TOKENS, Level, Traffic
from sidecar.core.wire.histograms import Bucket

ALONE = 1
"""Users come one by one too, and a request alone takes other kernels than a batch."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Whom and how long was asked."""

    url: str
    model: str | None
    watched_s: float
    in_use: str
    """The shapes file beside which the traffic is shown."""


def to_yaml(asked: Asked, traffic: Traffic, rows: Sequence[Row]) -> str:
    """A whole shapes file."""
    return "\n".join(
        (*_head(asked, traffic), *_grid(traffic, asked), *_contexts(traffic), *_beside(asked, rows))
    )


def _head(asked: Asked, traffic: Traffic) -> Iterator[str]:
    yield (
        f"# What the users of {shown(asked.model or 'an unknown model')} at {shown(asked.url)} do: "
        f"{traffic.requests} requests"
    )
    yield "# that ended since the engine began (vllm:request_prompt_tokens, _generation_tokens)."
    if traffic.own is None:
        yield "# Warm-ups of a sidecar are among them, for vLLM counts all alike; with --state-dir"
        yield "# those of the last one are taken off, if it warmed this boot of the engine."
    else:
        yield f"# The {traffic.own.requests} requests of the sidecar's own warm-up are taken off."
    yield "# A histogram tells only between which two edges a length lies. The upper edge is used:"
    yield "# a cell is as long as the longest of its bucket or longer, and a round number. Lengths"
    yield "# that you know are better, the odd ones too."
    for name, bucket in traffic.outputs.items():
        yield f"#   answers, {name}: {_span(bucket)} tokens"
    yield from _sample(asked, traffic)


def _sample(asked: Asked, traffic: Traffic) -> Iterator[str]:
    times = "once" if traffic.samples == 1 else f"{traffic.samples} times in {asked.watched_s:g} s"
    if traffic.running:
        told = ", ".join(f"{'/'.join(level.names)} {level.value}" for level in traffic.running)
        yield f"# vllm:num_requests_running, looked at {times}, while anybody was there: {told}."
    else:
        yield f"# vllm:num_requests_running, looked at {times}: nobody was there, so 1 is assumed."
    yield "# It is a sample: other hours have other peaks, and what is over in a second is missed."


def _grid(traffic: Traffic, asked: Asked) -> Iterator[str]:
    at_once = sorted({ALONE, *(level.value for level in traffic.running)})
    yield "grid:"
    names = ", ".join("/".join(level.names) for level in traffic.running)
    and_sampled = f", and the sample's {names}" if names else ""
    yield f"  concurrency: {at_once}  # one alone{and_sampled}"
    yield "  prompt_tokens:"
    for level in traffic.lengths:
        yield f"    - {level.value}  # {'/'.join(level.names)}: {_span(level.bucket)}{_cut(level)}"
    yield f"  output_tokens: [{OUTPUT_TOKENS}]  # what is cold in decoding shows in the first steps"
    endpoints = traffic.endpoints or (Endpoint.COMPLETIONS,)
    how = "by http_requests_total" if traffic.endpoints else "http_requests_total doesn't say which"
    yield f"  variants: [{', '.join(endpoints)}]  # {how}; their sampling is counted nowhere"
    yield "on_unfit: skip  # the longest by the most may not fit the KV cache, nor would users' own"


def _contexts(traffic: Traffic) -> Iterator[str]:
    if not traffic.contexts:
        return
    yield "cells:"
    for level in traffic.contexts:
        yield (
            f"  - {{concurrency: 1, prompt_tokens: {level.value}, output_tokens: {OUTPUT_TOKENS}, "
            f"variant: {(traffic.endpoints or (Endpoint.COMPLETIONS,))[0]}}}"
            f"  # {'/'.join(level.names)} of prompt and answer together: decodes at that length"
        )


def _beside(asked: Asked, rows: Sequence[Row]) -> Iterator[str]:
    lacking = sum(row.by is None for row in rows)
    verdict = "all of it is covered" if not lacking else f"{lacking} of {len(rows)} not covered"
    yield f"# Beside {shown(asked.in_use)}, fitted to this engine: {verdict}"
    for row in rows:
        what = " ".join((row.what, *(["/".join(row.names)] if row.names else ()), row.value))
        yield f"#   {what}: {_covered(row)}"


def _covered(row: Row) -> str:
    if row.by is not None:
        return f"covered by {shown(row.by)}"
    near = f"; the nearest have {' and '.join(map(str, row.nearest))}" if row.nearest else ""
    return f"NOT covered{near}"


def _span(bucket: Bucket) -> str:
    if math.isinf(bucket.up_to):
        return f"more than {bucket.above}"
    return f"{bucket.above + 1} to {bucket.up_to:.15g}"


def _cut(level: Level) -> str:
    return ", as far as the engine takes it" if level.value < level.bucket.up_to else ""

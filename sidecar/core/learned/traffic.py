"""What a server with traffic has counted → lengths and concurrencies that cover it."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sidecar.core.errors import EvidenceMissing
from sidecar.core.facts import EngineFacts
from sidecar.core.grid.cells import MAX_CONCURRENCY, MAX_PROMPT_TOKENS, Cell, Endpoint, Look
from sidecar.core.report import Report
from sidecar.core.tally import WaveOutcome
from sidecar.core.wire.histograms import Bucket, Histogram, TrafficPage

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
RUNNING = {"p50": 0.5, "p90": 0.9, "max": 1.0}

OUTPUT_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Level:
    """One value that is warmed, and which quantiles it stands for."""

    names: tuple[str, ...]
    value: int
    bucket: Bucket
    """What a cell may have to cover the same."""


@dataclass(frozen=True, slots=True)
class Own:
    """What the sidecar itself sent to this boot, as far as its report tells."""

    prompts: Mapping[int, int] = field(default_factory=dict)
    outputs: Mapping[int, int] = field(default_factory=dict)
    asked: Mapping[Endpoint, int] = field(default_factory=dict)

    @property
    def requests(self) -> int:
        return sum(self.prompts.values())


@dataclass(frozen=True, slots=True)
class Traffic:
    """Of one server, fitted to what it takes."""

    requests: int
    lengths: tuple[Level, ...]
    outputs: Mapping[str, Bucket]
    """By quantile."""
    contexts: tuple[Level, ...]
    """Lengths that prompt and answer reach together, beyond `lengths`."""
    running: tuple[Level, ...]
    """() where no request was running in any sample."""
    samples: int
    endpoints: tuple[Endpoint, ...]
    """() where it isn't told."""
    own: Own | None = None
    """What was taken off; None: nothing is known of it."""


def own_requests(report: Report, page: TrafficPage) -> Own | None:
    """Of the report's waves; None where it is of another boot, or that can't be told."""
    began_s = None if report.boot is None else report.boot.process_start_s
    if began_s is None or page.process_start_s is None or began_s != page.process_start_s:
        return None
    cells = {c.cell.id: c.cell for c in report.verdict.cells}
    prompts: Counter[int] = Counter()
    outputs: Counter[int] = Counter()
    asked: Counter[Endpoint] = Counter()
    plugs = 0
    for row in report.waves:
        cell = cells.get(row.cell)
        if cell is None or row.outcome in (WaveOutcome.FAILED, WaveOutcome.CANCELLED):
            continue
        for prompt_tokens, output_tokens in _sent(cell):
            prompts[prompt_tokens] += 1
            outputs[output_tokens] += 1
        asked[cell.variant.endpoint] += cell.requests + bool(cell.prefix_tokens) * cell.concurrency
        plugs += Look(cell, row.gait).behind_plug
    if plugs:
        # Their lengths are in no row, but in the sum.
        rest = report.totals.prompt_tokens - sum(n * times for n, times in prompts.items())
        prompts[max(1, rest // plugs)] += plugs
        outputs[1] += plugs
        asked[Endpoint.COMPLETIONS] += plugs
    return Own(prompts, outputs, asked)


def _sent(cell: Cell) -> list[tuple[int, int]]:
    primes = [(cell.prefix_tokens, 1)] * (cell.concurrency if cell.prefix_tokens else 0)
    wave = [(cell.prompt_tokens_of(i), cell.output_tokens_of(i)) for i in range(cell.requests)]
    # Each choice counts as a request of its own (vLLM 0.32 v1/engine/output_processor.py).
    return (primes + wave) * cell.variant.choices


def learn_traffic(
    page: TrafficPage,
    samples: Sequence[Mapping[str, float]],
    facts: EngineFacts,
    reports: Iterable[Report],
) -> Traffic:
    """`reports` are the sidecar's, of whatever engines: the one of this boot is looked for. Raises
    EvidenceMissing, one sentence, where the page tells nothing."""
    if page.prompts is None or page.outputs is None:
        raise EvidenceMissing(
            "its /metrics has no vllm:request_prompt_tokens: start vLLM without "
            "--disable-log-stats, or ask it past what stands in front of it"
        )
    owns = (own_requests(report, page) for report in reports)
    own = next((one for one in owns if one is not None), None)
    prompts, outputs = page.prompts, page.outputs
    if own is not None:
        prompts, outputs = prompts.without(own.prompts), outputs.without(own.outputs)
    if not prompts.total:
        beside = f" beside {own.requests} of the sidecar's own" if own and own.requests else ""
        raise EvidenceMissing(
            f"it has answered no request yet{beside}, so there is nothing to learn from: "
            "ask again when users have been there"
        )
    room = None if facts.max_model_len is None else facts.max_model_len - OUTPUT_TOKENS
    lengths = _levels(_quantiles(prompts), room)
    answers = _quantiles(outputs)
    return Traffic(
        requests=round(prompts.total),
        lengths=lengths,
        outputs=answers,
        contexts=_contexts(_quantiles(prompts), answers, lengths, room),
        running=_running(samples, facts.max_num_seqs),
        samples=len(samples),
        endpoints=_endpoints(page, own),
        own=own,
    )


def _quantiles(histogram: Histogram) -> dict[str, Bucket]:
    found = {name: histogram.quantile(share) for name, share in QUANTILES.items()}
    return {name: bucket for name, bucket in found.items() if bucket is not None}


def _levels(buckets: Mapping[str, Bucket], room: int | None) -> tuple[Level, ...]:
    """Each upper edge once, as far as the engine takes it."""
    levels: dict[int, Level] = {}
    for name, bucket in buckets.items():
        value = _upper(bucket, room)
        names = (*levels[value].names, name) if value in levels else (name,)
        levels[value] = Level(names, value, bucket)
    return tuple(levels.values())


def _upper(bucket: Bucket, room: int | None) -> int:
    """What a shapes file may declare, too: operators and strangers set edges as they like."""
    limit = MAX_PROMPT_TOKENS if room is None else min(room, MAX_PROMPT_TOKENS)
    if math.isinf(bucket.up_to):
        return max(1, min(limit, bucket.above + 1) if room is None else limit)
    return max(1, min(int(bucket.up_to), limit))


def _contexts(
    prompts: Mapping[str, Bucket],
    outputs: Mapping[str, Bucket],
    lengths: Sequence[Level],
    room: int | None,
) -> tuple[Level, ...]:
    reached = {}
    for name in ("p99", "max"):
        if name in prompts and name in outputs:
            above, below = _upper(prompts[name], room), _upper(outputs[name], room)
            reached[name] = Bucket(above, above + below)
    known = {level.value for level in lengths}
    return tuple(level for level in _levels(reached, room) if level.value not in known)


def _running(samples: Sequence[Mapping[str, float]], limit: int | None) -> tuple[Level, ...]:
    """Of one engine: what a step holds. Seconds in which nobody was there don't count."""
    busiest = sorted(max(sample.values(), default=0.0) for sample in samples)
    busy = [round(running) for running in busiest if running >= 1]
    levels: dict[int, Level] = {}
    for name, share in RUNNING.items() if busy else ():
        value = busy[math.ceil(share * len(busy)) - 1]
        value = min(value, MAX_CONCURRENCY, MAX_CONCURRENCY if limit is None else limit)
        names = (*levels[value].names, name) if value in levels else (name,)
        levels[value] = Level(names, value, Bucket(value - 1, value))
    return tuple(levels.values())


def _endpoints(page: TrafficPage, own: Own | None) -> tuple[Endpoint, ...]:
    if page.asked is None:
        return ()
    ours = {} if own is None else own.asked
    return tuple(e for e in Endpoint if page.asked.get(e, 0.0) - ours.get(e, 0) > 0)

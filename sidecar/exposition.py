"""Snapshot → Prometheus text. A collector over one frozen value; nothing is kept between scrapes.

Cells come from the shapes file, so their labels are bounded by it. A figure that isn't there has
no sample: it never reads as zero.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from sidecar import __version__
from sidecar.core.judge.verdict import Call, GridVerdict
from sidecar.core.logs.evidence import Hearing
from sidecar.core.logs.items import SourceState
from sidecar.core.results import Outcome
from sidecar.core.tally import WaveOutcome
from sidecar.core.watch.escapes import MAX_LABELS, is_name
from sidecar.core.watch.gate import Snapshot, State

CONTENT_TYPE = CONTENT_TYPE_LATEST


def render(snapshot: Snapshot, closed: Mapping[str, int] | None = None) -> bytes:
    """The page of /metrics for one snapshot. `closed`: connections closed on others, by reason."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(snapshot, closed or {}))
    return generate_latest(registry)


class _Families(Collector):
    def __init__(self, snapshot: Snapshot, closed: Mapping[str, int]) -> None:
        self._snapshot = snapshot
        self._closed = closed

    def collect(self) -> Iterator[Metric]:
        yield _counted(
            "warmup_http_closed_connections",
            "Connections closed on whoever held them: idle, in a crowd, too much sent, too slow.",
            self._closed.items(),
            label="why",
        )
        if self._snapshot.parts:
            yield from _by_engine(self._snapshot.parts)
        else:
            yield from _families(self._snapshot)


def _families(snapshot: Snapshot) -> Iterator[Metric]:
    yield from _state(snapshot)
    yield from _sent(snapshot)
    yield from _costly(snapshot)
    if snapshot.logs:
        yield from _sources(snapshot.logs)
    yield from _escaped(snapshot)
    if snapshot.verdict is not None:
        yield from _cells(snapshot.verdict)
        yield from _log(snapshot.verdict)


def _by_engine(parts: Mapping[str, Snapshot]) -> Iterator[Metric]:
    """The same families with the engine's name in a label: `min(warmup_ready)` is the gate."""
    merged: dict[str, Metric] = {}
    for name, part in parts.items():
        for family in _families(part):
            whole = merged.setdefault(
                family.name, Metric(family.name, family.documentation, family.type)
            )
            whole.samples += [
                sample._replace(labels={"engine": name, **sample.labels})
                for sample in family.samples
            ]
    yield from merged.values()


def _state(snapshot: Snapshot) -> Iterator[Metric]:
    facts = snapshot.engine
    yield InfoMetricFamily(
        "warmup",
        "The sidecar and the engine that it warms.",
        {
            "version": __version__,
            "engine_url": snapshot.url,
            "engine_version": (facts and facts.version) or "",
            "model": (facts and facts.model) or "",
        },
    )
    state = GaugeMetricFamily("warmup_state", "1 for the state of now.", labels=["state"])
    for one in State:
        state.add_metric([one], float(one is snapshot.state))
    yield state
    yield _flag("warmup_ready", "1 while the gate is open.", snapshot.is_ready)
    yield _flag("warmup_proven", "1 while the gate is open on full evidence.", snapshot.proven)
    yield _flag(
        "warmup_adopted",
        "1 while the gate is open on a verdict from before the sidecar's restart.",
        snapshot.adopted,
    )
    yield GaugeMetricFamily(
        "warmup_held_cells", "Cells not sent: an engine died on them.", value=len(snapshot.held)
    )
    yield _flag("warmup_active", "1 while a wave is being sent.", snapshot.is_active)
    if snapshot.warmup_s is not None:
        yield GaugeMetricFamily(
            "warmup_duration_seconds",
            "How long the running warm-up has taken, or the last one took.",
            value=snapshot.warmup_s,
        )


def _flag(name: str, text: str, value: bool) -> Metric:
    return GaugeMetricFamily(name, text, value=float(value))


def _sent(snapshot: Snapshot) -> Iterator[Metric]:
    totals = snapshot.totals
    yield CounterMetricFamily(
        "warmup_engine_boots", "Lives of the engine that were seen.", value=totals.boots
    )
    yield CounterMetricFamily(
        "warmup_passes", "Walks over the cells that needed a wave.", value=totals.passes
    )
    yield _counted(
        "warmup_waves",
        "Waves by how they ended.",
        ((one, totals.waves.get(one, 0)) for one in WaveOutcome),
    )
    yield _counted(
        "warmup_requests",
        "Requests by how they ended, plugs included.",
        ((one, totals.requests.get(one, 0)) for one in Outcome),
    )
    yield CounterMetricFamily(
        "warmup_sent_prompt_tokens",
        "Prompt tokens that the engine took from the sidecar.",
        value=totals.prompt_tokens,
    )
    yield CounterMetricFamily(
        "warmup_sent_output_tokens",
        "Output tokens that the engine made for the sidecar.",
        value=totals.output_tokens,
    )


def _counted(
    name: str, text: str, counts: Iterable[tuple[str, int]], *, label: str = "outcome"
) -> Metric:
    family = CounterMetricFamily(name, text, labels=[label])
    for outcome, count in counts:
        family.add_metric([outcome], count)
    return family


def _cells(verdict: GridVerdict) -> Iterator[Metric]:
    cells = GaugeMetricFamily("warmup_cells", "Cells by verdict.", labels=["verdict"])
    for call in Call:
        cells.add_metric([call], sum(cell.call is call for cell in verdict.cells))
    yield cells
    first = GaugeMetricFamily(
        "warmup_first_token_seconds",
        "First token of the slowest request of a wave: the first wave's, the best, the last's.",
        labels=["cell", "rank", "gait", "figure"],
    )
    for cell in verdict.cells:
        rank = "" if cell.cell.rank is None else str(cell.cell.rank)
        for figures in cell.figures:
            for figure, value in (
                ("first", figures.first_f_s),
                ("baseline", figures.baseline_f_s),
                ("last", figures.last_f_s),
            ):
                if value is not None:
                    first.add_metric([cell.cell.id, rank, figures.gait, figure], value)
    yield first


def _costly(snapshot: Snapshot) -> Iterator[Metric]:
    """Of an engine that is known: the two settings that cost most."""
    facts = snapshot.engine
    if facts is None:
        return
    family = GaugeMetricFamily(
        "warmup_engine_costly_setting",
        "1 where the engine runs with a setting that is worth a warning.",
        labels=["setting"],
    )
    given = facts.kv_cache_memory_bytes is not None or facts.memory_profiled is False
    family.add_metric(["cudagraphs_off"], float(bool(facts.cudagraphs_off)))
    family.add_metric(["kv_cache_memory_bytes"], float(given))
    yield family


def _sources(logs: Iterable[SourceState]) -> Iterator[Metric]:
    """What was read, and what was not."""
    up = GaugeMetricFamily("warmup_log_up", "1 while this log can be read.", labels=["source"])
    lines = CounterMetricFamily("warmup_log_lines", "Lines read.", labels=["source"])
    breaks = CounterMetricFamily(
        "warmup_log_breaks", "How often a log was lost and found again.", labels=["source"]
    )
    lost = CounterMetricFamily(
        "warmup_log_lost_lines",
        "Lines that were not read, or not whole: cut as too long, dropped here, or by the kernel.",
        labels=["source", "why"],
    )
    for log in logs:
        counts = log.counts
        up.add_metric([log.source], float(log.trouble is None))
        lines.add_metric([log.source], counts.lines)
        breaks.add_metric([log.source], counts.breaks)
        lost.add_metric([log.source, "cut"], counts.cut_lines)
        lost.add_metric([log.source, "dropped"], counts.dropped_lines)
        if counts.kernel_drops is not None:
            lost.add_metric([log.source, "kernel"], counts.kernel_drops)
    yield from (up, lines, breaks, lost)


def _escaped(snapshot: Snapshot) -> Iterator[Metric]:
    """No sample where no log is read: nothing heard is not nothing compiled."""
    if snapshot.escapes is None:
        return
    family = CounterMetricFamily(
        "warmup_jit_escapes",
        "Compile lines that came while the gate was open.",
        labels=["backend", "kernel"],
    )
    for (backend, kernel), count in snapshot.escapes.counts.items():
        family.add_metric([backend, kernel], count)
    yield family


def _log(verdict: GridVerdict) -> Iterator[Metric]:
    """What the engine's log showed; no sample where none is read."""
    if verdict.log is None:
        return
    hearing = GaugeMetricFamily(
        "warmup_log_evidence",
        "1 for how far the engine's log carries the verdict.",
        labels=["hearing"],
    )
    for one in Hearing:
        hearing.add_metric([one], float(one is verdict.log.hearing))
    yield hearing
    lines = GaugeMetricFamily(
        "warmup_jit_compiles",
        "Compile lines in the waves of this boot.",
        labels=["backend", "kernel"],
    )
    costs = GaugeMetricFamily(
        "warmup_jit_compile_seconds",
        "What the waves of a cell that compiled took longer than its baseline.",
        labels=["cell"],
    )
    counts: Counter[tuple[str, str]] = Counter()
    for cell in verdict.cells:
        for kernel in cell.kernels:
            counts[kernel.backend, kernel.kernel] += kernel.lines
        if cell.compile_s is not None:
            costs.add_metric([cell.cell.id], cell.compile_s)
    for (backend, name), count in bounded(counts).items():
        lines.add_metric([backend, name], count)
    yield lines
    yield costs


def bounded(counts: Mapping[tuple[str, str], int]) -> Mapping[tuple[str, str], int]:
    """Compile lines by backend and kernel, for labels: the MAX_LABELS most frequent, and `other`.

    The names are out of a log, and could be anybody's: what no kernel is called is `other` too.
    """
    named: Counter[tuple[str, str]] = Counter()
    for (backend, kernel), count in Counter(counts).most_common():
        known = is_name(backend) and is_name(kernel) and len(named) < MAX_LABELS
        named[(backend, kernel) if known else ("other", "other")] += count
    return named

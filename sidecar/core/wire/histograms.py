"""/metrics text → what a server with traffic has counted of its requests' lengths.

Buckets are read by their own `le`: operators may set others (vLLM 0.33 custom_histogram_buckets).
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sidecar.core.grid.cells import Endpoint

_SAMPLE = re.compile(
    r"^(?:vllm:(request_prompt_tokens|request_generation_tokens)_bucket|vllm:(num_requests_running)"
    r"|(http_requests_total)|(process_start_time_seconds))"
    r'(?:\{([^"}\n]*(?:"(?:[^"\\\n]|\\.)*"[^"}\n]*)*)\})?[ \t]+([^ \t\r\n]+)',
    re.MULTILINE,
)
_LABEL = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"')
_MAX_SAMPLES = 20_000
"""A server of eight ranks and forty buckets has a thousand; a stranger may send more."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Whole numbers from `above` + 1 to `up_to`; infinity where it has no upper edge."""

    above: int
    up_to: float

    def holds(self, value: int) -> bool:
        return self.above < value <= self.up_to


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts by upper edge, not cumulative, ascending; the last edge is infinity."""

    counts: Mapping[float, float] = field(default_factory=dict)

    @property
    def total(self) -> float:
        return sum(self.counts.values())

    def without(self, values: Mapping[int, int]) -> "Histogram":
        """The rest, when these values (and how often each) are taken off; never below 0."""
        left = dict(self.counts)
        for value, times in values.items():
            edge = next((edge for edge in left if value <= edge), None)
            if edge is not None:
                left[edge] = max(0.0, left[edge] - times)
        return Histogram(left)

    def quantile(self, share: float) -> Bucket | None:
        """The bucket that holds it; None where nothing was counted. 1.0: the highest in use."""
        total, reached, above = self.total, 0.0, 0.0
        for edge, count in self.counts.items():
            reached += count
            if count > 0 and reached >= share * total * (1 - 1e-9):
                return Bucket(int(above), edge)
            above = edge
        return None


@dataclass(frozen=True, slots=True)
class TrafficPage:
    """One reading. None: the family is missing."""

    prompts: Histogram | None = None
    """Of all requests that ended since the engine began, by prompt tokens."""
    outputs: Histogram | None = None
    running: Mapping[str, float] = field(default_factory=dict)
    """vllm:num_requests_running by `engine` label."""
    asked: Mapping[Endpoint, float] | None = None
    """Requests by endpoint, of those that were answered 200."""
    process_start_s: float | None = None


def parse_traffic(text: str) -> TrafficPage:
    """Read a page. What can't be read is passed over."""
    cumulative: dict[str, dict[tuple[str, str], dict[float, float]]] = {}
    running: dict[str, float] = {}
    asked: dict[Endpoint, float] = {}
    knows_paths, start_s = False, None
    for i, found in enumerate(_SAMPLE.finditer(text)):
        family, gauge, paths, _, listed, number = found.groups()
        value = _number(number)
        if i >= _MAX_SAMPLES or value is None or not math.isfinite(value) or value < 0:
            continue
        labels = dict(_LABEL.findall(listed or ""))
        engine = labels.get("engine", "")
        if family:
            edge = _number(labels.get("le", ""))
            if edge is not None and edge >= 0:
                series = (engine, labels.get("model_name", ""))
                cumulative.setdefault(family, {}).setdefault(series, {})[edge] = value
        elif gauge:
            running[engine] = running.get(engine, 0.0) + value
        elif paths:
            knows_paths = True
            _count(labels, value, asked)
        else:
            start_s = value
    return TrafficPage(
        prompts=_histogram(cumulative.get("request_prompt_tokens")),
        outputs=_histogram(cumulative.get("request_generation_tokens")),
        running=running,
        asked=asked if knows_paths else None,
        process_start_s=start_s,
    )


def _count(labels: Mapping[str, str], value: float, asked: dict[Endpoint, float]) -> None:
    for endpoint in Endpoint:
        if labels.get("handler") == endpoint.path and labels.get("status", "").startswith("2"):
            asked[endpoint] = asked.get(endpoint, 0.0) + value


def _histogram(series: Mapping[tuple[str, str], Mapping[float, float]] | None) -> Histogram | None:
    if series is None:
        return None
    counts: dict[float, float] = {}
    for cumulative in series.values():
        for edge, count in _apart(sorted(cumulative.items())):
            counts[edge] = counts.get(edge, 0.0) + count
    return Histogram(dict(sorted(counts.items())))


def _apart(cumulative: Iterable[tuple[float, float]]) -> Iterable[tuple[float, float]]:
    before = 0.0
    for edge, count in cumulative:
        yield edge, max(0.0, count - before)
        before = max(before, count)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return None if math.isnan(value) else value

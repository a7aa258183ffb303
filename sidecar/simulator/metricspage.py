"""The /metrics page: vLLM's families with their types, labels and order of 0.32."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate

from sidecar.simulator.engine import Engine
from sidecar.simulator.model import Counters
from sidecar.simulator.profile import Profile
from sidecar.simulator.stats import HISTOGRAMS, RankStats, Stats

HELP = "Simulated."


@dataclass(frozen=True, slots=True)
class Identity:
    """What is not counted: which process this is, and how it stands."""

    started_unix_s: float
    sleep_level: int
    """0 is awake."""
    rejected: int
    """Requests refused by --max-num-queued-reqs."""


class _Page:
    def __init__(self, created_unix_s: float | None) -> None:
        self._lines: list[str] = []
        self._created = created_unix_s

    def family(self, name: str, kind: str, rows: Iterable[tuple[Mapping[str, str], float]]) -> None:
        """A gauge or counter; a counter gets its `_created` twin in a single process."""
        listed = list(rows)
        self._head(name, kind)
        self._lines += [f"{name}{_labels(labels)} {value!r}" for labels, value in listed]
        if kind == "counter":
            self._twin(name.removesuffix("_total"), [labels for labels, _ in listed])

    def histogram(self, name: str, ranks: list[RankStats], model: str) -> None:
        self._head(name, "histogram")
        family = name.removeprefix("vllm:")
        for rank, stats in enumerate(ranks):
            histogram = stats.histograms[family]
            limits = [repr(float(limit)) for limit in histogram.limits] + ["+Inf"]
            counts = list(accumulate(histogram.counts))
            for limit, count in zip(limits, counts, strict=True):
                labels = {"engine": str(rank), "le": limit, "model_name": model}
                self._lines.append(f"{name}_bucket{_labels(labels)} {float(count)!r}")
            labels = _rank(rank, model)
            self._lines.append(f"{name}_count{_labels(labels)} {float(counts[-1])!r}")
            self._lines.append(f"{name}_sum{_labels(labels)} {histogram.sum!r}")
        self._twin(name, [_rank(rank, model) for rank in range(len(ranks))])

    def _head(self, name: str, kind: str) -> None:
        self._lines += [f"# HELP {name} {HELP}", f"# TYPE {name} {kind}"]

    def _twin(self, stem: str, rows: Iterable[Mapping[str, str]]) -> None:
        if self._created is not None:
            self._head(f"{stem}_created", "gauge")
            for labels in rows:
                self._lines.append(f"{stem}_created{_labels(labels)} {self._created!r}")

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"


def metrics_page(profile: Profile, engine: Engine, stats: Stats, identity: Identity) -> str:
    """With --disable-log-stats only the process's own families are left."""
    page = _Page(None if profile.is_multiprocess else identity.started_unix_s)
    if not profile.is_multiprocess:
        page.family("process_start_time_seconds", "gauge", [({}, identity.started_unix_s)])
    if not profile.log_stats:
        return page.text()
    _gauges(page, profile, engine, identity)
    _counters(page, profile, engine)
    rejected = {"max_num_queued_reqs": identity.rejected, "max_num_queued_tokens": 0}
    page.family(
        "vllm:admission_rejections_total",
        "counter",
        [
            ({"model_name": profile.model, "reason": reason}, float(count))
            for reason, count in rejected.items()
        ],
    )
    for name in HISTOGRAMS:
        page.histogram(f"vllm:{name}", stats.ranks, profile.model)
    page.family(
        "vllm:cache_config_info",
        "gauge",
        [(_cache_config(profile, rank), 1.0) for rank in range(profile.engine.ranks)],
    )
    return page.text()


def _gauges(page: _Page, profile: Profile, engine: Engine, identity: Identity) -> None:
    model, ranks = profile.model, range(profile.engine.ranks)
    page.family(
        "vllm:num_requests_running",
        "gauge",
        [(_rank(r, model), float(engine.running(r))) for r in ranks],
    )
    waiting = [engine.waiting(r) for r in ranks]
    page.family(
        "vllm:num_requests_waiting",
        "gauge",
        [(_rank(r, model), float(waiting[r])) for r in ranks],
    )
    page.family(
        "vllm:num_requests_waiting_by_reason",
        "gauge",
        [
            (_rank(r, model, reason=reason), float(waiting[r] if reason == "capacity" else 0))
            for r in ranks
            for reason in ("capacity", "deferred")
        ],
    )
    states = ("awake", "weights_offloaded", "discard_all")
    page.family(
        "vllm:engine_sleep_state",
        "gauge",
        [
            (_rank(r, model, sleep_state=state), float(identity.sleep_level == level))
            for r in ranks
            for level, state in enumerate(states)
        ],
    )
    page.family(
        "vllm:kv_cache_usage_perc",
        "gauge",
        [(_rank(r, model), float(engine.kv_usage(r))) for r in ranks],
    )


def _counters(page: _Page, profile: Profile, engine: Engine) -> None:
    model, ranks = profile.model, list(enumerate(engine.counters))

    def plain(name: str, attribute: str | None) -> None:
        rows = [
            (_rank(r, model), float(getattr(c, attribute)) if attribute else 0.0) for r, c in ranks
        ]
        page.family(f"vllm:{name}_total", "counter", rows)

    plain("prefix_cache_queries", "prefix_queries")
    plain("prefix_cache_hits", "prefix_hits")
    plain("external_prefix_cache_queries", None)
    plain("external_prefix_cache_hits", None)
    plain("num_preemptions", "preemptions")
    plain("prompt_tokens", "prompt_tokens")
    page.family(
        "vllm:prompt_tokens_by_source_total",
        "counter",
        [
            (_rank(r, model, source=source), float(count))
            for r, c in ranks
            for source, count in _by_source(c).items()
        ],
    )
    plain("prompt_tokens_cached", "cached_tokens")
    plain("generation_tokens", "generation_tokens")
    page.family(
        "vllm:request_success_total",
        "counter",
        [
            (_rank(r, model, finished_reason=reason), float(count))
            for r, c in ranks
            for reason, count in c.success.items()
        ],
    )
    if profile.engine.draft_tokens:
        plain("spec_decode_num_drafts", "drafts")
        plain("spec_decode_num_draft_tokens", "draft_tokens")
        plain("spec_decode_num_accepted_tokens", "accepted_tokens")
        page.family(
            "vllm:spec_decode_num_accepted_tokens_per_pos_total",
            "counter",
            [
                (_rank(r, model, position=str(i)), float(count))
                for r, c in ranks
                for i, count in enumerate(c.accepted_at(profile.engine.draft_tokens))
            ],
        )


def _by_source(counters: Counters) -> dict[str, int]:
    return {
        "local_compute": counters.computed_tokens,
        "local_cache_hit": counters.cached_tokens,
        "external_kv_transfer": 0,
    }


def _cache_config(profile: Profile, rank: int) -> dict[str, str]:
    engine = profile.engine
    return {
        "block_size": str(engine.block_size),
        "cache_dtype": "auto",
        "enable_prefix_caching": str(engine.prefix_caching),
        "engine": str(rank),
        "gpu_memory_utilization": "0.92",
        "kv_cache_max_concurrency": str(engine.kv_cache_tokens / engine.max_model_len),
        "kv_cache_memory_bytes": "None",
        "kv_cache_size_tokens": str(engine.kv_cache_tokens),
        "num_gpu_blocks": str(engine.kv_cache_tokens // engine.block_size),
        "prefix_caching_hash_algo": "sha256",
        "sliding_window": "None",
    }


def _rank(rank: int, model: str, **more: str) -> dict[str, str]:
    return dict(sorted({"engine": str(rank), "model_name": model, **more}.items()))


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}"

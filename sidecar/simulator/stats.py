"""What the API process measures: vLLM's histograms, over the requests and iterations it saw."""

from bisect import bisect_left
from dataclasses import dataclass, field

from sidecar.simulator.model import Emission, SimRequest

COUNTS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
STEP_TOKENS = (1, *(2**i for i in range(3, 15)))
TTFT_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0),
    *(2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
GAP_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
LATENCY_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0),
    *(40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
HISTOGRAMS: dict[str, tuple[float, ...]] = {
    "request_prompt_tokens": COUNTS,
    "request_generation_tokens": COUNTS,
    "iteration_tokens_total": STEP_TOKENS,
    "request_max_num_generation_tokens": COUNTS,
    "request_params_n": (1, 2, 5, 10, 20),
    "request_params_max_tokens": COUNTS,
    "time_to_first_token_seconds": TTFT_S,
    "inter_token_latency_seconds": GAP_S,
    "request_time_per_output_token_seconds": GAP_S,
    "e2e_request_latency_seconds": LATENCY_S,
    "request_queue_time_seconds": LATENCY_S,
    "request_inference_time_seconds": LATENCY_S,
    "request_prefill_time_seconds": LATENCY_S,
    "request_decode_time_seconds": LATENCY_S,
    "request_num_preemptions": (1, 2, 3, 4, 5, 10, 20),
    "request_prefill_kv_computed_tokens": COUNTS,
}
"""Family (without `vllm:`) → bucket limits, as vLLM 0.32 has them."""


class Histogram:
    """Counts per bucket, not cumulative; the last is +Inf."""

    def __init__(self, limits: tuple[float, ...]) -> None:
        self.limits = limits
        self.counts = [0] * (len(limits) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.limits, value)] += 1
        self.sum += value


@dataclass(slots=True)
class _Seen:
    request: SimRequest
    arrived_s: float
    first_s: float = 0.0
    last_s: float = 0.0
    tokens: int = 0
    cached: int = 0


@dataclass(slots=True)
class RankStats:
    """Of one data-parallel engine."""

    histograms: dict[str, Histogram] = field(
        default_factory=lambda: {name: Histogram(limits) for name, limits in HISTOGRAMS.items()}
    )


class Stats:
    """Fed by the driver; times come in as the engine's seconds and are kept as wall seconds."""

    def __init__(self, ranks: int) -> None:
        self.ranks = [RankStats() for _ in range(ranks)]
        self._seen: dict[str, _Seen] = {}

    def arrived(self, request: SimRequest, at_s: float) -> None:
        self._seen[request.id] = _Seen(request, at_s)

    def aborted(self, request_id: str) -> None:
        self._seen.pop(request_id, None)

    def happened(self, emissions: list[Emission], scale: float) -> None:
        """Books emissions; those of one rank at one time are one iteration."""
        iterations: dict[tuple[int, float], int] = {}
        for emission in emissions:
            seen = self._seen.get(emission.request_id)
            if seen is None:
                continue
            tokens = self._token(emission, seen, scale)
            key = (emission.rank, emission.at_s)
            iterations[key] = iterations.get(key, 0) + tokens
        for (rank, _), tokens in iterations.items():
            self.ranks[rank].histograms["iteration_tokens_total"].observe(tokens)

    def _token(self, emission: Emission, seen: _Seen, scale: float) -> int:
        """A whole prompt is booked in the iteration of its first token, whatever its chunks were
        (seen on vLLM 0.26 and 0.32)."""
        histograms = self.ranks[emission.rank].histograms
        tokens = emission.tokens
        if emission.is_first:
            seen.first_s = emission.at_s
            seen.cached = emission.cached_tokens
            tokens += seen.request.prompt_tokens
            histograms["time_to_first_token_seconds"].observe(
                (emission.at_s - seen.arrived_s) * scale
            )
        else:
            histograms["inter_token_latency_seconds"].observe((emission.at_s - seen.last_s) * scale)
        seen.last_s = emission.at_s
        seen.tokens += emission.tokens
        if emission.finished:
            self._end(seen, histograms, scale)
        return tokens

    def _end(self, seen: _Seen, histograms: dict[str, Histogram], scale: float) -> None:
        request = seen.request
        del self._seen[request.id]
        decode_s = (seen.last_s - seen.first_s) * scale
        prefill_s = (seen.first_s - seen.arrived_s) * scale
        values = {
            "request_prompt_tokens": request.prompt_tokens,
            "request_generation_tokens": seen.tokens,
            "request_max_num_generation_tokens": seen.tokens,
            "request_params_n": 1,
            "request_params_max_tokens": request.max_tokens,
            "request_time_per_output_token_seconds": decode_s / max(1, seen.tokens - 1),
            "e2e_request_latency_seconds": prefill_s + decode_s,
            "request_queue_time_seconds": 0.0,
            "request_inference_time_seconds": prefill_s + decode_s,
            "request_prefill_time_seconds": prefill_s,
            "request_decode_time_seconds": decode_s,
            "request_num_preemptions": 0,
            "request_prefill_kv_computed_tokens": request.prompt_tokens - seen.cached,
        }
        for name, value in values.items():
            histograms[name].observe(value)

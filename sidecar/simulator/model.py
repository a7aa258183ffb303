"""The values that go into and come out of the simulated engine."""

from dataclasses import dataclass, field, replace
from typing import NamedTuple

FINISHED_REASONS = ("stop", "length", "abort", "error", "repetition")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Limits, features and speeds of a simulated engine. Seconds and tokens; noise as fractions.

    A step takes step_base_s + prefill tokens × prefill_s_per_token + decode_step_s if anything
    decodes, times the noise, plus what is cold.
    """

    max_model_len: int = 8192
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    block_size: int = 16
    kv_cache_tokens: int = 65_536
    capture_max: int = 512
    """Largest captured CUDA graph, in tokens."""
    enforce_eager: bool = False
    draft_tokens: int = 0
    """k: drafts per request and decode step; 0 is off."""
    top_k: int = 8
    """Experts per token, for MoE alignment."""
    ranks: int = 1
    """Data-parallel engines, each with its own scheduler, KV cache and cold process."""
    prefix_caching: bool = True
    prefill_s_per_token: float = 1e-5
    decode_step_s: float = 0.004
    step_base_s: float = 0.003
    wake_s: float = 0.001
    """An idle engine starts a step up to this long after a request came (uniform): what else has
    arrived by then joins it."""
    parse_base_s: float = 0.0003
    parse_s_per_token: float = 2e-7
    noise_small: float = 0.0
    """A step under 0.2 s takes 1 ± this, uniform."""
    noise_large: float = 0.0
    outlier_rate: float = 0.0
    """Share of steps that take `outlier_factor` times as long."""
    outlier_factor: float = 4.0
    launches_ahead: bool = False
    """Asynchronous scheduling with the in-process executor, vLLM's default on one GPU: the next
    step is launched, and what is cold in it compiled, on the same thread and before the tokens of
    the step that has just ended are handed out. Seen on vLLM 0.26.0 on an H200: a compile of 0.95 s
    for a wave behind a plug came before the plug's own first token; with `mp` or
    `--no-async-scheduling` after it."""

    def __post_init__(self) -> None:
        """Raises ValueError where vLLM would refuse to start."""
        if min(self.max_num_seqs, self.max_num_batched_tokens, self.block_size, self.ranks) < 1:
            raise ValueError("limits of an engine are at least 1")
        whole_blocks = self.kv_cache_tokens // self.block_size * self.block_size
        if whole_blocks < self.max_model_len:
            raise ValueError("kv_cache_tokens can't hold one request of max_model_len tokens")


@dataclass(frozen=True, slots=True)
class SimRequest:
    """One request as the scheduler sees it: lengths and identities, no text."""

    id: str
    prompt_tokens: int
    max_tokens: int
    blocks: tuple[int, ...] | None = None
    """Chained hashes of the prompt's whole blocks, salt included. None: never matches anything."""
    features: frozenset[str] = frozenset()
    """What else is special: `logprobs:5`, `grammar:json`, `sampler:top_p` …"""
    rank: int | None = None
    """Data-parallel rank asked for; None: the least loaded."""
    drafts_accepted: bool = False
    """Whether the drafts of this request's text are ever right."""
    eos_at: int | None = None
    """Ends by itself (`stop`) with this many output tokens; None: ignore_eos."""


class Emission(NamedTuple):
    """Tokens of one request that leave the engine together, at the end of a step.

    A NamedTuple because the truth harness makes millions of them.
    """

    request_id: str
    at_s: float
    tokens: int
    finished: bool
    finish_reason: str | None
    cached_tokens: int
    """Prompt tokens that the prefix cache supplied; on the request's first emission, else 0."""
    is_first: bool
    rank: int


class Step(NamedTuple):
    """One forward step, as --enable-logging-iteration-details tells it."""

    start_s: float
    end_s: float
    rank: int
    context_requests: int
    context_tokens: int
    generation_requests: int
    generation_tokens: int
    kv_usage: float
    cold_s: float


@dataclass(frozen=True, slots=True)
class Paid:
    """One cold cost, as it was paid: the step began at `at_s` and took `cost_s` longer."""

    at_s: float
    until_s: float
    rule: str
    key: tuple[bool | int | str, ...]
    cost_s: float
    request_ids: tuple[str, ...]
    """Everyone in the step, who all waited for it."""
    logged: bool
    rank: int


@dataclass(slots=True)
class Counters:
    """What one rank has counted since its process began, in vLLM's words."""

    prompt_tokens: int = 0
    """Booked at a request's first token, cached ones included (vllm:prompt_tokens_total)."""
    computed_tokens: int = 0
    cached_tokens: int = 0
    generation_tokens: int = 0
    success: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FINISHED_REASONS, 0))
    preemptions: int = 0
    prefix_queries: int = 0
    """In tokens, at admission."""
    prefix_hits: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0

    def accepted_at(self, draft_tokens: int) -> list[int]:
        """Accepted tokens by draft position, as if the first were always taken: it is not kept."""
        counts = [0] * draft_tokens
        left = self.accepted_tokens
        for position in range(draft_tokens):
            counts[position] = min(self.drafts, left)
            left -= counts[position]
        return counts

    def copy(self) -> "Counters":
        return replace(self, success=dict(self.success))

    def __add__(self, other: "Counters") -> "Counters":
        total = Counters(
            **{
                name: getattr(self, name) + getattr(other, name)
                for name in self.__slots__
                if name != "success"
            }
        )
        for reason in FINISHED_REASONS:
            total.success[reason] = self.success[reason] + other.success[reason]
        return total

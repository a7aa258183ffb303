"""/metrics text → Scrape; two scrapes → CounterDelta. A missing family is None, never 0."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CounterDelta:
    """What the engine counted between two scrapes, summed over its `engine` labels.

    None: the family is missing (`--disable-log-stats`, an older vLLM, another front end).
    """

    requests: float | None = None
    """vllm:request_success_total, every finished_reason."""
    prompt_tokens: float | None = None
    """vllm:prompt_tokens_total"""
    generation_tokens: float | None = None
    """vllm:generation_tokens_total"""
    computed_tokens: float | None = None
    """vllm:prompt_tokens_by_source_total{source="local_compute"}"""
    cached_tokens: float | None = None
    """vllm:prefix_cache_hits_total + vllm:external_prefix_cache_hits_total, in tokens."""
    preemptions: float | None = None
    """vllm:num_preemptions_total"""
    drafts: float | None = None
    """vllm:spec_decode_num_drafts_total; present only where speculation is on."""
    draft_tokens: float | None = None
    accepted_tokens: float | None = None
    """vllm:spec_decode_num_accepted_tokens_total"""

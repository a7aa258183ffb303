"""R2 and the prefix cache: nothing of a wave may come from it, or what its cell declares.

A prefix hit proves that it was one: by `cached_tokens` of each answer's usage where the engine
tells them (--enable-prompt-tokens-details; vLLM 0.33 leaves them out where they are 0), and by
`vllm:prefix_cache_hits_total`, which counts tokens. How much has to come from the cache stands in
the cell (`least_hit`, `prefix_tokens`): whole blocks.
"""

from sidecar.core.results import WaveResult
from sidecar.core.wire.metrics import CounterDelta

_SAME = 0.5
"""Counters are whole numbers sent as floats."""


def by_usage(wave: WaveResult) -> tuple[str, ...]:
    """What is wrong with the cached tokens of the wave's answers."""
    cell = wave.look.cell
    if cell.variant.choices > 1:
        return ()  # it may be that of any choice, and all but one find the prompt of that one
    if not cell.prefix_tokens:
        most = max((r.cached_tokens or 0 for r in wave.results), default=0)
        return (f"{most} prompt tokens came from a cache",) if most else ()
    told = [r.cached_tokens for r in wave.results]
    if all(cached is None for cached in told):
        return ()
    for cached in told:
        if not cell.least_hit <= (cached or 0) <= cell.prefix_tokens:
            return (_no_hit(cached or 0, cell.prefix_tokens, "of a prompt"),)
    return ()


def by_counters(wave: WaveResult, delta: CounterDelta, prompt_tokens: int) -> tuple[str, ...]:
    """What is wrong with the tokens that the engine counted as found, or as computed, of the
    wave's `prompt_tokens`."""
    cell, found, computed = wave.look.cell, delta.cached_tokens, delta.computed_tokens
    most, least = cell.prime_tokens, cell.concurrency * cell.least_hit
    if cell.variant.choices > 1:
        # The second choice finds what the first has just begun to compute: all but the last block.
        alone = cell.wave_prompt_tokens
        short = computed is not None and computed < alone - _SAME
        return (f"only {computed:g} of {alone} tokens were computed",) if short else ()
    if not most:
        if found:
            return (f"{found:g} prompt tokens came from a cache",)
        if computed is not None and computed < prompt_tokens - _SAME:
            return (f"only {computed:g} of {prompt_tokens} tokens were computed",)
        return ()
    if found is None and computed is not None:
        found = prompt_tokens - computed
    if found is not None and not least - _SAME < found < most + _SAME:
        return (_no_hit(found, most, "of the wave"),)
    return ()


def is_told(wave: WaveResult, delta: CounterDelta) -> bool:
    """Whether anything tells what came from a cache."""
    counted = delta.computed_tokens is not None or delta.cached_tokens is not None
    return counted or all(r.cached_tokens is not None for r in wave.results)


def _no_hit(found: float, prefix: int, of: str) -> str:
    if not found:
        return f"the prefix was not in the cache: none of its {prefix} tokens {of} came from there"
    return f"{found:g} tokens {of} came from the cache, and its prefix has {prefix} there"

"""Which batches a wave decoded in, told from when its streams ended.

Without speculation they follow from the cell: all decode together and end together, or one after
another in a ramp. With it they are drawn anew in every wave: who gets more drafts accepted ends
sooner. A batch that no wave has met yet may be cold, so that two quiet waves say little.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from sidecar.core.cells import Cell
from sidecar.core.results import WaveResult
from sidecar.core.shown import nearest

_SOONER = 0.25
"""Of a request's output: so much sooner than in any wave yet, a first one may end in the next."""


@dataclass(frozen=True, slots=True)
class Decoding:
    """The decode steps of one wave, after its last first token."""

    sizes: frozenset[int]
    """How many requests decoded together."""
    ending_from: int
    """Tokens of context, as near as events tell them, when the first request ended."""


def decoding(wave: WaveResult) -> Decoding:
    """Read a wave's streams. The one that ends last is the clock: two requests whose last tokens
    are nearest to the same event of it ended in the same step, and the size between was not run.
    """
    prompt_tokens = wave.look.cell.prompt_tokens
    results = [r for r in wave.results if r.token_s]
    if not results:
        return Decoding(frozenset(), prompt_tokens)
    slowest = max(results, key=lambda r: r.token_s[-1])
    clock = slowest.token_s
    per_event = (slowest.completion_tokens or len(clock)) / len(clock)
    before = max(nearest(clock, r.token_s[0]) for r in results)
    ends = sorted(nearest(clock, r.token_s[-1]) for r in results)
    ending_from = prompt_tokens + int(per_event * (ends[0] + 1))
    sizes = set()
    for ended, end in enumerate(ends):
        if end > before:
            sizes.add(len(results) - ended)
            before = end
    return Decoding(frozenset(sizes), ending_from)


def is_settled(waves: Sequence[Decoding], cell: Cell) -> bool:
    """Whether more waves of `cell` would bring no batch that none has met.

    Every number of requests must have been met, and each twice: the chance of something new is
    about the share of waves that hold the only sight of something (Good, 1953). And while requests
    end, contexts may not grow past a power of two, where kernels change: how many are left at that
    moment is a matter of luck.
    """
    seen = Counter(size for wave in waves for size in wave.sizes)
    if len(seen) < cell.concurrency or min(seen.values()) < 2:
        return False
    longest = cell.prompt_tokens + max(cell.output_tokens_of(i) for i in range(cell.concurrency))
    sooner = int(_SOONER * cell.output_tokens)
    shortest = min(wave.ending_from for wave in waves) - sooner
    return max(shortest, 1).bit_length() == longest.bit_length()

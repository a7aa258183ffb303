"""Which batches a wave decoded in, told from when its streams ended.

Without speculation they follow from the cell: all decode together and end together, or one after
another in a ramp. With it they are drawn anew in every wave: who gets more drafts accepted ends
sooner. A batch that no wave has met yet may be cold, so that two quiet waves say little.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from sidecar.core.results import WaveResult
from sidecar.core.shown import nearest


@dataclass(frozen=True, slots=True)
class DecodeBatch:
    """What a kernel may tell decode steps apart by."""

    requests: int
    context_bits: int
    """Bits of the longest context's length, as near as the stream's events tell it."""


def decode_sizes(wave: WaveResult) -> frozenset[DecodeBatch]:
    """The batches of all steps after the wave's last first token.

    The stream that ends last is the clock: two requests whose last tokens are nearest to the same
    event of it ended in the same step, and the size between them was not run.
    """
    results = [r for r in wave.results if r.token_s]
    if not results:
        return frozenset()
    slowest = max(results, key=lambda r: r.token_s[-1])
    clock = slowest.token_s
    per_event = (slowest.completion_tokens or len(clock)) / len(clock)
    before = max(nearest(clock, r.token_s[0]) for r in results)
    ends = sorted(nearest(clock, r.token_s[-1]) for r in results)
    batches = set()
    for ended, end in enumerate(ends):
        for event in range(before + 1, end + 1):
            context = wave.look.cell.prompt_tokens + round(per_event * (event + 1))
            batches.add(DecodeBatch(len(results) - ended, context.bit_length()))
        before = max(before, end)
    return frozenset(batches)


def is_settled(waves: Iterable[frozenset[DecodeBatch]]) -> bool:
    """Whether more waves would hardly bring a batch that none has met.

    That is so where each one that was met was met twice: the chance of something new is about the
    share of waves that hold the only sight of something (Good, 1953).
    """
    seen: Counter[DecodeBatch] = Counter()
    for batches in waves:
        seen.update(batches)
    return all(count > 1 for count in seen.values())

"""R3: when the parts of a wave are let go. Learns from the waves that ran, for the ones to come."""

from dataclasses import dataclass

from sidecar.core.grid.cells import Cell, Gait, Look
from sidecar.core.grid.plan import Plan
from sidecar.core.judge.shown import Miss, miss
from sidecar.core.judge.steps import decode_tokens
from sidecar.core.results import Outcome, Result, WaveResult

UNKNOWN_DELAY_S = 0.005
"""Where nothing is known yet. An idle engine starts its step within 1-2 ms of a body's arrival;
anything cold lasts longer than this."""

MIN_DELAY_S, MAX_DELAY_S = 0.001, 0.05
"""A step that runs for seconds need not be waited into: it only must have begun."""

_SHARE = 0.25
_MIN_SHARE, _MAX_SHARE = 0.05, 0.8
_FIRST_MORE, _MOST_MORE = 16, 512
"""Decode steps that are added to a wave whose requests did not decode together for long enough."""
_MAX_CHUNKS = 64
"""No plug of more than this many steps: what such a wave could still show is not worth its time."""


@dataclass(frozen=True, slots=True)
class Pace:
    """When to let go. Seconds from the moment the body before it was let go."""

    rest_after_s: float = 0.0
    """led: the rest, after the lead's body."""
    plug_tokens: int | None = None
    """held: the plug's prompt; None with led, or where no plug fits (then it can't be held)."""
    wave_after_s: float = 0.0
    """held: the wave, after the plug's body."""
    more_tokens: int = 0
    """Output tokens beyond the cell's, of each of those that decode together."""


def _bounded(delay_s: float) -> float:
    return min(max(MIN_DELAY_S, delay_s), MAX_DELAY_S)


class WarmTtft:
    """The best known time to the first token of one prompt alone, by variant.

    A wave of one tells it, the lead of a led wave (its first step is its own), and a plug. A longer
    prompt of the same variant takes no less, and neither do as many of the plug's chunks as a
    prompt has steps: so a length that was only seen cold is not taken at its word.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._best_s: dict[str, dict[int, float]] = {}
        self._chunk_s: dict[str, float] = {}

    def feed(self, wave: WaveResult) -> None:
        cell = wave.look.cell
        if wave.look.behind_plug:
            self._feed_plug(cell.variant.name, wave.plug)
        elif wave.results and wave.results[0].outcome is Outcome.OK:
            self._note(cell.variant.name, cell.computed_tokens, wave.results[0].ttft_s)

    def _feed_plug(self, variant: str, plug: Result | None) -> None:
        if plug is None or plug.outcome is not Outcome.OK or not plug.prompt_tokens:
            return
        self._note(variant, plug.prompt_tokens, plug.ttft_s)
        if self._plan.batched_tokens_known and plug.ttft_s is not None:
            chunk_s = plug.ttft_s / self.steps(plug.prompt_tokens)
            self._chunk_s[variant] = min(chunk_s, self._chunk_s.get(variant, chunk_s))

    def _note(self, variant: str, tokens: int, ttft_s: float | None) -> None:
        if ttft_s is not None:
            best_s = self._best_s.setdefault(variant, {})
            best_s[tokens] = min(ttft_s, best_s.get(tokens, ttft_s))

    def steps(self, tokens: int) -> int:
        """Steps that a prompt of so many tokens takes, alone."""
        return max(1, -(-tokens // self._plan.batched_tokens))

    def of(self, cell: Cell) -> float | None:
        """Seconds, for one prompt of this cell; None if nothing tells. Of a prefix hit it is that
        of a prompt as long as what is computed, and so rather too short."""
        variant, tokens = cell.variant.name, cell.computed_tokens
        known = [s for length, s in self._best_s.get(variant, {}).items() if length >= tokens]
        if variant in self._chunk_s:
            known.append(self._chunk_s[variant] * self.steps(tokens))
        return min(known, default=None)


class Pacer:
    """Says how a look is let go. Fed with every wave, whatever became of it.

    A plug is a whole number of chunks (m·B tokens), so that no request of the wave finds room in
    its last one; where not even one chunk fits `max_model_len`, it is one shorter prompt and one
    step. Where B is not known, it is a power of two, as every default B is: then it is either
    whole chunks or one step. m grows until the plug runs more than twice as long as the wave's
    bodies take to be written, and doubles when a held wave was not shown.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._warm_ttft = WarmTtft(plan)
        self._chunk_s: float | None = None
        self._spread_s: dict[int, float] = {}
        self._chunks: dict[str, int] = {}
        self._share: dict[Look, float] = {}
        self._more: dict[Look, int] = {}

    def pace(self, look: Look) -> Pace:
        """The pace of the next wave of `look`."""
        if look.behind_plug and self._plan.plug_tokens is not None:
            return self._held(look)
        if look.gait is not Gait.LED or look.cell.concurrency == 1:
            return Pace(more_tokens=self._more.get(look, 0))
        ttft_s = self._warm_ttft.of(look.cell)
        if ttft_s is None:
            return Pace(rest_after_s=UNKNOWN_DELAY_S)
        # Into the lead's first step. A long prompt has several, all alike, of which the rest
        # could only miss the last.
        steps = self._warm_ttft.steps(look.cell.computed_tokens)
        share = self._share.get(look, _SHARE)
        return Pace(rest_after_s=_bounded(share * ttft_s / steps))

    def _held(self, look: Look) -> Pace:
        chunks = self._chunks.get(look.cell.id, 1)
        delay_s = UNKNOWN_DELAY_S
        if self._chunk_s:
            needed_s = 2 * self._spread_s.get(look.cell.concurrency, 0.0)
            chunks = max(chunks, int(needed_s / self._chunk_s) + 1)
            plug_s = self._chunk_s * chunks
            delay_s = _bounded(_SHARE * plug_s)
        return Pace(
            plug_tokens=self._plug_tokens(look, chunks),
            wave_after_s=delay_s,
            more_tokens=self._more.get(look, 0),
        )

    def _plug_tokens(self, look: Look, chunks: int) -> int:
        shortest = self._plan.plug_tokens or 1
        whole = self._plan.batched_tokens
        tokens = shortest
        if shortest >= whole:
            tokens = whole * max(1, min(chunks, self._longest(look) // whole, _MAX_CHUNKS))
        if not self._plan.batched_tokens_known:
            tokens = 1 << (tokens.bit_length() - 1)
        return tokens

    def _longest(self, look: Look) -> int:
        """The longest prompt that surely fits: by the limits where known, else what is sent anyway.

        The plug is still there when the wave arrives, so the KV cache must hold both.
        """
        plan = self._plan
        others = (*plan.cells, *(c for c in (plan.first, plan.heaviest) if c is not None))
        longest = max((c.prompt_tokens for c in others), default=0)
        if plan.facts.max_model_len is not None:
            longest = plan.facts.max_model_len - 1
        if plan.facts.kv_cache_tokens is not None:
            longest = min(longest, plan.facts.kv_cache_tokens - self._kept(look))
        return longest

    def _kept(self, look: Look) -> int:
        """Tokens of a wave in the KV cache."""
        cell = look.cell
        more = cell.concurrency * self._more.get(look, 0)
        return cell.wave_prompt_tokens + cell.wave_output_tokens + more

    def feed(self, wave: WaveResult) -> None:
        """Learn from a wave: the warm TTFT, the plug's time, the spread, and what was not shown."""
        if any(r.outcome is not Outcome.OK for r in wave.results):
            return
        look = wave.look
        self._warm_ttft.feed(wave)
        widest = max(wave.spread_s, self._spread_s.get(look.cell.concurrency, 0.0))
        self._spread_s[look.cell.concurrency] = widest
        if wave.plug is not None and wave.plug.ttft_s and wave.plug.prompt_tokens:
            chunks = max(1, wave.plug.prompt_tokens // self._plan.batched_tokens)
            chunk_s = wave.plug.ttft_s / chunks
            self._chunk_s = min(chunk_s, self._chunk_s or chunk_s)
        missed = miss(wave, self._plan, self._warm_ttft.of(look.cell))
        if missed is not None:
            self._adjust(look, missed)

    def _adjust(self, look: Look, missed: Miss) -> None:
        if missed is Miss.OUTRUN or (look.cell.captured and missed is Miss.NO_OVERLAP):
            self._more[look] = self._longer(look)
        elif look.behind_plug and missed in (Miss.SPLIT, Miss.PLUG_GONE):
            chunks = self._chunks.get(look.cell.id, 1) * 2
            self._chunks[look.cell.id] = min(chunks, _MAX_CHUNKS)
        elif missed in (Miss.REST_LATE, Miss.REST_SPLIT, Miss.B_UNKNOWN):
            self._share[look] = max(_MIN_SHARE, self._share.get(look, _SHARE) / 2)
        elif missed is Miss.LEAD_NOT_ALONE:
            self._share[look] = min(_MAX_SHARE, self._share.get(look, _SHARE) * 1.6)

    def _longer(self, look: Look) -> int:
        """Twice as many output tokens more, as far as the engine's limits allow."""
        cell, facts = look.cell, self._plan.facts
        before, step = self._more.get(look, 0), decode_tokens(self._plan)
        more = min(max(_FIRST_MORE * step, 2 * before), _MOST_MORE * step)
        if facts.max_model_len is not None:
            more = min(more, facts.max_model_len - cell.prompt_tokens - cell.output_tokens)
        if facts.kv_cache_tokens is not None:
            free = facts.kv_cache_tokens - self._kept(look) - (self._plan.plug_tokens or 0)
            more = min(more, before + max(0, free) // cell.concurrency)
        return max(before, more)

"""How fast an engine is, by the waves that it answered."""

from dataclasses import dataclass

from sidecar.core.grid.cells import Gait, Look
from sidecar.core.grid.cost import Speed
from sidecar.core.results import Outcome, WaveResult

_WARM_WAVES = 2
"""Of a look, before its best wave is believed to be a warm one."""

_MOMENTS = 3
"""At which tokens came, at least: a speculating engine sends several at a time."""


@dataclass(slots=True)
class _Best:
    """Of one look: the least that each part of a wave took, in seconds."""

    waves: int
    computed_tokens: int
    decode_steps: int
    prefill_s: float
    decode_s: float | None
    """None: no wave showed its steps one by one."""
    whole_s: float


class Speedometer:
    """Fed with every wave of one boot.

    The estimate that it allows is right for the waves it saw: their sum comes out as they took.
    """

    def __init__(self) -> None:
        self._best: dict[Look, _Best] = {}

    def feed(self, wave: WaveResult, whole_s: float) -> None:
        """`whole_s` is the time of the wave with all that was done around it."""
        cell, f_s = wave.look.cell, wave.f_s
        if f_s is None or any(r.outcome is not Outcome.OK for r in wave.results):
            return
        plug_tokens = 0 if wave.plug is None else wave.plug.prompt_tokens or 0
        steps, decode_s = _decoding(wave)
        now = _Best(
            waves=1,
            computed_tokens=cell.wave_computed_tokens + cell.prime_tokens + plug_tokens,
            decode_steps=steps,
            prefill_s=f_s,
            decode_s=decode_s,
            whole_s=whole_s,
        )
        best = self._best.setdefault(wave.look, now)
        if best is not now:
            best.waves += 1
            best.prefill_s = min(best.prefill_s, f_s)
            if decode_s is not None:
                best.decode_s = min(best.decode_s or decode_s, decode_s)
            if whole_s < best.whole_s:
                best.whole_s, best.computed_tokens = whole_s, now.computed_tokens

    @property
    def speed(self) -> Speed | None:
        """None until waves have been repeated: the first of a kind pays for what is cold."""
        warm = {look: b for look, b in self._best.items() if b.waves >= _WARM_WAVES}
        # A held wave's first token waits for its plug too; a prefix was sent before the release.
        prefills = [
            (look.cell.wave_computed_tokens, best.prefill_s)
            for look, best in warm.items()
            if look.gait is Gait.LED
        ]
        prefill = _ratio(sum(t for t, _ in prefills), sum(s for _, s in prefills))
        decodes = [(b.decode_steps, b.decode_s) for b in warm.values() if b.decode_s is not None]
        decode = _ratio(sum(n for n, _ in decodes), sum(s for _, s in decodes))
        if prefill is None or decode is None:
            return None
        rest_s = sum(
            b.whole_s - b.computed_tokens / prefill - (b.decode_steps + 1) / decode
            for b in warm.values()
        )
        return Speed(prefill, decode, max(0.0, rest_s / len(warm)))


def _decoding(wave: WaveResult) -> tuple[int, float | None]:
    """Steps and seconds of the stream that decoded longest; None where its tokens came in a burst,
    as they do through a busy server: then they say nothing of its steps."""
    lasted_s = [(r.last_s or 0.0) - (r.first_s or 0.0) for r in wave.results]
    longest = max(range(len(lasted_s)), key=lasted_s.__getitem__)
    tokens = wave.look.cell.output_tokens_of(longest)
    moments = len(set(wave.results[longest].token_s))
    is_told = tokens > 1 and moments >= min(tokens, _MOMENTS)
    return tokens - 1, lasted_s[longest] if is_told else None


def _ratio(tokens: int, seconds: float) -> float | None:
    return tokens / seconds if tokens > 0 and seconds > 0 else None

"""What a held wave's plug takes by itself, told from all plugs of the boot.

A held wave's F counts from the plug's end, but the plug's first token is no sure sign of it. With
asynchronous scheduling and the in-process executor, vLLM's default on one GPU, the wave's own step
is launched, and its kernels compiled, before the plug's token is handed out: on vLLM 0.26.0 on an
H200 a compile of 0.95 s for 3 x 171 tokens came before the plug's first token, and the wave's
followed 2 ms later. So F counts from where the plug ended or should have ended, whichever is
earlier.

The prompts that put a prefix into the cache are kept with the plugs: they too are one prompt alone,
in no figure of their wave, and what they cost may have made other cells cold.
"""

from collections import deque

from sidecar.core.results import Result, WaveResult

MAX_RUNS = 200
"""Of one length that are remembered."""


class Plugs:
    """The least time from the body of a plug or a prime to its first token, by its length."""

    def __init__(self) -> None:
        self._runs: dict[int, deque[tuple[int, float]]] = {}
        self._least_s: dict[int, float] = {}
        self._excess_at = -1

    def feed(self, at: int, wave: WaveResult) -> bool:
        """Remember those of wave number `at`, if it had any; whether a least time fell."""
        alone = wave.primes if wave.plug is None else (wave.plug, *wave.primes)
        fell = [self._note(at, one) for one in alone]
        return any(fell)

    def _note(self, at: int, one: Result) -> bool:
        if one.ttft_s is None or not one.prompt_tokens:
            return False
        runs = self._runs.setdefault(one.prompt_tokens, deque(maxlen=MAX_RUNS))
        runs.append((at, one.ttft_s))
        least_s = self._least_s.get(one.prompt_tokens)
        if least_s is not None and least_s <= one.ttft_s:
            return False
        self._least_s[one.prompt_tokens] = one.ttft_s
        return True

    def least_s(self, wave: WaveResult) -> float | None:
        """Of plugs as long as this wave's; None where it had none, or it gave no token."""
        if wave.plug is None or wave.plug.ttft_s is None or not wave.plug.prompt_tokens:
            return None
        return self._least_s.get(wave.plug.prompt_tokens, wave.plug.ttft_s)

    def last_excess_at(self, floor_s: float, factor: float) -> int:
        """The last wave of which one took max(floor, factor x least) above its least; -1: none."""
        for tokens, runs in self._runs.items():
            least_s = self._least_s[tokens]
            limit_s = least_s + max(floor_s, factor * least_s)
            late = (at for at, ttft_s in runs if ttft_s > limit_s)
            self._excess_at = max([self._excess_at, *late])  # a least falls: once late, always late
        return self._excess_at

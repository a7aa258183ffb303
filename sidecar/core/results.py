"""What came back: one Result per request, one WaveResult per wave.

All stamps are seconds of a monotonic clock, counted from the wave's *release*: the moment the
first request of the wave (not the plug) was let go.
"""

from bisect import bisect_left
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from sidecar.core.grid.cells import Look
from sidecar.core.logs.evidence import LogEvidence
from sidecar.core.wire.metrics import CounterDelta


class Outcome(StrEnum):
    """How a request ended."""

    OK = "ok"
    HTTP_ERROR = "http_error"
    """An answer that is not 200; `status` and `message` say which."""
    STREAM_ERROR = "stream_error"
    """200, and then an error event inside the stream."""
    BROKEN = "broken"
    """Refused, reset, cut off before [DONE], or garbage."""
    TIMEOUT = "timeout"


@dataclass(frozen=True, slots=True)
class Result:
    """One request. A failed request is a Result too, with what had arrived before it failed."""

    outcome: Outcome
    sent_s: float
    """The last byte of the body was in the socket's hands. It may be stamped too late, never too
    early: the engine that it wakes may take this process' core before the stamp."""
    token_s: tuple[float, ...] = ()
    """Arrival of each event that carried output: not of the role chunk, comments or usage."""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None
    status: int | None = None
    message: str = ""
    choices: int = 1
    """Answers that ended: the engine counts each as a request with a prompt of its own."""
    begins: str = ""
    """The first characters of the first answer, without its reasoning."""
    thought: bool = False
    """It began with reasoning."""
    let_go_s: float | None = None
    """Just before that byte was written. It may be stamped too early, never too late; None: as
    `sent_s`."""
    misread: bool = False
    """BROKEN by what came back, which is nothing that vLLM answers; the connection held."""

    @property
    def first_s(self) -> float | None:
        return self.token_s[0] if self.token_s else None

    @property
    def last_s(self) -> float | None:
        return self.token_s[-1] if self.token_s else None

    @property
    def ttft_s(self) -> float | None:
        """Time to first token, from this request's own body; never too short, for the least of
        many is what a verdict rests on. On two busy cores a prompt of 0.28 s had its token 0.1 ms
        after `sent_s`, and every later one seemed to be late."""
        from_s = self.sent_s if self.let_go_s is None else self.let_go_s
        return self.token_s[0] - from_s if self.token_s else None


@dataclass(frozen=True, slots=True)
class WaveResult:
    """One wave as it ran."""

    look: Look
    results: tuple[Result, ...]
    spread_s: float
    """From the first to the last body written of those let go together: with `held` the whole
    wave, with `led` the rest."""
    took_s: float
    """From the release to the last byte of the last stream."""
    at_s: float
    """Monotonic time of the release."""
    plug: Result | None = None
    """The plug's own request, its stamps relative to the same release: it was sent before 0."""
    counters: CounterDelta | None = None
    """What /metrics counted from before the wave until it agreed or a second had passed."""
    log: LogEvidence | None = None
    """What the engine's log showed between the wave's fences; None where no log is read."""
    primes: tuple[Result, ...] = ()
    """The requests that put its prefixes into the cache: they had ended, and were counted, before
    the first of the wave was let go."""
    more_tokens: int = 0
    """Output tokens that each of those that decode together was asked for beyond the cell's."""

    @property
    def together(self) -> tuple[Result, ...]:
        """Those that decode together: all but the one that arrives."""
        return self.results[: self.look.cell.concurrency]

    @property
    def all_decode_s(self) -> float | None:
        """When the last of those that decode together had its first token. None: it never had."""
        firsts = [r.first_s for r in self.together]
        return None if not firsts or None in firsts else max(f for f in firsts if f is not None)

    @property
    def f_s(self) -> float | None:
        """R5's F: the slowest first token, counted from the release, or that of the request that
        arrives, counted from its own. None if one never came."""
        if len(self.results) == len(self.together):
            return self.all_decode_s
        return None if self.all_decode_s is None else self.results[-1].ttft_s

    @property
    def g_s(self) -> float:
        """R5's G: the worst gap inside any stream that began with or after the last first token of
        those that decode together; 0 where nothing was decoded. A gap that only ended after it
        holds the prefill of the last request, or not, as the events of that step are ordered."""
        from_s = self.all_decode_s
        if from_s is None:
            return 0.0
        late = (r.token_s[bisect_left(r.token_s, from_s) :] for r in self.results)
        return max((b - a for stamps in late for a, b in pairwise(stamps)), default=0.0)

"""What was sent so far and what became of it: rows for people, totals for dashboards."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypeVar

from sidecar.core.grid.cells import Gait
from sidecar.core.judge.attribution import named
from sidecar.core.judge.failures import EXECUTE_MODEL_TIMEOUT_S
from sidecar.core.judge.verdict import Judged
from sidecar.core.logs.window import Completeness
from sidecar.core.results import Outcome, Result, WaveResult

MAX_ROWS = 2000
"""Rows kept: a grid of the allowed size has six looks a cell in the worst case, and /status is
read by people. Older ones are dropped and counted."""


class WaveOutcome(StrEnum):
    """How a wave ended, one word each: a label of `warmup_waves_total`."""

    VALID = "valid"
    INVALID = "invalid"
    FOREIGN = "foreign"
    """Others' requests were in it (R9)."""
    FAILED = "failed"
    CANCELLED = "cancelled"
    """Cut off, because the engine went away or the sidecar was stopped."""


_NEAR = 0.6
"""Of the engine's own limit: the next kernel may take twice as long as this one."""


@dataclass(frozen=True, slots=True)
class WaveRow:
    """One wave as /status and the report show it: without the stamps of every token."""

    cell: str
    gait: Gait
    at: float
    """Release of the wave, in seconds since 1970, UTC."""
    outcome: WaveOutcome
    because: tuple[str, ...]
    shown: bool
    f_s: float | None
    g_s: float
    took_s: float
    spread_s: float
    requests: int
    window: Completeness | None = None
    """How much of its log was seen; None: no log is read."""
    log: str | None = None
    """How far the engine's log carries it; None: no log is read."""
    kernels: tuple[str, ...] = ()
    """What the log named as compiled in it: the first few."""


def near_the_limit(wave: WaveResult) -> str | None:
    """A warning when the engine was silent for so long that it came near to ending itself.

    vLLM gives up on a step after VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS, 300 by default, and with it
    on the whole engine (0.33 envs.py, v1/executor/multiproc_executor.py).
    """
    silent_s = max(wave.f_s or 0.0, wave.g_s)
    if silent_s < _NEAR * EXECUTE_MODEL_TIMEOUT_S:
        return None
    return (
        f"{wave.look.cell.id} kept the engine silent for {silent_s:.0f} s: at "
        f"{EXECUTE_MODEL_TIMEOUT_S:.0f} s it ends itself, unless the engine's "
        "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS is raised"
    )


def outcome_of(judged: Judged) -> WaveOutcome:
    """The one word for a judged wave; the worst that holds."""
    if judged.failed is not None:
        return WaveOutcome.FAILED
    if judged.foreign:
        return WaveOutcome.FOREIGN
    return WaveOutcome.VALID if judged.valid else WaveOutcome.INVALID


def row_of(judged: Judged, *, at: float) -> WaveRow:
    """The row of a judged wave that was released `at` (seconds since 1970)."""
    wave = judged.wave
    failed = (judged.failed,) if judged.failed else ()
    return WaveRow(
        cell=wave.look.cell.id,
        gait=wave.look.gait,
        at=at,
        outcome=outcome_of(judged),
        because=(*failed, *judged.invalid_because),
        shown=judged.shown,
        f_s=wave.f_s,
        g_s=wave.g_s,
        took_s=wave.took_s,
        spread_s=wave.spread_s,
        requests=len(wave.results),
        window=None if wave.log is None else wave.log.completeness,
        log=None if wave.log is None else wave.log.words,
        kernels=named(wave),
    )


_Key = TypeVar("_Key", bound=StrEnum)


def _summed(counts: Iterable[Mapping[_Key, int]]) -> dict[_Key, int]:
    sums: dict[_Key, int] = {}
    for one in counts:
        for key, count in one.items():
            sums[key] = sums.get(key, 0) + count
    return sums


@dataclass(frozen=True, slots=True)
class Totals:
    """Counted since the sidecar started; only ever grows."""

    boots: int = 0
    """Lives of the engine that were seen."""
    passes: int = 0
    waves: Mapping[WaveOutcome, int] = field(default_factory=dict)
    requests: Mapping[Outcome, int] = field(default_factory=dict)
    """Plugs and primes included: they are requests that the engine counted."""
    prompt_tokens: int = 0
    output_tokens: int = 0

    @classmethod
    def of_all(cls, each: Sequence["Totals"]) -> "Totals":
        """Of several engines. They are summed with every change that any of them tells."""
        return cls(
            sum(one.boots for one in each),
            sum(one.passes for one in each),
            _summed([one.waves for one in each]),
            _summed([one.requests for one in each]),
            sum(one.prompt_tokens for one in each),
            sum(one.output_tokens for one in each),
        )

    def with_wave(self, judged: Judged) -> "Totals":
        """These totals and one wave more."""
        wave = judged.wave
        plug = () if wave.plug is None else (wave.plug,)
        sent = (*wave.results, *plug, *wave.primes)
        requests = dict(self.requests)
        for result in sent:
            requests[result.outcome] = requests.get(result.outcome, 0) + 1
        return replace(
            self,
            waves=_one_more(self.waves, outcome_of(judged)),
            requests=requests,
            prompt_tokens=self.prompt_tokens
            + sum(
                _prompt(r, wave.look.cell.prompt_tokens_of(i)) for i, r in enumerate(wave.results)
            )
            + sum(r.prompt_tokens or 0 for r in (*plug, *wave.primes)),
            output_tokens=self.output_tokens + sum(_output(r) for r in sent),
        )

    def with_cancelled(self) -> "Totals":
        """These totals and one wave that was cut off: what it had sent is not known."""
        return replace(self, waves=_one_more(self.waves, WaveOutcome.CANCELLED))

    def with_boot(self) -> "Totals":
        return replace(self, boots=self.boots + 1)

    def with_passes(self, passes: int) -> "Totals":
        return replace(self, passes=self.passes + passes)


def _one_more(counts: Mapping[WaveOutcome, int], outcome: WaveOutcome) -> Mapping[WaveOutcome, int]:
    return {**counts, outcome: counts.get(outcome, 0) + 1}


def _prompt(result: Result, declared: int) -> int:
    """Usage says it; a stream that broke after its first token had its whole prompt computed."""
    if result.prompt_tokens is not None:
        return result.prompt_tokens
    return declared if result.token_s else 0


def _output(result: Result) -> int:
    """Usage says it; of a stream that broke at least one token came with each event."""
    return len(result.token_s) if result.completion_tokens is None else result.completion_tokens

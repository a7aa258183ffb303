"""What all sources together showed of one wave, and how much their silence proves."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from sidecar.core.logs.events import Compile, Finished, Step
from sidecar.core.logs.head import Origin
from sidecar.core.logs.window import Completeness, WindowReport


class Hearing(StrEnum):
    """How much the log's silence proves, from most to least."""

    COMPLETE = "complete"
    """Every rank listens, names every specialization, and nothing of the wave was missed."""
    ONCE_ONLY = "once-only"
    """A kernel is named once a process, whatever it compiles later."""
    SOME_RANKS = "some ranks"
    PARTIAL = "partial"
    """Something of the wave may have been missed."""
    NONE = "none"


ORDER = tuple(Hearing)

MAX_COMPILES, MAX_DETAIL = 100, 400
"""Compile lines that are kept of a wave, and characters of what each says in its parentheses."""
MAX_PREFILLS = 256


@dataclass(frozen=True, slots=True)
class Listening:
    """Whose compiles this boot's log would show, as its start lines told."""

    monitors: int = 0
    """Processes whose JIT monitor said that it listens."""
    ranks: int | None = None
    """Of how many."""
    verbose: bool | None = None
    off: str | None = None
    """Why none can, where the start lines tell."""
    doubtful: str | None = None
    """Why the start lines need not be true: users may have written them."""


@dataclass(frozen=True, slots=True)
class Steps:
    """What iteration-detail lines told of a wave's steps. Kept for as long as the boot lives, so
    not the lines themselves."""

    prefills: tuple[Step, ...]
    """Those with prompts in them, in order."""
    most_decoding: int
    """Requests that decoded in one step, at most."""
    is_whole: bool
    """They are one engine's and numbered without a hole, and none with a prompt was dropped."""


@dataclass(frozen=True, slots=True)
class LogEvidence:
    """The log leg of one wave. Compile lines count wherever they stand; silence only as `hearing`
    says."""

    completeness: Completeness
    reason: str = ""
    """Why it is not complete; empty if it is."""
    compiles: tuple[Compile, ...] = ()
    """With the duration of the line that told their end; the first MAX_COMPILES."""
    steps: Steps | None = None
    """None: no line told any. Only those of a complete window show a batch."""
    steps_of: Mapping[str, Steps] = field(default_factory=dict)
    """The same by data-parallel engine."""
    earlier: tuple[Compile, ...] = ()
    """Between the wave before and this one: of no cell, but something was compiled."""
    foreign: int = 0
    """Answers to others' requests."""
    dropped: int = 0
    """Events beyond what is kept."""
    is_lossy: bool = False
    """Lines may have vanished without a trace."""
    listening: Listening = Listening()

    @property
    def hearing(self) -> Hearing:
        listening = self.listening
        if self.completeness is Completeness.NONE or self.is_lossy or not listening.monitors:
            return Hearing.NONE
        if self.completeness is Completeness.PARTIAL:
            return Hearing.PARTIAL
        if listening.ranks is None or listening.monitors < listening.ranks:
            return Hearing.SOME_RANKS
        if not listening.verbose or listening.doubtful:
            return Hearing.ONCE_ONLY
        return Hearing.COMPLETE

    @property
    def words(self) -> str:
        """The hearing, and why it is no better, for people."""
        listening, hearing = self.listening, self.hearing
        if hearing is Hearing.COMPLETE:
            return "complete"
        if hearing is Hearing.ONCE_ONLY:
            why = listening.doubtful or (
                "without --jit-monitor-verbose a kernel is named once a process"
            )
            return f"once-only: {why}"
        if hearing is Hearing.SOME_RANKS:
            return f"{listening.monitors} of {listening.ranks or 'unknown'} ranks seen"
        if hearing is Hearing.PARTIAL:
            return f"partial: {self.reason}"
        return f"none: {self._why_none()}"

    def _why_none(self) -> str:
        if self.is_lossy:
            return "lines may be lost on their way (syslog over UDP, or a log that is not kept)"
        if self.completeness is Completeness.NONE:
            return self.reason
        return self.listening.off or (
            "no JIT monitor said that it listens (vLLM 0.21 or later on a GPU does at its start: "
            "the sidecar must see the log from there)"
        )

    def of_engine(self, label: str | None) -> "LogEvidence":
        """What of it concerns one data-parallel engine; a line that names none concerns each.

        None: there is but one, or the wave could not choose.
        """
        if label is None:
            return self
        compiles = tuple(c for c in self.compiles if _concerns(c.origin, label))
        if not compiles and self.dropped:
            compiles = self.compiles  # those that were dropped may be this engine's
        steps = self.steps_of.get(label)  # of an engine that told none, others' show nothing
        return replace(self, compiles=compiles, steps=steps, steps_of={})

    @property
    def shows_steps(self) -> bool:
        """Whether its steps are all that the engine made for the wave."""
        is_complete = self.completeness is Completeness.COMPLETE
        return is_complete and self.steps is not None and self.steps.is_whole


@dataclass(frozen=True, slots=True)
class Heard:
    """What one stream of one source showed of a wave, and whose monitors speak there."""

    report: WindowReport
    listeners: frozenset[Origin] = frozenset()
    is_lossy: bool = False


def combined(
    streams: Sequence[Heard], listening: Listening, earlier: tuple[Compile, ...] = ()
) -> LogEvidence:
    """One leg of several streams. Nothing is complete unless each monitor's own stream is."""
    if not streams:
        return LogEvidence(Completeness.NONE, "no line was ever read", listening=listening)
    best = min(streams, key=lambda s: (_RANK[s.report.completeness], s.is_lossy))
    completeness, reason = best.report.completeness, best.report.reason
    whole = [
        s for s in streams if s.report.completeness is Completeness.COMPLETE and not s.is_lossy
    ]
    covered = frozenset[Origin]().union(*(s.listeners for s in whole))
    for stream in streams:
        if completeness is Completeness.COMPLETE and not stream.listeners <= covered:
            completeness = Completeness.PARTIAL
            reason = f"the log of another rank was not seen whole: {stream.report.reason}"
    compiles = _compiles(streams)
    return LogEvidence(
        completeness=completeness,
        reason=reason,
        compiles=compiles[:MAX_COMPILES],
        steps=summed(best.report.steps),
        steps_of=_by_engine(best.report.steps),
        earlier=tuple(map(_shortened, earlier[:MAX_COMPILES])),
        foreign=best.report.foreign,
        dropped=best.report.dropped + max(0, len(compiles) - MAX_COMPILES),
        is_lossy=best.is_lossy,
        listening=listening,
    )


def summed(steps: Sequence[Step]) -> Steps | None:
    """All steps of one window in what is kept of them."""
    if not steps:
        return None
    first = steps[0]
    prefills = tuple(step for step in steps if step.context_requests)
    running = all(
        step.engine == first.engine and step.number == first.number + n
        for n, step in enumerate(steps)
    )
    return Steps(
        prefills[:MAX_PREFILLS],
        max(step.generation_requests for step in steps),
        running and len(prefills) <= MAX_PREFILLS,
    )


def _by_engine(steps: Sequence[Step]) -> dict[str, Steps]:
    own: defaultdict[str, list[Step]] = defaultdict(list)
    for step in steps:
        own[str(step.engine)].append(step)
    return {name: told for name, each in own.items() if (told := summed(each)) is not None}


def _concerns(origin: Origin, label: str) -> bool:
    """Whether a line may be that engine's: `EngineCore_DP1`, `Worker_DP1_TP0` (vLLM 0.33
    v1/executor/multiproc_executor.py); of a process without such a part it can't be told."""
    part = (origin.rank or "").partition("_")[0]
    return not part.startswith("DP") or part == f"DP{label}"


_RANK = {one: n for n, one in enumerate(Completeness)}


def _compiles(streams: Sequence[Heard]) -> tuple[Compile, ...]:
    """Of all streams; a line that came by two of them is one line."""
    counts: Counter[Compile] = Counter()
    for stream in streams:
        for compile_, count in Counter(_timed(stream.report)).items():
            counts[compile_] = max(counts[compile_], count)
    return tuple(counts.elements())


def _timed(report: WindowReport) -> list[Compile]:
    """The compiles, with the durations that other lines told; first begun, first finished."""
    ends: list[Finished] = [f for f in report.finished if f.duration_s is not None]
    timed: list[Compile] = []
    for compile_ in report.compiles:
        end = next((f for f in ends if _is_end(f, compile_)), None)
        if end is not None and compile_.duration_s is None:
            ends.remove(end)
            compile_ = replace(compile_, duration_s=end.duration_s)
        timed.append(_shortened(compile_))
    return timed


def _shortened(line: Compile) -> Compile:
    return replace(line, detail=line.detail[:MAX_DETAIL])


def _is_end(end: Finished, of: Compile) -> bool:
    same = (end.backend, end.event, end.kernel) == (of.backend, of.event, of.kernel)
    return same and end.origin.process == of.origin.process and end.origin.pid == of.origin.pid

"""The log of one wave: what stands between its fences, and how far the silence there proves.

A fence is a GET of `/version?warmup_fence=<nonce>` that the engine's access log shows. One is sent
before the wave and one after its last byte. vLLM writes an access line with the response headers,
before the compile that its body waits for has ended: the wave's own lines prove nothing, only
what is written after the last byte does. Nobody else knows a nonce before its line is written.

A line can make a cell loud wherever it stands. Only a complete window makes its silence count.

Triton's and TileLang's prints go through Python's buffer when stdout is a pipe, and may come after
the closing fence (set PYTHONUNBUFFERED=1 for vLLM): what a window misses so belongs to the next
thing that looks. The lines of vLLM's own logger are flushed one by one.
"""

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from sidecar.core.logs.events import (
    Access,
    Compile,
    Finished,
    LogEvent,
    Phase,
    Started,
    Step,
)

MAX_KEPT = 1000
"""Events of each kind that a window keeps; a wave of 64 × 4,096 tokens has more steps than that
many times over, but the first thousand show how its batch formed."""

_INFERENCE = ("/v1/", "/v2/", "/inference/", "/invocations", "/pooling", "/classify", "/score")
"""Paths below which a POST means work for the engine."""

_Event = TypeVar("_Event", Compile, Finished, Step)


class Completeness(StrEnum):
    """How much of a wave's log was seen."""

    COMPLETE = "complete"
    PARTIAL = "partial"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Fences:
    """The nonces of one wave. A pair is used once."""

    opening: str
    closing: str


@dataclass(frozen=True, slots=True)
class Expected:
    """The access lines that a wave must leave: so many answers to a path."""

    path: str
    count: int


@dataclass(frozen=True, slots=True)
class WindowReport:
    """What one source showed of one wave."""

    completeness: Completeness
    reason: str
    """Why it is not complete; empty if it is."""
    compiles: tuple[Compile, ...] = ()
    finished: tuple[Finished, ...] = ()
    steps: tuple[Step, ...] = ()
    """In order, idle ranks' dummy steps left out. Only a complete window's show a batch."""
    foreign: int = 0
    """Answers to other inference requests: somebody else's."""
    dropped: int = 0
    """Events beyond what a window keeps."""


class Window:
    """Takes the events of one source, in order, from before the opening fence was sent.

    With `lossless=False` (UDP) silence never counts: a window is partial at best.
    """

    def __init__(
        self, fences: Fences, expected: tuple[Expected, ...], *, lossless: bool = True
    ) -> None:
        self._fences = fences
        self._expected = {each.path: each.count for each in expected}
        self._lossless = lossless
        self._opened = self._closed = False
        self._gap: str | None = None
        self._restarted = False
        self._any = False
        self._clear()

    def _clear(self) -> None:
        self._compiles: list[Compile] = []
        self._finished: list[Finished] = []
        self._steps: list[Step] = []
        self._answers: Counter[str] = Counter()
        self._refusals: Counter[str] = Counter()
        self._foreign = 0
        self._dropped = 0

    @property
    def is_open(self) -> bool:
        """The opening fence was seen: this is the log of the engine that is asked."""
        return self._opened

    @property
    def is_closed(self) -> bool:
        """The closing fence was seen: nothing that comes later belongs to this wave."""
        return self._closed

    def miss(self, why: str) -> None:
        """Here something was, or may have been, missed: `gap of 3.2 s: it was gone`."""
        if not self._closed:
            self._gap = self._gap or why

    def feed(self, item: LogEvent) -> None:
        """One more event. After the closing fence all are passed over."""
        if self._closed:
            return
        self._any = True
        if isinstance(item, Access):
            self._answered(item)
        elif isinstance(item, Compile):
            self._keep(self._compiles, item)
        elif isinstance(item, Finished):
            self._keep(self._finished, item)
        elif isinstance(item, Step):
            if not item.is_dummy:
                self._keep(self._steps, item)
        elif isinstance(item, Started) and item.phase is Phase.ARGUMENTS:
            self._restarted = True

    def _answered(self, answer: Access) -> None:
        if answer.nonce == self._fences.opening:
            if not self._opened:  # a second copy of the line tells nothing new
                self._clear()  # what came before belongs to something else
                self._gap = None
                self._restarted = False
            self._opened = True
        elif answer.nonce == self._fences.closing:
            self._closed = True
        elif (path := self._wanted(answer.path)) is not None:
            self._answers[path] += 1
            self._refusals[path] += answer.status >= 400
        elif answer.method == "POST" and answer.status < 400 and _is_inference(answer.path):
            self._foreign += 1

    def _wanted(self, path: str) -> str | None:
        """The expected path that this is, maybe behind a --root-path."""
        return next((wanted for wanted in self._expected if path.endswith(wanted)), None)

    def _keep(self, kept: list[_Event], item: _Event) -> None:
        if len(kept) < MAX_KEPT:
            kept.append(item)
        else:
            self._dropped += 1

    def report(self) -> WindowReport:
        """What was seen so far. Call it when closed, or when the wait for the fence is over."""
        completeness, reason = self._judge()
        # Whoever was refused gave the engine no work: a wrong key, a model that it doesn't have.
        served = self._answers - self._refusals
        surplus = sum(max(0, served[path] - count) for path, count in self._expected.items())
        return WindowReport(
            completeness,
            reason,
            tuple(self._compiles),
            tuple(self._finished),
            tuple(self._steps),
            self._foreign + surplus,
            self._dropped,
        )

    def _judge(self) -> tuple[Completeness, str]:
        if not self._opened and not self._closed:
            if not self._any:
                return Completeness.NONE, "no line was seen during the wave"
            return Completeness.NONE, (
                "no fence was seen: is this the log of the engine that is asked, and does it "
                "write access lines (no --disable-uvicorn-access-log)?"
            )
        reason = next((reason for reason in self._doubts() if reason is not None), "")
        return (Completeness.PARTIAL if reason else Completeness.COMPLETE), reason

    def _doubts(self) -> tuple[str | None, ...]:
        missing = {
            path: count - self._answers[path]
            for path, count in self._expected.items()
            if self._answers[path] < count
        }
        first = next(iter(missing), None)
        return (
            "the opening fence was not seen" if not self._opened else None,
            "the closing fence was not seen" if not self._closed else None,
            "the server started anew" if self._restarted else None,
            self._gap,
            None
            if first is None
            else f"{missing[first]} of {self._expected[first]} access lines of {first} are missing",
            None if self._lossless else "this source may lose lines",
        )


def _is_inference(path: str) -> bool:
    return any(part in path for part in _INFERENCE)

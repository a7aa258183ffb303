"""The lines of one source, in order → events, with what only two lines together tell."""

from collections import OrderedDict, deque
from dataclasses import dataclass, replace
from datetime import datetime

from sidecar.core.logs.compiles import AUTOTUNE, BUILD, FLASHINFER, TILELANG, TRITON
from sidecar.core.logs.events import Compile, Finished, LogEvent
from sidecar.core.logs.parse import parse

_MAX_OPEN = 256
"""Kernels times ranks that compile at one time; beyond it the oldest lose their duration."""

_HAS_END = {(TRITON, AUTOTUNE), (TILELANG, BUILD), (FLASHINFER, AUTOTUNE)}


@dataclass(frozen=True, slots=True)
class _Job:
    process: str | None
    pid: int | None
    backend: str
    event: str
    kernel: str


class LogReader:
    """Reads one source. Holds no line: of what is not matched nothing is kept."""

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self._begun: OrderedDict[_Job, deque[str | None]] = OrderedDict()
        """When each compile that has a second line began. From 0.31 on prints don't say which
        process they are from, so one kernel may have begun several times: first in, first out."""

    def feed(self, line: str) -> LogEvent | None:
        """What this line tells, given those before it."""
        event = parse(line, self._prefix)
        if event is None:
            return None
        if isinstance(event, Compile):
            self._begin(event)
        elif isinstance(event, Finished):
            event = self._finish(event)
        return event

    def _begin(self, event: Compile) -> None:
        if (event.backend, event.event) not in _HAS_END or event.duration_s is not None:
            return
        # A tuned function's name is not repeated on the line with its seconds, which follows.
        is_block = event.backend == TRITON and event.event == AUTOTUNE
        job = _job(event, "" if is_block else event.kernel)
        stamp = event.kernel if is_block else event.origin.at
        begun = self._begun.setdefault(job, deque(maxlen=1 if is_block else _MAX_OPEN))
        begun.append(stamp)
        self._begun.move_to_end(job)
        if len(self._begun) > _MAX_OPEN:
            self._begun.popitem(last=False)

    def _finish(self, event: Finished) -> Finished | None:
        job = _job(event, event.kernel)
        begun = self._begun.get(job)
        first = begun.popleft() if begun else None
        if begun is not None and not begun:
            del self._begun[job]
        if event.backend == TRITON:
            return replace(event, kernel=first) if first else None
        return replace(event, duration_s=_between(first, event.origin.at))


def _job(event: Compile | Finished, kernel: str) -> _Job:
    return _Job(event.origin.process, event.origin.pid, event.backend, event.event, kernel)


def _between(first: str | None, last: str | None) -> float | None:
    """Seconds between two stamps of one writer; None if they are none, or run backwards."""
    try:
        took = datetime.fromisoformat((last or "").replace(",", ".")) - datetime.fromisoformat(
            (first or "").replace(",", ".")
        )
    except (ValueError, TypeError):
        return None
    return took.total_seconds() if took.total_seconds() >= 0 else None

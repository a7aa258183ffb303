"""What compiled while the gate was open: holes in the declared grid, counted and bounded."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sidecar.core.logs.events import Compile, Step
from sidecar.core.moment import Moment

MAX_KEPT = 200
MAX_LABELS = 100
"""Kernels told apart; a model compiles some dozens."""
MAX_DETAIL = 500
_OTHER = ("other", "other")


@dataclass(frozen=True, slots=True)
class Batch:
    """What one engine step was made of, by its iteration line."""

    context_requests: int
    context_tokens: int
    generation_requests: int
    generation_tokens: int

    def __str__(self) -> str:
        return (
            f"{self.context_requests} prefills of {self.context_tokens} tokens, "
            f"{self.generation_requests} decodes of {self.generation_tokens} tokens"
        )


@dataclass(frozen=True, slots=True)
class Escape:
    """One compile line that users paid for."""

    at: Moment
    """When it was read."""
    source: str
    backend: str
    event: str
    kernel: str
    detail: str
    process: str | None
    repeated: int = 1
    step: str | None = None
    """What the engine did then, from the iteration line that came next; None: no such lines."""
    batch: Batch | None = None
    """The same in figures."""
    shapes: str = ""
    """TileLang's `runtime_shapes`, which may stand behind what is cut off of `detail`."""


@dataclass(frozen=True, slots=True)
class EscapeLog:
    """All of them since the sidecar started; the last MAX_KEPT by themselves."""

    total: int = 0
    counts: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """By backend and kernel, names as labels: at most MAX_LABELS and `other`. Only ever grows."""
    recent: tuple[Escape, ...] = ()


class Escapes:
    """Takes compile lines; gives the log as of now."""

    def __init__(self) -> None:
        self._total = 0
        self._counts: dict[tuple[str, str], int] = {}
        self._recent: deque[Escape] = deque(maxlen=MAX_KEPT)

    @property
    def log(self) -> EscapeLog:
        return EscapeLog(self._total, dict(self._counts), tuple(self._recent))

    def add(self, line: Compile, *, at: float, source: str) -> Escape:
        """One more; `at` in seconds since 1970."""
        escape = Escape(
            at=at,
            source=source,
            backend=line.backend,
            event=line.event,
            kernel=line.kernel,
            detail=line.detail[:MAX_DETAIL],
            process=line.origin.process,
            repeated=line.repeated,
            shapes=(line.shapes or "")[:MAX_DETAIL],
        )
        self._recent.append(escape)
        self._total += line.repeated
        label = self._label(line.backend, line.kernel)
        self._counts[label] = self._counts.get(label, 0) + line.repeated
        return escape

    def was_in(self, step: Step, source: str) -> tuple[Escape, ...]:
        """The step that compiled what came last from this source; those escapes as they are now."""
        known: list[Escape] = []
        batch = Batch(
            step.context_requests,
            step.context_tokens,
            step.generation_requests,
            step.generation_tokens,
        )
        for i in range(len(self._recent) - 1, -1, -1):
            escape = self._recent[i]
            if escape.source == source:
                if escape.step is not None:
                    break
                self._recent[i] = replace(escape, step=str(batch), batch=batch)
                known.append(self._recent[i])
        return tuple(reversed(known))

    def _label(self, backend: str, kernel: str) -> tuple[str, str]:
        """The names are out of a log, and could be anybody's."""
        label = (backend, kernel)
        if label in self._counts:
            return label
        is_named = is_name(backend) and is_name(kernel)
        return label if is_named and len(self._counts) < MAX_LABELS else _OTHER


def is_name(text: str) -> bool:
    """Whether a kernel or a backend could be called so."""
    return text.isascii() and text.replace("_", "a").replace(".", "a").isalnum() and len(text) <= 80


def told(log: EscapeLog, *, since: float) -> tuple[str, ...]:
    """One warning for people, if anything escaped `since` then (seconds since 1970)."""
    if not log.recent or log.recent[-1].at < since:
        return ()
    last = log.recent[-1]
    times = "once" if log.total == 1 else f"{log.total} times"
    where = f" in a step of {last.step}" if last.step else ""
    return (
        f"the engine compiled {times} while the gate was open, last {last.kernel} "
        f"({last.backend}){where}: a hole in the declared grid; add a cell to the shapes file",
    )

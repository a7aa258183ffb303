"""What a line can tell. Each event says who wrote it, as far as the line does."""

from dataclasses import dataclass, field
from enum import StrEnum

from sidecar.core.logs.facts import StartFacts
from sidecar.core.logs.head import Origin


@dataclass(frozen=True, slots=True)
class Compile:
    """A kernel is being compiled, loaded for the first time, or tuned: in serving, a stall."""

    origin: Origin
    backend: str
    """`Triton`, `CuTeDSL`, `TileLang`, `FlashInfer`, `torch`, or what a later vLLM names."""
    event: str
    """`kernel JIT compilation`, `autotune`, `recompile` …"""
    kernel: str
    detail: str = ""
    """What a verbose line says in its parentheses, bounded: each specialization has its own."""
    duration_s: float | None = None
    """Where the line itself says it. Where another line does, that is a `Finished`."""
    repeated: int = 1

    @property
    def constexprs(self) -> str | None:
        return _between(self.detail, "constexprs={", "}; signature=")

    @property
    def shapes(self) -> str | None:
        """TileLang's `runtime_shapes`; the first dimension is mostly the step's tokens."""
        return _between(self.detail, "runtime_shapes={", "}")


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a `Compile` that was told before. It is no other compile, it has the duration.

    None where the line doesn't say it and its beginning was not seen.
    """

    origin: Origin
    backend: str
    event: str
    kernel: str
    duration_s: float | None = None


@dataclass(frozen=True, slots=True)
class Activated:
    """The JIT monitor of one worker began to listen: each rank says it once, after its warm-up."""

    origin: Origin
    mode: str | None
    """`warn` or `error`; None up to 0.24, which has no modes."""


@dataclass(frozen=True, slots=True)
class Step:
    """One engine step (`--enable-logging-iteration-details`)."""

    origin: Origin
    engine: int
    number: int
    context_requests: int
    context_tokens: int
    generation_requests: int
    generation_tokens: int
    elapsed_ms: float
    """Means nothing under asynchronous scheduling: 0.04 was seen throughout."""
    is_dummy: bool = False


@dataclass(frozen=True, slots=True)
class Access:
    """uvicorn answered a request: written with the response headers, before the body."""

    origin: Origin
    method: str
    path: str
    """Without the query: that is the client's."""
    status: int
    nonce: str | None = None
    """Of a fence."""


class Complaint(StrEnum):
    """What went wrong in the engine."""

    STALLED = "stalled"
    """No shared memory broadcast block for a minute: a worker compiles, or hangs."""
    STEP_TIMEOUT = "step_timeout"
    """`execute_model` took longer than VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS: the engine dies."""
    OUT_OF_MEMORY = "out_of_memory"
    WORKER_DIED = "worker_died"
    ENGINE_DEAD = "engine_dead"
    STOPPING = "stopping"
    """SIGTERM or SIGINT: the server was told to end, and nothing is wrong."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """A line that says what the engine suffers from."""

    origin: Origin
    complaint: Complaint
    text: str
    """vLLM's or torch's own words, on one line and bounded."""


class Phase(StrEnum):
    """Where in its start a server is."""

    ARGUMENTS = "arguments"
    """The first line of a life that tells anything: `non-default args`."""
    STARTING = "starting"
    SERVING = "serving"


@dataclass(frozen=True, slots=True)
class Started:
    """A line of the start. `facts` holds only what this one line tells."""

    origin: Origin
    phase: Phase
    facts: StartFacts = field(default_factory=StartFacts)


LogEvent = Compile | Finished | Activated | Step | Access | Trouble | Started


def _between(text: str, before: str, after: str) -> str | None:
    rest = text.partition(before)[2]
    return (rest.partition(after)[0] or None) if rest else None

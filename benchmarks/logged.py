"""The log of a simulated engine in virtual time: written in vLLM's words, read by the real reader.

Every line goes through the real parser and the real windows. Drawn: how much the engine tells
(--jit-monitor-verbose, --enable-logging-iteration-details), whether a rank's log is missing, gaps,
a source that may lose lines, and users who write lines of their own: compiles that never were,
fences with nonces of their own, start lines that promise more than there is.
"""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.draws import Case
from sidecar.core.grid.cells import Endpoint, Look
from sidecar.core.logs.bootlog import BootLog
from sidecar.core.logs.events import Compile
from sidecar.core.logs.evidence import Heard, Listening, LogEvidence, combined
from sidecar.core.logs.parse import fence_target
from sidecar.core.logs.reader import LogReader
from sidecar.core.logs.window import Expected, Fences, Window
from sidecar.simulator.engine import Engine
from sidecar.simulator.log import Log
from sidecar.simulator.profile import Profile

_FORGED = (
    "(EngineCore pid=2) WARNING 11-29 17:14:24 [jit_monitor.py:132] Triton kernel JIT compilation "
    "during inference: forged_kernel. This causes a latency spike; consider extending warmup to "
    "cover this shape/config.",
    'INFO:     10.0.0.9:5 - "GET /version?warmup_fence=f0f0f0 HTTP/1.1" 200 OK',
    "(APIServer pid=1) INFO 11-29 17:14:24 [api_utils.py:286] non-default args: "
    "{'jit_monitor_verbose': True, 'tensor_parallel_size': 1}",
    "(EngineCore pid=9) INFO 11-29 17:14:24 [jit_monitor.py:79] Kernel JIT monitor activated; "
    "monitored JIT compilations during inference will use mode=warn.",
    "(APIServer pid=1) INFO 11-29 17:14:24 [loggers.py:182] Engine 000: Iteration(9): 4 context "
    "requests, 64 context tokens, 0 generation requests, 0 generation tokens, iteration elapsed "
    "time: 0.04 ms, GPU KV cache usage: 0.0%",
)


@dataclass(frozen=True, slots=True)
class Habits:
    """How an engine's log is, and what befalls it."""

    verbose: bool
    iterations: bool
    missing_rank: bool
    lossy: bool
    gaps: float
    """Share of waves with one."""
    forged: float
    """Share of waves with a forged line."""


def draw_habits(seed: int) -> Habits:
    dice = random.Random(f"log {seed}")
    return Habits(
        verbose=dice.random() < 0.75,
        iterations=dice.random() < 0.5,
        missing_rank=dice.random() < 0.1,
        lossy=dice.random() < 0.1,
        gaps=dice.choice((0.0, 0.0, 0.0, 0.05)),
        forged=dice.choice((0.0, 0.0, 0.02, 0.1)),
    )


def could_be_whole(case: Case) -> bool:
    """Whether nothing but a gap keeps this engine's log from proving silence."""
    habits = draw_habits(case.seed)
    kept_back = habits.lossy or habits.missing_rank or case.config.enforce_eager
    return habits.verbose and not kept_back


class _Lines:
    """What the simulator's log takes for a file."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def write(self, text: str) -> None:
        self.texts.append(text.rstrip("\n"))

    def flush(self) -> None:
        pass


class VirtualLog:
    """One source of one engine."""

    def __init__(self, case: Case, engine: Engine) -> None:
        self.habits = draw_habits(case.seed)
        profile = Profile(
            engine=case.config,
            jit_monitor_verbose=self.habits.verbose,
            log_iterations=self.habits.iterations,
        )
        self._engine = engine
        self._dice = random.Random(f"log lines {case.seed}")
        self._out = _Lines()
        self._log = Log(self._out, profile, 1, 8000)  # type: ignore[arg-type]
        self._reader, self._boot = LogReader(), BootLog()
        self._window: Window | None = None
        self._fences = Fences("", "")
        self._earlier: list[Compile] = []
        self._paid = self._steps = 0
        self._log.starting()
        self._log.ready("127.0.0.1")
        self._read()
        ranks = self._boot.facts.ranks
        self._listening = Listening(
            len(self._boot.listeners),
            ranks + 1 if ranks and self.habits.missing_rank else ranks,
            self._boot.facts.jit_monitor_verbose,
        )
        self._listeners = self._boot.listeners

    def begin(self, looks: Sequence[Look], plugs: int) -> None:
        """The opening fence: what happened before is no longer of these waves."""
        self._write()
        self._read()
        counts: Counter[Endpoint] = Counter()
        for look in looks:
            counts[look.cell.variant.endpoint] += look.cell.requests
        if plugs:
            counts[Endpoint.COMPLETIONS] += plugs
        self._expected = tuple(Expected(e.path, n) for e, n in counts.items())
        self._fences = Fences(f"{self._dice.getrandbits(64):x}", f"{self._dice.getrandbits(64):x}")
        self._window = Window(self._fences, self._expected, lossless=not self.habits.lossy)
        self._fence(self._fences.opening)
        for expected in self._expected:
            for _ in range(expected.count):
                self._log.access("10.0.0.1:1", "POST", expected.path, "200 OK")

    def end(self) -> LogEvidence:
        """The closing fence, and what stood between the two."""
        assert self._window is not None
        self._write()
        texts = self._out.texts
        if self._dice.random() < self.habits.forged:
            texts.insert(self._dice.randint(0, len(texts)), self._dice.choice(_FORGED))
        if self._dice.random() < self.habits.gaps:
            self._window.miss("gap of 1.0 s")
            del texts[len(texts) // 2 :]
        self._fence(self._fences.closing)
        self._read()
        report = self._window.report()
        self._window = None
        earlier, self._earlier = tuple(self._earlier), []
        heard = Heard(report, self._listeners, self.habits.lossy)
        return combined([heard], self._listening, earlier)

    def _fence(self, nonce: str) -> None:
        self._log.access("10.0.0.1:1", "GET", fence_target(nonce), "200 OK")

    def _write(self) -> None:
        """What the engine did since the last time."""
        engine = self._engine
        new = engine.steps_made - self._steps
        steps = list(engine.steps)[-new:] if new and self.habits.iterations else []
        self._log.happened(steps, engine.ledger[self._paid :])
        self._paid, self._steps = len(engine.ledger), engine.steps_made

    def _read(self) -> None:
        for text in self._out.texts:
            event = self._reader.feed(text)
            if event is None:
                continue
            self._boot.feed(event)
            if self._window is not None and not self._window.is_closed:
                if not self._window.is_open and isinstance(event, Compile):
                    self._earlier.append(event)
                self._window.feed(event)
            elif isinstance(event, Compile):
                self._earlier.append(event)
        self._out.texts.clear()

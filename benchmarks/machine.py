"""A machine on which engines run and end, beside a conductor, on a clock that jumps."""

import asyncio
import selectors
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import anyio

from benchmarks.draws import Case
from benchmarks.virtual import VirtualReplay
from sidecar.core.errors import EngineUnavailable
from sidecar.core.facts import EngineFacts
from sidecar.core.grid.cells import Look
from sidecar.core.grid.plan import Plan
from sidecar.core.judge.pacing import Pacer
from sidecar.core.results import Outcome, Result, WaveResult
from sidecar.core.watch.boot import BootMark
from sidecar.core.watch.presence import Presence
from sidecar.core.wire.health import Health
from sidecar.simulator.engine import Engine

PROBE_S = 2.0
"""How long a health probe waits for its answer."""


class Fault(StrEnum):
    """What happens to the machine."""

    RESTART = "restart"
    """The process dies; connections are refused until a new one is up."""
    DIE_SLOWLY = "503, then a restart"
    CUT = "cut off"
    """Refused for a while; the process lives on."""
    HANG = "hangs"
    """Answers nothing for a while; the process lives on."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """One fault, in seconds of the loop's clock."""

    at_s: float
    fault: Fault
    lasts_s: float

    @property
    def until_s(self) -> float:
        return self.at_s + self.lasts_s


class _Jumping(selectors.DefaultSelector):
    loop: "VirtualLoop"

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout:
            self.loop.now_s += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """Its clock jumps to the next thing that is due."""

    def __init__(self) -> None:
        selector = _Jumping()
        selector.loop = self
        self.now_s = 0.0
        super().__init__(selector)

    def time(self) -> float:
        return self.now_s


class Machine:
    """Where the engine runs: one process after another. Answers what the conductor may ask."""

    def __init__(
        self, case: Case, starts_s: float, troubles: list[Trouble], *, tells_start: bool
    ) -> None:
        """`tells_start`: /metrics has process_start_time_seconds; else only counters tell."""
        self.case = case
        self.tells_start = tells_start
        self.troubles = troubles
        self.starts_s = starts_s
        self.sent: dict[int, set[Look]] = {}
        """By process: the looks that were sent to it."""
        self.engines: dict[int, Engine] = {}
        self.waves: list[tuple[float, int]] = []
        """When each was let go, and to which process."""

    def trouble(self, at_s: float) -> Trouble | None:
        return next((t for t in self.troubles if t.at_s <= at_s < t.until_s), None)

    def process(self, at_s: float) -> int:
        """The number of the process that is or was the last to run."""
        ended = (Fault.RESTART, Fault.DIE_SLOWLY)
        return sum(t.fault in ended and t.at_s <= at_s for t in self.troubles)

    def state(self, at_s: float) -> Health:
        trouble = self.trouble(at_s)
        if at_s < self.starts_s:
            return Health.REFUSED
        if trouble is None:
            return Health.UP
        if trouble.fault is Fault.HANG:
            return Health.TIMEOUT
        if trouble.fault is Fault.DIE_SLOWLY and at_s < trouble.at_s + 4:
            return Health.UNAVAILABLE
        return Health.REFUSED

    async def health(self) -> Health:
        """As the engine client says it: an answer that comes within the limit is an answer."""
        state = self.state(anyio.current_time())
        if state is not Health.TIMEOUT:
            await anyio.sleep(0.002)
            return state
        await anyio.sleep(PROBE_S)
        later = self.state(anyio.current_time())
        return later if later is not Health.TIMEOUT else Health.TIMEOUT

    async def presence(self) -> Presence:
        await anyio.sleep(0.002)
        return Presence.SERVING if self.state(anyio.current_time()).is_up else Presence.UNTOLD

    async def mark(self) -> BootMark:
        await anyio.sleep(0.005)
        now_s = anyio.current_time()
        if self.state(now_s) is not Health.UP:
            return BootMark()
        process = self.process(now_s)
        return BootMark(
            process_start_s=float(process) if self.tells_start else None,
            requests=float(sum(to == process for _, to in self.waves)),
            version="0.33.0",
        )

    async def learn(self) -> EngineFacts:
        await anyio.sleep(0.01)
        state = self.state(anyio.current_time())
        if state is not Health.UP:
            raise EngineUnavailable(f"the engine is {state}")
        return self.case.facts


class Replaying:
    """Runs waves on the machine's process of now, as long as it lives."""

    def __init__(self, machine: Machine, plan: Plan) -> None:
        self._machine = machine
        self._process = machine.process(anyio.current_time())
        case = machine.case
        seed, now_s = case.seed + self._process, anyio.current_time()
        engine = machine.engines.setdefault(
            self._process, Engine(case.config, case.rules, seed=seed, now_s=now_s)
        )
        machine.sent.setdefault(self._process, set())
        self._virtual = VirtualReplay(case, engine, Pacer(plan))

    async def run(self, looks: Sequence[Look]) -> tuple[WaveResult, ...]:
        machine, engine = self._machine, self._virtual.engine
        began_s = anyio.current_time()
        if machine.state(began_s) is not Health.UP or machine.process(began_s) != self._process:
            await anyio.sleep(0.01)
            return tuple(broken(look, began_s) for look in looks)
        self._virtual.rest(max(0.0, began_s - engine.now_s))
        machine.sent[self._process].update(looks)
        machine.waves.append((began_s, self._process))
        waves = self._virtual.run(looks)
        ends_s = engine.now_s
        cut = next((t for t in machine.troubles if began_s < t.at_s < ends_s), None)
        if cut is None or cut.fault is Fault.HANG:
            late_s = 0.0 if cut is None else cut.lasts_s
            await anyio.sleep(ends_s + late_s - began_s)
            return waves
        await anyio.sleep(cut.at_s - began_s)
        return tuple(broken(look, began_s) for look in looks)


def broken(look: Look, at_s: float) -> WaveResult:
    result = Result(Outcome.BROKEN, 0.0, message="connection reset")
    return WaveResult(look, (result,) * look.cell.requests, 0.0, 0.01, at_s)

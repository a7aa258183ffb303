"""The gate under restarts and faults: the real conductor beside simulated engines, no clock runs.

A scenario is one drawn engine (`draws.py`) whose process dies, restarts, hangs or is cut off at
drawn moments. The conductor runs on an event loop whose clock jumps; everything the gate says is
held against what the machine knows. Wrong is:

* open while nothing is there, or another process than the one that was warmed (beyond the time in
  which it may be noticed: 2 s after a refusal, 503 or reset, 16 s for one that hangs, 12 s for a
  restart so quick that no probe fell into it);
* opened after a restart before each look was sent to the new process, or on a verdict that the
  ledger contradicts;
* shut by an answer that was late for less than 10 s;
* a replay for the same process when it is back;
* neither open nor failed (or trying again after that) at the end, with the engine up.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import anyio

from benchmarks.draws import draw
from benchmarks.forks import owed, settled
from benchmarks.machine import Fault, Machine, Replaying, Trouble, VirtualLoop
from benchmarks.warming import CONVERGE
from sidecar.core.facts import EngineFacts
from sidecar.core.grid.cells import Look
from sidecar.core.grid.plan import Plan, expand
from sidecar.core.judge.verdict import Call
from sidecar.core.policy import Policy
from sidecar.core.watch.gate import Snapshot, State
from sidecar.core.wire.health import Health
from sidecar.simulator.cold import Rule
from sidecar.warmup import Conductor

NOTICED_S = 2.5
"""Health is asked every second and a connection that breaks is told at once; issue: within 2 s."""
HANG_NOTICED_S = 16.0
RESTART_NOTICED_S = 12.0
"""The identity is looked at every 10 s."""
PATIENCE_S = 9.0
"""A hang shorter than this may not shut the gate."""
SETTLING_S = 4000.0
"""After the last fault: long enough to warm again within the budget, or to say that it failed."""


Span = tuple[float, float, State]
"""From, to, and what the gate said."""


@dataclass(slots=True)
class Diary:
    """What the gate said, and when."""

    machine: Machine
    plan: Plan | None = None
    entries: list[tuple[float, Snapshot]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def hear(self, snapshot: Snapshot) -> None:
        now_s = anyio.current_time()
        before = self.entries[-1][1].state if self.entries else State.WAITING
        self.entries.append((now_s, snapshot))
        if snapshot.state is State.READY and before is not State.READY:
            self._opened(now_s, snapshot)

    def _opened(self, now_s: float, snapshot: Snapshot) -> None:
        machine = self.machine
        process = machine.process(now_s)
        if machine.state(now_s) is not Health.UP:
            self._note(now_s, f"opened while the engine is {machine.state(now_s)}")
        wanted: set[Look] = set()
        if self.plan is not None:
            sent = (c for each in self.plan.cells for c in self.plan.on_each_rank(each))
            wanted = {Look(cell, gait) for cell in sent for gait in cell.gaits}
        missing = wanted - machine.sent.get(process, set())
        if snapshot.proven and missing:
            self._note(now_s, f"opened on process {process} with {len(missing)} looks never sent")
        if snapshot.verdict is None or process not in machine.engines:
            return
        engine = settled(machine.engines[process])
        for told in snapshot.verdict.cells:
            if told.call is Call.WARM and any(
                owed(machine.case, engine, told.cell, gait, CONVERGE).is_cold
                for gait in told.cell.gaits
            ):
                self._note(now_s, f"false warm: {told.cell.id}")

    def _note(self, at_s: float, what: str) -> None:
        self.wrong.append(f"at {at_s:.1f} s: {what}")

    def close(self, until_s: float) -> None:
        """Hold what the gate said against what was true all along."""
        spans = [
            (a, b, snapshot.state)
            for (a, snapshot), (b, _) in zip(
                self.entries, [*self.entries[1:], (until_s, None)], strict=True
            )
        ]
        for trouble in self.machine.troubles:
            open_s = [(a, b) for a, b, state in spans if state is State.READY]
            if trouble.fault is Fault.HANG and trouble.lasts_s < PATIENCE_S:
                was_open = any(a < trouble.at_s < b for a, b in open_s)
                stayed = any(
                    a < trouble.at_s and b > trouble.until_s + 1 for a, b in _joined(open_s)
                )
                if was_open and not stayed:
                    self._note(trouble.at_s, f"shut by a hang of {trouble.lasts_s:.1f} s")
                continue
            grace_s = HANG_NOTICED_S if trouble.fault is Fault.HANG else NOTICED_S
            late_s = trouble.at_s + grace_s
            if late_s < trouble.until_s and any(
                a < trouble.until_s and b > late_s for a, b in open_s
            ):
                self._note(trouble.at_s, f"open {grace_s} s into: {trouble.fault}")
        self._check_quick_restarts(spans)
        self._check_replays(spans)
        last = self.entries[-1][1].state
        settling_s = until_s - SETTLING_S
        has_failed = any(b > settling_s for _, b, state in spans if state is State.FAILED)
        if last is State.WARMING and has_failed:
            return  # trying again after it had said that it failed
        if last not in (State.READY, State.FAILED):
            self._note(until_s, f"still {last} at the end")

    def _check_quick_restarts(self, spans: list[Span]) -> None:
        open_s = _joined([(a, b) for a, b, state in spans if state is State.READY])
        for trouble in self.machine.troubles:
            ended = trouble.fault in (Fault.RESTART, Fault.DIE_SLOWLY)
            if ended and any(
                a < trouble.at_s and b > trouble.at_s + RESTART_NOTICED_S for a, b in open_s
            ):
                self._note(trouble.at_s, "open on, on a process that never was warmed")

    def _check_replays(self, spans: list[Span]) -> None:
        opened_s: dict[int, float] = {}
        for a, _, state in spans:
            if state is State.READY:
                opened_s.setdefault(self.machine.process(a), a)
        for at_s, process in self.machine.waves:
            if at_s > opened_s.get(process, at_s):
                self._note(at_s, f"a wave for process {process}, which had been warmed")
                return


def _joined(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Spans that touch, as one."""
    joined: list[tuple[float, float]] = []
    for a, b in spans:
        if joined and a <= joined[-1][1]:
            joined[-1] = (joined[-1][0], b)
        else:
            joined.append((a, b))
    return joined


def scenario(
    seed: int, rules: tuple[Rule, ...] = (), machine_type: type[Machine] = Machine
) -> list[str]:
    """Run the scenario of this seed; what the gate said wrongly, in words."""
    dice = random.Random(f"gates {seed}")
    case = replace(draw(seed, rules), budget_s=600.0)
    if not expand(case.shapes, case.facts).cells:
        return []
    starts_s = dice.choice((0.0, dice.uniform(0.0, 300.0)))
    troubles: list[Trouble] = []
    at_s = starts_s
    for _ in range(dice.randint(2, 5)):
        at_s += dice.choice((dice.uniform(1, 60), dice.uniform(30, 1500)))
        fault = dice.choice(tuple(Fault))
        shortest_s, longest_s = {
            Fault.HANG: (0.5, dice.choice((20.0, 90.0))),
            Fault.RESTART: (0.2, dice.choice((2.0, 200.0))),
            Fault.CUT: (0.2, 200.0),
            Fault.DIE_SLOWLY: (5.0, 200.0),
        }[fault]
        lasts_s = dice.uniform(shortest_s, longest_s)
        troubles.append(Trouble(at_s, fault, lasts_s))
        at_s += lasts_s
    machine = machine_type(case, starts_s, troubles, tells_start=dice.random() < 0.7)
    diary = Diary(machine)
    until_s = at_s + SETTLING_S
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(_live(machine, diary, until_s))
    diary.close(until_s)
    return [f"seed {seed} {wrong}" for wrong in diary.wrong]


async def _live(machine: Machine, diary: Diary, until_s: float) -> None:
    def replay_for(plan: Plan, nonce: str) -> Replaying:
        diary.plan = plan
        return Replaying(machine, plan)

    def plan_for(facts: EngineFacts) -> Plan:
        return expand(machine.case.shapes, facts)

    conductor = Conductor(
        Policy(url="http://engine:8000", sidecar_version="0", shapes_digest="0"),
        engine=machine,
        plan_for=plan_for,
        replay_for=replay_for,
        utc=anyio.current_time,
        nonce=_counting(),
        on_change=diary.hear,
    )
    with anyio.CancelScope(deadline=until_s):
        await conductor.run()


def _counting() -> Callable[[], str]:
    numbers = iter(range(1_000_000))
    return lambda: f"n{next(numbers)}"

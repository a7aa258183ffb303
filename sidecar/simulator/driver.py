"""The virtual engine on a real clock: a timer for its next event, a queue for every request."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from sidecar.simulator.engine import Emission, Engine, Paid, SimRequest, Step

IN_FLIGHT = 16
"""Of the last steps so many are looked at for one that takes too long: a rank has two at most."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long one step may take, in the engine's seconds, and who hears when it takes longer.

    vLLM's executors of several processes end the engine then (VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS,
    300 by default: [33] v1/executor/multiproc_executor.py).
    """

    limit_s: float
    give_up: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Happened:
    """What one turn of the clock brought: costs and steps are told when they are over."""

    emissions: list[Emission]
    steps: list[Step]
    paid: list[Paid]


class Driver:
    """Advances an engine by the loop's clock; one wall second is 1 / `scale` of its seconds.

    Must be made and used on a running loop. `observe` hears of everything before the requests do,
    so that a log line stands before the token that it delayed.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        scale: float,
        observe: Callable[[Happened], None],
        patience: Patience | None = None,
    ) -> None:
        self.engine = engine
        self._patience = patience
        self._loop = asyncio.get_running_loop()
        self._observe = observe
        self._queues: dict[str, asyncio.Queue[Emission]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = 0.0
        self._scale = scale
        self._pace = 1.0
        self._held = False
        self._anchor_wall_s = self._loop.time()
        self._anchor_s = engine.now_s
        self._paid_told = 0
        self._steps_told = 0
        self._open_steps: list[Step] = []
        self._open_costs: list[Paid] = []

    @property
    def now_s(self) -> float:
        """The engine's time now."""
        if self._held:
            return self._anchor_s
        wall_s = self._loop.time() - self._anchor_wall_s
        return self._anchor_s + wall_s / (self._scale * self._pace)

    @property
    def scale(self) -> float:
        """Wall seconds for each second of the engine."""
        return self._scale * self._pace

    @property
    def in_flight(self) -> int:
        return len(self._queues)

    def submit(self, request: SimRequest, queue: "asyncio.Queue[Emission]") -> None:
        """`queue` brings this request's tokens, at the wall time they are due."""
        self._queues[request.id] = queue
        self.engine.submit(request, self.now_s)
        self._arm()

    def abort(self, request_id: str) -> None:
        """The client has gone; nothing happens if the request has ended."""
        if self._queues.pop(request_id, None) is not None:
            self.engine.abort(request_id, self.now_s)
            self._arm()

    def set_pace(self, factor: float) -> None:
        """From now on everything takes `factor` times as long."""
        self._anchor_s, self._anchor_wall_s = self.now_s, self._loop.time()
        self._pace = factor
        self._arm()

    def hold(self, held: bool) -> None:
        """Stop the engine's time, or let it go on: a stalled worker, or a sleeping engine."""
        if held != self._held:
            self._anchor_s, self._anchor_wall_s = self.now_s, self._loop.time()
            self._held = held
            self._arm()

    def close(self) -> None:
        """The process is gone: no token will come any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._held = True
        self._queues.clear()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_s = self.engine.next_event_s()
        if due_s is None or self._held:
            return
        self._due_s = due_s
        overdue_s = self._overdue_s()
        if self._patience is not None and overdue_s is not None and overdue_s < due_s:
            self._timer = self._loop.call_at(self._wall_s(overdue_s), self._patience.give_up)
        else:
            self._timer = self._loop.call_at(self._wall_s(due_s), self._tick)

    def _wall_s(self, engine_s: float) -> float:
        return self._anchor_wall_s + (engine_s - self._anchor_s) * self.scale

    def _overdue_s(self) -> float | None:
        """When the first of the steps in flight will have taken too long; None: none of them."""
        if self._patience is None:
            return None
        limit_s, now_s = self._patience.limit_s, self.engine.now_s
        return min(
            (
                step.start_s + limit_s
                for step in islice(reversed(self.engine.steps), IN_FLIGHT)
                if step.end_s > now_s and step.end_s - step.start_s > limit_s
            ),
            default=None,
        )

    def _tick(self) -> None:
        self._timer = None
        # The timer may fire a clock tick early: never before what it was set for.
        emissions = self.engine.advance(max(self.now_s, self._due_s))
        self._observe(Happened(emissions, self._ended_steps(), self._ended_costs()))
        for emission in emissions:
            queue = self._queues.get(emission.request_id)
            if queue is not None:
                queue.put_nowait(emission)
                if emission.finished:
                    del self._queues[emission.request_id]
        self._arm()

    def _ended_steps(self) -> list[Step]:
        known = self.engine.steps
        fresh = min(self.engine.steps_made - self._steps_told, len(known))
        self._steps_told = self.engine.steps_made
        self._open_steps += [known[i] for i in range(len(known) - fresh, len(known))]
        now_s = self.engine.now_s
        ended = [step for step in self._open_steps if step.end_s <= now_s]
        self._open_steps = [step for step in self._open_steps if step.end_s > now_s]
        return ended

    def _ended_costs(self) -> list[Paid]:
        self._open_costs += self.engine.ledger[self._paid_told :]
        self._paid_told = len(self.engine.ledger)
        now_s = self.engine.now_s
        ended = [paid for paid in self._open_costs if paid.until_s <= now_s]
        self._open_costs = [paid for paid in self._open_costs if paid.until_s > now_s]
        return ended

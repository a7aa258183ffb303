"""Time as it passes on a simulated engine, with everybody else's requests in it."""

import random
from collections.abc import Callable

from benchmarks.draws import Traffic
from sidecar.simulator.engine import Emission, Engine, SimRequest

_LIMIT_S = 100_000.0

Hearer = Callable[[Emission], set[str]]
"""Hears each emission as it comes; returns the ids of what it has sent because of it."""


class Outside:
    """Everybody else: sends their requests to the engine as time passes."""

    def __init__(self, traffic: Traffic | None, dice: random.Random) -> None:
        self._traffic = traffic
        self._dice = dice
        self._count = 0
        self._next_s = float("inf")
        if traffic is not None:
            self._next_s = dice.expovariate(traffic.rate)

    def rest(self, engine: Engine, until_s: float) -> None:
        """Time passes."""
        while engine.now_s < until_s:
            self._advance(engine, until_s)

    def play(
        self, engine: Engine, pending: set[str], heard: Hearer, *, answers: bool = False
    ) -> None:
        """Until none of `pending` is left, nor of what `heard` has sent.

        Without `answers` it sends nothing, and where nobody else does either, time need not go
        step by step.
        """
        limit_s = _LIMIT_S + engine.now_s
        if self._traffic is None and not answers:
            for emission in engine.run(limit_s):
                heard(emission)
            return
        left = set(pending)
        while left and engine.now_s < limit_s:
            for emission in self._advance(engine, limit_s):
                left |= heard(emission)
                if emission.finished:
                    left.discard(emission.request_id)

    def _advance(self, engine: Engine, limit_s: float) -> list[Emission]:
        """To the next event of the engine or of others."""
        event_s = engine.next_event_s()
        at_s = min(event_s if event_s is not None else limit_s, self._next_s, limit_s)
        if at_s == self._next_s:
            self._submit(engine)
        return engine.advance(at_s)

    def _submit(self, engine: Engine) -> None:
        assert self._traffic is not None
        dice = self._dice
        self._count += 1
        tokens = int(4 * (self._traffic.longest / 4) ** dice.random())
        request = SimRequest(f"user-{self._count}", tokens, dice.randint(1, 60))
        engine.submit(request, self._next_s)
        self._next_s += dice.expovariate(self._traffic.rate)
        if self._next_s > self._traffic.until_s:
            self._next_s = float("inf")

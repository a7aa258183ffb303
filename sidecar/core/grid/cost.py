"""What a plan costs before it is run: waves, requests, tokens, and an estimate in seconds."""

from collections.abc import Iterable
from dataclasses import dataclass

from sidecar.core.grid.cells import Cell, Gait
from sidecar.core.grid.plan import Plan

WARM_PASSES = 3
"""The pass that pays for what is cold, then the two quiet ones that R6 asks for."""


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast the engine is assumed to be, in tokens per second.

    The defaults are round figures for a model of some ten billion parameters on one large GPU.
    `decode` is of one stream: all streams of a wave decode together.
    """

    prefill_tokens_per_s: float = 8_000.0
    decode_tokens_per_s: float = 50.0


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one cell in one pass, of all its gaits, plugs included; or a sum of such."""

    waves: int = 0
    requests: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.waves + other.waves,
            self.requests + other.requests,
            self.prompt_tokens + other.prompt_tokens,
            self.output_tokens + other.output_tokens,
            self.seconds + other.seconds,
        )

    def times(self, count: int) -> "Cost":
        return sum_costs(self for _ in range(count))


def sum_costs(costs: Iterable[Cost]) -> Cost:
    """The sum, from nothing."""
    return sum(costs, Cost())


def cell_cost(cell: Cell, plug_tokens: int | None, speed: Speed) -> Cost:
    """One wave in each of the cell's gaits."""
    total = Cost()
    for gait in cell.gaits:
        plug = (plug_tokens or 0) if gait is Gait.HELD else 0
        prompt_tokens = cell.wave_prompt_tokens + plug
        longest = cell.output_tokens_of(cell.concurrency - 1)
        total += Cost(
            waves=1,
            requests=cell.concurrency + bool(plug),
            prompt_tokens=prompt_tokens,
            output_tokens=cell.wave_output_tokens + bool(plug),
            seconds=prompt_tokens / speed.prefill_tokens_per_s
            + longest / speed.decode_tokens_per_s,
        )
    return total


@dataclass(frozen=True, slots=True)
class PlanCost:
    """`a_pass`: every cell once, in each gait. `once`: the first prompt and the heaviest path.

    `total` is what a warm-up adds to a scale-out on an engine that is warm already; what is cold
    comes on top, and is what the warm-up is there to pay.
    """

    a_pass: Cost
    once: Cost
    total: Cost


def plan_cost(plan: Plan, speed: Speed) -> PlanCost:
    """The cost of a plan with `WARM_PASSES` passes."""
    a_pass = sum_costs(cell_cost(cell, plan.plug_tokens, speed) for cell in plan.cells)
    alone = [cell for cell in (plan.first, plan.heaviest) if cell is not None]
    once = sum_costs(cell_cost(cell, None, speed) for cell in alone)
    return PlanCost(a_pass, once, once + a_pass.times(WARM_PASSES))

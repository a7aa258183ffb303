"""What a plan costs before it is run: waves, requests, tokens, and an estimate in seconds."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from sidecar.core.grid.cells import Cell, Gait, Look, Role
from sidecar.core.grid.plan import Plan

WARM_PASSES = 3
"""The pass that pays for what is cold, then the two quiet ones that R6 asks for."""


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast an engine is, in tokens per second.

    The defaults are round figures for a model of some ten billion parameters on one large GPU.
    `decode` is of one stream: all streams of a wave decode together.
    """

    prefill_tokens_per_s: float = 8_000.0
    decode_tokens_per_s: float = 50.0
    wave_s: float = 0.0
    """What a wave takes beside its tokens: connections, counters, fences."""


@dataclass(frozen=True, slots=True)
class Basis:
    """The speed that an estimate rests on, and where it comes from."""

    speed: Speed = Speed()
    measured: str | None = None
    """When and on what, for people; None: it is assumed."""

    def __str__(self) -> str:
        figures = (
            f"{_rounded(self.speed.prefill_tokens_per_s)} prompt tokens/s and "
            f"{_rounded(self.speed.decode_tokens_per_s)} output tokens/s a stream"
        )
        return f"the assumed {figures}" if self.measured is None else f"{figures}, {self.measured}"


def _rounded(figure: float) -> str:
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:.3g}"


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one cell in one pass, of all its gaits, plugs and primes included; or a sum of such."""

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
        return Cost(
            count * self.waves,
            count * self.requests,
            count * self.prompt_tokens,
            count * self.output_tokens,
            count * self.seconds,
        )

    def on_ranks(self, count: int) -> "Cost":
        """On so many ranks at the same time, which takes no longer than on one."""
        return replace(self.times(count), seconds=self.seconds)


def sum_costs(costs: Iterable[Cost]) -> Cost:
    """The sum, from nothing."""
    return sum(costs, Cost())


def wave_cost(cell: Cell, gait: Gait, plug_tokens: int | None, speed: Speed) -> Cost:
    """One wave. Each request generates one token more than it has decode steps."""
    plug = (plug_tokens or 0) if Look(cell, gait).behind_plug else 0
    primes = cell.concurrency if cell.prime_tokens else 0
    computed = cell.wave_computed_tokens + cell.prime_tokens + plug
    longest = cell.output_tokens_of(cell.concurrency - 1)
    return Cost(
        waves=1,
        requests=cell.requests + primes + bool(plug),
        prompt_tokens=cell.wave_prompt_tokens + cell.prime_tokens + plug,
        output_tokens=cell.wave_output_tokens + primes + bool(plug),
        seconds=computed / speed.prefill_tokens_per_s
        + longest / speed.decode_tokens_per_s
        + speed.wave_s,
    )


@dataclass(frozen=True, slots=True)
class PlanCost:
    """`a_pass`: every cell once, in each gait. `once`: the first prompt and the heaviest path.

    `total` is what a warm-up adds to a scale-out on an engine that is warm already; what is cold
    comes on top, and is what the warm-up is there to pay.
    """

    a_pass: Cost
    once: Cost
    total: Cost


def planned_cost(plan: Plan, cell: Cell, speed: Speed) -> Cost:
    """Of one cell of the plan, in each gait and on each rank; R1's first and R10 have no plug."""
    plug_tokens = plan.plug_tokens if cell.role is Role.GRID else None
    a_wave_each = (wave_cost(cell, gait, plug_tokens, speed) for gait in cell.gaits)
    return sum_costs(a_wave_each).on_ranks(len(plan.ranks))


def plan_cost(plan: Plan, speed: Speed) -> PlanCost:
    """The cost of a plan with `WARM_PASSES` passes."""
    a_pass = sum_costs(planned_cost(plan, cell, speed) for cell in plan.cells)
    alone = (cell for cell in (plan.first, plan.heaviest) if cell is not None)
    once = sum_costs(planned_cost(plan, cell, speed) for cell in alone)
    return PlanCost(a_pass, once, once + a_pass.times(WARM_PASSES))


def over_budget(plan: Plan, basis: Basis, budget_s: float) -> str | None:
    """One sentence if the budget can't be met, as far as is known; None: it can."""
    needed_s = plan_cost(plan, basis.speed).total.seconds
    if needed_s <= budget_s:
        return None
    return (
        f"the grid needs about {needed_s:.0f} s in {WARM_PASSES} passes at {basis}, and the budget "
        f"is {budget_s:g} s: raise budget.total_s in the shapes file, or leave cells out"
    )

"""The truth: what a wave would pay now, told from the simulator's ledger and never from latency."""

import random
from dataclasses import dataclass, replace

from benchmarks.draws import Case
from benchmarks.virtual import blocks_of, request_of
from sidecar.core.grid.cells import Cell, Converge, Gait
from sidecar.simulator.engine import Emission, Engine

_LEAD_STARTED_S = 1e-7
"""An ideal engine starts its step at once; the rest comes right after."""

_SALTS = 1 << 40
"""Of forks, so that none is the salt of a wave."""


@dataclass(frozen=True, slots=True)
class Owed:
    """What one replay on a fork paid."""

    gait: Gait
    before_s: float
    """In steps that delayed a first token."""
    after_s: float
    """In the steps after the wave's last first token."""
    rules: tuple[str, ...]
    is_cold: bool
    """More than τ: seen by a user of this cell."""

    @property
    def paid_s(self) -> float:
        return self.before_s + self.after_s


@dataclass(frozen=True, slots=True)
class _Run:
    before_s: float
    after_s: float
    decode_s: float
    """In steps without a prefill. With launches ahead the first of them delays a first token."""
    first_s: float
    gap_s: float
    rules: tuple[str, ...]


def settled(engine: Engine) -> Engine:
    """A fork in which whoever was being served has gone."""
    fork = engine.fork()
    fork.run(fork.now_s + 1e6)
    return fork


def owed(case: Case, engine: Engine, cell: Cell, gait: Gait, converge: Converge) -> Owed:
    """Replay the cell on a fork of an idle engine, with ideal timing: led, the rest comes during
    the lead's first step; held, all are in one step. No noise, no parsing, nobody else.

    τ is that of the fork's own warm figures, not of the verdict's: a judge can't widen it.
    """
    config = replace(
        engine.config,
        noise_small=0.0,
        noise_large=0.0,
        outlier_rate=0.0,
        wake_s=0.0,
        parse_base_s=0.0,
        parse_s_per_token=0.0,
    )
    fork = engine.fork(seed=case.seed, config=config)
    offsets = [0.0] * cell.concurrency
    if gait is Gait.LED:
        offsets[1:] = [_LEAD_STARTED_S] * (cell.concurrency - 1)
    return _owed(case, fork, cell, gait, offsets, converge)


def owed_at_random(
    case: Case, engine: Engine, cell: Cell, dice: random.Random, converge: Converge
) -> Owed:
    """Replay the cell on a fork as users come: within a time like that of one prefill."""
    fork = engine.fork(seed=dice.randrange(1 << 30))
    config = fork.config
    within_s = dice.choice((1.0, 3.0)) * (
        config.step_base_s + config.prefill_s_per_token * cell.wave_prompt_tokens
    )
    offsets = sorted(within_s * dice.random() for _ in range(cell.concurrency))
    return _owed(case, fork, cell, Gait.LED, offsets, converge)


def _owed(
    case: Case, fork: Engine, cell: Cell, gait: Gait, offsets: list[float], converge: Converge
) -> Owed:
    first = _play(case, fork, cell, offsets)
    if first.before_s + first.after_s <= converge.floor_s:
        return Owed(gait, first.before_s, first.after_s, first.rules, False)
    warm = _play(case, fork, cell, offsets)
    for _ in range(3):
        if not warm.rules:
            break
        warm = _play(case, fork, cell, offsets)
    if cell.captured:  # it promises its decode batch, however its prompts were batched
        is_cold = first.decode_s > converge.tolerance_s(warm.gap_s)
    else:
        is_cold = first.before_s > converge.tolerance_s(
            warm.first_s
        ) or first.after_s > converge.tolerance_s(warm.gap_s)
    return Owed(gait, first.before_s, first.after_s, first.rules, is_cold)


def _play(case: Case, fork: Engine, cell: Cell, offsets: list[float]) -> _Run:
    """One wave, its prefixes in the cache; the prompt that arrives comes when all others decode,
    and its costs are those from then on."""
    salts = [_SALTS + fork.steps_made * 64 + i for i in range(len(offsets))]
    if cell.prefix_tokens:
        _prime(case, fork, cell, salts)
    from_s = fork.now_s + 1.0
    for index, offset_s in enumerate(offsets):
        blocks = None
        if cell.prefix_tokens:
            blocks = blocks_of(case, salts[index], cell.prompt_tokens, cell.prefix_tokens)
        id_ = f"truth-{fork.steps_made}-{index}"
        tokens = cell.output_tokens_of(index)
        request = request_of(case, cell, id_, cell.prompt_tokens, tokens, blocks)
        fork.submit(request, from_s + offset_s)
    out: list[Emission] = []
    if cell.arriving_tokens:
        while sum(e.is_first for e in out) < cell.concurrency:
            out += fork.advance(fork.next_event_s() or 0.0)
        from_s = fork.now_s + _LEAD_STARTED_S
        id_ = f"truth-{fork.steps_made}-arriving"
        fork.submit(request_of(case, cell, id_, cell.arriving_tokens, 1), from_s)
    out += fork.run(fork.now_s + 1e6)
    first_s = max(e.at_s for e in out if e.is_first)
    ledger = [paid for paid in fork.ledger if paid.at_s >= from_s]
    before_s = sum(p.cost_s for p in ledger if p.at_s < first_s)
    after_s = sum(p.cost_s for p in ledger if p.at_s >= first_s)
    rules = tuple(f"{p.rule}{list(p.key)}" for p in ledger)
    decoding = {step.start_s for step in fork.steps if not step.context_requests}
    decode_s = sum(p.cost_s for p in ledger if p.at_s in decoding)
    return _Run(before_s, after_s, decode_s, first_s - from_s, _worst_gap(out, first_s), rules)


def _prime(case: Case, fork: Engine, cell: Cell, salts: list[int]) -> None:
    for salt in salts:
        blocks = blocks_of(case, salt, cell.prefix_tokens, cell.prefix_tokens)
        request = request_of(case, cell, f"prime-{salt}", cell.prefix_tokens, 1, blocks)
        fork.submit(request, fork.now_s)
        fork.run(fork.now_s + 1e6)


def _worst_gap(out: list[Emission], after_s: float) -> float:
    last: dict[str, float] = {}
    worst_s = 0.0
    for emission in out:
        if emission.request_id in last and emission.at_s > after_s:
            worst_s = max(worst_s, emission.at_s - last[emission.request_id])
        last[emission.request_id] = emission.at_s
    return worst_s

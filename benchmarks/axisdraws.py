"""The engines of `axes.py`: what is cold along one axis, and the shapes files with and without it.

Each axis has a way to write itself into a shapes file and rules that only its requests pay for.
Rules of other families stand beside them by chance, for an axis is never alone.
"""

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.draws import Case, beside_rules, draw, log_uniform
from sidecar.core.facts import EngineFacts
from sidecar.core.grid.shapes import parse
from sidecar.simulator.cold import Condition, Rule
from sidecar.simulator.log import capture_sizes
from sidecar.simulator.model import EngineConfig
from sidecar.simulator.profile import Profile

Tree = dict[str, Any]
"""A shapes file before it is written."""

_PREFILL = Condition("prefill", (True,))
_CONTEXT = Condition("has_context", (True,))


@dataclass(frozen=True, slots=True)
class Drawn:
    """One axis of one engine."""

    rules: tuple[Rule, ...]
    declared: Tree
    """Put over the plain file."""
    undeclared: Tree = field(default_factory=dict)
    """The same for the file that leaves it out."""


@dataclass(frozen=True, slots=True)
class Base:
    """What every file of one engine has: a grid of short prompts, on and off the powers of two."""

    concurrency: int
    short: int
    long: int

    @property
    def tree(self) -> Tree:
        return {
            "grid": {
                "concurrency": [1, self.concurrency],
                "prompt_tokens": [self.short, self.long],
                "output_tokens": [8],
            },
            "on_unfit": "skip",
        }


def draw_axis(axis: str, seed: int) -> tuple[Case, Case]:
    """The engine of this seed with the axis declared, and without."""
    dice = random.Random(f"{axis} {seed}")
    case = draw(seed)
    longest = max(case.config.max_model_len, 4 * case.config.max_num_batched_tokens)
    limits = {"max_model_len": longest, "kv_cache_tokens": 16 * longest}
    plain = {"draft_tokens": 0, "ranks": 1, **limits}
    config = replace(case.config, **plain | CONFIGS.get(axis, lambda _: {})(dice))
    base = Base(dice.choice((2, 4, 8)), 16 * dice.randint(1, 8), 16 * dice.randint(10, 30))
    drawn = AXES[axis](dice, config, base)
    facts = EngineFacts(
        model="sim",
        max_model_len=config.max_model_len,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        kv_cache_tokens=config.kv_cache_tokens,
        ranks=config.ranks,
        speculation=config.draft_tokens > 0,
        draft_tokens=config.draft_tokens,
        block_size=config.block_size if dice.random() < 0.9 else None,
        prefix_caching=True,
        capture_sizes=capture_sizes(Profile(engine=config)),
        cudagraphs_off=config.enforce_eager,
    )
    first = Rule("first_request", ("rank",), cost_s=(0.5, 3.0))
    traffic = case.traffic
    if traffic is not None and (dice.random() < 0.5 or traffic.until_s == float("inf")):
        traffic = None
    case = replace(
        case,
        config=config,
        facts=facts,
        traffic=traffic,
        rules=(first, *drawn.rules, *beside_rules(dice, config)),
        budget_s=3600.0,
        broken=None,
        refusals=0.0,
    )
    declared, undeclared = (
        replace(case, shapes=parse(json.dumps(_over(base.tree, more)), "drawn"))
        for more in (drawn.declared, drawn.undeclared)
    )
    return declared, undeclared


def _over(tree: Tree, more: Mapping[str, Any]) -> Tree:
    """`more` put over `tree`, mappings into mappings."""
    both = dict(tree)
    for name, value in more.items():
        old = both.get(name)
        both[name] = _over(old, value) if isinstance(old, dict) else value
    return both


def _rule(
    dice: random.Random,
    name: str,
    keys: tuple[tuple[str, ...], ...],
    when: tuple[Condition, ...] = (),
    feature: str | None = None,
) -> Rule:
    """Costs that a user feels: what is below τ no judge is asked to see."""
    low = log_uniform(dice, 0.3, 10.0)
    cost_s = (low, low * log_uniform(dice, 1.0, 5.0))
    return Rule(name, dice.choice(keys), when, cost_s, dice.random() < 0.5, None, feature)


def _variant(base: Base, fields: Tree, *, alone: bool = False) -> Tree:
    """Cells of a variant beside the plain grid."""
    counts = (1,) if alone else (1, base.concurrency)
    cells = [{"concurrency": c, "prompt_tokens": base.short, "variant": "own"} for c in counts]
    return {"variants": {"own": fields}, "cells": cells}


# --- the axes ------------------------------------------------------------------------------------


def _sampling(dice: random.Random, config: EngineConfig, base: Base) -> Drawn:
    profile = dice.choice(
        ("greedy", "top_k", "top_p", "top_k_top_p", "min_p", "penalties", "seeded")
    )
    keys: tuple[tuple[str, ...], ...] = ((), ("reqs_class",), ("sampled",))
    rule = _rule(dice, "by_sampling", keys, feature=f"sampler:{profile}")
    return Drawn((rule,), _variant(base, {"sampling": profile}))


def _logprobs(dice: random.Random, config: EngineConfig, base: Base) -> Drawn:
    """By the power of two; another number may be declared in both files."""
    number, other = dice.sample((1, 5, 20), 2)
    feature = dice.choice(("logprobs", "logprobs_pow2"))
    rule = _rule(dice, "by_logprobs", ((), ("reqs_class",)), feature=feature)
    own = _variant(base, {"logprobs": number})
    if dice.random() < 0.5:
        return Drawn((rule,), own)
    cell = {"prompt_tokens": base.short, "variant": "other"}
    both = _over(own, {"variants": {"other": {"logprobs": other}}})
    both["cells"] = [*own["cells"], cell]
    return Drawn((rule,), both, {"variants": {"other": {"logprobs": other}}, "cells": [cell]})


def _prompt_logprobs(dice: random.Random, config: EngineConfig, base: Base) -> Drawn:
    rule = _rule(dice, "by_prompt_logprobs", ((), ("tokens_class",)), feature="prompt_logprobs")
    return Drawn((rule,), _variant(base, {"prompt_logprobs": dice.randint(0, 5)}, alone=True))


def _structured(dice: random.Random, config: EngineConfig, base: Base) -> Drawn:
    """The bitmask's kernel, and each grammar; another grammar may be declared in both files."""
    kind, other = dice.sample(("json", "regex", "choice", "grammar"), 2)
    bitmask = _rule(dice, "by_bitmask", ((), ("reqs_class",)), feature="grammar")
    compiled = _rule(dice, "by_grammar", ((),), feature="grammar_text")
    own = _variant(base, {"structured_outputs": kind})
    if dice.random() < 0.5:
        return Drawn((bitmask, compiled), own)
    cell = {"prompt_tokens": base.short, "variant": "other"}
    variants = {"other": {"structured_outputs": other}}
    both = _over(own, {"variants": variants})
    both["cells"] = [*own["cells"], cell]
    return Drawn((bitmask, compiled), both, {"variants": variants, "cells": [cell]})


def _context(dice: random.Random, config: EngineConfig, base: Base) -> Drawn:
    """What is left of a prompt behind its hit. One full chunk with a context is sent to every
    engine (R1's first prompt), so that having one is no more cold by itself."""
    keys = (("tokens_pow2",), ("tokens_class", "tokens_pow2"), ("tokens",), ("reqs", "tokens"))
    rule = _rule(dice, "by_context", keys, (_CONTEXT, _PREFILL))
    hits = []
    for concurrency in (1, base.concurrency):
        prefix = config.block_size * dice.randint(1, 20)
        fresh = dice.choice((1, 3, 7, 16, 33, 40))
        hits.append(
            {
                "prefix_tokens": prefix + dice.choice((0, 0, 5)),
                "prompt_tokens": prefix + 5 + fresh,
                "concurrency": concurrency,
            }
        )
    return Drawn((rule,), {"special": {"prefix_hit": hits}})


def _chunk(dice: random.Random, config: EngineConfig, base: Base) -> Drawn:
    keys = (("tokens_class",), ("tokens_pow2",), ("tokens",), ("tokens_mod16",))
    rule = _rule(dice, "by_chunk", keys, (_CONTEXT, _PREFILL))
    return Drawn((rule,), {"special": {"chunk_crossing": dice.choice(([1], [1, 2], [2]))}})


def _mixed(dice: random.Random, config: EngineConfig, base: Base) -> Drawn:
    """One that decodes beside a prefill is in every led wave: cold is what needs more of them."""
    keys = (("decode_reqs",), ("prefill_reqs", "decode_reqs"), ("decode_reqs", "tokens_pow2"))
    when = (Condition("mixed", (True,)), Condition("decode_reqs", low=2))
    rule = _rule(dice, "by_mixed", keys, when)
    mixed = {
        "concurrency": dice.randint(2, 8),
        "arriving_tokens": dice.choice((100, 513, config.max_num_batched_tokens + 1)),
        "prompt_tokens": dice.choice((1, 16, 33)),
    }
    return Drawn((rule,), {"special": {"mixed": [mixed]}})


def _off_grid(dice: random.Random, config: EngineConfig, base: Base) -> Drawn:
    """The grid's lengths are multiples of 16, and so are its steps but those with a decode."""
    keys = (("tokens_odd",), ("tokens_class",), ("tokens_mod16",), ("tokens_class", "reqs_class"))
    rule = _rule(dice, "by_rest", keys, (_PREFILL, Condition("mixed", (False,))))
    return Drawn((rule,), {"special": {"off_grid": True}})


def _cudagraph(dice: random.Random, config: EngineConfig, base: Base) -> Drawn:
    when = (Condition("prefill", (False,)), Condition("above_capture", (False,)))
    return Drawn(
        (_rule(dice, "first_replay", (("padded",),), when),), {"special": {"cudagraph": True}}
    )


def _drafts(dice: random.Random, config: EngineConfig, base: Base) -> Drawn:
    """One of the two texts is declared in both files."""
    keys = (("drafts",), ("drafts", "reqs"), ("accepted_pow2",), ("drafts", "tokens_class"))
    rule = _rule(dice, "by_drafts", keys, (Condition("decode", (True,)),))
    known = dice.choice(("accepted", "rejected"))
    grid = {"concurrency": [1, 2], "output_tokens": [32]}
    both = {"grid": {**grid, "drafts": ["accepted", "rejected"]}}
    return Drawn((rule,), both, {"grid": {**grid, "drafts": [known]}})


def _rank(dice: random.Random, config: EngineConfig, base: Base) -> Drawn:
    """Every process has its own caches: whatever is cold, is so on each."""
    rule = _rule(dice, "by_rank", (("tokens_class",), ("reqs",), ("rank",)))
    return Drawn((rule,), {"ranks": "all"}, {"ranks": [0]})


AXES: Mapping[str, Callable[[random.Random, EngineConfig, Base], Drawn]] = {
    "sampling": _sampling,
    "logprobs": _logprobs,
    "prompt_logprobs": _prompt_logprobs,
    "structured": _structured,
    "context": _context,
    "chunk": _chunk,
    "mixed": _mixed,
    "off_grid": _off_grid,
    "cudagraph": _cudagraph,
    "drafts": _drafts,
    "rank": _rank,
}

CONFIGS: Mapping[str, Callable[[random.Random], dict[str, Any]]] = {
    "cudagraph": lambda dice: {
        "enforce_eager": False,
        "max_num_seqs": dice.choice((8, 16, 32)),
        "capture_max": dice.choice((64, 256)),
    },
    "drafts": lambda dice: {"draft_tokens": dice.choice((1, 2, 3, 5))},
    "rank": lambda dice: {"ranks": dice.choice((2, 2, 3))},
}
"""What an engine of this axis has to be like."""

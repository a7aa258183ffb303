"""Engines for the truth harness: what is cold in them, how they time, who else uses them."""

import random
from dataclasses import dataclass, replace

from sidecar.core.facts import EngineFacts
from sidecar.core.grid.cells import Cell, Endpoint, Role, Variant
from sidecar.core.grid.shapes import OnUnfit, Shapes
from sidecar.simulator.cold import Condition, Rule
from sidecar.simulator.model import EngineConfig

FEATURES = {
    "completions": frozenset[str](),
    "chat": frozenset({"sampler:top_p"}),
    "logprobs": frozenset({"logprobs:5"}),
    "json": frozenset({"grammar:json", "sampler:top_p"}),
}
"""What the requests of a variant carry beside their length."""

VARIANTS = {
    name: Variant(name, Endpoint.CHAT if name in ("chat", "json") else Endpoint.COMPLETIONS)
    for name in FEATURES
}


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests of others: a Poisson stream, as long as `until_s` of the engine's life."""

    rate: float
    until_s: float
    longest: int


@dataclass(frozen=True, slots=True)
class Client:
    """How the sidecar's own side times: seconds."""

    body_s: float
    """Between two bodies written."""
    jitter_s: float
    """Of each body's and each event's way, uniform from 0."""
    scrape_s: float
    """Spent around every wave."""


@dataclass(frozen=True, slots=True)
class Case:
    """One engine with all that happens to it."""

    seed: int
    config: EngineConfig
    rules: tuple[Rule, ...]
    shapes: Shapes
    facts: EngineFacts
    client: Client
    traffic: Traffic | None
    budget_s: float
    broken: int | None
    """The cell (its place in the shapes) that answers 500; None: none does."""
    refusals: float
    """Share of waves that are answered 503."""


def draw(seed: int, rules: tuple[Rule, ...] = ()) -> Case:
    """The engine of this seed. With `rules`, those are cold, and nothing else is."""
    dice = random.Random(f"case {seed}")
    # On dice of its own: it came later, and the other draws of a seed are to stay what they were.
    ahead = random.Random(f"executor {seed}").random() < 0.5
    config = replace(_config(dice), launches_ahead=ahead)
    shapes = _shapes(dice, config)
    known = dice.random() < 0.6
    facts = EngineFacts(
        max_model_len=config.max_model_len,
        max_num_seqs=config.max_num_seqs if known or dice.random() < 0.3 else None,
        max_num_batched_tokens=config.max_num_batched_tokens if known else None,
        kv_cache_tokens=config.kv_cache_tokens if dice.random() < 0.9 else None,
        ranks=config.ranks,
        speculation=config.draft_tokens > 0,
        draft_tokens=config.draft_tokens if known or not config.draft_tokens else None,
    )
    traffic = None
    if dice.random() < 0.2:
        forever = dice.random() < 0.4
        until_s = float("inf") if forever else dice.uniform(1.0, 120.0)
        longest = config.max_model_len // 2
        served_s = longest / 4 * config.prefill_s_per_token + 30 * (
            config.step_base_s + config.decode_step_s
        )
        rate = min(log_uniform(dice, 0.02, 4.0), 0.5 / served_s)  # it must not drown
        traffic = Traffic(rate, until_s, longest)
    return Case(
        seed=seed,
        config=config,
        rules=rules or _rules(dice, config),
        shapes=shapes,
        facts=facts,
        client=Client(
            log_uniform(dice, 2e-5, 3e-4), log_uniform(dice, 2e-4, 4e-3), dice.uniform(0.01, 0.1)
        ),
        traffic=traffic,
        budget_s=dice.choice((600.0, 1800.0, 3600.0)),
        broken=dice.randrange(len(shapes.cells)) if dice.random() < 0.03 else None,
        refusals=dice.uniform(0.05, 0.3) if dice.random() < 0.03 else 0.0,
    )


def log_uniform(dice: random.Random, low: float, high: float) -> float:
    """Log-uniform."""
    return low * (high / low) ** dice.random()


def _config(dice: random.Random) -> EngineConfig:
    batched_tokens = dice.choice((512, 1024, 2048, 2048, 4096, 8192, 8192))
    longest = dice.choice((2048, 4096, 8192, 16_384, 32_768))
    eager = dice.random() < 0.15
    return EngineConfig(
        max_model_len=longest,
        max_num_seqs=dice.choice((8, 16, 64, 256, 256)),
        max_num_batched_tokens=batched_tokens,
        kv_cache_tokens=longest * dice.choice((2, 4, 16)),
        capture_max=dice.choice((64, 256, 512)),
        enforce_eager=eager,
        draft_tokens=dice.choice((1, 2, 3, 5, 5)) if dice.random() < 0.4 else 0,
        top_k=dice.choice((1, 2, 4, 8)),
        ranks=2 if dice.random() < 0.02 else 1,
        prefill_s_per_token=log_uniform(dice, 4e-6, 1e-4),
        decode_step_s=log_uniform(dice, 0.0005, 0.02),
        step_base_s=log_uniform(dice, 0.003, 0.03),
        wake_s=log_uniform(dice, 0.0002, 0.003),
        parse_base_s=log_uniform(dice, 0.0001, 0.001),
        parse_s_per_token=log_uniform(dice, 3e-8, 5e-7),
        noise_small=dice.uniform(0.0, 0.5),
        noise_large=dice.uniform(0.0, 0.3),
        outlier_rate=dice.choice((0.0, 0.001, 0.005)),
        outlier_factor=dice.uniform(2.0, 4.0),
    )


def _shapes(dice: random.Random, config: EngineConfig) -> Shapes:
    concurrencies = dice.sample((1, 2, 3, 4, 6, 8, 12, 16), dice.randint(2, 3))
    if config.draft_tokens:
        concurrencies[0] = dice.choice((8, 12, 16))  # wide: drafts end its requests apart
    lengths = dice.sample((1, 15, 16, 17, 64, 65, 350, 351, 512, 513, 514, 777, 1000), 2)
    long = dice.randint(600, max(601, config.max_model_len // 3))
    names = ["completions", *dice.sample(("chat", "logprobs", "json"), dice.randint(0, 1))]
    cells = [
        Cell(c, length, dice.choice((4, 8, 16)), VARIANTS[name])
        for name in names
        for c in sorted(concurrencies)
        for length in (*sorted(lengths), long)
    ]
    dice.shuffle(cells)
    cells = cells[: dice.randint(5, 12)]
    if dice.random() < 0.5:
        cells.append(Cell(dice.choice((4, 8, 16)), 16, 8, VARIANTS["completions"], ramp=1))
    cells = list(dict.fromkeys(cells))
    cells.sort(key=lambda cell: cell.wave_prompt_tokens)  # as people write: small first
    heaviest = None
    if dice.random() < 0.4:
        tokens = config.max_model_len - 40
        heaviest = Cell(1, tokens, 8, VARIANTS["completions"], role=Role.HEAVIEST)
    return Shapes(tuple(cells), heaviest, on_unfit=OnUnfit.SKIP, name="drawn")


# --- what is cold --------------------------------------------------------------------------------


def _rules(dice: random.Random, config: EngineConfig) -> tuple[Rule, ...]:
    """Several families at once, each by its own chance; costs from 20 ms to minutes."""
    silent = dice.random() < 0.3
    rules = [Rule("first_request", ("rank",), cost_s=_cost(dice), logged=False)]
    families = [_by_tokens(dice)]
    if dice.random() < 0.5:
        families.append(_by_requests(dice))
    if dice.random() < (0.95 if config.draft_tokens else 0.5):
        families.append(_by_decode(dice, config))
    if dice.random() < 0.3:
        families.append(_by_context(dice))
    if dice.random() < 0.35:
        families.append(_by_high_water(dice))
    if dice.random() < 0.3:
        feature = dice.choice(("sampler", "logprobs", "grammar"))
        keys = dice.choice(((), ("reqs_class",), ("sampled",)))
        families.append(Rule(f"by_{feature}", keys, feature=feature))
    if config.enforce_eager:
        keys = dice.choice((("tokens",), ("tokens_pow2", "tokens_class"), ("padded", "reqs_class")))
        families.append(Rule("by_eager", keys, (Condition("eager", (True,)),)))
    if config.draft_tokens:
        keys = dice.choice(((), ("reqs",), ("tokens_class",)))
        families.append(Rule("by_drafts", keys, (Condition("drafts", ("some", "all")),)))
    for rule in families:
        rules.append(_priced(dice, rule, logged=not silent and dice.random() < 0.7))
    return tuple(rules)


def beside_rules(dice: random.Random, config: EngineConfig) -> tuple[Rule, ...]:
    """Up to two families for an engine whose first coldness is another one."""
    families = []
    if dice.random() < 0.4:
        families.append(_by_tokens(dice))
    if dice.random() < 0.25:
        families.append(dice.choice((_by_high_water, _by_context, _by_requests))(dice))
    return tuple(_priced(dice, rule, logged=dice.random() < 0.7) for rule in families)


def _priced(dice: random.Random, rule: Rule, *, logged: bool) -> Rule:
    return Rule(rule.name, rule.key, rule.when, _cost(dice), logged, rule.high_water, rule.feature)


def _cost(dice: random.Random) -> tuple[float, float]:
    """A range: narrow or wide, most of them of seconds, some of minutes, some hardly seen."""
    low = log_uniform(dice, 0.02, 20.0)
    return (low, min(low * log_uniform(dice, 1.0, 20.0), 180.0))


def _by_tokens(dice: random.Random) -> Rule:
    keys = (
        ("tokens_class", "tokens_pow2"),
        ("moe_aligned", "tokens_pow2"),
        ("tokens_odd",),
        ("tokens_mod16",),
        ("tokens_class", "above_capture"),
        ("tokens",),
        ("padded",),
        ("tokens_pow2", "reqs_class"),
    )
    when = dice.choice(
        (
            (Condition("prefill", (True,)),),
            (Condition("prefill", (True,)), Condition("above_capture", (True,))),
            (),
        )
    )
    return Rule("by_tokens", dice.choice(keys), when)


def _by_requests(dice: random.Random) -> Rule:
    keys = (
        ("reqs",),
        ("reqs_class",),
        ("reqs_pow2",),
        ("prefill_reqs",),
        ("sampled",),
        ("reqs_pow2", "tokens_pow2"),
        ("prefill_reqs", "decode_reqs"),
    )
    return Rule("by_requests", dice.choice(keys))


def _by_decode(dice: random.Random, config: EngineConfig) -> Rule:
    """Where drafts end requests apart, how many are left is the key that is hard to meet."""
    keys = [("decode_reqs",), ("decode_reqs",), ("decode_reqs", "context_pow2")]
    if not config.draft_tokens:
        keys += [("padded",), ("tokens_class",)]
    when = dice.choice(
        (
            (Condition("decode", (True,)),),
            (Condition("decode", (True,)), Condition("prefill", (False,))),
        )
    )
    return Rule("by_decode", dice.choice(keys), when)


def _by_context(dice: random.Random) -> Rule:
    keys = (("context_pow2",), ("context_long",), ("has_context", "context_long"), ("mixed",))
    return Rule("by_context", dice.choice(keys))


def _by_high_water(dice: random.Random) -> Rule:
    """A new maximum makes all of the rule's keys cold again."""
    keys = (
        ("tokens_class", "tokens_pow2"),
        ("tokens",),
        ("reqs",),
        ("decode_reqs",),
        ("tokens_odd",),
        ("padded",),
    )
    marks = ("tokens", "tokens", "reqs", "prefill_reqs", "prefill_tokens", "context_pow2")
    return Rule("by_high_water", dice.choice(keys), high_water=dice.choice(marks))

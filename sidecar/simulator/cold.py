"""What is cold in a simulated engine: rules as data, each by itself, each paid once per key.

A rules file (read by `rulesfile.py`) is YAML or JSON, a list of rules or `{rules: [...]}`:

    - name: moe_align             # unique; also names the kernel in log lines
      key: [tokens_pow2, moe_aligned]
      when: {prefill: true, tokens: {min: 513}}
      cost_s: [0.2, 5]            # or one number; drawn per key, log-uniform, from the seed
      logged: true                # writes a JIT line after the step that paid
      high_water: false           # true (= tokens) or a feature: a new maximum forgets the keys
      feature: null               # e.g. `sampler`: one payment per request feature `sampler:…`

A rule holds for a step when every condition of `when` does: a plain value is equality, a list is
"one of", `{min, max}` a closed range. Its key is the tuple of the named features of that step; a
key that this rank has not met since its process started (or since the last new high-water mark)
makes the step longer by its cost. `key: []` is paid once. With `feature`, the rule holds only for
steps that sample for a request which carries that feature or one that begins with it and `:`.

Features of a step (numbers unless said otherwise):
tokens, tokens_pow2 (next power of two), tokens_class (one|mod16|other), tokens_mod16, tokens_odd
(bool), padded (next captured size; above it: tokens), above_capture (bool), reqs, reqs_pow2,
reqs_class (one|mod16|other), prefill (bool), prefill_reqs, prefill_tokens, decode (bool),
decode_reqs, mixed (bool), sampled (requests that get a token), has_context (bool: a continued
chunk or a prefix hit prefills), context_pow2 (longest context), context_long
(bool: longer than max_num_batched_tokens), moe_aligned (bool: tokens × top_k is a multiple of 16),
drafts (off|none|some|all accepted), accepted (tokens), accepted_pow2, eager (bool), rank.

Features of a request (`feature`): sampler:greedy|random|top_k|top_p|top_k_top_p|min_p|seeded|
penalties|n|logit_bias|bad_words|allowed_token_ids, logprobs:N, logprobs_pow2:N, prompt_logprobs:N,
grammar:KIND (json, regex …), grammar_text:HASH (each constraint its own).
"""

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

Value = bool | int | str


class StepShape(NamedTuple):
    """What a step is made of: all that a cold rule may look at. Also its key in memos."""

    prefill_reqs: int
    prefill_tokens: int
    decode_reqs: int
    decode_tokens: int
    sampled: int
    has_context: bool
    context_pow2: int
    accepted: int
    features: frozenset[str]


@dataclass(frozen=True, slots=True)
class Terms:
    """The engine's constants that features depend on."""

    max_num_batched_tokens: int
    capture_max: int
    top_k: int
    draft_tokens: int
    eager: bool


@dataclass(frozen=True, slots=True)
class Condition:
    """One line of `when`: the feature is one of `values`, or lies in [low, high]."""

    feature: str
    values: tuple[Value, ...] = ()
    low: float | None = None
    high: float | None = None

    def holds(self, value: Value) -> bool:
        if self.values:
            return value in self.values
        number = float(value) if not isinstance(value, str) else float("nan")
        return not (
            (self.low is not None and not number >= self.low)
            or (self.high is not None and not number <= self.high)
        )


@dataclass(frozen=True, slots=True)
class Rule:
    """One cold rule; see the module's head. `cost_s` is (lowest, highest)."""

    name: str
    key: tuple[str, ...] = ()
    when: tuple[Condition, ...] = ()
    cost_s: tuple[float, float] = (0.5, 0.5)
    logged: bool = False
    high_water: str | None = None
    feature: str | None = None

    def cost_of(self, key: tuple[Value, ...], seed: int) -> float:
        """Seconds for one key: the same for the same seed, in a fork too."""
        low, high = self.cost_s
        if low == high:
            return low
        draw = random.Random(f"{seed}/{self.name}/{key}").random()
        return float(low * (high / low) ** draw)


class Due(NamedTuple):
    """A cost that a step has to pay now."""

    rule: Rule
    key: tuple[Value, ...]


def next_pow2(number: int) -> int:
    return 1 << (number - 1).bit_length() if number > 1 else number


def size_class(number: int) -> str:
    """How Triton specialises an integer argument: exactly 1, divisible by 16, or neither."""
    return "one" if number == 1 else "other" if number % 16 else "mod16"


def captured_size(tokens: int, largest: int) -> int:
    """The captured graph a step of `tokens` is padded to (vLLM 0.33 config/vllm.py: 1, 2, 4, then
    by 8 to 256, then by 16); `tokens` itself above the largest."""
    if tokens > largest:
        return tokens
    if tokens <= 4:
        return next_pow2(tokens)
    stride = 8 if tokens <= 248 else 16
    return min(-(-tokens // stride) * stride, largest)


def step_features(shape: StepShape, terms: Terms, rank: int) -> dict[str, Value]:
    """The named features of a step."""
    tokens = shape.prefill_tokens + shape.decode_tokens
    reqs = shape.prefill_reqs + shape.decode_reqs
    largest = 0 if terms.eager else terms.capture_max
    drafted = terms.draft_tokens * shape.decode_reqs
    return {
        "tokens": tokens,
        "tokens_pow2": next_pow2(tokens),
        "tokens_class": size_class(tokens),
        "tokens_mod16": tokens % 16,
        "tokens_odd": tokens % 2 == 1,
        "padded": captured_size(tokens, largest),
        "above_capture": tokens > largest,
        "reqs": reqs,
        "reqs_pow2": next_pow2(reqs),
        "reqs_class": size_class(reqs),
        "prefill": shape.prefill_reqs > 0,
        "prefill_reqs": shape.prefill_reqs,
        "prefill_tokens": shape.prefill_tokens,
        "decode": shape.decode_reqs > 0,
        "decode_reqs": shape.decode_reqs,
        "mixed": shape.prefill_reqs > 0 and shape.decode_reqs > 0,
        "sampled": shape.sampled,
        "has_context": shape.has_context,
        "context_pow2": shape.context_pow2,
        "context_long": shape.context_pow2 > terms.max_num_batched_tokens,
        "moe_aligned": tokens * terms.top_k % 16 == 0,
        "drafts": _drafts(drafted, shape.accepted),
        "accepted": shape.accepted,
        "accepted_pow2": next_pow2(shape.accepted),
        "eager": terms.eager,
        "rank": rank,
    }


def _drafts(drafted: int, accepted: int) -> str:
    if not drafted:
        return "off"
    return "none" if not accepted else "all" if accepted >= drafted else "some"


FEATURES = frozenset(
    step_features(StepShape(1, 1, 0, 0, 1, False, 1, 0, frozenset()), Terms(1, 1, 1, 0, False), 0)
)


class ColdState:
    """What one rank's process has not compiled yet."""

    def __init__(self, rules: tuple[Rule, ...], terms: Terms, rank: int) -> None:
        self._rules = rules
        self._terms = terms
        self._rank = rank
        self._known: dict[str, set[tuple[Value, ...]]] = {rule.name: set() for rule in rules}
        self._high: dict[str, float] = {}
        self._quiet: set[StepShape] = set()

    def copy(self) -> "ColdState":
        twin = ColdState(self._rules, self._terms, self._rank)
        twin._known = {name: set(keys) for name, keys in self._known.items()}
        twin._high = dict(self._high)
        twin._quiet = set(self._quiet)
        return twin

    def due(self, shape: StepShape) -> list[Due]:
        """What a step of this shape pays now; asking pays it."""
        if shape in self._quiet:
            return []
        features = step_features(shape, self._terms, self._rank)
        due: list[Due] = []
        for rule in self._rules:
            if all(c.holds(features[c.feature]) for c in rule.when):
                self._rise(rule, features)
                for key in _keys(rule, features, shape.features):
                    if key not in self._known[rule.name]:
                        self._known[rule.name].add(key)
                        due.append(Due(rule, key))
        self._quiet.add(shape)
        return due

    def _rise(self, rule: Rule, features: Mapping[str, Value]) -> None:
        """A new high-water mark grows the workspace, and every key compiled for the smaller one is
        void (flashinfer #3836)."""
        if rule.high_water is None:
            return
        level = float(features[rule.high_water])
        if level > self._high.get(rule.name, 0.0):
            self._high[rule.name] = level
            self._known[rule.name].clear()
            self._quiet.clear()


def _keys(
    rule: Rule, features: Mapping[str, Value], carried: frozenset[str]
) -> Iterable[tuple[Value, ...]]:
    key = tuple(features[name] for name in rule.key)
    if rule.feature is None:
        return (key,)
    stem = rule.feature + ":"
    return [
        (*key, name) for name in sorted(carried) if name == rule.feature or name.startswith(stem)
    ]

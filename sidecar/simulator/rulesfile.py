"""A file of cold rules → rules; the format is told at the head of `cold.py`."""

from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator

from sidecar.core.errors import ConfigError
from sidecar.simulator.cold import FEATURES, Condition, Rule

MAX_FILE_CHARS = 200_000
MAX_RULES = 200

_Seconds = Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)]


class _Range(BaseModel):
    model_config = ConfigDict(extra="forbid")
    min: float | None = None
    max: float | None = None


class _RuleIn(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]{0,79}$")]
    key: Annotated[list[str], Field(max_length=12)] = []
    when: dict[str, bool | int | str | list[bool | int | str] | _Range] = {}
    cost_s: _Seconds | Annotated[list[_Seconds], Field(min_length=2, max_length=2)]
    logged: bool = False
    high_water: bool | str | None = None
    feature: Annotated[str, Field(min_length=1, max_length=80)] | None = None

    @field_validator("key", "when")
    @classmethod
    def _named(cls, names: Any) -> Any:
        for name in names:
            _check_feature(name)
        return names

    @field_validator("high_water")
    @classmethod
    def _number(cls, name: bool | str | None) -> bool | str | None:
        if isinstance(name, str):
            _check_feature(name)
            if name.endswith("_class") or name == "drafts":
                raise ValueError(f"high_water needs a number, and {name} is a word")
        return name

    def rule(self) -> Rule:
        cost = self.cost_s if isinstance(self.cost_s, list) else [self.cost_s, self.cost_s]
        mark = "tokens" if self.high_water is True else self.high_water or None
        return Rule(
            name=self.name,
            key=tuple(self.key),
            when=tuple(_condition(name, wanted) for name, wanted in self.when.items()),
            cost_s=(min(cost), max(cost)),
            logged=self.logged,
            high_water=mark,
            feature=self.feature,
        )


def _check_feature(name: str) -> None:
    if name not in FEATURES:
        raise ValueError(
            f"no step feature is called {name!r}; known: {', '.join(sorted(FEATURES))}"
        )


def _condition(name: str, wanted: Any) -> Condition:
    if isinstance(wanted, _Range):
        return Condition(name, low=wanted.min, high=wanted.max)
    return Condition(name, values=tuple(wanted) if isinstance(wanted, list) else (wanted,))


def parse_rules(text: str, where: str) -> tuple[Rule, ...]:
    """Rules from the text of a file called `where`. Raises ConfigError with one sentence."""
    if len(text) > MAX_FILE_CHARS:
        raise ConfigError(f"{where}: longer than {MAX_FILE_CHARS:,} characters")
    try:
        raw = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{where}: not YAML: {' '.join(str(error).split())}") from None
    listed = raw.get("rules") if isinstance(raw, dict) else raw
    if not isinstance(listed, list) or len(listed) > MAX_RULES:
        raise ConfigError(f"{where}: give a list of at most {MAX_RULES} rules, or `rules: [...]`")
    try:
        rules = tuple(r.rule() for r in TypeAdapter(list[_RuleIn]).validate_python(listed))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{where}: rule {place}: {first['msg']}") from None
    names = [rule.name for rule in rules]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ConfigError(f"{where}: rule names must differ: {', '.join(sorted(twice))}")
    return rules


DEFAULT_RULES = parse_rules(
    """
# Modelled on what an H200 showed with a 64-expert model on vLLM 0.26, costs shortened.
- {name: first_request, key: [rank], cost_s: [0.8, 1.6], logged: false}
- name: fused_moe_kernel          # odd lengths above the largest captured graph
  key: [moe_aligned]
  when: {prefill: true, above_capture: true, moe_aligned: false}
  cost_s: [0.6, 1.2]
  logged: true
- name: fused_moe_kernel_batch
  key: [tokens_class, tokens_pow2, reqs_class]
  when: {prefill: true, above_capture: true}
  cost_s: [0.3, 0.6]
  logged: true
- {name: logprobs_rank_count, feature: logprobs, cost_s: 0.5, logged: false}
- {name: apply_token_bitmask_inplace_kernel, feature: grammar, cost_s: 0.5, logged: true}
""",
    "the default rules",
)
"""What a simulated server has cold unless told otherwise."""

DEMO_RULES = DEFAULT_RULES + parse_rules(
    """
# For people who look on: short prompts and small batches are cold too.
- name: _topk_topp_kernel
  key: [reqs_class]
  when: {reqs: {min: 2}}
  cost_s: [0.8, 1.6]
  logged: true
- name: lazy_module_load
  key: [tokens_pow2]
  when: {prefill: true, above_capture: false}
  cost_s: [0.2, 0.6]
  logged: false
""",
    "the demo's rules",
)
"""What `vllm-warmup sim` has cold unless told otherwise."""

"""Cold rules: when they hold, what they cost, and the file they come from."""

import pytest

from sidecar.core.errors import ConfigError
from sidecar.simulator.cold import ColdState, Rule, StepShape, Terms, captured_size, step_features
from sidecar.simulator.rulesfile import DEFAULT_RULES, parse_rules

TERMS = Terms(max_num_batched_tokens=2048, capture_max=512, top_k=8, draft_tokens=0, eager=False)


def prefill(tokens: int, reqs: int = 1, *features: str) -> StepShape:
    return StepShape(reqs, tokens, 0, 0, reqs, False, 1024, 0, frozenset(features))


def names(state: ColdState, shape: StepShape) -> list[str]:
    return [due.rule.name for due in state.due(shape)]


def test_a_key_is_paid_once() -> None:
    """The second step with the same key is free, one with another key is not."""
    (rule,) = parse_rules("[{name: k, key: [tokens_class], cost_s: 1}]", "r")
    state = ColdState((rule,), TERMS, 0)
    assert [names(state, prefill(n)) for n in (513, 514, 512, 1, 1)] == [
        ["k"],
        [],
        ["k"],
        ["k"],
        [],
    ]


def test_odd_lengths_above_the_graphs_are_moe_misaligned() -> None:
    """513 × top 8 is no multiple of 16, 514 and 1000 are: the case seen on an H200."""
    rules = [rule for rule in DEFAULT_RULES if rule.name == "fused_moe_kernel"]
    state = ColdState(tuple(rules), TERMS, 0)
    assert [names(state, prefill(n)) for n in (511, 514, 1000, 513)] == [
        [],
        [],
        [],
        ["fused_moe_kernel"],
    ]


def test_a_new_high_water_mark_makes_smaller_steps_cold_again() -> None:
    """Small, large, small again: three payments; in falling order only one per key."""
    text = "[{name: w, key: [tokens_pow2], cost_s: 1, high_water: true}]"
    rising = ColdState(parse_rules(text, "r"), TERMS, 0)
    assert [len(rising.due(prefill(n))) for n in (64, 1024, 64, 64)] == [1, 1, 1, 0]
    falling = ColdState(parse_rules(text, "r"), TERMS, 0)
    assert [len(falling.due(prefill(n))) for n in (1024, 64, 1024, 64)] == [1, 1, 0, 0]


def test_a_request_feature_is_paid_by_its_own_key() -> None:
    """`logprobs:1` and `logprobs:5` are two payments, a step without them none."""
    (rule,) = parse_rules("[{name: l, feature: logprobs, cost_s: 1}]", "r")
    state = ColdState((rule,), TERMS, 0)
    shapes = [prefill(8), prefill(8, 1, "logprobs:1"), prefill(8, 2, "logprobs:1", "logprobs:5")]
    assert [len(state.due(shape)) for shape in shapes] == [0, 1, 1]


def test_conditions_are_equality_lists_and_ranges() -> None:
    """`when` takes a value, a list and {min, max}, and all of them must hold."""
    text = """[{name: c, cost_s: 1, key: [tokens], when:
        {prefill: true, reqs_class: [one, mod16], tokens: {min: 100, max: 200}}}]"""
    state = ColdState(parse_rules(text, "r"), TERMS, 0)
    cases = [prefill(99), prefill(150, 2), prefill(201), prefill(100), prefill(160, 16)]
    assert [len(state.due(shape)) for shape in cases] == [0, 0, 0, 1, 1]


def test_costs_are_drawn_by_seed_and_key() -> None:
    """The same seed and key cost the same, others differ, all within the range."""
    rule = Rule("r", cost_s=(0.1, 60.0))
    costs = {rule.cost_of((n,), seed=7) for n in range(50)}
    assert rule.cost_of((1,), seed=7) == rule.cost_of((1,), seed=7)
    assert len(costs) == 50
    assert all(0.1 <= cost <= 60.0 for cost in costs)


def test_eager_mode_has_no_graphs_to_pad_to() -> None:
    """Enforced eager, every step is above the captured sizes."""
    eager = Terms(2048, 512, 8, 0, True)
    assert step_features(prefill(3), TERMS, 0)["padded"] == 4
    assert step_features(prefill(3), eager, 0)["padded"] == 3
    assert step_features(prefill(3), eager, 0)["above_capture"] is True


@pytest.mark.parametrize(
    ("tokens", "padded"), [(1, 1), (3, 4), (5, 8), (249, 256), (257, 272), (512, 512), (513, 513)]
)
def test_captured_sizes_are_vllms(tokens: int, padded: int) -> None:
    """1, 2, 4, by 8 to 256, by 16 to the largest."""
    assert captured_size(tokens, 512) == padded


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "give a list"),
        ("[{name: a, cost_s: 1}, {name: a, cost_s: 1}]", "names must differ: a"),
        ("[{name: a, cost_s: 1, key: [tokns]}]", "no step feature is called 'tokns'"),
        ("[{name: a, cost_s: 1, when: {prefil: true}}]", "no step feature is called 'prefil'"),
        ("[{name: a, cost_s: -1}]", "greater than 0"),
        ("[{name: a, cost_s: 1, high_water: reqs_class}]", "needs a number"),
        ("[{name: a, cost_s: 1, colour: red}]", "Extra inputs"),
        ("[{name: a, cost_s: 1, key: [tokens]", "not YAML"),
        ("x" * 300_000, "longer than"),
    ],
)
def test_a_bad_rules_file_is_one_sentence(text: str, says: str) -> None:
    """Every mistake is a ConfigError that names the file, on one line."""
    with pytest.raises(ConfigError) as caught:
        parse_rules(text, "my.yaml")
    message = str(caught.value)
    assert message.startswith("my.yaml: ")
    assert says in message
    assert "\n" not in message

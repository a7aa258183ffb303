"""core/grid/plan: what is sent, in which order, and what is not sent and why."""

import time
from dataclasses import replace

import pytest

from sidecar.core.facts import EngineFacts
from sidecar.core.grid.cells import Endpoint, Gait, Role
from sidecar.core.grid.plan import Plan, expand
from sidecar.core.grid.shapes import Shapes, parse

FACTS = EngineFacts(
    model="m",
    max_model_len=8192,
    max_num_seqs=16,
    max_num_batched_tokens=2048,
    kv_cache_tokens=65_536,
    speculation=False,
    draft_tokens=0,
    sources={"max_num_seqs": "/server_info", "max_model_len": "/v1/models"},
)


def shapes(cells: str, more: str = "") -> Shapes:
    return parse(f"cells: [{cells}]\n{more}", "f.yaml")


def plan_of(cells: str, more: str = "", **facts: object) -> Plan:
    return expand(shapes(cells, more), replace(FACTS, **facts))


@pytest.mark.parametrize(
    ("facts", "tokens"),
    [
        ({}, 4096),  # 2B
        ({"max_num_batched_tokens": 8192}, 8191),  # max_model_len - 1 is shorter
        ({"max_num_batched_tokens": None, "max_model_len": 100_000}, 32_768),
        ({"max_num_batched_tokens": None}, 8191),
        ({"kv_cache_tokens": 3000}, 2999),
        ({"max_num_batched_tokens": None, "max_model_len": None}, 350),  # the longest declared
    ],
)
def test_first_is_the_longest_prompt_that_sets_the_marks(facts: dict, tokens: int) -> None:
    """R1: one prompt of min(2B, max_model_len - 1) tokens, with one token of output."""
    first = plan_of("{prompt_tokens: 350}", **facts).first
    assert first is not None
    assert (first.concurrency, first.prompt_tokens, first.output_tokens) == (1, tokens, 1)
    assert first.role is Role.HIGH_WATER


def test_large_before_small() -> None:
    """The first pass walks from the largest wave to the smallest, whatever the file's order."""
    plan = plan_of(
        "{prompt_tokens: 16}, {concurrency: 4, prompt_tokens: 512}, {prompt_tokens: 4000}, "
        "{concurrency: 2, prompt_tokens: 1024}"
    )
    assert [c.id for c in plan.cells] == [
        "completions-c1-p4000-o16",
        "completions-c4-p512-o16",
        "completions-c2-p1024-o16",
        "completions-c1-p16-o16",
    ]


@pytest.mark.parametrize(
    ("cell", "draft_tokens", "output_tokens"),
    [
        ("{concurrency: 4, prompt_tokens: 350, output_tokens: 4}", 0, 1 + 8),
        ("{concurrency: 4, prompt_tokens: 1000, output_tokens: 4}", 0, 2 + 8),
        ("{concurrency: 4, prompt_tokens: 1000, output_tokens: 4}", 5, 10 * 6),
        ("{concurrency: 4, prompt_tokens: 350, output_tokens: 100}", 0, 100),
        ("{prompt_tokens: 350, output_tokens: 4}", 0, 4),
        ("{prompt_tokens: 350, output_tokens: 4}", 5, 12),
        ("{prompt_tokens: 350, output_tokens: 1}", 5, 1),
    ],
)
def test_output_tokens_are_raised(cell: str, draft_tokens: int, output_tokens: int) -> None:
    """R4: long enough that all requests of a wave decode together, drafts accepted or not."""
    plan = plan_of(cell, draft_tokens=draft_tokens, speculation=draft_tokens > 0)
    assert plan.cells[0].output_tokens == output_tokens


@pytest.mark.parametrize(
    ("cell", "facts", "gaits"),
    [
        ("{prompt_tokens: 350}", {}, (Gait.LED,)),
        ("{concurrency: 4, prompt_tokens: 512}", {}, (Gait.LED, Gait.HELD)),
        ("{concurrency: 4, prompt_tokens: 513}", {}, (Gait.LED,)),
        ("{concurrency: 4, prompt_tokens: 512}", {"max_num_batched_tokens": None}, None),
        ("{concurrency: 4, prompt_tokens: 1024}", {"max_num_batched_tokens": 8192}, None),
    ],
)
def test_held_where_the_wave_fits_one_step(cell: str, facts: dict, gaits: tuple | None) -> None:
    """R3: a wave of several is also held, if c·L fits B (unknown: the smallest default, 2048)."""
    assert plan_of(cell, **facts).cells[0].gaits == (gaits or (Gait.LED, Gait.HELD))


def test_plug_is_one_full_chunk_or_what_the_engine_takes() -> None:
    """The shortest plug is B tokens, or the longest prompt allowed, or none where none fits."""
    assert plan_of("{prompt_tokens: 5}").plug_tokens == 2048
    assert plan_of("{prompt_tokens: 5}", max_model_len=1000).plug_tokens == 999
    assert plan_of("{prompt_tokens: 5}", kv_cache_tokens=1000).plug_tokens is None


def test_ramp_steps_by_what_one_decode_step_may_bring() -> None:
    """Request i of a ramp makes i·(1 + k) tokens more, so that every batch size is decoded."""
    cell = plan_of("{concurrency: 16, prompt_tokens: 16, ramp: true}", draft_tokens=3).cells[0]
    assert cell.ramp == 4
    assert cell.output_tokens_of(15) == cell.output_tokens + 60


def test_a_ramp_is_held_and_never_led() -> None:
    """Its many short prompts don't arrive within one short step of a lead; without B it can't be
    held either, and is led."""
    ramp = "{concurrency: 16, prompt_tokens: 16, ramp: true}"
    assert plan_of(ramp).cells[0].gaits == (Gait.HELD,)
    assert plan_of(ramp, max_num_batched_tokens=128).cells[0].gaits == (Gait.LED,)


@pytest.mark.parametrize(
    ("cell", "facts", "reason", "remedy"),
    [
        (
            "{prompt_tokens: 8190, output_tokens: 4}",
            {},
            "8190 prompt + 4 output tokens are above max_model_len 8192 (from /v1/models)",
            "start vLLM with --max-model-len 8194, or set prompt_tokens to at most 8188",
        ),
        (
            "{concurrency: 17, prompt_tokens: 8}",
            {},
            "concurrency 17 is above max_num_seqs 16 (from /server_info)",
            "start vLLM with --max-num-seqs 17, or set concurrency to at most 16",
        ),
        (
            "{concurrency: 16, prompt_tokens: 4096}",
            {},
            "65536 prompt + 640 output tokens are above the KV cache of 65536 tokens",
            "give vLLM more KV cache",
        ),
        (
            "{concurrency: 2, prompt_tokens: 1000}",
            {"kv_cache_tokens": 4000},
            "2000 prompt + 32 output tokens + a plug of 2048 are above the KV cache of 4000",
            "lower concurrency",
        ),
    ],
)
def test_what_does_not_fit_is_named_with_its_flag(
    cell: str, facts: dict, reason: str, remedy: str
) -> None:
    """A cell beyond a limit is not sent; the limit, its source and the flag are named."""
    plan = plan_of(cell + ", {prompt_tokens: 5}", **facts)
    assert [c.prompt_tokens for c in plan.cells] == [5]
    assert reason in plan.unfit[0].reason
    assert remedy in plan.unfit[0].remedy
    assert plan.refusal is not None
    assert reason in plan.refusal


def test_what_just_fits_is_sent() -> None:
    """At a limit is not beyond it: max_model_len, max_num_seqs and the KV cache may be filled."""
    plan = plan_of("{prompt_tokens: 8188, output_tokens: 4}, {concurrency: 16, prompt_tokens: 5}")
    assert plan.unfit == ()
    full = plan_of("{concurrency: 2, prompt_tokens: 1000}", kv_cache_tokens=2000 + 32 + 2048)
    assert full.unfit == ()


def test_skip_goes_on_with_the_rest_but_not_with_nothing() -> None:
    """`on_unfit: skip` drops a cell; without any cell, or without `heaviest`, it is refused."""
    skip = "on_unfit: skip\n"
    assert plan_of("{prompt_tokens: 9999}, {prompt_tokens: 5}", skip).refusal is None
    assert plan_of("{prompt_tokens: 9999}", skip).refusal is not None
    heaviest = plan_of("{prompt_tokens: 5}", skip + "heaviest: {prompt_tokens: 9999}")
    assert heaviest.heaviest is None
    assert "heaviest" in (heaviest.refusal or "")


def test_a_field_that_the_engine_does_not_list_is_refused() -> None:
    """vLLM would ignore it in silence: the plan is refused even where unfit cells are skipped."""
    text = (
        "on_unfit: skip\nvariants: {v: {thinking_token_budget: 5}}\n"
        "cells: [{prompt_tokens: 5, variant: v}, {prompt_tokens: 6}]\n"
    )
    fields = {Endpoint.COMPLETIONS: frozenset({"prompt", "thinking_token_budgets"})}
    plan = expand(parse(text, "f.yaml"), replace(FACTS, request_fields=fields))
    assert plan.refusal is not None
    assert '"thinking_token_budget", which the engine\'s own /openapi.json' in plan.refusal
    assert 'did you mean "thinking_token_budgets"?' in plan.refusal
    listed = {Endpoint.COMPLETIONS: frozenset({"prompt", "thinking_token_budget"})}
    assert expand(parse(text, "f.yaml"), replace(FACTS, request_fields=listed)).refusal is None


def test_the_engine_is_believed_and_the_operator_fills_the_gaps() -> None:
    """What was learned wins, with a warning; what was not comes from `engine:` of the file."""
    hints = "engine: {max_num_seqs: 4, draft_tokens: 5, vocab_size: 1000}\n"
    plan = plan_of("{concurrency: 8, prompt_tokens: 5}", hints, draft_tokens=None, speculation=None)
    assert plan.facts.max_num_seqs == 16
    assert any("max_num_seqs is 4, the engine says 16" in w for w in plan.warnings)
    assert (plan.facts.draft_tokens, plan.facts.speculation) == (5, True)
    assert plan.facts.sources["vocab_size"] == "shapes file"
    assert plan.cells[0].output_tokens == 9 * 6


def test_cells_that_become_the_same_run_once() -> None:
    """Two cells whose output tokens are raised to one value are one cell, and it is said."""
    plan = plan_of(
        "{concurrency: 2, prompt_tokens: 5, output_tokens: 4}, "
        "{concurrency: 2, prompt_tokens: 5, output_tokens: 5}"
    )
    assert len(plan.cells) == 1
    assert any("runs once" in w for w in plan.warnings)


def test_a_thousand_cells_are_planned_in_a_fifth_of_a_second() -> None:
    """The limit is as fast as it is promised (best of three: other programs run too)."""
    axis = ", ".join(str(n) for n in range(1, 101))
    grid = parse(f"grid: {{concurrency: [1,2,3,4,5,6,7,8,9,10], prompt_tokens: [{axis}]}}", "f")

    def took_s() -> float:
        start = time.process_time()
        assert len(expand(grid, FACTS).cells) == 1000
        return time.process_time() - start

    assert min(took_s() for _ in range(3)) < 0.2


@pytest.mark.parametrize(
    ("prompt_tokens", "draft_tokens", "output_tokens"),
    [
        (16, 5, 18),  # 16 + 16 - 1 = 31, and five drafts reach 36: both sides of 32
        (17, 5, 17),  # ends at 32, which is of the class below
        (16, 1, 16),  # 31 and 32
        (16, 2, 18),
        (300, 5, 16),
        (16, 0, 16),
        (1, 5, 17),  # 16 and 21
    ],
)
def test_drafts_end_in_one_class_of_contexts(
    prompt_tokens: int, draft_tokens: int, output_tokens: int
) -> None:
    """One request that speculates decodes on until each of its waves has passed a power of two."""
    facts = {"draft_tokens": draft_tokens, "speculation": draft_tokens > 0}
    (cell,) = plan_of(f"{{prompt_tokens: {prompt_tokens}}}", **facts).cells
    assert cell.output_tokens == output_tokens

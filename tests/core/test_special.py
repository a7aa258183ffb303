"""core/grid/special: which special cells a shapes file and an engine give, and which not."""

import re
from dataclasses import replace

import pytest

from sidecar.core.errors import ConfigError
from sidecar.core.facts import EngineFacts, from_scrape
from sidecar.core.grid.cells import Gait
from sidecar.core.grid.plan import Plan, expand
from sidecar.core.grid.shapes import parse
from sidecar.core.wire import metrics

FACTS = EngineFacts(
    model="m",
    max_model_len=8192,
    max_num_seqs=16,
    max_num_batched_tokens=2048,
    kv_cache_tokens=65_536,
    block_size=16,
    prefix_caching=True,
    speculation=False,
    draft_tokens=0,
    capture_sizes=(1, 2, 4, 8, 16, 24, 32),
    sources={"max_num_batched_tokens": "log", "capture_sizes": "/server_info"},
)


def plan_of(text: str, **facts: object) -> Plan:
    return expand(parse(text, "f.yaml"), replace(FACTS, **facts))


def points(plan: Plan) -> list[tuple[int, int]]:
    return sorted((c.concurrency, c.prompt_tokens) for c in plan.cells)


BAD = [
    (
        "cells: [{prompt_tokens: 5}]\nspecial: {off_grid: true}",
        "f.yaml:2: off_grid takes its lengths from the grid, and there is none; add a grid.*",
    ),
    ("special: {chunk_crossing: [2, 2]}", "f.yaml:1: chunk_crossing has 2 twice; remove one"),
    ("special: {chunk_crossing: 3}", r".*special.chunk_crossing: must be a list; write \[3\]"),
    ("special: {chunk_crossing: [0]}", ".*0 is out of range; it must be at least 1"),
    ("special: {chunk_crossing: [yes]}", ".*true is not a whole number; .*"),
    ("special: {cudagraph: 3}", ".*special.cudagraph: 3 is neither true nor false; .*"),
    ("special: {mixd: []}", 'f.yaml:1: unknown key "mixd" in special .did you mean "mixed".*'),
    ("special: true", "f.yaml:1: special: must be a mapping .*, not true"),
    ("special: {off_grid: false}", "f.yaml:1: declares nothing to warm; .*"),
    ("engine: {capture_sizes: []}\nspecial: {cudagraph: true}", ".*capture_sizes: is empty; .*"),
    (
        "special: {prefix_hit: [{prefix_tokens: 9, prompt_tokens: 9}]}",
        "f.yaml:1: a prefix of 9 tokens leaves nothing of a prompt of 9 to compute; .*raise it",
    ),
    (
        "special: {prefix_hit: [{prompt_tokens: 9}]}",
        r'f.yaml:1: "prefix_tokens" is missing in special.prefix_hit\[0\]; add it',
    ),
    (
        "special:\n  prefix_hit:\n  - {prefix_tokens: 9, prompt_tokens: 29}\n"
        "  - {prefix_tokens: 9, prompt_tokens: 29}",
        "f.yaml:4: the cell completions-c1-p29-o16-hit9 is there already, in line 3; remove one",
    ),
    (
        "special: {mixed: [{concurrency: 2, arrivin_tokens: 5}]}",
        '.*unknown key "arrivin_tokens" in special.mixed.0. .did you mean "arriving_tokens".*',
    ),
    (
        "special: {mixed: [{concurrency: 2, arriving_tokens: 9, variant: caht}]}",
        'f.yaml:1: no variant "caht" is declared.*did you mean "chat".*',
    ),
]


@pytest.mark.parametrize(("text", "sentence"), BAD)
def test_wrong_use_has_a_sentence(text: str, sentence: str) -> None:
    """Each way to declare a special cell wrongly is one sentence: where, what, what to change."""
    with pytest.raises(ConfigError) as refused:
        parse(text, "f.yaml")
    assert re.fullmatch(sentence, str(refused.value)), str(refused.value)


def test_what_follows_from_the_engine_is_told_before_it_is_known() -> None:
    """`shapes check` says which kinds a file declares, though their cells are still unknown."""
    text = "grid: {concurrency: [1], prompt_tokens: [512]}\nspecial: {off_grid: true, "
    told = parse(text + "chunk_crossing: true, cudagraph: true}", "f.yaml").derived.told
    assert told == (
        "2 off the grid, prompts around multiples of the engine's chunk, "
        "a decode wave for each size that it captures"
    )
    assert parse(text.replace("true", "false") + "}", "f.yaml").derived.told == ""


def test_off_grid_lies_beside_each_length() -> None:
    """L - 7, L + 1, and c - 1 for each even concurrency, by no output length or variant more; none
    that is declared, and the plan says how many."""
    plan = plan_of(
        "grid: {concurrency: [1, 4, 8], prompt_tokens: [5, 512], output_tokens: [9, 20]}\n"
        "cells: [{prompt_tokens: 513}]\nspecial: {off_grid: true}"
    )
    declared = [(c, n) for c in (1, 4, 8) for n in (5, 512) for _ in range(2)] + [(1, 513)]
    beside = [(1, 6), (1, 505), (3, 5), (7, 5), (3, 513), (7, 513)]
    assert points(plan) == sorted(declared + beside)
    assert "off_grid: 6 cells beside the grid" in plan.notes
    assert all(c.output_tokens <= 20 for c in plan.cells)


def test_off_grid_takes_an_odd_batch_at_an_odd_length() -> None:
    """An odd concurrency beside an even one, so that the step's tokens are odd too."""
    plan = plan_of("grid: {concurrency: [4], prompt_tokens: [350]}\nspecial: {off_grid: true}")
    assert (3, 351) in points(plan)


def test_what_no_one_declared_is_left_out_where_it_does_not_fit() -> None:
    """A length that only off_grid added fails no plan; it is said."""
    text = "grid: {concurrency: [1], prompt_tokens: [8176]}\nspecial: {off_grid: true}"
    plan = plan_of(text)
    assert (plan.refusal, plan.unfit) == (None, ())
    assert points(plan) == [(1, 8169), (1, 8176)]
    assert any("completions-c1-p8177-o16 is left out: 8177 prompt" in w for w in plan.warnings)


def test_crossings_lie_around_the_learned_chunk() -> None:
    """One token below and above each multiple of B, and half a chunk above."""
    plan = plan_of("special: {chunk_crossing: [1, 3]}")
    lengths = [2047, 2049, 3073, 6143, 6145, 7169]
    assert points(plan) == [(1, n) for n in lengths]
    assert {c.output_tokens for c in plan.cells} == {4}
    assert "chunk_crossing: 6 cells around multiples of 2048 tokens (from log)" in plan.notes
    assert points(plan_of("special: {chunk_crossing: true}")) == [(1, n) for n in lengths[:3]]


def test_a_crossing_that_is_there_already_is_not_sent_twice() -> None:
    """A length that is declared, or beside the grid, is no crossing more."""
    plan = plan_of(
        "grid: {concurrency: [1], prompt_tokens: [2048]}\n"
        "special: {off_grid: true, chunk_crossing: true}"
    )
    assert points(plan) == [(1, 2041), (1, 2047), (1, 2048), (1, 2049), (1, 3073)]


@pytest.mark.parametrize(
    ("kind", "unknown"),
    [
        ("chunk_crossing", "max_num_batched_tokens"),
        ("cudagraph", "capture_sizes"),
        ("cudagraph", "draft_tokens"),
    ],
)
def test_what_was_not_told_is_named_with_the_remedy(kind: str, unknown: str) -> None:
    """A kind that follows from what the engine did not tell does not fit, and on_unfit decides;
    without any engine nothing is at fault."""
    text = f"cells: [{{prompt_tokens: 9}}]\nspecial: {{{kind}: true}}\n"
    untold = {unknown: None, "speculation": unknown == "draft_tokens"}
    plan = plan_of(text, **untold)
    (unfit,) = plan.unfit
    assert (unfit.id, unfit.cell) == (f"special.{kind}", None)
    assert unknown in unfit.reason
    assert "engine:" in unfit.remedy
    assert "WARMUP_LOG" in unfit.remedy
    assert f"special.{kind} can't run" in (plan.refusal or "")
    assert plan_of(text + "on_unfit: skip", **untold).refusal is None
    offline = plan_of(text, **untold, model=None)
    assert (offline.unfit, offline.refusal) == ((), None)
    assert any(note.startswith(f"{kind}: ") for note in offline.notes)


def test_one_decode_wave_for_each_captured_size() -> None:
    """Sizes up to max_num_seqs, held behind a plug, with short prompts that fit one step."""
    plan = plan_of("special: {cudagraph: true}")
    assert points(plan) == [(n, 16) for n in (1, 2, 4, 8, 16)]
    assert {c.gaits for c in plan.cells if c.concurrency > 1} == {(Gait.HELD,)}
    assert all(c.captured and c.id.endswith("-graph") for c in plan.cells)
    (note,) = plan.notes
    assert note.startswith(
        "cudagraph: 5 of 7 captured sizes (from /server_info), up to 16 requests"
    )
    assert note.endswith("no decode batch has one of the other 2")
    small = plan_of("special: {cudagraph: true}", max_num_batched_tokens=64)
    assert all(c.wave_prompt_tokens <= 64 for c in small.cells)


def test_with_speculation_a_size_is_tokens() -> None:
    """Each request that decodes brings 1 + k tokens into the step, if its prompt is long enough
    for a drafter to find something in it."""
    plan = plan_of("special: {cudagraph: true}", speculation=True, draft_tokens=3)
    assert points(plan) == [(n, 48) for n in (1, 2, 4, 6, 8)]


def test_captured_sizes_by_the_operator() -> None:
    """engine: capture_sizes is taken where the engine tells none; without max_num_seqs half of the
    largest is what surely decodes at once; with graphs off there is nothing to do."""
    text = "engine: {capture_sizes: [8, 1, 2, 2, 4]}\nspecial: {cudagraph: true}"
    plan = plan_of(text, capture_sizes=None, max_num_seqs=None)
    assert [n for n, _ in points(plan)] == [1, 2, 4]
    assert "max_num_seqs is not known" in plan.notes[0]
    for none in ({"cudagraphs_off": True}, {"capture_sizes": ()}):
        plan = plan_of(text, **none)
        assert plan.cells == ()
        assert plan.notes == ("cudagraph: nothing to do, no CUDA graphs are captured",)


HIT = "special: {prefix_hit: [{prefix_tokens: 1000, prompt_tokens: 1350, concurrency: 4}]}"


def test_a_prefix_is_whole_blocks() -> None:
    """What is found is whole blocks, and what is left is computed: batching counts that alone."""
    (cell,) = plan_of(HIT).cells
    assert (cell.prefix_tokens, cell.least_hit, cell.computed_tokens) == (992, 992, 358)
    assert cell.id == "completions-c4-p1350-o16-hit992"
    assert cell.gaits == (Gait.LED, Gait.HELD)  # 4 x 358 <= 2048 < 4 x 1350
    (unsure,) = plan_of(HIT, block_size=None).cells
    assert (unsure.prefix_tokens, unsure.least_hit) == (1000, 1)
    (drafted,) = plan_of(HIT, speculation=True, draft_tokens=1).cells
    assert (drafted.prefix_tokens, drafted.least_hit) == (992, 976)


@pytest.mark.parametrize(
    ("facts", "reason", "remedy"),
    [
        ({"prefix_caching": False}, "has no prefix cache", "--enable-prefix-caching"),
        ({"block_size": 1024}, "makes no whole block of 1024", "raise prefix_tokens to 1024"),
        ({"max_num_seqs": 2}, "concurrency 4 is above max_num_seqs 2", "--max-num-seqs 4"),
        ({"kv_cache_tokens": 5000}, "above the KV cache of 5000", "more KV cache"),
    ],
)
def test_a_hit_that_can_t_be(facts: dict, reason: str, remedy: str) -> None:
    """A prefix hit that this engine can't give is named, with the flag to change."""
    (unfit,) = plan_of(HIT, **facts).unfit
    assert reason in unfit.reason
    assert remedy in unfit.remedy


MIXED = "special: {mixed: [{concurrency: 4, arriving_tokens: 5000}]}"


def test_those_that_decode_outlast_the_arriving_prompt() -> None:
    """Output tokens for its chunks beside them, for its way to the engine, and to spare."""
    (cell,) = plan_of(MIXED).cells
    assert cell.gaits == (Gait.MIXED,)
    assert (cell.requests, cell.concurrency, cell.prompt_tokens) == (5, 4, 16)
    assert cell.output_tokens == 3 + 8 + 8  # 5000 in steps of 2048 - 4
    assert (cell.prompt_tokens_of(4), cell.output_tokens_of(4)) == (5000, 1)
    assert (cell.wave_prompt_tokens, cell.wave_output_tokens) == (4 * 16 + 5000, 4 * 19 + 1)


@pytest.mark.parametrize(
    ("cell", "facts", "reason", "remedy"),
    [
        (MIXED, {"max_num_seqs": 4}, "4 and one that arrives is above", "--max-num-seqs 5"),
        (MIXED, {"max_num_seqs": 1}, "4 and one that arrives is above", "or leave the cell out"),
        (MIXED, {"max_model_len": 5000}, "5000 arriving", "at most 4999"),
        (MIXED, {"max_num_batched_tokens": 4}, "don't start in one step", "lower concurrency"),
        (MIXED, {"kv_cache_tokens": 1024}, "fits into the KV cache", "more KV cache"),
        (MIXED, {"draft_tokens": 511, "speculation": True}, "fill a step", "lower concurrency"),
    ],
)
def test_a_mixed_step_that_can_t_be(cell: str, facts: dict, reason: str, remedy: str) -> None:
    """A mixed cell that this engine can't run is named, with the flag to change."""
    (unfit,) = plan_of(cell, **facts).unfit
    assert reason in unfit.reason
    assert remedy in unfit.remedy


def test_no_more_than_the_limit_is_ever_derived() -> None:
    """What goes beyond the most cells of a file is left out and counted."""
    sizes = tuple(range(1, 1201))
    plan = plan_of(
        "special: {cudagraph: true}",
        capture_sizes=sizes,
        max_num_seqs=4096,
        max_num_batched_tokens=8192,
        kv_cache_tokens=None,
    )
    assert len(plan.cells) == 1000
    assert any(w.startswith("200 special cells are left out") for w in plan.warnings)


def test_warnings_of_what_is_left_out_are_bounded() -> None:
    """They stand in each answer of /ready: the first 20 are told with their reason, the rest
    counted."""
    plan = plan_of(
        "special: {cudagraph: true}",
        capture_sizes=tuple(range(1, 201)),
        max_num_seqs=200,
        max_num_batched_tokens=1024,
        kv_cache_tokens=1700,
    )
    told = [w for w in plan.warnings if "left out" in w]
    assert len(told) == 21
    assert len(plan.cells) + 20 + int(told[-1].split()[0]) == 200
    assert told[-1].endswith("more such cells are left out")


def test_the_block_size_is_learned_from_metrics() -> None:
    """vllm:cache_config_info tells the size of a block and whether prefixes are cached."""
    page = 'vllm:cache_config_info{block_size="128",enable_prefix_caching="%s",engine="0"} 1.0\n'
    facts = from_scrape(EngineFacts(), metrics.parse(page % "True"))
    assert (facts.block_size, facts.prefix_caching) == (128, True)
    assert from_scrape(EngineFacts(), metrics.parse(page % "False")).prefix_caching is False
    mixed = page % "True" + (page % "False").replace('"0"', '"1"').replace("128", "16")
    facts = from_scrape(EngineFacts(), metrics.parse(mixed))
    assert (facts.block_size, facts.prefix_caching) == (None, None)

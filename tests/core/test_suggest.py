"""Cells that are learned: from escapes, and from what a server with traffic has counted."""

import json
from dataclasses import replace

import pytest

from sidecar.core.facts import EngineFacts
from sidecar.core.grid.cells import MAX_PROMPT_TOKENS, Cell, Gait, Variant
from sidecar.core.grid.plan import Unfit
from sidecar.core.grid.shapes import parse
from sidecar.core.learned.proposals import MAX_PROPOSALS, Sure, suggested
from sidecar.core.learned.proposalstext import to_json, to_yaml
from sidecar.core.report import with_escapes
from sidecar.core.watch.escapes import Batch, Escape
from tests.core.test_report import REPORT

LOGPROBS = Variant("lp", fields={"logprobs": 3})
NOON = 1_795_953_600.0


def declared(*cells, unfit=(), **facts):
    """A report whose grid was these cells."""
    verdicts = tuple(replace(REPORT.verdict.cells[0], cell=cell) for cell in cells)
    verdict = replace(REPORT.verdict, cells=verdicts)
    return replace(
        REPORT,
        verdict=verdict,
        unfit=unfit,
        escapes=(),
        escapes_total=0,
        facts=EngineFacts(**facts),
    )


def escape(kernel="fused_moe_kernel", batch=None, **changes):
    told = {"at": NOON, "source": "file:///a", "backend": "Triton", "event": "", "detail": ""}
    return Escape(**(told | {"kernel": kernel, "process": None, "batch": batch} | changes))


def cells_of(report):
    """What the YAML declares, as (concurrency, prompt tokens, variant); [] where it is comments."""
    text = to_yaml(report, suggested(report))
    assert all(line.isascii() and line.isprintable() for line in text.splitlines()), text
    if not {"cells:", "special:"} & set(text.splitlines()):
        assert all(line.startswith("#") for line in text.splitlines())
        return []
    return [(c.concurrency, c.prompt_tokens, c.variant) for c in parse(text, "pasted.yaml").cells]


def test_a_step_line_gives_the_batch_as_it_was():
    """513 tokens alone compiled: the cell is that prompt, and it says why and how sure."""
    report = with_escapes(declared(Cell(1, 512, 16)), [escape(batch=Batch(1, 513, 0, 0))] * 2)
    assert cells_of(report) == [(1, 513, Variant("completions"))]
    text = to_yaml(report, suggested(report))
    assert "Triton fused_moe_kernel: 2 times, last at 2026-11-29 12:00:00 UTC" in text
    assert "as it was: the step line says 1 prefills of 513 tokens" in text


@pytest.mark.parametrize(
    ("batch", "cells", "sure"),
    [
        (Batch(2, 700, 0, 0), [(2, 350)], Sure.EXACT),
        # two prompts of a cell are equal, so 701 tokens are either two near ones or one of 701
        (Batch(2, 701, 0, 0), [(2, 351), (1, 701)], Sure.NEAR),
        (Batch(1, 700, 3, 3), [(3, 16)], Sure.EXACT),
        (Batch(2, 700, 3, 3), [(3, 16)], Sure.NEAR),
        (Batch(0, 0, 5, 5), [(5, 16)], Sure.NEAR),
    ],
)
def test_what_a_batch_becomes(batch, cells, sure):
    """Prefills, prompts of unequal length, a mixed batch, and decodes alone."""
    made = suggested(with_escapes(declared(), [escape(batch=batch)]))
    assert [(p.cell.concurrency, p.cell.prompt_tokens) for p in made.proposals] == cells
    assert {p.sure for p in made.proposals} == {sure}


def test_a_mixed_batch_becomes_a_mixed_cell():
    """As many decode, and a prompt of the step's tokens arrives; declared, it is not proposed."""
    escaped = [escape(batch=Batch(1, 700, 3, 3)), escape(batch=Batch(1, 513, 0, 0))]
    report = with_escapes(declared(), escaped)
    assert "special:\n  mixed:\n    # Triton fused" in to_yaml(report, suggested(report))
    shapes = parse(to_yaml(report, suggested(report)), "pasted.yaml")
    (mixed,) = (c for c in shapes.cells if c.arriving_tokens)
    assert (mixed.concurrency, mixed.arriving_tokens, len(shapes.cells)) == (3, 700, 2)
    known = with_escapes(declared(replace(mixed, prompt_tokens=64)), escaped[:1])
    assert cells_of(known) == []


@pytest.mark.parametrize(
    ("changes", "cell"),
    [
        ({"backend": "TileLang", "shapes": "x=(896, 4, 4096), w=(64, 64), y=(896,)"}, (1, 896)),
        (
            {"detail": "constexprs={BLOCK=64, num_tokens=77, num_reqs=7}; signature={M='i32'}"},
            (7, 11),
        ),
        ({"detail": "constexprs={BLOCK_SIZE=4096, num_rows=1}; signature={}"}, (1, 16)),
        ({"kernel": "_topk_log_softmax_kernel"}, (1, 16)),
    ],
)
def test_without_a_step_line_it_is_a_guess_and_says_so(changes, cell):
    """Runtime shapes, arguments, or the kernel's name: never more than a guess."""
    report = with_escapes(declared(), [escape(**changes)])
    (made,) = suggested(report).proposals
    assert (made.cell.concurrency, made.cell.prompt_tokens) == cell
    assert made.sure is Sure.GUESS
    assert "a guess, for no step line came with it" in to_yaml(report, suggested(report))


def test_a_kernel_of_the_sampler_asks_for_its_field():
    """By a variant that is declared and has it, else by a new one that is declared beside."""
    escaped = [escape("_topk_log_softmax_kernel", Batch(1, 64, 0, 0))]
    ((_, tokens, variant),) = cells_of(with_escapes(declared(), escaped))
    assert (tokens, variant) == (64, Variant("logprobs", fields={"logprobs": 5}))
    (made,) = suggested(with_escapes(declared(Cell(1, 9, 16, LOGPROBS)), escaped)).proposals
    assert (made.cell.variant, made.asked) == (LOGPROBS, None)


def test_a_declared_variant_without_the_field_is_another_one():
    """The same batch asked for otherwise is declared by nobody, and a taken name is left alone."""
    taken = Cell(1, 64, 16, Variant("logprobs", fields={"top_k": 3}))
    escaped = [escape("_topk_log_softmax_kernel", Batch(1, 64, 0, 0))]
    ((_, tokens, variant),) = cells_of(with_escapes(declared(taken), escaped))
    assert (tokens, variant.name) == (64, "logprobs-2")


def test_many_kernels_and_many_declared_cells_are_bounded_too():
    """A comment is for reading: the first ones, and how many more."""
    escapes = [escape(f"k{n}", Batch(1, n + 1, 0, 0)) for n in range(25)]
    grid = declared(*(Cell(1, n + 1, 16) for n in range(25)))
    text = to_yaml(grid, suggested(with_escapes(grid, escapes)))
    assert "and 5 more cells that are declared" in text
    same = [escape(f"k{n}", Batch(1, 1, 0, 0)) for n in range(25)]
    report = with_escapes(declared(), same)
    assert "and 20 more kernels" in to_yaml(report, suggested(report))


def test_what_is_declared_is_not_proposed_but_said():
    """Fitting or not: and that the log does not say what differed."""
    ramp = Cell(8, 16, 16, ramp=1, gaits=(Gait.HELD,))
    unfit = (Unfit(Cell(1, 9000, 16), "too long", "shorten it"),)
    report = with_escapes(
        declared(Cell(1, 350, 16), ramp, unfit=unfit),
        [
            escape(batch=Batch(1, 350, 0, 0)),
            escape(batch=Batch(0, 0, 5, 5)),
            escape(batch=Batch(1, 9000, 0, 0)),
        ],
    )
    assert cells_of(report) == []
    text = to_yaml(report, suggested(report))
    for cell in (Cell(1, 350, 16), ramp, unfit[0].cell):
        assert f"# {cell.id} is declared, and in such a batch compiled" in text


def test_nothing_usable_is_said():
    """No escape; escapes of which only the name is known; figures that no shapes file can hold."""
    assert "nothing to suggest: no compile line came" in to_yaml(declared(), suggested(declared()))
    absurd = escape(batch=Batch(10**9, 10**12, 0, 0))
    report = with_escapes(declared(), [escape("FlashAttentionForwardSm100"), absurd])
    assert cells_of(report) == []
    text = to_yaml(report, suggested(report))
    assert "no cell to add can be told" in text
    assert "--enable-logging-iteration-details" in text
    assert "FlashAttentionForwardSm100: once" in text


def test_a_cell_fits_the_model():
    """A prompt that leaves no room for 16 tokens gets what there is; a longer one is none."""
    report = declared(max_model_len=1024)
    made = suggested(with_escapes(report, [escape(batch=Batch(1, 1020, 0, 0))])).proposals
    assert [(p.cell.prompt_tokens, p.cell.output_tokens) for p in made] == [(1020, 4)]
    assert not suggested(with_escapes(report, [escape(batch=Batch(1, 1024, 0, 0))])).proposals


@pytest.mark.parametrize("limit", [None, 10**9])
def test_no_cell_is_longer_than_a_shapes_file_may_declare(limit):
    """Also of a model that takes more: what is printed can be pasted."""
    report = declared(max_model_len=limit)
    batches = (Batch(1, MAX_PROMPT_TOKENS + 1, 0, 0), Batch(1, MAX_PROMPT_TOKENS + 1, 2, 2))
    assert cells_of(with_escapes(report, [escape(batch=batch) for batch in batches])) == []
    longest = [escape(batch=Batch(1, MAX_PROMPT_TOKENS, 0, 0))]
    assert [c[:2] for c in cells_of(with_escapes(report, longest))] == [(1, MAX_PROMPT_TOKENS)]


@pytest.mark.parametrize(
    "name",
    [
        "k\ncells: [{prompt_tokens: 1}]",
        "k\r\n- {prompt_tokens: 1}",
        'k"}, x: {"',
        "k\x1b[2J\x7f\x85\u2028- a: b",
        "k" * 5000,
        "\ud800",
    ],
)
def test_a_hostile_name_stays_in_its_comment(name):
    """Line breaks, quotes, terminal escapes, endless and half characters: the cell is one cell."""
    batch = Batch(1, 513, 0, 0)
    report = with_escapes(declared(), [escape(name, batch, backend=name), escape(name)])
    assert [cell[:2] for cell in cells_of(report)] == [(1, 513)]
    assert max(map(len, to_yaml(report, suggested(report)).splitlines())) < 300
    assert json.loads(to_json(suggested(report)))["cells"][0]["cell"]["prompt_tokens"] == 513


def test_a_storm_is_bounded_and_counted():
    """The surest and most frequent first; the rest is a number, and so is what was not kept."""
    escapes = [escape(batch=Batch(1, 2 * n + 2, 0, 0)) for n in range(90)]
    often = [escape(batch=Batch(3, 300, 0, 0))] * 9
    report = replace(with_escapes(declared(), escapes + often), escapes_total=1000)
    made = suggested(report)
    assert len(made.proposals) == MAX_PROPOSALS
    assert made.proposals[0].cell.concurrency == 3
    assert made.left_off == 91 - MAX_PROPOSALS
    assert made.unread == 1000 - 99
    assert "71 more cells" in to_yaml(report, made)
    told = json.loads(to_json(made))
    assert (told["cells_left_off"], told["escapes_not_kept"]) == (71, 901)

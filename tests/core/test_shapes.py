"""Shapes: every way a file can be wrong has its sentence; a right one is read right."""

import re

import pytest

from sidecar.core.errors import ConfigError
from sidecar.core.grid.cells import Endpoint, Role
from sidecar.core.grid.shapes import OnUnfit, OnUnproven, parse
from sidecar.core.yamltext import MAX_BYTES

CELL = "cells: [{prompt_tokens: 350}]\n"
ONE_TO_59 = ", ".join(str(n) for n in range(1, 60))
BOMB = (
    "a: &a [x,x,x,x,x,x,x,x,x,x]\n"
    "b: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\n"
    "c: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]\n"
    "d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c]\n"
    "e: [*d,*d,*d,*d,*d,*d,*d,*d,*d,*d]\n"
)

BAD = [
    # text, what the sentence must say
    ("", "f.yaml: is empty; .*"),
    ("# nothing but a comment\n", "f.yaml: is empty; .*"),
    ("[]", "f.yaml:1: the file must be a mapping .* not a list"),
    ("hello", "f.yaml:1: the file must be a mapping .* not a single value"),
    ("name: x\n", "f.yaml:1: declares nothing to warm; .*"),
    ("grid: ~\n", "f.yaml:1: declares nothing to warm; .*"),
    ("grid: {concurrency: [1", "f.yaml:[12]: not valid YAML .*correct the syntax.*"),
    ("a: 1\n---\nb: 1\n", "f.yaml:2: not valid YAML .a second document starts.*"),
    ("\x00\x01", "f.yaml: not valid YAML .*"),
    ("x" * (MAX_BYTES + 1), "f.yaml: larger than 256 KiB; .*"),
    (BOMB, r"f.yaml:\d: unfolds to more than 20000 values; .*"),
    ("a: &a [*a]", "f.yaml:1: an alias contains itself; .*"),
    ("[" * 100_000, "f.yaml:1: nested deeper than 16 levels; .*"),
    ("[" * 17 + "]" * 17, "f.yaml:1: nested deeper than 16 levels; .*"),
    ("a: [" + "1, " * 20_001 + "]", "f.yaml:1: more than 20000 values; .*"),
    ("a: !!python/object/apply:os.system ['true']", "f.yaml:1: the tag .* is not allowed; .*"),
    ("a: !!binary aGk=", "f.yaml:1: the tag .* is not allowed; .*"),
    ("? [a]\n: b\n", "f.yaml:1: a key must be a plain name"),
    ("name: x\nname: y\n", 'f.yaml:2: the key "name" is there twice; .*'),
    (
        CELL + "on_unfit: skipp\n",
        "f.yaml:2: on_unfit: .skipp. is not allowed; use 'fail' or 'skip'",
    ),
    (
        CELL + "budgett: {}\n",
        'f.yaml:2: unknown key "budgett" in the file.{2}did you mean "budget".*',
    ),
    (
        "grid: {concurency: [1], prompt_tokens: [3]}",
        'f.yaml:1: unknown key "concurency" in grid.{2}did you mean "concurrency".*',
    ),
    ("grid: {concurrency: [1]}", 'f.yaml:1: "prompt_tokens" is missing in grid; add it'),
    ("grid: {concurrency: [], prompt_tokens: [1]}", "f.yaml:1: grid.concurrency: is empty; .*"),
    (
        "grid: {concurrency: 4, prompt_tokens: [1]}",
        r".*grid.concurrency: must be a list; write \[4\]",
    ),
    ("grid: {concurrency: [0], prompt_tokens: [1]}", ".*0 is out of range; it must be at least 1"),
    ("cells: [{prompt_tokens: -5}]", ".*-5 is out of range; it must be at least 1"),
    ("cells: [{prompt_tokens: 99999999}]", ".*out of range; it must be at most 16000000"),
    (f"cells: [{{prompt_tokens: {'9' * 5000}}}]", "f.yaml:1: 9+ is no usable number; correct it"),
    ("cells: [{prompt_tokens: 3.5}]", ".*3.5 is not a whole number; .*"),
    ("cells: [{prompt_tokens: '4'}]", '.*"4" is not a whole number; .*'),
    ("cells: [{prompt_tokens: true}]", ".*true is not a whole number; .*"),
    ("cells: [7]", r".*cells\[0\]: must be a mapping .*, not 7"),
    ("cells: {prompt_tokens: 1}", ".*cells: must be a list; .*"),
    (CELL + "budget: {total_s: .inf}", ".*budget.total_s: inf is out of range; .*"),
    (CELL + "budget: {total_s: .nan}", ".*budget.total_s: nan is out of range; .*"),
    (CELL + "converge: {floor_s: 0}", ".*converge.floor_s: 0 is out of range; .*"),
    (
        "grid: {concurrency: [1, 4, 1], prompt_tokens: [1]}",
        "f.yaml:1: concurrency has 1 twice, duplicate cells; remove one",
    ),
    (
        "cells:\n- {prompt_tokens: 9}\n- {prompt_tokens: 9}\n",
        "f.yaml:3: the cell completions-c1-p9-o16 is there already, in line 2; remove one",
    ),
    (
        f"grid: {{concurrency: [1], prompt_tokens: [350]}}\n{CELL}",
        "f.yaml:2: the cell completions-c1-p350-o16 is there already, in the grid; remove one",
    ),
    (
        f"grid: {{concurrency: [{ONE_TO_59}], prompt_tokens: [{ONE_TO_59}]}}",
        "f.yaml:1: the grid unfolds to 3481 cells, the limit is 1000; .*",
    ),
    (
        f"grid: {{concurrency: [{', '.join(map(str, range(1, 11)))}], "
        f"prompt_tokens: [{', '.join(map(str, range(1, 101)))}]}}\n"
        "cells: [{prompt_tokens: 999}]",
        "f.yaml:2: more than 1000 cells together with the grid; remove some",
    ),
    ("cells: [{prompt_tokens: 5, ramp: true}]", ".*a ramp needs a concurrency of 2 or more.*"),
    (
        "variants: {thinking: {endpoint: chat}}\ncells: [{prompt_tokens: 5, variant: thinkin}]",
        'f.yaml:2: no variant "thinkin" is declared.{2}did you mean "thinking".*',
    ),
    (CELL + "variants: {chat: {endpoint: chat}}", '.*the variant "chat" exists already; .*'),
    (CELL + "variants: {Big: {}}", ".*use small letters.*"),
    (CELL + "variants: {v: 3}", ".*variants.v: must be a mapping .*, not 3"),
    (CELL + "variants: {v: {endpoint: responses}}", ".*endpoint must be completions or chat, .*"),
    (
        CELL + "variants:\n  v:\n    endpoint: chat\n    temprature: 1\n",
        'f.yaml:5: unknown key "temprature" in variants.v.{2}did you mean "temperature".*',
    ),
    (CELL + "variants: {v: {reasoning_effort: max}}", ".*for chat only; add endpoint: chat"),
    (CELL + "variants: {v: {max_tokens: 5}}", ".*not for a variant to set: .*output_tokens.*"),
    (CELL + "variants: {v: {stream: true}}", ".*not for a variant to set: the sidecar streams.*"),
    (CELL + "variants: {v: {endpoint: chat, documents: []}}", ".*documents.*/tokenize doesn't.*"),
    (CELL + "variants: {v: {min_tokens: 5}}", ".*not for a variant to set.*"),
    (CELL + "variants: {v: {guided_json: {}}}", r".*write structured_outputs: \{json: …\}"),
    (CELL + "variants: {v: {temperature: -1}}", ".*variants.v.temperature: -1 is out of range.*"),
    (CELL + "variants: {v: {structured_outputs: {jsn: {}}}}", '.*did you mean "json".*'),
]


@pytest.mark.parametrize(("text", "sentence"), BAD, ids=[s[:40] for _, s in BAD])
def test_a_bad_file_gets_one_sentence_with_file_and_line(text: str, sentence: str) -> None:
    """Whatever is wrong with a shapes file is said in one line that names the place."""
    with pytest.raises(ConfigError) as caught:
        parse(text, "f.yaml")
    said = str(caught.value)
    assert re.fullmatch(sentence, said), said
    assert "\n" not in said


def test_grid_cells_and_defaults() -> None:
    """A grid is every combination, `cells` come on top, and what is left out has a default."""
    shapes = parse(
        "grid: {concurrency: [1, 4], prompt_tokens: [350, 513], variants: [completions, chat]}\n"
        "cells: [{concurrency: 16, prompt_tokens: 16, output_tokens: 8, ramp: true}]\n"
        "heaviest: {prompt_tokens: 8000, output_tokens: 32}\n",
        "f.yaml",
    )
    assert len(shapes.cells) == 2 * 2 * 2 + 1
    assert {c.variant.endpoint for c in shapes.cells} == set(Endpoint)
    assert shapes.cells[-1].ramp == 1
    assert shapes.heaviest is not None
    assert shapes.heaviest.role is Role.HEAVIEST
    assert (shapes.budget.total_s, shapes.budget.request_timeout_s) == (600, 900)
    assert (shapes.on_unfit, shapes.on_unproven) == (OnUnfit.FAIL, OnUnproven.OPEN)


def test_a_variant_carries_what_it_names_and_nothing_else() -> None:
    """Only the fields that stand in the file go into a body, under vLLM's own names."""
    shapes = parse(
        "variants:\n"
        "  max: {endpoint: chat, chat_template_kwargs: {thinking: true}, reasoning_effort: max}\n"
        "  json: {structured_outputs: {json: {type: object}}, logit_bias: {50256: -100}}\n"
        "cells: [{prompt_tokens: 5, variant: max}, {prompt_tokens: 5, variant: json}]\n",
        "f.yaml",
    )
    chat, completions = (c.variant for c in shapes.cells)
    assert chat.fields == {"chat_template_kwargs": {"thinking": True}, "reasoning_effort": "max"}
    assert completions.fields == {
        "structured_outputs": {"json": {"type": "object"}},
        "logit_bias": {"50256": -100},
    }


def test_digest_follows_the_meaning() -> None:
    """Comments, layout and the budget don't change the digest; a cell does."""
    plain = parse("cells: [{prompt_tokens: 5}]", "a.yaml").digest
    assert parse("# why\ncells:\n- prompt_tokens: 5\nbudget: {total_s: 9}\n", "b").digest == plain
    assert parse("cells: [{prompt_tokens: 6}]", "a.yaml").digest != plain
    assert parse("cells: [{prompt_tokens: 5}]\nconverge: {factor: 2}", "a").digest != plain


def test_honest_aliases_are_allowed() -> None:
    """An anchor used twice is no bomb."""
    text = (
        "variants:\n"
        "  one: &base {endpoint: chat, temperature: 0.5}\n"
        "  two: *base\n"
        "cells: [{prompt_tokens: 5, variant: two}]\n"
    )
    assert parse(text, "f.yaml").cells[0].variant.fields == {"temperature": 0.5}

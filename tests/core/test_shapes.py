"""Shapes: every way a file can be wrong has its sentence; a right one is read right."""

import re
from collections.abc import Mapping
from typing import get_args

import pytest

from sidecar.core.errors import ConfigError
from sidecar.core.facts import EngineFacts
from sidecar.core.grid.cells import Endpoint, Role
from sidecar.core.grid.plan import expand
from sidecar.core.grid.profiles import Profile
from sidecar.core.grid.readymade import CONSTRAINTS, SAMPLING, Constraint, Sampling
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
    (
        "cells:\n- {prompt_tokens: 0350}\n",
        "f.yaml:2: YAML reads 0350 as another number; write it without a leading 0 .*",
    ),
    ("cells: [{prompt_tokens: 1:30}]", "f.yaml:1: YAML reads 1:30 as another number; write .*"),
    ("ranks: 2\n" + CELL, r"f.yaml:1: ranks: must be a list; write \[2\]"),
    ("cells:\n", "f.yaml:1: cells: has no value; give it one, or remove it"),
    (
        "variants: {v: {structured_outputs: {json: 5}}}",
        "f.yaml:1: variants.v.structured_outputs.json: must be a mapping of names to values, not 5",
    ),
    (
        "variants: {v: {endpoint: chat, tool_choice: {function: {nome: x}}}}",
        r"f.yaml:1: unknown key .nome. in variants.v.tool_choice.function \(did you mean .name..*",
    ),
    (
        "profiles: [agents]\nvariants: {agents-json: {sampling: n}}\n",
        "f.yaml:2: agents-json-c4-p517-o16: .* can have one request at a time: .*",
    ),
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
    ("budget: {total_s: 1e3}", '.*"1e3" is not a number; write one in digits, .*'),
    ("cells: [7]", r".*cells\[0\]: must be a mapping .*, not 7"),
    ("cells: {prompt_tokens: 1}", ".*cells: must be a list; .*"),
    (CELL + "budget: {total_s: .inf}", ".*inf is out of range; it must be at most 86400"),
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
    (CELL + "variants: {v: {temperature: 2.5}}", ".*variants.v.temperature: 2.5 is out of range.*"),
    (CELL + "variants: {v: {structured_outputs: {jsn: {}}}}", '.*did you mean "json".*'),
    (
        CELL + "variants:\n  v: {sampling: top_kk}\n",
        "f.yaml:3: variants.v.sampling: \"top_kk\" is not allowed; use 'default', 'greedy', .*",
    ),
    (
        CELL + "variants: {v: {sampling: greedy, temperature: 0.7}}",
        "f.yaml:2: variants.v: sampling: greedy is a temperature of 0, not 0.7; remove one",
    ),
    (
        CELL + "variants: {v: {temperature: 0.0, n: 4}}",
        "f.yaml:2: variants.v: several choices at a temperature of 0 .*; remove n or raise .*",
    ),
    (CELL + "variants: {v: {sampling: greedy, n: 2}}", ".*variants.v: several choices at .*"),
    (CELL + "variants: {v: {sampling: n, temperature: 0}}", ".*variants.v: several choices at .*"),
    (CELL + "variants: {v: {n: 1000}}", ".*variants.v.n: 1000 is out of range; .* at most 128"),
    (
        "variants:\n  v: {n: 4}\ncells: [{concurrency: 2, prompt_tokens: 9, variant: v}]",
        'f.yaml:2: v-c2-p9-o16: the variant "v" can have one request at a time: the 4 choices of '
        "each share its prompt .*; give its cells a concurrency of 1",
    ),
    (
        "variants: {v: {prompt_logprobs: 1}}\n"
        "grid: {concurrency: [1, 4], prompt_tokens: [9], variants: [v]}",
        'f.yaml:1: v-c4-p9-o16: the variant "v" can have one request at a time: vLLM streams no '
        "prompt_logprobs, .*; give its cells a concurrency of 1",
    ),
    (
        "variants: {v: {sampling: n}}\ncells: [{prompt_tokens: 5}]\n"
        "heaviest: {concurrency: 2, prompt_tokens: 900, variant: v}",
        "f.yaml:1: v-c2-p900-o16-heaviest: .* give its cells a concurrency of 1",
    ),
    (
        "variants: {v: {sampling: n}}\n"
        "special: {prefix_hit: [{prefix_tokens: 64, prompt_tokens: 99, variant: v}]}",
        "f.yaml:1: v-c1-p99-o16-hit64: .* can have no prefix_hit: .*; use another variant",
    ),
    (
        CELL + "variants: {v: {structured_outputs: jsonn}}",
        ".*variants.v.structured_outputs: .jsonn. is not allowed; use 'json', 'regex', .*",
    ),
    (
        CELL + "variants: {v: {structured_outputs: {regex: a, choice: [b]}}}",
        "f.yaml:2: variants.v.structured_outputs: regex and choice are two constraints; keep one",
    ),
    (
        CELL + "variants: {v: {structured_outputs: {disable_any_whitespace: true}}}",
        ".*variants.v.structured_outputs: names no constraint; give one of json, regex, .*",
    ),
    (
        CELL + "variants: {v: {structured_outputs: json, response_format: {type: json_object}}}",
        ".*variants.v: structured_outputs and response_format both constrain .*; keep one",
    ),
    (
        CELL + "variants: {v: {response_format: {type: json}}}",
        ".*variants.v.response_format.type: .json. is not allowed; use 'text', 'json_object', .*",
    ),
    (
        CELL + "variants: {v: {response_format: {type: json_schema}}}",
        ".*variants.v.response_format: type: json_schema needs json_schema; add it",
    ),
    (
        CELL + "variants: {v: {response_format: {type: text, json_schema: {name: x}}}}",
        ".*json_schema belongs to type: json_schema, not text; change one of them",
    ),
    (CELL + "variants: {v: {response_format: {typ: text}}}", '.*did you mean "type".*'),
    (
        CELL + "variants: {v: {endpoint: chat, top_logprobs: 5}}",
        "f.yaml:2: variants.v: top_logprobs goes with logprobs: true; write logprobs: 5 alone.*",
    ),
    (
        CELL + "variants: {v: {endpoint: chat, logprobs: many}}",
        '.*variants.v.logprobs: "many" is not a whole number; .*',
    ),
    (CELL + "variants: {v: {logprobs: true}}", ".*variants.v.logprobs: true is not a whole .*"),
    (
        CELL + "variants: {v: {endpoint: chat, include_reasoning: false}}",
        "f.yaml:2: variants.v: include_reasoning: false hides the first tokens, .*; remove it, .*",
    ),
    (
        CELL + "variants: {v: {endpoint: chat, tool_choice: required}}",
        ".*variants.v: tool_choice: required needs tools; add them",
    ),
    (
        CELL + "variants: {v: {endpoint: chat, tools: [{function: {name: look}}], "
        "tool_choice: {function: {name: lok}}}}",
        '.*tool_choice names "lok", which is none of the tools .did you mean "look".*',
    ),
    (
        CELL + "variants: {v: {endpoint: chat, tools: [{function: {nam: look}}]}}",
        r'.*unknown key "nam" in variants.v.tools\[0\].function .did you mean "name".*',
    ),
    (
        CELL + "variants: {v: {endpoint: chat, functions: []}}",
        r".*no field \"functions\" any more, or not here; write tools: \[.*",
    ),
    (
        CELL + "variants: {v: {json_schema: {}}}",
        r".*write response_format: \{type: json_schema, json_schema: .*",
    ),
    (
        "profiles: [agent]\n",
        r"f.yaml:1: profiles\[0\]: \"agent\" is not allowed; use 'agents', 'rag' or 'chat'",
    ),
    (
        "profiles: [chat, chat]\n",
        'f.yaml:1: profiles has "chat" twice; remove one',
    ),
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


def fields(variant: str) -> Mapping[str, object]:
    """What a variant, written as in a file, puts into a body."""
    text = f"variants: {{v: {variant}}}\ncells: [{{prompt_tokens: 5, variant: v}}]\n"
    return parse(text, "f.yaml").cells[0].variant.fields


@pytest.mark.parametrize("name", get_args(Sampling))
def test_a_way_to_sample_is_written_out_in_full(name: Sampling) -> None:
    """Each sets every field that picks a sampler, so that no default of the model's mixes in."""
    given = fields(f"{{sampling: {name}}}")
    assert given == SAMPLING[name]
    assert name == "default" or given.keys() >= {
        *("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
    }
    assert len({str(sorted(one.items())) for one in SAMPLING.values()}) == len(SAMPLING)


def test_a_field_beside_a_way_to_sample_wins() -> None:
    """`sampling: top_k` with a k of one's own."""
    given = fields("{sampling: top_k, top_k: 20}")
    assert (given["top_k"], given["top_p"]) == (20, 1.0)


def test_logprobs_mean_the_same_at_both_endpoints() -> None:
    """A number N: N for completions, true and top_logprobs N for chat."""
    assert fields("{logprobs: 5}") == {"logprobs": 5}
    assert fields("{endpoint: chat, logprobs: 5}") == {"logprobs": True, "top_logprobs": 5}
    assert fields("{endpoint: chat, logprobs: true, top_logprobs: 2}") == {
        "logprobs": True,
        "top_logprobs": 2,
    }


@pytest.mark.parametrize("name", get_args(Constraint))
def test_a_ready_made_constraint_is_written_out(name: Constraint) -> None:
    """`structured_outputs: json` is one whole constraint of that kind."""
    assert fields(f"{{structured_outputs: {name}}}") == {"structured_outputs": CONSTRAINTS[name]}
    assert list(CONSTRAINTS[name]) == [name]


def test_the_ready_made_constraints_outlast_a_wave() -> None:
    """None is through before 500 tokens of ten characters; what comes after is not constrained."""
    assert re.fullmatch(str(CONSTRAINTS["regex"]["regex"]), "7" * 2000)
    assert not re.match(str(CONSTRAINTS["regex"]["regex"]), "7" * 1999)
    assert all(len(choice) > 3000 for choice in CONSTRAINTS["choice"]["choice"])
    assert CONSTRAINTS["json"]["json"]["properties"]["steps"]["minItems"] >= 1000


def test_tools_ask_for_the_ids_of_their_tokens() -> None:
    """vLLM holds the text of a call back: without ids its first token could not be timed."""
    tools = "tools: [{type: function, function: {name: look, parameters: {type: object}}}]"
    given = fields(f"{{endpoint: chat, {tools}, tool_choice: {{function: {{name: look}}}}}}")
    assert given["return_token_ids"] is True
    assert given["tool_choice"] == {"function": {"name": "look"}}
    assert (
        fields(f"{{endpoint: chat, {tools}, return_token_ids: false}}")["return_token_ids"] is False
    )


@pytest.mark.parametrize("name", get_args(Profile))
def test_a_profile_is_cells_and_variants(name: Profile) -> None:
    """`profiles: [agents]` alone is a shapes file, and its cells fit an ordinary engine."""
    shapes = parse(f"profiles: [{name}]\n", "f.yaml")
    assert not shapes.cells
    assert len(shapes.derived.profiled) >= 8
    plan = expand(shapes, EngineFacts(max_model_len=32_768, max_num_batched_tokens=8192))
    assert plan.refusal is None
    assert len(plan.cells) == len(shapes.derived.profiled)
    assert f"profiles: {len(plan.cells)} cells" in plan.notes


def test_what_of_a_profile_does_not_fit_is_left_out_and_said() -> None:
    """A small engine warms the rest: nobody wrote these cells one by one."""
    plan = expand(parse("profiles: [agents]\n", "f.yaml"), EngineFacts(max_model_len=8192))
    assert plan.refusal is None
    assert plan.cells
    assert any("24001" in warning and "is left out" in warning for warning in plan.warnings)


def test_profiles_and_cells_of_ones_own_go_together() -> None:
    """A cell that is there already is not sent twice; a variant of the same name replaces theirs;
    theirs can be used."""
    shapes = parse(
        "profiles: [chat, rag]\n"
        "variants: {rag-greedy: {endpoint: chat, sampling: top_p}}\n"
        "cells:\n"
        "- {prompt_tokens: 350, variant: chat}\n"
        "- {prompt_tokens: 77, variant: rag-scored}\n",
        "f.yaml",
    )
    assert shapes.cells[1].variant.fields["top_logprobs"] == 1
    assert shapes.cells[0] not in shapes.derived.profiled
    replaced = [c for c in shapes.derived.profiled if c.variant.name == "rag-greedy"]
    assert {c.variant.fields["top_p"] for c in replaced} == {0.9}

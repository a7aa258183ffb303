"""Shapes: a whole file, with one value after another made wrong."""

import re
from collections.abc import Iterator
from copy import deepcopy
from itertools import cycle
from typing import Any

import pytest
import yaml

from sidecar.core.errors import ConfigError
from sidecar.core.facts import EngineFacts
from sidecar.core.grid.plan import expand
from sidecar.core.grid.shapes import parse

WHOLE = yaml.safe_load(
    """
grid:
  concurrency: [1, 4]
  prompt_tokens: [350]
  output_tokens: [16]
  variants: [chat]
  drafts: [rejected]
cells:
- {concurrency: 1, prompt_tokens: 513, output_tokens: 4, variant: a, drafts: [accepted]}
- {concurrency: 8, prompt_tokens: 16, ramp: true}
variants:
  a:
    endpoint: chat
    chat_template_kwargs: {x: true}
    logprobs: 3
    tools: [{type: function, function: {name: x, parameters: {type: object}}}]
    tool_choice: {function: {name: x}}
  b: {sampling: top_k, structured_outputs: {json: {type: object}}, logit_bias: {1: 0.5}}
  c: {structured_outputs: json, response_format: {type: text}}
  d: {response_format: {type: json_schema, json_schema: {name: x, schema: {type: object}}}}
profiles: [agents]
special:
  off_grid: true
  chunk_crossing: [1, 2]
  cudagraph: true
  prefix_hit: [{prefix_tokens: 2000, prompt_tokens: 2350, concurrency: 4}]
  mixed: [{concurrency: 4, arriving_tokens: 6000}]
heaviest: {concurrency: 1, prompt_tokens: 130000, output_tokens: 16}
ranks: [0, 1]
engine: {max_num_seqs: 8, capture_sizes: [1, 2], draft_tokens: 3}
budget: {total_s: 600, passes: 4}
converge: {floor_s: 0.1}
on_unfit: fail
"""
)
JUNK = (None, True, -1, 2.5, float("nan"), 10**30, "", "x" * 5000, [], [[]], {}, {"x": 1}, [1, 1])
FORM = re.compile(r"f\.yaml:\d+: [^\n]{20,500}")
INSIDE = re.compile(r"~|literal\[|dict\[|\bNone\b|union|validator|pydantic")
"""What only the program's own words would have."""


def _paths(value: Any, at: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    children = value.items() if isinstance(value, dict) else enumerate(value)
    for key, child in children:
        yield (*at, key)
        if isinstance(child, dict | list):
            yield from _paths(child, (*at, key))


def _mutated(path: tuple[str | int, ...], junk: Any) -> str:
    whole = deepcopy(WHOLE)
    parent = whole
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = junk
    return yaml.safe_dump(whole, sort_keys=False)


@pytest.mark.parametrize("offset", range(2))
def test_any_wrong_value_gets_one_sentence(offset: int) -> None:
    """Wherever a value is wrong: file, line, place and what is wrong, in the file's words; or it
    is allowed, and a plan can be made of it."""
    junk = cycle(JUNK[offset * 5 :] + JUNK[: offset * 5])
    told = [said for path in _paths(WHOLE) if (said := _complaint(_mutated(path, next(junk))))]
    assert len(told) > 50
    assert [said for said in told if not FORM.fullmatch(said) or INSIDE.search(said)] == []


def _complaint(text: str) -> str | None:
    try:
        expand(parse(text, "f.yaml"), EngineFacts())
    except ConfigError as error:
        return str(error)
    return None

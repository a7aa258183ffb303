"""Ready-made parts of a variant: ways to sample, and constraints that outlast a wave."""

from collections.abc import Mapping
from typing import Any, Literal

Sampling = Literal[
    "default",
    "greedy",
    "top_k",
    "top_p",
    "top_k_top_p",
    "min_p",
    "penalties",
    "seeded",
    "n",
]
Constraint = Literal["json", "regex", "choice", "grammar"]

# Each names every field that picks a sampler kernel, for vLLM fills in what is left out from the
# model's generation_config.json, where top_p: 0.95 would make another path of a plain top_k.
_PLAIN = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}

SAMPLING: Mapping[Sampling, Mapping[str, Any]] = {
    "default": {},
    "greedy": _PLAIN | {"temperature": 0.0},
    "top_k": _PLAIN | {"top_k": 50},
    "top_p": _PLAIN | {"top_p": 0.9},
    "top_k_top_p": _PLAIN | {"top_k": 50, "top_p": 0.9},
    "min_p": _PLAIN | {"min_p": 0.05},
    "penalties": _PLAIN
    | {"repetition_penalty": 1.1, "frequency_penalty": 0.5, "presence_penalty": 0.5},
    "seeded": _PLAIN | {"seed": 1234},
    "n": _PLAIN | {"n": 4},
}
"""What `sampling: NAME` puts into a body. A field that stands beside it in the file wins."""

_STEP = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "value": {"type": "number"}},
    "required": ["name", "value"],
    "additionalProperties": False,
}

CONSTRAINTS: Mapping[Constraint, Mapping[str, Any]] = {
    # None of them can end before several hundred tokens. With `ignore_eos` an ended grammar is no
    # end of the answer: vLLM goes on without it (0.32 v1/structured_output/__init__.py,
    # _fill_bitmasks), and what was to be warmed is no longer run.
    "json": {
        "json": {
            "type": "object",
            "properties": {"steps": {"type": "array", "minItems": 1000, "items": _STEP}},
            "required": ["steps"],
            "additionalProperties": False,
        }
    },
    "regex": {"regex": "[0-9]{2000}"},
    "choice": {"choice": [" ".join(map(str, range(1000)))]},
    "grammar": {"grammar": 'root ::= line root\nline ::= [a-z ]+ "\\n"\n'},
}
"""What `structured_outputs: NAME` puts into a body."""

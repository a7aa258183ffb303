"""Ready-made profiles: what users of a kind send, as variants, lengths and concurrencies.

A profile is a piece of a shapes file. Its variants can be used in the file that names it, and one
of the same name there replaces it. Lengths are odd, or not of 16: see `shapes/default.yaml`.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Literal

from sidecar.core.grid.cells import Endpoint, Variant
from sidecar.core.grid.shapesfile import ShapesForm, VariantForm
from sidecar.core.grid.variants import fields_of

BUILT_IN = {
    "completions": Variant("completions", Endpoint.COMPLETIONS),
    "chat": Variant("chat", Endpoint.CHAT),
}
"""Variants that need no declaration."""

Profile = Literal["agents", "rag", "chat"]

# Templates differ in the name: Qwen's reads the first, DeepSeek's the second, others neither.
_THINKING = {"enable_thinking": True, "thinking": True}
_DIRECT = {"enable_thinking": False, "thinking": False}


def _tool(name: str, what: str, **parameters: str) -> dict[str, Any]:
    properties = {key: {"type": kind} for key, kind in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    return {
        "type": "function",
        "function": {"name": name, "description": what, "parameters": schema},
    }


_TOOLS = [
    _tool("read_file", "Read lines of a file.", path="string", first="integer", last="integer"),
    _tool("run", "Run a command in a shell.", command="string", timeout_s="number"),
]


def _cell(
    concurrency: int, prompt_tokens: int, output_tokens: int, variant: str, **more: Any
) -> dict[str, Any]:
    return {
        "concurrency": concurrency,
        "prompt_tokens": prompt_tokens,
        "output_tokens": output_tokens,
        "variant": variant,
        **more,
    }


def _hit(concurrency: int, prefix_tokens: int, prompt_tokens: int, variant: str) -> dict[str, Any]:
    return {
        "concurrency": concurrency,
        "prefix_tokens": prefix_tokens,
        "prompt_tokens": prompt_tokens,
        "variant": variant,
    }


_PIECES: Mapping[Profile, Mapping[str, Any]] = {
    # A history that grows by a few hundred tokens a turn, its beginning in the cache; calls of
    # tools, whose grammar needs the thinking to be over; one to eight agents at once.
    "agents": {
        "variants": {
            "agents-thinking": {"endpoint": "chat", "chat_template_kwargs": _THINKING},
            "agents-tools": {
                "endpoint": "chat",
                "chat_template_kwargs": _DIRECT,
                "tools": _TOOLS,
                # "auto" and "required" need a tool parser on the server; the prompt is the same.
                "tool_choice": "none",
            },
            "agents-json": {
                "endpoint": "chat",
                "chat_template_kwargs": _DIRECT,
                "structured_outputs": "json",
            },
        },
        "cells": [
            _cell(1, 1033, 16, "agents-tools"),
            _cell(4, 1033, 16, "agents-tools"),
            _cell(1, 517, 16, "agents-json"),
            _cell(4, 517, 16, "agents-json"),
            _cell(8, 517, 32, "agents-json"),
            _cell(1, 1543, 16, "agents-thinking"),
            _cell(8, 1543, 16, "agents-thinking"),
            _cell(1, 6007, 16, "agents-thinking"),
            _cell(1, 24001, 16, "agents-thinking"),
            _cell(8, 16, 8, "completions", ramp=True),
        ],
        "special": {
            "prefix_hit": [
                _hit(1, 1536, 1893, "agents-thinking"),
                _hit(4, 1536, 1893, "agents-thinking"),
                _hit(1, 6144, 6471, "agents-thinking"),
            ],
        },
    },
    # Long prompts of documents behind the same instructions, short greedy answers, few at a time;
    # logprobs for those who score.
    "rag": {
        "variants": {
            "rag-greedy": {"endpoint": "chat", "sampling": "greedy"},
            "rag-scored": {"endpoint": "chat", "sampling": "greedy", "logprobs": 1},
        },
        "cells": [
            _cell(1, 350, 16, "rag-greedy"),
            _cell(1, 3001, 16, "rag-greedy"),
            _cell(4, 3001, 16, "rag-greedy"),
            _cell(1, 6007, 16, "rag-greedy"),
            _cell(2, 6007, 16, "rag-greedy"),
            _cell(1, 16001, 16, "rag-greedy"),
            _cell(1, 1025, 8, "rag-scored"),
            _cell(8, 16, 8, "completions", ramp=True),
        ],
        "special": {
            "prefix_hit": [_hit(1, 1024, 3001, "rag-greedy"), _hit(4, 1024, 3001, "rag-greedy")],
        },
    },
    # Questions of people: short and middling, as the server samples by itself, many at once.
    "chat": {
        "cells": [
            _cell(1, 97, 16, "chat"),
            _cell(1, 350, 16, "chat"),
            _cell(1, 1025, 16, "chat"),
            _cell(1, 3001, 16, "chat"),
            _cell(2, 97, 16, "chat"),
            _cell(4, 350, 16, "chat"),
            _cell(8, 257, 16, "chat"),
            _cell(16, 97, 16, "chat"),
            _cell(32, 16, 8, "completions", ramp=True),
        ],
    },
}


@cache
def piece(name: Profile) -> ShapesForm:
    """The piece of a shapes file that a profile stands for."""
    return ShapesForm.model_validate(_PIECES[name])


def pieces(names: Iterable[Profile]) -> Sequence[ShapesForm]:
    """Of several profiles, in order."""
    return [piece(name) for name in names]


def variants_of(*forms: Mapping[str, VariantForm]) -> dict[str, Variant]:
    """By name; a later one replaces an earlier one."""
    return {
        name: Variant(name, Endpoint(form.endpoint), fields_of(form))
        for variants in forms
        for name, form in variants.items()
    }

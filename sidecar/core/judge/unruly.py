"""R2: whether an answer shows that the constraint which its cell is for was not in force.

On a server with a reasoning parser vLLM constrains nothing before the thought has ended (0.32
v1/structured_output/__init__.py, `reasoning_ended`). A wave is over by then, or, at
/v1/completions, there is no thought that could end: such a wave would leave the bitmask kernel
cold. Seen on 0.32 with `--reasoning-parser qwen3`: plain text for a regex of digits.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from sidecar.core.grid.cells import Variant
from sidecar.core.grid.readymade import CONSTRAINTS
from sidecar.core.results import Result

_THOUGHT = (
    "the answer began with reasoning, where vLLM constrains nothing: switch thinking off in the "
    "variant (reasoning_effort: none, or chat_template_kwargs by the template's own name)"
)
_FREE = (
    "the answer is not constrained as the variant asks: with a reasoning parser vLLM waits for "
    "the end of a thought; use endpoint: chat with thinking off"
)
_JSON_BEGINS = {"object": "{", "array": "[", "string": '"'}


def unruly(result: Result, variant: Variant) -> str | None:
    """Why the constraint was not in force; None: it was, there is none, or it can't be told."""
    fits = _begins(variant.fields)
    if fits is None:
        return None
    if result.thought:
        return _THOUGHT
    return None if not result.begins.strip() or fits(result.begins) else _FREE


def _begins(fields: Mapping[str, Any]) -> Callable[[str], bool] | None:
    """How an answer may begin; None without a constraint."""
    ruled = fields.get("structured_outputs")
    form = fields.get("response_format")
    if isinstance(ruled, Mapping):
        return _of_structured(ruled)
    if isinstance(form, Mapping) and form.get("type") == "json_object":
        return lambda text: text.lstrip().startswith("{")
    if isinstance(form, Mapping) and form.get("type") == "json_schema":
        return _of_schema((form.get("json_schema") or {}).get("schema"))
    choice = fields.get("tool_choice")
    return _anyhow if choice == "required" or isinstance(choice, Mapping) else None


def _of_structured(ruled: Mapping[str, Any]) -> Callable[[str], bool] | None:
    if "json" in ruled:
        return _of_schema(ruled["json"])
    if ruled.get("json_object"):
        return lambda text: text.lstrip().startswith("{")
    if ruled.get("choice"):
        choices: list[str] = ruled["choice"]
        return lambda text: any(c.startswith(text) or text.startswith(c) for c in choices)
    if ruled == CONSTRAINTS["regex"]:
        return str.isdigit
    if ruled == CONSTRAINTS["grammar"]:
        return lambda text: all(c in " \n" or "a" <= c <= "z" for c in text)
    # A structural tag is free until its trigger comes.
    return None if "structural_tag" in ruled else _anyhow


def _of_schema(schema: object) -> Callable[[str], bool]:
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except ValueError:
            return _anyhow
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    begins = _JSON_BEGINS.get(kind) if isinstance(kind, str) else None
    return _anyhow if begins is None else lambda text: text.lstrip().startswith(begins)


def _anyhow(_: str) -> bool:
    """Of another's own regex or grammar it isn't told how an answer begins."""
    return True

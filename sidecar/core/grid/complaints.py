"""What pydantic found wrong in a shapes file → one sentence with file, line and remedy."""

from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from sidecar.core.grid.fields import OWNED, RENAMED
from sidecar.core.grid.shapesfile import (
    BudgetForm,
    CellForm,
    ConvergeForm,
    EngineForm,
    Grid,
    Heaviest,
    Mixed,
    PrefixHit,
    ShapesForm,
    Special,
)
from sidecar.core.grid.variants import (
    RULE,
    UNNAMED,
    ChatVariant,
    CompletionsVariant,
    Function,
    JsonSchema,
    NamedTool,
    ResponseFormat,
    StructuredOutputs,
    Tool,
)
from sidecar.core.nearest import suggest
from sidecar.core.yamltext import Document

_SECTIONS: dict[str, type[BaseModel]] = {
    "grid": Grid,
    "cells": CellForm,
    "heaviest": Heaviest,
    "special": Special,
    "prefix_hit": PrefixHit,
    "mixed": Mixed,
    "engine": EngineForm,
    "budget": BudgetForm,
    "converge": ConvergeForm,
    "completions": CompletionsVariant,
    "chat": ChatVariant,
    "structured_outputs": StructuredOutputs,
    "response_format": ResponseFormat,
    "json_schema": JsonSchema,
    "tools": Tool,
    "function": Function,
    "tool_choice": NamedTool,
}


def complaint(error: ValidationError, document: Document, name: str) -> str:
    """The most telling error, as a sentence, and how many more there are.

    An unknown key comes first: it is often the reason why another one is missing.
    """
    details = error.errors(include_url=False, include_context=True)
    details.sort(key=lambda d: (d["type"] != "extra_forbidden", document.line_of(tuple(d["loc"]))))
    first = details[0]
    line = document.line_of(tuple(first["loc"]))
    more = f" (and {len(details) - 1} more like this)" if len(details) > 1 else ""
    return f"{name}:{line}: {_sentence(first)}{more}"


_SENTENCES = {
    "union_tag_invalid": "endpoint must be completions or chat, not {tag}",
    "literal_error": "{value} is not allowed; use {expected}",
    "greater_than_equal": "{value} is out of range; it must be at least {ge}",
    "greater_than": "{value} is out of range; it must be more than {gt}",
    "less_than_equal": "{value} is out of range; it must be at most {le}",
    "less_than": "{value} is out of range; it must be less than {lt}",
    "finite_number": "{value} is out of range; it must be a finite number",
    "int_type": "{value} is not a whole number; write one, without quotes",
    "int_from_float": "{value} is not a whole number; write one, without quotes",
    "float_type": "{value} is not a number; write one, without quotes",
    "bool_type": "{value} is neither true nor false; write one of them",
    "string_type": "{value} is not text; put it in quotes",
    "list_type": "must be a list; write [{value}]",
    "model_type": "must be a mapping of names to values, not {value}",
    "dict_type": "must be a mapping of names to values, not {value}",
    "too_long": "more than {max_length} entries; shorten it",
    "too_short": "is empty; give at least one value",
    "string_pattern_mismatch": "{value}: use small letters, digits and - _ . for a variant's name",
}
"""By pydantic's error type, with its context and the offending value."""


def _sentence(detail: ErrorDetails) -> str:
    kind, loc = detail["type"], detail["loc"]
    if kind == RULE:
        return f"{_place(loc)}: {detail['msg']}"
    if kind == "extra_forbidden":
        return _unknown(loc)
    if kind == "missing":
        return f'"{loc[-1]}" is missing in {_place(loc[:-1])}; add it'
    if kind in _SENTENCES:
        words = {"value": _short(detail["input"])} | detail.get("ctx", {})
        return f"{_place(loc)}: {_SENTENCES[kind].format(**words)}"
    return f"{_place(loc)}: {detail['msg'][:1].lower()}{detail['msg'][1:]}; correct it"


def _unknown(loc: tuple[str | int, ...]) -> str:
    key = str(loc[-1])
    section = next((e for e in reversed(loc[:-1]) if isinstance(e, str) and e in _SECTIONS), "")
    in_variant = section in ("completions", "chat")
    if in_variant and key in OWNED:
        return f'{_place(loc[:-1])}: "{key}" is not for a variant to set: {OWNED[key]}; remove it'
    if in_variant and key in RENAMED:
        return (
            f'{_place(loc[:-1])}: vLLM has no field "{key}" any more, or not here; '
            f"write {RENAMED[key]}"
        )
    model = _SECTIONS.get(section, ShapesForm)
    known = [field.alias or name for name, field in model.model_fields.items()]
    if section == "completions" and key in ChatVariant.model_fields:
        return f'{_place(loc[:-1])}: "{key}" is for chat only; add endpoint: chat'
    return (
        f"unknown key {_short(key)} in {_place(loc[:-1])}"
        f"{suggest(key, known) or '; it takes ' + ', '.join(known)}"
    )


def _place(loc: tuple[str | int, ...]) -> str:
    """`grid.concurrency[2]`, without the names that pydantic gives to members of unions."""
    parts = [part for part in loc if not str(part).startswith(UNNAMED)]
    if len(parts) > 2 and parts[0] == "variants":
        del parts[2]
    text = ""
    for part in parts:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text or "the file"


def _short(value: Any) -> str:
    """As it would stand in the file, cut."""
    if isinstance(value, str):
        text = f'"{value}"'
    else:
        text = str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= 40 else text[:37] + "…"

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
    ChatVariant,
    CompletionsVariant,
    Function,
    JsonSchema,
    NamedFunction,
    NamedTool,
    ResponseFormat,
    StructuredOutputs,
    Tool,
)
from sidecar.core.nearest import suggest
from sidecar.core.yamltext import Document, Path

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
    # Each member of a union complains of the same value.
    faults = {(document.there(d["loc"]), d["type"] == "missing" and d["loc"]) for d in details}
    more = f" (and {len(faults) - 1} more like this)" if len(faults) > 1 else ""
    line = document.line_of(tuple(first["loc"]))
    return f"{name}:{line}: {_sentence(first, document)}{more}"


_SENTENCES = {
    "union_tag_invalid": "endpoint must be completions or chat, not {value}",
    "literal_error": "{value} is not allowed; use {expected}",
    "greater_than_equal": "{value} is out of range; it must be at least {ge}",
    "greater_than": "{value} is out of range; it must be more than {gt}",
    "less_than_equal": "{value} is out of range; it must be at most {le}",
    "less_than": "{value} is out of range; it must be less than {lt}",
    "finite_number": "{value} is out of range; it must be a finite number",
    "int_type": "{value} is not a whole number; write one in digits, without quotes",
    "int_from_float": "{value} is not a whole number; write one in digits, without quotes",
    "float_type": "{value} is not a number; write one in digits, without quotes",
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


def _sentence(detail: ErrorDetails, document: Document) -> str:
    kind, loc, value = detail["type"], detail["loc"], detail["input"]
    place = _place(document.there(loc))
    if kind == RULE:
        return f"{place}: {detail['msg']}"
    if kind == "extra_forbidden":
        return _unknown(loc, _place(document.there(loc[:-1])))
    if kind == "missing":
        return f'"{loc[-1]}" is missing in {place}; add it'
    if value is None:
        return f"{place}: has no value; give it one, or remove it"
    if kind in _SENTENCES:
        value = value.get("endpoint") if kind == "union_tag_invalid" else value
        words = {n: _plain(bound) for n, bound in detail.get("ctx", {}).items()}
        words["value"] = _short(value)
        return f"{place}: {_SENTENCES[kind].format(**words)}"
    return f"{place}: {detail['msg'][:1].lower()}{detail['msg'][1:]}; correct it"


def _unknown(loc: tuple[str | int, ...], place: str) -> str:
    key = str(loc[-1])
    section = next((e for e in reversed(loc[:-1]) if isinstance(e, str) and e in _SECTIONS), "")
    in_variant = section in ("completions", "chat")
    if in_variant and key in OWNED:
        return f'{place}: "{key}" is not for a variant to set: {OWNED[key]}; remove it'
    if in_variant and key in RENAMED:
        return f'{place}: vLLM has no field "{key}" any more, or not here; write {RENAMED[key]}'
    model = _SECTIONS.get(section, ShapesForm)
    if section == "function" and "tool_choice" in loc:
        model = NamedFunction
    known = [field.alias or name for name, field in model.model_fields.items()]
    if section == "completions" and key in ChatVariant.model_fields:
        return f'{place}: "{key}" is for chat only; add endpoint: chat'
    return (
        f"unknown key {_short(key)} in {place}"
        f"{suggest(key, known) or '; it takes ' + ', '.join(known)}"
    )


def _place(path: Path) -> str:
    """`grid.concurrency[2]`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text or "the file"


def _plain(bound: Any) -> Any:
    """86400 and not 86400.0."""
    return int(bound) if isinstance(bound, float) and bound.is_integer() else bound


def _short(value: Any) -> str:
    """As it would stand in the file, cut."""
    if value is None:
        return "nothing"
    if isinstance(value, str):
        text = f'"{value}"'
    else:
        text = str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= 40 else text[:37] + "…"

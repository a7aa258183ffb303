"""Whether an engine's /openapi.json lists what a variant sets.

`facts.from_openapi` makes plain names of it: `structured_outputs`, one level down
`structured_outputs.json`, and where only some values are allowed `response_format.type=text`.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sidecar.core.nearest import suggest


@dataclass(frozen=True, slots=True)
class Unlisted:
    """The first thing that is not listed."""

    field: str
    hint: str
    """The nearest that is, or nothing."""
    remedy: str


def unlisted(fields: Mapping[str, Any], listed: Collection[str]) -> Unlisted | None:
    """The first field, inner field or value that isn't listed; None: all are, or it isn't told."""
    for name, value in fields.items():
        found = _field(name, value, listed) or _inner(name, value, listed)
        if found is not None:
            return found
    return None


def _field(path: str, value: Any, listed: Collection[str]) -> Unlisted | None:
    if path not in listed:
        head, _, name = path.rpartition(".")
        beside = [n.rpartition(".")[2] for n in listed if n.rpartition(".")[0] == head]
        return Unlisted(
            path,
            suggest(name, [n for n in beside if "=" not in n]),
            "correct or remove the field, since vLLM would ignore it in silence",
        )
    values = sorted(n.partition("=")[2] for n in listed if n.startswith(f"{path}="))
    if values and isinstance(value, str) and value not in values:
        return Unlisted(f"{path}: {value}", suggest(value, values), f"use {', '.join(values)}")
    return None


def _inner(path: str, value: Any, listed: Collection[str]) -> Unlisted | None:
    if not isinstance(value, Mapping) or not any(n.startswith(f"{path}.") for n in listed):
        return None
    return next((f for n, v in value.items() if (f := _field(f"{path}.{n}", v, listed))), None)

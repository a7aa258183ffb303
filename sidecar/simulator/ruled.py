"""Answers under a constraint: what is asked for in `structured_outputs` or `response_format`.

No grammar is run: for each kind there is a text that obeys it, said token by token.
"""

from collections.abc import Mapping
from itertools import chain, repeat
from typing import Any

from sidecar.simulator import tokenizer
from sidecar.simulator.bodies import Refusal

_LONGEST = 4000
"""Characters of such a text. Behind it the answer is free, as after the end of a grammar."""

_KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")


def ruled_ids(body: Mapping[str, Any]) -> list[int]:
    """The tokens that the answer begins with; [] where it is free. Raises Refusal."""
    return tokenizer.encode(_text(body))


def _text(body: Mapping[str, Any]) -> str:
    ruled, form = body.get("structured_outputs"), body.get("response_format")
    if isinstance(ruled, Mapping):
        given = [kind for kind in _KINDS if ruled.get(kind) is not None]
        if len(given) > 1:
            raise Refusal(
                400,
                "You can only use one kind of structured outputs constraint but multiple are "
                f"specified: {dict(ruled)}",
                param="structured_outputs",
            )
        if not given:
            raise Refusal(
                400,
                "You must use one kind of structured outputs constraint but none are specified: "
                f"{dict(ruled)}",
            )
        return _of_kind(given[0], ruled[given[0]])
    if isinstance(form, Mapping) and form.get("type") == "json_schema":
        return _of_kind("json", (form.get("json_schema") or {}).get("schema"))
    return _of_kind("json", {}) if isinstance(form, Mapping) and form["type"] != "text" else ""


def _of_kind(kind: str, value: Any) -> str:
    if kind == "choice":
        return str(value[0])
    if kind in ("json", "json_object"):
        is_list = isinstance(value, Mapping) and value.get("type") == "array"
        return _endless("[" if is_list else '{"steps": [', '{"name": "a", "value": 1}, ')
    return _endless("", "7" if kind == "regex" else "a b\n" if kind == "grammar" else "")


def _endless(begin: str, item: str) -> str:
    return "".join(chain([begin], repeat(item, _LONGEST // max(1, len(item)))))

"""An HTTP answer, and how to tell an operator of it."""

import json
from dataclasses import dataclass

from sidecar.core.sse import error_of, one_line


@dataclass(frozen=True, slots=True)
class Answer:
    """One HTTP answer, read to its end or to the bound."""

    status: int
    content_type: str
    body: bytes
    location: str = ""


def says(answer: Answer) -> str:
    """`404 "The model does not exist"`, `200 with text/html`: an answer in a few words."""
    return describe(answer.status, answer.content_type, answer.body)


def describe(status: int, content_type: str, body: bytes) -> str:
    """Status, and vLLM's error message where the body has one, else the kind of the body."""
    try:
        parsed = json.loads(body) if len(body) < 1 << 20 else None
    except (ValueError, RecursionError):
        parsed = None
    if isinstance(parsed, dict):
        error = parsed.get("error") or parsed.get("detail") or parsed.get("message")
        return f"{status}: {error_of(error)[0]}" if error else f"{status} with JSON"
    kind = content_type.partition(";")[0].strip() or "no content type"
    return f"{status} with {one_line(kind, 60)}"

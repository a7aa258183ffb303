"""Bytes of a stream → events. Knows no socket: any split of the bytes gives the same events.

vLLM ends lines with LF and events with an empty line; CRLF is taken too. Comment lines (`: keep-
alive`, vLLM 0.29+ with `--sse-keep-alive-interval`) and fields other than `data` are passed over.
"""

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

MAX_EVENT_BYTES = 1 << 20
"""One event with 20 logprobs for each of a hundred grouped tokens stays below a quarter of it."""

_SHOWN = 120
"""Characters of a bad event that an operator gets to see."""


class Kind(StrEnum):
    """What an event is to a client that measures."""

    OUTPUT = "output"
    """Carries at least one generated token."""
    QUIET = "quiet"
    """Well-formed and without output: the role chunk, a lone finish reason, the usage chunk."""
    ERROR = "error"
    """vLLM's `data: {"error": …}` inside a stream that began with 200."""
    DONE = "done"
    GARBAGE = "garbage"
    """Not JSON, not an object, or too long; `message` says which."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the engine counted them; None where the field is missing."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    """Only with `--enable-prompt-tokens-details`."""


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One event of a stream of completions or chat completions."""

    kind: Kind
    finish_reason: str | None = None
    """Of several choices the one that is not "length", if there is one."""
    usage: Usage | None = None
    status: int | None = None
    message: str = ""
    finished: int = 0
    """Choices that end with it."""
    text: str = ""
    """What the first choice says."""
    thought: bool = False
    """It is part of the reasoning."""


DONE = StreamEvent(Kind.DONE)
_TOO_LONG = StreamEvent(Kind.GARBAGE, message=f"an event longer than {MAX_EVENT_BYTES} bytes")


class Decoder:
    """Takes bytes as they come, gives the events that they complete.

    Holds at most `max_event_bytes`; what exceeds it becomes one GARBAGE event, and the rest of
    that event is dropped up to its empty line.
    """

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._limit = max_event_bytes
        self._line = bytearray()
        self._data: list[bytes] = []
        self._held = 0
        self._skipping = False

    def feed(self, data: bytes) -> list[StreamEvent]:
        """The events that end inside `data`."""
        events: list[StreamEvent] = []
        *lines, rest = data.split(b"\n")
        for line in lines:
            if self._line:
                self._hold(line, events)
                line = bytes(self._line)
                self._line.clear()
            elif not self._skipping and self._held + len(line) > self._limit:
                self._drop(events)
            self._end_line(line.removesuffix(b"\r"), events)
        if rest:
            self._hold(rest, events)
        return events

    def _hold(self, piece: bytes, events: list[StreamEvent]) -> None:
        if not self._skipping and self._held + len(self._line) + len(piece) > self._limit:
            self._drop(events)
        if self._skipping:
            # Only whether the line is empty matters now: an empty line ends the event.
            self._line[:] = (bytes(self._line) + piece)[:2]
        else:
            self._line += piece

    def _drop(self, events: list[StreamEvent]) -> None:
        events.append(_TOO_LONG)
        self._skipping = True
        self._data.clear()
        self._held = 0

    def _end_line(self, line: bytes, events: list[StreamEvent]) -> None:
        if not line:
            if self._data:
                events.append(read_event(b"\n".join(self._data)))
                self._data.clear()
                self._held = 0
            self._skipping = False
        elif self._skipping or line.startswith(b":"):
            return
        elif line.startswith(b"data:"):
            value = line[5:].removeprefix(b" ")
            self._data.append(value)
            self._held += len(value) + 1  # an empty one takes room too
        elif not self._data and not line.startswith((b"event:", b"id:", b"retry:")):
            self._skipping = True  # one complaint for an HTML page, not one for each of its lines
            events.append(_garbage("a line that is no event stream", line))


def read_event(data: bytes) -> StreamEvent:
    """The payload of one event."""
    if data == b"[DONE]":
        return DONE
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        return _garbage("an event that is not JSON", data)
    if not isinstance(body, dict):
        return _garbage("an event that is not a JSON object", data)
    if body.get("error"):
        return _error(body["error"])
    choices = body.get("choices")
    told = [one for one in choices if isinstance(one, dict)] if isinstance(choices, list) else []
    output = any(map(_carries_token, told))
    reasons = [r for one in told if isinstance(r := one.get("finish_reason"), str)]
    said = told[0] if told and told[0].get("index") in (0, None) else {}
    part = said.get("delta") or said.get("message")
    part = part if isinstance(part, dict) else said
    text = part.get("content") or part.get("text")
    return StreamEvent(
        Kind.OUTPUT if output else Kind.QUIET,
        next((r for r in reasons if r != "length"), reasons[0] if reasons else None),
        _usage(body.get("usage")),
        finished=len(reasons),
        text=text if isinstance(text, str) else "",
        thought=bool(part.get("reasoning") or part.get("reasoning_content")),
    )


def _carries_token(choice: dict[str, Any]) -> bool:
    """Whether a chunk's choice stands for at least one generated token.

    An empty text counts while the stream goes on: vLLM sends such a chunk only for a token whose
    characters it still holds back (half of a UTF-8 sequence, a possible stop string), and skips
    chunks without a token (vLLM 0.32 completion/serving.py, chat_completion/serving.py). The role
    chunk has an empty content too, but is told by its role.
    """
    if choice.get("token_ids") or choice.get("text"):
        return True
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return choice.get("text") == "" and choice.get("finish_reason") is None
    if delta.get("content") or delta.get("reasoning") or delta.get("reasoning_content"):
        return True
    if delta.get("tool_calls"):
        return True
    return (
        delta.get("content") == "" and "role" not in delta and choice.get("finish_reason") is None
    )


def _usage(usage: object) -> Usage | None:
    if not isinstance(usage, dict):
        return None
    details = usage.get("prompt_tokens_details")
    return Usage(
        prompt_tokens=_count(usage.get("prompt_tokens")),
        completion_tokens=_count(usage.get("completion_tokens")),
        cached_tokens=_count(details.get("cached_tokens")) if isinstance(details, dict) else None,
    )


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _error(error: object) -> StreamEvent:
    message, status = error_of(error)
    return StreamEvent(Kind.ERROR, status=status, message=message)


def error_of(error: object) -> tuple[str, int | None]:
    """Message and status of the value of vLLM's `error`, which is an object or a string."""
    if isinstance(error, dict):
        return one_line(str(error.get("message") or error)), _count(error.get("code"))
    return one_line(str(error)), None


def one_line(text: str, limit: int = 300) -> str:
    """Text of a stranger as part of one sentence: no line breaks or control characters."""
    clean = " ".join("".join(c if c.isprintable() else " " for c in text[: limit * 4]).split())
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


def _garbage(what: str, data: bytes) -> StreamEvent:
    shown = one_line(data[:_SHOWN].decode("utf-8", "replace"), _SHOWN)
    return StreamEvent(Kind.GARBAGE, message=f"{what}: {shown!r}")

"""What a connection got → Result. Reads after the wave has ended, so that it delays no stamp."""

import json
from dataclasses import dataclass, replace
from enum import StrEnum

from sidecar.core.results import Outcome, Result
from sidecar.core.wire.sse import (
    Decoder,
    Kind,
    StreamEvent,
    Usage,
    error_of,
    one_line,
    read_event,
)

_BEGINNING = 64
"""Characters of an answer that are kept, to see whether it obeys a grammar."""


class Ending(StrEnum):
    """How a connection's answer ended."""

    COMPLETE = "complete"
    """The whole HTTP message, or [DONE]."""
    CLOSED = "closed"
    """Closed or reset by the other side before that."""
    TIMEOUT = "timeout"
    REFUSED = "refused"
    """Given up by us: no HTTP, or more bytes than the request could have earned."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The bytes of one answer with their arrival. Stamps are of the monotonic clock."""

    sent_s: float
    ending: Ending
    status: int | None = None
    content_type: str = ""
    pieces: tuple[tuple[float, bytes], ...] = ()
    """(arrival, body bytes), HTTP framing taken off."""
    problem: str = ""
    let_go_s: float | None = None
    """Just before the last byte was written."""
    streamed: bool = True
    """False: the answer was asked for as a whole, and is one JSON object."""


class Reading:
    """Reads one reply piece by piece, then tells the Result, its stamps relative to `release_s`."""

    def __init__(self, reply: Reply, release_s: float) -> None:
        self._reply = reply
        self._release_s = release_s
        self._decoder = Decoder()
        self._token_s: list[float] = []
        self._usage: Usage | None = None
        self._finish: str | None = None
        self._finished = 0
        self._begins = ""
        self._thought = False
        self._error: StreamEvent | None = None
        self._garbage: StreamEvent | None = None
        self._done = False
        self._events = 0

    @property
    def is_stream(self) -> bool:
        return self._reply.status == 200 and self._reply.content_type.startswith(
            "text/event-stream"
        )

    def feed(self, at_s: float, data: bytes) -> None:
        """The next piece of a stream."""
        for event in self._decoder.feed(data):
            self._events += 1
            if event.kind is Kind.OUTPUT:
                self._token_s.append(at_s - self._release_s)
            elif event.kind is Kind.DONE:
                self._done = True
            elif event.kind is Kind.ERROR:
                self._error = self._error or event
            elif event.kind is Kind.GARBAGE:
                self._garbage = self._garbage or event
            self._take(event)

    def _take(self, event: StreamEvent) -> None:
        self._usage = event.usage or self._usage
        if self._finish in (None, "length"):
            self._finish = event.finish_reason or self._finish
        self._finished += event.finished
        self._thought = self._thought or (event.thought and not self._begins)
        self._begins = (self._begins + event.text)[:_BEGINNING]

    def result(self) -> Result:
        """The Result of everything fed."""
        reply = self._reply
        if reply.ending is Ending.TIMEOUT:
            return self._told(Outcome.TIMEOUT, reply.problem)
        if reply.ending is Ending.REFUSED:
            if reply.status is not None and reply.status >= 400:
                return self._told(Outcome.HTTP_ERROR, reply.problem)
            return self._misread(reply.problem)
        if reply.status is None:
            return self._told(Outcome.BROKEN, reply.problem or "closed before any answer")
        if reply.status != 200:
            return self._told(Outcome.HTTP_ERROR, self._error_body())
        return self._of_stream() if reply.streamed else self._of_whole()

    def _of_whole(self) -> Result:
        """An answer that isn't streamed: all its tokens come with its last byte."""
        event = read_event(b"".join(data for _, data in self._reply.pieces))
        if event.kind in (Kind.ERROR, Kind.GARBAGE, Kind.DONE):
            return self._misread(f"the answer is {event.message or 'no JSON'}")
        self._take(event)
        if self._usage is not None and self._usage.completion_tokens:
            self._token_s.append(self._reply.pieces[-1][0] - self._release_s)
        return self._told(Outcome.OK, "")

    def _of_stream(self) -> Result:
        if not self.is_stream:
            kind = one_line(self._reply.content_type.partition(";")[0], 60) or "no content type"
            return self._misread(f"200 with {kind} where an event stream is due")
        if self._error is not None:
            return self._told(Outcome.STREAM_ERROR, self._error.message, self._error.status)
        if self._garbage is not None:
            return self._misread(f"the stream holds {self._garbage.message}")
        if not self._done:
            why = self._reply.problem or "closed"
            return self._told(Outcome.BROKEN, f"{why} after {self._events} events, before [DONE]")
        return self._told(Outcome.OK, "")

    def _error_body(self) -> str:
        body = b"".join(data for _, data in self._reply.pieces)
        return error_message(self._reply.content_type, body)

    def _misread(self, message: str) -> Result:
        return replace(self._told(Outcome.BROKEN, message), misread=True)

    def _told(self, outcome: Outcome, message: str, status: int | None = None) -> Result:
        usage, reply = self._usage or Usage(), self._reply
        return Result(
            outcome=outcome,
            sent_s=reply.sent_s - self._release_s,
            let_go_s=None if reply.let_go_s is None else reply.let_go_s - self._release_s,
            token_s=tuple(self._token_s),
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cached_tokens=usage.cached_tokens,
            finish_reason=self._finish,
            choices=max(1, self._finished),
            begins=self._begins,
            thought=self._thought,
            status=status if status is not None else reply.status,
            message=message,
        )


def error_message(content_type: str, body: bytes) -> str:
    """What an HTTP error's body says: vLLM's `error`, FastAPI's `detail`, else only its kind."""
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        parsed = None
    if isinstance(parsed, dict):
        error = parsed.get("error") or parsed.get("detail") or parsed.get("message")
        if error:
            return error_of(error)[0]
    return f"a body of {one_line(content_type.partition(';')[0].strip(), 60) or 'no content type'}"

"""A reply's bytes → Result: several choices, whole answers, and how an answer begins."""

import json
from typing import Any

import pytest

from sidecar.core.results import Outcome, Result
from sidecar.core.wire.replies import Ending, Reading, Reply

USAGE = {"prompt_tokens": 9, "completion_tokens": 4}


def streamed(*events: dict[str, Any]) -> Result:
    """The Result of a stream whose events come 0.1 s apart, from 1.1 s on; released at 1.0 s."""
    reading = Reading(
        Reply(1.0, Ending.COMPLETE, 200, "text/event-stream; charset=utf-8"), release_s=1.0
    )
    for i, event in enumerate(events, 1):
        reading.feed(1.0 + i / 10, b"data: " + json.dumps(event).encode() + b"\n\n")
    reading.feed(9.0, b"data: [DONE]\n\n")
    return reading.result()


def whole(body: bytes) -> Result:
    """The Result of an answer of one piece, at 1.5 s; released at 1.0 s."""
    pieces = ((1.2, body[:5]), (1.5, body[5:]))
    reply = Reply(1.0, Ending.COMPLETE, 200, "application/json", pieces, streamed=False)
    return Reading(reply, release_s=1.0).result()


def choice(index: int, text: str, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": index, "text": text, "finish_reason": finish}]}


def test_every_choice_has_its_end() -> None:
    """Two answers in one stream: both ends are counted, and the text is that of the first."""
    result = streamed(
        choice(1, "x"),
        choice(0, "a"),
        choice(0, "b", "length"),
        choice(1, "y", "length"),
        {"choices": [], "usage": USAGE},
    )
    assert (result.outcome, result.choices, result.finish_reason) == (Outcome.OK, 2, "length")
    assert result.begins == "ab"
    assert result.token_s == pytest.approx((0.1, 0.2, 0.3, 0.4))


@pytest.mark.parametrize("order", [("stop", "length"), ("length", "stop")])
def test_one_choice_that_ends_otherwise_is_not_hidden(order: tuple[str, str]) -> None:
    """Whichever comes last."""
    result = streamed(choice(0, "a", order[0]), choice(1, "b", order[1]), {"usage": USAGE})
    assert result.finish_reason == "stop"


def test_an_answer_that_thinks_first() -> None:
    """Reasoning before any content is told from reasoning that comes after it."""
    thought: dict[str, Any] = {"choices": [{"index": 0, "delta": {"reasoning": "hm"}}]}
    said: dict[str, Any] = {"choices": [{"index": 0, "delta": {"content": "{"}}]}
    assert streamed(thought, said).thought
    assert not streamed(said).thought
    assert streamed(thought, said).begins == "{"


def test_the_beginning_is_bounded() -> None:
    """Of a long answer no more than 64 characters are kept."""
    assert len(streamed(*[choice(0, "seven..")] * 50).begins) == 64


def test_a_whole_answer_is_timed_as_a_whole() -> None:
    """All its tokens come with its last byte."""
    body = {
        "choices": [{"index": 0, "text": "ab", "finish_reason": "length"}],
        "usage": USAGE,
    }
    result = whole(json.dumps(body).encode())
    assert (result.outcome, result.token_s) == (Outcome.OK, (0.5,))
    assert (result.prompt_tokens, result.completion_tokens, result.begins) == (9, 4, "ab")


def test_a_whole_chat_answer_has_a_message() -> None:
    """Its content is what the answer begins with."""
    message = {"role": "assistant", "content": "{}", "reasoning": None}
    body = {"choices": [{"index": 0, "message": message, "finish_reason": "length"}]}
    result = whole(json.dumps({**body, "usage": USAGE}).encode())
    assert (result.begins, result.thought, result.finish_reason) == ("{}", False, "length")


@pytest.mark.parametrize("body", [b"{cut o", b"<html></html>", b"[1, 2, 3]"])
def test_a_whole_answer_that_is_none(body: bytes) -> None:
    """A sentence, and no token."""
    result = whole(body)
    assert (result.outcome, result.token_s) == (Outcome.BROKEN, ())
    assert result.message.startswith("the answer is an event that is not JSON") or (
        "not a JSON object" in result.message
    )

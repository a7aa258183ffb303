"""The decoder of event streams, from real streams and from what no server should send."""

import json
import random
from pathlib import Path

import pytest

from sidecar.core.wire.sse import Decoder, Kind, StreamEvent, Usage, error_of, one_line, read_event

STREAMS = sorted((Path(__file__).parent.parent / "data" / "sse").glob("*.sse"))


def whole(data: bytes, limit: int = 1 << 20) -> list[StreamEvent]:
    return Decoder(limit).feed(data)


def in_pieces(data: bytes, cuts: list[int], limit: int = 1 << 20) -> list[StreamEvent]:
    decoder = Decoder(limit)
    ends = [*cuts, len(data)]
    return [
        event
        for start, end in zip([0, *cuts], ends, strict=True)
        for event in decoder.feed(data[start:end])
    ]


def event(body: object) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\n\n"


ODD = b"".join(
    [
        b": keep-alive\n\n",
        b"event: x\nid: 3\nretry: 10\ndata: [1]\n\n",
        b"data: {bad\n\n",
        b"data:" + json.dumps({"choices": [{"text": "a"}]}).encode() + b"\r\n\r\n",
        b'data: {"choices":\ndata: [{"text": "two lines"}]}\n\n',
        b"data: " + b"x" * 300 + b"\n\n",
        b"<html>\n<body>\n\n",
        event({"error": {"message": "out of\nluck", "code": 400}}),
        b"data: [DONE]\n\n",
    ]
)


@pytest.mark.parametrize("path", STREAMS, ids=lambda path: path.name)
def test_a_real_stream_reads_the_same_in_any_split(path: Path) -> None:
    """Whole, byte by byte and randomly split, a stream of vLLM gives the same events."""
    data = path.read_bytes()
    expected = whole(data)
    assert in_pieces(data, list(range(1, len(data)))) == expected
    rng = random.Random(1)
    for _ in range(20):
        cuts = sorted(rng.sample(range(1, len(data)), 9))
        assert in_pieces(data, cuts) == expected


def test_odd_streams_read_the_same_in_any_split() -> None:
    """Comments, CRLF, several data lines, garbage and over-long events survive any split."""
    expected = whole(ODD, 200)
    assert [e.kind for e in expected] == [
        Kind.GARBAGE,
        Kind.GARBAGE,
        Kind.OUTPUT,
        Kind.OUTPUT,
        Kind.GARBAGE,
        Kind.GARBAGE,
        Kind.ERROR,
        Kind.DONE,
    ]
    assert in_pieces(ODD, list(range(1, len(ODD))), 200) == expected
    rng = random.Random(2)
    for _ in range(50):
        assert in_pieces(ODD, sorted(rng.sample(range(1, len(ODD)), 7)), 200) == expected


def test_data_lines_without_data_take_room_too() -> None:
    """Whoever sends them without end gets one complaint, and nothing is kept of them."""
    endless = b"data:\n" * 201
    assert [e.message for e in whole(endless, 200)] == ["an event longer than 1048576 bytes"]
    assert whole(b"data:\n" * 100, 200) == []


def test_a_completion_of_vllm_has_five_tokens_and_its_usage() -> None:
    """The golden completion: five outputs, a finish reason, usage, [DONE]."""
    [path] = [path for path in STREAMS if path.name.startswith("completions-first")]
    events = whole(path.read_bytes())
    assert [e.kind for e in events] == [Kind.OUTPUT] * 5 + [Kind.QUIET, Kind.DONE]
    assert events[4].finish_reason == "length"
    assert events[5].usage == Usage(prompt_tokens=8, completion_tokens=5)


def test_the_role_chunk_of_a_chat_is_no_token() -> None:
    """vLLM sends role and empty content with the first output; only the next event is a token."""
    [path] = [path for path in STREAMS if path.name.startswith("chat")]
    events = whole(path.read_bytes())
    assert [e.kind for e in events] == [Kind.QUIET, *[Kind.OUTPUT] * 5, Kind.QUIET, Kind.DONE]


@pytest.mark.parametrize(
    ("choice", "carries"),
    [
        ({"text": "a"}, True),
        ({"text": "", "finish_reason": None}, True),  # held-back characters: a token all the same
        ({"text": "", "finish_reason": "stop"}, False),
        ({"text": "", "token_ids": [5], "finish_reason": "stop"}, True),
        ({"delta": {"role": "assistant", "content": ""}}, False),
        ({"delta": {"role": "assistant", "content": "a"}}, True),
        ({"delta": {"content": ""}}, True),
        ({"delta": {"content": ""}, "finish_reason": "length"}, False),
        ({"delta": {"reasoning": "a"}}, True),
        ({"delta": {"reasoning_content": "a"}}, True),
        ({"delta": {"tool_calls": [{"function": {"arguments": "{"}}]}}, True),
        ({"delta": {}, "finish_reason": "length"}, False),
        ({"delta": {}, "token_ids": [1]}, True),
        ({"delta": None}, False),
        ({}, False),
    ],
)
def test_only_events_with_a_token_are_output(choice: dict[str, object], carries: bool) -> None:
    """First-token time is that of the first event that stands for a generated token."""
    told = read_event(json.dumps({"choices": [choice]}).encode())
    assert told.kind is (Kind.OUTPUT if carries else Kind.QUIET)


def test_usage_tells_cached_tokens_where_the_engine_does() -> None:
    """`--enable-prompt-tokens-details` shows what the prefix cache answered."""
    usage = {
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 1},
    }
    assert read_event(json.dumps({"choices": [], "usage": usage}).encode()).usage == Usage(3, 2, 1)


def test_an_error_inside_a_stream_keeps_its_code_on_one_line() -> None:
    """vLLM reports an unknown token id with 200 and an error event."""
    [error] = whole(event({"error": {"message": "a\nb\x1b[31m", "code": 400}}))
    assert (error.kind, error.status, error.message) == (Kind.ERROR, 400, "a b [31m")
    assert error_of("plain") == ("plain", None)


def test_an_endless_line_costs_bounded_memory_and_one_complaint() -> None:
    """A line without an end is dropped at the limit and told once."""
    decoder = Decoder(1000)
    told = [e for _ in range(100) for e in decoder.feed(b"data: " + b"x" * 500)]
    assert [e.kind for e in told] == [Kind.GARBAGE]
    assert len(decoder._line) <= 1000
    assert [e.kind for e in decoder.feed(b"\n\ndata: [DONE]\n\n")] == [Kind.DONE]


def test_an_event_of_endless_lines_is_bounded_too() -> None:
    """Many short data lines without an empty one between them are one event, and bounded."""
    decoder = Decoder(1000)
    told = [e for _ in range(1000) for e in decoder.feed(b"data: 123456789\n")]
    assert [e.kind for e in told] == [Kind.GARBAGE]
    assert not decoder._data


@pytest.mark.parametrize("text", [b"[" * 100_000, b"nul", b"\xff\xfe", b"3", b'"x"', b"{}x"])
def test_garbage_is_a_value(text: bytes) -> None:
    """Whatever an event holds, reading it gives an event and never raises."""
    assert read_event(text).kind is Kind.GARBAGE


def test_strangers_text_fits_into_one_sentence() -> None:
    """Control characters go, and so does what is too long."""
    assert one_line("a\r\n\tb\0c", 10) == "a b c"
    assert one_line("x" * 5000, 10) == "xxxxxxxxx…"

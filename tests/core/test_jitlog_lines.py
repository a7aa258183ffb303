"""Bytes → lines: any split, any frame, any rubbish."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from sidecar.core.logs.events import Compile, LogEvent
from sidecar.core.logs.lines import Cut, Lines
from sidecar.core.logs.reader import LogReader
from sidecar.core.logs.syslog import DOCKER_PIECE, SyslogLines

LOGS = sorted((Path(__file__).parent.parent / "data" / "logs").glob("*.log"))
KERNEL = b"CuTeDSL JIT compilation during inference: K."
ODD = b"".join(
    [
        b"plain\n",
        b"\n\n",
        b"\r  0%|\r 50%|##\r100%|####| 2/2 [00:01<00:00, 2.0it/s]\n",
        b"windows\r\n",
        "é ▄▄ 汉\n".encode(),
        b"\xff\xfe bad \xe2\x82\n",
        b"\xe2\x82",
        b"\xacafter the split\n",
        b"x" * 300 + b"\n",
        "汉".encode() * 100 + b"\n",
        b"\x0b\x0c\x1c\x85 are no ends of lines\n",
        b"unfinished",
    ]
)


def in_pieces(feed: Callable[[bytes], list[str]], data: bytes, cuts: list[int]) -> list[str]:
    ends = zip([0, *cuts], [*cuts, len(data)], strict=True)
    return [line for start, end in ends for line in feed(data[start:end])]


def random_cuts(data: bytes, count: int, rounds: int, seed: int) -> list[list[int]]:
    rng = random.Random(seed)
    return [sorted(rng.sample(range(1, len(data)), count)) for _ in range(rounds)]


def events(texts: list[str]) -> list[LogEvent]:
    reader = LogReader()
    return [event for text in texts if (event := reader.feed(text)) is not None]


def test_lines_are_the_same_in_any_split() -> None:
    """Whole, byte by byte and randomly split: the same lines, and the same counted as cut."""
    whole = Lines(200)
    expected = whole.feed(ODD) + whole.end()
    assert expected[:4] == ["plain", "  0%|", " 50%|##", "100%|####| 2/2 [00:01<00:00, 2.0it/s]"]
    assert "€after the split" in expected
    assert "x" * 200 in expected
    assert expected[-1] == "unfinished"
    assert whole.cut == Cut(lines=2, bytes=200)
    for cuts in [list(range(1, len(ODD))), *random_cuts(ODD, 9, 60, seed=1)]:
        lines = Lines(200)
        assert in_pieces(lines.feed, ODD, cuts) + lines.end() == expected
        assert lines.cut == whole.cut


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_a_real_log_gives_the_same_events_in_any_split(path: Path) -> None:
    """As a file is read, in bits and pieces."""
    data = path.read_bytes()
    lines = Lines()
    expected = events(lines.feed(data) + lines.end())
    assert len(expected) > 15
    for cuts in [
        list(range(1, len(data), 4096)),
        *random_cuts(data, 40, 3, seed=2),
    ]:
        lines = Lines()
        assert events(in_pieces(lines.feed, data, cuts) + lines.end()) == expected
    lines = Lines()
    head = data[:20_000]
    by_bytes = in_pieces(lines.feed, head, list(range(1, len(head))))
    assert events(by_bytes) == events(Lines().feed(head))


def test_an_endless_line_costs_bounded_memory() -> None:
    """Twenty megabytes without an end: the head is kept, the rest is counted, the next is read."""
    lines = Lines()
    assert lines.feed(KERNEL) == []
    for _ in range(20):
        assert lines.feed(b"y" * (1 << 20)) == []
        assert len(lines._held) <= 64 << 10
    first, second = lines.feed(b"\nnext\n")
    assert first.startswith(KERNEL.decode())
    assert second == "next"
    assert lines.cut == Cut(lines=1, bytes=len(KERNEL) + (20 << 20) - (64 << 10))


def test_a_long_line_among_short_ones_is_cut_alone() -> None:
    """One read may hold many lines and be longer than the limit."""
    lines = Lines(100)
    read = b"\n".join([b"a" * 50, b"b" * 150, b"c" * 50, b""])
    assert lines.feed(read) == ["a" * 50, "b" * 100, "c" * 50]
    assert lines.cut == Cut(lines=1, bytes=50)


MICRO = b"<30>1 2026-11-29T17:14:24.123456Z host vllm 812 vllm - "
# As Docker 20.10 sent them over a Unix socket, but for the structured data.
HEADERS = [
    MICRO,
    b"<30>1 2026-11-29T17:14:24Z host vllm 812 vllm - ",
    b'<30>1 - - vllm - - [a@1 b="x]\\"y"][c@2 d="1"] \xef\xbb\xbf',
    b"<30>Nov 29 17:14:24 vllm[812]: ",
    b"<30>Nov  9 17:14:24 host vllm[812]: ",
    b"<30>2026-11-29T17:14:24Z host vllm[812]: ",
]


@pytest.mark.parametrize("header", HEADERS)
def test_every_syslog_header_is_taken_off(header: bytes) -> None:
    """RFC 5424 with and without data, RFC 3164 with and without host, Docker's default."""
    for end in (b"", b"\n", b"\0"):
        (line,) = SyslogLines().datagram(header + KERNEL + end)
        assert (line.tag, line.text) == ("vllm", KERNEL.decode())
        assert isinstance(LogReader().feed(line.text), Compile)


def test_what_is_no_syslog_is_a_line_and_counted() -> None:
    """A forwarder without headers works too."""
    syslog = SyslogLines()
    (line,) = syslog.datagram(KERNEL)
    assert (line.tag, line.text) == ("", KERNEL.decode())
    assert syslog.strange == 1


def syslog_stream() -> bytes:
    """Messages that end with LF, octet-counted ones, and a line that looks like a count."""
    counted = MICRO + b"counted\nwith a second line"
    long = b"l" * (70 << 10)
    return b"".join(
        [
            MICRO + b"one\n",
            str(len(counted)).encode() + b" " + counted,
            str(len(long) + 4).encode() + b" <30>" + long,
            MICRO + b"two\n",
            b"12 monkeys\n",
            b"123456789012 too long for a count\n",
            MICRO + long + b"\n",
            b"\n",
            MICRO + b"end\n",
        ]
    )


def test_a_syslog_stream_is_the_same_in_any_split() -> None:
    """Both ways of framing, message by message, and messages beyond the limit."""
    data = syslog_stream()

    def run(cuts: list[int]) -> tuple[list[str], Cut]:
        syslog = SyslogLines()
        texts = in_pieces(lambda piece: [line.text for line in syslog.feed(piece)], data, cuts)
        return texts, syslog.cut

    expected, cut = run([])
    short = [text for text in expected if len(text) < 100]
    assert short == [
        *("one", "counted", "with a second line", "two", "12 monkeys"),
        *("123456789012 too long for a count", "end"),
    ]
    assert cut.lines == 2
    for cuts in [list(range(1, len(data), 911)), *random_cuts(data, 60, 30, seed=4)]:
        assert run(cuts) == (expected, cut)
    tail = len(data) - 300  # byte by byte where it is short
    assert run(list(range(tail, len(data)))) == (expected, cut)
    assert run(list(range(1, 300))) == (expected, cut)


def test_unmarked_pieces_of_a_line_are_joined() -> None:
    """A line over 16 KiB comes as several messages; another container's in between is apart."""
    syslog = SyslogLines()
    other = MICRO.replace(b"vllm", b"other")
    assert syslog.datagram(MICRO + b"a" * DOCKER_PIECE) == []
    assert [line.text for line in syslog.datagram(other + b"mine")] == ["mine"]
    assert syslog.datagram(MICRO + b"b" * DOCKER_PIECE) == []
    (line,) = syslog.datagram(MICRO + b"said: " + KERNEL)
    assert line.text == "a" * DOCKER_PIECE + "b" * DOCKER_PIECE + "said: " + KERNEL.decode()
    assert LogReader().feed(line.text) is None, "what stands inside a line is no compile"


def test_a_whole_line_of_sixteen_kib_hides_no_other() -> None:
    """If the next message begins like a line of vLLM, it is one."""
    syslog = SyslogLines()
    syslog.datagram(MICRO + b"a" * DOCKER_PIECE)
    next_line = b"(EngineCore pid=7) WARNING 11-29 17:16:42 [jit_monitor.py:1] " + KERNEL
    for line in (next_line, KERNEL, b'INFO:     1.2.3.4:5 - "GET /version HTTP/1.1" 200 OK'):
        first, second = syslog.datagram(MICRO + line)
        assert first.text == "a" * DOCKER_PIECE
        assert second.text == line.decode()
        syslog.datagram(MICRO + b"a" * DOCKER_PIECE)
    assert [line.text for line in syslog.end()] == ["a" * DOCKER_PIECE]


def test_endless_pieces_are_bounded() -> None:
    """However many pieces a line has, and however many senders begin one."""
    syslog = SyslogLines()
    for _ in range(20):
        syslog.datagram(MICRO + b"a" * DOCKER_PIECE)
    (line,) = syslog.datagram(MICRO + b"end")
    assert len(line.text) == 64 << 10
    assert syslog.cut == Cut(lines=1, bytes=16 * DOCKER_PIECE + 3)
    for number in range(200):
        tag = f"t{number}".encode()
        syslog.datagram(MICRO.replace(b"vllm", tag) + b"a" * DOCKER_PIECE)
    assert len(syslog._unfinished) <= 64


def test_rubbish_raises_nothing() -> None:
    """Random bytes and broken frames, with a seed."""
    rng = random.Random(5)
    data = syslog_stream()[:2000] + ODD
    syslog, lines = SyslogLines(), Lines(64)
    for _ in range(300):
        at = rng.randrange(len(data))
        piece = data[at : at + rng.randrange(200)] + rng.randbytes(rng.randrange(20))
        syslog.feed(piece)
        syslog.datagram(piece)
        lines.feed(piece)

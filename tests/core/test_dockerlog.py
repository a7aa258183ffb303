"""Docker's log stream, taken apart and gone on with."""

import random

import pytest

from sidecar.core.logs.docker import FramedLines, Resume, Stamped, TtyLines, kept_bytes, stamp_ns

AT = "2026-11-29T18:22:22.01543{:04}Z"
SECOND = 10**9
BASE_NS = stamp_ns(AT.format(0).encode())


def frame(text, n=0, stream=1):
    body = f"{AT.format(n)} {text}".encode()
    return bytes([stream, 0, 0, 0]) + len(body).to_bytes(4, "big") + body


FRAMES = b"".join(
    [
        frame("hi\n", 1),
        frame("err\n", 2, stream=2),
        *(frame("x" * 16384, 3), frame("e", 4, stream=2), frame("x" * 16384, 3)),
        *(frame("x" * 7232 + "\n", 3), frame("rr\n", 4, stream=2)),
        *(frame("a\rb\n", 5), frame("\n", 6), frame("no nl", 7)),
    ]
)
"""What Docker Engine 20.10 sends, its long line in between another stream's."""

TTY = "".join(
    f"{AT.format(n)} {text}"
    for n, text in [
        *((1, "hi\r\n"), (2, "err\r\n"), (3, "x" * 16384), (3, "x" * 16384), (3, "x" * 7232)),
        *((3, "\r\n"), (5, "a\rb\r\n"), (6, "\r\n"), (7, "no nl")),
    ]
).replace(f"{AT.format(3)} \r\n", "\r\n")


def splits(data):
    """As a whole, byte by byte at the delicate places, and at random."""
    yield [data]
    yield [data[:300][n : n + 1] for n in range(300)] + [data[300:]]
    for seed in range(20):
        cuts = sorted(random.Random(seed).sample(range(len(data)), 12))
        yield [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def read(decoder, pieces):
    lines = [line for piece in pieces for line in decoder.feed(piece)] + decoder.end()
    return [(line.stamp_ns - BASE_NS, line.stream, line.text) for line in lines]


@pytest.mark.parametrize("pieces", [*splits(FRAMES)], ids=lambda pieces: str(len(pieces)))
def test_frames_become_lines_whatever_the_split(pieces):
    """The pieces of a line are one, its time is kept, and streams don't mix."""
    assert read(FramedLines(), pieces) == [
        (1, 1, b"hi"),
        (2, 2, b"err"),
        (3, 1, b"x" * 40000),
        (4, 2, b"err"),
        (5, 1, b"a\rb"),
        (6, 1, b""),
        (7, 1, b"no nl"),
    ]


@pytest.mark.parametrize("pieces", [*splits(TTY.encode())], ids=lambda pieces: str(len(pieces)))
def test_a_tty_s_text_becomes_lines_whatever_the_split(pieces):
    """The times inside a long line are Docker's, not the line's."""
    assert read(TtyLines(), pieces) == [
        (1, 1, b"hi\r"),
        (2, 1, b"err\r"),
        (3, 1, b"x" * 40000 + b"\r"),
        (5, 1, b"a\rb\r"),
        (6, 1, b"\r"),
        (7, 1, b"no nl"),
    ]


def test_a_line_that_was_never_ended_is_not_the_next_one_s_beginning():
    """A killed process leaves half a line; the next run's first has another time."""
    data = frame("(EngineCo", 1) + frame("INFO\n", 2)
    assert read(FramedLines(), [data]) == [(1, 1, b"(EngineCo"), (2, 1, b"INFO")]


def test_what_are_no_frames_is_said():
    """A tty's text, or another server's; it does not become lines or memory."""
    decoder = FramedLines()
    assert decoder.feed(b"2026-11-29 some text") == []
    assert decoder.broken == "what the Docker Engine sends are no log frames"
    assert decoder.feed(frame("hi\n")) == []


@pytest.mark.parametrize("make", [FramedLines, TtyLines])
def test_a_line_of_megabytes_is_cut_and_counted(make):
    """Its beginning is kept; the memory is bounded."""
    decoder = make(max_line_bytes=100)
    one = frame if make is FramedLines else lambda text, n: f"{AT.format(n)} {text}".encode()
    for _ in range(64):
        assert decoder.feed(one("x" * 16384, 1)) == []
    lines = decoder.feed(one("x\n", 1) + one("next\n", 2))
    assert [line.text for line in lines] == [b"x" * 100, b"next"]
    assert decoder.cut.lines == 1
    assert decoder.cut.bytes == 64 * 16384 + 1 - 100


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("1970-01-01T00:00:01Z", SECOND),
        ("1970-01-01T00:00:01.5Z", SECOND * 3 // 2),
        ("1970-01-01T00:00:01.000000001Z", SECOND + 1),
        ("0001-01-01T00:00:00Z", -62135596800 * SECOND),
        ("1970-01-01T00:00:01", None),
        ("1970-13-01T00:00:01Z", None),
        ("1970-01-01T00:00:01.0000000001Z", None),
        ("yesterday", None),
    ],
)
def test_docker_s_times_are_read_to_the_nanosecond(text, ns):
    """A float would lose the last digits, and with them lines."""
    assert stamp_ns(text.encode()) == ns


def line(ns, text, stream=1):
    return Stamped(ns, stream, text.encode())


def replay(stored, since):
    """What Docker gives again: all whose time is `since` or later, in the order stored."""
    seconds, _, digits = since.partition(".")
    since_ns = int(seconds) * SECOND + int(digits)
    return [one for one in stored if one.stamp_ns >= since_ns]


@pytest.mark.parametrize("seed", range(20))
def test_after_a_break_each_line_is_given_once(seed):
    """Breaks at any place, equal lines at equal times, times that go back a little."""
    rng = random.Random(seed)
    stored = []
    # Each stream is stored a little late, its times in order.
    at_ns = {1: 0, 2: 0}
    for n in range(3000):
        stream = rng.choice([1, 2])
        late_ns = rng.randrange(900_000_000)
        at_ns[stream] = max(at_ns[stream], 100 * SECOND + n * 2_000_000 - late_ns)
        stored.append(line(at_ns[stream] // 10_000_000 * 10_000_000, rng.choice("ab"), stream))
    resume, given, end = Resume(), [], 0
    while end < len(stored):
        end = min(len(stored), end + rng.randrange(400))
        known = bool(given)
        given += [one for one in replay(stored[:end], resume.begin()) if resume.is_new(one)]
        assert resume.is_proven or not known
    assert sorted(map(repr, given)) == sorted(map(repr, stored))


def test_lines_sent_twice_by_a_rotation_are_given_once():
    """Docker Engine 20.10, following: at 58,802 it went back to 56,597."""
    stored = [line(100 * SECOND + n // 2, str(n), n % 2) for n in range(3000)]
    resume = Resume()
    resume.begin()
    given = [one for one in stored[:2000] if resume.is_new(one)]
    given += [one for one in stored[500:2500] if resume.is_new(one)]
    given += [one for one in stored[2000:] if resume.is_new(one)]
    assert given == stored


def test_a_clock_set_back_hides_no_line():
    """Times that have been before, but other lines; nor does it after a break."""
    before = [line(100 * SECOND + n * 10_000_000, f"before {n}") for n in range(500)]
    after = [line(97 * SECOND + n * 10_000_000, f"after {n}") for n in range(100)]
    resume = Resume()
    resume.begin()
    assert all(resume.is_new(one) for one in before + after[:50])
    again = replay(before + after, resume.begin())
    assert [one for one in again if resume.is_new(one)] == after[50:]
    assert resume.is_proven


def test_known_lines_that_are_gone_prove_nothing():
    """Docker's max-size has thrown them away: then something may be missing."""
    resume = Resume()
    resume.begin()
    assert resume.is_new(line(100 * SECOND, "known"))
    resume.begin()
    assert resume.is_new(line(200 * SECOND, "new"))
    assert not resume.is_proven


def test_memory_of_known_lines_is_bounded():
    """More lines in a second than are remembered: then less is asked for again."""
    resume = Resume(max_known=100)
    resume.begin()
    stored = [line(100 * SECOND + n, str(n)) for n in range(1000)]
    assert all(resume.is_new(one) for one in stored)
    again = replay(stored, resume.begin())
    assert len(again) == 100
    assert not any(resume.is_new(one) for one in again)


def test_what_is_not_wanted_is_not_asked_for():
    """Text of weeks before us is skipped up to a time."""
    resume = Resume(since_ns=5 * SECOND)
    assert resume.begin() == "5.000000000"
    resume.skip_to(9 * SECOND + 1)
    assert resume.begin() == "9.000000001"


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({}, None),
        ({"max-file": "3"}, None),
        ({"max-size": "100k"}, 102_400),
        ({"max-size": "10m", "max-file": "3"}, 30 << 20),
        ({"max-size": "1GB"}, 1 << 30),
        ({"max-size": "5000"}, 5000),
        ({"max-size": "-1"}, None),
        ({"max-size": "much"}, None),
    ],
)
def test_what_docker_keeps_is_read_from_its_options(options, kept):
    """Where it keeps little it throws lines away before they are sent."""
    assert kept_bytes(options) == kept

"""The Docker Engine's log stream: its bytes → stamped lines, and how to go on after a break.

Engine API, `/containers/{id}/logs?timestamps=1`, as Docker Engine 20.10 writes it: each entry
begins with its RFC 3339 time with nine digits. Lines over 16 KiB are several entries with the same
time, of which only the last ends with LF. Without a tty each entry is a frame; with one the entries
follow each other bare.
"""

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from sidecar.core.logs.lines import MAX_LINE_BYTES, Cut

_HEADER = 8
_STREAMS = 4
"""stdin, stdout, stderr, and the daemon's own errors."""
_MAX_FRAME = 1 << 20
_PIECE = 16 << 10
_STAMP = len("2026-11-29T18:22:22.015433084Z ")
_SECOND = 10**9

_Key = tuple[int, int]
"""A line's time, and the hash of its stream and text."""


@dataclass(frozen=True, slots=True)
class Stamped:
    """One line of a container."""

    stamp_ns: int | None
    """When Docker got it, since 1970; None where there was no time in front."""
    stream: int
    text: bytes


class FramedLines:
    """Of a container without a tty: eight bytes (stream, three zeros, length) and an entry."""

    def __init__(self, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        self._buffer = bytearray()
        self._lines = [_Entries(stream, max_line_bytes) for stream in range(_STREAMS)]
        self.broken: str | None = None
        """Why nothing more can be read."""

    @property
    def cut(self) -> Cut:
        return _sum(self._lines)

    def feed(self, data: bytes) -> list[Stamped]:
        self._buffer += data
        found: list[Stamped] = []
        at = 0
        while self.broken is None and len(self._buffer) - at >= _HEADER:
            stream, length = self._buffer[at], int.from_bytes(self._buffer[at + 4 : at + 8], "big")
            if stream >= _STREAMS or any(self._buffer[at + 1 : at + 4]) or length > _MAX_FRAME:
                self.broken = "what the Docker Engine sends are no log frames"
                self._buffer.clear()
                return found
            if len(self._buffer) - at < _HEADER + length:
                break
            at += _HEADER
            found += self._lines[stream].add(bytes(self._buffer[at : at + length]))
            at += length
        del self._buffer[:at]
        return found

    def end(self) -> list[Stamped]:
        """What the streams held of lines that were never ended."""
        return [line for lines in self._lines for line in lines.end()]


class TtyLines:
    """Of a container with a tty: entries without frames, all of one stream."""

    broken: str | None = None

    def __init__(self, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        self._buffer = bytearray()
        self._lines = _Entries(1, max_line_bytes)

    @property
    def cut(self) -> Cut:
        return self._lines.cut

    def feed(self, data: bytes) -> list[Stamped]:
        self._buffer += data
        found: list[Stamped] = []
        while (length := self._entry()) is not None:
            found += self._lines.add(bytes(self._buffer[:length]))
            del self._buffer[:length]
        return found

    def end(self) -> list[Stamped]:
        rest = self._lines.add(bytes(self._buffer)) if self._buffer else []
        self._buffer.clear()
        return rest + self._lines.end()

    def _entry(self) -> int | None:
        """The length of the first entry; None while it may go on."""
        longest = _STAMP + _PIECE
        end = self._buffer.find(b"\n", 0, longest + 1) + 1
        return end or (longest if len(self._buffer) > longest else None)


class _Entries:
    """The entries of one stream → its lines."""

    def __init__(self, stream: int, max_line_bytes: int) -> None:
        self._stream = stream
        self._limit = max_line_bytes
        self._stamp = b""
        self._held = bytearray()
        self._over = 0
        self.cut = Cut()

    def add(self, entry: bytes) -> list[Stamped]:
        stamp, text = entry[: _STAMP - 1], entry[_STAMP:]
        if entry[_STAMP - 1 : _STAMP] != b" " or stamp[10:11] != b"T":
            stamp, text = b"", entry
        # Another time: another line, though the one before never got its LF.
        lines = self.end() if stamp != self._stamp else []
        self._stamp = stamp
        ends = text.endswith(b"\n")
        text = text[:-1] if ends else text
        room = self._limit - len(self._held)
        self._held += text[:room]
        self._over += max(0, len(text) - room)
        return lines + self.end(is_whole=True) if ends else lines

    def end(self, *, is_whole: bool = False) -> list[Stamped]:
        if not self._held and not is_whole:
            return []
        line = Stamped(stamp_ns(self._stamp), self._stream, bytes(self._held))
        self._held.clear()
        self._stamp = b""
        if self._over:
            self.cut = Cut(self.cut.lines + 1, self.cut.bytes + self._over)
            self._over = 0
        return [line]


class Resume:
    """Goes on after a break without losing a line or giving one twice.

    Docker stamps stdout and stderr apart, so a line may be stored after one with a later time: we
    ask again for a second that we have, and leave out what we know of it. To have seen a known line
    again is the proof that nothing between is missing.

    Docker Engine 20.10 also sends thousands of lines a second time when the log it follows is
    rotated. Within one stream times don't go back: where they do, known lines are left out too.
    Those that are not known are given, for a clock may have been set back.
    """

    def __init__(self, since_ns: int = 0, max_known: int = 50_000) -> None:
        self._since_ns = self._floor_ns = since_ns
        self._max_known = max_known
        self._known: deque[_Key] = deque()
        self._counts: Counter[_Key] = Counter()
        self._again: Counter[_Key] = Counter()
        """Known lines that may come a second time, and did not yet."""
        self._newest_ns: dict[int, int] = {}
        """By stream."""
        self._replayed: set[int] = set()
        """Streams whose times went back, and are not yet where they were."""
        self._last_ns: int | None = None
        self._forgot_ns = 0
        self.is_proven = False
        """A known line was seen since `begin`, or there was none to see."""

    def begin(self) -> str:
        """Call before each connection; the value of `since`."""
        self._again = self._counts.copy()
        self._replayed.clear()
        self.is_proven = not self._known
        if self._last_ns is not None:
            again_ns = self._last_ns - _SECOND
            if again_ns <= self._forgot_ns < self._last_ns:
                again_ns = self._forgot_ns + 1
            self._since_ns = max(self._floor_ns, again_ns)
        return f"{self._since_ns // _SECOND}.{self._since_ns % _SECOND:09d}"

    def skip_to(self, since_ns: int) -> None:
        """Of what lies before nothing more is wanted."""
        self._floor_ns = self._since_ns = max(self._since_ns, since_ns)

    def is_new(self, line: Stamped) -> bool:
        """Whether it was not given before. Call once for each line."""
        if line.stamp_ns is None:
            return True
        key = (line.stamp_ns, hash((line.stream, line.text)))
        self._note_replay(line.stream, line.stamp_ns)
        if self._again.get(key, 0):
            self._again[key] -= 1
            self.is_proven = True
            return False
        self._last_ns = line.stamp_ns
        self._known.append(key)
        self._counts[key] += 1
        if len(self._known) > self._max_known:
            self._forget(self._known.popleft())
        return True

    def _note_replay(self, stream: int, at_ns: int) -> None:
        newest_ns = self._newest_ns.get(stream, at_ns)
        if at_ns > newest_ns:
            self._replayed.discard(stream)
        elif at_ns < newest_ns and stream not in self._replayed:
            self._replayed.add(stream)
            self._again = self._counts.copy()
        self._newest_ns[stream] = max(newest_ns, at_ns)

    def _forget(self, key: _Key) -> None:
        self._counts[key] -= 1
        if not self._counts[key]:
            del self._counts[key]
        self._forgot_ns = max(self._forgot_ns, key[0])


def stamp_ns(stamp: bytes) -> int | None:
    """`2026-11-29T18:22:22.015433084Z`, up to nine digits → nanoseconds since 1970."""
    head, _, digits = stamp.removesuffix(b"Z").partition(b".")
    if len(head) != 19 or not stamp.endswith(b"Z") or len(digits) > 9:
        return None
    try:
        seconds = int(datetime.fromisoformat(f"{head.decode('ascii')}+00:00").timestamp())
        return seconds * _SECOND + (int(digits.ljust(9, b"0")) if digits else 0)
    except ValueError:
        return None


def kept_bytes(options: Mapping[str, str]) -> int | None:
    """How much of a log Docker keeps by a container's `max-size` and `max-file`; None: all, or not
    told. Without `max-file` it is one file (the driver `local` keeps five; that is not counted on).
    """
    size = options.get("max-size", "").lower().removesuffix("b")
    unit = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}.get(size[-1:], 0)
    number = size[:-1] if unit else size
    if not (number.isascii() and number.isdigit()):
        return None
    files = options.get("max-file", "1")
    return int(number) * (unit or 1) * (int(files) if files.isascii() and files.isdigit() else 1)


def _sum(entries: list[_Entries]) -> Cut:
    return Cut(sum(e.cut.lines for e in entries), sum(e.cut.bytes for e in entries))

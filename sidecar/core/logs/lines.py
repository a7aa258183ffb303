"""Bytes of a stream → lines of text, whatever the split.

CR ends a line as LF does: tqdm draws its bars with it, and vLLM's formatter puts CR LF inside
multi-line messages (vLLM 0.33 logging_utils/formatter.py). Empty lines are left out.
"""

from dataclasses import dataclass

MAX_LINE_BYTES = 64 << 10
"""The longest lines that matter, engine config and verbose compile lines, have 5 to 20 KiB."""

_HEADER = 8
_STREAMS = 4
"""stdin, stdout, stderr, and the daemon's own errors (Docker Engine API, attach)."""
_MAX_STAMP = 40


@dataclass(frozen=True, slots=True)
class Cut:
    """What was dropped because a line was longer than the limit. Its beginning was kept."""

    lines: int = 0
    bytes: int = 0


class Lines:
    """One stream of lines. Holds at most `max_line_bytes`; of a longer line the rest is dropped.

    All that is known about lines is anchored at their beginning, so a cut line is still evidence.
    """

    def __init__(self, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        self._limit = max_line_bytes
        self._held = bytearray()
        self._over = 0
        """Bytes of the unfinished line that were dropped."""
        self._cut_lines = 0
        self._cut_bytes = 0

    @property
    def cut(self) -> Cut:
        return Cut(self._cut_lines, self._cut_bytes)

    def feed(self, data: bytes) -> list[str]:
        """The lines that end inside `data`. Invalid UTF-8 becomes U+FFFD."""
        if b"\r" in data:
            data = data.replace(b"\r", b"\n")
        end = data.rfind(b"\n")
        if end < 0:
            self._hold(data)
            return []
        lines: list[str] = []
        start = 0
        if self._held:
            start = data.index(b"\n") + 1
            self._hold(data[: start - 1])
            lines += self.end()
        body = data[start:end] if start <= end else b""
        if len(body) > self._limit:
            body = b"\n".join(self._within(line) for line in body.split(b"\n"))
        lines += [line for line in body.decode("utf-8", "replace").split("\n") if line]
        self._hold(data[end + 1 :])
        return lines

    def end(self) -> list[str]:
        """The unfinished line: what a stream that has ended still held."""
        line = bytes(self._held)
        self._held.clear()
        if self._over:
            self._cut_lines += 1
            self._cut_bytes += self._over
            self._over = 0
        return [line.decode("utf-8", "replace")] if line else []

    def _hold(self, piece: bytes) -> None:
        room = self._limit - len(self._held)
        self._held += piece[:room]
        self._over += max(0, len(piece) - room)

    def _within(self, line: bytes) -> bytes:
        over = len(line) - self._limit
        if over <= 0:
            return line
        self._cut_lines += 1
        self._cut_bytes += over
        return line[: self._limit]


class DockerFrames:
    """The stream of `/containers/{id}/logs` or `/attach` of a container without a tty.

    Each frame has a header of eight bytes: stream, three zeros, length (big endian). Docker
    splits a line into frames of 16 KiB, and only the last of them ends with LF, so the frames of
    one stream are simply one text. With `stamped` (`timestamps=1`) each frame, split or not,
    begins with its RFC 3339 time and a space; `last_stamp` is where to resume from.
    """

    def __init__(self, max_line_bytes: int = MAX_LINE_BYTES, *, stamped: bool = False) -> None:
        self._streams = tuple(Lines(max_line_bytes) for _ in range(_STREAMS))
        self._stamped = stamped
        self._header = bytearray()
        self._stamp: bytearray | None = None
        """Of the frame at hand, while it is not complete."""
        self._stream = self._streams[0]
        self._left = 0
        self.last_stamp: str | None = None
        self.broken: str | None = None
        """Why the stream can't be read on: reconnect, and call it a gap."""

    @property
    def cut(self) -> Cut:
        cuts = [stream.cut for stream in self._streams]
        return Cut(sum(cut.lines for cut in cuts), sum(cut.bytes for cut in cuts))

    def feed(self, data: bytes) -> list[str]:
        """The lines that end inside `data`; none any more once the stream is `broken`."""
        lines: list[str] = []
        at = 0
        while at < len(data) and self.broken is None:
            if not self._left:
                take = _HEADER - len(self._header)
                self._header += data[at : at + take]
                at += take
                if len(self._header) == _HEADER:
                    self._begin(bytes(self._header))
                    self._header.clear()
                continue
            piece = data[at : at + self._left]
            at += len(piece)
            self._left -= len(piece)
            lines += self._stream.feed(self._unstamped(piece))
        return lines

    def end(self) -> list[str]:
        return [line for stream in self._streams for line in stream.end()]

    def _begin(self, header: bytes) -> None:
        if header[0] >= _STREAMS or header[1:4] != b"\0\0\0":
            self.broken = "its frames are no Docker frames (a container with a tty has none)"
            return
        self._stream = self._streams[header[0]]
        self._left = int.from_bytes(header[4:], "big")
        self._stamp = bytearray() if self._stamped and self._left else None

    def _unstamped(self, piece: bytes) -> bytes:
        if self._stamp is None:
            return piece
        self._stamp += piece
        stamp, space, rest = bytes(self._stamp).partition(b" ")
        if not space and len(stamp) < _MAX_STAMP and self._left:
            return b""
        self._stamp = None
        if not space:
            return stamp
        self.last_stamp = stamp.decode("ascii", "replace")
        return rest

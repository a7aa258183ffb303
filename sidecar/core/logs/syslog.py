"""Syslog messages, as datagrams or as a stream → lines.

Written for what Docker's `syslog` logging driver sends (any `syslog-format`), and tolerant enough
for other forwarders: RFC 5424, RFC 3164 with and without host, and Docker's default, which has an
RFC 3339 time in the place of the BSD one. A stream may count octets (RFC 6587 3.4.1, what Docker
does over TLS) or end each message with LF (3.4.2, what it does over TCP and a Unix socket), message
by message.
"""

from collections import OrderedDict
from dataclasses import dataclass

from sidecar.core.logs.events import Compile, Finished
from sidecar.core.logs.head import begins_line
from sidecar.core.logs.lines import MAX_LINE_BYTES, Cut
from sidecar.core.logs.parse import parse

DOCKER_PIECE = 16 << 10
"""Docker splits longer lines here, and its syslog driver doesn't mark the pieces."""

_MAX_MESSAGE = MAX_LINE_BYTES
_MAX_HEADER = 512
"""Of RFC 3164: host and tag. Docker's tag may hold the names of image and container."""
_MAX_COUNT_DIGITS = 8
_MAX_UNFINISHED = 64
"""Containers times two streams that may each have a line in pieces at one time."""


@dataclass(frozen=True, slots=True)
class TaggedLine:
    """A line and whose it is: Docker's tag is the container's id, or what `tag:` makes it."""

    tag: str
    text: str


@dataclass(frozen=True, slots=True)
class _Packet:
    tag: str
    priority: int
    text: bytes


class SyslogLines:
    """All that arrives at one listener, or on one connection.

    A message of exactly 16 KiB is held until the next of the same tag and priority shows whether
    it was the first piece of a longer line.
    """

    def __init__(self, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        self._limit = max_line_bytes
        self._stream = _Stream()
        self._unfinished: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._cut = Cut()
        self.strange = 0
        """Messages without a syslog header. They are taken as plain lines."""

    @property
    def cut(self) -> Cut:
        mine, stream = self._cut, self._stream.cut
        return Cut(mine.lines + stream.lines, mine.bytes + stream.bytes)

    def feed(self, data: bytes) -> list[TaggedLine]:
        """The lines of the messages that end inside the next bytes of a stream."""
        return [line for frame in self._stream.feed(data) for line in self.datagram(frame)]

    def lose(self, count: int) -> None:
        """The next bytes of the stream were dropped: go on behind the end of a line."""
        self._stream.lose(count)
        self._unfinished.clear()

    def datagram(self, data: bytes) -> list[TaggedLine]:
        """The lines of one message."""
        data = data.rstrip(b"\r\n\0")
        packet = _read(data)
        if packet is None:
            self.strange += 1
            packet = _Packet("", -1, data)
        first, newline, rest = packet.text.partition(b"\n")
        if not newline:
            return self._joined(packet.tag, packet.priority, packet.text)
        texts = [first, *rest.split(b"\n")]
        return [line for text in texts for line in self._joined(packet.tag, -1, text)]

    def end(self) -> list[TaggedLine]:
        """Lines of which no more will come: the stream has ended, or was silent for long."""
        rest = [line for (tag, _), text in self._unfinished.items() for line in _lines(tag, text)]
        self._unfinished.clear()
        return rest

    def _joined(self, tag: str, priority: int, text: bytes) -> list[TaggedLine]:
        lines: list[TaggedLine] = []
        held = self._unfinished.pop((tag, priority), b"")
        if held and _is_own_line(text):
            lines += _lines(tag, held)
            held = b""
        is_piece = len(text) == DOCKER_PIECE
        over = len(held) + len(text) - self._limit
        if over > 0:
            self._cut = Cut(self._cut.lines + (not is_piece), self._cut.bytes + over)
        text = (held + text)[: self._limit]
        if not is_piece:
            return [*lines, *_lines(tag, text)]
        self._unfinished[tag, priority] = text
        if len(self._unfinished) > _MAX_UNFINISHED:
            (oldest, _), text = self._unfinished.popitem(last=False)
            lines += _lines(oldest, text)
        return lines


class _Stream:
    """Frames of one connection, each octet-counted or ended by LF."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._scanned = 0
        self._skip = 0
        self._skip_line = False
        self._lines = 0
        self._bytes = 0

    @property
    def cut(self) -> Cut:
        return Cut(self._lines, self._bytes)

    def feed(self, data: bytes) -> list[bytes]:
        self._buffer += data
        frames = []
        while (frame := self._next()) is not None:
            if frame:
                frames.append(frame)
        return frames

    def lose(self, count: int) -> None:
        self._bytes += count + len(self._buffer)
        self._buffer.clear()
        self._scanned = self._skip = 0
        self._skip_line = True

    def _next(self) -> bytes | None:
        """The next frame, b"" for something that was passed over, None if more must come."""
        if self._skip:
            return self._pass_over(min(self._skip, len(self._buffer)))
        if not self._buffer:
            return None
        counted = self._count()
        if counted is None:
            return None
        head, length = counted
        if not head:
            return self._to_newline()
        if len(self._buffer) < head + min(length, _MAX_MESSAGE):
            return None
        frame = bytes(self._buffer[head : head + min(length, _MAX_MESSAGE)])
        del self._buffer[: head + len(frame)]
        self._skip = length - len(frame)
        self._lines += self._skip > 0
        self._bytes += self._skip
        return frame

    def _pass_over(self, count: int) -> bytes | None:
        if not count:
            return None
        del self._buffer[:count]
        self._skip -= count
        return b""

    def _count(self) -> tuple[int, int] | None:
        """Length of the count with its space, and the octets it promises; (0, 0) if there is no
        count; None if that can't be told yet."""
        if self._skip_line or not 0x31 <= self._buffer[0] <= 0x39:
            return 0, 0
        start = bytes(self._buffer[: _MAX_COUNT_DIGITS + 2])
        digits, space, rest = start.partition(b" ")
        if not digits.isdigit() or len(digits) > _MAX_COUNT_DIGITS:
            return 0, 0
        if not space or not rest:
            return None
        return (len(digits) + 1, int(digits)) if rest.startswith(b"<") else (0, 0)

    def _to_newline(self) -> bytes | None:
        end = self._buffer.find(b"\n", self._scanned)
        if end < 0:
            over = len(self._buffer) - _MAX_MESSAGE
            if self._skip_line or over > 0:
                return self._drop_rest(over)
            self._scanned = len(self._buffer)
            return None
        if end == 0 and not self._skip_line:
            # Empty lines say nothing, and one by one they would cost most of all.
            self._buffer = self._buffer.lstrip(b"\n")
            self._scanned = 0
            return b""
        frame = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        self._scanned = 0
        if self._skip_line:
            self._bytes += len(frame)
            self._skip_line = False
            return b""
        over = max(0, len(frame) - _MAX_MESSAGE)
        self._lines += over > 0
        self._bytes += over
        return frame[:_MAX_MESSAGE]

    def _drop_rest(self, over: int) -> bytes | None:
        """Gives the beginning of an endless message once, then drops up to its LF."""
        is_new = not self._skip_line
        frame = bytes(self._buffer[:_MAX_MESSAGE]) if is_new else None
        self._bytes += over if is_new else len(self._buffer)
        self._lines += is_new
        self._buffer.clear()
        self._scanned = 0
        self._skip_line = True
        return frame


def _is_own_line(text: bytes) -> bool:
    """Whether this is no rest of a line before it. In doubt it is one, so that no text of a user,
    made to measure, can hide the line that follows."""
    start = text.decode("utf-8", "replace")
    return begins_line(start) or isinstance(parse(start), Compile | Finished)


def _lines(tag: str, text: bytes) -> list[TaggedLine]:
    """As in `lines`: CR ends a line too, and empty ones are left out."""
    texts = text.decode("utf-8", "replace").split("\r")
    return [TaggedLine(tag, line) for line in texts if line]


def _read(data: bytes) -> _Packet | None:
    """Header and text of one message; None without a priority in front."""
    end = data.find(b">", 1, 5)
    if not data.startswith(b"<") or end < 0 or not data[1:end].isdigit():
        return None
    priority, rest = int(data[1:end]), data[end + 1 :]
    if rest.startswith(b"1 "):
        return _rfc5424(priority, rest[2:])
    return _rfc3164(priority, rest)


def _rfc5424(priority: int, rest: bytes) -> _Packet | None:
    """TIMESTAMP HOSTNAME APP-NAME PROCID MSGID STRUCTURED-DATA MSG."""
    parts = rest.split(b" ", 5)
    if len(parts) < 6:
        return None
    text = _after_data(parts[5])
    tag = parts[2].decode("utf-8", "replace")
    return None if text is None else _Packet(tag, priority, text.removeprefix(b"\xef\xbb\xbf"))


def _after_data(rest: bytes) -> bytes | None:
    """What follows the structured data; None where that has no end."""
    if rest.startswith(b"-"):
        return rest[1:].removeprefix(b" ")
    quoted = escaped = False
    for at, byte in enumerate(rest):
        if escaped:
            escaped = False
        elif byte == 0x5C:  # backslash
            escaped = quoted
        elif byte == 0x22:  # "
            quoted = not quoted
        elif byte == 0x5D and not quoted and rest[at + 1 : at + 2] != b"[":  # ]
            return rest[at + 1 :].removeprefix(b" ")
    return None


def _rfc3164(priority: int, rest: bytes) -> _Packet:
    """[TIME] [HOST] TAG[PID]: TEXT; the time is BSD's or RFC 3339."""
    if rest[3:4] == b" " and rest[6:7] == b" " and rest[9:10] == b":":
        rest = rest[15:].lstrip(b" ")
    elif rest[4:5] == b"-" and rest[10:11] == b"T":
        rest = rest.partition(b" ")[2]
    header, colon, _ = rest[:_MAX_HEADER].partition(b": ")
    if not colon or header.count(b" ") > 1:
        return _Packet("", priority, rest)
    tag = header.rpartition(b" ")[2].partition(b"[")[0].decode("utf-8", "replace")
    return _Packet(tag, priority, rest[len(header) + len(colon) :])

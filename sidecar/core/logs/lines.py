"""Bytes of a stream → lines of text, whatever the split.

CR ends a line as LF does: tqdm draws its bars with it, and vLLM's formatter puts CR LF inside
multi-line messages (vLLM 0.33 logging_utils/formatter.py). Empty lines are left out.
"""

from dataclasses import dataclass

MAX_LINE_BYTES = 64 << 10
"""The longest lines that matter, engine config and verbose compile lines, have 5 to 20 KiB."""


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

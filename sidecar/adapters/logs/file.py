"""Follows a file that the engine's output goes into, by looking at it ten times a second.

`vllm serve … 2>&1 | tee -a /logs/vllm.log` on a shared volume is the Kubernetes way. No inotify:
it says nothing on network file systems and through some container mounts.

What happens to the file, and what is done:
- not there yet: waited for, and then read from its beginning;
- renamed, and a new one made in its place: the old one is read until half a second has passed
  without a new byte in it, then the new one; a few of them may queue up. A file that had its name
  for less than a tenth of a second is never seen, and that can't be told;
- truncated (copytruncate): noticed by its size or, if it has grown past it again, by the last
  bytes that were read. What was written between the last look and the truncation is lost: a gap.
  A writer that doesn't append goes on at its old offset and leaves a hole, which is skipped;
- unreadable for a time: a gap of that time, and read on where it was left;
- on a network share that does not answer: waited for, which is said, and then the same.
"""

import asyncio
import os
import stat
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Lock

from sidecar.adapters.logs.pace import AT_ONCE, pauses_s
from sidecar.adapters.onethread import OneThread
from sidecar.core.logs.items import Counts, Gap, Item, Line
from sidecar.core.logs.lines import Lines
from sidecar.core.logs.source import FileSpec

_LOOK_S = 0.1
ANSWER_S = 5.0
"""After so long without an answer it is said that there is none."""
_LINGER_S = 0.5
_AT_ONCE_BYTES = 128 << 10
_KNOWN_BYTES = 64
_MAX_WAITING = 8
"""Rotated files whose end has not been read; with more of them the oldest is given up."""
MAX_OLD_BYTES = 32 << 20
"""Of what stood in the file before we came, its first and its last half are read: a boot of vLLM
writes some hundred kilobytes before it serves."""


@dataclass(frozen=True, slots=True)
class _Look:
    """What one look at the file gave."""

    data: bytes = b""
    gap: Gap | None = None
    """Before `data`."""
    is_new_text: bool = False
    """What was held of an unfinished line is all there is of it."""
    is_old: bool = False
    more: bool = False
    """Look again at once."""


@dataclass(slots=True)
class _Open:
    """A file that is being read."""

    handle: int
    identity: tuple[int, int]
    """Device and inode; not used anew while the handle is open."""
    offset: int = 0
    known: bytes = b""
    """The last bytes before `offset`: while they stand there, it is the text that we have read."""
    old_until: int = 0
    quiet_since_s: float | None = None
    skips_line: bool = False


class _Follower:
    """The blocking half: open, read, close. Each look takes one bounded step, and is made in a
    thread; `close` may be called meanwhile, and then that step is the last."""

    def __init__(
        self, path: str, max_old_bytes: int, pread: Callable[[int, int, int], bytes]
    ) -> None:
        self._path = path
        self._pread = pread
        self._looking = Lock()
        self._is_closed = False
        self._max_old_bytes = max_old_bytes
        self._files: deque[_Open] = deque()
        self._left: _Open | None = None
        """The file that an error made us close, to read on from there."""
        self._looked_s: float | None = None

    @property
    def has_file(self) -> bool:
        return bool(self._files)

    def look(self, now_s: float) -> _Look:
        """Raises OSError; the file that can't be read has been closed then."""
        try:
            with self._looking:
                return self._look(now_s)
        finally:
            if self._is_closed:
                self.close()

    def close(self) -> None:
        """At once, or when the look that is being made has ended."""
        self._is_closed = True
        if self._looking.acquire(blocking=False):
            while self._files:
                os.close(self._files.popleft().handle)
            self._looking.release()

    def _look(self, now_s: float) -> _Look:
        before_s, self._looked_s = self._looked_s, now_s
        gap = self._open_newest(now_s, is_first=before_s is None)
        if gap is not None:
            return _Look(gap=gap, is_new_text=True, more=True)
        if not self._files:
            return _Look()
        file = self._files[0]
        try:
            return self._read(file, now_s, now_s - (before_s if before_s is not None else now_s))
        except OSError:
            self._left = self._files.popleft()
            os.close(self._left.handle)
            raise

    def _open_newest(self, now_s: float, *, is_first: bool) -> Gap | None:
        """Whatever has the name now stands last in the queue."""
        try:
            found = Path(self._path).stat()
        except FileNotFoundError:
            return None
        if self._files and self._files[-1].identity == (found.st_dev, found.st_ino):
            return None
        # O_NONBLOCK: opening a pipe would wait for its writer.
        handle = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        opened = os.fstat(handle)
        if not stat.S_ISREG(opened.st_mode):
            os.close(handle)
            raise OSError(0, "it is no regular file")
        file = _Open(handle, (opened.st_dev, opened.st_ino))
        if is_first:
            file.old_until = opened.st_size
        if self._left is not None and self._left.identity == file.identity:
            file = replace(self._left, handle=handle)
        self._left = None
        self._files.append(file)
        if len(self._files) <= _MAX_WAITING:
            return None
        os.close(self._files.popleft().handle)
        return Gap(now_s, f"the file was rotated {_MAX_WAITING} times before its end was read")

    def _read(self, file: _Open, now_s: float, since_s: float) -> _Look:
        if skipped := self._skip(file):
            return _Look(
                gap=Gap(now_s, "the middle of the old text was skipped", lost_bytes=skipped),
                is_new_text=True,
                more=True,
            )
        start = file.offset - len(file.known)
        data = self._pread(file.handle, _AT_ONCE_BYTES + len(file.known), start)
        if not data.startswith(file.known):
            file.offset, file.known, file.old_until = 0, b"", 0
            gap = Gap(now_s, "the file was truncated", seconds=since_s)
            return _Look(gap=gap, is_new_text=True, more=True)
        new = data[len(file.known) :]
        if not new:
            return self._at_end(file, now_s)
        is_old = file.offset < file.old_until
        file.quiet_since_s = None
        file.offset += len(new)
        file.known = data[-_KNOWN_BYTES:]
        if file.skips_line:
            _, found, new = new.partition(b"\n")
            file.skips_line = not found
        return _Look(new.lstrip(b"\0"), is_old=is_old, more=True)

    def _skip(self, file: _Open) -> int:
        """Jump over holes at the beginning and over too much old text; bytes of text skipped."""
        if file.offset == 0 and os.fstat(file.handle).st_size > _AT_ONCE_BYTES:
            try:
                file.offset = os.lseek(file.handle, 0, os.SEEK_DATA)
            except OSError:  # no data at all yet, or a file system that can't say
                return 0
        half = self._max_old_bytes // 2
        if file.old_until > self._max_old_bytes and half <= file.offset < file.old_until - half:
            skipped = file.old_until - half - file.offset
            file.offset += skipped
            file.known, file.skips_line = b"", True
            return skipped
        return 0

    def _at_end(self, file: _Open, now_s: float) -> _Look:
        """Nothing new: on to the next file, if there is one and this one has ended."""
        if len(self._files) == 1:
            return _Look()
        if file.quiet_since_s is None:
            file.quiet_since_s = now_s
        if now_s - file.quiet_since_s < _LINGER_S:
            return _Look()
        self._files.popleft()
        os.close(file.handle)
        return _Look(is_new_text=True, more=True)


class FileLog:
    """One path, followed for as long as `lines` is iterated."""

    def __init__(
        self,
        spec: FileSpec,
        *,
        max_old_bytes: int = MAX_OLD_BYTES,
        pread: Callable[[int, int, int], bytes] = os.pread,
    ) -> None:
        self.spec = spec
        self._max_old_bytes = max_old_bytes
        self._pread = pread
        self._thread = OneThread()
        self._text = Lines()
        self._lines = 0
        self._breaks = 0
        self._trouble: str | None = None
        self._lost_s: float | None = None
        """Since when it can't be read."""

    @property
    def is_lossy(self) -> bool:
        """Never: what can be missing is a gap."""
        return False

    @property
    def trouble(self) -> str | None:
        """One sentence while the file can't be read."""
        return self._trouble

    @property
    def counts(self) -> Counts:
        cut = self._text.cut
        return Counts(self._lines, self._breaks, cut_lines=cut.lines, cut_bytes=cut.bytes)

    async def lines(self) -> AsyncGenerator[Item, None]:
        """Endless; closing or cancelling it closes the file."""
        follower = _Follower(self.spec.path, self._max_old_bytes, self._pread)
        pauses = pauses_s()
        try:
            while True:
                asked_s = time.monotonic()
                try:
                    look = await self._answer(partial(follower.look, asked_s), asked_s)
                except OSError as problem:
                    why = problem.strerror or str(problem)
                    self._lose(asked_s, f"can't be read ({why}): make it readable")
                    await asyncio.sleep(next(pauses))
                    continue
                if self._lost_s is not None:
                    yield self._back(self._lost_s)
                    pauses = pauses_s()
                self._trouble = None if follower.has_file else f"{self.spec.path} is not there yet"
                async for item in self._items(look):
                    yield item
                if not look.more:
                    await asyncio.sleep(_LOOK_S)
        finally:
            follower.close()

    async def _answer(self, look: Callable[[], _Look], asked_s: float) -> _Look:
        """What the look gives, however late: its lines would be missing else. Raises OSError."""
        asked = asyncio.ensure_future(self._thread.run(look))
        try:
            answered, _ = await asyncio.wait([asked], timeout=ANSWER_S)
            if not answered:
                self._lose(asked_s, "does not answer: see to the volume that it is on")
                await asyncio.wait([asked])
            return asked.result()
        finally:
            asked.cancel()

    def _lose(self, now_s: float, why: str) -> None:
        self._trouble = f"{self.spec.path} {why}"
        self._lost_s = now_s if self._lost_s is None else self._lost_s

    def _back(self, lost_s: float) -> Gap:
        self._breaks += 1
        self._lost_s, now_s = None, time.monotonic()
        return Gap(now_s, self._trouble or "the file could not be read", seconds=now_s - lost_s)

    async def _items(self, look: _Look) -> AsyncGenerator[Item, None]:
        ended = self._text.end() if look.is_new_text else []
        at_s = time.monotonic()
        for text in ended:
            yield self._line(text, at_s, look)
        if look.gap is not None:
            yield look.gap
        for n, text in enumerate(self._text.feed(look.data), 1):
            yield self._line(text, at_s, look)
            if n % AT_ONCE == 0:
                await asyncio.sleep(0)

    def _line(self, text: str, at_s: float, look: _Look) -> Line:
        self._lines += 1
        return Line(text, at_s, old=look.is_old)

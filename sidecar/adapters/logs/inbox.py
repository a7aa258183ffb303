"""What has arrived at a listener and was not taken yet."""

import asyncio
import time
from collections import deque

from sidecar.core.logs.items import Gap, Item, Line
from sidecar.core.logs.syslog import TaggedLine

_MAX_BYTES = 16 << 20
"""A hundred thousand lines of the usual length."""
_ITEM_BYTES = 200
"""What one costs beside its text."""


class Inbox:
    """A bounded queue that drops the newest, and says where and how many.

    It never makes a sender wait. Docker's `syslog` driver writes in the container's output path:
    when nobody reads, the engine stands still at its next line (see syslog.py).
    """

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        self._limit = max_bytes
        self._items: deque[Item] = deque()
        self._bytes = 0
        self._missing = 0
        """Dropped since the last item that was taken in."""
        self._filled = asyncio.Event()
        self.lines = 0
        self.dropped_lines = 0

    def put_lines(self, tagged: list[TaggedLine], at_s: float) -> None:
        for line in tagged:
            if self._bytes > self._limit:
                self._missing += 1
                self.dropped_lines += 1
                continue
            self.lines += 1
            self._append(Line(line.text, at_s, origin=line.tag or None), at_s, len(line.text))

    def miss(self, lines: int) -> None:
        """So many came and were not even looked at."""
        self._missing += lines
        self.dropped_lines += lines
        if not self._items:
            self._append_gap(time.monotonic())

    def put(self, item: Item) -> None:
        """Something other than a line; there are few, unless somebody connects again and again."""
        if self._bytes > 2 * self._limit:
            self._missing += 1
            self.dropped_lines += 1
            return
        self._append(item, item.at_s, 0)

    async def take(self, at_most_s: float) -> list[Item]:
        """All there is, in order of arrival; waits for the first, and not longer than that."""
        try:
            async with asyncio.timeout(at_most_s):
                await self._filled.wait()
        except TimeoutError:
            return []
        items = list(self._items)
        self._items.clear()
        self._bytes = 0
        if self._missing:
            items.append(self._gap(items[-1].at_s))
        self._filled.clear()
        return items

    def _append_gap(self, at_s: float) -> None:
        self._items.append(self._gap(at_s))
        self._filled.set()

    def _append(self, item: Item, at_s: float, text_bytes: int) -> None:
        if self._missing:
            self._append_gap(at_s)
        self._items.append(item)
        self._bytes += text_bytes + _ITEM_BYTES
        self._filled.set()

    def _gap(self, at_s: float) -> Gap:
        missing, self._missing = self._missing, 0
        return Gap(at_s, "they came faster than they were taken", lost_lines=missing)

"""A container's log through the Docker Engine's API, across restarts and re-creations.

Docker keeps the log, so after a break it is asked again for what came since. It needs the
Engine's socket, which is as good as root on that machine; `syslog` does without. What can't be had:
a log that Docker doesn't keep (the logging driver `none`), which is said, and what `max-size` had
Docker throw away during a break, which is a gap whose loss is not known.

Docker doesn't say what it throws away before it was sent: measured with Engine 20.10 and 100,000
lines in three seconds, all arrived with `max-size: 10m` and one seventh with `100k`. Where it keeps
little the source is lossy, and its silence proves nothing.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime

from sidecar.adapters.logs.engineapi import IDLE_S, DockerTrouble, EngineApi, ReadAnew, Run
from sidecar.adapters.logs.pace import AT_ONCE, pauses_s
from sidecar.core.logs.docker import FramedLines, Resume, Stamped, TtyLines
from sidecar.core.logs.items import Began, Counts, Ended, Gap, Item, Line
from sidecar.core.logs.lines import Cut
from sidecar.core.logs.source import DockerSpec

log = logging.getLogger(__name__)

_ENOUGH_BYTES = 1 << 20
_SOON_S = 0.1
_UNTIL_ENDED_S = 2.0
"""The log's end comes a little before the Engine says that the container has ended."""
MAX_OLD_BYTES = 32 << 20
"""Of what this run of the container printed before we came, so much is read from its beginning."""


@dataclass(slots=True)
class _Break:
    """The log is not being read since then."""

    since_s: float
    why: str


class DockerLog:
    """One container by name, or one compose service, for as long as `lines` is iterated."""

    def __init__(
        self, spec: DockerSpec, *, max_old_bytes: int = MAX_OLD_BYTES, idle_s: float = IDLE_S
    ) -> None:
        self.spec = spec
        self._idle_s = idle_s
        self._max_old_bytes = max_old_bytes
        self._run: Run | None = None
        self._resume = Resume()
        self._break: _Break | None = None
        self._is_over = False
        """The run has ended, all of its log was read, and both were told."""
        self._opened_ns = 0
        self._old_bytes = 0
        self._lines = 0
        self._breaks = 0
        self._cut = Cut()
        self._trouble: str | None = None
        self._pauses = pauses_s()

    @property
    def is_lossy(self) -> bool:
        """Whether Docker keeps so little that lines can be gone before they are sent."""
        kept = self._run.kept_bytes if self._run is not None else None
        return kept is not None and kept < _ENOUGH_BYTES

    @property
    def trouble(self) -> str | None:
        """One sentence while no container is being read."""
        return self._trouble

    @property
    def counts(self) -> Counts:
        return Counts(
            self._lines, self._breaks, cut_lines=self._cut.lines, cut_bytes=self._cut.bytes
        )

    async def lines(self) -> AsyncGenerator[Item, None]:
        """Endless; closing or cancelling it closes the connection."""
        self._opened_ns = int(datetime.now(UTC).timestamp() * 1e9)
        async with aclosing(EngineApi(self.spec, self._idle_s)) as api:
            while True:
                try:
                    async with aclosing(self._step(api)) as items:
                        async for item in items:
                            yield item
                except ReadAnew:
                    continue
                except DockerTrouble as problem:
                    self._lose(str(problem))
                    await asyncio.sleep(next(self._pauses))

    def _lose(self, why: str) -> None:
        if self._trouble != why:
            log.warning("log source unavailable source=%s why=%r", self.spec, why)
        self._trouble = why
        if self._break is None and self._run is not None and not self._is_over:
            self._break = _Break(time.monotonic(), why)

    async def _step(self, api: EngineApi) -> AsyncGenerator[Item, None]:
        """Once: find it, read what it has, follow it until it ends. Raises DockerTrouble."""
        run = await api.find(self._run.container if self._run else None)
        if run is None or not run.has_started:
            async for item in self._vanished():
                yield item
            self._trouble = (
                f"there is no container and no compose service {self.spec.name}"
                if run is None
                else f"the container {run.name} has not been started"
            )
            await asyncio.sleep(min(next(self._pauses), 1.0))
            return
        async for item in self._met(run):
            yield item
        if self._is_over:
            self._trouble = _has_ended(run)
            await asyncio.sleep(min(next(self._pauses), 1.0))
            return
        if self._break is not None or not run.is_running:
            async for item in self._read(api, run, follow=False):
                yield item
        if run.is_running:
            self._trouble, self._pauses = None, pauses_s()
            async for item in self._read(api, run, follow=True):
                yield item
            await self._until_told(api, run)
        else:
            self._is_over = True
            self._trouble = _has_ended(run)
            yield Ended(
                time.monotonic(), run.container[:12], _ending(run), run.exit_code, run.oom_killed
            )

    async def _met(self, run: Run) -> AsyncGenerator[Item, None]:
        """Tell a run that is another than before."""
        before = self._run
        if before is not None and before.container == run.container:
            if before.started_at == run.started_at:
                self._run = run
                return
            if not self._is_over:  # it was too short, or we were away
                yield Ended(time.monotonic(), run.container[:12], "it was restarted")
            why = "restarted"
        else:
            async for item in self._vanished():
                yield item
            why = "seen first" if before is None else "re-created"
            # Of a container that came while we looked, all that it ever printed is wanted.
            self._resume = Resume(run.since_ns if before is None else 0)
        self._run, self._is_over = run, False
        yield Began(time.monotonic(), run.container[:12], run.started_at, run.restart_count, why)

    async def _vanished(self) -> AsyncGenerator[Item, None]:
        """The container that was read is not there any more."""
        if self._run is not None and not self._is_over:
            yield self._unread_end(self._run)
            yield Ended(time.monotonic(), self._run.container[:12], "it was removed")
            self._is_over, self._break = True, None

    def _unread_end(self, run: Run) -> Gap:
        self._breaks += 1
        why = f"the container {run.name} was removed before the end of its log could be checked"
        return Gap(time.monotonic(), why)

    async def _read(self, api: EngineApi, run: Run, *, follow: bool) -> AsyncGenerator[Item, None]:
        """New lines. After a break first the gap, which says whether anything is missing."""
        decoder = TtyLines() if run.has_tty else FramedLines()
        cut_before = self._cut
        async with aclosing(api.read(run, self._resume.begin(), follow=follow)) as stream:
            async for data in stream:
                stamped = decoder.feed(data)
                self._cut = _plus(cut_before, decoder.cut)
                async for item in self._items(run, stamped):
                    yield item
                if decoder.broken is not None:
                    raise DockerTrouble(decoder.broken)
                if self._old_bytes > self._max_old_bytes:
                    self._old_bytes = 0
                    self._resume.skip_to(self._opened_ns)
                    yield Gap(time.monotonic(), "the later part of the old text was skipped")
                    raise ReadAnew
        if not follow:
            if not run.is_running:
                async for item in self._items(run, decoder.end()):
                    yield item
            if self._break is not None:
                yield self._back()

    async def _items(self, run: Run, stamped: list[Stamped]) -> AsyncGenerator[Item, None]:
        at_s = time.monotonic()
        given = 0
        for line in stamped:
            if not self._resume.is_new(line):
                continue
            if self._break is not None:
                yield self._back()
            is_old = line.stamp_ns is not None and line.stamp_ns < self._opened_ns
            self._old_bytes += len(line.text) if is_old else 0
            for text in line.text.decode("utf-8", "replace").replace("\r", "\n").split("\n"):
                if text:
                    self._lines += 1
                    yield Line(text, at_s, run.container[:12], old=is_old)
            given += 1
            if given % AT_ONCE == 0:
                await asyncio.sleep(0)

    def _back(self) -> Gap:
        """What the break was. Known lines come before new ones, so now it is known."""
        assert self._break is not None
        now_s = time.monotonic()
        gap = Gap(
            now_s,
            self._break.why,
            seconds=now_s - self._break.since_s,
            lost_bytes=0 if self._resume.is_proven else None,
        )
        self._break = None
        self._breaks += 1
        return gap

    async def _until_told(self, api: EngineApi, run: Run) -> None:
        """The stream has ended: wait until the Engine says that the container has, too."""
        waited_s = 0.0
        while waited_s < _UNTIL_ENDED_S:
            now = await api.inspect(run.container)
            if now is None or not now.is_running or now.started_at != run.started_at:
                return
            await asyncio.sleep(_SOON_S)
            waited_s += _SOON_S
        self._break = _Break(time.monotonic() - waited_s, "the Docker Engine ended the stream")


def _has_ended(run: Run) -> str:
    return f"the container {run.name} has ended ({_ending(run)})"


def _ending(run: Run) -> str:
    killed = ", out of memory" if run.oom_killed else ""
    return f"exit code {run.exit_code}{killed}"


def _plus(one: Cut, other: Cut) -> Cut:
    return Cut(one.lines + other.lines, one.bytes + other.bytes)

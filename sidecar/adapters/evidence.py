"""Reads the engine's log beside everything else, and says what it showed of one wave.

One task per source. Of a line that matches no event nothing is kept: what users wrote can stand in
it. A start line is believed once the conductor has met the boot by other means (`adopt`): what
stands there later may be forged.
"""

import asyncio
import logging
import secrets
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import replace

from sidecar.adapters.logs import LogSource
from sidecar.adapters.logstream import Stream
from sidecar.core.logs.events import Access, Compile, LogEvent, Phase, Started, Step, Trouble
from sidecar.core.logs.evidence import Heard, Listening, LogEvidence, combined
from sidecar.core.logs.facts import StartFacts
from sidecar.core.logs.head import Origin
from sidecar.core.logs.items import Counts, Ended, Gap, Item, Line, SourceState
from sidecar.core.logs.parse import fence_target
from sidecar.core.logs.reader import LogReader
from sidecar.core.logs.seen import Seen, Told
from sidecar.core.logs.window import Expected, Fences, Window

log = logging.getLogger(__name__)

FENCE_WAIT_S = 2.0
"""For a fence to come through the log: a file is looked at every 0.1 s, Docker answers at once."""
_HOPELESS_WAIT_S, _HOPELESS_WAVES = 0.3, 3
"""Where no fence ever came: how long, and for how many waves, one is still waited for."""

_AGAIN_S = 1.0
"""Before a source that ended, which none does by itself, is opened again."""

MAX_STREAMS = 64
"""Senders told apart; what more there are is counted and not read."""
MAX_EARLIER = 100

Send = Callable[[str], Awaitable[None]]
"""GETs a path of the engine; never raises."""


class Evidence:
    """All sources of one engine. `run` beside everything; one wave at a time."""

    def __init__(
        self,
        sources: Sequence[tuple[str, LogSource]],
        *,
        prefix: str = "",
        on_seen: Callable[[Seen], None] | None = None,
        nonce: Callable[[], str] = lambda: secrets.token_hex(16),
    ) -> None:
        """`sources` with their names; `prefix` is the engine's VLLM_LOGGING_PREFIX."""
        self._sources = dict(sources)
        self._prefix = prefix
        self.on_seen = on_seen
        self._nonce = nonce
        self._streams: dict[tuple[str, str | None], Stream] = {}
        self._wave: Wave | None = None
        self._fence: str | None = None
        self._seen = asyncio.Event()
        self._hopeless = 0
        self._earlier: deque[Compile] = deque(maxlen=MAX_EARLIER)
        self._listening = Listening()
        self._unread: Counter[str] = Counter()
        """Lines of senders beyond MAX_STREAMS, by source."""

    @property
    def states(self) -> tuple[SourceState, ...]:
        """Of all sources, as of now."""
        return tuple(
            SourceState(name, self._counts(name, source), source.trouble)
            for name, source in self._sources.items()
        )

    def _counts(self, name: str, source: LogSource) -> Counts:
        counts = source.counts
        return replace(counts, dropped_lines=counts.dropped_lines + self._unread[name])

    @property
    def warnings(self) -> tuple[str, ...]:
        """One sentence for each source that can't be read now, or not all of it."""
        troubles = tuple(
            f"log {name}: {source.trouble}"
            for name, source in self._sources.items()
            if source.trouble is not None
        )
        crowds = tuple(
            f"log {name}: it has more than {MAX_STREAMS} senders, and those that came later are "
            "not read: limit who may send (allow=)"
            for name in self._unread
        )
        return troubles + crowds

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            for name, source in self._sources.items():
                group.create_task(self._read(name, source))

    async def adopt(self, send: Send) -> StartFacts:
        """A boot was met: what its start lines told, and from now on whose monitors count.

        Only streams in which a fence shows are the log of this engine; the others tell nothing.
        """
        self._hopeless = 0
        for stream in self._streams.values():
            stream.is_engines = False
        self._fence = self._nonce()
        await send(fence_target(self._fence))
        await self._until(self._is_fenced, FENCE_WAIT_S)
        self._fence = None
        self._streams = {k: s for k, s in self._streams.items() if not s.has_ended}
        facts = StartFacts()
        for stream in self._streams.values():
            stream.adopt()
            if stream.is_engines:
                facts = facts.with_(stream.facts)
        self._listening = _listening(facts, self._streams.values())
        self._earlier.clear()
        return facts

    def reject_start(self) -> None:
        """There was no restart since the boot was met, whatever the log said: a user wrote it."""
        for stream in self._streams.values():
            stream.reject()

    async def begin(self, send: Send, expected: tuple[Expected, ...]) -> "Wave":
        """Open the windows of one wave: call it right before the gun, and `end` after it."""
        wave = self._wave = Wave(self, send, expected)
        for stream in self._streams.values():
            wave.watch(stream)
        try:
            await send(fence_target(wave.fences.opening))
        except BaseException:
            self.drop(wave)
            raise
        return wave

    async def end(self, wave: "Wave", send: Send) -> LogEvidence:
        """Close the windows; waits for the closing fence, but not for long."""
        await send(fence_target(wave.fences.closing))
        known = any(stream.is_engines for stream in self._streams.values())
        limit_s = FENCE_WAIT_S if known else _HOPELESS_WAIT_S
        if known or self._hopeless < _HOPELESS_WAVES:
            await self._until(self._is_closed, limit_s)
        self._hopeless = 0 if known else self._hopeless + 1
        earlier = tuple(self._earlier)
        self._earlier.clear()
        heard = [
            Heard(s.window.report(), s.listeners, self._sources[s.source].is_lossy)
            for s in self._streams.values()
            if s.window is not None
        ]
        for stream in self._streams.values():
            stream.owe(wave.fences.closing)
        self._close()
        return combined(heard, self._listening, earlier)

    def drop(self, wave: "Wave") -> None:
        """The wave was cut off, if it is not over: what it compiled was compiled before the
        next one."""
        if self._wave is wave:
            for stream in self._streams.values():
                if stream.window is not None and stream.window.is_open:
                    self._earlier.extend(stream.window.report().compiles)
            self._close()

    def _close(self) -> None:
        self._wave = None
        for stream in self._streams.values():
            stream.window = None

    def open_window(self, fences: Fences, expected: tuple[Expected, ...], source: str) -> Window:
        return Window(fences, expected, lossless=not self._sources[source].is_lossy)

    def new_nonce(self) -> str:
        return self._nonce()

    # --- reading ---------------------------------------------------------------------------------

    async def _read(self, name: str, source: LogSource) -> None:
        while True:
            try:
                async with aclosing(source.lines()) as items:
                    async for item in items:
                        self._take(name, item)
            except Exception as bug:
                # A gate must outlive a bug. Its words could be a user's: they are not repeated.
                log.error("a bug: %s as the log %s was read", type(bug).__name__, name)
                self._gap(name, None, "a bug of the sidecar; see its log")
            await asyncio.sleep(_AGAIN_S)

    def _take(self, name: str, item: Item) -> None:
        if isinstance(item, Line):
            self._line(name, item)
            return
        if isinstance(item, Gap):
            if item.lost_bytes != 0:
                self._gap(name, None, str(item))
        elif isinstance(item, Ended):
            self._gap(name, item.origin or None, f"the log ended: {item.why}")
            ended = self._streams.get((name, item.origin or None))
            if ended is not None:
                ended.has_ended = True
        elif (name, item.origin or None) in self._streams:
            self._gap(name, item.origin or None, f"the log began anew: {item.why}")
        self._tell(name, item.at_s, item)

    def _line(self, name: str, line: Line) -> None:
        stream = self._stream(name, line.origin)
        if stream is None:
            self._unread[name] += 1
            return
        stream.has_ended = False
        event = stream.reader.feed(line.text)
        if event is None:
            return
        if isinstance(event, Started) and event.phase is Phase.ARGUMENTS:
            stream.doubtful = line.old and stream.boot.is_serving
        stream.boot.feed(event)
        if line.old:
            return
        if isinstance(event, Access) and event.nonce is not None:
            self._fenced(stream, event.nonce)
            stream.has_paid(event.nonce)
        if stream.window is not None and not stream.window.is_closed:
            self._into(stream.window, event)
        elif isinstance(event, Compile):
            self._earlier.append(event)
        if isinstance(event, Compile | Trouble | Started) or (
            isinstance(event, Step) and stream.lacks_step and not event.is_dummy
        ):
            stream.lacks_step = isinstance(event, Compile)
            self._tell(name, line.at_s, event, late=stream.owes(line.at_s))

    def _into(self, window_: Window, event: LogEvent) -> None:
        if not window_.is_open and isinstance(event, Compile):
            self._earlier.append(event)  # the opening fence will clear it from the window
        was = window_.is_open, window_.is_closed
        window_.feed(event)
        if (window_.is_open, window_.is_closed) != was:
            self._seen.set()

    def _fenced(self, stream: Stream, nonce: str) -> None:
        wave = self._wave
        ours = (self._fence,) if wave is None else (wave.fences.opening, wave.fences.closing)
        if nonce in ours:
            stream.is_engines = True
            self._seen.set()

    def _gap(self, name: str, origin: str | None, why: str) -> None:
        for stream in self._streams.values():
            is_its = stream.source == name and (origin is None or stream.origin in (None, origin))
            if is_its and stream.window is not None:
                stream.window.miss(why)

    def _stream(self, name: str, origin: str | None) -> Stream | None:
        stream = self._streams.get((name, origin))
        if stream is None and len(self._streams) < MAX_STREAMS:
            stream = self._streams[name, origin] = Stream(name, origin, LogReader(self._prefix))
            if self._wave is not None:
                self._wave.watch(stream)
        return stream

    def _tell(self, name: str, at_s: float, what: Told, *, late: bool = False) -> None:
        if self.on_seen is not None:
            self.on_seen(Seen(name, at_s, what, in_wave=late or self._wave is not None))

    # --- waiting ---------------------------------------------------------------------------------

    def _is_fenced(self) -> bool:
        return any(stream.is_engines for stream in self._streams.values())

    def _is_closed(self) -> bool:
        """Every stream that has shown a fence of this boot has shown the last one."""
        windows = [s.window for s in self._streams.values() if s.is_engines and s.window]
        return bool(windows) and all(each.is_closed for each in windows)

    async def _until(self, condition: Callable[[], bool], limit_s: float) -> None:
        until_s = time.monotonic() + limit_s
        while not condition():
            self._seen.clear()
            try:
                async with asyncio.timeout(until_s - time.monotonic()):
                    await self._seen.wait()
            except TimeoutError:
                return


class Wave:
    """The windows of one wave, one for each stream."""

    def __init__(self, evidence: Evidence, send: Send, expected: tuple[Expected, ...]) -> None:
        self._evidence = evidence
        self._send = send
        self._expected = expected
        self.fences = Fences(evidence.new_nonce(), evidence.new_nonce())

    def watch(self, stream: Stream) -> None:
        stream.window = self._evidence.open_window(self.fences, self._expected, stream.source)

    async def end(self) -> LogEvidence:
        """After the last byte of the wave: what the log showed. FENCE_WAIT_S at most."""
        return await self._evidence.end(self, self._send)

    def drop(self) -> None:
        """Without a report: the wave was cut off."""
        self._evidence.drop(self)


def _listening(facts: StartFacts, streams: Iterable[Stream]) -> Listening:
    listeners = frozenset[Origin]()
    doubtful = False
    for stream in streams:
        listeners |= stream.listeners
        doubtful = doubtful or (stream.is_engines and stream.doubtful)
    return Listening(
        monitors=len(listeners),
        ranks=facts.ranks,
        verbose=facts.jit_monitor_verbose,
        off=_off(facts),
        doubtful="its start lines were written before the sidecar listened, and after answers "
        "to users, who may have written them"
        if doubtful
        else None,
    )


def _off(facts: StartFacts) -> str | None:
    """Why no monitor listens, as far as the start lines tell (vLLM 0.33 gpu_worker.py)."""
    if facts.device == "cpu":
        return "vLLM has no JIT monitor on a CPU"
    if facts.jit_warmup is False or (facts.enforce_eager and facts.jit_monitor_mode is None):
        return "with --enforce-eager vLLM has no JIT monitor (0.31 and later)"
    return None

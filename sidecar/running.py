"""`serve` and `once`: what was wired runs, until a signal or a verdict."""

import logging
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import anyio
from anyio import to_thread
from anyio.abc import TaskGroup

from sidecar.adapters.openfiles import raise_limit
from sidecar.core.errors import ExitCode
from sidecar.core.grid.shapes import Shapes
from sidecar.core.policy import Rhythm
from sidecar.core.report import Report
from sidecar.core.watch.gate import Snapshot, State
from sidecar.settings import Settings
from sidecar.warming import TRIED_AGAIN
from sidecar.wiring import build

log = logging.getLogger(__name__)

MAX_BOOTS_ONCE = 3
"""`once` gives up on an engine that keeps restarting while it is warmed."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What `once` ended with."""

    exit_code: int
    """An ExitCode, or 128 + the number of the signal that ended it."""
    reasons: tuple[str, ...]
    reports: Mapping[str, Report]
    """By engine; none of one whose warm-up came to no verdict."""
    adopted: tuple[str, ...] = ()
    """Of several, those that were found warm by a verdict that was kept."""

    @property
    def report(self) -> Report | None:
        """Where there is one engine."""
        return next(iter(self.reports.values()), None)


async def serve(
    settings: Settings,
    shapes: Shapes,
    *,
    rhythm: Rhythm | None = None,
    on_listening: Callable[[int], None] | None = None,
) -> int:
    """Run until SIGTERM or SIGINT: the gate is shut first, then all else ends; 0.

    `on_listening` is given the port once it is bound. Raises ConfigError before anything runs.
    """
    from sidecar.web.app import create_app
    from sidecar.web.connections import Doorman
    from sidecar.web.server import Server, listen
    from sidecar.web.waiting import Waiting

    raise_limit()
    waiting = Waiting(lambda: fleet.snapshot)
    # In a thread: it reads and writes files, and the loop may have others to serve.
    fleet = await to_thread.run_sync(
        partial(build, settings, shapes, on_change=waiting.hear, rhythm=rhythm)
    )
    listener = listen(settings.host, settings.port)
    doorman = Doorman()
    app = create_app(lambda: fleet.snapshot, waiting=waiting, closed=lambda: dict(doorman.closed))
    server = Server(app, doorman)
    port = listener.getsockname()[1]
    log.info("listening on %s port %d", settings.host, port)
    if on_listening is not None:
        on_listening(port)

    async def stop_at_signal(group: TaskGroup) -> None:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for number in signals:
                log.info("signal=%s: shutting the gate", signal.Signals(number).name)
                await fleet.stop()
                group.cancel_scope.cancel()
                return

    async def answer() -> None:
        # It ends by `should_exit` alone: cut off, it would leave its sockets behind.
        with anyio.CancelScope(shield=True):
            await server.serve([listener])

    try:
        async with anyio.create_task_group() as whole:
            whole.start_soon(answer)
            try:
                async with anyio.create_task_group() as group:
                    group.start_soon(stop_at_signal, group)
                    group.start_soon(fleet.run)
            finally:
                with anyio.CancelScope(shield=True):
                    await fleet.stop()
                server.should_exit = True
    finally:
        with anyio.CancelScope(shield=True):
            await fleet.aclose()
        listener.close()
    return ExitCode.WARM


async def once(
    settings: Settings,
    shapes: Shapes,
    *,
    show: Callable[[Snapshot], None] | None = None,
    rhythm: Rhythm | None = None,
) -> Outcome:
    """Warm the engine, or each of several, and end. `show` is given each snapshot.

    Ends when there has been a verdict on each (while others are still warmed, one that failed is
    tried again), at the start deadline, or at a signal (128 + its number). The ready file, where
    one is set, stays behind what was found warm. Raises ConfigError.
    """
    raise_limit()
    ended = anyio.Event()
    verdicts = Verdicts()

    def on_change(snapshot: Snapshot) -> None:
        if show is not None:
            show(snapshot if snapshot.parts else replace(snapshot, reasons=_for_good(snapshot)))
        if verdicts.hear(snapshot):
            ended.set()

    fleet = await to_thread.run_sync(
        partial(build, settings, shapes, on_change=on_change, rhythm=rhythm)
    )
    stopped_by: list[int] = []

    async def stop_at_signal() -> None:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for number in signals:
                await fleet.stop()
                stopped_by.append(number)
                ended.set()
                return

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(stop_at_signal)
            group.start_soon(fleet.run)
            await ended.wait()
            group.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await fleet.settle()
            await fleet.aclose()
    reports = {
        name: parts.conductor.report
        for name, parts in fleet.members.items()
        if parts.conductor.report is not None
    }
    if stopped_by:
        name = signal.Signals(stopped_by[0]).name
        return Outcome(128 + stopped_by[0], (f"ended by {name}",), reports)
    return verdicts.outcome(fleet.snapshot, reports)


class Verdicts:
    """The last verdict on each engine: one that failed may be warmed anew when the others end."""

    def __init__(self) -> None:
        self._failed: dict[str, Snapshot] = {}

    def hear(self, snapshot: Snapshot) -> bool:
        """Take the next snapshot. Whether there is a verdict on each engine."""
        for name, part in _each(snapshot).items():
            if part.state is State.FAILED:
                self._failed[name] = part
            elif part.is_ready:
                self._failed.pop(name, None)
        return all(
            name in self._failed or part.is_ready or part.totals.boots > MAX_BOOTS_ONCE
            for name, part in _each(snapshot).items()
        )

    def outcome(self, snapshot: Snapshot, reports: Mapping[str, Report]) -> Outcome:
        """What it comes to, now that it has ended with this snapshot."""
        adopted = tuple(name for name, part in snapshot.parts.items() if part.adopted)
        if snapshot.is_ready:
            return Outcome(ExitCode.WARM, snapshot.reasons, reports, adopted)
        codes, reasons = [], []
        for name, part in _each(snapshot).items():
            if part.is_ready:
                continue
            last = self._failed.get(name, part)
            codes.append(last.exit_code or ExitCode.ENGINE_UNAVAILABLE)
            told = _for_good(last)
            if last.exit_code is None and last.totals.boots > MAX_BOOTS_ONCE:
                told += (f"the engine was lost {MAX_BOOTS_ONCE} times while it was warmed",)
            reasons += [f"{name}: {reason}" if name else reason for reason in told]
        return Outcome(min(codes), tuple(reasons), reports, adopted)


def _for_good(snapshot: Snapshot) -> tuple[str, ...]:
    """Its reasons, where it is not tried again."""
    return tuple(reason for reason in snapshot.reasons if not reason.startswith(TRIED_AGAIN))


def _each(snapshot: Snapshot) -> Mapping[str, Snapshot]:
    """By name; the one engine of a sidecar has none."""
    return snapshot.parts or {"": snapshot}

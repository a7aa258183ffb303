"""`serve` and `once`: what was wired runs, until a signal or a verdict."""

import logging
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import anyio
from anyio import to_thread
from anyio.abc import TaskGroup

from sidecar.core.errors import ExitCode
from sidecar.core.grid.shapes import Shapes
from sidecar.core.policy import Rhythm
from sidecar.core.report import Report
from sidecar.core.watch.gate import Snapshot, State
from sidecar.settings import Settings
from sidecar.wiring import Fleet, build

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

    Ends with the first verdict on each, at the start deadline, or at a signal (128 + its number).
    The ready file, where one is set, stays behind what was found warm. Raises ConfigError.
    """
    ended = anyio.Event()

    def on_change(snapshot: Snapshot) -> None:
        if show is not None:
            show(snapshot)
        if all(map(_is_settled, snapshot.parts.values() or (snapshot,))):
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
    return _outcome(fleet, reports)


def _is_settled(snapshot: Snapshot) -> bool:
    is_decided = snapshot.state in (State.READY, State.FAILED)
    return is_decided or snapshot.totals.boots > MAX_BOOTS_ONCE


def _outcome(fleet: Fleet, reports: Mapping[str, Report]) -> Outcome:
    snapshot = fleet.snapshot
    if snapshot.is_ready:
        return Outcome(ExitCode.WARM, snapshot.reasons, reports)
    reasons = snapshot.reasons
    codes = []
    for name, part in (snapshot.parts or {"": snapshot}).items():
        if part.is_ready:
            continue
        codes.append(part.exit_code or ExitCode.ENGINE_UNAVAILABLE)
        if part.exit_code is None:
            lost = f"the engine was lost {MAX_BOOTS_ONCE} times while it was warmed"
            reasons = (*reasons, f"{name}: {lost}" if name else lost)
    return Outcome(min(codes), reasons, reports)

"""Builds everything: the only place that knows all classes. `serve` and `once` stand on it."""

import logging
import secrets
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

import anyio
from anyio import to_thread
from anyio.abc import TaskGroup

from sidecar import __version__
from sidecar.adapters.engine import Engine
from sidecar.adapters.readyfile import ReadyFile
from sidecar.adapters.state import StateDir
from sidecar.attempt import Replay
from sidecar.core.errors import ConfigError, ExitCode
from sidecar.core.grid.plan import Plan, expand
from sidecar.core.grid.shapes import OnEscape, OnUnproven, Shapes
from sidecar.core.logs.source import parse_sources
from sidecar.core.policy import Policy, Rhythm
from sidecar.core.report import Report
from sidecar.core.watch.gate import Snapshot, State
from sidecar.search import Learned
from sidecar.settings import Settings
from sidecar.warmup import Conductor

if TYPE_CHECKING:
    from sidecar.adapters.evidence import Evidence

log = logging.getLogger(__name__)

MAX_BOOTS_ONCE = 3
"""`once` gives up on an engine that keeps restarting while it is warmed."""

NO_STATE = "WARMUP_STATE_DIR is not set: a restart of the sidecar warms the engine again"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What `once` ended with. `report` is None where no warm-up came to a verdict."""

    exit_code: int
    """An ExitCode, or 128 + the number of the signal that ended it."""
    reasons: tuple[str, ...]
    report: Report | None


@dataclass(frozen=True, slots=True)
class Parts:
    """What was built for one run."""

    engine: Engine
    conductor: Conductor
    evidence: "Evidence | None"
    """None: no log is read."""

    @property
    def snapshot(self) -> Snapshot:
        """The gate's, with what is read beside it."""
        snapshot = self.conductor.snapshot
        return snapshot if self.evidence is None else replace(snapshot, logs=self.evidence.states)

    async def listen(self) -> None:
        """Read the log until cancelled."""
        if self.evidence is not None:
            await self.evidence.run()


def build(
    settings: Settings,
    shapes: Shapes,
    *,
    on_change: Callable[[Snapshot], None] | None = None,
    rhythm: Rhythm | None = None,
) -> Parts:
    """All adapters and the conductor. Raises ConfigError where a setting can't be used."""
    key = settings.api_key
    ca_file = settings.tls_ca_file
    store, warnings = _store(settings)
    ready_file = None if settings.ready_file is None else ReadyFile(settings.ready_file)
    engine = Engine(
        settings.engine_url,
        api_key=None if key is None else key.get_secret_value(),
        model=settings.model,
        tls_ca_file=None if ca_file is None else str(ca_file),
        tls_verify=settings.tls_verify,
    )
    policy = Policy(
        url=settings.engine_url,
        sidecar_version=__version__,
        shapes_digest=shapes.digest,
        converge=shapes.converge,
        budget_s=shapes.budget.total_s,
        max_passes=shapes.budget.passes,
        open_unproven=shapes.on_unproven is OnUnproven.OPEN,
        start_deadline_s=settings.start_deadline_s,
        rhythm=rhythm or Rhythm(),
        warnings=warnings,
        require_log=settings.require_evidence == "log",
        sleep_keeps_verdict=settings.sleep_keeps_verdict,
        rewarm_on_escape=shapes.on_escape is OnEscape.REWARM,
    )
    evidence = _evidence(settings)
    conductor = Conductor(
        policy,
        engine=engine if evidence is None else _logged(engine, evidence),
        plan_for=partial(expand, shapes),
        replay_for=partial(_replay, engine, evidence, shapes.budget.request_timeout_s),
        utc=lambda: datetime.now(UTC).timestamp(),
        nonce=_nonces(settings.seed),
        store=store,
        ready_file=ready_file,
        on_change=on_change,
        more_warnings=lambda: () if evidence is None else evidence.warnings,
        reject_start=None if evidence is None else evidence.reject_start,
    )
    if evidence is not None:
        evidence.on_seen = conductor.hear
    return Parts(engine, conductor, evidence)


def _store(settings: Settings) -> tuple[StateDir | None, tuple[str, ...]]:
    """The state folder, and what has to be said where there is none."""
    if settings.state_dir is None:
        return None, (NO_STATE,)
    try:
        return StateDir(settings.state_dir), ()
    except ConfigError as problem:
        if not settings.state_optional:
            raise
        # Of an image that runs as any number: what was asked for is the warm-up, not the folder.
        sentence = f"a restart of the sidecar warms the engine again: {problem}"
        log.warning("no state folder path=%s why=%r", settings.state_dir, str(problem))
        return None, (sentence,)


def _evidence(settings: Settings) -> "Evidence | None":
    specs = parse_sources(settings.log)
    if not specs:
        if settings.require_evidence == "log":
            raise ConfigError(
                "WARMUP_REQUIRE_EVIDENCE=log needs a log: set WARMUP_LOG to where the engine's "
                "can be read, e.g. file:///var/log/vllm.log"
            )
        return None
    from sidecar.adapters.evidence import Evidence
    from sidecar.adapters.logs import open_source

    return Evidence([(str(spec), open_source(spec)) for spec in specs], prefix=settings.log_prefix)


def _logged(engine: Engine, evidence: "Evidence") -> Learned:
    from sidecar.adapters.logged import LoggedEngine

    return LoggedEngine(engine, evidence)


def _replay(
    engine: Engine,
    evidence: "Evidence | None",
    request_timeout_s: float,
    plan: Plan,
    nonce: str,
) -> Replay:
    # Only waves need these: `serve` answers its first probe before they are imported.
    from sidecar.adapters.replay import Replay as Waves
    from sidecar.core.judge.pacing import Pacer

    return Waves(
        engine,
        plan.facts,
        Pacer(plan),
        nonce,
        request_timeout_s=request_timeout_s,
        evidence=evidence,
    )


def _nonces(seed: int | None) -> Callable[[], str]:
    """A nonce for each boot: of the seed where one is set, so that a run can be repeated."""
    if seed is None:
        return lambda: secrets.token_hex(4)
    numbers = iter(range(1, 2**63))
    return lambda: f"{seed:x}.{next(numbers)}"


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

    waiting = Waiting(lambda: parts.snapshot)
    # In a thread: it reads and writes files, and the loop may have others to serve.
    parts = await to_thread.run_sync(
        partial(build, settings, shapes, on_change=waiting.hear, rhythm=rhythm)
    )
    listener = listen(settings.host, settings.port)
    doorman = Doorman()
    app = create_app(lambda: parts.snapshot, waiting=waiting, closed=lambda: dict(doorman.closed))
    server = Server(app, doorman)
    port = listener.getsockname()[1]
    log.info("listening on %s port %d", settings.host, port)
    if on_listening is not None:
        on_listening(port)

    async def stop_at_signal(group: TaskGroup) -> None:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for number in signals:
                log.info("signal=%s: shutting the gate", signal.Signals(number).name)
                await parts.conductor.stop()
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
                    group.start_soon(parts.listen)
                    group.start_soon(parts.conductor.run)
            finally:
                with anyio.CancelScope(shield=True):
                    await parts.conductor.stop()
                server.should_exit = True
    finally:
        with anyio.CancelScope(shield=True):
            await parts.engine.aclose()
        listener.close()
    return ExitCode.WARM


async def once(
    settings: Settings,
    shapes: Shapes,
    *,
    show: Callable[[Snapshot], None] | None = None,
    rhythm: Rhythm | None = None,
) -> Outcome:
    """Warm one engine and end. `show` is given each snapshot. Raises ConfigError at the start.

    Ends with the first verdict, at the start deadline, or at a signal (128 + its number). The
    ready file, where one is set, stays behind an engine that was found warm.
    """
    ended = anyio.Event()

    def on_change(snapshot: Snapshot) -> None:
        if show is not None:
            show(snapshot)
        is_settled = snapshot.state in (State.READY, State.FAILED)
        if is_settled or snapshot.totals.boots > MAX_BOOTS_ONCE:
            ended.set()

    parts = await to_thread.run_sync(
        partial(build, settings, shapes, on_change=on_change, rhythm=rhythm)
    )
    conductor = parts.conductor
    stopped_by: list[int] = []

    async def stop_at_signal() -> None:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for number in signals:
                await conductor.stop()
                stopped_by.append(number)
                ended.set()
                return

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(stop_at_signal)
            group.start_soon(parts.listen)
            group.start_soon(conductor.run)
            await ended.wait()
            group.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await conductor.settle()
            await parts.engine.aclose()
    if stopped_by:
        name = signal.Signals(stopped_by[0]).name
        return Outcome(128 + stopped_by[0], (f"ended by {name}",), conductor.report)
    return _outcome(conductor)


def _outcome(conductor: Conductor) -> Outcome:
    snapshot = conductor.snapshot
    if snapshot.is_ready:
        return Outcome(ExitCode.WARM, snapshot.reasons, conductor.report)
    code, reasons = snapshot.exit_code, snapshot.reasons
    if code is None:
        code = ExitCode.ENGINE_UNAVAILABLE
        reasons = (*reasons, f"the engine was lost {MAX_BOOTS_ONCE} times while it was warmed")
    return Outcome(code, reasons, conductor.report)

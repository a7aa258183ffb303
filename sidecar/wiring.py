"""Builds everything: the only place that knows all classes."""

import logging
import secrets
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from sidecar import __version__
from sidecar.adapters.engine import Engine
from sidecar.adapters.readyfile import ReadyFile, Share, shared
from sidecar.adapters.state import StateDir
from sidecar.adapters.whose import WHOSE
from sidecar.boot import Replay
from sidecar.core.errors import ConfigError
from sidecar.core.grid.plan import Plan, expand
from sidecar.core.grid.shapes import OnEscape, OnUnproven, Shapes
from sidecar.core.logs.source import ENGINE, SourceSpec, SyslogSpec, parse_sources
from sidecar.core.policy import Policy, Rhythm
from sidecar.core.urls import EngineAddress
from sidecar.core.watch.gate import Snapshot
from sidecar.core.watch.together import together
from sidecar.search import Learned
from sidecar.settings import Settings
from sidecar.warmup import Conductor

if TYPE_CHECKING:
    from sidecar.adapters.evidence import Evidence

log = logging.getLogger(__name__)

NO_STATE = "WARMUP_STATE_DIR is not set: a restart of the sidecar warms the engine again"


@dataclass(frozen=True, slots=True)
class Parts:
    """What was built for one engine."""

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


@dataclass(frozen=True, slots=True)
class Fleet:
    """All engines of one sidecar, by name: mostly one."""

    members: Mapping[str, Parts]
    has_names: bool = False
    """False: there is one engine, and it is shown as itself."""

    @property
    def snapshot(self) -> Snapshot:
        """Of the one engine, or of all as one."""
        each = {name: parts.snapshot for name, parts in self.members.items()}
        return together(each) if self.has_names else next(iter(each.values()))

    async def run(self) -> None:
        """Every conductor, and the reading of every log, until cancelled."""
        async with anyio.create_task_group() as group:
            for name, parts in self.members.items():
                group.start_soon(self._as, name, parts.listen)
                group.start_soon(self._as, name, parts.conductor.run)

    async def stop(self) -> None:
        """Shut every gate for good; each has its limit."""
        await self._of_each(lambda parts: parts.conductor.stop())

    async def settle(self) -> None:
        """After `run`: leave files behind as they have to be found."""
        await self._of_each(lambda parts: parts.conductor.settle())

    async def aclose(self) -> None:
        await self._of_each(lambda parts: parts.engine.aclose())

    async def _of_each(self, act: Callable[[Parts], Coroutine[Any, Any, None]]) -> None:
        async with anyio.create_task_group() as group:
            for name, parts in self.members.items():
                group.start_soon(self._as, name, partial(act, parts))

    async def _as(self, name: str, act: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if self.has_names:
            WHOSE.set(name)
        await act()


def build(
    settings: Settings,
    shapes: Shapes,
    *,
    on_change: Callable[[Snapshot], None] | None = None,
    rhythm: Rhythm | None = None,
) -> Fleet:
    """All adapters and conductors. Raises ConfigError where a setting can't be used.

    `on_change` hears of every change of any engine, as the fleet shows it.
    """
    engines = settings.engines
    members: dict[str, Parts] = {}
    fleet = Fleet(members, settings.has_names)
    ready_file = None if settings.ready_file is None else ReadyFile(settings.ready_file)
    shares = shared(ready_file, len(engines)) if ready_file is not None else None

    def tell(_: Snapshot) -> None:
        if on_change is not None and len(members) == len(engines):
            on_change(fleet.snapshot)

    for address in engines:
        members[address.name] = _build(
            settings,
            shapes,
            address,
            ready_file=None if shares is None else next(shares),
            on_change=tell,
            rhythm=rhythm,
        )
    return fleet


def _build(
    settings: Settings,
    shapes: Shapes,
    address: EngineAddress,
    *,
    ready_file: "ReadyFile | Share | None",
    on_change: Callable[[Snapshot], None],
    rhythm: Rhythm | None,
) -> Parts:
    key = settings.api_key
    ca_file = settings.tls_ca_file
    name = address.name if settings.has_names else None
    store, warnings = _store(settings, name)
    engine = Engine(
        address.url,
        api_key=None if key is None else key.get_secret_value(),
        model=settings.model,
        tls_ca_file=None if ca_file is None else str(ca_file),
        tls_verify=settings.tls_verify,
    )
    policy = Policy(
        url=address.url,
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
    evidence = _evidence(settings, name)
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


def _store(settings: Settings, of: str | None) -> tuple[StateDir | None, tuple[str, ...]]:
    """The state folder, one below it for each of several, and what has to be said where there is
    none."""
    if settings.state_dir is None:
        return None, (NO_STATE,)
    try:
        return StateDir(settings.state_dir / of if of else settings.state_dir), ()
    except ConfigError as problem:
        if not settings.state_optional:
            raise
        # Of an image that runs as any number: what was asked for is the warm-up, not the folder.
        sentence = f"a restart of the sidecar warms the engine again: {problem}"
        log.warning("no state folder path=%s why=%r", settings.state_dir, str(problem))
        return None, (sentence,)


def _evidence(settings: Settings, of: str | None) -> "Evidence | None":
    specs = _sources(settings, of)
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


def _sources(settings: Settings, of: str | None) -> tuple[SourceSpec, ...]:
    """The places of one engine's log; `{engine}` in them is its name. Raises ConfigError.

    A file or a container can be read for several engines: the fences tell whose log it is. A port
    can't."""
    text = settings.log
    if of is None and ENGINE in text:
        raise ConfigError(
            f"WARMUP_LOG: {ENGINE} stands for a name in WARMUP_ENGINE_URLS, which is not set; "
            "write the place itself"
        )
    others = () if of is None else (one.name for one in settings.engines if one.name != of)
    other = next(iter(others), None)
    try:
        specs = parse_sources(text.replace(ENGINE, of or ""))
        shared = () if other is None else parse_sources(text.replace(ENGINE, other))
    except ValueError as problem:
        raise ConfigError(f"WARMUP_LOG, for the engine {of}: {problem}") from None
    for spec in specs:
        if isinstance(spec, SyslogSpec) and spec in shared:
            raise ConfigError(
                f"WARMUP_LOG: {spec} can't be the log of several engines; give each its own with "
                f"syslog+unix:///path/{ENGINE}.sock, or docker:///{ENGINE}, or "
                f"file:///path/{ENGINE}"
            )
    return specs


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

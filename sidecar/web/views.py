"""What the routes answer: the bodies' forms, and how a snapshot becomes one of them."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from sidecar import __version__
from sidecar.core.grid.cells import Drafts
from sidecar.core.grid.cost import Speed
from sidecar.core.judge.verdict import Call, CellVerdict, GaitFigures, Kernel, Standing
from sidecar.core.logs.items import SourceState
from sidecar.core.logs.window import Completeness
from sidecar.core.tally import Totals, WaveOutcome, WaveRow
from sidecar.core.watch.escapes import EscapeLog
from sidecar.core.watch.gate import Snapshot, State
from sidecar.core.watch.reasons import reasons_of


class _Body(BaseModel):
    model_config = ConfigDict(from_attributes=True, frozen=True)


class Alive(_Body):
    """The process lives."""

    status: str = "ok"
    version: str = __version__


class Problem(_Body):
    """Why a request got no answer of its own."""

    detail: str


class Progress(_Body):
    """How far the running warm-up is, or how far the last one came."""

    cells_done: int
    cells_total: int
    passes: int = Field(serialization_alias="pass", description="The pass of now, from 1.")
    eta_s: float | None = Field(description="Seconds still needed as far as known; null: unknown.")


class Engine(_Body):
    """The engine, as far as it is known."""

    url: str
    version: str | None
    model: str | None


class Boot(_Body):
    """The life of the engine that all of this is about."""

    number: int = Field(description="Lives seen since the sidecar started.")
    started: datetime | None = Field(description="Start of its process; null where it isn't told.")
    nonce: str = Field(description="Stands in every request id that was sent to it.")


class EngineGate(_Body):
    """The gate of one of several engines; /ready/{name} tells more."""

    name: str
    url: str
    state: State
    ready: bool
    proven: bool


class Ready(_Body):
    """The gate. `ready` and the HTTP status say the same."""

    state: State
    ready: bool
    proven: bool
    adopted: bool
    reasons: tuple[str, ...] = Field(
        description="Why it is shut and what to do, never empty then; or why it is unproven."
    )
    warnings: tuple[str, ...]
    progress: Progress | None
    engine: Engine
    boot: Boot | None
    since: datetime
    engines: tuple[EngineGate, ...] = Field(
        default=(), description="Where there are several: the gate of each, in the order given."
    )


class Facts(_Body):
    """What was learned of the engine; null: it could not be learned."""

    models: tuple[str, ...]
    max_model_len: int | None
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    kv_cache_tokens: int | None
    vocab_size: int | None
    ranks: int | None
    speculation: bool | None
    draft_tokens: int | None
    capture_sizes: tuple[int, ...] | None
    cudagraphs_off: bool | None
    kv_cache_memory_bytes: int | None
    sources: Mapping[str, str] = Field(description="Where each of them came from.")


class Wave(_Body):
    """One wave. F: slowest first token from the release; G: worst gap after the last of them."""

    gait: str
    at: datetime
    outcome: WaveOutcome
    because: tuple[str, ...]
    shown: bool
    f_s: float | None
    g_s: float
    took_s: float
    spread_s: float
    requests: int
    window: Completeness | None = Field(description="How much of its log was seen.")
    log: str | None = Field(description="How far the engine's log carries it; null: none is read.")
    kernels: tuple[str, ...] = Field(description="What the log named as compiled in it.")


class CellStatus(_Body):
    """One cell, its verdict, and every wave of it on this boot."""

    id: str
    concurrency: int
    prompt_tokens: int
    output_tokens: int
    variant: str
    endpoint: str
    role: str
    rank: int | None = Field(description="The data-parallel rank that is asked; null: no choice.")
    prefix_tokens: int = Field(description="Of each prompt so many are in the prefix cache.")
    arriving_tokens: int = Field(description="Of a prompt that comes while the others decode.")
    drafts: Drafts | None = Field(description="What becomes of drafts; null: not declared.")
    verdict: Call
    standing: Standing
    reasons: tuple[str, ...]
    resolution_s: float | None
    figures: tuple[GaitFigures, ...]
    log: str | None = Field(description="How far the engine's log carries it; null: none is read.")
    kernels: tuple[Kernel, ...] = Field(description="What its waves compiled, by the log.")
    compile_s: float | None = Field(description="What those waves took longer than the baseline.")
    waves: tuple[Wave, ...]


class EscapeRow(_Body):
    """One compile line that came while the gate was open."""

    at: datetime
    source: str
    backend: str
    event: str
    kernel: str
    detail: str
    process: str | None
    repeated: int
    step: str | None = Field(description="What the engine did then; null: not told.")


class Escapes(_Body):
    """What compiled while the gate was open, since the sidecar started."""

    total: int
    recent: tuple[EscapeRow, ...] = Field(description="The last of them, oldest first.")


class Status(Ready):
    """All there is to see."""

    version: str = __version__
    facts: Facts | None
    verdict: Call | None
    evidence: str | None
    log: str | None = Field(description="How far the engine's log carries the verdict.")
    resolution_s: float | None
    cells: tuple[CellStatus, ...]
    waves_dropped: int
    held: tuple[str, ...] = Field(description="Cells not sent: an engine died on them.")
    escapes: Escapes | None = Field(description="null: no log is read.")
    logs: tuple[SourceState, ...] = Field(description="Where the engine's log is read from.")
    totals: Totals
    speed: Speed | None = Field(description="Of the warm engine; null: not measured yet.")
    warmup_s: float | None
    active: bool
    of_engines: Mapping[str, "Status"] = Field(
        default={}, description="Where there are several: the status of each, by name."
    )


def _gate(snapshot: Snapshot) -> dict[str, Any]:
    facts, progress, boot = snapshot.engine, snapshot.progress, snapshot.boot
    started = None if boot is None else boot.process_start_s
    return {
        "state": snapshot.state,
        "ready": snapshot.is_ready,
        "proven": snapshot.proven,
        "adopted": snapshot.adopted,
        "reasons": reasons_of(snapshot),
        "warnings": snapshot.warnings,
        "progress": None
        if progress is None
        else Progress(
            cells_done=progress.cells_done,
            cells_total=progress.cells_total,
            passes=progress.passes,
            eta_s=snapshot.eta_s,
        ),
        "engine": Engine(
            url=snapshot.url,
            version=None if facts is None else facts.version,
            model=None if facts is None else facts.model,
        ),
        "boot": None
        if boot is None
        else Boot(
            number=snapshot.totals.boots,
            started=None if started is None else _moment(started),
            nonce=snapshot.nonce or "",
        ),
        "since": _moment(snapshot.since),
        "engines": tuple(
            EngineGate(
                name=name, url=part.url, state=part.state, ready=part.is_ready, proven=part.proven
            )
            for name, part in snapshot.parts.items()
        ),
    }


def ready_of(snapshot: Snapshot) -> Ready:
    """The body of /ready."""
    return Ready(**_gate(snapshot))


def status_of(snapshot: Snapshot) -> Status:
    """The body of /status."""
    rows: defaultdict[str, list[Wave]] = defaultdict(list)
    for row in snapshot.waves:
        rows[row.cell].append(_wave(row))
    verdict = snapshot.verdict
    return Status(
        **_gate(snapshot),
        facts=None if snapshot.engine is None else Facts.model_validate(snapshot.engine),
        verdict=None if verdict is None else verdict.call,
        evidence=None if verdict is None else verdict.evidence,
        log=None if verdict is None or verdict.log is None else verdict.log.words,
        resolution_s=None if verdict is None else verdict.resolution_s,
        cells=()
        if verdict is None
        else tuple(_cell(cell, tuple(rows[cell.cell.id])) for cell in verdict.cells),
        waves_dropped=snapshot.waves_dropped,
        held=snapshot.held,
        escapes=None if snapshot.escapes is None else _escapes(snapshot.escapes),
        logs=snapshot.logs,
        totals=snapshot.totals,
        speed=snapshot.speed,
        warmup_s=snapshot.warmup_s,
        active=snapshot.is_active,
        of_engines={name: status_of(part) for name, part in snapshot.parts.items()},
    )


def _cell(judged: CellVerdict, waves: tuple[Wave, ...]) -> CellStatus:
    cell = judged.cell
    return CellStatus(
        id=cell.id,
        concurrency=cell.concurrency,
        prompt_tokens=cell.prompt_tokens,
        output_tokens=cell.output_tokens,
        variant=cell.variant.name,
        endpoint=cell.variant.endpoint,
        role=cell.role,
        rank=cell.rank,
        prefix_tokens=cell.prefix_tokens,
        arriving_tokens=cell.arriving_tokens,
        drafts=cell.drafts,
        verdict=judged.call,
        standing=judged.standing,
        reasons=judged.reasons,
        resolution_s=judged.resolution_s,
        figures=judged.figures,
        log=None if judged.log is None else judged.log.words,
        kernels=judged.kernels,
        compile_s=judged.compile_s,
        waves=waves,
    )


def _wave(row: WaveRow) -> Wave:
    return Wave(
        gait=row.gait,
        at=_moment(row.at),
        outcome=row.outcome,
        because=row.because,
        shown=row.shown,
        f_s=row.f_s,
        g_s=row.g_s,
        took_s=row.took_s,
        spread_s=row.spread_s,
        requests=row.requests,
        window=row.window,
        log=row.log,
        kernels=row.kernels,
    )


def _escapes(escapes: EscapeLog) -> Escapes:
    recent = (EscapeRow(**(asdict(e) | {"at": _moment(e.at)})) for e in escapes.recent)
    return Escapes(total=escapes.total, recent=tuple(recent))


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)

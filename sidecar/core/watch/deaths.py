"""Cells that an engine died on: what is remembered of them, and what to change.

A wave is written down before it is sent. If the engine's boot is another one when the sidecar
looks again, that cell was in flight when the engine died; if it is the same, only the sidecar was
away. So it is known after a kill -9 of either.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from sidecar.core.grid.cells import Cell, Gait
from sidecar.core.grid.plan import Plan
from sidecar.core.judge.failures import EXECUTE_MODEL_TIMEOUT_S
from sidecar.core.logs.events import Complaint, Trouble
from sidecar.core.logs.items import Ended
from sidecar.core.moment import Moment, stamp
from sidecar.core.watch.boot import BootMark, Sameness, compare

_Read = TypeVar("_Read")

MAX_DEATHS = 100
"""Remembered; beyond it the oldest are forgotten. A grid loses one cell a boot at most."""

_KILLED = 128 + 9
_ORDERLY = (0, 128 + 2, 128 + 15)
"""Exit codes of a server that was asked to end; vLLM 0.32 ends so after a crash too, but says
first that its engine is dead."""


class Cause(StrEnum):
    """What the log, Docker or the engine itself said of the end."""

    OUT_OF_MEMORY = "out of memory"
    STEP_TIMEOUT = "a step took longer than VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"
    KILLED = "killed (SIGKILL)"
    WORKER_DIED = "a worker process died"
    ENGINE_DEAD = "the engine core died"
    STOPPED = "stopped in order"
    UNKNOWN = "not known: no log told"  # stands in state folders


_ORDER = tuple(Cause)


@dataclass(frozen=True, slots=True)
class InFlight:
    """A wave that is being sent."""

    cell: str
    gait: Gait
    at: Moment
    boot: BootMark
    url: str
    model: str | None
    version: str | None
    lost: bool = False
    """The engine was seen to go while it was in flight."""
    cause: Cause = Cause.UNKNOWN


@dataclass(frozen=True, slots=True)
class Death:
    """A cell that was in flight when the engine died."""

    cell: str
    gait: Gait
    at: Moment
    url: str
    model: str | None
    version: str | None
    cause: Cause


def is_death(wave: InFlight, boot: BootMark) -> bool:
    """Whether the engine died with this wave in flight, now that `boot` is there.

    Where the boots can't be told from each other it counts only if the engine was seen to go: a
    sidecar that was killed alone must not blame the cell. A server that was stopped in order did
    not die of it.
    """
    if wave.cause is Cause.STOPPED:
        return False
    sameness = compare(wave.boot, boot)
    return sameness is Sameness.OTHER or (sameness is Sameness.UNTOLD and wave.lost)


def death_of(wave: InFlight) -> Death:
    return Death(wave.cell, wave.gait, wave.at, wave.url, wave.model, wave.version, wave.cause)


def cause_of(signs: Sequence[Trouble | Ended], *, says_dead: bool, failure: str) -> Cause:
    """The most telling of what was seen between the wave's release and the end.

    `says_dead`: /health answered 503; `failure`: how the wave's own requests failed.
    """
    found = [cause for sign in signs if (cause := _cause_of(sign)) is not None]
    found += [Cause.ENGINE_DEAD] if says_dead else []
    if "out of memory" in failure.lower():
        found.append(Cause.OUT_OF_MEMORY)
    elif f"{EXECUTE_MODEL_TIMEOUT_S:.0f}" in failure and "EXECUTE_MODEL" in failure:
        found.append(Cause.STEP_TIMEOUT)
    if any(isinstance(s, Trouble) and s.complaint is Complaint.STOPPING for s in signs):
        # Then the engine core is said to be dead as well, and 503 may be answered.
        found = [cause for cause in found if cause in (Cause.OUT_OF_MEMORY, Cause.STEP_TIMEOUT)]
        return min(found, key=_ORDER.index, default=Cause.STOPPED)
    exits = [sign.exit_code for sign in signs if isinstance(sign, Ended)]
    codes = [code for code in exits if code is not None]
    is_orderly = bool(codes) and all(code in _ORDERLY for code in codes)
    return min(found, key=_ORDER.index, default=Cause.STOPPED if is_orderly else Cause.UNKNOWN)


def _cause_of(sign: Trouble | Ended) -> Cause | None:
    if isinstance(sign, Trouble):
        return _CAUSES.get(sign.complaint)
    if sign.oom_killed:
        return Cause.OUT_OF_MEMORY
    return Cause.KILLED if sign.exit_code == _KILLED else None


_CAUSES: Mapping[Complaint, Cause] = {
    Complaint.OUT_OF_MEMORY: Cause.OUT_OF_MEMORY,
    Complaint.STEP_TIMEOUT: Cause.STEP_TIMEOUT,
    Complaint.WORKER_DIED: Cause.WORKER_DIED,
    Complaint.ENGINE_DEAD: Cause.ENGINE_DEAD,
}

_REMEDIES: Mapping[Cause, str] = {
    Cause.OUT_OF_MEMORY: "lower --gpu-memory-utilization or --max-num-batched-tokens (a KV cache "
    "of a given size: --kv-cache-memory-bytes), so that room is left for what is allocated at the "
    "first such request",
    Cause.STEP_TIMEOUT: "raise the engine's VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS (300): a compile "
    "that takes longer kills it",
    Cause.KILLED: "give the engine more memory (the kernel kills what outgrows its limit), or "
    "lower --gpu-memory-utilization on a machine whose memory is shared",
}
_ANY_REMEDY = (
    "see the end of the engine's log for the cause; lower --max-num-batched-tokens or "
    "--max-num-seqs, or take the cell out of the shapes file"
)


def told(death: Death) -> str:
    """Why a cell is held back, and what to do."""
    is_known = death.cause is not Cause.UNKNOWN
    why = death.cause if is_known else "cause not known: no log was read that tells it"
    return (
        f"{death.cell} is held back: the engine died with its wave in flight at "
        f"{stamp(death.at)} UTC ({why}); {_REMEDIES.get(death.cause, _ANY_REMEDY)}; "
        "then run `vllm-warmup state clear`"
    )


def held(deaths: Sequence[Death], plan: Plan) -> tuple[Death, ...]:
    """The last death of each cell of this plan. What killed another model says nothing of this."""
    model = plan.facts.model
    ids = {cell.id for cell in cells_of(plan)}
    last = {d.cell: d for d in deaths if d.cell in ids and (d.model or model) == (model or d.model)}
    return tuple(last.values())


def cells_of(plan: Plan) -> tuple[Cell, ...]:
    once = (cell for cell in (plan.first, plan.heaviest) if cell is not None)
    return (*once, *plan.cells)


def without(plan: Plan, deaths: Sequence[Death]) -> Plan:
    """The plan without the cells that are held back."""
    ids = {death.cell for death in deaths}

    def kept(cell: Cell | None) -> Cell | None:
        return None if cell is None or cell.id in ids else cell

    return replace(
        plan,
        cells=tuple(cell for cell in plan.cells if cell.id not in ids),
        first=kept(plan.first),
        heaviest=kept(plan.heaviest),
    )


@cache
def _of_wave() -> TypeAdapter[InFlight]:
    return TypeAdapter(InFlight)


@cache
def _of_deaths() -> TypeAdapter[tuple[Death, ...]]:
    return TypeAdapter(tuple[Death, ...])


def wave_to_json(wave: InFlight) -> str:
    return _of_wave().dump_json(wave).decode()


def wave_from_json(text: str) -> InFlight:
    """Raises ValueError."""
    return _read(_of_wave(), text)


def deaths_to_json(deaths: Sequence[Death]) -> str:
    """One a line, so that people can read it."""
    rows = json.loads(_of_deaths().dump_json(tuple(deaths[-MAX_DEATHS:])))
    return "[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n"


def deaths_from_json(text: str) -> tuple[Death, ...]:
    """Raises ValueError."""
    return _read(_of_deaths(), text)


def _read(adapter: TypeAdapter[_Read], text: str) -> _Read:
    try:
        return adapter.validate_json(text)
    except ValidationError as problem:
        first = problem.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the top"
        raise ValueError(f"at {where}: {first['msg']}") from problem

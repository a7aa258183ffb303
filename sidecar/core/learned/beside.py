"""Traffic beside the shapes file in use: what of it is covered, and what is not."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sidecar.core.grid.cells import Cell, Endpoint
from sidecar.core.grid.plan import Plan
from sidecar.core.learned.traffic import Level, Traffic


@dataclass(frozen=True, slots=True)
class Row:
    """One thing that users do."""

    what: str
    """`prompt tokens`, `prompt and answer`, `running at once` or `endpoint`."""
    names: tuple[str, ...]
    """Its quantiles."""
    value: str
    by: str | None
    """The cell that covers it; None: none does."""
    nearest: tuple[int, ...] = ()
    """Where none does: what is declared below and above."""


def beside(traffic: Traffic, plan: Plan) -> tuple[Row, ...]:
    """A row for each level. Lengths are covered within their bucket, which tells no more."""
    cells = [*plan.cells, *([] if plan.heaviest is None else [plan.heaviest])]
    return (
        *(_length("prompt tokens", level, cells) for level in traffic.lengths),
        *(_length("prompt and answer", level, cells) for level in traffic.contexts),
        *(_at_once(level, cells) for level in traffic.running),
        *(_endpoint(endpoint, cells) for endpoint in traffic.endpoints),
    )


def _length(what: str, level: Level, cells: Sequence[Cell]) -> Row:
    bucket = level.bucket
    top = max(level.value, bucket.above + 1)
    fitting = [c for c in cells if bucket.above < c.prompt_tokens <= top]
    best = max(fitting, key=lambda c: (c.prompt_tokens, -c.concurrency), default=None)
    return Row(
        what,
        level.names,
        f"{bucket.above + 1} to {top}",
        None if best is None else best.id,
        _around(level.value, (c.prompt_tokens for c in cells)),
    )


def _at_once(level: Level, cells: Sequence[Cell]) -> Row:
    wanted = level.value
    fitting = [c for c in cells if c.concurrency == wanted or (c.ramp and c.concurrency >= wanted)]
    best = max(fitting, key=lambda c: (not c.ramp, c.prompt_tokens), default=None)
    return Row(
        "running at once",
        level.names,
        str(wanted),
        None if best is None else best.id,
        _around(wanted, (c.concurrency for c in cells)),
    )


def _endpoint(endpoint: Endpoint, cells: Sequence[Cell]) -> Row:
    best = next((c for c in cells if c.variant.endpoint is endpoint), None)
    return Row("endpoint", (), endpoint, None if best is None else best.id)


def _around(value: int, declared: Iterable[int]) -> tuple[int, ...]:
    known = sorted(set(declared))
    below = [one for one in known if one < value][-1:]
    return (*below, *[one for one in known if one > value][:1])

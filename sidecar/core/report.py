"""One warm-up as a document: what was sent, what it showed, what it cost, what it proves.

It leaves as JSON (kept in the state folder, `--json`) and as a text table for people.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache

from pydantic import TypeAdapter, ValidationError

from sidecar.core.errors import ConfigError
from sidecar.core.facts import EngineFacts
from sidecar.core.grid.cells import Gait
from sidecar.core.grid.cost import Basis, Speed
from sidecar.core.grid.plan import Unfit
from sidecar.core.judge.verdict import (
    Call,
    CellVerdict,
    GaitFigures,
    GridVerdict,
    Kernel,
    Opening,
    Standing,
)
from sidecar.core.moment import stamp
from sidecar.core.tally import Totals, WaveRow
from sidecar.core.watch.boot import BootMark
from sidecar.core.watch.escapes import MAX_KEPT, Escape

FORMAT = 1
"""Of the JSON form. A reader refuses another one instead of guessing."""


@dataclass(frozen=True, slots=True)
class Report:
    """One warm-up of one boot, from its first wave to its verdict. Times are UTC."""

    sidecar_version: str
    url: str
    facts: EngineFacts
    boot: BootMark | None
    began: datetime
    ended: datetime
    """With `began` the window in which the engine's own metrics hold our requests."""
    nonce: str
    """Stands in every request id; the seed of all random prompts and of the order of looks."""
    verdict: GridVerdict
    opening: Opening
    unfit: tuple[Unfit, ...]
    totals: Totals
    """Of this warm-up alone."""
    waves: tuple[WaveRow, ...]
    warnings: tuple[str, ...] = ()
    waves_dropped: int = 0
    escapes: tuple[Escape, ...] = ()
    """What compiled while the gate was open after this warm-up, the last MAX_KEPT."""
    escapes_total: int = 0
    speed: Speed | None = None
    """Of the engine, as its waves showed it; None: too few of them."""
    format: int = FORMAT


@dataclass(frozen=True, slots=True)
class Row:
    """Cold against warm, of one cell and gait; seconds."""

    cell: str
    gait: Gait
    call: Call
    waves: int
    first_f_s: float | None
    baseline_f_s: float | None
    last_f_s: float | None
    first_g_s: float | None
    last_g_s: float | None
    cost_s: float | None
    """What the first wave took longer than the baseline: what a user would have waited."""


def with_escapes(report: Report, more: Sequence[Escape]) -> Report:
    """The report and what compiled since. One that it has without its step gets its step: a
    compile may last for longer than the report waits."""
    escapes = list(report.escapes)
    lacking = {escape: i for i, escape in enumerate(escapes) if escape.step is None}
    total = report.escapes_total
    for escape in more:
        i = lacking.pop(replace(escape, step=None, batch=None), None)
        if i is not None and escape.step is not None:
            escapes[i] = escape
        else:
            escapes.append(escape)
            total += escape.repeated
    return replace(report, escapes=tuple(escapes[-MAX_KEPT:]), escapes_total=total)


def basis_of(report: Report | None, *, url: str | None, model: str | None) -> Basis:
    """The speed that a report measured, for the same engine and model; None matches any."""
    if report is None or report.speed is None:
        return Basis()
    if url not in (None, report.url) or model not in (None, report.facts.model):
        return Basis()
    asked = f"{report.facts.model or 'an unknown model'} at {report.url}"
    return Basis(report.speed, f"measured on {asked} at {_stamp(report.ended)} UTC")


def rows(verdict: GridVerdict) -> tuple[Row, ...]:
    """The cold-vs-warm table, in the order of the plan."""
    return tuple(_row(cell, f) for cell in verdict.cells for f in cell.figures)


def _row(cell: CellVerdict, figures: GaitFigures) -> Row:
    excess = [
        _minus(figures.first_f_s, figures.baseline_f_s),
        _minus(figures.first_g_s, figures.baseline_g_s),
    ]
    known = [e for e in excess if e is not None]
    return Row(
        cell=cell.cell.id,
        gait=figures.gait,
        call=cell.call,
        waves=figures.waves,
        first_f_s=figures.first_f_s,
        baseline_f_s=figures.baseline_f_s,
        last_f_s=figures.last_f_s,
        first_g_s=figures.first_g_s,
        last_g_s=figures.last_g_s,
        # One wave alone is its own baseline: what it cost can't be told from it.
        cost_s=max(known) if known and figures.waves > 1 else None,
    )


def _minus(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b


@cache
def _adapter() -> TypeAdapter[Report]:
    """Built at the first use: it costs milliseconds that the start of `serve` doesn't have."""
    return TypeAdapter(Report)


def to_json(report: Report, *, indent: int | None = None) -> str:
    """The report as JSON; `from_json` reads it back as it was."""
    return _adapter().dump_json(report, indent=indent).decode()


def from_json(text: str | bytes) -> Report:
    """Raises ConfigError when the text is no report of this format."""
    try:
        report = _adapter().validate_json(text)
    except ValidationError as problem:
        first = problem.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the top"
        message = f"not a report of this version: at {where}: {first['msg']}"
        raise ConfigError(message) from problem
    if report.format != FORMAT:
        raise ConfigError(f"a report of format {report.format}; this version reads {FORMAT}")
    return report


def to_text(report: Report) -> str:
    """The report for a terminal: what was decided, the table, what it cost, what to read on."""
    parts = (
        _head(report),
        _table(rows(report.verdict)),
        _calls(report.verdict.cells),
        _compiled(report.verdict.cells),
        _listed("does not fit", [f"{u.id}: {u.reason}; {u.remedy}" for u in report.unfit]),
        _escaped(report),
        _listed("warnings", report.warnings),
        _foot(report),
    )
    return "\n".join(part for part in parts if part)


def _head(report: Report) -> str:
    opening, verdict = report.opening, report.verdict
    gate = "open" if opening.open else "shut"
    proof = "" if not opening.open else ", proven" if opening.proven else ", NOT proven"
    resolution = (
        "" if verdict.resolution_s is None else f", resolution {verdict.resolution_s:.3f} s"
    )
    model, version = report.facts.model or "unknown model", report.facts.version or "unknown"
    return "\n".join(
        (
            f"{model} on vLLM {version} at {report.url}",
            f"grid: {verdict.call} (gate {gate}{proof}; evidence {verdict.evidence}{resolution})",
            *([] if verdict.log is None else [f"log: {verdict.log.words}"]),
            *(f"  because {reason}" for reason in (*verdict.reasons, *opening.reasons)),
        )
    )


def _table(table: Sequence[Row]) -> str:
    heads = (
        "cell",
        "gait",
        "verdict",
        "waves",
        "first",
        "baseline",
        "last",
        "gap first/last",
        "cost",
    )
    body = [
        (
            row.cell,
            str(row.gait),
            str(row.call),
            str(row.waves),
            _seconds(row.first_f_s),
            _seconds(row.baseline_f_s),
            _seconds(row.last_f_s),
            f"{_seconds(row.first_g_s)}/{_seconds(row.last_g_s)}",
            _seconds(row.cost_s),
        )
        for row in table
    ]
    widths = [max(map(len, column)) for column in zip(heads, *body, strict=True)]
    lines = (_line(cells, widths) for cells in (heads, *body))
    return "\n".join(("", "first token of the slowest request, in seconds:", *lines))


def _line(cells: Iterable[str], widths: Sequence[int]) -> str:
    """Words to the left, figures to the right."""
    return "  ".join(
        cell.ljust(width) if column < 3 else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ).rstrip()


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _calls(cells: Iterable[CellVerdict]) -> str:
    short = [c for c in cells if c.standing is not Standing.DONE]
    return _listed("not warm", [f"{c.cell.id}: {c.call}: {'; '.join(c.reasons)}" for c in short])


def _compiled(cells: Iterable[CellVerdict]) -> str:
    """What each cell compiled, by the log; what it cost is of whole waves."""
    lines = [
        f"{c.cell.id} ({_seconds(c.compile_s)}): {', '.join(map(_kernel, c.kernels))}"
        for c in cells
        if c.kernels
    ]
    return _listed("compiled, by the log, and how many seconds longer those waves took", lines)


def _kernel(kernel: Kernel) -> str:
    times = "" if kernel.lines == 1 else f" x {kernel.lines}"
    return f"{kernel.kernel} ({kernel.backend}){times}"


_MAX_ESCAPES = 20


def _escaped(report: Report) -> str:
    lines = [
        f"{stamp(e.at)} {e.kernel} ({e.backend}){f' in a step of {e.step}' if e.step else ''}"
        for e in report.escapes[-_MAX_ESCAPES:]
    ]
    title = f"compiled while the gate was open, {report.escapes_total} in all, the last of them"
    return _listed(title, lines)


def _listed(title: str, lines: Sequence[str]) -> str:
    return "\n".join(("", f"{title}:", *(f"  {line}" for line in lines))) if lines else ""


def _foot(report: Report) -> str:
    totals, speed = report.totals, report.speed
    requests, waves = sum(totals.requests.values()), sum(totals.waves.values())
    took_s = (report.ended - report.began).total_seconds()
    return "\n".join(
        (
            "",
            *([] if speed is None else [f"speed, warm: {Basis(speed, 'as measured')}"]),
            f"sent: {requests} requests in {waves} waves, {totals.prompt_tokens} prompt tokens, "
            f"{totals.output_tokens} output tokens, request ids warmup-{report.nonce}-*",
            f"from {_stamp(report.began)} to {_stamp(report.ended)} UTC ({took_s:.1f} s): "
            "the engine's own latency histograms hold these requests too",
        )
    )


def _stamp(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")

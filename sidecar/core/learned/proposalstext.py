"""A suggestion as YAML to paste, and as JSON.

The names of kernels are out of a log, and could be anybody's: they stand in comments only, with
everything but plain characters escaped. Values are whole numbers and names of ours.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

from sidecar.core.grid.cells import Cell
from sidecar.core.learned.proposals import Cause, Proposal, Suggestion, Sure
from sidecar.core.moment import stamp
from sidecar.core.report import Report

_MAX_NAME, _MAX_CAUSES, _MAX_ROWS = 80, 5, 20

_SURE = {
    Sure.EXACT: "as it was: the step line says",
    Sure.NEAR: "near to it: the step line says",
    Sure.GUESS: "a guess, for no step line came with it:",
}

NO_STEPS = (
    "start vLLM with --enable-logging-iteration-details, and the next escape will say which batch "
    "it was in"
)


def to_yaml(report: Report, suggestion: Suggestion) -> str:
    """Comments, and `cells:`, `special:` and `variants:` as a shapes file takes them."""
    return "\n".join((*_head(report, suggestion), *_cells(suggestion), *_rest(suggestion)))


def _head(report: Report, suggestion: Suggestion) -> Iterator[str]:
    warmed = f"since the warm-up of {_when(report.ended.timestamp())}"
    model = shown(report.facts.model or "an unknown model")
    if not suggestion.escapes:
        yield f"# nothing to suggest: no compile line came while the gate was open, {warmed}"
        return
    yield (
        f"# {_lines(suggestion.escapes)} came while the gate was open on {model}, {warmed}"
        + (f" ({suggestion.unread} of them no longer kept)" if suggestion.unread else "")
    )
    if not suggestion.proposals:
        yield "# no cell to add can be told from them"


def _cells(suggestion: Suggestion) -> Iterator[str]:
    if not suggestion.proposals:
        return
    yield "# Paste what you believe into your shapes file; merge it with what stands there."
    plain = [p for p in suggestion.proposals if not p.cell.arriving_tokens]
    mixed = [p for p in suggestion.proposals if p.cell.arriving_tokens]
    if plain:
        yield "cells:"
        yield from _listed(plain, "  ")
    if mixed:
        yield "special:"
        yield "  mixed:"
        yield from _listed(mixed, "    ")
    asked = {p.asked.name: p.asked for p in suggestion.proposals if p.asked is not None}
    if asked:
        yield "variants:"
        for one in asked.values():
            yield "  # by the kernel's name; with the values that your users send, if you know them"
            yield f"  {one.name}: {json.dumps(dict(one.fields))}"
    if suggestion.left_off:
        yield f"# {suggestion.left_off} more cells, of fewer lines or less sure, are not shown"


def _listed(proposals: Iterable[Proposal], indent: str) -> Iterator[str]:
    for proposal in proposals:
        yield from (f"{indent}# {cause}" for cause in _told(proposal.causes))
        yield f"{indent}# {_SURE[proposal.sure]} {proposal.why}"
        yield f"{indent}- {_flow(proposal.cell)}"


def _rest(suggestion: Suggestion) -> Iterator[str]:
    for one in suggestion.declared[:_MAX_ROWS]:
        yield (
            f"# {one.cell} is declared, and in such a batch compiled ({one.why}): what differed "
            "(sampling, context, a prefix in the cache) the log does not say"
        )
        yield from (f"#   {cause}" for cause in _told(one.causes))
    if len(suggestion.declared) > _MAX_ROWS:
        yield f"# and {len(suggestion.declared) - _MAX_ROWS} more cells that are declared"
    if suggestion.unusable:
        yield f"# of these nothing is known but that they compiled; {NO_STEPS}:"
        yield from (f"#   {cause}" for cause in _told(suggestion.unusable, _MAX_ROWS))


def _told(causes: Iterable[Cause], most: int = _MAX_CAUSES) -> Iterator[str]:
    listed = list(causes)
    for cause in listed[:most]:
        times = "once" if cause.times == 1 else f"{cause.times} times, last"
        name = f"{shown(cause.backend)} {shown(cause.kernel)}"
        yield f"{name}: {times} at {_when(cause.last_at)}"
    if len(listed) > most:
        yield f"and {len(listed) - most} more kernels"


def _flow(cell: Cell) -> str:
    name = cell.variant.name
    variant = "" if name == "completions" else f", variant: {json.dumps(name)}"
    arriving = f"arriving_tokens: {cell.arriving_tokens}, " if cell.arriving_tokens else ""
    return (
        f"{{concurrency: {cell.concurrency}, prompt_tokens: {cell.prompt_tokens}, {arriving}"
        f"output_tokens: {cell.output_tokens}{variant}}}"
    )


def shown(text: str) -> str:
    """One line of plain characters, whatever stands in a stranger's name."""
    plain = ascii(text)[1:-1]
    return plain if len(plain) <= _MAX_NAME else f"{plain[:_MAX_NAME]}..."


def _lines(count: int) -> str:
    return "one compile line" if count == 1 else f"{count} compile lines"


def _when(moment: float) -> str:
    return f"{stamp(moment)} UTC"


def to_json(suggestion: Suggestion) -> str:
    """The same for a program: `cells[].cell` and `variants` are those of a shapes file; a cell with
    `arriving_tokens` belongs under `special.mixed` there."""
    told: dict[str, Any] = {
        "escapes": suggestion.escapes,
        "escapes_not_kept": suggestion.unread,
        "cells": [_as_json(proposal) for proposal in suggestion.proposals],
        "cells_left_off": suggestion.left_off,
        "variants": {
            p.asked.name: dict(p.asked.fields) for p in suggestion.proposals if p.asked is not None
        },
        "declared": [
            {"cell": one.cell, "why": one.why, "kernels": _kernels(one.causes)}
            for one in suggestion.declared
        ],
        "unusable": _kernels(suggestion.unusable),
    }
    return json.dumps(told, indent=2)


def _as_json(proposal: Proposal) -> dict[str, Any]:
    cell = proposal.cell
    return {
        "cell": {
            "concurrency": cell.concurrency,
            "prompt_tokens": cell.prompt_tokens,
            "output_tokens": cell.output_tokens,
            "arriving_tokens": cell.arriving_tokens or None,
            "variant": cell.variant.name,
        },
        "sure": proposal.sure,
        "why": proposal.why,
        "kernels": _kernels(proposal.causes),
    }


def _kernels(causes: Iterable[Cause]) -> list[dict[str, Any]]:
    return [asdict(c) | {"last_at": _when(c.last_at)} for c in causes]

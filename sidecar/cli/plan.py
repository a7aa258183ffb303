"""`plan`: what would be sent, what does not fit and why, and what it costs."""

import argparse
import asyncio
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

from sidecar.adapters.shapesfile import read
from sidecar.cli.settings import settings_of
from sidecar.core.errors import ConfigError, ExitCode
from sidecar.core.facts import EngineFacts
from sidecar.core.grid.cells import Cell
from sidecar.core.grid.cost import (
    WARM_PASSES,
    Basis,
    PlanCost,
    Speed,
    over_budget,
    plan_cost,
    planned_cost,
)
from sidecar.core.grid.plan import Plan, expand
from sidecar.settings import Settings

HEADS = ("cell", "gaits", "waves", "requests", "prompt tokens", "output tokens", "seconds")
SHOWN = 160
"""Characters of a variant's fields."""
LIMITS = (
    *("model", "version", "max_model_len", "max_num_seqs", "max_num_batched_tokens"),
    *("kv_cache_tokens", "draft_tokens"),
)


def plan(options: argparse.Namespace) -> int:
    """Print the plan. With --engine-url the engine is asked for its limits first."""
    settings = settings_of(options)
    shapes = read(settings.shapes)
    facts = asyncio.run(_learn(settings)) if options.engine_url else EngineFacts()
    basis = _basis(options, settings, facts)
    speed = basis.speed
    made = expand(shapes, facts)
    warning = over_budget(made, basis, shapes.budget.total_s)
    if warning is not None:
        made = replace(made, warnings=(*made.warnings, warning))
    cost = plan_cost(made, speed)
    if options.json:
        print(json.dumps(_as_json(made, cost, basis), indent=2, ensure_ascii=False))
    elif sys.stdout.isatty():
        _print_table(made, speed)
        print("\n".join(_words(made, cost, basis)))
    else:
        print("\n".join((*_lines(made, speed), *_words(made, cost, basis))))
    if made.refusal is not None:
        raise ConfigError(made.refusal)
    return ExitCode.WARM


def _basis(options: argparse.Namespace, settings: Settings, facts: EngineFacts) -> Basis:
    """The speeds that were typed; else those of the last warm-up; else assumed ones."""
    from sidecar.adapters.statefiles import readable_reports
    from sidecar.core.report import basis_of

    known = Basis()
    if settings.state_dir is not None:
        url = settings.engine_url if options.engine_url else None
        model = facts.model or settings.model
        reports = readable_reports(settings.state_dir)
        fitting = (basis_of(report, url=url, model=model) for report in reports)
        known = next((basis for basis in fitting if basis.measured), known)
    prefill, decode = options.prefill_tokens_per_s, options.decode_tokens_per_s
    if prefill is None and decode is None:
        return known
    speed = replace(
        known.speed,
        prefill_tokens_per_s=prefill or known.speed.prefill_tokens_per_s,
        decode_tokens_per_s=decode or known.speed.decode_tokens_per_s,
    )
    return Basis(speed, known.measured if prefill is None or decode is None else None)


async def _learn(settings: Settings) -> EngineFacts:
    from sidecar.cli.engine import engine_of

    engine = engine_of(settings)
    try:
        return await engine.learn()
    finally:
        await engine.aclose()


def _cells(plan: Plan) -> Iterator[Cell]:
    """In the order of the first pass; `heaviest` runs once."""
    if plan.first is not None:
        yield plan.first
    yield from plan.cells
    if plan.heaviest is not None:
        yield plan.heaviest


def _rows(plan: Plan, speed: Speed) -> Iterator[tuple[str, ...]]:
    for cell in _cells(plan):
        cost = planned_cost(plan, cell, speed)
        yield (
            cell.id,
            " + ".join(cell.gaits),
            str(cost.waves),
            str(cost.requests),
            f"{cost.prompt_tokens:,}",
            f"{cost.output_tokens:,}",
            f"{cost.seconds:.1f}",
        )


def _lines(plan: Plan, speed: Speed) -> Iterator[str]:
    rows = [HEADS, *_rows(plan, speed)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADS))]
    for row in rows:
        cells = (
            text.ljust(width) if i < 2 else text.rjust(width)
            for i, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join(cells).rstrip()


def _print_table(plan: Plan, speed: Speed) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for i, head in enumerate(HEADS):
        table.add_column(head, justify="left" if i < 2 else "right", no_wrap=i == 0)
    for row in _rows(plan, speed):
        table.add_row(*row)
    Console().print(table)


def _words(plan: Plan, cost: PlanCost, basis: Basis) -> Iterator[str]:
    a_pass, total = cost.a_pass, cost.total
    count = len(plan.ranks)
    ranks = f", of {count} data-parallel ranks at the same time" if count > 1 else ""
    yield ""
    yield (
        f"a pass: {a_pass.waves} waves, {a_pass.requests} requests, "
        f"{a_pass.prompt_tokens:,} prompt and {a_pass.output_tokens:,} output tokens{ranks}"
    )
    yield (
        f"adds about {_about(total.seconds)} s to a scale-out: "
        f"the first prompt, {WARM_PASSES} passes"
        f"{'' if plan.heaviest is None else ' and the heaviest path'}, at {basis} "
        "(--prefill-tokens-per-s, --decode-tokens-per-s); what is cold comes on top"
    )
    yield f"engine: {_limits(plan.facts)}"
    yield from plan.notes
    for variant in sorted({cell.variant for cell in _cells(plan)}, key=lambda v: v.name):
        if variant.fields:
            said = json.dumps(variant.fields, ensure_ascii=False)
            said = said if len(said) <= SHOWN else f"{said[: SHOWN - 1]}… (all of it: --json)"
            yield f"variant {variant.name}: {variant.endpoint} {said}"
    for unfit in plan.unfit:
        yield f"does not fit: {unfit.id}: {unfit.reason}; {unfit.remedy}"
    for warning in plan.warnings:
        yield f"warning: {warning}"


def _about(seconds: float) -> str:
    return f"{seconds:.0f}" if seconds >= 10 else f"{seconds:.1f}"


def _limits(facts: EngineFacts) -> str:
    known = [
        f"{name} {getattr(facts, name)}"
        + (f" ({facts.sources[name]})" if name in facts.sources else "")
        for name in LIMITS
        if getattr(facts, name) is not None
    ]
    return ", ".join(known) or "nothing known (--engine-url asks it, engine: in the file says it)"


def _as_json(plan: Plan, cost: PlanCost, basis: Basis) -> dict[str, Any]:
    def cell_json(cell: Cell) -> dict[str, Any]:
        return {
            "id": cell.id,
            "role": cell.role,
            "concurrency": cell.concurrency,
            "prompt_tokens": cell.prompt_tokens,
            "output_tokens": cell.output_tokens,
            "ramp": cell.ramp,
            "prefix_tokens": cell.prefix_tokens,
            "arriving_tokens": cell.arriving_tokens,
            "variant": cell.variant.name,
            "endpoint": cell.variant.endpoint,
            "fields": dict(cell.variant.fields),
            "gaits": list(cell.gaits),
            "cost": asdict(planned_cost(plan, cell, basis.speed)),
        }

    return {
        "cells": [cell_json(cell) for cell in _cells(plan)],
        "unfit": [{"cell": u.id, "reason": u.reason, "remedy": u.remedy} for u in plan.unfit],
        "refusal": plan.refusal,
        "notes": list(plan.notes),
        "warnings": list(plan.warnings),
        "plug_tokens": plan.plug_tokens,
        "batched_tokens": plan.batched_tokens,
        "batched_tokens_known": plan.batched_tokens_known,
        "engine": {name: getattr(plan.facts, name) for name in LIMITS},
        "cost": asdict(cost),
        "speed": asdict(basis.speed) | {"measured": basis.measured},
    }

"""Shapes × what was learned → the cells that can be sent, and those that can't, with the reason."""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from sidecar.core.facts import EngineFacts
from sidecar.core.grid.cells import Cell, Gait, Role
from sidecar.core.grid.fit import Limits, Unfit, misfit, where
from sidecar.core.grid.known import known_facts
from sidecar.core.grid.shapes import OnUnfit, Shapes
from sidecar.core.grid.shapesfile import MAX_CELLS
from sidecar.core.grid.special import found

ASSUMED_BATCHED_TOKENS = 2048
"""B where it is not known: the smallest default of vLLM's server (0.33 engine/arg_utils.py:
2973-3006: 2048 on GPUs below 70 GB), so that a wave meant for one step fits one."""

ASSUMED_FIRST_TOKENS = 32_768
"""R1's first prompt where B is not known: twice the largest default of vLLM's server (16,384)."""

ASSUMED_DRAFT_TOKENS = 8
"""k where speculation is on and k is not known: more than common drafters are set to."""

DECODE_STEPS = 8
"""R4: decode steps that all requests of a wave make together, beyond their own prefills."""

ARRIVAL_STEPS = 8
"""Decode steps that may pass before a prompt arrives: it is sent when the last of those that decode
has its first token, and its body has to be taken."""

MAX_ON_RANKS = 4_000
"""Cells on all ranks together. A verdict on so many takes 0.2 s, and is given after each wave, in
the process that answers the probes."""

MAX_LEFT_OUT = 20
"""Warnings of cells that are left out; of what a list of captured sizes adds there may be 1,000."""

__all__ = ["Plan", "Unfit", "expand"]


@dataclass(frozen=True, slots=True)
class Plan:
    """What will be sent, in the order of the first pass: `first`, then `cells`, large before small.

    `plug_tokens` is the length of one plug's prompt, None where none fits; `batched_tokens` is B
    as used for R1-R4 (learned, or assumed: `batched_tokens_known` tells). `refusal` is one
    sentence that says why this plan must not be run as it is; None: run it. `facts` are the
    engine's, completed with what the shapes file says under `engine:`.
    """

    cells: tuple[Cell, ...]
    first: Cell | None = None
    heaviest: Cell | None = None
    unfit: tuple[Unfit, ...] = ()
    plug_tokens: int | None = None
    batched_tokens: int = ASSUMED_BATCHED_TOKENS
    batched_tokens_known: bool = False
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """What became of each kind of derived cells: how many there are, and why not more."""
    refusal: str | None = None
    facts: EngineFacts = field(default_factory=EngineFacts)
    ranks: tuple[int | None, ...] = (None,)
    """Data-parallel ranks to which each cell goes, all at the same time; None: it can't choose, or
    has no choice."""

    def on_each_rank(self, cell: Cell) -> tuple[Cell, ...]:
        """The cell as it is sent: one for each rank."""
        return tuple(cell if rank == cell.rank else replace(cell, rank=rank) for rank in self.ranks)


def expand(shapes: Shapes, facts: EngineFacts) -> Plan:
    """Fit the declared cells to an engine. Never raises: what is wrong is in `refusal`."""
    known = known_facts(facts, shapes.engine)
    facts, warnings = known.facts, list(known.warnings)
    batched_tokens = facts.max_num_batched_tokens or ASSUMED_BATCHED_TOKENS
    if facts.max_num_batched_tokens is None:
        warnings.append(
            f"max_num_batched_tokens is not known: {ASSUMED_BATCHED_TOKENS} is assumed for held "
            "waves; say it under engine: in the shapes file"
        )
    plug_tokens = _plug_tokens(facts, batched_tokens)
    limits = Limits(facts, plug_tokens, batched_tokens, _draft_tokens(facts, warnings))
    ranks = _ranks(shapes, facts, warnings)
    derived = found(shapes.derived, shapes.cells, facts, batched_tokens)
    more = _bounded(derived.cells, len(shapes.cells), ranks, warnings)
    fitting, misfits = _fitting(shapes, more, limits, warnings)
    unfit = [*derived.unfit, *misfits]
    heaviest = shapes.heaviest
    heaviest_unfit = misfit(heaviest, limits, heaviest) if heaviest is not None else None
    if heaviest_unfit is not None:
        unfit.append(heaviest_unfit)
        heaviest = None
    cells = tuple(sorted(fitting, key=_size, reverse=True))
    return Plan(
        cells=cells,
        first=_first(facts, cells) if cells else None,
        heaviest=heaviest,
        unfit=tuple(unfit),
        plug_tokens=plug_tokens,
        batched_tokens=batched_tokens,
        batched_tokens_known=facts.max_num_batched_tokens is not None,
        ranks=ranks,
        warnings=tuple(warnings),
        notes=derived.notes,
        refusal=_rank_refusal(shapes, facts, ranks) or _refusal(shapes, cells, unfit),
        facts=facts,
    )


def _bounded(
    derived: Sequence[Cell], declared: int, ranks: Sequence[int | None], warnings: list[str]
) -> Sequence[Cell]:
    """As many of the derived cells as may be sent beside so many declared ones."""
    most = min(MAX_CELLS, MAX_ON_RANKS // len(ranks))
    left = max(0, most - declared)
    if len(derived) > left:
        warnings.append(
            f"{len(derived) - left} special cells are left out: no more than {most} cells "
            f"are sent{_on_each_of(ranks)}"
        )
    return derived[:left]


def _fitting(
    shapes: Shapes, derived: Sequence[Cell], limits: Limits, warnings: list[str]
) -> tuple[Collection[Cell], Sequence[Unfit]]:
    """The cells as they are sent, and the declared ones that can't be. Of the derived ones those
    are left out, with a warning."""
    fitting: dict[str, Cell] = {}
    unfit: list[Unfit] = []
    left_out: list[str] = []
    for number, declared in enumerate((*shapes.cells, *derived)):
        cell = _raised(declared, limits)
        reason = misfit(cell, limits, declared)
        if reason is not None and number >= len(shapes.cells) and not reason.forbidden:
            kind = "profiles" if declared in shapes.derived.profiled else "special"
            left_out.append(f"{kind}: {cell.id} is left out: {reason.reason}")
        elif reason is not None:
            unfit.append(reason)
        elif cell.id in fitting:
            warnings.append(
                f"{declared.id} is the same as another cell once its output tokens are raised "
                f"to {cell.output_tokens}: it runs once"
            )
        else:
            fitting[cell.id] = cell
    warnings += left_out[:MAX_LEFT_OUT]
    if len(left_out) > MAX_LEFT_OUT:
        warnings.append(f"{len(left_out) - MAX_LEFT_OUT} more such cells are left out")
    return fitting.values(), unfit


def _ranks(shapes: Shapes, facts: EngineFacts, warnings: list[str]) -> tuple[int | None, ...]:
    """Where several ranks are known, or some are named; else a wave has no choice."""
    if shapes.ranks is None:
        several = facts.ranks is not None and facts.ranks > 1
        return tuple(range(facts.ranks or 0)) if several else (None,)
    missing = (facts.ranks or 0) - len(shapes.ranks)
    if missing > 0:
        warnings.append(
            f"{missing} of {facts.ranks} data-parallel ranks stay cold, because the shapes file "
            f"names {', '.join(map(str, shapes.ranks))} alone: say ranks: all"
        )
    return shapes.ranks


def _on_each_of(ranks: Sequence[int | None]) -> str:
    return f" to each of {len(ranks)} data-parallel ranks" if len(ranks) > 1 else ""


def _rank_refusal(shapes: Shapes, facts: EngineFacts, ranks: tuple[int | None, ...]) -> str | None:
    """vLLM refuses a rank that it doesn't have (0.33 v1/engine/input_processor.py); and a verdict
    on too many cells would hold up the probes."""
    highest = max(shapes.ranks or (0,))
    if facts.ranks is not None and highest >= facts.ranks:
        return (
            f"{shapes.name}: ranks names {highest}, and the engine has {facts.ranks}, from 0 on"
            f"{where(facts, 'ranks')}; correct it, or say ranks: all"
        )
    count = max(1, len(shapes.cells)) * len(ranks)
    if count <= MAX_ON_RANKS:
        return None
    return (
        f"{shapes.name}: {len(shapes.cells)} cells{_on_each_of(ranks)} are {count}, and the limit "
        f"is {MAX_ON_RANKS}; shorten the grid, or name some of the ranks under ranks:"
    )


def _raised(declared: Cell, limits: Limits) -> Cell:
    """R3's gaits and R4's output tokens; of a prefix, what makes whole blocks."""
    batched_tokens, at_once = limits.batched_tokens, 1 + limits.draft_tokens
    if declared.arriving_tokens:
        return _mixed(declared, batched_tokens, at_once)
    declared = _hit(declared, limits.facts)
    output_tokens = declared.output_tokens
    gaits: tuple[Gait, ...] = (Gait.LED,)
    if declared.concurrency > 1:
        prefills = math.ceil(declared.wave_computed_tokens / batched_tokens)
        output_tokens = max(output_tokens, (prefills + DECODE_STEPS) * at_once)
        if declared.wave_computed_tokens <= batched_tokens and limits.plug_tokens is not None:
            # A ramp is there for its decode batches, which start from one step for all. Its many
            # short prompts can't all come while a lead of 10 ms runs: 32 x 16 was never shown led
            # on an H200, whose API server needs 30 ms to take 31 bodies.
            # So it is with a decode batch that is to replay a graph.
            alone = declared.ramp or declared.captured
            gaits = (Gait.HELD,) if alone else (Gait.LED, Gait.HELD)
    elif output_tokens > 1 or declared.captured:
        # Alone there is nobody to wait for; one token means "prefill only" and stays one, more
        # means that decoding counts: with drafts, two steps of it can swallow many tokens.
        output_tokens = max(output_tokens, 2 * at_once)
        context_tokens = declared.prompt_tokens + output_tokens - 1
        output_tokens += _to_one_class(context_tokens, limits.draft_tokens)
    ramp = at_once if declared.ramp else 0
    return replace(declared, output_tokens=output_tokens, gaits=gaits, ramp=ramp)


def _to_one_class(context_tokens: int, draft_tokens: int) -> int:
    """Output tokens more, so that the contexts of every wave of one request end in the same class.

    The last step's drafts reach up to k tokens beyond the output, or not, as drafts were accepted
    before; kernels are chosen by the next power of two of a context (long ones by split counts).
    """
    boundary = 1 << (context_tokens - 1).bit_length() if context_tokens > 1 else context_tokens
    return boundary + 1 - context_tokens if boundary < context_tokens + draft_tokens else 0


def _mixed(declared: Cell, batched_tokens: int, at_once: int) -> Cell:
    """Long enough that all decode until the arriving prompt has been computed beside them."""
    room = max(1, batched_tokens - declared.concurrency * at_once)
    steps = math.ceil(declared.arriving_tokens / room) + ARRIVAL_STEPS + DECODE_STEPS
    output_tokens = max(declared.output_tokens, steps * at_once)
    return replace(declared, output_tokens=output_tokens, gaits=(Gait.MIXED,))


def _hit(declared: Cell, facts: EngineFacts) -> Cell:
    """vLLM finds whole blocks (0.33 v1/core/kv_cache_manager.py); a drafter that needs the last
    block's hidden states makes it give up one of them."""
    if not declared.prefix_tokens:
        return declared
    block = facts.block_size
    if block is None:
        return replace(declared, least_hit=1)
    whole = declared.prefix_tokens // block * block
    least = max(1, whole - block) if facts.speculation else whole
    return replace(declared, prefix_tokens=whole, least_hit=least)


def _plug_tokens(facts: EngineFacts, batched_tokens: int) -> int | None:
    """The shortest plug (R3): one full chunk, or the longest prompt that the engine takes."""
    tokens = batched_tokens
    if facts.max_model_len is not None:
        tokens = min(tokens, facts.max_model_len - 1)
    if facts.kv_cache_tokens is not None and tokens + 1 > facts.kv_cache_tokens:
        return None
    return tokens if tokens >= 1 else None


def _draft_tokens(facts: EngineFacts, warnings: list[str]) -> int:
    if facts.draft_tokens is not None:
        return facts.draft_tokens
    if not facts.speculation:
        return 0
    warnings.append(
        f"speculation is on and its draft tokens are not known: {ASSUMED_DRAFT_TOKENS} are "
        "assumed; say draft_tokens under engine: in the shapes file"
    )
    return ASSUMED_DRAFT_TOKENS


def _first(facts: EngineFacts, cells: Iterable[Cell]) -> Cell | None:
    """R1: one prompt of 2B tokens, as far as the engine takes it, and one token of output."""
    batched_tokens = facts.max_num_batched_tokens
    tokens = 2 * batched_tokens if batched_tokens is not None else ASSUMED_FIRST_TOKENS
    if facts.max_model_len is not None:
        tokens = min(tokens, facts.max_model_len - 1)
    else:
        # A prompt longer than the unknown limit would be refused; a declared one must be allowed.
        tokens = min(tokens, max(c.prompt_tokens for c in cells))
    if facts.kv_cache_tokens is not None:
        tokens = min(tokens, facts.kv_cache_tokens - 1)
    return Cell(1, tokens, 1, role=Role.HIGH_WATER) if tokens >= 1 else None


def _size(cell: Cell) -> tuple[int, int, int, int, str]:
    return (
        cell.wave_computed_tokens,
        cell.concurrency,
        cell.prompt_tokens,
        cell.wave_output_tokens,
        cell.variant.name,
    )


def _refusal(shapes: Shapes, cells: tuple[Cell, ...], unfit: list[Unfit]) -> str | None:
    """The first reason that this shapes file says (or that common sense says) is a failure."""
    if not unfit:
        return None
    grave = [u for u in unfit if u.forbidden] or [
        u for u in unfit if u.cell is not None and u.cell.role is Role.HEAVIEST
    ]
    if shapes.on_unfit is OnUnfit.FAIL or not cells:
        grave = grave or unfit
    if not grave:
        return None
    worst = grave[0]
    others = len(unfit) - 1
    more = f" (and {others} more cells don't fit)" if others > 1 else ""
    more = " (and one more cell doesn't fit)" if others == 1 else more
    return f"{shapes.name}: {worst.id} can't run: {worst.reason}; {worst.remedy}{more}"

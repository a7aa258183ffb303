"""Escapes → cells to add to the shapes file, each with how sure it is."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from sidecar.core.grid.cells import MAX_CONCURRENCY, MAX_PROMPT_TOKENS, Cell, Variant
from sidecar.core.learned.hints import Asked, Hint, hint_of
from sidecar.core.report import Report
from sidecar.core.watch.escapes import Escape

MAX_PROPOSALS = 20
"""More is no grid to paste but a reason to look at the lengths of one's users."""

OUTPUT_TOKENS = 16
DECODE_PROMPT_TOKENS = 16
"""Of requests that are there for their decode steps: what they say is not told, nor how long."""


class Sure(StrEnum):
    """How well a cell is founded."""

    EXACT = "exact"
    """The step line: the cell makes the batch that the engine made then."""
    NEAR = "near"
    """The step line, of a batch that a cell can only come near to."""
    GUESS = "guess"
    """The compile line alone."""


@dataclass(frozen=True, slots=True)
class Cause:
    """The lines of one kernel; `times` are lines, and moments are seconds since 1970."""

    backend: str
    kernel: str
    times: int
    last_at: float


@dataclass(frozen=True, slots=True)
class Proposal:
    """A cell that no line of the shapes file declares."""

    cell: Cell
    sure: Sure
    why: str
    causes: tuple[Cause, ...]
    asked: Asked | None = None
    """The variant has to be declared too, with these fields."""

    @property
    def times(self) -> int:
        return sum(cause.times for cause in self.causes)

    @property
    def last_at(self) -> float:
        return max(cause.last_at for cause in self.causes)


@dataclass(frozen=True, slots=True)
class Declared:
    """Something compiled in a batch that a declared cell makes."""

    cell: str
    why: str
    causes: tuple[Cause, ...]


@dataclass(frozen=True, slots=True)
class Suggestion:
    """What can be learned of a report's escapes."""

    proposals: tuple[Proposal, ...] = ()
    """The most frequent first."""
    left_off: int = 0
    """Proposals beyond MAX_PROPOSALS."""
    declared: tuple[Declared, ...] = ()
    unusable: tuple[Cause, ...] = ()
    """Kernels of which nothing is known but that they compiled."""
    escapes: int = 0
    """Compile lines in all; `unread` of them are no longer in the report, which keeps the last."""
    unread: int = 0


@dataclass(frozen=True, slots=True)
class _Draft:
    cell: Cell
    sure: Sure
    why: str
    asked: Asked | None = None
    is_decode: bool = False
    """It is there for its decode steps: prompts of any length lead to them."""


def suggested(report: Report) -> Suggestion:
    """Proposals for what escaped the grid of this report."""
    declared = [c.cell for c in report.verdict.cells]
    declared += [unfit.cell for unfit in report.unfit if unfit.cell is not None]
    limit = report.facts.max_model_len
    drafts: dict[Cell, _Draft] = {}
    causes: dict[Cell, list[Escape]] = {}
    known: dict[str, tuple[str, list[Escape]]] = {}
    unusable: list[Escape] = []
    for escape in report.escapes:
        drafted = [d for d in _drafts(escape, declared) if _is_sane(d.cell, limit)]
        if not drafted:
            unusable.append(escape)
        for draft in drafted:
            cell = replace(draft.cell, output_tokens=_output_tokens(draft.cell, limit))
            same = next((one for one in declared if _makes(one, draft)), None)
            if same is not None:
                known.setdefault(same.id, (draft.why, []))[1].append(escape)
                continue
            before = drafts.get(cell)
            if before is None or _RANK[draft.sure] < _RANK[before.sure]:
                drafts[cell] = replace(draft, cell=cell)
            causes.setdefault(cell, []).append(escape)
    made = [
        Proposal(cell, d.sure, d.why, _causes(causes[cell]), d.asked) for cell, d in drafts.items()
    ]
    made.sort(key=lambda p: (_RANK[p.sure], -p.times, -p.last_at))
    return Suggestion(
        proposals=tuple(made[:MAX_PROPOSALS]),
        left_off=max(0, len(made) - MAX_PROPOSALS),
        declared=tuple(Declared(cell, why, _causes(of)) for cell, (why, of) in known.items()),
        unusable=_causes(unusable),
        escapes=report.escapes_total,
        unread=max(0, report.escapes_total - sum(e.repeated for e in report.escapes)),
    )


_RANK = {sure: i for i, sure in enumerate(Sure)}


def _drafts(escape: Escape, declared: Sequence[Cell]) -> Iterator[_Draft]:
    hint = hint_of(escape)
    variant, asked = _variant(hint, declared)
    if escape.batch is not None:
        yield from _of_batch(escape, variant, asked)
    elif hint.tokens is not None:
        requests = hint.requests or 1
        yield _Draft(
            Cell(requests, math.ceil(hint.tokens / requests), OUTPUT_TOKENS, variant),
            Sure.GUESS,
            f"{hint.why} say {hint.tokens} tokens",
            asked,
        )
    elif hint.requests is not None:
        yield _Draft(
            Cell(hint.requests, DECODE_PROMPT_TOKENS, OUTPUT_TOKENS, variant),
            Sure.GUESS,
            f"{hint.why} say {hint.requests} requests, of no known length",
            asked,
            is_decode=True,
        )
    elif hint.asked is not None:
        yield _Draft(
            Cell(1, DECODE_PROMPT_TOKENS, OUTPUT_TOKENS, variant),
            Sure.GUESS,
            f"its name says {hint.asked.field}, and nothing how many requests of which length",
            asked,
        )


def _of_batch(escape: Escape, variant: Variant, asked: Asked | None) -> Iterator[_Draft]:
    batch = escape.batch
    assert batch is not None
    requests, tokens = batch.context_requests, batch.context_tokens
    decoding, why = batch.generation_requests, str(batch)
    if requests and decoding and tokens >= requests:
        if requests > 1:
            why += ", and in a cell one prompt arrives"
        sure = Sure.EXACT if requests == 1 else Sure.NEAR
        cell = Cell(decoding, DECODE_PROMPT_TOKENS, OUTPUT_TOKENS, variant, arriving_tokens=tokens)
        yield _Draft(cell, sure, why, asked)
    elif requests and tokens >= requests:
        each, rest = divmod(tokens, requests)
        if rest:
            why += f", and the prompts of a cell are equal: {requests} x {each + 1}"
        sure = Sure.NEAR if rest else Sure.EXACT
        prompt_tokens = each + bool(rest)
        yield _Draft(Cell(requests, prompt_tokens, OUTPUT_TOKENS, variant), sure, why, asked)
        if rest:
            # Most kernels are chosen by the step's tokens, whoever they are of.
            why = f"{batch}: the same number of tokens, in one prompt"
            yield _Draft(Cell(1, tokens, OUTPUT_TOKENS, variant), Sure.NEAR, why, asked)
    elif batch.generation_requests:
        yield _Draft(
            Cell(batch.generation_requests, DECODE_PROMPT_TOKENS, OUTPUT_TOKENS, variant),
            Sure.NEAR,
            f"{batch}: as many decode together, after what prompts is not told",
            asked,
            is_decode=True,
        )


def _variant(hint: Hint, declared: Iterable[Cell]) -> tuple[Variant, Asked | None]:
    """One that is declared and has the field, else one to be declared."""
    asked = hint.asked
    if asked is None:
        return Variant("completions"), None
    for cell in declared:
        if asked.field in cell.variant.fields:
            return cell.variant, None
    taken = {cell.variant.name for cell in declared}
    if asked.name in taken:
        free = next(n for n in range(2, len(taken) + 3) if f"{asked.name}-{n}" not in taken)
        asked = replace(asked, name=f"{asked.name}-{free}")
    return Variant(asked.name, fields=asked.fields), asked


def _makes(cell: Cell, draft: _Draft) -> bool:
    """Whether a declared cell makes this batch, whatever its requests ask for beside that."""
    wanted = draft.cell
    if wanted.variant.fields and wanted.variant != cell.variant:
        return False
    if wanted.arriving_tokens:
        made = (cell.concurrency, cell.arriving_tokens)
        return made == (wanted.concurrency, wanted.arriving_tokens)
    if cell.prefix_tokens or cell.arriving_tokens:
        return False
    if draft.is_decode:
        more = cell.ramp and cell.concurrency > wanted.concurrency
        return bool(more) or (cell.concurrency == wanted.concurrency and cell.output_tokens > 1)
    return (cell.concurrency, cell.prompt_tokens) == (wanted.concurrency, wanted.prompt_tokens)


def _is_sane(cell: Cell, limit: int | None) -> bool:
    """Whether a shapes file may declare it: a log can be made to say anything."""
    longest = min(MAX_PROMPT_TOKENS, MAX_PROMPT_TOKENS if limit is None else limit - 1)
    lengths = (cell.prompt_tokens, cell.arriving_tokens or 1)
    is_length = min(lengths) >= 1 and max(lengths) <= longest
    return is_length and 1 <= cell.concurrency <= MAX_CONCURRENCY


def _output_tokens(cell: Cell, limit: int | None) -> int:
    room = OUTPUT_TOKENS if limit is None else limit - cell.prompt_tokens
    return max(1, min(cell.output_tokens, room))


def _causes(escapes: Iterable[Escape]) -> tuple[Cause, ...]:
    found: dict[tuple[str, str], Cause] = {}
    for escape in escapes:
        key = (escape.backend, escape.kernel)
        before = found.get(key, Cause(*key, 0, escape.at))
        found[key] = replace(
            before,
            times=before.times + escape.repeated,
            last_at=max(before.last_at, escape.at),
        )
    return tuple(sorted(found.values(), key=lambda cause: (-cause.times, cause.kernel)))

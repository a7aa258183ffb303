"""Special cells: what starts cold beside concurrency and length.

Off the grid, because kernels are chosen by whether a number divides by 16 or 2; around multiples of
B, because a chunk that goes on from another one takes other kernels than a prompt's first, and its
remainder is of any length; at each captured batch size, because a CUDA graph that was captured has
never run. Prefix hits and mixed steps are declared one by one.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from sidecar.core.facts import EngineFacts
from sidecar.core.grid.cells import Cell, Drafts, Variant
from sidecar.core.grid.fit import Unfit, where
from sidecar.core.grid.shapesfile import Grid

SHORT_PROMPT = 16
"""Of a wave that is there for its decode batch: one block."""

REPEATING_PROMPT = 48
"""The same where the engine speculates: a drafter that looks for what it has seen before finds
nothing in one block, and without drafts the batch is of other sizes."""

CROSSING_OUTPUT = 4
"""A crossing is about the prefill; a few tokens show that it decodes."""

_HOW_TO_TELL = (
    "say it under engine: in the shapes file, let the log be read (WARMUP_LOG), or start vLLM with "
    "VLLM_SERVER_DEV_MODE=1"
)


@dataclass(frozen=True, slots=True)
class Derived:
    """Kinds of special cells that follow from the grid and from what is learned."""

    beside: tuple[Cell, ...] = ()
    """Off the grid; none that is declared itself."""
    crossings: tuple[int, ...] = ()
    """Multiples of max_num_batched_tokens around which prompts are sent."""
    cudagraph: bool = False
    profiled: tuple[Cell, ...] = ()
    """Of ready-made profiles; none that is declared itself."""

    @property
    def told(self) -> str:
        """What of it is declared, for people; empty: nothing."""
        parts = [f"{len(self.profiled)} of profiles"] if self.profiled else []
        if self.beside:
            parts.append(f"{len(self.beside)} off the grid")
        if self.crossings:
            parts.append("prompts around multiples of the engine's chunk")
        if self.cudagraph:
            parts.append("a decode wave for each size that it captures")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Found:
    """The cells of these kinds for one engine. They were not declared one by one: where one does
    not fit, it is left out and that is said."""

    cells: tuple[Cell, ...] = ()
    unfit: tuple[Unfit, ...] = ()
    """Kinds of which nothing can be known."""
    notes: tuple[str, ...] = ()


def beside(
    grid: Grid, variant: Variant, drafts: Drafts | None, declared: Collection[Cell]
) -> tuple[Cell, ...]:
    """Off the grid, beside each of its lengths: L - 7 and L + 1 at the smallest concurrency, and
    c - 1 for each even concurrency, of L made odd. By one variant, so never more than the grid has
    and two for each length."""
    output_tokens = min(grid.output_tokens)
    odd = [c - 1 for c in grid.concurrency if c % 2 == 0]
    points: list[tuple[int, int]] = []
    for length in grid.prompt_tokens:
        points += [(min(grid.concurrency), length + off) for off in (-7, 1)]
        points += [(concurrency, length | 1) for concurrency in odd]
    taken = _points(declared, variant)
    return tuple(
        Cell(concurrency, length, output_tokens, variant, drafts=drafts)
        for concurrency, length in dict.fromkeys(points)
        if length >= 1 and (concurrency, length) not in taken
    )


def _points(cells: Iterable[Cell], variant: Variant) -> set[tuple[int, int]]:
    """Concurrency and length of those that are nothing but that."""
    plain = (c for c in cells if not c.prefix_tokens and not c.arriving_tokens)
    return {(c.concurrency, c.prompt_tokens) for c in plain if c.variant == variant}


def found(
    derived: Derived, declared: Sequence[Cell], facts: EngineFacts, batched_tokens: int
) -> Found:
    """Fit the derived kinds to an engine; `batched_tokens` is B, known or assumed.

    Where nothing was learned of any engine (`plan` without one), what can't be known is no fault.
    """
    cells: list[Cell] = [*derived.profiled, *derived.beside]
    unfit: list[Unfit] = []
    notes: list[str] = []
    if derived.profiled:
        notes.append(f"profiles: {_count(derived.profiled)}")
    if derived.beside:
        notes.append(f"off_grid: {_count(derived.beside)} beside the grid")
    if derived.crossings:
        taken = _points((*declared, *cells), Variant("completions"))
        _cross(derived.crossings, taken, facts, cells, unfit, notes)
    if derived.cudagraph:
        _replay(facts, batched_tokens, cells, unfit, notes)
    return Found(tuple(cells), tuple(unfit), tuple(notes))


def _cross(
    multiples: Sequence[int],
    taken: Collection[tuple[int, int]],
    facts: EngineFacts,
    cells: list[Cell],
    unfit: list[Unfit],
    notes: list[str],
) -> None:
    chunk = facts.max_num_batched_tokens
    if chunk is None:
        _untold("chunk_crossing", "max_num_batched_tokens", facts, unfit, notes)
        return
    around = [m * chunk + off for m in multiples for off in (-1, 1, chunk // 2 + 1)]
    lengths = [n for n in dict.fromkeys(around) if n >= 1 and (1, n) not in taken]
    crossing = [Cell(1, length, CROSSING_OUTPUT) for length in lengths]
    cells += crossing
    notes.append(
        f"chunk_crossing: {_count(crossing)} around multiples of {chunk} tokens"
        f"{where(facts, 'max_num_batched_tokens')}"
    )


def _replay(
    facts: EngineFacts,
    batched_tokens: int,
    cells: list[Cell],
    unfit: list[Unfit],
    notes: list[str],
) -> None:
    """One wave for each size that a decode step can have: all requests at 1 + k tokens."""
    if facts.cudagraphs_off or facts.capture_sizes == ():
        notes.append("cudagraph: nothing to do, no CUDA graphs are captured")
        return
    if facts.capture_sizes is None:
        _untold("cudagraph", "capture_sizes", facts, unfit, notes)
        return
    if facts.speculation and facts.draft_tokens is None:
        _untold("cudagraph", "draft_tokens", facts, unfit, notes)
        return
    at_once = 1 + (facts.draft_tokens or 0)
    sizes = sorted(set(facts.capture_sizes))
    if facts.max_num_seqs is not None:
        most, whence = facts.max_num_seqs, f"max_num_seqs{where(facts, 'max_num_seqs')}"
    else:
        # vLLM 0.33 config/vllm.py:2398-2660: by default it captures up to twice what decodes at
        # once, or to a bound below that.
        most = max(sizes, default=0) // 2 // at_once
        whence = "half the largest, for max_num_seqs is not known: say it under engine:"
    requests = [size // at_once for size in sizes if size % at_once == 0]
    reached = [count for count in requests if count <= most]
    length = REPEATING_PROMPT if facts.speculation else SHORT_PROMPT
    cells += _decoding(reached, length, batched_tokens)
    others = len(sizes) - len(reached)
    notes.append(
        f"cudagraph: {len(reached)} of {len(sizes)} captured sizes"
        f"{where(facts, 'capture_sizes')}, up to {most} requests ({whence})"
        + (f"; no decode batch has one of the other {others}" if others else "")
    )


def _decoding(counts: Sequence[int], length: int, batched_tokens: int) -> Iterator[Cell]:
    """By prompts of that length, or as long as all of them fit into one step."""
    for count in counts:
        yield Cell(count, max(1, min(length, batched_tokens // count)), 1, captured=True)


def _untold(kind: str, name: str, facts: EngineFacts, unfit: list[Unfit], notes: list[str]) -> None:
    if facts.model is None:
        notes.append(f"{kind}: its cells depend on the engine's {name}, which is not known here")
    else:
        reason = f"it follows from {name}, which the engine did not tell"
        unfit.append(Unfit(None, reason, _HOW_TO_TELL, kind=f"special.{kind}"))


def _count(cells: Sequence[Cell]) -> str:
    return "1 cell" if len(cells) == 1 else f"{len(cells)} cells"

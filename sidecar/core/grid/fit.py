"""Whether an engine can run a cell at all, and the flag that would let it."""

from dataclasses import dataclass

from sidecar.core.facts import EngineFacts
from sidecar.core.grid.cells import Cell, Gait
from sidecar.core.grid.listed import unlisted


@dataclass(frozen=True, slots=True)
class Unfit:
    """A declared cell, or a kind of them, that this engine can't run."""

    cell: Cell | None
    """None: a whole kind, of which it isn't even known which cells it has."""
    reason: str
    remedy: str
    """The flag or the line of the shapes file to change."""
    forbidden: bool = False
    """True: skipping won't do, since it would hide a mistake in the file (an unknown field)."""
    kind: str = ""
    """Where it is declared: `special.cudagraph`."""

    @property
    def id(self) -> str:
        return self.kind if self.cell is None else self.cell.id


@dataclass(frozen=True, slots=True)
class Limits:
    """An engine's limits, and the plug that a held wave adds to its load."""

    facts: EngineFacts
    plug_tokens: int | None
    """None: no plug fits."""
    batched_tokens: int
    """B, known or assumed."""
    draft_tokens: int
    """k, known or assumed."""


def misfit(cell: Cell, limits: Limits, declared: Cell) -> Unfit | None:
    """Why `cell`, raised from `declared`, can't run; None: it can, as far as is known."""
    return (
        _unknown_field(cell, limits)
        or _no_drafts(cell, limits)
        or _no_hit(cell, limits, declared)
        or _no_mixed(cell, limits)
        or _too_long(cell, limits, declared)
        or _too_many(cell, limits)
        or _too_large(cell, limits)
    )


def _unknown_field(cell: Cell, limits: Limits) -> Unfit | None:
    listed = limits.facts.request_fields
    fields = listed.get(cell.variant.endpoint) if listed is not None else None
    if not fields:
        return None
    found = unlisted(cell.variant.fields, fields)
    if found is None:
        return None
    return Unfit(
        cell,
        f'variant "{cell.variant.name}" sets "{found.field}", which the engine\'s own '
        f"/openapi.json doesn't list for {cell.variant.endpoint.path}{found.hint}",
        found.remedy,
        forbidden=True,
    )


def _no_drafts(cell: Cell, limits: Limits) -> Unfit | None:
    if cell.drafts is None or limits.facts.speculation is not False:
        return None
    return Unfit(
        cell,
        f"it declares {cell.drafts} drafts, and the engine makes none: it was started without "
        f"speculation{where(limits.facts, 'speculation')}",
        "start vLLM with --speculative-config, or remove drafts from the shapes file",
    )


def _no_hit(cell: Cell, limits: Limits, declared: Cell) -> Unfit | None:
    facts = limits.facts
    if declared.prefix_tokens and facts.prefix_caching is False:
        return Unfit(
            cell,
            "it wants a prefix from the cache, and the engine has no prefix cache"
            f"{where(facts, 'prefix_caching')}",
            "start vLLM with --enable-prefix-caching",
        )
    if declared.prefix_tokens and not cell.prefix_tokens:
        return Unfit(
            cell,
            f"a prefix of {declared.prefix_tokens} tokens makes no whole block of "
            f"{facts.block_size}{where(facts, 'block_size')}, so nothing of it is ever found",
            f"raise prefix_tokens to {facts.block_size} or more, and prompt_tokens above it",
        )
    return None


def _no_mixed(cell: Cell, limits: Limits) -> Unfit | None:
    """The decodes start from one step, so that every wave makes the same steps."""
    if not cell.arriving_tokens:
        return None
    most, facts = limits.batched_tokens, limits.facts
    decoding = cell.concurrency * (1 + limits.draft_tokens)
    together = cell.concurrency * cell.prompt_tokens if cell.concurrency > 1 else 0
    known = where(facts, "max_num_batched_tokens") or " (assumed)"
    if together > most:
        return Unfit(
            cell,
            f"the {cell.concurrency} x {cell.prompt_tokens} tokens that decode while the other "
            f"arrives don't start in one step of max_num_batched_tokens {most}{known}",
            "lower concurrency or prompt_tokens",
        )
    if decoding >= most:
        return Unfit(
            cell,
            f"{cell.concurrency} requests that decode fill a step of max_num_batched_tokens "
            f"{most}{known}, so nothing can arrive beside them",
            "lower concurrency",
        )
    if cell.concurrency > 1 and not limits.plug_tokens:
        return Unfit(
            cell,
            "no prompt that holds its requests back fits into the KV cache of "
            f"{facts.kv_cache_tokens} tokens{where(facts, 'kv_cache_tokens')}",
            "give vLLM more KV cache (--gpu-memory-utilization, --kv-cache-memory-bytes)",
        )
    return None


def _longest_output(cell: Cell) -> int:
    return cell.output_tokens_of(cell.concurrency - 1)


def _too_long(cell: Cell, limits: Limits, declared: Cell) -> Unfit | None:
    limit = limits.facts.max_model_len
    output_tokens = _longest_output(cell)
    total = cell.prompt_tokens + output_tokens
    if limit is not None and cell.arriving_tokens >= limit:
        return Unfit(
            cell,
            f"{cell.arriving_tokens} arriving + 1 output tokens are above max_model_len {limit}"
            f"{where(limits.facts, 'max_model_len')}",
            f"start vLLM with --max-model-len {cell.arriving_tokens + 1}, or set arriving_tokens "
            f"to at most {limit - 1}",
        )
    if limit is None or total <= limit:
        return None
    raised = (
        f" (raised from {declared.output_tokens}, so that all requests decode together)"
        if output_tokens > declared.output_tokens
        else ""
    )
    remedy = f"start vLLM with --max-model-len {total}"
    if limit > output_tokens:
        remedy += f", or set prompt_tokens to at most {limit - output_tokens}"
    return Unfit(
        cell,
        f"{cell.prompt_tokens} prompt + {output_tokens} output tokens{raised} are above "
        f"max_model_len {limit}{where(limits.facts, 'max_model_len')}",
        remedy,
    )


def _too_many(cell: Cell, limits: Limits) -> Unfit | None:
    limit = limits.facts.max_num_seqs
    if limit is None or cell.requests * cell.variant.choices <= limit:
        return None
    if cell.variant.choices > 1:
        return Unfit(
            cell,
            f"{cell.variant.choices} choices of a request are above max_num_seqs {limit}"
            f"{where(limits.facts, 'max_num_seqs')}, so the rest would only queue",
            f"start vLLM with --max-num-seqs {cell.variant.choices}, or set n to at most {limit}",
        )
    arriving = " and one that arrives" if cell.arriving_tokens else ""
    room = limit - cell.requests + cell.concurrency
    return Unfit(
        cell,
        f"concurrency {cell.concurrency}{arriving} is above max_num_seqs {limit}"
        f"{where(limits.facts, 'max_num_seqs')}, so the rest would only queue",
        f"start vLLM with --max-num-seqs {cell.requests}, or "
        + (f"set concurrency to at most {room}" if room else "leave the cell out"),
    )


def _too_large(cell: Cell, limits: Limits) -> Unfit | None:
    limit = limits.facts.kv_cache_tokens
    if limit is None:
        return None
    is_plugged = cell.gaits != (Gait.LED,) and cell.concurrency > 1
    plug_tokens = limits.plug_tokens or 0 if is_plugged else 0
    total = cell.wave_prompt_tokens + cell.wave_output_tokens + plug_tokens
    if total <= limit:
        return None
    plug = f" + a plug of {plug_tokens}" if plug_tokens else ""
    return Unfit(
        cell,
        f"{cell.wave_prompt_tokens} prompt + {cell.wave_output_tokens} output tokens{plug} are "
        f"above the KV cache of {limit} tokens{where(limits.facts, 'kv_cache_tokens')}",
        "give vLLM more KV cache (--gpu-memory-utilization, --kv-cache-memory-bytes), or lower "
        "concurrency or prompt_tokens",
    )


def where(facts: EngineFacts, name: str) -> str:
    """From where it is known, in parentheses behind the figure."""
    source = facts.sources.get(name)
    return f" (from {source})" if source else ""

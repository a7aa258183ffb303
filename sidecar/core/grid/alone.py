"""Variants of which a wave can have but one request, because nothing could tell its batch."""

from sidecar.core.grid.cells import Cell, Variant


def _why(variant: Variant) -> str | None:
    if not variant.is_streamed:
        return "vLLM streams no prompt_logprobs, so the steps of several can't be told apart"
    if variant.choices > 1:
        return (
            f"the {variant.choices} choices of each share its prompt through the cache, so what "
            "several compute in a step can't be told"
        )
    return None


def refused(cell: Cell) -> str | None:
    """One sentence, if the cell asks such a variant for more than one request at a time."""
    why = _why(cell.variant)
    if why is None:
        return None
    name = cell.variant.name
    if cell.requests > 1:
        return (
            f'{cell.id}: the variant "{name}" can have one request at a time: {why}; '
            "give its cells a concurrency of 1"
        )
    if cell.prefix_tokens:
        return f'{cell.id}: the variant "{name}" can have no prefix_hit: {why}; use another variant'
    return None

"""Shapes × what was learned → the cells that can be sent, and those that can't, with the reason."""

from dataclasses import dataclass

from sidecar.core.cells import Cell


@dataclass(frozen=True, slots=True)
class Unfit:
    """A declared cell that this engine can't run."""

    cell: Cell
    reason: str
    remedy: str
    """The flag or the line of the shapes file to change."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What will be sent, in the order of the first pass: `first`, then `cells`, large before small.

    `plug_tokens` is the length of one plug's prompt, None where none fits; `batched_tokens` is B
    as used for R1-R4 (learned, or assumed: `batched_tokens_known` tells).
    """

    cells: tuple[Cell, ...]
    first: Cell | None = None
    heaviest: Cell | None = None
    unfit: tuple[Unfit, ...] = ()
    plug_tokens: int | None = None
    batched_tokens: int = 2048
    batched_tokens_known: bool = False
    warnings: tuple[str, ...] = ()

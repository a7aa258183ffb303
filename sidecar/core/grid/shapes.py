"""Shapes file → Shapes: the declared cells, before anything is known of the engine."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from itertools import chain, product

from pydantic import ValidationError

from sidecar.core import yamltext
from sidecar.core.errors import ConfigError
from sidecar.core.grid.alone import refused
from sidecar.core.grid.cells import Cell, Converge, Drafts, Role, Variant
from sidecar.core.grid.complaints import complaint
from sidecar.core.grid.profiles import BUILT_IN, pieces, variants_of
from sidecar.core.grid.shapesfile import (
    MAX_CELLS,
    CellForm,
    EngineForm,
    Heaviest,
    Mixed,
    PrefixHit,
    ShapesForm,
)
from sidecar.core.grid.special import Derived, beside
from sidecar.core.nearest import suggest
from sidecar.core.yamltext import Document


class OnUnfit(StrEnum):
    """What becomes of a plan with a cell that can't run on this engine."""

    FAIL = "fail"
    SKIP = "skip"


class OnUnproven(StrEnum):
    """What becomes of the gate when nothing cold was seen, but not all is proven."""

    OPEN = "open"
    CLOSED = "closed"


class OnEscape(StrEnum):
    """What becomes of the gate when something was compiled while it was open."""

    COUNT = "count"
    REWARM = "rewarm"


@dataclass(frozen=True, slots=True)
class EngineHints:
    """What the operator says of the engine, under `engine:`. None: not said."""

    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    kv_cache_tokens: int | None = None
    vocab_size: int | None = None
    draft_tokens: int | None = None
    capture_sizes: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Budget:
    """How much a warm-up may take before the gate is decided on what there is."""

    total_s: float = 600.0
    passes: int = 20
    request_timeout_s: float = 900.0


@dataclass(frozen=True, slots=True)
class Shapes:
    """What is declared. The cells are as written: `plan.expand` fits them to an engine.

    `ramp` of a cell is 1 where the file says `ramp: true`; its real step needs the engine's k.
    `digest` changes with the meaning of the file, not with its comments or layout.
    """

    cells: tuple[Cell, ...]
    heaviest: Cell | None = None
    ranks: tuple[int, ...] | None = None
    """Data-parallel ranks that are warmed; None: all there are."""
    engine: EngineHints = field(default_factory=EngineHints)
    budget: Budget = field(default_factory=Budget)
    converge: Converge = field(default_factory=Converge)
    on_unfit: OnUnfit = OnUnfit.FAIL
    on_unproven: OnUnproven = OnUnproven.OPEN
    on_escape: OnEscape = OnEscape.COUNT
    derived: Derived = field(default_factory=Derived)
    """Special cells that follow from the grid and from what is learned of the engine."""
    name: str = ""
    digest: str = ""


def parse(text: str, name: str) -> Shapes:
    """Read a shapes file; `name` is what errors call it.

    Raises ConfigError with one sentence: `name:line: what is wrong; what to change`.
    """
    document = yamltext.load(text, name)
    if not isinstance(document.value, dict):
        raise ConfigError(
            f"{name}:1: the file must be a mapping such as `grid: {{concurrency: [1], …}}`, "
            f"not a {'list' if isinstance(document.value, list) else 'single value'}"
        )
    try:
        form = ShapesForm.model_validate(document.value)
    except ValidationError as error:
        raise ConfigError(complaint(error, document, name)) from None
    return _Reader(form, document, name).shapes()


@dataclass(frozen=True, slots=True)
class _Reader:
    form: ShapesForm
    document: Document
    name: str

    def shapes(self) -> Shapes:
        variants = self._variants()
        cells = tuple(self.cells(variants))
        derived = replace(self._derived(variants, cells), profiled=self._profiled(variants, cells))
        if not cells and derived == Derived():
            raise self._error((), 'declares nothing to warm; add "grid", "cells" or "profiles"')
        form, budget = self.form.heaviest, self.form.budget
        heaviest = self._heaviest(form, variants) if form else None
        for cell in (*cells, *derived.profiled, *((heaviest,) if heaviest else ())):
            why = refused(cell)
            if why is not None:
                raise self._error(("variants", cell.variant.name), why)
        shapes = Shapes(
            cells=cells,
            heaviest=heaviest,
            ranks=self._ranks(),
            engine=_hints(self.form.engine),
            budget=Budget(budget.total_s, budget.passes, budget.request_timeout_s),
            converge=Converge(self.form.converge.floor_s, self.form.converge.factor),
            on_unfit=OnUnfit(self.form.on_unfit),
            on_unproven=OnUnproven(self.form.on_unproven),
            on_escape=OnEscape(self.form.on_escape),
            derived=derived,
            name=self.form.name or self.name,
        )
        return replace(shapes, digest=_digest(shapes))

    def _variants(self) -> Mapping[str, Variant]:
        for name in self.form.variants.keys() & BUILT_IN.keys():
            raise self._error(
                ("variants", name), f'the variant "{name}" exists already; give yours another name'
            )
        theirs = [piece.variants for piece in pieces(self.form.profiles)]
        return BUILT_IN | variants_of(*theirs, self.form.variants)

    def _profiled(self, variants: Mapping[str, Variant], cells: Sequence[Cell]) -> tuple[Cell, ...]:
        names = self.form.profiles
        for i, name in enumerate(names):
            if name in names[:i]:
                raise self._error(("profiles", i), f'profiles has "{name}" twice; remove one')
        readers = [replace(self, form=piece) for piece in pieces(names)]
        found = dict.fromkeys(c for reader in readers for c in reader.cells(variants))
        return tuple(cell for cell in found if cell not in cells)

    def cells(self, variants: Mapping[str, Variant]) -> Iterator[Cell]:
        seen: dict[Cell, str] = {}
        for cell in self._grid_cells(variants):
            seen[cell] = "the grid"
            yield cell
        for cell, path in chain(self._single_cells(variants), self._special_cells(variants)):
            if cell in seen:
                raise self._error(
                    path, f"the cell {cell.id} is there already, in {seen[cell]}; remove one"
                )
            if len(seen) >= MAX_CELLS:
                raise self._error(
                    path, f"more than {MAX_CELLS} cells together with the grid; remove some"
                )
            seen[cell] = f"line {self.document.line_of(path)}"
            yield cell

    def _single_cells(
        self, variants: Mapping[str, Variant]
    ) -> Iterator[tuple[Cell, yamltext.Path]]:
        for i, form in enumerate(self.form.cells):
            path = ("cells", i)
            for drafts in self._drafts(form.drafts, form.output_tokens, path):
                yield replace(self._cell(form, variants, path), drafts=drafts), path

    def _special_cells(
        self, variants: Mapping[str, Variant]
    ) -> Iterator[tuple[Cell, yamltext.Path]]:
        for i, hit in enumerate(self.form.special.prefix_hit):
            path = ("special", "prefix_hit", i)
            if hit.prefix_tokens >= hit.prompt_tokens:
                raise self._error(
                    (*path, "prefix_tokens"),
                    f"a prefix of {hit.prefix_tokens} tokens leaves nothing of a prompt of "
                    f"{hit.prompt_tokens} to compute; prompt_tokens counts both: raise it",
                )
            cell = self._cell(hit, variants, path)
            yield replace(cell, prefix_tokens=hit.prefix_tokens), path
        for i, mixed in enumerate(self.form.special.mixed):
            path = ("special", "mixed", i)
            cell = self._cell(mixed, variants, path)
            yield replace(cell, arriving_tokens=mixed.arriving_tokens), path

    def _derived(self, variants: Mapping[str, Variant], cells: Sequence[Cell]) -> Derived:
        form, grid = self.form.special, self.form.grid
        path: yamltext.Path = ("special", "chunk_crossing")
        for i, multiple in enumerate(form.chunk_crossing):
            if multiple in form.chunk_crossing[:i]:
                raise self._error((*path, i), f"chunk_crossing has {multiple} twice; remove one")
        off_grid: tuple[Cell, ...] = ()
        if form.off_grid:
            if grid is None:
                raise self._error(
                    ("special", "off_grid"),
                    "off_grid takes its lengths from the grid, and there is none; add a grid, or "
                    "write the lengths under cells",
                )
            drafts = self._drafts(grid.drafts, min(grid.output_tokens), ("grid",))[0]
            off_grid = beside(grid, variants[grid.variants[0]], drafts, cells)
        return Derived(off_grid, tuple(form.chunk_crossing), form.cudagraph)

    def _grid_cells(self, variants: Mapping[str, Variant]) -> Iterator[Cell]:
        grid = self.form.grid
        if grid is None:
            return
        drafts = self._drafts(grid.drafts, min(grid.output_tokens), ("grid",))
        for axis in ("concurrency", "prompt_tokens", "output_tokens", "variants"):
            values = getattr(grid, axis)
            for i, value in enumerate(values):
                if value in values[:i]:
                    raise self._error(
                        ("grid", axis, i), f"{axis} has {value} twice, duplicate cells; remove one"
                    )
        count = (
            len(grid.concurrency)
            * len(grid.prompt_tokens)
            * len(grid.output_tokens)
            * len(grid.variants)
            * len(drafts)
        )
        if count > MAX_CELLS:
            raise self._error(
                ("grid",),
                f"the grid unfolds to {count} cells, the limit is {MAX_CELLS}; "
                "shorten one of its lists",
            )
        for i, name in enumerate(grid.variants):
            variant = self._variant(name, variants, ("grid", "variants", i))
            for prompt_tokens in grid.prompt_tokens:
                for concurrency in grid.concurrency:
                    for output_tokens, text in product(grid.output_tokens, drafts):
                        yield Cell(concurrency, prompt_tokens, output_tokens, variant, drafts=text)

    def _drafts(
        self, names: Sequence[str], output_tokens: int, path: yamltext.Path
    ) -> list[Drafts | None]:
        """The texts that a grid or a cell asks for; [None]: it leaves them to the engine."""
        if len(set(names)) < len(names):
            raise self._error((*path, "drafts"), f'drafts has "{names[0]}" twice; remove one')
        if names and output_tokens < 2:
            raise self._error(
                (*path, "drafts"),
                "drafts are made for the second token and later; set output_tokens to 2 or more",
            )
        return [Drafts(name) for name in names] or [None]

    def _cell(
        self,
        form: CellForm | PrefixHit | Mixed,
        variants: Mapping[str, Variant],
        path: yamltext.Path,
    ) -> Cell:
        ramp = isinstance(form, CellForm) and form.ramp
        if ramp and form.concurrency < 2:
            raise self._error(
                (*path, "ramp"),
                "a ramp needs a concurrency of 2 or more, to step down from; raise it",
            )
        return Cell(
            form.concurrency,
            form.prompt_tokens,
            form.output_tokens,
            self._variant(form.variant, variants, (*path, "variant")),
            ramp=int(ramp),
        )

    def _heaviest(self, form: Heaviest, variants: Mapping[str, Variant]) -> Cell:
        return Cell(
            form.concurrency,
            form.prompt_tokens,
            form.output_tokens,
            self._variant(form.variant, variants, ("heaviest", "variant")),
            role=Role.HEAVIEST,
        )

    def _ranks(self) -> tuple[int, ...] | None:
        ranks = self.form.ranks
        if ranks == "all":
            return None
        for i, rank in enumerate(ranks):
            if rank in ranks[:i]:
                raise self._error(("ranks", i), f"ranks has {rank} twice; remove one")
        return tuple(ranks)

    def _variant(self, name: str, variants: Mapping[str, Variant], path: yamltext.Path) -> Variant:
        if name not in variants:
            raise self._error(
                path,
                f'no variant "{name}" is declared{suggest(name, variants)}; declare it '
                "under variants: or correct the name",
            )
        return variants[name]

    def _error(self, path: yamltext.Path, what: str) -> ConfigError:
        return ConfigError(f"{self.name}:{self.document.line_of(path)}: {what}")


def _hints(form: EngineForm) -> EngineHints:
    sizes = form.capture_sizes
    told = form.model_dump(exclude={"capture_sizes"})
    return EngineHints(**told, capture_sizes=None if sizes is None else tuple(sorted(set(sizes))))


def _digest(shapes: Shapes) -> str:
    meaning = asdict(shapes)
    for name in ("name", "digest", "budget", "on_unproven", "on_escape"):
        del meaning[name]  # they change how long to try and when to open, not what is warm
    text = json.dumps(meaning, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]

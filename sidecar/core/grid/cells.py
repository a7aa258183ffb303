"""What is warmed: variants, cells, gaits, waves."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

MAX_CONCURRENCY, MAX_PROMPT_TOKENS = 4096, 16_000_000
"""What a shapes file may declare."""


class Endpoint(StrEnum):
    """Where a request goes."""

    COMPLETIONS = "completions"
    CHAT = "chat"

    @property
    def path(self) -> str:
        return "/v1/completions" if self is Endpoint.COMPLETIONS else "/v1/chat/completions"


class Gait(StrEnum):
    """How a wave is let go (R3)."""

    LED = "led"
    """One request, the rest during its first step. A wave of one is led and has no rest."""
    HELD = "held"
    """All of them while a plug prefills, so that they share one engine step."""
    MIXED = "mixed"
    """As held, and one more prompt as soon as all of them decode."""


class Drafts(StrEnum):
    """What becomes of the drafts that a speculating engine makes for a prompt."""

    ACCEPTED = "accepted"
    """The prompt is a text that any model goes on with."""
    REJECTED = "rejected"
    """The prompt is random ids, which nobody can guess."""


@dataclass(frozen=True, slots=True)
class Variant:
    """How a request is made. `fields` go into its body as they are."""

    name: str
    endpoint: Endpoint = Endpoint.COMPLETIONS
    fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def choices(self) -> int:
        """Answers that each request asks for: vLLM runs each as a sequence of its own."""
        choices = self.fields.get("n")
        return choices if isinstance(choices, int) else 1

    @property
    def is_streamed(self) -> bool:
        """vLLM refuses to stream prompt_logprobs (0.32 completion/protocol.py,
        chat_completion/protocol.py): such an answer comes, and is timed, as a whole."""
        return "prompt_logprobs" not in self.fields

    def __hash__(self) -> int:
        return hash((self.name, self.endpoint, json.dumps(self.fields, sort_keys=True)))


class Role(StrEnum):
    """What a cell is there for."""

    GRID = "grid"
    HEAVIEST = "heaviest"
    """R10: one look that must succeed."""
    HIGH_WATER = "high_water"
    """R1: the one prompt that goes first and sets the high-water marks."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One declared point. Tokens are exact: a wave of another length is invalid.

    `output_tokens` is what each request generates, already raised by R4. With `ramp`, request i
    (from 0) generates `output_tokens + i * ramp` tokens, so that one wave decodes at every batch
    size from `concurrency` down to 1; `ramp` is 0 for a plain cell.
    """

    concurrency: int
    prompt_tokens: int
    output_tokens: int
    variant: Variant = Variant("completions")
    role: Role = Role.GRID
    gaits: tuple[Gait, ...] = (Gait.LED,)
    ramp: int = 0
    prefix_tokens: int = 0
    """Of each prompt so many tokens were sent before, with the same salt: what of them makes whole
    blocks is in the prefix cache, and the wave's own prefill goes on from there. 0: none. Of a
    planned cell these are whole blocks already, where the size of a block is known."""
    least_hit: int = 0
    """Of `prefix_tokens`, so many at least come from the cache, or the wave was no hit."""
    arriving_tokens: int = 0
    """A prompt of so many tokens arrives while the others decode: one request more than
    `concurrency`, the last of the wave, of one token of output. 0: none."""
    captured: bool = False
    """It is there for its decode batch, whose CUDA graph was captured and may never have run: how
    its prompts are batched is no matter."""
    drafts: Drafts | None = None
    """Which text the prompts are; None: what the engine's speculation asks for."""
    rank: int | None = None
    """The data-parallel rank that is asked; None: the engine chooses."""

    @property
    def id(self) -> str:
        """Stable and readable: `completions-c4-p350-o16`, and what is special about it."""
        special = f"-{self.role}" if self.role is not Role.GRID else "-ramp" if self.ramp else ""
        special += "-graph" if self.captured else ""
        if self.prefix_tokens:
            special += f"-hit{self.prefix_tokens}"
        if self.arriving_tokens:
            special += f"-arriving{self.arriving_tokens}"
        if self.drafts is not None:
            special += f"-{self.drafts}"
        if self.rank is not None:
            special += f"-dp{self.rank}"
        return (
            f"{self.variant.name}-c{self.concurrency}-p{self.prompt_tokens}"
            f"-o{self.output_tokens}{special}"
        )

    @property
    def requests(self) -> int:
        """Of one wave, without plugs and primes."""
        return self.concurrency + (self.arriving_tokens > 0)

    def prompt_tokens_of(self, index: int) -> int:
        """Tokens of the prompt of request `index` (from 0) of a wave."""
        return self.prompt_tokens if index < self.concurrency else self.arriving_tokens

    def output_tokens_of(self, index: int) -> int:
        """Tokens that request `index` (from 0) of a wave generates."""
        return self.output_tokens + index * self.ramp if index < self.concurrency else 1

    @property
    def computed_tokens(self) -> int:
        """Of one prompt (not the arriving one), what its prefill computes."""
        return self.prompt_tokens - self.prefix_tokens

    @property
    def wave_prompt_tokens(self) -> int:
        return self.concurrency * self.prompt_tokens + self.arriving_tokens

    @property
    def wave_computed_tokens(self) -> int:
        """Of all prompts of a wave, what their prefills compute."""
        return self.concurrency * self.computed_tokens + self.arriving_tokens

    @property
    def wave_output_tokens(self) -> int:
        tokens = sum(self.output_tokens_of(i) for i in range(self.requests))
        return tokens * self.variant.choices

    @property
    def prime_tokens(self) -> int:
        """Of all prompts that are sent before a wave, to be in the cache: one for each request."""
        return self.concurrency * self.prefix_tokens


@dataclass(frozen=True, slots=True)
class Look:
    """A wave that a cell still needs as evidence."""

    cell: Cell
    gait: Gait

    @property
    def behind_plug(self) -> bool:
        """Whether those that decode together wait behind a plug, to share one step."""
        if self.gait is Gait.MIXED:
            return self.cell.concurrency > 1
        return self.gait is Gait.HELD


@dataclass(frozen=True, slots=True)
class Converge:
    """R5: the tolerance τ above a baseline, in seconds: max(floor_s, factor × baseline)."""

    floor_s: float = 0.1
    factor: float = 1.0

    def tolerance_s(self, baseline_s: float) -> float:
        return max(self.floor_s, self.factor * baseline_s)

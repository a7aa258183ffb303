"""The form of a shapes file: what the JSON schema is made of."""

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    WithJsonSchema,
)

from sidecar.core.grid.cells import MAX_CONCURRENCY, MAX_PROMPT_TOKENS
from sidecar.core.grid.variants import ChatVariant, CompletionsVariant

MAX_CELLS = 1_000

# The bounds are far above any engine of today; what is beyond them is a slip of the finger.
Concurrency = Annotated[int, Field(ge=1, le=MAX_CONCURRENCY)]
PromptTokens = Annotated[int, Field(ge=1, le=MAX_PROMPT_TOKENS)]
OutputTokens = Annotated[int, Field(ge=1, le=1_000_000)]
Rank = Annotated[int, Field(ge=0, le=65_535)]
VariantName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]*$", max_length=40)]
Drafts = Annotated[
    list[Literal["accepted", "rejected"]],
    Field(
        max_length=2,
        description="For an engine that speculates: the cell once for each of these, with a text "
        "whose drafts are accepted, or one whose drafts are not; the engine's own counters must "
        "agree. Left out: one cell, with a text whose drafts are accepted.",
    ),
]


def _word_or_list(value: Any) -> str:
    """So that errors are of the member that was meant."""
    return "~word" if isinstance(value, str) else "~list"


Ranks = Annotated[
    Annotated[Literal["all"], Tag("~word")]
    | Annotated[list[Rank], Field(min_length=1, max_length=1024), Tag("~list")],
    Discriminator(_word_or_list),
]


class _Form(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Grid(_Form):
    """Every combination is a cell: concurrency × prompt tokens × output tokens × variant."""

    concurrency: list[Concurrency] = Field(min_length=1, max_length=200)
    prompt_tokens: list[PromptTokens] = Field(min_length=1, max_length=200)
    output_tokens: list[OutputTokens] = Field(default=[16], min_length=1, max_length=200)
    variants: list[VariantName] = Field(default=["completions"], min_length=1, max_length=50)
    drafts: Drafts = []


class CellForm(_Form):
    """One more cell."""

    concurrency: Concurrency = 1
    prompt_tokens: PromptTokens
    output_tokens: OutputTokens = 16
    variant: VariantName = "completions"
    ramp: bool = Field(
        default=False,
        description="One wave whose requests stop one after another, so that it decodes at "
        "every batch size from concurrency down to 1.",
    )
    drafts: Drafts = []


class Heaviest(_Form):
    """The longest real path. It must succeed once on every boot, or the gate stays shut."""

    concurrency: Concurrency = 1
    prompt_tokens: PromptTokens
    output_tokens: OutputTokens = 16
    variant: VariantName = "completions"


def _multiples(value: Any) -> Any:
    return [1] if value is True else [] if value is False else value


Multiples = Annotated[
    list[Annotated[int, Field(ge=1, le=64)]],
    Field(max_length=64),
    BeforeValidator(_multiples),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "boolean"},
                {
                    "type": "array",
                    "items": {"type": "integer", "minimum": 1, "maximum": 64},
                    "maxItems": 64,
                },
            ]
        }
    ),
]


class PrefixHit(_Form):
    """A wave whose prompts begin with what is in the prefix cache: the continuation kernels."""

    prefix_tokens: PromptTokens = Field(
        description="Of each prompt so many tokens are sent before, with the same salt. Of them "
        "whole blocks are found in the cache (block_size of the engine)."
    )
    prompt_tokens: PromptTokens = Field(description="The whole prompt, the prefix included.")
    concurrency: Concurrency = 1
    output_tokens: OutputTokens = 16
    variant: VariantName = "completions"


class Mixed(_Form):
    """A long prompt that arrives while others decode: prefill and decode in one step."""

    concurrency: Concurrency = Field(description="How many decode when it arrives.")
    prompt_tokens: PromptTokens = Field(default=16, description="Of each of those that decode.")
    arriving_tokens: PromptTokens = Field(description="Of the prompt that arrives.")
    output_tokens: OutputTokens = Field(
        default=16,
        description="Of each of those that decode; raised until they outlast the arriving prompt.",
    )
    variant: VariantName = "completions"


class Special(_Form):
    """What starts cold beside concurrency and length. Each wave proves that it was what it says."""

    off_grid: bool = Field(
        default=False,
        description="Beside each length of the grid: 7 less and 1 more at the smallest "
        "concurrency, and each even concurrency less 1, by the grid's first variant. Kernels "
        "differ by whether a number divides by 16 or 2; one was cold at 513 tokens and not at 514.",
    )
    chunk_crossing: Multiples = Field(
        default=[],
        description="Prompts around each of these multiples of max_num_batched_tokens, where a "
        "prompt is split into one chunk more: 1 token below, 1 above, and half a chunk above. "
        "true: around the first.",
    )
    cudagraph: bool = Field(
        default=False,
        description="One decode wave for each captured batch size up to max_num_seqs, so that "
        "each CUDA graph has run once. Dear: vLLM captures up to 51 sizes by default.",
    )
    prefix_hit: list[PrefixHit] = Field(default=[], max_length=200)
    mixed: list[Mixed] = Field(default=[], max_length=200)


class EngineForm(_Form):
    """What the operator knows of the engine. What the engine itself says wins."""

    max_model_len: Annotated[int, Field(ge=2, le=16_000_000)] | None = None
    max_num_seqs: Annotated[int, Field(ge=1, le=65_536)] | None = None
    max_num_batched_tokens: Annotated[int, Field(ge=1, le=16_000_000)] | None = None
    kv_cache_tokens: Annotated[int, Field(ge=1, le=10**12)] | None = None
    vocab_size: Annotated[int, Field(ge=2, le=10_000_000)] | None = None
    draft_tokens: Annotated[int, Field(ge=0, le=64)] | None = Field(
        default=None, description="Draft tokens per step (num_speculative_tokens); 0: none."
    )
    capture_sizes: (
        Annotated[
            list[Annotated[int, Field(ge=1, le=65_536)]], Field(min_length=1, max_length=4096)
        ]
        | None
    ) = Field(
        default=None, description="Batch sizes whose CUDA graphs are captured, for cudagraph."
    )


class BudgetForm(_Form):
    """How much a warm-up may take."""

    total_s: Annotated[float, Field(gt=0, le=86_400)] = 600.0
    passes: Annotated[int, Field(ge=2, le=1_000)] = 20
    request_timeout_s: Annotated[float, Field(gt=0, le=7_200)] = Field(
        default=900.0, description="One request. A compile may take minutes."
    )


class ConvergeForm(_Form):
    """When a wave counts as slow: more than max(floor_s, factor × baseline) above the baseline."""

    floor_s: Annotated[float, Field(ge=0.01, le=60)] = 0.1
    factor: Annotated[float, Field(ge=0, le=10)] = 1.0


def _endpoint_of(value: Any) -> str:
    if isinstance(value, ChatVariant | CompletionsVariant):
        return value.endpoint
    # What is no mapping at all is then refused as such, by the model of completions.
    return str(value.get("endpoint", "completions")) if isinstance(value, dict) else "completions"


VariantForm = Annotated[
    Annotated[CompletionsVariant, Tag("completions")] | Annotated[ChatVariant, Tag("chat")],
    Discriminator(_endpoint_of),
]


class ShapesForm(_Form):
    """What to warm: the shapes file of vllm-warmup."""

    model_config = ConfigDict(title="vllm-warmup shapes")

    name: str | None = Field(default=None, max_length=100)
    grid: Grid | None = None
    cells: list[CellForm] = Field(default=[], max_length=MAX_CELLS)
    profiles: list[Literal["agents", "rag", "chat"]] = Field(
        default=[],
        max_length=3,
        description="Ready-made cells and variants for users of a kind; `vllm-warmup plan` shows "
        "them. What does not fit the engine is left out. A variant of the same name here replaces "
        "theirs.",
    )
    variants: dict[VariantName, VariantForm] = Field(
        default={},
        max_length=50,
        description="Ways to make a request, beside completions and chat, which need no entry.",
    )
    special: Special = Special()
    heaviest: Heaviest | None = None
    ranks: Ranks = Field(
        default="all",
        description="Data-parallel ranks: each cell goes to each of them at the same time.",
    )
    engine: EngineForm = EngineForm()
    budget: BudgetForm = BudgetForm()
    converge: ConvergeForm = ConvergeForm()
    on_unfit: Literal["fail", "skip"] = Field(
        default="fail", description="When a cell can't run on this engine."
    )
    on_unproven: Literal["open", "closed"] = Field(
        default="open", description="When nothing cold was seen, but the evidence doesn't reach."
    )
    on_escape: Literal["count", "rewarm"] = Field(
        default="count",
        description="When the engine's log names a kernel that was compiled while the gate was "
        "open: count it, or shut the gate and warm the grid again, once in 15 minutes at most.",
    )


def schema() -> dict[str, Any]:
    """The JSON schema of a shapes file, for editors."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | (
        ShapesForm.model_json_schema(by_alias=True)
    )

"""What was learned about an engine. What can't be learned is None, never a guess."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from pydantic import PlainSerializer

from sidecar.core.errors import EngineRejected
from sidecar.core.grid.cells import Endpoint
from sidecar.core.wire.metrics import Scrape

_NAME, _SHOWN = 256, 10
"""Characters of a model's name, and how many of them one sentence holds."""

_MOST, _DIGITS, _MOST_BYTES = 2**31, 15, 2**50
"""Of a limit in tokens or requests, and of the digits of a capacity. A prompt is made as long as
the engine says that it takes."""

_NESTED = ("structured_outputs", "response_format")
"""Fields whose own fields are learned too: vLLM ignores what it doesn't know inside them as well
(0.32: extra="allow", or a dataclass that pydantic fills)."""

Names = Annotated[frozenset[str], PlainSerializer(sorted, return_type=list[str])]
"""In JSON always in the same order, so that two reports can be compared."""


@dataclass(frozen=True, slots=True)
class TokenIds:
    """Ids that ordinary text has: prompts are drawn from them, so that none holds a special id."""

    low: int
    high: int
    """Inclusive."""
    phrase: tuple[int, ...] = ()
    """Ids of a text that a model goes on with easily, for engines that speculate; () if unknown."""


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """Limits and properties of one boot of the engine.

    `sources` says for each known field where it came from (`/v1/models`, `/server_info`,
    `/metrics`, `log`, `shapes file`), for the operator.
    """

    version: str | None = None
    models: tuple[str, ...] = ()
    model: str | None = None
    """The one that is asked: the configured name, else the first base model listed."""
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    kv_cache_tokens: int | None = None
    """Of one data-parallel engine, the smallest."""
    block_size: int | None = None
    """Tokens of one block of the KV cache: what the prefix cache finds is whole blocks."""
    prefix_caching: bool | None = None
    vocab_size: int | None = None
    ranks: int | None = None
    """Data-parallel engines behind this URL: the distinct `engine` labels in /metrics."""
    speculation: bool | None = None
    draft_tokens: int | None = None
    """k, the draft tokens per step; 0 where speculation is known to be off."""
    capture_sizes: tuple[int, ...] | None = None
    cudagraphs_off: bool | None = None
    """--enforce-eager, or a CUDA device without any graph mode."""
    kv_cache_memory_bytes: int | None = None
    """Only where it was given: then memory is not profiled."""
    memory_profiled: bool | None = None
    """False: the log says that it was not, because the KV cache's size was given."""
    request_fields: Mapping[Endpoint, Names] | None = None
    """Fields that the engine's own /openapi.json lists for each endpoint."""
    token_ids: TokenIds | None = None
    """None: could not be probed; `prompts` then falls back to a range that is safe."""
    sources: Mapping[str, str] = field(default_factory=dict)


def learned(facts: EngineFacts, source: str, **values: Any) -> EngineFacts:
    """`facts` with what `source` told: it wins over what stood there, its None tells nothing."""
    known = {name: value for name, value in values.items() if value is not None}
    return replace(facts, **known, sources={**facts.sources, **dict.fromkeys(known, source)})


def costly(facts: EngineFacts) -> tuple[str, ...]:
    """The two settings that cost most where they are on, each as a sentence for the operator."""
    said: tuple[str, ...] = ()
    if facts.cudagraphs_off:
        said += (
            "CUDA graphs are off (--enforce-eager): every decode step pays its launches, "
            "ten times the time a token was seen; start vLLM without it",
        )
    if facts.kv_cache_memory_bytes is not None or facts.memory_profiled is False:
        said += (
            "the KV cache's size was given (--kv-cache-memory-bytes), so vLLM did not "
            "measure what a long prompt needs and may run out of memory; "
            "start it without, or leave room",
        )
    return said


def from_models(facts: EngineFacts, body: object, model: str | None) -> EngineFacts:
    """From the JSON of /v1/models (vLLM 0.33 entrypoints/serve/engine/protocol.py, ModelCard).

    Raises EngineRejected where it is no such list, or doesn't list the configured `model`.
    """
    cards = body.get("data") if isinstance(body, dict) else None
    if not isinstance(cards, list) or not cards:
        raise EngineRejected("its /v1/models is not a list of models")
    listed = {
        card["id"]: card
        for card in cards
        if isinstance(card, dict) and isinstance(card.get("id"), str)
    }
    # A name goes into labels, logs and every request: what no name can be is passed over.
    listed = {n: card for n, card in listed.items() if n.isprintable() and 0 < len(n) <= _NAME}
    base = tuple(name for name, card in listed.items() if not card.get("parent"))
    if model is not None and model not in listed:
        raise EngineRejected(
            f"it serves no model {model!r}, but {_listed(listed)}: set WARMUP_MODEL to one of these"
        )
    if not base:
        raise EngineRejected("its /v1/models lists no base model")
    asked = model or base[0]
    # A LoRA card has no length of its own (vLLM 0.33 openai/models/serving.py): its parent's holds.
    lengths = [integer(listed[name].get("max_model_len")) for name in (asked, *base)]
    return learned(
        facts,
        "/v1/models",
        models=base,
        model=asked,
        max_model_len=next((length for length in lengths if length is not None), None),
    )


def _listed(names: Collection[str]) -> str:
    shown = ", ".join(map(repr, list(names)[:_SHOWN]))
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"


def from_scrape(facts: EngineFacts, scrape: Scrape) -> EngineFacts:
    """From /metrics: ranks, KV capacity, and whether the engine speculates.

    The families of speculation are registered at start by the Python server, and only with a
    speculative configuration (vLLM 0.33 v1/spec_decode/metrics.py). A page without
    cache_config_info is another front end's, whose series come with their first use: there
    their absence tells nothing.
    """
    speculation = True if scrape.has_speculation else False if scrape.cache_config else None
    draft_tokens = scrape.draft_positions if speculation else 0 if speculation is False else None
    labels = tuple(scrape.cache_config.values())
    capacities = [_kv_tokens(own) for own in labels]
    blocks = {_digits(own.get("block_size")) for own in labels}
    caching = {own.get("enable_prefix_caching") for own in labels}
    known = [tokens for tokens in capacities if tokens is not None]
    return learned(
        facts,
        "/metrics",
        ranks=scrape.ranks,
        kv_cache_tokens=min(known) if known else None,
        block_size=(blocks.pop() or None) if len(blocks) == 1 else None,
        prefix_caching={"True": True, "False": False}.get(caching.pop() or "")
        if len(caching) == 1
        else None,
        speculation=speculation,
        draft_tokens=draft_tokens,
    )


def _kv_tokens(labels: Mapping[str, str]) -> int | None:
    """kv_cache_size_tokens (0.24+), else blocks × block size."""
    tokens = _digits(labels.get("kv_cache_size_tokens"))
    if tokens is not None:
        return tokens
    blocks, size = _digits(labels.get("num_gpu_blocks")), _digits(labels.get("block_size"))
    return None if blocks is None or size is None else blocks * size


def from_server_info(facts: EngineFacts, body: object) -> EngineFacts:
    """From /server_info?config_format=json (dev mode only; vLLM 0.33 serve/dev/server_info).

    The tree is VllmConfig's own and moves between versions: what is not where it is looked for
    stays as it was.
    """
    speculative = _dig(body, "vllm_config", "speculative_config")
    config = _dig(body, "vllm_config")
    is_told = isinstance(config, dict) and "speculative_config" in config
    sizes = _dig(body, "vllm_config", "compilation_config", "cudagraph_capture_sizes")
    hf = _dig(body, "vllm_config", "model_config", "hf_text_config") or _dig(
        body, "vllm_config", "model_config", "hf_config"
    )
    k = integer(_dig(speculative, "num_speculative_tokens"))
    eager = _dig(body, "vllm_config", "model_config", "enforce_eager")
    return learned(
        facts,
        "/server_info",
        max_num_seqs=integer(_dig(body, "vllm_config", "scheduler_config", "max_num_seqs")),
        max_num_batched_tokens=integer(
            _dig(body, "vllm_config", "scheduler_config", "max_num_batched_tokens")
        ),
        max_model_len=integer(_dig(body, "vllm_config", "model_config", "max_model_len")),
        vocab_size=integer(_dig(hf, "vocab_size")),
        cudagraphs_off=eager if isinstance(eager, bool) else None,
        kv_cache_memory_bytes=integer(
            _dig(body, "vllm_config", "cache_config", "kv_cache_memory_bytes"), _MOST_BYTES
        ),
        speculation=None if not is_told else speculative is not None,
        draft_tokens=(0 if speculative is None else k) if is_told else None,
        capture_sizes=tuple(sizes)
        if isinstance(sizes, list) and all(integer(size) is not None for size in sizes)
        else None,
    )


def from_openapi(facts: EngineFacts, body: object) -> EngineFacts:
    """From /openapi.json: which fields each endpoint takes, one level down too, and which values
    where only some are allowed (`response_format.type=text`)."""
    found: dict[Endpoint, frozenset[str]] = {}
    for endpoint in Endpoint:
        schema = _dig(
            body, "paths", endpoint.path, "post", "requestBody", "content", "application/json"
        )
        properties = _properties(body, _dig(schema, "schema"))
        if properties:
            names = _named("", properties)
            for name, inner in properties.items():
                if name in _NESTED:
                    for branch in _branches(inner):
                        names |= _named(f"{name}.", _properties(body, branch))
            found[endpoint] = frozenset(names)
    return learned(facts, "/openapi.json", request_fields=found or None)


def _properties(body: object, schema: object) -> dict[str, Any]:
    """Of an object's schema, itself or what it refers to."""
    reference = _dig(schema, "$ref")
    if isinstance(reference, str):
        schema = _dig(body, "components", "schemas", reference.rpartition("/")[2])
    properties = _dig(schema, "properties")
    return properties if isinstance(properties, dict) else {}


def _branches(schema: object) -> list[object]:
    """What a property may be: itself, or each of its alternatives."""
    branches = _dig(schema, "anyOf")
    return branches if isinstance(branches, list) else [schema]


def _named(prefix: str, properties: Mapping[str, Any]) -> set[str]:
    """The names of properties, and of the values of those that are a choice of words."""
    names: set[str] = set()
    for name, schema in properties.items():
        if name.isidentifier():
            names.add(prefix + name)
            names |= {f"{prefix}{name}={word}" for word in _words(schema)}
    return names


def _words(schema: object) -> list[str]:
    """All that a string may be here; none where any may."""
    words: list[str] = []
    for branch in _branches(schema):
        some = _dig(branch, "enum") or [_dig(branch, "const")]
        known = [w for w in some if isinstance(w, str)] if isinstance(some, list) else []
        if _dig(branch, "type") == "string" and not known:
            return []
        words += known
    return words


def _dig(tree: object, *path: str) -> Any:
    for step in path:
        if not isinstance(tree, dict):
            return None
        tree = tree.get(step)
    return tree


def integer(value: object, most: int = _MOST) -> int | None:
    """A positive whole number as it came in JSON, else None; so is one that no limit can be."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= most:
        return value
    return None


def _digits(text: str | None) -> int | None:
    fits = text is not None and text.isascii() and text.isdigit() and len(text) <= _DIGITS
    return int(text) if text is not None and fits else None

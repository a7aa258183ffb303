"""What was learned about an engine. What can't be learned is None, never a guess."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sidecar.core.cells import Endpoint


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """Limits and properties of one boot of the engine.

    `sources` says for each known field where it came from (`/v1/models`, `/server_info`,
    `/metrics`, `shapes file`), for the operator.
    """

    version: str | None = None
    models: tuple[str, ...] = ()
    model: str | None = None
    """The one that is asked: the configured name, else the first base model listed."""
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    kv_cache_tokens: int | None = None
    vocab_size: int | None = None
    ranks: int | None = None
    """Data-parallel engines behind this URL: the distinct `engine` labels in /metrics."""
    speculation: bool | None = None
    draft_tokens: int | None = None
    """k, the draft tokens per step; 0 where speculation is known to be off."""
    capture_sizes: tuple[int, ...] | None = None
    request_fields: Mapping[Endpoint, frozenset[str]] | None = None
    """Fields that the engine's own /openapi.json lists for each endpoint."""
    sources: Mapping[str, str] = field(default_factory=dict)

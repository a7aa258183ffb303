"""Which fields a variant may carry into a request's body, by endpoint.

vLLM ignores unknown fields with status 200 (0.21-0.33 serve/engine/protocol.py: `extra="allow"`),
so a mistyped one would warm the wrong path in silence: here it is an error. The names are those of
vLLM 0.33 completion/protocol.py and chat_completion/protocol.py.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

TokenId = Annotated[int, Field(ge=0, le=10_000_000)]
Probability = Annotated[float, Field(ge=0, le=1)]
Penalty = Annotated[float, Field(ge=-2, le=2)]

OWNED = {
    **dict.fromkeys(
        ("prompt", "messages", "prompt_embeds", "model", "suffix", "echo"),
        "the sidecar makes the prompt, to the exact token",
    ),
    **dict.fromkeys(
        ("stream", "stream_options"), "the sidecar streams: it measures the first token"
    ),
    **dict.fromkeys(
        ("max_tokens", "max_completion_tokens", "min_tokens", "ignore_eos"),
        "the length comes from output_tokens of the cell",
    ),
    **dict.fromkeys(
        ("stop", "stop_token_ids", "n", "best_of", "use_beam_search", "length_penalty"),
        "a wave needs exactly the declared tokens, in one stream a request",
    ),
    **dict.fromkeys(
        ("cache_salt", "request_id", "session_id", "user"),
        "the sidecar sets its own, fresh for each request",
    ),
    **dict.fromkeys(
        (
            "truncate_prompt_tokens",
            "add_special_tokens",
            "add_generation_prompt",
            "continue_final_message",
            "chat_template",
        ),
        "it would change the length of the prompt",
    ),
    "documents": "/tokenize doesn't take them, so that the prompt's length can't be made exact",
    "include_reasoning": "hidden reasoning has no first token that could be timed",
    "return_tokens_as_token_ids": "the sidecar reads the tokens as they come",
    "kv_transfer_params": "half a transfer holds KV blocks until it times out",
    "ec_transfer_params": "half a transfer holds cache blocks until it times out",
}
"""Fields that are refused, and why."""

RENAMED = {
    "guided_json": "structured_outputs: {json: …}",
    "guided_regex": "structured_outputs: {regex: …}",
    "guided_choice": "structured_outputs: {choice: …}",
    "guided_grammar": "structured_outputs: {grammar: …}",
    "guided_decoding_backend": "structured_outputs",
    "guided_whitespace_pattern": "structured_outputs: {whitespace_pattern: …}",
    "enable_thinking": "chat_template_kwargs: {enable_thinking: …}",
    "thinking": "chat_template_kwargs: {thinking: …}",
    "thinking_budget": "thinking_token_budget",
}
"""Fields that vLLM knew once, or that belong one level lower. It ignores the `guided_*` ones with
status 200 (0.33 sampling_params.py)."""


class _Strict(BaseModel):
    # Strict, so that `true` is no number and "4" no 4: vLLM might read them otherwise.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class StructuredOutputs(_Strict):
    """Exactly one constraint. It must not be able to end before output_tokens are there."""

    json_: dict[str, Any] | str | None = Field(default=None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None
    whitespace_pattern: str | None = None


class _Common(_Strict):
    temperature: Annotated[float, Field(ge=0, le=10)] | None = None
    top_p: Probability | None = None
    top_k: Annotated[int, Field(ge=-1, le=10_000_000)] | None = None
    min_p: Probability | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    logit_bias: dict[str, float] | None = Field(default=None, max_length=1024)
    bad_words: list[str] | None = Field(default=None, max_length=1024)
    allowed_token_ids: list[TokenId] | None = Field(default=None, max_length=4096)
    prompt_logprobs: Annotated[int, Field(ge=0, le=1000)] | None = None
    logprob_token_ids: list[TokenId] | None = Field(default=None, max_length=1024)
    priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] | None = None
    structured_outputs: StructuredOutputs | None = None
    response_format: dict[str, Any] | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    thinking_token_budget: Annotated[int, Field(ge=0, le=10_000_000)] | None = None
    stream_interval: Annotated[int, Field(ge=1, le=1000)] | None = None
    return_token_ids: bool | None = None
    vllm_xargs: dict[str, Any] | None = None


class CompletionsVariant(_Common):
    """A way to ask /v1/completions."""

    endpoint: Literal["completions"] = "completions"
    logprobs: Annotated[int, Field(ge=0, le=1000)] | None = None


class ChatVariant(_Common):
    """A way to ask /v1/chat/completions."""

    endpoint: Literal["chat"]
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=1000)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = (
        None
    )
    tools: list[dict[str, Any]] | None = Field(default=None, max_length=256)
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None


def fields_of(variant: CompletionsVariant | ChatVariant) -> dict[str, Any]:
    """What goes into the body: the fields that the file names, and no defaults."""
    named = variant.model_dump(by_alias=True, exclude_unset=True, exclude={"endpoint"})
    return {name: value for name, value in named.items() if value is not None}

"""How a simulated server describes itself: models, /server_info, /openapi.json."""

import time
from collections.abc import Iterable
from typing import Any

from sidecar.simulator import tokenizer
from sidecar.simulator.log import capture_sizes
from sidecar.simulator.profile import Profile

SHARED_FIELDS = [
    *("model", "frequency_penalty", "logit_bias", "logprobs"),
    *("max_tokens", "n", "presence_penalty", "seed"),
    *("stop", "stream", "stream_options", "temperature"),
    *("top_p", "user", "use_beam_search", "top_k"),
    *("min_p", "repetition_penalty", "watermarking", "length_penalty"),
    *("stop_token_ids", "include_stop_str_in_output", "ignore_eos", "min_tokens"),
    *(
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "truncate_prompt_tokens",
        "truncation_side",
    ),
    *("allowed_token_ids", "prompt_logprobs", "logprob_token_ids", "bad_words"),
    *("echo", "add_special_tokens", "response_format", "structured_outputs"),
    *("priority", "request_id", "session_id", "return_tokens_as_token_ids"),
    *("return_token_ids", "return_token_offsets", "cache_salt", "kv_transfer_params"),
    *("ec_transfer_params", "vllm_xargs", "repetition_detection", "thinking_token_budget"),
    "stream_interval",
]
COMPLETION_FIELDS = ["prompt", "suffix", "prompt_embeds", *SHARED_FIELDS]
CHAT_FIELDS = [
    *("messages", "top_logprobs", "max_completion_tokens", "tools", "tool_choice"),
    *("reasoning_effort", "include_reasoning", "parallel_tool_calls", "add_generation_prompt"),
    *("continue_final_message", "documents", "chat_template", "chat_template_kwargs"),
    *("media_io_kwargs", "mm_processor_kwargs", "return_prompt_text", *SHARED_FIELDS),
]
"""Of vLLM 0.32's completion/protocol.py and chat_completion/protocol.py."""

_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
NESTED = {
    "structured_outputs": {
        "anyOf": [{"$ref": "#/components/schemas/StructuredOutputsParams"}, {"type": "null"}]
    },
    "response_format": {
        "anyOf": [{"$ref": "#/components/schemas/ResponseFormat"}, {"type": "null"}]
    },
    "reasoning_effort": {"anyOf": [{"type": "string", "enum": _EFFORTS}, {"type": "null"}]},
}
INNER = {
    "StructuredOutputsParams": {
        name: {}
        for name in (
            *("json", "regex", "choice", "grammar", "json_object", "structural_tag"),
            *("disable_any_whitespace", "disable_additional_properties", "whitespace_pattern"),
        )
    },
    "ResponseFormat": {
        "type": {"type": "string", "enum": ["text", "json_object", "json_schema"]},
        "json_schema": {},
    },
}
"""Fields with fields of their own, and those with a choice of words."""


def model_cards(profile: Profile) -> dict[str, Any]:
    created = int(time.time())
    permission = {
        "id": f"modelperm-{profile.seed:016x}",
        "object": "model_permission",
        "created": created,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    card = {
        "id": profile.model,
        "object": "model",
        "created": created,
        "owned_by": "vllm",
        "root": profile.model,
        "parent": None,
        "max_model_len": profile.engine.max_model_len,
        "permission": [permission],
    }
    return {"object": "list", "data": [card]}


def server_info(profile: Profile, *, as_json: bool) -> dict[str, Any]:
    """The part of the tree that can be asked for; the real one is much larger."""
    engine = profile.engine
    text = f"model='{profile.model}', max_seq_len={engine.max_model_len}"
    speculative = (
        {"method": "mtp", "num_speculative_tokens": engine.draft_tokens}
        if engine.draft_tokens
        else None
    )
    tree = {
        "model_config": {
            "model": profile.model,
            "max_model_len": engine.max_model_len,
            "enforce_eager": engine.enforce_eager,
            "served_model_name": profile.model,
            "hf_text_config": {"vocab_size": tokenizer.VOCAB_SIZE},
        },
        "cache_config": {
            "block_size": engine.block_size,
            "enable_prefix_caching": engine.prefix_caching,
            "kv_cache_size_tokens": engine.kv_cache_tokens,
        },
        "parallel_config": {"tensor_parallel_size": 1, "data_parallel_size": engine.ranks},
        "scheduler_config": {
            "max_num_batched_tokens": engine.max_num_batched_tokens,
            "max_num_seqs": engine.max_num_seqs,
            "max_num_queued_reqs": profile.max_queued_requests,
            "enable_chunked_prefill": True,
        },
        "speculative_config": speculative,
        "compilation_config": {"cudagraph_capture_sizes": list(capture_sizes(profile))},
        "observability_config": {
            "enable_logging_iteration_details": profile.log_iterations,
            "jit_monitor_mode": "warn",
            "jit_monitor_verbose": profile.jit_monitor_verbose,
        },
    }
    return {"vllm_config": tree if as_json else text, "vllm_env": {}, "system_env": {}}


def openapi(profile: Profile, routes: Iterable[tuple[str, str]]) -> dict[str, Any]:
    bodies = {
        "/v1/completions": "CompletionRequest",
        "/v1/chat/completions": "ChatCompletionRequest",
    }
    paths: dict[str, dict[str, Any]] = {}
    for method, path in routes:
        operation: dict[str, Any] = {"responses": {"200": {"description": "Successful Response"}}}
        if path in bodies:
            reference = {"$ref": f"#/components/schemas/{bodies[path]}"}
            operation["requestBody"] = {"content": {"application/json": {"schema": reference}}}
        paths.setdefault(path, {})[method.lower()] = operation
    schemas = {
        name: {"type": "object", "properties": properties}
        for name, properties in (
            ("CompletionRequest", {name: NESTED.get(name, {}) for name in COMPLETION_FIELDS}),
            ("ChatCompletionRequest", {name: NESTED.get(name, {}) for name in CHAT_FIELDS}),
            *INNER.items(),
        )
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "FastAPI", "version": profile.version},
        "paths": paths,
        "components": {"schemas": schemas},
    }

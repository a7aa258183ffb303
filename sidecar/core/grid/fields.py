"""Fields of a request that a variant may not set, and what became of old or misplaced ones."""

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
        ("stop", "stop_token_ids", "best_of", "use_beam_search", "length_penalty"),
        "a wave needs exactly the declared tokens, in a stream",
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
    "json_schema": "response_format: {type: json_schema, json_schema: {name: …, schema: …}}",
    "json_object": "response_format: {type: json_object}",
    "functions": "tools: [{type: function, function: …}]",
    "function_call": "tool_choice",
    "num_logprobs": "logprobs",
}
"""Fields that vLLM knew once, or that belong one level lower. It ignores the `guided_*` ones with
status 200 (0.33 sampling_params.py)."""

"""What of a request's fields vLLM 0.32 refuses before it looks at the prompt, in its words."""

from collections.abc import Mapping
from typing import Any, NoReturn

from sidecar.simulator.bodies import Refusal, check_model, invalid, whole_number
from sidecar.simulator.profile import Profile

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_NUMBERS = ("max_tokens", "max_completion_tokens", "n", "min_tokens", "prompt_logprobs")


def check_fields(body: Mapping[str, Any], profile: Profile, *, is_chat: bool) -> None:
    """Raises Refusal."""
    for name in _NUMBERS:
        whole_number(body, name)
    check_model(body, profile)
    if body.get("stream_options") and not body.get("stream"):
        _refuse("stream_options", "Stream options can only be defined when `stream=True`.")
    _check_logprobs(body, is_chat)
    copies = body.get("n") or 1
    if copies > 1 and body.get("temperature") == 0:
        raise Refusal(400, f"n must be 1 when using greedy sampling, got {copies}.")
    salt = body.get("cache_salt")
    if salt is not None and (not isinstance(salt, str) or not salt):
        _refuse("cache_salt", "Parameter 'cache_salt' must be a non-empty string if provided.")
    form = body.get("response_format")
    schema = form if isinstance(form, Mapping) else {}
    if schema.get("type") == "json_schema" and schema.get("json_schema") is None:
        _refuse(
            "response_format",
            "When response_format type is 'json_schema', the 'json_schema' field must be provided.",
        )
    if is_chat:
        _check_chat(body)


def _check_logprobs(body: Mapping[str, Any], is_chat: bool) -> None:
    asked = body.get("prompt_logprobs")
    if asked and body.get("stream"):
        _refuse("prompt_logprobs", "`prompt_logprobs` are not available when `stream=True`.")
    for name in ("prompt_logprobs", "top_logprobs" if is_chat else "logprobs"):
        number = body.get(name)
        if isinstance(number, int) and number < -1:
            message = f"`{name}` must be a positive value or -1."
            _refuse(name, message, f"parameter={name}, value={number}")
    if is_chat and body.get("top_logprobs") and not body.get("logprobs"):
        _refuse("top_logprobs", "when using `top_logprobs`, `logprobs` must be set to true.")


def _check_chat(body: Mapping[str, Any]) -> None:
    choice = body.get("tool_choice")
    if choice not in (None, "none") and not body.get("tools"):
        _refuse("tool_choice", "When using `tool_choice`, `tools` must be set.")
    effort = body.get("reasoning_effort")
    if effort is not None and effort not in EFFORTS:
        detail = {"type": "literal_error", "loc": "body.reasoning_effort", "input": effort}
        invalid("body.reasoning_effort", detail)


def _refuse(param: str, message: str, named: str = "") -> NoReturn:
    raise Refusal(400, f"{message} ({named or f'parameter={param}'})", param=param)

"""The fields of a request's body, checked and refused in the words of vLLM 0.32."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn
from zlib import crc32

from sidecar.simulator import tokenizer
from sidecar.simulator.cold import next_pow2
from sidecar.simulator.profile import Profile

PENALTIES = {"repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0}
"""Fields, and the value that changes nothing."""
MASKS = ("logit_bias", "bad_words", "allowed_token_ids")


class Refusal(Exception):
    """An answer other than 200, or, where `late` and streaming, an error event after a 200."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "BadRequestError",
        param: str | None = None,
        late: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.late = late
        self.error = {"message": message, "type": kind, "param": param, "code": status}


def read_json(raw: bytes) -> dict[str, Any]:
    """Raises Refusal in the words of the server's validation."""
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        place = getattr(error, "pos", 0)
        detail = {
            "type": "json_invalid",
            "loc": f"body.{place}",
            "msg": "JSON decode error",
            "input": "<dict of 0 items>",
            "ctx": {"error": getattr(error, "msg", "too deep")},
        }
        invalid(f"body.{place}", detail)
    if not isinstance(body, dict):
        invalid(
            "body",
            {
                "type": "model_attributes_type",
                "loc": "body",
                "msg": "Input should be a valid dictionary or object to extract fields from",
                "input": f"<{type(body).__name__} of {len(body) if body else 0} items>"
                if isinstance(body, list)
                else repr(body),
            },
        )
    return body


def invalid(param: str, detail: Mapping[str, Any]) -> NoReturn:
    message = f"1 validation error:\n  {dict(detail)}"
    raise Refusal(400, message, kind="Bad Request", param=param)


def check_model(body: Mapping[str, Any], profile: Profile) -> None:
    asked = body.get("model")
    if asked is not None and asked != profile.model:
        raise Refusal(
            404,
            f"The model `{asked}` does not exist. Valid aliases: {profile.model}.",
            kind="NotFoundError",
            param="model",
        )


def prompts_of(prompt: Any) -> list[list[int]]:
    """A text, a list of texts, a list of ids, or a list of lists of ids."""
    if prompt is None or prompt == "":
        raise Refusal(
            400,
            "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)",
            param="prompt",
        )
    if isinstance(prompt, str):
        return [tokenizer.encode(prompt)]
    if not isinstance(prompt, list):
        invalid(
            "body.prompt",
            {"type": "string_type", "loc": "body.prompt", "msg": "Input should be a valid string"},
        )
    if not prompt:
        raise Refusal(400, "You must pass at least one prompt")
    if all(type(token) is int and token >= 0 for token in prompt):
        return [prompt]
    if all(isinstance(part, str | list) and part for part in prompt):
        return [prompts_of(part)[0] for part in prompt]
    invalid(
        "body.prompt.0",
        {
            "type": "greater_than_equal",
            "loc": "body.prompt.0",
            "msg": "Input should be greater than or equal to 0",
        },
    )


def chat_ids(body: Mapping[str, Any]) -> tuple[list[int], bool]:
    """A chat's prompt by the template, and whether it thinks. Raises Refusal."""
    messages = body.get("messages")
    if body.get("chat_template") is not None:
        raise Refusal(
            400,
            "Chat template is passed with request, but --trust-request-chat-template is not set. "
            "Refused request with untrusted chat template.",
        )
    if not isinstance(messages, list) or not messages:
        raise Refusal(
            400,
            "Cannot apply chat template to an empty conversation. Provide at least one message.",
        )
    controls = body.get("chat_template_kwargs") or {}
    effort = body.get("reasoning_effort")
    if effort is not None:  # vLLM 0.32 chat_completion/protocol.py, build_chat_params
        controls = {"enable_thinking": effort != "none", **controls}
    is_thinking = controls.get("enable_thinking", controls.get("thinking", True)) is not False
    text = tokenizer.render_chat(
        [message for message in messages if isinstance(message, dict)],
        add_generation_prompt=body.get("add_generation_prompt", True) is not False,
        enable_thinking=is_thinking,
        tools=body.get("tools") or (),
    )
    return tokenizer.encode(text), is_thinking


def features(body: Mapping[str, Any]) -> frozenset[str]:
    """What of a body reaches other kernels than a plain request does.

    Controls of thinking are none: they change the prompt and nothing else.
    """
    found = {f"sampler:{name}" for name in _sampling(body)}
    logprobs = body.get("logprobs")
    if logprobs is not None and logprobs is not False:
        number = body.get("top_logprobs") or 0 if logprobs is True else logprobs
        # The sampled token's own is one more; the kernel is compiled by powers of two (#55918).
        found |= {f"logprobs:{number}", f"logprobs_pow2:{next_pow2(number + 1)}"}
    if body.get("prompt_logprobs") is not None:
        found.add(f"prompt_logprobs:{body['prompt_logprobs']}")
    grammar = body.get("structured_outputs") or body.get("response_format")
    if isinstance(grammar, dict) and grammar.get("type") != "text":
        found.add(f"grammar:{grammar.get('type') or next(iter(grammar), '')}")
        text = json.dumps(grammar, sort_keys=True)
        found.add(f"grammar_text:{crc32(text.encode()):08x}")
    return frozenset(found)


def _sampling(body: Mapping[str, Any]) -> Iterator[str]:
    """The sampler's parts that a request needs. Greedy sampling leaves out the filters."""
    if body.get("temperature") == 0:
        yield "greedy"
    else:
        yield "random"
        top_k, top_p = body.get("top_k") not in (None, 0, -1), body.get("top_p") not in (None, 1)
        if top_k or top_p:
            yield "_".join(["top_k"] * top_k + ["top_p"] * top_p)
        if body.get("min_p"):
            yield "min_p"
        if body.get("seed") is not None:
            yield "seeded"
    if any(body.get(name) not in (None, neutral) for name, neutral in PENALTIES.items()):
        yield "penalties"
    if (body.get("n") or 1) > 1:
        yield "n"
    yield from (name for name in MASKS if body.get(name))


def block_hashes(ids: list[int], salt: str | None, size: int) -> tuple[int, ...]:
    """Chained over whole blocks; the salt goes into the first ([33] v1/core/kv_cache_utils.py)."""
    parent = crc32((salt or "").encode())
    hashes = []
    for start in range(0, len(ids) - size + 1, size):
        parent = hash((parent, tuple(ids[start : start + size])))
        hashes.append(parent)
    return tuple(hashes)


def whole_number(body: Mapping[str, Any], name: str) -> int | None:
    value = body.get(name)
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    invalid(
        f"body.{name}",
        {
            "type": "int_parsing",
            "loc": f"body.{name}",
            "msg": "Input should be a valid integer, unable to parse string as an integer",
            "input": value,
        },
    )

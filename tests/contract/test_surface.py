"""Endpoints, statuses and error bodies."""

from typing import Any

import httpx
import pytest

from sidecar.core.facts import EngineFacts, from_openapi
from sidecar.core.grid.cells import Endpoint
from tests.contract.target import BEARER, MAX_MODEL_LEN, MODEL, Target, chat, completion


@pytest.mark.parametrize(
    ("method", "path", "status", "body"),
    [
        ("GET", "/health", 200, ""),
        ("GET", "/ping", 200, ""),
        ("POST", "/ping", 200, ""),
        ("GET", "/load", 200, '{"server_load":0}'),
        ("GET", "/kv_event_sources", 200, "{}"),
        ("GET", "/is_sleeping", 200, '{"is_sleeping":false}'),
        ("GET", "/is_paused", 200, '{"is_paused":false}'),
        ("GET", "/nope", 404, '{"detail":"Not Found"}'),
        ("GET", "/v1/nope", 404, '{"detail":"Not Found"}'),
        ("GET", "/v1/completions", 405, '{"detail":"Method Not Allowed"}'),
        ("POST", "/health", 405, '{"detail":"Method Not Allowed"}'),
        ("HEAD", "/health", 405, ""),
        ("POST", "/reset_prefix_cache", 200, '{"success":true}'),
    ],
)
async def test_small_endpoints_answer_alike(
    target: Target, method: str, path: str, status: int, body: str
) -> None:
    """Status and body of each small endpoint."""
    answer = await target.client.request(method, path, headers=BEARER)
    assert (answer.status_code, answer.text) == (status, body)


async def test_a_model_card_names_its_length(target: Target) -> None:
    """/v1/models lists the served name with max_model_len, and the fields of a card."""
    body = (await target.get("/v1/models")).json()
    (card,) = body["data"]
    assert body["object"] == "list"
    assert (card["id"], card["max_model_len"], card["parent"]) == (MODEL, MAX_MODEL_LEN, None)
    assert set(card) == {
        *("id", "object", "created", "owned_by", "root", "parent", "max_model_len", "permission"),
    }


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer wrong"}])
@pytest.mark.parametrize("path", ["/v1/models", "/v1/completions", "/v1/nope"])
async def test_only_v1_is_guarded_by_the_key(
    target: Target, path: str, headers: dict[str, str]
) -> None:
    """No key or a wrong one: 401 under /v1 with vLLM's body, and none elsewhere."""
    answer = await target.client.get(path, headers=headers)
    assert (answer.status_code, answer.text) == (401, '{"error":"Unauthorized"}')
    for free in ("/health", "/version", "/metrics", "/openapi.json"):
        assert (await target.client.get(free, headers=headers)).status_code == 200


REFUSED: list[tuple[dict[str, Any], int, str, str | None, str]] = [
    ({"model": "nope"}, 404, "NotFoundError", "model", "The model `nope` does not exist."),
    ({"prompt": [5] * 9000}, 400, "BadRequestError", "input_tokens", "contains 9000 input tokens"),
    ({"prompt": [5] * 8192}, 400, "BadRequestError", "max_tokens", "must be at least 1, got 0."),
    ({"prompt": []}, 400, "BadRequestError", None, "You must pass at least one prompt"),
    ({"prompt": None}, 400, "BadRequestError", "prompt", "Either prompt or prompt_embeds"),
    ({"prompt": ""}, 400, "BadRequestError", "prompt", "Either prompt or prompt_embeds"),
    ({"prompt": [-1]}, 400, "Bad Request", "body.prompt.0", "greater than or equal to 0"),
    ({"prompt": [999999]}, 400, "BadRequestError", None, "Token id 999999 is out of vocabulary"),
    ({"max_tokens": 0}, 400, "BadRequestError", "max_tokens", "must be at least 1, got 0."),
    ({"max_tokens": "x"}, 400, "Bad Request", "body.max_tokens", "valid integer"),
    ({"max_tokens": 100_000}, 400, "BadRequestError", "max_tokens", "cannot be greater than"),
    ({"min_tokens": 9}, 400, "BadRequestError", None, "less than or equal to max_tokens=2, got 9"),
    ({"cache_salt": ""}, 400, "BadRequestError", "cache_salt", "must be a non-empty string"),
    (
        {"prompt_logprobs": 1, "stream": True},
        *(400, "BadRequestError", "prompt_logprobs", "not available when `stream=True`"),
    ),
    ({"n": 4, "temperature": 0}, 400, "BadRequestError", None, "n must be 1 when using greedy"),
    (
        {"structured_outputs": {"regex": "a", "choice": ["b"]}},
        *(400, "BadRequestError", "structured_outputs", "You can only use one kind of"),
    ),
    (
        {"structured_outputs": {"disable_any_whitespace": True}},
        *(400, "BadRequestError", None, "You must use one kind of structured outputs"),
    ),
    ({"logprobs": 99}, 400, "BadRequestError", "logprobs", "Requested sample logprobs of 99"),
    (
        {"stream_options": {"include_usage": True}},
        *(400, "BadRequestError", "stream_options", "Stream options can only be defined"),
    ),
]


@pytest.mark.parametrize(("fields", "status", "kind", "param", "says"), REFUSED)
async def test_refused_completions_say_why(
    target: Target, fields: dict[str, Any], status: int, kind: str, param: str | None, says: str
) -> None:
    """Status, type, parameter and words of an error body."""
    answer = await target.post("/v1/completions", {**completion(), **fields})
    _is_error(answer, status, kind, param, says)


@pytest.mark.parametrize(
    ("fields", "kind", "param", "says"),
    [
        ({"messages": []}, "BadRequestError", None, "empty conversation"),
        ({"max_completion_tokens": 0}, "BadRequestError", "max_tokens", "at least 1, got 0."),
        ({"chat_template": "x"}, "BadRequestError", None, "--trust-request-chat-template"),
    ],
)
async def test_refused_chats_say_why(
    target: Target, fields: dict[str, Any], kind: str, param: str | None, says: str
) -> None:
    """The same for chats."""
    answer = await target.post("/v1/chat/completions", {**chat(), **fields})
    _is_error(answer, 400, kind, param, says)


async def test_a_chat_without_messages_is_invalid(target: Target) -> None:
    """The validation error names the field."""
    body = chat()
    del body["messages"]
    answer = await target.post("/v1/chat/completions", body)
    _is_error(answer, 400, "Bad Request", "body.messages", "Field required")


@pytest.mark.parametrize(
    ("raw", "param", "says"),
    [(b"{bad", "body.1", "JSON decode error"), (b"[1]", "body", "valid dictionary or object")],
)
async def test_a_body_that_is_no_object_is_invalid(
    target: Target, raw: bytes, param: str, says: str
) -> None:
    """Bad JSON and a list are told apart."""
    headers = {**BEARER, "content-type": "application/json"}
    answer = await target.client.post("/v1/completions", content=raw, headers=headers)
    _is_error(answer, 400, "Bad Request", param, says)


@pytest.mark.parametrize(
    ("fields", "headers", "says"),
    [
        ({"prompt": [999999]}, {}, "Token id 999999 is out of vocabulary"),
        ({}, {"x-data-parallel-rank": "3"}, "data_parallel_rank 3 is out of range [0, 1)."),
    ],
)
async def test_what_the_engine_refuses_comes_inside_a_stream(
    target: Target, fields: dict[str, Any], headers: dict[str, str], says: str
) -> None:
    """200, an error event, [DONE]; without `stream` the same error has status 400."""
    body = {**completion(), **fields}
    first, last = await target.stream("/v1/completions", body, headers)
    error = first.json["error"]
    assert error == {"message": says, "type": "BadRequestError", "param": None, "code": 400}
    assert last.data == "[DONE]"
    _is_error(
        await target.post("/v1/completions", body, headers), 400, "BadRequestError", None, says
    )


@pytest.mark.parametrize(
    ("fields", "headers"),
    [
        ({"no_such_field": 1}, {}),
        ({"model": None}, {}),
        ({"cache_salt": "fresh"}, {}),
        ({}, {"x-data-parallel-rank": "first"}),
    ],
)
async def test_what_is_unknown_is_ignored(
    target: Target, fields: dict[str, Any], headers: dict[str, str]
) -> None:
    """Unknown fields, no model and a rank that is no number: 200."""
    answer = await target.post("/v1/completions", {**completion(), **fields}, headers)
    assert answer.status_code == 200


async def test_the_engine_tells_its_limits_in_dev_mode(target: Target) -> None:
    """/server_info?config_format=json has the limits where they are looked for."""
    tree = (await target.get("/server_info?config_format=json")).json()["vllm_config"]
    assert isinstance(tree["scheduler_config"]["max_num_seqs"], int)
    assert tree["scheduler_config"]["max_num_batched_tokens"] == 2048
    assert tree["model_config"]["max_model_len"] == MAX_MODEL_LEN
    assert isinstance(tree["compilation_config"]["cudagraph_capture_sizes"], list)
    assert tree["speculative_config"] is None
    text = (await target.get("/server_info")).json()["vllm_config"]
    assert isinstance(text, str)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/completions", {"prompt", "max_tokens", "logprobs", "structured_outputs", "top_k"}),
        ("/v1/chat/completions", {"messages", "max_completion_tokens", "chat_template_kwargs"}),
    ],
)
async def test_openapi_lists_the_request_fields(
    target: Target, path: str, fields: set[str]
) -> None:
    """By reference into the schemas, one for each endpoint."""
    document = (await target.get("/openapi.json")).json()
    body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
    name = body["schema"]["$ref"].rpartition("/")[2]
    listed = set(document["components"]["schemas"][name]["properties"])
    assert fields | {"ignore_eos", "cache_salt", "stream", "stream_options"} <= listed


@pytest.mark.parametrize("endpoint", Endpoint)
async def test_openapi_lists_inner_fields_and_words(target: Target, endpoint: Endpoint) -> None:
    """What a variant may put inside structured_outputs and response_format can be checked."""
    document = (await target.get("/openapi.json")).json()
    listed = (from_openapi(EngineFacts(), document).request_fields or {})[endpoint]
    assert {
        *(f"structured_outputs.{kind}" for kind in ("json", "regex", "choice", "grammar")),
        *(f"response_format.type={kind}" for kind in ("text", "json_object", "json_schema")),
        *("stream_interval", "n", "prompt_logprobs", "thinking_token_budget"),
    } <= listed
    assert ("reasoning_effort=max" in listed) is (endpoint is Endpoint.CHAT)


def _is_error(answer: httpx.Response, status: int, kind: str, param: str | None, says: str) -> None:
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    got = (answer.status_code, error["code"], error["type"], error["param"])
    assert got == (status, status, kind, param)
    assert says in error["message"]

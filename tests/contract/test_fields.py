"""Fields that a variant may set: which are taken, how they show, which are refused."""

from typing import Any

import pytest

from sidecar.core.grid.readymade import CONSTRAINTS, SAMPLING
from tests.contract.target import MODEL, Target, chat, completion

USAGE: dict[str, Any] = {"stream_options": {"include_usage": True}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOL = {
    "type": "function",
    "function": {"name": "look", "description": "Look.", "parameters": SCHEMA},
}


async def outcome(target: Target, path: str, body: dict[str, Any]) -> tuple[int, set[str], int]:
    """Output tokens by usage, the finish reasons, and how many choices had one."""
    *chunks, usage, _ = await target.stream(path, body | USAGE)
    ended = {
        choice["index"]: choice["finish_reason"]
        for chunk in chunks
        for choice in chunk.json["choices"]
        if choice["finish_reason"]
    }
    return usage.json["usage"]["completion_tokens"], set(ended.values()), len(ended)


@pytest.mark.parametrize("name", list(SAMPLING))
async def test_ways_to_sample_give_exactly_what_is_asked(target: Target, name: Any) -> None:
    """By both endpoints each choice ends by `length`, and usage counts all of them."""
    fields = SAMPLING[name]
    choices = fields.get("n", 1)
    for path, body in (
        ("/v1/completions", completion(20, 5, **fields)),
        ("/v1/chat/completions", chat("Hello", 5, **fields)),
    ):
        assert await outcome(target, path, body) == (5 * choices, {"length"}, choices)


@pytest.mark.parametrize("name", list(CONSTRAINTS))
async def test_constraints_outlast_what_is_asked(target: Target, name: Any) -> None:
    """The ready-made ones are taken by both endpoints and don't end before the tokens do."""
    fields = {"structured_outputs": dict(CONSTRAINTS[name])}
    for path, body in (
        ("/v1/completions", completion(20, 6, **fields)),
        ("/v1/chat/completions", chat("Hello", 6, **fields)),
    ):
        assert await outcome(target, path, body) == (6, {"length"}, 1)


@pytest.mark.parametrize("number", [0, 1, 5, 20])
async def test_logprobs_stand_beside_each_token(target: Target, number: int) -> None:
    """As many as asked, by the names of each endpoint; the sampled token's own may be one more."""
    text = (await target.post("/v1/completions", completion(9, 3, logprobs=number))).json()
    told = text["choices"][0]["logprobs"]
    assert len(told["token_logprobs"]) == 3
    assert all(number <= len(top) <= number + 1 for top in told["top_logprobs"])
    fields = {"logprobs": True, "top_logprobs": number}
    said = (await target.post("/v1/chat/completions", chat("Hello", 3, **fields))).json()
    content = said["choices"][0]["logprobs"]["content"]
    assert [len(entry["top_logprobs"]) for entry in content] == [number] * 3


async def test_prompt_logprobs_come_with_whole_answers(target: Target) -> None:
    """One entry for each token of the prompt, the first of them null."""
    text = (await target.post("/v1/completions", completion(9, 2, prompt_logprobs=2))).json()
    told = text["choices"][0]["prompt_logprobs"]
    assert (len(told), told[0]) == (9, None)
    assert all(2 <= len(entry) <= 3 for entry in told[1:])
    said = (await target.post("/v1/chat/completions", chat("Hello", 2, prompt_logprobs=1))).json()
    assert len(said["prompt_logprobs"]) == said["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    "fields",
    [
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"reasoning_effort": "low"},
        {"include_reasoning": True},
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": SCHEMA},
            }
        },
        {"tools": [TOOL], "tool_choice": "none"},
    ],
)
async def test_a_chat_s_own_fields_are_taken(target: Target, fields: dict[str, Any]) -> None:
    """Controls of thinking, a response format, tools that are not to be called."""
    tokens, ends, _ = await outcome(target, "/v1/chat/completions", chat("Hello", 4, **fields))
    assert (tokens, ends) == (4, {"length"})


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("completions", {"logprobs": -2}, "logprobs"),
    ("completions", {"prompt_logprobs": -2}, "prompt_logprobs"),
    ("completions", {"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
    ("completions", {"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured"),
    ("completions", {"structured_outputs": {"regexp": "a"}}, "structured"),
    ("completions", {"response_format": {"type": "json_schema"}}, "response_format"),
    ("chat/completions", {"top_logprobs": 3}, "top_logprobs"),
    ("chat/completions", {"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
    ("chat/completions", {"structured_outputs": {}}, "structured"),
    ("chat/completions", {"tool_choice": "auto"}, "tool_choice"),
    ("chat/completions", {"reasoning_effort": "enormous"}, "reasoning_effort"),
]


@pytest.mark.parametrize(("path", "fields", "says"), REFUSED)
async def test_fields_that_can_t_be_are_refused(
    target: Target, path: str, fields: dict[str, Any], says: str
) -> None:
    """400 before any token, and the field stands in the answer."""
    made = chat if path.startswith("chat") else completion
    answer = await target.post(f"/v1/{path}", made() | fields)
    assert answer.status_code == 400, answer.text
    assert says in answer.text


async def test_each_choice_shares_the_prompt(target: Target) -> None:
    """With n = 3 the prompt is booked three times and computed once, but for its last block."""
    before = await target.page()
    size = int(before.samples["vllm:cache_config_info"][0][0]["block_size"])
    body = completion(10 * size + 1, 2, n=3, cache_salt="shared")
    usage = (await target.post("/v1/completions", body)).json()["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (10 * size + 1, 6)
    after = await target.settled(before.sum("vllm:request_success_total") + 3)
    booked, hits = (
        after.sum(name) - before.sum(name)
        for name in ("vllm:prompt_tokens_total", "vllm:prefix_cache_hits_total")
    )
    assert (booked, hits) == (3 * (10 * size + 1), 2 * 10 * size)


@pytest.mark.parametrize("rank", ["0", "00"])
async def test_the_only_rank_can_be_asked_for(target: Target, rank: str) -> None:
    """The header of a rank that is there is honoured, and changes nothing."""
    headers = {"x-data-parallel-rank": rank}
    for path, body in (("/v1/completions", completion()), ("/v1/chat/completions", chat())):
        answer = await target.post(path, body, headers)
        assert (answer.status_code, answer.json()["model"]) == (200, MODEL)


@pytest.mark.parametrize("rank", ["1", "-1", "4096"])
async def test_a_rank_that_is_not_there_is_refused(target: Target, rank: str) -> None:
    """400 by both endpoints."""
    headers = {"x-data-parallel-rank": rank}
    for path, body in (("/v1/completions", completion()), ("/v1/chat/completions", chat())):
        answer = await target.post(path, body, headers)
        assert answer.status_code == 400
        assert f"data_parallel_rank {rank} is out of range [0, 1)" in answer.text


INNER = {
    "structured_outputs": {"json", "regex", "choice", "grammar", "json_object", "structural_tag"},
    "response_format": {"type", "json_schema"},
}


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_openapi_lists_inner_fields(target: Target, path: str) -> None:
    """What may stand inside structured_outputs and response_format, and which types there are."""
    document = (await target.get("/openapi.json")).json()
    schemas = document["components"]["schemas"]

    def properties(schema: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for branch in schema.get("anyOf", [schema]):
            name = branch.get("$ref", "").rpartition("/")[2]
            found |= schemas[name].get("properties", {}) if name else branch.get("properties", {})
        return found

    body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
    listed = properties(body["schema"])
    for name, inner in INNER.items():
        assert inner <= set(properties(listed[name])), name

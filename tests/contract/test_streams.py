"""Answers, streamed and whole: their shapes, their usage, their end."""

import re
from typing import Any

import anyio
import pytest

from sidecar.core.grid.readymade import CONSTRAINTS, Constraint
from tests.contract.target import BEARER, MAX_MODEL_LEN, MODEL, Target, chat, completion

USAGE: dict[str, Any] = {"stream_options": {"include_usage": True}}
CONTINUOUS: dict[str, Any] = {
    "stream_options": {"include_usage": True, "continuous_usage_stats": True}
}
CHUNK = {"id", "object", "created", "model", "choices"}
TEXT_CHOICE = {
    *("index", "text", "logprobs", "finish_reason", "stop_reason", "prompt_token_ids"),
    "token_ids",
}
ABORT_LIMIT_S = 10.0


async def test_a_completion_streams_text_usage_and_done(target: Target) -> None:
    """Text chunks, the last with `length`; a usage chunk without choices; [DONE]."""
    *chunks, usage, done = await target.stream("/v1/completions", completion(3, 5, **USAGE))
    assert done.data == "[DONE]"
    for chunk in chunks:
        assert set(chunk.json) == CHUNK
        assert chunk.json["object"] == "text_completion"
        assert set(chunk.json["choices"][0]) == TEXT_CHOICE
    ends = [chunk.json["choices"][0]["finish_reason"] for chunk in chunks]
    assert ends == [None] * (len(chunks) - 1) + ["length"]
    assert set(usage.json) == CHUNK | {"usage", "system_fingerprint"}
    assert usage.json["choices"] == []
    counted = usage.json["usage"]
    assert (counted["prompt_tokens"], counted["completion_tokens"]) == (3, 5)
    assert counted["total_tokens"] == 8
    assert usage.json["id"].startswith("cmpl-")


async def test_without_usage_the_last_chunk_has_the_fingerprint(target: Target) -> None:
    """No usage chunk: the chunk that ends the answer is the last one."""
    *_, last, done = await target.stream("/v1/completions", completion())
    assert done.data == "[DONE]"
    assert set(last.json) == CHUNK | {"system_fingerprint"}
    assert last.json["choices"][0]["finish_reason"] == "length"


async def test_continuous_usage_counts_up(target: Target) -> None:
    """Every chunk says how many tokens there are so far."""
    *chunks, _ = await target.stream("/v1/completions", completion(3, 4, **CONTINUOUS))
    counts = [chunk.json["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert (counts[0] >= 1, counts[-1]) == (True, 4)


async def test_token_ids_come_when_asked(target: Target) -> None:
    """return_token_ids: the prompt's with the first chunk, the output's with each."""
    body = completion(3, 4, return_token_ids=True)
    *chunks, _ = await target.stream("/v1/completions", body)
    choices = [chunk.json["choices"][0] for chunk in chunks]
    assert choices[0]["prompt_token_ids"] == body["prompt"]
    assert all(choice["prompt_token_ids"] is None for choice in choices[1:])
    assert sum(len(choice["token_ids"]) for choice in choices) == 4


async def test_a_chat_streams_its_role_with_the_first_token(target: Target) -> None:
    """The role chunk has an empty content and comes no earlier than the first token."""
    for _ in range(10):  # a busy machine may lie between the two, but not always
        role, *chunks, usage, done = await target.stream("/v1/chat/completions", chat(**USAGE))
        if chunks[0].at_s - role.at_s < 0.05:
            break
    assert role.json["object"] == "chat.completion.chunk"
    assert role.json["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert set(role.json) == CHUNK | {"prompt_token_ids", "prompt_text"}
    assert chunks[0].at_s - role.at_s < 0.05
    for chunk in chunks:
        assert set(chunk.json) == CHUNK
        assert set(chunk.json["choices"][0]["delta"]) <= {"content"}
    last = chunks[-1].json["choices"][0]
    assert last["finish_reason"] == "length"
    assert "stop_reason" in last
    assert usage.json["usage"]["completion_tokens"] == 3
    assert usage.json["id"].startswith("chatcmpl-")
    assert done.data == "[DONE]"


async def test_whole_answers_have_their_fields(target: Target) -> None:
    """Without `stream`: one object, with usage and its details."""
    text = (await target.post("/v1/completions", completion(3, 4))).json()
    assert set(text) == CHUNK | {
        *("service_tier", "system_fingerprint", "usage", "kv_transfer_params"),
        *("ec_transfer_params", "metrics"),
    }
    assert set(text["choices"][0]) == TEXT_CHOICE | {"prompt_logprobs", "routed_experts"}
    said = (await target.post("/v1/chat/completions", chat())).json()
    message = said["choices"][0]["message"]
    assert (said["object"], message["role"]) == ("chat.completion", "assistant")
    assert message["content"]
    for answer in (text, said):
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] is not None
        assert answer["usage"]["completion_tokens_details"] is None


@pytest.mark.parametrize("tokens", [1, 2, 15, 16, 17, 513, MAX_MODEL_LEN - 1])
async def test_usage_is_exact(target: Target, tokens: int) -> None:
    """Prompt and output tokens are those that were asked for."""
    usage = (await target.post("/v1/completions", completion(tokens, 1))).json()["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (tokens, 1)


async def test_output_is_cut_to_fit(target: Target) -> None:
    """Asked for more than max_model_len allows, the answer is silently shorter."""
    body = completion(MAX_MODEL_LEN - 2, 10)
    answer = (await target.post("/v1/completions", body)).json()
    assert answer["usage"]["completion_tokens"] == 2
    assert answer["choices"][0]["finish_reason"] == "length"


async def test_several_prompts_and_copies_are_choices(target: Target) -> None:
    """Two prompts × n = 2 give four choices; usage counts each prompt once."""
    body = completion(n=2, max_tokens=1) | {"prompt": [[300, 301], [302]]}
    answer = (await target.post("/v1/completions", body)).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert answer["usage"]["prompt_tokens"] == 3
    assert answer["usage"]["completion_tokens"] == 4


async def test_the_choices_of_a_stream_each_end(target: Target) -> None:
    """n = 3: every choice has its tokens and its end, and usage counts the tokens of all."""
    events = await target.stream("/v1/completions", completion(20, 4, n=3, **USAGE))
    chunks = [event.json for event in events[:-1]]
    ends = [c["index"] for chunk in chunks for c in chunk["choices"] if c["finish_reason"]]
    assert sorted(ends) == [0, 1, 2]
    assert chunks[-1]["usage"]["prompt_tokens"] == 20
    assert chunks[-1]["usage"]["completion_tokens"] == 12


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize(
    ("name", "form"),
    [("regex", r"7|[0-9]+"), ("choice", r"0 1 .*"), ("json", r"\s*{.*"), ("grammar", r"[a-z \n]+")],
)
async def test_a_ready_made_constraint_is_obeyed(
    target: Target, path: str, name: Constraint, form: str
) -> None:
    """The answer begins as it must, and has all its tokens."""
    fields = {"structured_outputs": CONSTRAINTS[name], "temperature": 1.0}
    is_chat = "chat" in path
    body = chat(output=24, **fields) if is_chat else completion(9, 24, **fields)
    answer = (await target.post(path, body)).json()
    (choice,) = answer["choices"]
    text = choice["message"]["content"] if is_chat else choice["text"]
    assert re.fullmatch(form, text, re.DOTALL), text
    assert (choice["finish_reason"], answer["usage"]["completion_tokens"]) == ("length", 24)


async def test_an_ended_grammar_ends_no_answer(target: Target) -> None:
    """With ignore_eos what comes after it is free, and the length stays exact."""
    body = completion(9, 24, structured_outputs={"choice": ["yes"]}, **USAGE)
    events = await target.stream("/v1/completions", body)
    chunks = [event.json for event in events[:-1]]
    text = "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])
    assert text.startswith("yes")
    assert chunks[-1]["usage"]["completion_tokens"] == 24
    assert chunks[-2]["choices"][0]["finish_reason"] == "length"


async def test_both_forms_of_tokenize_agree_with_usage(target: Target) -> None:
    """Counts are those of the tokens; a chat's count is its prompt_tokens."""
    text = (await target.post("/tokenize", {"model": MODEL, "prompt": "Hello there"})).json()
    assert set(text) == {"count", "max_model_len", "tokens", "token_strs"}
    assert text["count"] == len(text["tokens"])
    back = (await target.post("/detokenize", {"model": MODEL, "tokens": text["tokens"]})).json()
    assert back == {"prompt": "Hello there"}
    body = chat("Hello there", 1)
    used = (await target.post("/v1/completions", completion() | {"prompt": "Hello there"})).json()
    assert used["usage"]["prompt_tokens"] == text["count"]
    counts = {}
    for thinks in (True, False):
        controls = {"chat_template_kwargs": {"enable_thinking": thinks}}
        asked = {"model": MODEL, "messages": body["messages"], **controls}
        counts[thinks] = (await target.post("/tokenize", asked)).json()["count"]
        said = (await target.post("/v1/chat/completions", {**body, **controls})).json()
        assert said["usage"]["prompt_tokens"] == counts[thinks]
    assert counts[True] > text["count"]
    assert counts[False] > counts[True]


async def test_the_first_request_of_a_life_is_cold(target: Target) -> None:
    """Those after it take less than half as long to their first token."""
    assert target.warm_request_s < target.first_request_s / 2


async def test_a_client_that_leaves_aborts_its_request(target: Target) -> None:
    """Closing a stream ends the engine's work; vLLM counts it in no finished_reason."""
    before = await target.page()
    asked = MAX_MODEL_LEN - 100
    body = {**completion(3, asked), "stream": True}
    async with target.client.stream("POST", "/v1/completions", json=body, headers=BEARER) as answer:
        parts = answer.aiter_bytes()
        await anext(parts)
    name, earlier, made = "vllm:generation_tokens_total", -1.0, 0.0
    with anyio.fail_after(ABORT_LIMIT_S):
        while earlier != made:
            await anyio.sleep(0.2)
            page = await target.page()
            earlier, made = made, page.sum(name) - before.sum(name)
    assert 0 < made < asked
    assert page.sum("vllm:num_requests_running") == 0
    success = [p.sum("vllm:request_success_total") for p in (before, page)]
    assert success[0] == success[1]

"""Each axis by itself, asked over HTTP: it is paid once, and a plain request doesn't pay for it."""

from typing import Any

import httpx
import pytest

from sidecar.simulator.axes import AXES
from sidecar.simulator.bodies import features
from sidecar.simulator.model import EngineConfig
from sidecar.simulator.profile import Profile
from sidecar.simulator.server import Simulator, simulator

JSON_SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({}, {"sampler:random"}),
        ({"temperature": 0, "top_k": 5, "top_p": 0.5, "seed": 1}, {"sampler:greedy"}),
        ({"top_k": 5}, {"sampler:random", "sampler:top_k"}),
        ({"top_k": -1, "top_p": 0.5}, {"sampler:random", "sampler:top_p"}),
        ({"top_k": 5, "top_p": 0.5}, {"sampler:random", "sampler:top_k_top_p"}),
        ({"top_p": 1, "min_p": 0.1}, {"sampler:random", "sampler:min_p"}),
        ({"repetition_penalty": 1, "presence_penalty": 0}, {"sampler:random"}),
        ({"temperature": 0, "frequency_penalty": 1}, {"sampler:greedy", "sampler:penalties"}),
        ({"seed": 0, "n": 2}, {"sampler:random", "sampler:seeded", "sampler:n"}),
        ({"logprobs": 0}, {"sampler:random", "logprobs:0", "logprobs_pow2:1"}),
        ({"logprobs": 5}, {"sampler:random", "logprobs:5", "logprobs_pow2:8"}),
        (
            {"logprobs": True, "top_logprobs": 7},
            {"sampler:random", "logprobs:7", "logprobs_pow2:8"},
        ),
        ({"prompt_logprobs": 3}, {"sampler:random", "prompt_logprobs:3"}),
        ({"response_format": {"type": "text"}}, {"sampler:random"}),
        ({"chat_template_kwargs": {"enable_thinking": False}}, {"sampler:random"}),
        ({"reasoning_effort": "low", "thinking_token_budget": 9}, {"sampler:random"}),
    ],
)
def test_a_body_carries_what_its_fields_reach(fields: dict[str, Any], found: set[str]) -> None:
    """Values that change nothing are no feature, and neither are controls of thinking."""
    assert features(fields) == found


def test_each_constraint_is_its_own_and_of_a_kind() -> None:
    """Two regexes share the kind, not the text; the same one again is the same."""
    one, other = (features({"structured_outputs": {"regex": r}}) for r in ("a+", "b+"))
    assert one & other == {"sampler:random", "grammar:regex"}
    assert features({"structured_outputs": {"regex": "a+"}}) == one


ASKED: dict[str, list[tuple[dict[str, Any], set[str]]]] = {
    # fields of one request after another, and what it pays
    "sampling": [
        ({"top_k": 5}, {"_topk_topp_kernel"}),
        ({"top_k": 5}, set()),
        ({"top_k": 5, "top_p": 0.5}, {"_topk_topp_kernel"}),
    ],
    "logprobs": [
        ({}, set()),
        ({"logprobs": 5}, {"_topk_log_softmax_kernel", "logprobs_rank_count"}),
        ({"logprobs": 6}, {"logprobs_rank_count"}),
        ({"logprobs": 5}, set()),
        ({"logprobs": 8}, {"_topk_log_softmax_kernel", "logprobs_rank_count"}),
    ],
    "prompt_logprobs": [({}, set()), ({"prompt_logprobs": 1}, {"prompt_logprobs_gather"})],
    "structured": [
        ({}, set()),
        (
            {"structured_outputs": {"json": JSON_SCHEMA}},
            {"apply_token_bitmask_inplace_kernel", "grammar_compile"},
        ),
        ({"structured_outputs": {"json": JSON_SCHEMA}}, set()),
        ({"structured_outputs": {"json": {"type": "object"}}}, {"grammar_compile"}),
    ],
    "context": [
        ({"cache_salt": "a"}, set()),
        ({"cache_salt": "b"}, set()),
        ({"cache_salt": "a"}, {"_gather_initial_states_kernel"}),
        ({"cache_salt": "a"}, set()),
    ],
    "chunk": [
        ({"prompt": [300] * 256}, set()),
        ({"prompt": [301] * 257}, {"_chunk_scan_fwd_kernel"}),
        ({"prompt": [302] * 272}, {"_chunk_scan_fwd_kernel"}),
        ({"prompt": [303] * 288}, set()),
    ],
    "off_grid": [
        ({"prompt": [300] * 64, "max_tokens": 1}, {"fused_moe_kernel_other"}),
        ({"prompt": [301] * 96, "max_tokens": 1}, set()),
        ({"prompt": [302] * 65, "max_tokens": 1}, {"fused_moe_kernel_other"}),
    ],
    "cudagraph": [({}, {"first_replay"}), ({}, set())],
}
PROFILE = Profile(
    engine=EngineConfig(max_num_batched_tokens=256, prefill_s_per_token=1e-6), time_scale=0.01
)


@pytest.mark.parametrize("axis", list(ASKED))
async def test_an_axis_is_paid_once_by_who_asks_for_it(axis: str) -> None:
    """By the ledger, request after request."""
    profile = Profile(
        engine=PROFILE.engine,
        time_scale=PROFILE.time_scale,
        rules=tuple(r for r in AXES[axis]),
    )
    async with simulator(profile) as sim, httpx.AsyncClient(base_url=sim.url, timeout=60) as client:
        if axis == "sampling":
            await ask(sim, client, {})  # random sampling has a kernel too
        for number, (fields, paid) in enumerate(ASKED[axis]):
            assert await ask(sim, client, fields) == paid, (number, fields)


async def ask(sim: Simulator, client: httpx.AsyncClient, fields: dict[str, Any]) -> set[str]:
    """The names of the rules that this request paid for."""
    assert sim.life is not None
    before = len(sim.life.engine.ledger)
    body = {"prompt": [300 + i for i in range(100)], "max_tokens": 2, "ignore_eos": True}
    answer = await client.post("/v1/completions", json={**body, **fields})
    assert answer.status_code == 200, answer.text
    return {paid.rule for paid in sim.life.engine.ledger[before:]}


async def test_drafts_are_paid_by_what_becomes_of_them() -> None:
    """Random text has its drafts rejected, a repeated phrase accepted; each has its own kernels."""
    profile = Profile(
        engine=EngineConfig(draft_tokens=3), time_scale=0.01, rules=AXES["drafts"], seed=3
    )
    async with simulator(profile) as sim, httpx.AsyncClient(base_url=sim.url, timeout=60) as client:
        plain = await ask(sim, client, {"max_tokens": 1})
        rejected = await ask(sim, client, {"max_tokens": 6})
        accepted = await ask(sim, client, {"prompt": [300, 301, 302, 303] * 25, "max_tokens": 12})
    assert (plain, rejected) == (set(), {"rejection_sample_kernel"})
    assert "expand_kernel" in accepted


async def test_each_rank_is_cold_by_itself() -> None:
    """The same request on two ranks pays twice; /metrics counts each by its engine label."""
    profile = Profile(engine=EngineConfig(ranks=2), time_scale=0.01, rules=AXES["rank"])
    async with simulator(profile) as sim, httpx.AsyncClient(base_url=sim.url, timeout=60) as client:
        paid = []
        for rank in ("0", "1", "0", "1"):
            client.headers["x-data-parallel-rank"] = rank
            paid.append(await ask(sim, client, {}))
        page = (await client.get("/metrics")).text
    assert paid == [{"first_request"}, {"first_request"}, set(), set()]
    for rank in (0, 1):
        assert f'vllm:prompt_tokens_total{{engine="{rank}",model_name="sim"}} 200.0' in page


async def test_a_decoding_batch_beside_a_prefill_is_mixed() -> None:
    """The kernel of mixed steps waits for a prompt that arrives while another request decodes."""
    profile = Profile(engine=EngineConfig(), time_scale=0.2, rules=AXES["mixed"])
    async with simulator(profile) as sim, httpx.AsyncClient(base_url=sim.url, timeout=60) as client:
        assert await ask(sim, client, {"max_tokens": 20}) == set()
        body = {"prompt": [300] * 50, "max_tokens": 8000, "ignore_eos": True, "stream": True}
        async with client.stream("POST", "/v1/completions", json=body) as answer:
            lines = answer.aiter_lines()  # dropped, it would close the connection
            await anext(lines)
            assert await ask(sim, client, {}) == {"mixed_attention_module"}

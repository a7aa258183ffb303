"""What an engine's own answers teach about it."""

import json
from pathlib import Path

import pytest

from sidecar.core.errors import EngineRejected
from sidecar.core.facts import (
    EngineFacts,
    from_models,
    from_openapi,
    from_scrape,
    from_server_info,
)
from sidecar.core.grid.cells import Endpoint
from sidecar.core.wire.metrics import Scrape, parse

PAGES = Path(__file__).parent.parent / "data" / "metrics"
CARDS = {
    "data": [
        {"id": "base", "parent": None, "max_model_len": 8192},
        {"id": "alias", "parent": None, "max_model_len": 8192},
        {"id": "lora", "parent": "base", "max_model_len": None},
    ]
}


def of_page(name: str) -> EngineFacts:
    return from_scrape(EngineFacts(), parse((PAGES / f"{name}.txt").read_text()))


def test_models_give_name_and_length() -> None:
    """The first base model is asked unless another is configured."""
    facts = from_models(EngineFacts(), CARDS, None)
    assert (facts.models, facts.model, facts.max_model_len) == (("base", "alias"), "base", 8192)
    assert from_models(EngineFacts(), CARDS, "alias").model == "alias"
    assert facts.sources["max_model_len"] == "/v1/models"


def test_an_adapter_has_the_length_of_its_base() -> None:
    """LoRA cards have no max_model_len of their own."""
    facts = from_models(EngineFacts(), CARDS, "lora")
    assert (facts.model, facts.max_model_len) == ("lora", 8192)


def test_an_unknown_model_is_named_with_those_served() -> None:
    """The operator sees what to write instead."""
    with pytest.raises(EngineRejected, match="no model 'nope', but 'base', 'alias', 'lora'"):
        from_models(EngineFacts(), CARDS, "nope")


@pytest.mark.parametrize("body", [None, [], {}, {"data": []}, {"data": "x"}, {"data": [3, {}]}])
def test_what_is_no_list_of_models_is_refused(body: object) -> None:
    """Whatever stands there, it is no vLLM."""
    with pytest.raises(EngineRejected):
        from_models(EngineFacts(), body, None)


def test_metrics_tell_ranks_capacity_and_speculation() -> None:
    """From golden pages, one rank, two ranks, with and without speculation."""
    plain, dp2, ngram = map(of_page, ("after.vllm-0.32.0", "dp2.vllm-0.32.0", "ngram.vllm-0.32.0"))
    assert (plain.ranks, plain.kv_cache_tokens) == (1, 65_536)
    assert (plain.speculation, plain.draft_tokens) == (False, 0)
    assert (dp2.ranks, dp2.kv_cache_tokens) == (2, 1_048_576)
    assert (ngram.speculation, ngram.draft_tokens) == (True, 3)


def test_capacity_falls_back_to_blocks() -> None:
    """Before kv_cache_size_tokens there were blocks and their size."""
    labels = {"num_gpu_blocks": "512", "block_size": "128"}
    assert from_scrape(EngineFacts(), Scrape(cache_config={"0": labels})).kv_cache_tokens == 65_536
    none = Scrape(cache_config={"0": {"num_gpu_blocks": "None", "block_size": "128"}})
    assert from_scrape(EngineFacts(), none).kv_cache_tokens is None


def test_a_page_without_cache_config_tells_nothing_of_speculation() -> None:
    """Another front end registers its families with their first use."""
    facts = from_scrape(EngineFacts(), Scrape())
    assert (facts.speculation, facts.draft_tokens, facts.ranks) == (None, None, None)


SERVER_INFO = {
    "vllm_config": {
        "scheduler_config": {"max_num_seqs": 8, "max_num_batched_tokens": 4096},
        "model_config": {"max_model_len": 250_000, "hf_text_config": {"vocab_size": 129_280}},
        "compilation_config": {"cudagraph_capture_sizes": [1, 2, 4]},
        "speculative_config": {"num_speculative_tokens": 5},
    }
}


def test_dev_mode_tells_the_limits() -> None:
    """/server_info is the only way to read them over HTTP."""
    facts = from_server_info(EngineFacts(), SERVER_INFO)
    assert (facts.max_num_seqs, facts.max_num_batched_tokens) == (8, 4096)
    assert (facts.max_model_len, facts.vocab_size) == (250_000, 129_280)
    assert facts.capture_sizes == (1, 2, 4)
    assert (facts.speculation, facts.draft_tokens) == (True, 5)


@pytest.mark.parametrize(
    "body", [{}, None, {"vllm_config": "text"}, {"vllm_config": {"scheduler_config": []}}]
)
def test_another_tree_tells_nothing(body: object) -> None:
    """What isn't where it is looked for stays unknown."""
    facts = from_server_info(EngineFacts(), body)
    assert facts == EngineFacts()


def test_fields_come_from_the_engines_own_schema() -> None:
    """By reference or in place, for each endpoint that is there."""
    body = {
        "paths": {
            "/v1/completions": {"post": _takes({"$ref": "#/components/schemas/C"})},
            "/v1/chat/completions": {"post": _takes({"properties": {"messages": {}}})},
        },
        "components": {"schemas": {"C": {"properties": {"prompt": {}, "max_tokens": {}}}}},
    }
    fields = from_openapi(EngineFacts(), json.loads(json.dumps(body))).request_fields
    assert fields == {
        Endpoint.COMPLETIONS: {"prompt", "max_tokens"},
        Endpoint.CHAT: {"messages"},
    }
    assert from_openapi(EngineFacts(), {}).request_fields is None


def _takes(schema: object) -> object:
    return {"requestBody": {"content": {"application/json": {"schema": schema}}}}

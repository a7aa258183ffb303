"""Metric families, their types and labels, and what they count."""

from tests.contract.target import MAX_MODEL_LEN, MODEL, Target, completion, prompt

PLAIN = {"engine", "model_name"}
FAMILIES: dict[str, tuple[str, set[str]]] = {
    "process_start_time_seconds": ("gauge", set()),
    "vllm:num_requests_running": ("gauge", PLAIN),
    "vllm:num_requests_waiting": ("gauge", PLAIN),
    "vllm:num_requests_waiting_by_reason": ("gauge", PLAIN | {"reason"}),
    "vllm:engine_sleep_state": ("gauge", PLAIN | {"sleep_state"}),
    "vllm:kv_cache_usage_perc": ("gauge", PLAIN),
    "vllm:prefix_cache_queries_total": ("counter", PLAIN),
    "vllm:prefix_cache_hits_total": ("counter", PLAIN),
    "vllm:external_prefix_cache_queries_total": ("counter", PLAIN),
    "vllm:external_prefix_cache_hits_total": ("counter", PLAIN),
    "vllm:num_preemptions_total": ("counter", PLAIN),
    "vllm:prompt_tokens_total": ("counter", PLAIN),
    "vllm:prompt_tokens_created": ("gauge", PLAIN),
    "vllm:prompt_tokens_by_source_total": ("counter", PLAIN | {"source"}),
    "vllm:prompt_tokens_cached_total": ("counter", PLAIN),
    "vllm:generation_tokens_total": ("counter", PLAIN),
    "vllm:request_success_total": ("counter", PLAIN | {"finished_reason"}),
    "vllm:admission_rejections_total": ("counter", {"model_name", "reason"}),
}
HISTOGRAMS = (
    *("request_prompt_tokens", "request_generation_tokens", "iteration_tokens_total"),
    *("request_max_num_generation_tokens", "request_params_n", "request_params_max_tokens"),
    *("time_to_first_token_seconds", "inter_token_latency_seconds"),
    *("request_time_per_output_token_seconds", "e2e_request_latency_seconds"),
    *("request_queue_time_seconds", "request_inference_time_seconds"),
    *("request_prefill_time_seconds", "request_decode_time_seconds"),
    *("request_num_preemptions", "request_prefill_kv_computed_tokens"),
)


async def test_families_have_their_types_and_labels(target: Target) -> None:
    """Each family that the sidecar may read, by type and label names; TTFT and others by bucket."""
    page = await target.page()
    found = {name: (page.types.get(name), set(page.samples[name][0][0])) for name in FAMILIES}
    assert found == FAMILIES
    for stem in HISTOGRAMS:
        name = f"vllm:{stem}"
        assert page.types[name] == "histogram"
        assert set(page.samples[f"{name}_bucket"][0][0]) == PLAIN | {"le"}
        assert set(page.samples[f"{name}_count"][0][0]) == PLAIN


async def test_buckets_are_the_same(target: Target) -> None:
    """Limits of TTFT and of iteration tokens, as labels."""
    page = await target.page()
    limits = {
        name: [labels["le"] for labels, _ in page.samples[f"vllm:{name}_bucket"]]
        for name in ("time_to_first_token_seconds", "iteration_tokens_total")
    }
    assert limits["time_to_first_token_seconds"][:3] == ["0.001", "0.005", "0.01"]
    assert limits["time_to_first_token_seconds"][-2:] == ["2560.0", "+Inf"]
    assert limits["iteration_tokens_total"][:3] == ["1.0", "8.0", "16.0"]
    assert "2048.0" in limits["iteration_tokens_total"]


async def test_the_kv_cache_is_described_by_labels(target: Target) -> None:
    """cache_config_info has sizes as text and no model name."""
    page = await target.page()
    ((labels, value),) = page.samples["vllm:cache_config_info"]
    assert value == 1.0
    assert "model_name" not in labels
    assert int(labels["kv_cache_size_tokens"]) >= MAX_MODEL_LEN
    blocks, size = int(labels["num_gpu_blocks"]), int(labels["block_size"])
    assert blocks * size == int(labels["kv_cache_size_tokens"])
    assert (labels["engine"], labels["enable_prefix_caching"]) == ("0", "True")


async def test_a_request_is_counted_exactly(target: Target) -> None:
    """Prompt, output and source of the tokens of one request, and its end."""
    before = await target.page()
    done = before.sum("vllm:request_success_total")
    await target.stream("/v1/completions", completion(100, 7, cache_salt="counted"))
    after = await target.settled(done + 1)
    deltas = {
        name: after.sum(name) - before.sum(name)
        for name in (
            "vllm:prompt_tokens_total",
            "vllm:generation_tokens_total",
            "vllm:request_success_total",
            "vllm:num_preemptions_total",
            "vllm:time_to_first_token_seconds_count",
            "vllm:inter_token_latency_seconds_count",
        )
    }
    assert list(deltas.values()) == [100, 7, 1, 0, 1, 6]
    computed = [
        page.sum("vllm:prompt_tokens_by_source_total", source="local_compute")
        for page in (before, after)
    ]
    assert computed[1] - computed[0] == 100


async def test_each_choice_is_counted_as_a_request(target: Target) -> None:
    """n = 4: four ends and four prompts, of which the first at least was computed whole."""
    before = await target.page()
    done = before.sum("vllm:request_success_total")
    body = completion(700, 5, n=4, temperature=1.0, cache_salt="choices")
    await target.stream("/v1/completions", body)
    after = await target.settled(done + 4)
    names = (
        "vllm:request_success_total",
        "vllm:prompt_tokens_total",
        "vllm:generation_tokens_total",
    )
    assert [after.sum(name) - before.sum(name) for name in names] == [4, 2800, 20]
    computed = [
        page.sum("vllm:prompt_tokens_by_source_total", source="local_compute")
        for page in (before, after)
    ]
    assert 700 <= computed[1] - computed[0] <= 2800


async def test_a_chunked_prompt_is_one_iteration_entry(target: Target) -> None:
    """5,000 tokens in chunks of 2,048: booked once, whole, at the first token."""
    before = await target.page()
    done = before.sum("vllm:request_success_total")
    await target.stream("/v1/completions", completion(5000, 1, cache_salt="chunked"))
    after = await target.settled(done + 1)
    name = "vllm:iteration_tokens_total"
    assert after.sum(f"{name}_sum") - before.sum(f"{name}_sum") == 5001
    above = [page.sum(f"{name}_bucket", le="4096.0") for page in (before, after)]
    entries = [page.sum(f"{name}_count") for page in (before, after)]
    assert entries[1] - entries[0] - (above[1] - above[0]) == 1


async def test_only_a_fresh_salt_defeats_the_prefix_cache(target: Target) -> None:
    """The same prompt again is a hit in whole blocks; with another salt it is computed."""
    page = await target.page()
    size = int(page.samples["vllm:cache_config_info"][0][0]["block_size"])
    body = completion(600, 1) | {"prompt": prompt(600, start=11)}
    cached = []
    for salt in ("a", "a", "b", None, None):
        fields = {"cache_salt": salt} if salt else {}
        answer = (await target.post("/v1/completions", {**body, **fields})).json()
        cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
    whole = 599 // size * size
    assert cached == [0, whole, 0, 0, whole]


async def test_sleep_shows_in_the_metrics(target: Target) -> None:
    """/sleep?level=1 and /wake_up move the sleep state, and /is_sleeping."""

    async def state() -> tuple[bool, float, float]:
        page = await target.page()
        asleep = (await target.get("/is_sleeping")).json()["is_sleeping"]
        name = "vllm:engine_sleep_state"
        awake = page.sum(name, sleep_state="awake")
        return asleep, awake, page.sum(name, sleep_state="weights_offloaded")

    assert await state() == (False, 1.0, 0.0)
    assert (await target.post("/sleep?level=1", None)).json() == {"status": "sleeping", "level": 1}
    try:
        assert await state() == (True, 0.0, 1.0)
    finally:
        woken = await target.post("/wake_up", None)
    assert woken.json() == {"status": "awake", "tags": None}
    assert await state() == (False, 1.0, 0.0)


async def test_the_model_name_is_the_served_one(target: Target) -> None:
    """Labels carry the served name and the engine's index as text."""
    page = await target.page()
    (labels, _) = page.samples["vllm:prompt_tokens_total"][0]
    assert labels == {"engine": "0", "model_name": MODEL}

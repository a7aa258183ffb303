"""/metrics pages of real servers, and pages that lack something."""

import time
from dataclasses import astuple
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from sidecar.core.wire.metrics import Scrape, delta, parse

PAGES = Path(__file__).parent.parent / "data" / "metrics"


def page(name: str) -> str:
    return (PAGES / f"{name}.txt").read_text()


def test_counters_of_a_wave_are_the_difference_of_two_pages() -> None:
    """Two golden pages of vLLM 0.32 around 48 requests."""
    counted = delta(parse(page("before.vllm-0.32.0")), parse(page("after.vllm-0.32.0")))
    assert counted is not None
    assert (counted.requests, counted.prompt_tokens, counted.generation_tokens) == (48, 9484, 354)
    assert (counted.computed_tokens, counted.cached_tokens, counted.preemptions) == (9484, 0, 0)
    assert counted.drafts is None


def test_our_reading_agrees_with_prometheus_own_parser() -> None:
    """The fast scan finds the same sums as the reference parser, on every golden page."""
    for path in sorted(PAGES.glob("*.txt")):
        text = path.read_text()
        sums: dict[str, float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
        total = parse(text).total
        assert total.requests == sums["vllm:request_success_total"], path.name
        assert total.prompt_tokens == sums["vllm:prompt_tokens_total"]
        assert total.generation_tokens == sums["vllm:generation_tokens_total"]
        assert total.cached_tokens == (
            sums["vllm:prefix_cache_hits_total"] + sums["vllm:external_prefix_cache_hits_total"]
        )
        assert total.drafts == sums.get("vllm:spec_decode_num_drafts_total")


def test_ranks_are_told_apart_and_summed() -> None:
    """Data parallel 2: two engine labels behind one URL."""
    scrape = parse(page("dp2.vllm-0.32.0"))
    assert scrape.ranks == 2
    assert [c.requests for c in scrape.by_engine.values()] == [15, 15]
    assert scrape.total.requests == 30
    assert scrape.process_start_s is None  # several API processes: no process_* families
    assert set(scrape.cache_config) == {"0", "1"}


def test_speculation_shows_in_its_families() -> None:
    """n-gram speculation with k = 3."""
    scrape = parse(page("ngram.vllm-0.32.0"))
    assert scrape.has_speculation
    assert scrape.draft_positions == 3
    assert (scrape.total.drafts, scrape.total.accepted_tokens) == (30, 30)
    assert not parse(page("gpu.vllm-0.26.0")).has_speculation


def test_what_else_a_page_tells() -> None:
    """Start of the process, cache configuration, running and waiting, sleep."""
    scrape = parse(page("after.vllm-0.32.0"))
    assert scrape.process_start_s == 1795968835.63
    assert scrape.cache_config["0"]["kv_cache_size_tokens"] == "65536"
    assert scrape.asleep is False
    assert parse('vllm:engine_sleep_state{sleep_state="awake"} 0.0\n').asleep


def test_only_what_was_computed_counts_as_computed() -> None:
    """prompt_tokens_by_source has cache hits and transfers beside it."""
    family = "vllm:prompt_tokens_by_source_total"
    sources = {"local_compute": 5, "local_cache_hit": 70, "external_kv_transfer": 300}
    text = "".join(f'{family}{{engine="0",source="{k}"}} {v}\n' for k, v in sources.items())
    assert parse(text).total.computed_tokens == 5


def test_a_missing_family_is_none_and_never_zero() -> None:
    """`--disable-log-stats`, another server, an empty page."""
    assert parse("") == Scrape()
    assert set(astuple(parse("# HELP x y\nx_total 3\n").total)) == {None}
    before, after = (
        parse("vllm:prompt_tokens_total 3\n"),
        parse("vllm:prompt_tokens_total 5\n# EOF\n"),
    )
    counted = delta(before, after)
    assert counted is not None
    assert (counted.prompt_tokens, counted.requests) == (2, None)
    assert delta(None, after) is None


def test_labels_may_hold_anything() -> None:
    """Braces, quotes, spaces and line breaks inside a label's value."""
    text = (
        'vllm:cache_config_info{engine="0",a="}{",b="q\\"\\\\\\n",skip="[\'x\', 1]"} 1.0\n'
        'vllm:request_success_total{engine="0",model_name="a } 7"} 2 1700000000\n'
    )
    scrape = parse(text)
    assert scrape.cache_config["0"] == {"engine": "0", "a": "}{", "b": 'q"\\\n', "skip": "['x', 1]"}
    assert scrape.total.requests == 2


def test_lines_that_can_not_be_read_are_passed_over() -> None:
    """NaN, a torn line and text give nothing and hide nothing."""
    text = (
        "vllm:prompt_tokens_total NaN\nvllm:generation_tokens_total{\n"
        "vllm:num_preemptions_total x\n"
        'vllm:request_success_total{engine="0"} 4\n'
    )
    total = parse(text).total
    assert (total.prompt_tokens, total.generation_tokens, total.preemptions) == (None, None, None)
    assert total.requests == 4


def test_a_hostile_page_takes_linear_time() -> None:
    """A megabyte of unclosed labels is read in well under a second."""
    text = 'vllm:prompt_tokens_total{a="' + 'x",b="' * 170_000
    started = time.thread_time()
    assert parse(text).total.prompt_tokens is None
    assert time.thread_time() - started < 1.0


def test_a_page_of_vllm_is_read_in_milliseconds() -> None:
    """A scrape happens around every wave; 0.7 ms measured, 20 ms allowed."""
    text = page("dp2.vllm-0.32.0")
    best = 1.0
    for _ in range(5):
        started = time.thread_time()
        parse(text)
        best = min(best, time.thread_time() - started)
    assert best < 0.02

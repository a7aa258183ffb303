"""A shapes file out of what a server with traffic has counted."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from sidecar.core.errors import EvidenceMissing
from sidecar.core.facts import EngineFacts
from sidecar.core.grid.cells import (
    MAX_CONCURRENCY,
    MAX_PROMPT_TOKENS,
    Cell,
    Endpoint,
    Gait,
    Variant,
)
from sidecar.core.grid.plan import Plan, expand
from sidecar.core.grid.shapes import parse
from sidecar.core.learned.beside import beside
from sidecar.core.learned.traffic import learn_traffic, own_requests
from sidecar.core.learned.traffictext import Asked, to_yaml
from sidecar.core.tally import WaveOutcome
from sidecar.core.watch.boot import BootMark
from sidecar.core.wire.histograms import Bucket, Histogram, TrafficPage, parse_traffic
from tests.core.test_report import REPORT

PAGES = Path(__file__).resolve().parents[1] / "data" / "metrics"
FACTS = EngineFacts(model="tiny", max_model_len=8192, max_num_seqs=256)
CHAT = Variant("chat", Endpoint.CHAT)


def page(prompts, outputs=None, **more):
    counted = Histogram(prompts)
    return TrafficPage(counted, Histogram(outputs or {50.0: counted.total}), **more)


def text_of(traffic, *, plan=None, watched_s=60.0):
    asked = Asked("http://a:8000", "tiny", watched_s, "default")
    return to_yaml(asked, traffic, beside(traffic, plan or Plan(cells=())))


def test_a_real_page_is_read():
    """vLLM 0.32's own: 48 requests, their buckets apart, both endpoints, and when it began."""
    found = parse_traffic((PAGES / "after.vllm-0.32.0.txt").read_text())
    assert found.prompts is not None
    assert found.prompts.total == 48
    assert found.prompts.counts[100.0] == 20
    assert found.prompts.counts[math.inf] == 0
    assert found.prompts.quantile(0.5) == Bucket(50, 100.0)
    assert found.prompts.quantile(1.0) == Bucket(2000, 5000.0)
    assert found.outputs is not None
    assert found.outputs.quantile(1.0) == Bucket(20, 50.0)
    assert found.running == {"0": 0.0}
    assert found.asked == {Endpoint.COMPLETIONS: 34.0, Endpoint.CHAT: 9.0}
    assert found.process_start_s is not None


def test_ranks_are_added_up_and_their_gauges_stay_apart():
    """Histograms are of all; how many run at once is each engine's own matter."""
    found = parse_traffic((PAGES / "dp2.vllm-0.32.0.txt").read_text())
    assert sorted(found.running) == ["0", "1"]
    text = "\n".join(
        f'vllm:request_prompt_tokens_bucket{{engine="{e}",le="{le}",model_name="m"}} {n}'
        for e in (0, 1)
        for le, n in (("10.0", 1.0), ("+Inf", 4.0))
    )
    prompts = parse_traffic(text).prompts
    assert prompts == Histogram({10.0: 2.0, math.inf: 6.0})
    run = learn_traffic(page({10.0: 5.0}), [{"0": 3.0, "1": 5.0}], FACTS, ()).running
    assert [level.value for level in run] == [5]


@pytest.mark.parametrize("limit", [None, 10**9])
def test_what_is_printed_can_be_used_whatever_an_engine_counts(limit):
    """Edges and gauges beyond what a shapes file may declare are cut to that."""
    facts = replace(FACTS, max_model_len=limit, max_num_seqs=limit)
    counted = page({1e300: 5.0, math.inf: 1.0}, {1e18: 6.0})
    traffic = learn_traffic(counted, [{"0": 1e300}, {"0": 5000.0}], facts, ())
    cells = parse(text_of(traffic), "out.yaml").cells
    assert max(cell.concurrency for cell in cells) == MAX_CONCURRENCY
    assert max(cell.prompt_tokens for cell in cells) == MAX_PROMPT_TOKENS


def test_garbage_is_passed_over():
    """Neither figures that are none nor counts that fall make a histogram fall over."""
    bucket = "vllm:request_prompt_tokens_bucket"
    text = "\n".join(
        (
            f'{bucket}{{le="1.0"}} 5',
            f'{bucket}{{le="2.0"}} 3',
            f'{bucket}{{le="x"}} 9',
            f'{bucket}{{le="3.0"}} NaN',
            f'{bucket}{{le="4.0"}} -1',
            f'{bucket}{{le="+Inf"}} 7 garbage',
            "vllm:num_requests_running inf",
        )
    )
    found = parse_traffic(text)
    assert found.prompts == Histogram({1.0: 5.0, 2.0: 0.0, math.inf: 2.0})
    assert found.running == {}


def test_the_file_covers_the_quantiles_and_passes_its_check():
    """Upper edges as lengths, what the engine takes at the most, the sample's concurrencies."""
    counted = page(
        {200.0: 50.0, 1000.0: 45.0, 5000.0: 4.9, math.inf: 0.1},
        {20.0: 50.0, 500.0: 50.0},
        asked={Endpoint.CHAT: 100.0, Endpoint.COMPLETIONS: 0.0},
    )
    samples = [{"0": n} for n in (0.0, 1.0, 2.0, 2.0, 12.0)]
    traffic = learn_traffic(counted, samples, FACTS, ())
    shapes = parse(text_of(traffic), "traffic.yaml")
    grid = [c for c in shapes.cells if c.concurrency == 12]
    assert [c.prompt_tokens for c in grid] == [200, 1000, 5000, 8176]
    assert sorted({c.concurrency for c in shapes.cells}) == [1, 2, 12]
    assert {c.variant for c in shapes.cells} == {CHAT}
    # 5000 of prompt and 500 of answer: as long as no prompt alone is
    assert Cell(1, 5500, 16, CHAT) in shapes.cells
    assert expand(shapes, FACTS).refusal is None
    text = text_of(traffic)
    assert "- 1000  # p90: 201 to 1000" in text
    assert "looked at 5 times in 60 s, while anybody was there: p50 2, p90/max 12" in text
    assert "It is a sample" in text
    assert "Warm-ups of a sidecar are among them" in text
    assert text.isascii()


def test_a_quiet_sample_assumes_one_and_says_so():
    """Whoever was never seen running was there all the same."""
    counted = page({200.0: 5.0}, {1e6: 0.0, 2e6: 5.0})
    traffic = learn_traffic(counted, [{"0": 0.0}], EngineFacts(), ())
    text = text_of(traffic)
    assert "answers, p50: 1000001 to 2000000 tokens" in text
    assert "looked at once: nobody was there, so 1 is assumed" in text
    assert "http_requests_total doesn't say which" in text
    (cell, *_) = parse(text, "t.yaml").cells
    assert (cell.concurrency, cell.prompt_tokens, cell.variant.name) == (1, 200, "completions")


def test_beside_the_file_in_use_each_level_is_covered_or_not():
    """A length by a cell in its bucket, a concurrency by its own number or a ramp."""
    counted = page({200.0: 90.0, 1000.0: 10.0}, {1.0: 100.0}, asked={Endpoint.CHAT: 1.0})
    traffic = learn_traffic(counted, [{"0": 3.0}, {"0": 7.0}], FACTS, ())
    cells = (Cell(1, 180, 16), Cell(4, 1200, 16), Cell(8, 16, 16, ramp=1, gaits=(Gait.HELD,)))
    rows = {(row.what, row.names): row for row in beside(traffic, Plan(cells=cells))}
    assert rows["prompt tokens", ("p50", "p90")].by == cells[0].id
    lacking = rows["prompt tokens", ("p99", "max")]
    assert (lacking.by, lacking.nearest) == (None, (180, 1200))
    assert rows["running at once", ("p50",)].by == cells[2].id
    assert rows["endpoint", ()].by is None
    text = text_of(traffic, plan=Plan(cells=cells))
    assert "prompt tokens p99/max 201 to 1000: NOT covered; the nearest have 180 and 1200" in text
    assert "endpoint chat: NOT covered" in text


def warmed(*cells, waves=2, plug_tokens=0, start_s=5.0, outcome=WaveOutcome.VALID):
    """A report of so many waves of each cell, in each of its gaits."""
    rows = [
        replace(REPORT.waves[0], cell=c.id, gait=gait, outcome=outcome)
        for c in cells
        for gait in c.gaits
        for _ in range(waves)
    ]
    tokens = sum(c.wave_prompt_tokens * len(c.gaits) * waves for c in cells) + plug_tokens
    verdicts = tuple(replace(REPORT.verdict.cells[0], cell=c) for c in cells)
    return replace(
        REPORT,
        waves=tuple(rows),
        verdict=replace(REPORT.verdict, cells=verdicts),
        totals=replace(REPORT.totals, prompt_tokens=tokens),
        boot=BootMark(process_start_s=start_s),
    )


def test_the_sidecars_own_requests_are_taken_off():
    """Of this boot: waves and plugs, by bucket, tokens and endpoint; a failed wave counts none."""
    both = Cell(2, 100, 9, gaits=(Gait.LED, Gait.HELD))
    report = warmed(both, Cell(1, 900, 9, CHAT), plug_tokens=2 * 2048)
    counted = page(
        {100.0: 8.0 + 3.0, 1000.0: 2.0, 5000.0: 2.0},
        {1.0: 2.0, 10.0: 10.0, 50.0: 3.0},
        asked={Endpoint.COMPLETIONS: 13.0, Endpoint.CHAT: 2.0},
        process_start_s=5.0,
    )
    traffic = learn_traffic(counted, [], FACTS, [warmed(both, start_s=9.0), report])
    assert traffic.own is not None
    assert (traffic.own.requests, traffic.requests) == (12, 3)
    assert [level.value for level in traffic.lengths] == [100]
    assert traffic.outputs["p50"] == Bucket(10, 50.0)
    assert traffic.endpoints == (Endpoint.COMPLETIONS,)
    assert "The 12 requests of the sidecar's own warm-up are taken off" in text_of(traffic)
    failed = own_requests(warmed(both, outcome=WaveOutcome.FAILED), counted)
    assert failed is not None
    assert failed.requests == 0


@pytest.mark.parametrize("start_s", [6.0, None])
def test_a_report_of_another_boot_takes_nothing_off(start_s):
    """Nor does one of which it can't be told."""
    report = warmed(Cell(1, 100, 9))
    assert own_requests(report, page({100.0: 9.0}, process_start_s=start_s)) is None


def test_primes_and_arriving_prompts_were_sent_too():
    """A prefix hit sends each prefix before, a mixed wave one prompt more."""
    report = warmed(
        Cell(2, 500, 9, prefix_tokens=300),
        Cell(1, 50, 9, arriving_tokens=700, gaits=(Gait.MIXED,)),
        waves=1,
    )
    own = own_requests(report, page({1000.0: 9.0}, process_start_s=5.0))
    assert own is not None
    assert own.prompts == {300: 2, 500: 2, 50: 1, 700: 1}
    assert own.asked == {Endpoint.COMPLETIONS: 6}
    several = warmed(Cell(1, 500, 9, Variant("n", fields={"n": 3, "temperature": 1.0})), waves=1)
    own = own_requests(several, page({1000.0: 9.0}, process_start_s=5.0))
    assert own is not None
    assert (own.prompts, own.asked) == ({500: 3}, {Endpoint.COMPLETIONS: 1})


@pytest.mark.parametrize(
    ("counted", "sentence"),
    [
        (TrafficPage(), r"no vllm:request_prompt_tokens: start vLLM without --disable-log-stats"),
        (page({100.0: 0.0}, process_start_s=5.0), "answered no request yet, so there is nothing"),
        (page({100.0: 2.0}, process_start_s=5.0), "yet beside 2 of the sidecar's own, so"),
    ],
)
def test_no_traffic_is_one_sentence(counted, sentence):
    """Nothing that counts, nothing counted, or nothing but our own."""
    reports = [warmed(Cell(1, 100, 9))] if "beside" in sentence else []
    with pytest.raises(EvidenceMissing, match=sentence):
        learn_traffic(counted, [], FACTS, reports)

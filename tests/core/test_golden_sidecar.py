"""A whole run on a real GPU: the sidecar beside vLLM 0.26.0 on an H200, its log and its report."""

from pathlib import Path

import pytest

from sidecar.core.judge.calls import Call
from sidecar.core.logs.events import Access, Activated, Compile, Step
from sidecar.core.logs.reader import LogReader
from sidecar.core.report import Report, from_json, to_text

DATA = Path("tests/data/logs")


@pytest.fixture(scope="module")
def events() -> list[object]:
    """What the log says, in order, up to the opening and through 300 requests of users after it."""
    reader = LogReader("")
    text = (DATA / "gpu-0.26.0-sidecar.log").read_text()
    read = (reader.feed(line) for line in text.splitlines())
    return [event for event in read if event is not None]


@pytest.fixture(scope="module")
def report() -> Report:
    """What the sidecar said of it then."""
    return from_json((DATA / "gpu-0.26.0-sidecar.report.json").read_bytes())


def test_the_compiles_stand_between_the_fences_of_one_wave(events):
    """Both compile lines lie between two fences, and the wave's own access line with them."""
    at = [i for i, e in enumerate(events) if isinstance(e, Compile) and e.backend == "Triton"]
    assert [events[i].kernel for i in at] == ["fused_moe_kernel"] * 2
    fences = [i for i, e in enumerate(events) if isinstance(e, Access) and e.nonce]
    opened = max(i for i in fences if i < at[0])
    closed = min(i for i in fences if i > at[0])
    assert opened < at[0] < at[1] < closed
    asked = [e.path for e in events[opened:closed] if isinstance(e, Access) and e.method == "POST"]
    assert asked == ["/v1/completions"]
    assert sum(e.context_tokens for e in events[opened:closed] if isinstance(e, Step)) == 6001


def test_held_waves_share_one_step(events):
    """3 x 171, 4 x 350, 8 x 97 and 32 x 16 each stand in the log as one step of just these."""
    made = {(e.context_requests, e.context_tokens) for e in events if isinstance(e, Step)}
    assert {(3, 513), (4, 1400), (8, 776), (32, 512)} <= made


def test_the_monitor_spoke_before_the_first_request(events):
    """One rank, one activation line: silence after it counts."""
    assert sum(isinstance(e, Activated) for e in events) == 1
    first = next(i for i, e in enumerate(events) if isinstance(e, Access))
    assert any(isinstance(e, Activated) for e in events[:first])


def test_the_report_says_what_was_cold_and_that_it_is_proven(report):
    """The kernel has its cell, logprobs was cold without a line, and all 21 cells are done."""
    assert (report.verdict.call, report.opening.proven) == (Call.WARM, True)
    assert len(report.verdict.cells) == 21
    assert {c.cell.id for c in report.verdict.cells if c.kernels} == {"completions-c1-p6001-o16"}
    figures = {c.cell.variant.name: c.figures[0] for c in report.verdict.cells}
    assert figures["logprobs"].first_f_s > 30 * figures["logprobs"].baseline_f_s
    assert "fused_moe_kernel (Triton) x 2" in to_text(report)

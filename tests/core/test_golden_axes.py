"""Special cells and variants on a cold vLLM 0.26.0 on an H200: its log and the sidecar's report."""

from pathlib import Path

import pytest

from sidecar.core.judge.calls import Call
from sidecar.core.logs.events import Compile, Step
from sidecar.core.logs.reader import LogReader
from sidecar.core.report import Report, from_json

DATA = Path("tests/data/logs")

COLD_BY_THE_LOG = {
    "completions-c1-p12289-o4": "fused_moe_kernel",  # half a chunk after the first one of 8,192
    "completions-c4-p2350-o16-hit2000": "fused_moe_kernel",
    "completions-c3-p351-o9": "fused_moe_kernel",  # off the grid
    "completions-c8-p16-o9-graph": "fused_moe_kernel",
    "ruled-c1-p350-o8": "apply_token_bitmask_inplace_kernel",
}
"""What compiled, in cells that no grid of concurrency x length has; the grid's own were warm."""


@pytest.fixture(scope="module")
def events() -> list[object]:
    reader = LogReader("")
    read = map(reader.feed, (DATA / "gpu-0.26.0-axes.log").read_text().splitlines())
    return [event for event in read if event is not None]


@pytest.fixture(scope="module")
def report() -> Report:
    return from_json((DATA / "gpu-0.26.0-axes.report.json").read_bytes())


def test_every_axis_was_proven(report):
    """Cells of all kinds, and none is left unproven: each wave showed that it was one."""
    assert (report.verdict.call, report.opening.proven) == (Call.WARM, True)
    cells = [c.cell for c in report.verdict.cells]
    assert len(cells) == 27
    assert {c.concurrency for c in cells if c.captured} == {1, 2, 4, 8, 16, 32}
    assert any(c.prefix_tokens for c in cells)
    assert any(c.arriving_tokens for c in cells)
    assert {c.prompt_tokens for c in cells} >= {8191, 8193, 12289}


def test_each_axis_found_what_the_grid_had_not(report, events):
    """Five cells compiled, 0.5 to 1.1 s each, and every compile line in the log is theirs."""
    found = {c.cell.id: c.kernels for c in report.verdict.cells if c.kernels}
    assert {cell: kernels[0].kernel for cell, kernels in found.items()} == COLD_BY_THE_LOG
    assert all(kernels[0].cost_s > 0.4 for kernels in found.values())
    lines = sum(isinstance(e, Compile) and e.backend == "Triton" for e in events)
    assert lines == sum(k.lines for kernels in found.values() for k in kernels) == 9


def test_logprobs_were_cold_without_a_line(report):
    """Half a second, found by latency alone, in a window that the log had whole."""
    scored = next(c for c in report.verdict.cells if c.cell.variant.name == "scored")
    assert not scored.kernels
    assert scored.figures[0].first_f_s > 20 * scored.figures[0].baseline_f_s


def test_the_steps_were_what_the_cells_say(events):
    """By the engine's own lines: the arriving prompt beside four that decode, and the batches."""
    steps = [e for e in events if isinstance(e, Step)]
    assert (1, 6000, 4) in {
        (e.context_requests, e.context_tokens, e.generation_requests) for e in steps
    }
    assert {1, 2, 4, 8, 16, 32} <= {e.generation_requests for e in steps if not e.context_requests}
    held = {(e.context_requests, e.context_tokens) for e in steps}
    assert {(3, 1053), (3, 1539), (4, 1400), (4, 2052)} <= held

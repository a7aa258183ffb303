"""What is learned of a real server: a shapes file from its traffic, cells from its escapes."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.core.grid.cells import Endpoint
from sidecar.core.grid.shapes import parse
from tests.live.sidecar import Sidecar, vllm_warmup
from tests.live.user import Traffic, completion
from tests.live.vllm import Installation, VllmServer

SHAPES = """
grid: {concurrency: [1, 2], prompt_tokens: [64, 350], output_tokens: [4]}
converge: {floor_s: 0.3}
"""
COMPILED = (
    "(EngineCore pid=1) WARNING 11-29 17:16:42 [jit_monitor.py:132] Triton kernel JIT compilation "
    "during inference: fused_moe_kernel (constexprs={BLOCK_SIZE_K=64}; signature={K='i32'}). This "
    "causes a latency spike; consider extending warmup to cover this shape/config.\n"
)


@pytest.fixture(scope="module")
def visited(
    vllm_installation: Installation, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[VllmServer]:
    """A server that nobody has asked yet, and that logs its steps."""
    folder = tmp_path_factory.mktemp("visited")
    flags = ("--enable-logging-iteration-details",)
    with VllmServer(vllm_installation, folder, flags=flags) as server:
        yield server


def test_a_shapes_file_from_traffic(visited: VllmServer, tmp_path: Path) -> None:
    """Nothing before anybody came, nothing but our own after a warm-up, then what users do: it
    passes its check, holds their lengths and endpoint, and says what the file in use lacks."""
    engine = ("--engine-url", visited.url)
    state = ("--state-dir", str(tmp_path))
    (tmp_path / "shapes.yaml").write_text(SHAPES)
    shapes = ("--shapes", str(tmp_path / "shapes.yaml"))
    suggest = ("shapes", "suggest", *engine, *shapes, *state)

    early = vllm_warmup(*suggest, "--watch", "0")
    assert (early.code, early.out) == (5, ""), early.err
    assert "it has answered no request yet, so there is nothing to learn from" in early.err

    warmed = vllm_warmup("once", "--json", *engine, *shapes, *state, limit_s=500)
    assert warmed.code == 0, warmed.err
    ours = vllm_warmup(*suggest, "--watch", "0")
    sent = sum(warmed.json["totals"]["requests"].values())
    assert ours.code == 5, ours.out
    assert f"no request yet beside {sent} of the sidecar's own" in ours.err

    with Traffic(visited.url) as one, Traffic(visited.url) as two, Traffic(visited.url) as three:
        found = vllm_warmup(*suggest, "--watch", "6")
    assert found.code == 0, found.err
    assert one.sent + two.sent + three.sent > 3
    told = parse(found.out, "traffic.yaml")
    # they ask for 20 to 199 tokens, between the edges 10 and 200
    assert max(c.prompt_tokens for c in told.cells) <= 220
    assert any(c.prompt_tokens == 200 for c in told.cells)
    assert {c.variant.endpoint for c in told.cells} == {Endpoint.COMPLETIONS}
    assert re.search(r"looked at \d times in 6 s, while anybody was there: .*max [123]", found.out)
    assert f"The {sent} requests of the sidecar's own warm-up are taken off" in found.out
    assert re.search(r"#   prompt tokens \S+ 101 to 200: NOT covered; the nearest", found.out)
    (tmp_path / "traffic.yaml").write_text(found.out)
    assert vllm_warmup("shapes", "check", str(tmp_path / "traffic.yaml")).code == 0

    plan = vllm_warmup("plan", *engine, *shapes, *state)
    assert "output tokens/s a stream, measured on tiny at" in plan.out, plan.out


def test_an_escape_is_proposed_as_the_batch_it_was_in(visited: VllmServer, tmp_path: Path) -> None:
    """A compile line (a CPU's vLLM writes none, so it is put there) and the real server's own line
    of the step that follows: a cell of that prompt, to paste."""
    with Sidecar(visited.url, tmp_path, SHAPES, WARMUP_LOG=f"file://{visited.log_path}") as sidecar:
        sidecar.wait_for("ready", limit_s=400)
        with visited.log_path.open("a") as log:
            log.write(COMPILED)

        def asked() -> bool:
            completion(visited.url, 513)
            escapes = (sidecar.get("/status") or {})["escapes"]["recent"]
            return any(escape["step"] is not None for escape in escapes)

        sidecar.wait_until("the escape has its step", asked, limit_s=120)
        report = ("report", "--suggest", "--state-dir", str(sidecar.state_dir))

        def suggested() -> bool:
            return "cells:" in vllm_warmup(*report).out

        sidecar.wait_until("the report has the escape", suggested, limit_s=120)
    (cell,) = parse(vllm_warmup(*report).out, "pasted.yaml").cells
    assert (cell.concurrency, cell.prompt_tokens) == (1, 513)
    (told,) = json.loads(vllm_warmup(*report, "--json").out)["cells"]
    assert told["sure"] == "exact"

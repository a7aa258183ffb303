"""Special cells beside a real server: its own counters and step lines say that they were real."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.live.sidecar import NO_MONITOR, Sidecar, assert_heard
from tests.live.user import counter
from tests.live.vllm import Installation, VllmServer

FLAGS = (
    *("--max-num-batched-tokens", "1024", "--max-num-seqs", "6", "--block-size", "32"),
    *("--enable-logging-iteration-details", "--enable-prompt-tokens-details"),
)
SHAPES = """
special:
  chunk_crossing: [1, 2]
  prefix_hit:
    - {prefix_tokens: 500, prompt_tokens: 700, concurrency: 2}
    - {prefix_tokens: 300, prompt_tokens: 400, variant: chat}
  mixed:
    - {concurrency: 3, arriving_tokens: 2500}
converge: {floor_s: 0.3}
on_unproven: closed  # a batch that two busy cores did not show is tried until they do
"""
GRAPHS = """
special: {cudagraph: true}
engine: {capture_sizes: [1, 2, 4, 8], max_num_seqs: 6}
converge: {floor_s: 0.3}
on_unproven: closed
"""
HITS_COUNTED = "vllm:prefix_cache_hits_total"
HITS = {"completions-c2-p700-o16-hit480": 2 * 480, "chat-c1-p400-o16-hit288": 288}
"""By cell, the tokens that each of its waves finds in the cache: whole blocks of 32."""


@pytest.fixture(scope="module")
def telling_vllm(
    vllm_installation: Installation, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[VllmServer]:
    """A server that logs its steps, and says what came from its cache."""
    folder = tmp_path_factory.mktemp("special")
    with VllmServer(vllm_installation, folder, flags=FLAGS) as server:
        yield server


def waves_of(status: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """By cell, its waves; every cell is warm but the one that passed first."""
    verdicts = {cell["id"]: cell["verdict"] for cell in status["cells"]}
    assert {v for id_, v in verdicts.items() if "high_water" not in id_} == {"warm"}
    return {cell["id"]: cell["waves"] for cell in status["cells"]}


def test_special_cells_are_proven(telling_vllm: VllmServer, tmp_path: Path) -> None:
    """Every kind becomes warm; the cache's hits are those of the declared prefixes and of nothing
    else; the arriving prompt's steps held three decodes; the crossings were as long as said."""
    log = f"file://{telling_vllm.log_path}"
    before = counter(telling_vllm.url, HITS_COUNTED)
    with Sidecar(telling_vllm.url, tmp_path, SHAPES, WARMUP_LOG=log) as sidecar:
        sidecar.wait_for("ready", limit_s=600)
        status: dict[str, Any] = sidecar.get("/status") or {}
    waves = waves_of(status)
    around = (1023, 1025, 1537, 2047, 2049, 2561)
    assert {f"completions-c1-p{n}-o4" for n in around} < set(waves)
    assert set(HITS) < set(waves)
    hits = sum(tokens * len(waves[id_]) for id_, tokens in HITS.items())
    assert counter(telling_vllm.url, HITS_COUNTED) - before == hits
    assert_heard(status, NO_MONITOR)
    (mixed,) = [own for id_, own in waves.items() if "arriving" in id_]
    shown = [wave for wave in mixed if wave["shown"]]
    assert len(shown) >= 2
    assert {wave["gait"] for wave in mixed} == {"mixed"}
    steps = re.findall(r"(\d+) context requests, (\d+) context tokens, 3 gen", telling_vllm.log)
    chunks = [int(tokens) for requests, tokens in steps if requests == "1"]
    # 1,024 less a token for each of those that decode
    assert chunks.count(1021) >= 2 * len(shown)
    assert chunks.count(2500 - 2 * 1021) >= len(shown)


def test_each_captured_size_decodes_once(telling_vllm: VllmServer, tmp_path: Path) -> None:
    """By the operator's list, for no graph is captured on a CPU, and without a log: by the streams
    alone each batch is shown to have decoded together."""
    with Sidecar(telling_vllm.url, tmp_path, GRAPHS) as sidecar:
        sidecar.wait_for("ready", limit_s=600)
        waves = waves_of(sidecar.get("/status") or {})
    sizes = {"completions-c1-p16-o2-graph", *(f"completions-c{n}-p16-o9-graph" for n in (2, 4))}
    assert {id_ for id_ in waves if "graph" in id_} == sizes
    assert all(any(wave["shown"] for wave in waves[id_]) for id_ in sizes)

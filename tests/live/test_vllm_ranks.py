"""Two data-parallel ranks behind one URL: each is cold by itself, and both are warmed at once."""

import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from tests.live.sidecar import Sidecar
from tests.live.standstill import Standstill
from tests.live.user import counter, ttft_s
from tests.live.vllm import Installation, VllmServer

COLD_S = 0.8
"""Far above a warm first token of 0.05 s, below a cold one of 1.5 s and more."""

SHAPES = """
grid:
  concurrency: [1]
  prompt_tokens: [33, 350]
  output_tokens: [4]
engine: {max_num_batched_tokens: 2048}
converge: {floor_s: 0.4} # four busy processes share two cores
on_unproven: closed # tried until those show it
"""


@pytest.fixture(scope="module")
def engine(
    vllm_installation: Installation, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[VllmServer]:
    """A cold server of two ranks."""
    folder = tmp_path_factory.mktemp("ranks")
    flags = ("--data-parallel-size", "2", "--max-num-batched-tokens", "2048")
    env = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    with VllmServer(vllm_installation, folder, flags=flags, env=env) as engine:
        yield engine


@pytest.fixture(scope="module")
def sidecar(engine: VllmServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sidecar]:
    with Sidecar(engine.url, tmp_path_factory.mktemp("sidecar"), SHAPES) as sidecar:
        sidecar.wait_for("ready", limit_s=500)
        yield sidecar


def waves(report: dict[str, Any], rank: int) -> list[dict[str, Any]]:
    return [wave for wave in report["waves"] if wave["cell"].endswith(f"-dp{rank}")]


def test_each_rank_is_cold_and_both_are_warmed_at_once(sidecar: Sidecar) -> None:
    """The first wave of either is slow, they were let go together, and the gate waited for both."""
    report = sidecar.report()
    first = [waves(report, rank)[0] for rank in (0, 1)]
    assert all(wave["f_s"] > COLD_S for wave in first), first
    assert first[0]["at"] == first[1]["at"]
    ready = sidecar.ready()
    assert ready is not None
    opened = datetime.fromisoformat(ready["since"]).timestamp()
    assert max(wave["at"] for wave in report["waves"]) < opened, "shut until both were warm"
    standing = {c["cell"]["rank"]: c["standing"] for c in report["verdict"]["cells"]}
    assert set(standing) == {0, 1}


def test_every_cell_is_proven_on_every_rank(sidecar: Sidecar) -> None:
    """Each rank's own counters say that it computed what was sent to it."""
    cells = sidecar.report()["verdict"]["cells"]
    calls = {(c["cell"]["rank"], c["call"]) for c in cells if c["cell"]["role"] == "grid"}
    assert calls == {(0, "warm"), (1, "warm")}
    shown = sidecar.get("/status")
    assert shown is not None
    assert {(c["rank"], c["verdict"]) for c in shown["cells"] if c["role"] == "grid"} == calls


def test_the_engine_counted_the_same_on_both(engine: VllmServer, sidecar: Sidecar) -> None:
    """No rank was left out, as the server itself saw it."""
    name = "vllm:request_success_total"
    one, two = (counter(engine.url, name, f'engine="{rank}"') for rank in (0, 1))
    assert one == two > 0
    assert sidecar.report()["totals"]["requests"] == {"ok": one + two}


def test_a_user_of_either_rank_is_served_warm(
    engine: VllmServer, sidecar: Sidecar, standstill: Standstill
) -> None:
    """What the gate promises holds on each rank. On a busy machine the cold costs more, too."""
    report = sidecar.report()
    for rank in (0, 1):
        began = time.monotonic()
        took = ttft_s(engine.url, 350, rank=rank) - standstill.lost_since_s(began)
        assert took < max(COLD_S, waves(report, rank)[0]["f_s"] / 2)

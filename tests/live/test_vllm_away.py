"""A real vLLM in development mode that sleeps, is paused, stopped and killed in a wave."""

import signal
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.live.sidecar import Sidecar, vllm_warmup
from tests.live.standstill import Standstill
from tests.live.user import counter
from tests.live.vllm import Installation, VllmServer

SHAPES = """
cells:
  - {concurrency: 2, prompt_tokens: 350, output_tokens: 4}
  - {concurrency: 1, prompt_tokens: 64, output_tokens: 4}
engine: {max_num_batched_tokens: 2048}
converge: {floor_s: 0.3}
on_unproven: closed
"""

LONG = """
cells:
  - {concurrency: 8, prompt_tokens: 64, output_tokens: 4000}
engine: {max_num_batched_tokens: 2048}
converge: {floor_s: 0.3}
"""
"""One wave of it takes minutes on a CPU: there is time to kill somebody."""


def post(url: str) -> None:
    with urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=60):
        pass


@dataclass(frozen=True, slots=True)
class Pair:
    engine: VllmServer
    sidecar: Sidecar


@pytest.fixture(scope="module")
def pair(
    vllm_installation: Installation, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    """A warmed engine in development mode."""
    folder = tmp_path_factory.mktemp("away")
    engine = VllmServer(
        vllm_installation,
        folder,
        flags=("--max-num-batched-tokens", "2048"),
        env={"VLLM_SERVER_DEV_MODE": "1"},
    )
    log = f"file://{engine.log_path}"
    with engine, Sidecar(engine.url, folder, SHAPES, WARMUP_LOG=log) as sidecar:
        sidecar.wait_for("ready", limit_s=300)
        yield Pair(engine, sidecar)


def sent(engine: VllmServer) -> float:
    return counter(engine.url, "vllm:request_success_total")


@pytest.mark.parametrize(
    ("away", "back", "reason"),
    [
        ("/sleep?level=0", "/wake_up", "sleeping (level 0)"),
        ("/pause?mode=keep", "/resume", "paused (/pause)"),
    ],
)
def test_away_and_back(
    pair: Pair, away: str, back: str, reason: str, standstill: Standstill
) -> None:
    """/health goes on saying 200; the gate is shut, with the reason, and the return is warmed."""
    before = pair.sidecar.wait_for("ready")
    post(pair.engine.url + away)
    went_at = time.monotonic()
    pair.sidecar.wait_until(
        "it says why", lambda: any(reason in r for r in pair.sidecar.reasons()), 30
    )
    assert time.monotonic() - went_at < 5 + standstill.lost_since_s(went_at)
    count = sent(pair.engine)
    time.sleep(3)
    assert sent(pair.engine) == count, "nothing is sent to an engine that is away"
    post(pair.engine.url + back)
    after = pair.sidecar.wait_for("ready", limit_s=300)
    assert sent(pair.engine) > count
    assert (after["proven"], after["boot"]["number"]) == (True, before["boot"]["number"]), after
    assert after["boot"]["nonce"] != before["boot"]["nonce"]


def test_a_server_killed_in_a_wave_is_remembered_with_the_cell(
    vllm_installation: Installation, tmp_path: Path
) -> None:
    """The next boot does not get that cell; the gate stays shut until the operator clears it."""
    engine = VllmServer(vllm_installation, tmp_path, flags=("--max-num-batched-tokens", "2048"))
    log = f"file://{engine.log_path}"
    with engine, Sidecar(engine.url, tmp_path, LONG, WARMUP_LOG=log) as sidecar:

        def is_sent() -> bool:
            return "-c8-" in sidecar.in_flight

        sidecar.wait_until("its long wave is in flight", is_sent, 120)
        sidecar.end(signal.SIGKILL)
        sidecar.start()
        sidecar.wait_until("the same boot is warmed on", is_sent, 120)
        assert not (sidecar.state_dir / "deaths.json").exists(), "the sidecar alone was killed"
        engine.kill()
        engine.start()
        sidecar.wait_until(
            "the cell is held back",
            lambda: any("-c8-p64-o4000 is held back" in r for r in sidecar.reasons()),
            120,
        )
        show = vllm_warmup("state", "show", WARMUP_STATE_DIR=str(sidecar.state_dir))
        assert "-c8-p64-o4000 is held back" in show.out
        done = vllm_warmup("state", "clear", WARMUP_STATE_DIR=str(sidecar.state_dir))
        assert (done.code, "cleared" in done.out) == (0, True)
        sidecar.wait_until("it is sent again", is_sent, 120)
        engine.stop()
        engine.start()
        sidecar.wait_until("a server that was stopped did not die of it", is_sent, 120)
        assert not (sidecar.state_dir / "deaths.json").exists()

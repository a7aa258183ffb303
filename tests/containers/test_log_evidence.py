"""A whole sidecar on what a real Docker Engine makes of an engine's log."""

import time
from pathlib import Path

import pytest

from tests.containers.docker import Docker
from tests.containers.test_log_sources import engine_socket, with_each  # noqa: F401 - a fixture
from tests.live.process import free_port
from tests.live.sidecar import Sidecar, assert_heard, vllm_warmup
from tests.live.user import counter

SHAPES = "grid: {concurrency: [1, 2], prompt_tokens: [64, 350], output_tokens: [4]}\n"
SIM = (
    *("sim", "--host", "0.0.0.0", "--port", "8000", "--start-delay-s", "0.5"),
    *("--time-scale", "0.2", "--log-iterations"),
)


@pytest.mark.parametrize("kind", ["docker", "unix"])
def test_the_log_of_a_container_carries_the_verdict_over_its_restart(
    docker: Docker,
    image: str,
    tmp_path: Path,
    kind: str,
    engine_socket: str,  # noqa: F811
) -> None:
    """Fences come through, windows are whole, compiles find their cells: on both boots."""
    port, name = free_port(), f"warmup-test-{time.time_ns()}"
    socket = tmp_path / "log.sock"
    driver = ("syslog-format=rfc5424micro", f"syslog-address=unix://{socket}")
    if kind == "docker":
        log, options = f"docker:///{name}?socket={engine_socket}", ()
    else:
        log = f"syslog+unix://{socket}"
        options = ("--log-driver", "syslog", *with_each("--log-opt", driver))
    with Sidecar(f"http://127.0.0.1:{port}", tmp_path, SHAPES, WARMUP_LOG=log) as sidecar:
        container = docker.start(
            image,
            *("--no-healthcheck", "--name", name, "--publish", f"127.0.0.1:{port}:8000"),
            *options,
            command=SIM,
        )
        sidecar.wait_for("ready", limit_s=180)
        check(sidecar, boots=1)
        docker("restart", "--time", "2", container)
        sidecar.wait_until("it is warm again", lambda: is_warm_again(sidecar), limit_s=180)
        check(sidecar, boots=2)


def is_warm_again(sidecar: Sidecar) -> bool:
    body = sidecar.ready() or {}
    return bool(body["ready"]) and body["boot"]["number"] == 2


def check(sidecar: Sidecar, *, boots: int) -> None:
    status = sidecar.get("/status") or {}
    assert status["boot"]["number"] == boots
    assert_heard(status, "complete")
    assert status["evidence"] == "log+latency+metrics"
    assert status["facts"]["sources"]["max_num_batched_tokens"] == "log"
    assert any(cell["kernels"] for cell in status["cells"])


LONG = "cells: [{concurrency: 2, prompt_tokens: 64, output_tokens: 7000}]\n"
"""A wave of it takes half a minute."""


def test_how_a_container_ended_tells_what_became_of_a_cell_in_flight(
    docker: Docker,
    image: str,
    tmp_path: Path,
    engine_socket: str,  # noqa: F811
) -> None:
    """`docker kill` in a wave holds the cell back, with the cause; `docker stop` blames nobody."""
    port, name = free_port(), f"warmup-test-{time.time_ns()}"
    log = f"docker:///{name}?socket={engine_socket}"
    with Sidecar(f"http://127.0.0.1:{port}", tmp_path, LONG, WARMUP_LOG=log) as sidecar:
        container = docker.start(
            image,
            *("--no-healthcheck", "--name", name, "--publish", f"127.0.0.1:{port}:8000"),
            command=("sim", "--host", "0.0.0.0", "--port", "8000", "--start-delay-s", "0.5"),
        )

        def is_sent() -> bool:
            return "-c2-" in sidecar.in_flight

        def is_held() -> bool:
            return any("is held back" in reason for reason in sidecar.reasons())

        def has_read_the_end() -> bool:
            return counter(sidecar.url, "warmup_log_up") == 0

        sidecar.wait_until("its wave is in flight", is_sent, 120)
        docker("kill", container)
        # Once it is started again Docker does not tell any more how it had ended.
        sidecar.wait_until("its log is read to the end", has_read_the_end, 60)
        docker("start", container)
        sidecar.wait_until("the cell is held back", is_held, 120)
        assert any("killed (SIGKILL)" in reason for reason in sidecar.reasons())
        assert vllm_warmup("state", "clear", "--state-dir", str(sidecar.state_dir)).code == 0
        sidecar.wait_until("it is sent again", is_sent, 120)
        docker("stop", "--time", "60", container, limit_s=120)
        sidecar.wait_until("its log is read to the end", has_read_the_end, 60)
        docker("start", container)
        sidecar.wait_until("it is sent to the next boot, too", is_sent, 120)
        assert not (sidecar.state_dir / "deaths.json").exists()

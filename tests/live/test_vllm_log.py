"""The log of a real server: start facts, and waves between fences, by a file and by syslog.

vLLM has no JIT monitor on a CPU: silence proves nothing there, and that is said. What can be seen
on it is all else: start lines, fences, access lines, steps.
"""

import socket
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.live.process import free_port
from tests.live.sidecar import NO_MONITOR, Sidecar, assert_heard, vllm_warmup
from tests.live.vllm import Installation, VllmServer

SHAPES = """
grid: {concurrency: [1, 2], prompt_tokens: [64, 350], output_tokens: [4]}
converge: {floor_s: 0.3}
"""
FLAGS = (
    *("--max-num-batched-tokens", "1024", "--max-num-seqs", "6"),
    "--enable-logging-iteration-details",
)


@pytest.fixture(scope="module")
def telling_vllm(
    vllm_installation: Installation, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[VllmServer]:
    """A server that logs its steps."""
    folder = tmp_path_factory.mktemp("telling")
    with VllmServer(vllm_installation, folder, flags=FLAGS) as server:
        yield server


def check(status: dict[str, Any]) -> None:
    """What the log of this server must have told, whatever way it came."""
    facts = status["facts"]
    assert facts["max_num_batched_tokens"] == 1024
    assert facts["max_num_seqs"] == 6
    assert facts["sources"]["max_num_batched_tokens"] == "log"
    assert facts["kv_cache_memory_bytes"] == 64 << 20
    assert any("--kv-cache-memory-bytes" in warning for warning in status["warnings"])
    assert status["evidence"] == "latency+metrics"
    assert_heard(status, NO_MONITOR)  # not for want of fences


def test_a_real_log_is_read_from_its_file(telling_vllm: VllmServer, tmp_path: Path) -> None:
    """Limits out of start lines, whole windows, and the batch of each wave out of its steps."""
    log = f"file://{telling_vllm.log_path}"
    with Sidecar(telling_vllm.url, tmp_path, SHAPES, WARMUP_LOG=log) as sidecar:
        sidecar.wait_for("ready", limit_s=400)
        status = sidecar.get("/status") or {}
    check(status)
    held = [w for c in status["cells"] for w in c["waves"] if w["gait"] == "held"]
    assert any(wave["shown"] for wave in held)


@contextmanager
def forwarded(path: Path, port: int) -> Iterator[None]:
    """What stands in `path`, and what comes, as rfc5424 messages to a TCP port of loopback."""
    done = threading.Event()

    def forward() -> None:
        with path.open("rb") as log, connect(port, done) as sender:
            rest = b""
            while not done.is_set():
                data = log.read(1 << 16)
                if not data:
                    done.wait(0.02)
                    continue
                *lines, rest = (rest + data).split(b"\n")
                sender.sendall(
                    b"".join(
                        b"<30>1 2026-11-29T17:14:24.123456Z host vllm 812 vllm - %s\n" % line
                        for line in lines
                    )
                )

    thread = threading.Thread(target=forward)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(30)


def connect(port: int, done: threading.Event) -> socket.socket:
    """As soon as the sidecar listens."""
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=60)
        except ConnectionRefusedError:
            assert not done.wait(0.1), "nobody ever listened"


def test_required_log_evidence_can_t_be_had_on_a_cpu(
    telling_vllm: VllmServer, tmp_path: Path
) -> None:
    """`once` ends with 5 and the reason."""
    shapes = tmp_path / "shapes.yaml"
    shapes.write_text(SHAPES)
    done = vllm_warmup(
        *("once", "--engine-url", telling_vllm.url, "--shapes", str(shapes)),
        *("--log", f"file://{telling_vllm.log_path}", "--require-evidence", "log"),
        limit_s=400,
    )
    assert done.code == 5, done.err
    assert "no JIT monitor on a CPU" in done.err


def test_an_eager_server_is_warned_of_by_syslog(
    vllm_installation: Installation, tmp_path: Path
) -> None:
    """The sidecar listens before the server starts, as with Docker's syslog driver; whole windows
    by TCP, and --enforce-eager is said in /ready and /metrics."""
    folder = tmp_path / "eager"
    folder.mkdir()
    server = VllmServer(vllm_installation, folder, flags=(*FLAGS, "--enforce-eager"))
    server.log_path.touch()
    port = free_port()
    log = f"syslog+tcp://127.0.0.1:{port}"
    with (
        Sidecar(server.url, tmp_path, SHAPES, WARMUP_LOG=log) as sidecar,
        forwarded(server.log_path, port),
        server,
    ):
        sidecar.wait_for("ready", limit_s=400)
        status = sidecar.get("/status") or {}
        check(status)
        assert any("--enforce-eager" in warning for warning in status["warnings"])
        with urllib.request.urlopen(sidecar.url + "/metrics", timeout=60) as answer:
            page = answer.read().decode()
        assert 'warmup_engine_costly_setting{setting="cudagraphs_off"} 1.0' in page

"""`vllm-warmup sim` as a process."""

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

pytestmark = pytest.mark.programs

LIMIT_S = 90.0


def start(*flags: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "sidecar", "sim", "--start-delay-s", "0.05", *flags]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
    )


def started(process: subprocess.Popen[str], log: Path) -> str:
    """The URL that its log names, once it serves."""
    until = time.monotonic() + LIMIT_S
    while "startup complete" not in (log.read_text() if log.exists() else ""):
        assert time.monotonic() < until, "it did not start"
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    (line,) = [x for x in log.read_text().splitlines() if "Starting vLLM server on" in x]
    return line.rpartition(" ")[2]


def test_it_serves_until_it_is_told_to_stop(tmp_path: Path) -> None:
    """Its log names the port; /health answers; SIGTERM ends it with 0."""
    log = tmp_path / "engine.log"
    flags = ("--port", "0", "--log-file", str(log), "--model", "mine")
    process = start(*flags, "--start-delay-s", "0")
    try:
        url = started(process, log)
        assert httpx.get(f"{url}/v1/models", timeout=LIMIT_S).json()["data"][0]["id"] == "mine"
        process.send_signal(signal.SIGTERM)
        out, errors = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
    assert (process.returncode, out, errors) == (0, "", "")


def test_a_taken_port_is_one_sentence() -> None:
    """Exit code 2, the address in the sentence, no traceback."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        process = start("--port", str(port))
        _, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 2
    assert f"127.0.0.1:{port}" in errors
    assert len(errors.splitlines()) == 1


def test_a_missing_rules_file_is_one_sentence(tmp_path: Path) -> None:
    """Exit code 2 and the file's name."""
    process = start("--port", "0", "--rules", str(tmp_path / "none.yaml"))
    _, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 2
    assert "none.yaml" in errors
    assert len(errors.splitlines()) == 1


def test_an_engine_of_several_ranks_that_speculates(tmp_path: Path) -> None:
    """--ranks, --draft-tokens, --axes and --prompt-tokens-details show where vLLM shows them."""
    log = tmp_path / "engine.log"
    flags = ("--axes", "--ranks", "2", "--draft-tokens", "3", "--prompt-tokens-details")
    process = start("--port", "0", "--log-file", str(log), "--time-scale", "0.01", *flags)
    try:
        url = started(process, log)
        body = {"prompt": [300] * 40, "max_tokens": 2, "top_k": 5}
        usage = httpx.post(f"{url}/v1/completions", json=body, timeout=LIMIT_S).json()["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == 0
        page = httpx.get(f"{url}/metrics", timeout=LIMIT_S).text
        assert 'vllm:spec_decode_num_drafts_total{engine="1"' in page
        ledger = httpx.get(f"{url}/_sim", timeout=LIMIT_S).json()["ledger"]
        assert "_topk_topp_kernel" in {paid["rule"] for paid in ledger}
    finally:
        process.kill()
        process.communicate(timeout=LIMIT_S)

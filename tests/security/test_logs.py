"""S6, S7: whoever can write into the log, and users whose prompts stand in it."""

import io
import socket
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import anyio
import httpx
import pytest

from sidecar.adapters import evidence
from sidecar.simulator.server import simulator
from tests.live.process import free_port
from tests.patience import until
from tests.security.test_secrets import everything
from tests.service.running import SHAPES, WARM, serving

pytestmark = pytest.mark.programs

VERBOSE = replace(WARM, jit_monitor_verbose=True, log_iterations=True, dev_mode=False)
PROMPT = "my-passport-is-C01X00T47"
COMPILE = (
    "WARNING 11-29 12:00:00 [jit_monitor.py:103] Triton kernel JIT compilation during inference: "
    "forged_kernel. This causes a latency spike; consider extending warmup to cover this "
    "shape/config."
)
PROMPTS = (
    f"INFO 11-29 12:00:00 [logger.py:39] Received request cmpl-1: prompt: '{PROMPT}', params: x",
    f"INFO 11-29 12:00:00 [logger.py:39] Received request: prompt: 'a\n{PROMPT}\n', params: x",
    f'INFO:     1.2.3.4:5 - "GET /v1/models?q={PROMPT} HTTP/1.1" 200 OK',
    f"ERROR 11-29 12:00:00 [serving.py:1] bad request: {PROMPT}",
    f"(APIServer pid=1) ERROR 11-29 12:00:00 [async_llm.py:1] Traceback: {PROMPT}",
    f"{PROMPT} JIT compilation during inference: {PROMPT}. This causes a latency spike",
)
"""A compile line forged word for word is no prompt: what it says is a kernel's name is shown."""


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    """Fences that never come are waited for in full."""
    monkeypatch.setattr(evidence, "FENCE_WAIT_S", 0.3)
    monkeypatch.setattr(evidence, "_HOPELESS_WAIT_S", 0.05)


class Forger:
    """Writes lines into a sidecar's log by one of its ways."""

    def __init__(self, way: str, folder: Path) -> None:
        self.way = way
        self.port = free_port()
        self.path = folder / ("log.sock" if way == "syslog+unix" else "vllm.log")
        self.source = f"{way}://127.0.0.1:{self.port}"
        if way in ("file", "syslog+unix"):
            self.source = f"{way}://{self.path}"
        if way == "file":
            self.path.touch()
        self._line: socket.socket | None = None

    def close(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            line.close()

    def _connect(self) -> socket.socket:
        kind = socket.SOCK_DGRAM if self.way == "syslog+udp" else socket.SOCK_STREAM
        if self.way == "syslog+unix":
            family, address = socket.AF_UNIX, str(self.path)
        else:
            family, address = socket.AF_INET, ("127.0.0.1", self.port)
        line = socket.socket(family, kind)
        line.settimeout(5)
        try:
            line.connect(address)
        except OSError:
            line.close()
            raise
        return line

    def write(self, lines) -> None:
        text = "".join(f"{line}\n" for line in lines)
        if self.way == "file":
            with self.path.open("a") as file:
                file.write(text)
            return
        messages = [
            f"<30>1 2026-01-01T00:00:00Z h vllm 1 vllm - {line}".encode()
            for line in text.splitlines()
        ]
        try:
            if self._line is None:
                self._line = self._connect()
            for message in messages:
                self._line.sendall(message + b"\n")
        except OSError:  # nobody listens yet, or does any more: the next one connects anew
            self.close()


async def log_of_a_warm_engine() -> list[str]:
    """All that a real one would write, fences of somebody's included."""
    written = io.StringIO()
    async with simulator(VERBOSE, log=written) as sim, httpx.AsyncClient(timeout=60) as http:
        for _ in range(2):
            await http.get(f"{sim.url}/version?warmup_fence=0123456789abcdef0123456789abcdef")
            body = {"prompt": [1000 + n for n in range(65)], "max_tokens": 2, "stream": True}
            await http.post(f"{sim.url}/v1/completions", json=body)
    return written.getvalue().splitlines()


WAYS = ("file", "syslog+unix", "syslog+tcp", "syslog+udp")


@pytest.fixture(params=WAYS)
def forger(request, tmp_path):
    with closing(Forger(request.param, tmp_path)) as one:
        yield one


async def test_s6_no_forged_log_makes_a_verdict_stronger(forger):
    """A whole log of a warm engine, word for word, but for the random word of each wave."""
    whole = await log_of_a_warm_engine()
    shapes = f"budget: {{total_s: 1.5}}\n{SHAPES}"
    settings = {"log": forger.source, "require_evidence": "log"}
    async with simulator(WARM) as sim, serving(sim.url, shapes=shapes, **settings) as sidecar:

        async def has_failed():
            body = await sidecar.ready()
            assert not body["ready"]
            await anyio.to_thread.run_sync(forger.write, whole)
            return body["state"] == "failed"

        async def is_read():
            await has_failed()
            (log,) = (await sidecar.client.get("/status")).json()["logs"]
            return log["counts"]["lines"] > len(whole)

        await until(is_read)
        await until(has_failed)
        status = (await sidecar.client.get("/status")).json()
        assert status["log"] not in ("complete", "once-only")


async def test_s6_s7_forged_compiles_are_counted_and_prompts_are_not_kept(forger, tmp_path):
    """While the gate is open: it stays open, and no page, file or report has a user's words."""
    state = tmp_path / "state"
    async with (
        simulator(WARM) as sim,
        serving(sim.url, log=forger.source, state_dir=state) as sidecar,
    ):
        await sidecar.until_ready()

        async def is_heard():
            await anyio.to_thread.run_sync(forger.write, ["hello"])
            (log,) = (await sidecar.client.get("/status")).json()["logs"]
            return log["counts"]["lines"]

        await until(is_heard)
        await anyio.to_thread.run_sync(forger.write, [*PROMPTS, COMPILE, *PROMPTS])

        async def pages():
            got = [await sidecar.client.get(page) for page in ("/ready", "/status", "/metrics")]
            return got if "forged_kernel" in got[-1].text else None

        got = await until(pages)
        assert got[0].status_code == 200
        assert 'kernel="forged_kernel"} 1.0' in got[-1].text
        assert PROMPT not in "".join(page.text for page in got)
    assert PROMPT not in everything(state)


@pytest.mark.parametrize("way", ["syslog+tcp", "syslog+udp"])
async def test_s6_only_allowed_senders_are_heard(tmp_path, way):
    """`allow` names networks; all others are counted as refused, and nothing of them is read."""
    with closing(Forger(way, tmp_path)) as stranger:
        source = f"{stranger.source}?allow=192.0.2.0/24"
        async with simulator(WARM) as sim, serving(sim.url, log=source) as sidecar:

            async def refused():
                await anyio.to_thread.run_sync(stranger.write, [COMPILE])
                (log,) = (await sidecar.client.get("/status")).json()["logs"]
                return log["counts"] if log["counts"]["refused"] else None

            counts = await until(refused)
            assert counts["lines"] == 0
            await sidecar.until_ready()

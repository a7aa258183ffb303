"""A simulated engine with cold costs of seconds, and the sidecar that belongs to it: processes."""

import json
import signal
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any, Self

from tests.live.process import Process, free_port
from tests.live.sidecar import Sidecar
from tests.proxies.proxy import Backend
from tests.proxies.users import MARK

SHAPES = """
name: users
cells:
  - {concurrency: 1, prompt_tokens: 350, output_tokens: 6}
  - {concurrency: 4, prompt_tokens: 48, output_tokens: 6}
engine: {max_num_seqs: 16, max_num_batched_tokens: 2048}
converge: {floor_s: 0.5}
"""
"""What the users do: alone and several at once. 0.5 s: a cold cost is seconds, jitter is not."""

RULES = """
- {{name: first_request, key: [rank], cost_s: {cold_s}}}
- {{name: several_at_once, when: {{reqs: {{min: 2}}}}, cost_s: {cold_s}}}
"""

_LIMIT_S = 60.0


class Engine:
    """`vllm-warmup sim`, cold in two ways for `cold_s` each; a life's log is its own file."""

    def __init__(self, folder: Path, *, host: str = "127.0.0.1", cold_s: float) -> None:
        self.address = f"{host}:{free_port()}"
        self.lives = 0
        self._folder = folder
        self._host = host
        self._rules = folder / "rules.yaml"
        self._rules.write_text(RULES.format(cold_s=cold_s))
        self._process: Process | None = None

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    @property
    def log(self) -> str:
        """Of this life."""
        file = self._folder / f"engine-{self.lives}.log"
        return file.read_text(errors="replace") if file.exists() else ""

    def start(self, after_s: float) -> None:
        """Its port refuses for `after_s`, as an engine's that loads its weights."""
        assert self._process is None, "the engine runs already"
        self.lives += 1
        command = (
            *(sys.executable, "-m", "sidecar", "sim", "--rules", str(self._rules)),
            *("--host", self._host, "--port", self.address.rpartition(":")[2]),
            *("--start-delay-s", str(after_s)),
            *("--log-file", str(self._folder / f"engine-{self.lives}.log")),
        )
        self._process = Process(command, self._folder / "engine.out")

    def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.end(how, limit_s=10)

    def turn(self, **knobs: Any) -> dict[str, Any]:
        """What the simulator tells of itself, after its knobs were turned."""
        body = json.dumps(knobs).encode() if knobs else None
        request = urllib.request.Request(f"{self.url}/_sim", body)
        with urllib.request.urlopen(request, timeout=20) as answer:
            return dict(json.load(answer))

    def payers(self) -> set[str]:
        """Ids of all requests of this life that waited in a step that was cold: the truth."""
        return {name for paid in self.turn()["ledger"] for name in paid["request_ids"]}

    def users_before_last_wave(self) -> int:
        """Requests of users that this life answered before the sidecar's last one, by its log."""
        posts = [line for line in self.log.splitlines() if '"POST /v1/' in line]
        waves = [number for number, line in enumerate(posts) if MARK not in line]
        return sum(MARK in line for line in posts[: waves[-1]]) if waves else 0


class Node:
    """One machine: an engine and its sidecar."""

    def __init__(
        self, folder: Path, *, host: str = "127.0.0.1", port: int | None = None, cold_s: float
    ) -> None:
        folder.mkdir(exist_ok=True)
        port = port or free_port()
        self.engine = Engine(folder, host=host, cold_s=cold_s)
        self.sidecar = Sidecar(self.engine.url, folder, SHAPES, host=host, port=port)
        self.backend = Backend(self.engine.address, f"{host}:{port}")

    def start(self, after_s: float = 1.0) -> None:
        self.engine.start(after_s)
        self.sidecar.start()

    def wait_open(self, limit_s: float = _LIMIT_S) -> float:
        """When the gate was seen open, by `time.monotonic`; it may be open a moment longer."""
        self.sidecar.wait_for("ready", limit_s)
        return time.monotonic()

    def wait_shut(self, limit_s: float = 10.0) -> None:
        self.sidecar.wait_until(
            "its gate is shut", lambda: not (self.sidecar.ready() or {})["ready"], limit_s
        )

    def end(self) -> None:
        if self.sidecar.runs:
            self.sidecar.end()
        self.engine.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

"""The sidecar as its users run it: a process, its settings in the environment, asked over HTTP."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any, Self

from tests.live.process import Process, free_port

_ANSWER_LIMIT_S = 20.0
_START_LIMIT_S = 60.0

NO_MONITOR = "none: vLLM has no JIT monitor on a CPU"
"""What the log of a real vLLM is worth here; its windows can be whole all the same."""


@dataclass(frozen=True, slots=True)
class Done:
    """A command that ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a small HTTP request got."""

    status: int
    body: dict[str, Any]


def get(url: str) -> Answer | None:
    """The JSON behind it, whatever the status; None while nothing answers."""
    try:
        try:
            answer = urllib.request.urlopen(url, timeout=_ANSWER_LIMIT_S)
        except urllib.error.HTTPError as problem:
            answer = problem
        with answer:
            return Answer(int(answer.status), json.load(answer))
    except (OSError, HTTPException):  # the latter: it ended in the middle of its answer
        return None


def wait_until(what: str, is_so: Callable[[], bool], limit_s: float) -> None:
    """Poll; raises AssertionError naming what did not come about."""
    until = time.monotonic() + limit_s
    while True:
        is_over = time.monotonic() > until  # before it is asked: a poll may stand still itself
        if is_so():
            return
        assert not is_over, f"after {limit_s:.0f} s still not: {what}"
        time.sleep(0.1)


def assert_heard(status: dict[str, Any], log: str) -> None:
    """Of /status: the windows of its waves are whole, and the log carries the verdict as said.

    The sidecar waits for a fence for two seconds: a machine that stands still as long costs a
    window here and there, and the grid's log is said to be partial then.
    """
    windows = [wave["window"] for cell in status["cells"] for wave in cell["waves"]]
    late = len(windows) - windows.count("complete")
    assert late <= len(windows) // 8, windows
    assert windows
    told = status["log"]
    assert told == log or (late and told.startswith("partial: ")), told


def environment(settings: Mapping[str, str]) -> dict[str, str]:
    """This process's, without WARMUP_* of whoever runs the tests, with `settings`."""
    return {k: v for k, v in os.environ.items() if not k.startswith("WARMUP_")} | dict(settings)


def vllm_warmup(*arguments: str, limit_s: float = 120.0, **settings: str) -> Done:
    """Run one command of the sidecar to its end."""
    done = subprocess.run(
        [sys.executable, "-m", "sidecar", *arguments],
        env=environment(settings),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)


class Sidecar:
    """`vllm-warmup serve` on loopback, on an ephemeral port unless one is given; may be started
    again after an end."""

    def __init__(
        self,
        engine_url: str,
        folder: Path,
        shapes: str,
        *,
        host: str = "127.0.0.1",
        port: int | None = None,
        **settings: str,
    ) -> None:
        self.state_dir = folder / "state"
        self.state_dir.mkdir(exist_ok=True)
        self._shapes = folder / "shapes.yaml"
        self._shapes.write_text(shapes)
        self._log = folder / "sidecar.log"
        self._host = host
        self._port = port or free_port()
        self._process: Process | None = None
        self._settings = {
            "WARMUP_ENGINE_URL": engine_url,
            "WARMUP_SHAPES": str(self._shapes),
            "WARMUP_HOST": host,
            "WARMUP_PORT": str(self._port),
            "WARMUP_STATE_DIR": str(self.state_dir),
            **settings,
        }

    @property
    def url(self) -> str:
        return f"http://{self._host}:{self._port}"

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def pid(self) -> int:
        assert self._process is not None, "the sidecar was not started"
        return self._process.pid

    @property
    def runs(self) -> bool:
        """It was started and not ended."""
        return self._process is not None

    def start(self) -> None:
        assert self._process is None, "the sidecar runs already"
        command = (sys.executable, "-m", "sidecar", "serve")
        self._process = Process(command, self._log, env=environment(self._settings))
        self.wait_until("it answers", lambda: self.ready() is not None, _START_LIMIT_S)

    def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Its exit status."""
        process, self._process = self._process, None
        assert process is not None, "the sidecar was not started"
        return process.end(how, limit_s=10)

    def ready(self) -> dict[str, Any] | None:
        """The body of /ready, whatever its status; None while nothing answers."""
        return self.get("/ready")

    def reasons(self) -> list[str]:
        """Why the gate is shut; none while it is open or nothing answers."""
        body = self.ready()
        return [] if body is None or body["ready"] else list(body["reasons"])

    def is_sending(self) -> bool:
        """Whether it warms, and does not rest between two waves."""
        reasons = self.reasons()
        return bool(reasons) and all(reason.startswith("warming: ") for reason in reasons)

    @property
    def in_flight(self) -> str:
        """The cell of the wave that is being sent now; empty between two of them."""
        if not self.is_sending():  # first: what a killed sidecar left is judged before it sends
            return ""
        try:
            return str(json.loads((self.state_dir / "in-flight.json").read_text())["cell"])
        except FileNotFoundError:
            return ""

    def get(self, path: str) -> dict[str, Any] | None:
        answer = get(self.url + path)
        return None if answer is None else answer.body

    def report(self) -> dict[str, Any]:
        """The last run's report, as the command prints it."""
        done = vllm_warmup("report", "--json", WARMUP_STATE_DIR=str(self.state_dir))
        assert done.code == 0, done.err
        return dict(done.json)

    def wait_for(self, state: str, limit_s: float = 120.0) -> dict[str, Any]:
        """Wait for a state of /ready; the body that told it."""
        body: dict[str, Any] = {}

        def is_so() -> bool:
            nonlocal body
            body = self.ready() or {}
            return bool(body["state"] == state)

        self.wait_until(f"it is {state}", is_so, limit_s)
        return body

    def wait_until(self, what: str, is_so: Callable[[], bool], limit_s: float) -> None:
        """Poll; raises AssertionError with the last /ready and the end of the log."""

        def is_so_or_never() -> bool:
            with suppress(KeyError):  # nothing answered
                if is_so():
                    return True
            assert self._process is None or self._process.code is None, f"it ended before: {what}"
            return False

        try:
            wait_until(what, is_so_or_never, limit_s)
        except AssertionError as problem:
            tail = "\n".join(self.log.splitlines()[-20:])
            raise AssertionError(f"{problem}\n/ready: {self.ready()}\n{tail}") from None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self.end()

"""What a user of the engine does and sees, without any code of the sidecar."""

import json
import random
import threading
import time
import urllib.request
from dataclasses import dataclass
from typing import Any, Self


def completion(url: str, prompt_tokens: int, **fields: Any) -> dict[str, Any]:
    """The engine's stream-less answer to a prompt of random token ids."""
    body = {"model": "tiny", "max_tokens": 4, "ignore_eos": True} | fields
    prompt = [random.randrange(300, 1500) for _ in range(prompt_tokens)]
    with urllib.request.urlopen(_post(url, body | {"prompt": prompt}), timeout=120) as answer:
        return dict(json.load(answer))


def ttft_s(url: str, prompt_tokens: int, *, rank: int | None = None, **fields: Any) -> float:
    """Seconds to the first event of a streamed completion, by the clock of a user."""
    prompt = [random.randrange(300, 1500) for _ in range(prompt_tokens)]
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 4, "stream": True, "ignore_eos": True}
    request = _post(url, body | fields)
    if rank is not None:
        request.add_header("X-data-parallel-rank", str(rank))
    began = time.monotonic()
    with urllib.request.urlopen(request, timeout=120) as answer:
        answer.readline()
        took = time.monotonic() - began
        answer.read()
    return took


def counter(url: str, name: str, label: str = "") -> float:
    """A counter of /metrics, summed over its series that hold `label`."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    series = [line for line in lines if line.startswith(f"{name}{{") and label in line]
    assert series, f"{name} is not in /metrics"
    return sum(float(line.rsplit(" ", 1)[1]) for line in series)


def _post(url: str, body: dict[str, Any]) -> urllib.request.Request:
    return urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )


@dataclass(slots=True)
class Traffic:
    """Somebody who uses the engine without a pause, until the block ends."""

    url: str
    sent: int = 0
    _stop: threading.Event | None = None
    _thread: threading.Thread | None = None

    def _run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            completion(self.url, random.randrange(20, 200), max_tokens=8)
            self.sent += 1

    def __enter__(self) -> Self:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(self._stop,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._stop is not None
        assert self._thread is not None
        self._stop.set()
        self._thread.join(120)

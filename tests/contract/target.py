"""One server under contract, simulated or real, and small words to ask it with."""

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import anyio
import httpx

API_KEY = "contract-key"
MODEL = "tiny"
MAX_MODEL_LEN = 8192
SETTLE_LIMIT_S = 30.0
FIRST_ID = 300
"""Token ids from here on are plain text in both tokenizers."""
BEARER = {"authorization": f"Bearer {API_KEY}"}
NOTHING: Mapping[str, str] = {}
SAMPLE = re.compile(r"^([a-z0-9_:]+)(?:\{(.*)\})? (\S+)$")
LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class Event:
    """One `data:` line of a stream, with seconds since the request was sent."""

    at_s: float
    data: str

    @property
    def json(self) -> dict[str, Any]:
        parsed = json.loads(self.data)
        assert isinstance(parsed, dict)
        return parsed


@dataclass(frozen=True, slots=True)
class Page:
    """A /metrics page: types by family, and samples by name."""

    types: Mapping[str, str]
    samples: Mapping[str, list[tuple[Mapping[str, str], float]]]

    @classmethod
    def parse(cls, text: str) -> "Page":
        types: dict[str, str] = {}
        samples: dict[str, list[tuple[Mapping[str, str], float]]] = {}
        for line in text.splitlines():
            if line.startswith("# TYPE "):
                _, _, name, kind = line.split(" ")
                types[name] = kind
            elif match := SAMPLE.match(line):
                labels = dict(LABEL.findall(match[2] or ""))
                samples.setdefault(match[1], []).append((labels, float(match[3])))
        return cls(types, samples)

    def sum(self, name: str, **labels: str) -> float:
        """Over every label set that has these."""
        return sum(
            value
            for found, value in self.samples[name]
            if all(found.get(key) == wanted for key, wanted in labels.items())
        )


@dataclass(slots=True)
class Target:
    """A running server with an API key, --enable-prompt-tokens-details and dev mode."""

    client: httpx.AsyncClient
    first_request_s: float = 0.0
    """To the first token of the very first request of its life."""
    warm_request_s: float = 0.0
    """The shortest of the next three: any of them may be held up by other things."""

    async def get(self, path: str) -> httpx.Response:
        return await self.client.get(path, headers=BEARER)

    async def post(
        self, path: str, body: object, headers: Mapping[str, str] = NOTHING
    ) -> httpx.Response:
        return await self.client.post(path, json=body, headers={**BEARER, **headers})

    async def stream(
        self, path: str, body: Mapping[str, Any], headers: Mapping[str, str] = NOTHING
    ) -> list[Event]:
        """The events of an answer that has to be a stream."""
        events: list[Event] = []
        sent_s = time.monotonic()
        async with self.client.stream(
            "POST", path, json={**body, "stream": True}, headers={**BEARER, **headers}
        ) as answer:
            assert answer.status_code == 200, await answer.aread()
            assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
            async for line in answer.aiter_lines():
                if line:
                    assert line.startswith("data: "), line
                    events.append(Event(time.monotonic() - sent_s, line.removeprefix("data: ")))
        return events

    async def settled(self, requests: float) -> Page:
        """The page once so many requests have ended: counters may follow the answer by a moment."""
        with anyio.fail_after(SETTLE_LIMIT_S):
            while True:
                page = await self.page()
                if page.sum("vllm:request_success_total") >= requests:
                    return page
                await anyio.sleep(0.02)

    async def page(self) -> Page:
        return Page.parse((await self.client.get("/metrics")).text)


def prompt(tokens: int, start: int = 0) -> list[int]:
    """Ids of plain text, different for different `start`."""
    return [FIRST_ID + (start + 7 * i) % 1100 for i in range(tokens)]


def completion(tokens: int = 3, output: int = 2, **fields: Any) -> dict[str, Any]:
    return {
        "model": MODEL,
        "prompt": prompt(tokens),
        "max_tokens": output,
        "ignore_eos": True,
        **fields,
    }


def chat(text: str = "Hello", output: int = 3, **fields: Any) -> dict[str, Any]:
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": text}],
        "max_completion_tokens": output,
        "ignore_eos": True,
        **fields,
    }

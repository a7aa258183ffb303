"""What a stream that waits is told, and what happens to a step that takes too long."""

import io
from dataclasses import replace

import anyio
import httpx
import pytest

from sidecar.core.logs.events import Complaint, Trouble
from sidecar.core.logs.reader import LogReader
from sidecar.simulator.profile import Profile
from sidecar.simulator.rulesfile import parse_rules
from sidecar.simulator.server import simulator

SLOW = Profile(time_scale=0.1, rules=parse_rules("[{name: slow, cost_s: 5}]", "r"))
"""Its first step takes half a second of the wall's."""
BODY = {"prompt": [300, 301, 302], "max_tokens": 3, "ignore_eos": True, "stream": True}


async def lines_of(profile: Profile) -> list[str]:
    async with (
        simulator(profile) as sim,
        httpx.AsyncClient(base_url=sim.url, timeout=60) as client,
        client.stream("POST", "/v1/completions", json=BODY) as answer,
    ):
        return [line async for line in answer.aiter_lines() if line]


async def test_comments_keep_a_waiting_stream_alive() -> None:
    """With --sse-keep-alive-interval comments come before the first event, and none after it."""
    lines = await lines_of(replace(SLOW, sse_keep_alive_s=0.01))
    comments = [line for line in lines if line == ": keep-alive"]
    assert comments
    assert lines[: len(comments)] == comments
    assert lines[len(comments) :][-1] == "data: [DONE]"
    assert len([line for line in lines if line.startswith("data: {")]) == 3


async def test_no_comments_unless_asked_for() -> None:
    """They are off by default, as in vLLM."""
    assert all(line.startswith("data: ") for line in await lines_of(SLOW))


async def test_a_step_that_takes_too_long_kills_the_engine() -> None:
    """Past VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS: the log says so, streams break, the port refuses."""
    log = io.StringIO()
    async with (
        simulator(replace(SLOW, execute_timeout_s=2), log=log) as sim,
        httpx.AsyncClient(base_url=sim.url, timeout=60) as client,
    ):
        with pytest.raises(httpx.TransportError), anyio.fail_after(90):
            await client.post("/v1/completions", json=BODY)
        await sim.died()
        with pytest.raises(httpx.ConnectError):
            await client.get("/health")
    reader = LogReader()
    events = [reader.feed(line) for line in log.getvalue().splitlines()]
    told = [event.complaint for event in events if isinstance(event, Trouble)]
    assert told == [Complaint.STEP_TIMEOUT, Complaint.ENGINE_DEAD]


async def test_a_step_within_the_limit_is_waited_for() -> None:
    """A compile that is shorter than the limit is a slow answer and no more."""
    assert (await lines_of(replace(SLOW, execute_timeout_s=300)))[-1] == "data: [DONE]"

"""The server on a real port: starts, lines, faults and restarts."""

import asyncio
import gc
import io
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio
import httpx
import pytest
from anyio.lowlevel import checkpoint

from sidecar.core.logs.events import Complaint, Trouble
from sidecar.core.logs.parse import parse
from sidecar.simulator.faults import FailOn, Knobs
from sidecar.simulator.model import EngineConfig
from sidecar.simulator.profile import Profile
from sidecar.simulator.rulesfile import parse_rules
from sidecar.simulator.server import Simulator, simulator

FAST = Profile(time_scale=0.1, rules=())
LIMIT_S = 60.0
BODY = {"prompt": [300, 301, 302], "max_tokens": 3, "ignore_eos": True}


@asynccontextmanager
async def running(
    profile: Profile = FAST, log: io.StringIO | None = None
) -> AsyncIterator[tuple[Simulator, httpx.AsyncClient]]:
    async with (
        simulator(profile, log=log) as sim,
        httpx.AsyncClient(base_url=sim.url, timeout=LIMIT_S) as client,
    ):
        yield sim, client


async def ask(client: httpx.AsyncClient, **fields: Any) -> httpx.Response:
    return await client.post("/v1/completions", json={**BODY, **fields})


async def scrape(client: httpx.AsyncClient, name: str) -> float:
    page = (await client.get("/metrics")).text
    return sum(
        float(line.rpartition(" ")[2])
        for line in page.splitlines()
        if line.startswith((name + " ", name + "{"))
    )


async def test_it_refuses_until_it_has_started() -> None:
    """During the start delay a connect is refused; after it, /health is 200."""
    profile = replace(FAST, start_delay_s=5.0)
    began_s = time.monotonic()
    async with (
        simulator(profile, wait=False) as sim,
        httpx.AsyncClient(base_url=sim.url, timeout=LIMIT_S) as client,
    ):
        assert await refuses(client) or time.monotonic() - began_s > 0.5
        await sim.opened()
        assert (await client.get("/health")).status_code == 200


async def refuses(client: httpx.AsyncClient) -> bool:
    try:
        await client.get("/health")
    except httpx.ConnectError:
        return True
    return False


async def test_a_restart_is_another_boot_and_cold_again() -> None:
    """Reset, refused, back: new start time, counters at zero, the same cost paid once more."""
    rules = parse_rules("[{name: first, cost_s: 0.5}]", "r")
    async with running(replace(FAST, rules=rules)) as (sim, client):
        await ask(client)
        started = await scrape(client, "process_start_time_seconds")
        costs = [(await sim.opened()).engine.ledger[0].cost_s]
        assert (await client.post("/_sim", json={"restart_after_s": 0.3})).status_code == 200
        await sim.died()
        died_s = time.monotonic()
        assert await refuses(client) or time.monotonic() - died_s > 0.3
        life = await sim.opened()
        assert life.number == 2
        assert await scrape(client, "vllm:prompt_tokens_total") == 0
        assert await scrape(client, "process_start_time_seconds") > started
        await ask(client)
        costs.append(life.engine.ledger[0].cost_s)
        assert costs[0] == costs[1]


async def test_death_resets_what_is_running() -> None:
    """A stream in flight breaks, and later connects are refused."""
    async with running(replace(FAST, time_scale=1.0)) as (sim, client):

        async def cut_off() -> None:
            body = {**BODY, "max_tokens": 4000, "stream": True}
            async with client.stream("POST", "/v1/completions", json=body) as answer:
                async for _ in answer.aiter_bytes():
                    sim.die()

        with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
            await cut_off()
        with pytest.raises(httpx.ConnectError):
            await client.get("/health")


async def answer_of(sim: Simulator, client: socket.socket) -> bytes:
    loop = asyncio.get_running_loop()
    with anyio.fail_after(LIMIT_S):
        await loop.sock_connect(client, ("127.0.0.1", sim.port))
        await loop.sock_sendall(client, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        return await loop.sock_recv(client, 100)


async def test_who_connects_in_the_moment_of_death_is_reset_too() -> None:
    """However far the connection has come: no dead process answers, and none is left open."""
    for turns in range(6):
        async with simulator(FAST) as sim:
            with socket.socket() as client:
                client.setblocking(False)
                asked = asyncio.create_task(answer_of(sim, client))
                for _ in range(turns):
                    await checkpoint()
                sim.die()
                with pytest.raises(ConnectionError):
                    await asked
        gc.collect()


async def test_who_waits_for_a_life_does_not_miss_it() -> None:
    """Though it dies once more before it lives."""
    async with (
        simulator(replace(FAST, start_delay_s=0.1), wait=False) as sim,
        anyio.create_task_group() as group,
    ):
        group.start_soon(sim.opened, LIMIT_S)
        await checkpoint()
        sim.die()
        sim.start()


async def test_the_access_line_comes_before_the_compile_and_its_line_after() -> None:
    """Access line with the headers, then the kernel's line, then the first token."""
    log = io.StringIO()
    rules = parse_rules("[{name: some_kernel, cost_s: 1, logged: true}]", "r")
    async with (
        running(replace(FAST, rules=rules), log) as (_, client),
        client.stream("POST", "/v1/completions", json={**BODY, "stream": True}) as answer,
    ):
        assert '"POST /v1/completions HTTP/1.1" 200 OK' in log.getvalue()
        parts = answer.aiter_bytes()
        await anext(parts)
        lines = log.getvalue().splitlines()
    (event,) = [line for line in lines if "some_kernel" in line]
    (access,) = [line for line in lines if '"POST /v1/completions HTTP/1.1" 200 OK' in line]
    assert lines.index(access) < lines.index(event)
    assert event.endswith(
        "[jit_monitor.py:132] Triton kernel JIT compilation during inference: some_kernel. "
        "This causes a latency spike; consider extending warmup to cover this shape/config."
    )
    assert event.startswith("(EngineCore pid=")
    assert sum("Kernel JIT monitor activated" in line for line in lines) == 1


@pytest.mark.parametrize(("verbose", "told"), [(False, 1), (True, 2)])
async def test_a_kernel_speaks_once_unless_verbose(verbose: bool, told: int) -> None:
    """A second specialisation of the same name is silent without --jit-monitor-verbose."""
    log = io.StringIO()
    rules = parse_rules(
        "[{name: k, key: [tokens], when: {prefill: true}, cost_s: 0.01, logged: true}]", "r"
    )
    async with running(replace(FAST, rules=rules, jit_monitor_verbose=verbose), log) as (_, client):
        await ask(client)
        await ask(client, prompt=[300] * 9)
    assert log.getvalue().count("JIT compilation during inference: k") == told


async def test_iteration_lines_tell_every_step() -> None:
    """--enable-logging-iteration-details: one line a step, with its composition."""
    log = io.StringIO()
    async with running(replace(FAST, log_iterations=True), log) as (_, client):
        await ask(client)
    lines = [line for line in log.getvalue().splitlines() if "Iteration(" in line]
    assert len(lines) == 3
    assert (
        "Engine 000: Iteration(0): 1 context requests, 3 context tokens, 0 generation requests, "
        "0 generation tokens, iteration elapsed time:" in lines[0]
    )


async def test_a_cell_can_be_made_to_fail() -> None:
    """500 for prompts of a length, so many times; others pass."""
    async with running() as (sim, client):
        sim.turn(Knobs(fail=FailOn(min_prompt_tokens=10, times=1)))
        statuses = [(await ask(client, prompt=[300] * n)).status_code for n in (9, 10, 10)]
        assert statuses == [200, 500, 200]


async def test_a_long_prompt_kills_the_engine() -> None:
    """Above oom_above_tokens its log says why, the connection breaks and the port refuses."""
    log = io.StringIO()
    async with running(log=log) as (sim, client):
        sim.turn(Knobs(oom_above_tokens=100))
        assert (await ask(client, prompt=[300] * 100)).status_code == 200
        with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
            await ask(client, prompt=[300] * 101)
        with pytest.raises(httpx.ConnectError):
            await client.get("/health")
    troubles = [event for line in log.getvalue().splitlines() if (event := parse(line))]
    assert [t.complaint for t in troubles if isinstance(t, Trouble)] == [
        *(Complaint.OUT_OF_MEMORY, Complaint.ENGINE_DEAD)
    ]


async def test_a_hung_engine_still_answers_health() -> None:
    """No token comes while hung; the request goes on when it is let go."""
    async with running() as (sim, client):
        sim.turn(Knobs(hang=True))
        async with anyio.create_task_group() as group:
            answers: list[int] = []

            async def one() -> None:
                answers.append((await ask(client)).status_code)

            group.start_soon(one)
            life = await sim.opened()
            with anyio.fail_after(LIMIT_S):
                while not life.driver.in_flight:  # noqa: ASYNC110 - as another process sees it
                    await anyio.sleep(0.01)
            assert (await client.get("/health")).status_code == 200
            assert answers == []
            sim.turn(Knobs(hang=False))
        assert answers == [200]


async def test_a_sleeping_engine_lets_requests_wait() -> None:
    """Asleep nothing is computed, /is_sleeping and the metric say so, waking goes on."""
    async with running(replace(FAST, dev_mode=True)) as (sim, client):
        sim.turn(Knobs(sleep_level=1))
        assert (await client.get("/is_sleeping")).json() == {"is_sleeping": True}
        with pytest.raises(httpx.TimeoutException):
            await client.post("/v1/completions", json=BODY, timeout=0.1)
        await client.post("/wake_up")
        assert (await ask(client)).status_code == 200


async def test_admission_limits_answer_503() -> None:
    """Rejected requests have vLLM's words and are counted."""
    async with running() as (sim, client):
        sim.turn(Knobs(reject=True))
        answer = await ask(client)
        assert answer.status_code == 503
        assert "currently busy" in answer.json()["error"]["message"]
        assert await scrape(client, "vllm:admission_rejections_total") == 1


@pytest.mark.parametrize(
    ("kind", "sees"),
    [
        ("sse", b"data: {not json\n\n"),
        ("html", b"<html>"),
        ("wrong_json", b'{"hello":"world"}'),
        ("line", b"data: xxxx"),
        ("stream", b'data: {"id":"cmpl-0"'),
        ("truncate", b'data: {"id":"cmpl-0","object"'),
    ],
)
async def test_streams_can_be_garbage(kind: Any, sees: bytes) -> None:
    """Each kind begins as it should; the endless ones end with the client."""
    async with running() as (sim, client):
        sim.turn(Knobs(garbage=kind))
        got = b""
        try:
            async with client.stream(
                "POST", "/v1/completions", json={**BODY, "stream": True}
            ) as answer:
                async for part in answer.aiter_bytes():
                    got += part
                    if len(got) > 100_000:
                        break
        except httpx.HTTPError:
            assert kind == "truncate"
        assert got.startswith(sees)
        assert (len(got) > 100_000) is (kind in ("line", "stream"))


async def test_usage_can_be_wrong() -> None:
    """usage_offset is added to the prompt tokens that usage reports."""
    async with running() as (sim, client):
        sim.turn(Knobs(usage_offset=2))
        assert (await ask(client)).json()["usage"]["prompt_tokens"] == 5


async def test_identities_can_alternate() -> None:
    """Every second scrape is another process, as behind a load balancer."""
    async with running() as (sim, client):
        sim.turn(Knobs(alternate=True))
        seen = [await scrape(client, "process_start_time_seconds") for _ in range(4)]
        assert seen[0] == seen[2] != seen[1] == seen[3]


async def test_health_can_be_late_or_503() -> None:
    """health_delay_s delays /health alone; health_status changes its answer."""
    async with running() as (sim, client):
        sim.turn(Knobs(health_delay_s=0.3, health_status=503))
        began_s = time.monotonic()
        assert (await client.get("/health")).status_code == 503
        assert time.monotonic() - began_s >= 0.3


async def test_a_key_and_a_name_can_change() -> None:
    """An operator fixes the key, or serves another name: the next request meets it."""
    async with running(replace(FAST, api_key="old")) as (sim, client):
        assert (await ask(client)).status_code == 401
        sim.turn(Knobs(api_key="", model="other"))
        assert (await ask(client, model="other")).status_code == 200
        assert (await ask(client, model="sim")).status_code == 404


async def test_reasoning_comes_as_reasoning() -> None:
    """With a reasoning parser the first half is `reasoning`, the rest `content`; off by request."""
    async with running(replace(FAST, is_reasoning=True)) as (_, client):
        body = {
            "messages": [{"role": "user", "content": "Hi"}],
            "max_completion_tokens": 10,
            "ignore_eos": True,
        }
        said = (await client.post("/v1/chat/completions", json=body)).json()
        message = said["choices"][0]["message"]
        assert message["reasoning"]
        assert message["content"]
        plain = {**body, "chat_template_kwargs": {"enable_thinking": False}}
        said = (await client.post("/v1/chat/completions", json=plain)).json()
        assert said["choices"][0]["message"]["reasoning"] is None
        assert said["usage"]["completion_tokens"] == 10


async def test_ranks_have_their_own_series_and_cold_state() -> None:
    """Two data-parallel ranks: two `engine` labels, no process_* series, each cold by itself."""
    rules = parse_rules("[{name: first, cost_s: 0.1}]", "r")
    profile = replace(FAST, rules=rules, engine=EngineConfig(ranks=2))
    async with running(profile) as (sim, client):
        for rank in ("0", "0", "1"):
            headers = {"x-data-parallel-rank": rank}
            await client.post("/v1/completions", json=BODY, headers=headers)
        page = (await client.get("/metrics")).text
        assert 'vllm:prompt_tokens_total{engine="0",model_name="sim"} 6.0' in page
        assert 'vllm:prompt_tokens_total{engine="1",model_name="sim"} 3.0' in page
        assert "process_start_time_seconds" not in page
        assert "_created" not in page
        assert [paid.rank for paid in (await sim.opened()).engine.ledger] == [0, 1]


async def test_drafts_are_accepted_on_repetition_only() -> None:
    """Random ids never accept a draft, repeated text does; the families say so."""
    profile = replace(FAST, engine=EngineConfig(draft_tokens=3))
    async with running(profile) as (_, client):
        name = "vllm:spec_decode_num_accepted_tokens_total"
        await ask(client, prompt=list(range(300, 400)), max_tokens=20)
        assert await scrape(client, name) == 0
        answer = await ask(client, prompt=[300, 301] * 50, max_tokens=20)
        assert answer.json()["usage"]["completion_tokens"] == 20
        assert await scrape(client, name) > 0
        assert await scrape(client, "vllm:spec_decode_num_drafts_total") > 0


async def test_the_truth_can_be_asked_over_http() -> None:
    """GET /_sim tells requests and costs; a misspelt knob is refused."""
    rules = parse_rules("[{name: first, cost_s: 0.1}]", "r")
    async with running(replace(FAST, rules=rules)) as (_, client):
        await ask(client)
        truth = (await client.get("/_sim")).json()
        assert truth["generation_requests"] == 1
        assert [paid["rule"] for paid in truth["ledger"]] == ["first"]
        assert (await client.post("/_sim", json={"dye": True})).status_code == 422


async def test_a_wave_of_64_is_answered_exactly() -> None:
    """64 at once on their own connections: all complete, all counted, one wave of steps."""
    profile = replace(FAST, engine=EngineConfig(max_num_seqs=64))
    async with running(profile) as (_, client):

        async def one(index: int) -> None:
            answer = await ask(client, prompt=[300 + index] * 20, max_tokens=4)
            assert answer.json()["usage"]["total_tokens"] == 24

        async with anyio.create_task_group() as group:
            for index in range(64):
                group.start_soon(one, index)
        assert await scrape(client, "vllm:request_success_total") == 64
        assert await scrape(client, "vllm:generation_tokens_total") == 256

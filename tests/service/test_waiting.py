"""`/ready?wait=`: requests that wait for the gate, over real connections."""

import asyncio
from dataclasses import replace

import anyio
import pytest

from sidecar.core.watch.gate import State
from sidecar.simulator.faults import Knobs
from sidecar.simulator.server import simulator
from sidecar.web.waiting import MAX_WAITERS
from tests.patience import until
from tests.service.between import relay, reply
from tests.service.running import WARM, serving
from tests.service.surface import surface
from tests.service.test_web import NOTHING, READY

NOWHERE = "http://127.0.0.1:9"
"""Nobody listens there."""


async def test_who_waits_is_told_as_soon_as_the_gate_opens():
    """One request instead of a loop, also by HEAD; a restart on the way ends no wait."""
    async with simulator(WARM) as sim, serving(sim.url) as sidecar:
        answer = await sidecar.client.get("/ready?wait=60", timeout=90)
        assert (answer.status_code, answer.json()["state"]) == (200, "ready")
        assert answer.elapsed.total_seconds() < 60
        assert "retry-after" not in answer.headers
        sim.turn(Knobs(restart_after_s=0.05))
        await sidecar.until(lambda body: not body["ready"])
        assert (await sidecar.client.head("/ready?wait=60", timeout=90)).status_code == 200
        assert (await sidecar.ready())["boot"]["number"] == 2


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        (None, "nobody listens there: wait if it is starting, or correct WARMUP_ENGINE_URL"),
        ({"/health": reply(503), "/v1/models": reply(503)}, "wait, it may still be loading"),
        ({"/health": reply(503)}, "/health is unavailable; wait, or see its log"),
        ({"/v1/models": reply(401)}, "set WARMUP_API_KEY"),
        ({"/v1/models": reply(404)}, "check the address and the path in WARMUP_ENGINE_URL"),
        ({"/v1/models": b"no HTTP at all\r\n\r\n"}, "see in its log why, or correct"),
    ],
    ids=["refused", "loading", "starting", "key", "stranger", "rubbish"],
)
async def test_whoever_waits_for_an_engine_is_told_what_to_do(answers, said):
    """Each way in which an engine is not there yet has its own sentence, with a remedy."""
    async with simulator(WARM) as sim, relay(sim.port) as address:
        address.answers.update(answers or {})
        async with serving(NOWHERE if answers is None else address.url) as sidecar:
            await sidecar.until(lambda body: said in " ".join(body["reasons"]))


async def test_who_waits_is_told_when_the_time_is_up():
    """What stands in the way by then, and when to ask again."""
    async with serving(NOWHERE) as sidecar:
        answer = await sidecar.client.get("/ready?wait=0.3")
        assert (answer.status_code, answer.json()["state"]) == (503, "waiting")
        assert 0.25 < answer.elapsed.total_seconds() < 30
        assert int(answer.headers["retry-after"]) >= 1


async def test_a_sidecar_that_stops_answers_those_who_wait():
    """With 503 and why, not with a broken connection."""
    async with serving(NOWHERE) as sidecar:
        port = int(sidecar.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /ready?wait=60 HTTP/1.1\r\nHost: a\r\n\r\n")
        for _ in range(2):  # what came before was read before
            await sidecar.ready()
    answer = await reader.read()  # head and body may come one after the other
    writer.close()
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b'"the sidecar is stopping"' in answer


async def test_few_wait_at_once_and_all_are_woken():
    """The next one is told at once to come without waiting, and nobody is forgotten."""
    answers = []
    async with surface(NOTHING) as shown, shown.client() as http:

        async def wait():
            answers.append((await http.get("/ready?wait=60")).status_code)

        async with anyio.create_task_group() as group:
            for _ in range(MAX_WAITERS):
                group.start_soon(wait)
            await until(lambda: shown.waiting.count == MAX_WAITERS)
            crowded = await http.get("/ready?wait=60")
            assert crowded.status_code == 503
            assert "64 requests wait" in crowded.json()["reasons"][-1]
            assert int(crowded.headers["retry-after"]) >= 1
            assert "64 requests" not in (await http.get("/ready")).text
            assert answers == []
            shown.show(READY)
    assert answers == [200] * MAX_WAITERS
    assert shown.waiting.count == 0


async def test_a_gate_that_opens_and_shuts_in_one_go_wakes_nobody_for_nothing():
    """What is answered is true when it is answered."""
    async with surface(NOTHING) as shown, shown.client() as http:
        answers = []

        async def wait():
            answers.append(await http.get("/ready?wait=60"))

        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            await until(lambda: shown.waiting.count == 1)
            shown.show(READY)
            shown.show(NOTHING)
            await http.get("/ready")
            assert answers == []
            shown.show(replace(READY, state=State.STOPPING))
        assert answers[0].status_code == 503


async def test_who_hangs_up_frees_his_place():
    """Scripts that were killed must not take the places of others until their time is up."""
    async with surface(NOTHING) as shown, shown.client() as http:
        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(http.get, "/ready?wait=300")
            await until(lambda: shown.waiting.count == 5)
            group.cancel_scope.cancel()
        await until(lambda: shown.waiting.count == 0)

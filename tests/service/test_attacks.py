"""The whole sidecar against an engine's address that plays tricks: is the gate right both ways?"""

from dataclasses import replace

import anyio
import pytest

from sidecar.simulator.faults import Knobs
from sidecar.simulator.server import simulator
from sidecar.watch import NOT_ONE_ENGINE
from tests.service.between import relay, reply
from tests.service.running import NEVER_HELD_UP, PROFILE, WARM, serving
from tests.service.test_sidecar import served

KEY = "sekret-key-123"


async def test_two_engines_behind_one_address_are_named_before_anything_is_sent():
    """A balancer that gives each connection to the next engine; then only one is left."""
    async with (
        simulator(WARM) as one,
        simulator(WARM) as two,
        relay(one.port, two.port) as balancer,
        serving(balancer.url) as sidecar,
    ):
        await sidecar.until(lambda body: NOT_ONE_ENGINE in body["reasons"])
        assert served(one) == served(two) == 0
        balancer.ports = [one.port]
        balancer.cut()
        await sidecar.until_ready()


async def test_another_engine_behind_the_same_address_shuts_the_gate_at_once():
    """No probe is refused, /health says 200 all the time: the broken connection tells it."""
    async with (
        simulator(WARM) as one,
        simulator(PROFILE) as two,
        relay(one.port) as address,
        serving(address.url, rhythm=replace(NEVER_HELD_UP, health_every_s=0.1)) as sidecar,
    ):
        # The mark alone would see it after ten seconds.
        await sidecar.until_ready()
        await anyio.sleep(0.5)
        address.ports = [two.port]
        address.cut()
        body = await sidecar.until(lambda body: not body["ready"], limit_s=3.0)
        assert body["boot"]["number"] == 1
        await sidecar.until(lambda body: body["boot"]["number"] == 2)


@pytest.mark.parametrize("path", ["/metrics", "/v1/completions", "/health"])
async def test_an_engine_that_answers_rubbish_is_not_warm_and_recovers(path):
    """Not HTTP where an answer is due: never a proof; well again: proven, and no key is said."""
    async with simulator(replace(WARM, api_key=KEY)) as sim, relay(sim.port) as address:
        address.answers[path] = b"\x00\xff no HTTP at all\r\n\r\n" + KEY.encode()
        async with serving(address.url, api_key=KEY, shapes=CHAT) as sidecar:
            for _ in range(20):
                answer = await sidecar.client.get("/status")
                assert answer.status_code == 200
                assert not answer.json()["proven"]
                assert KEY not in answer.text
                await anyio.sleep(0.05)
            address.answers.clear()
            address.cut()
            await sidecar.until(lambda body: body["ready"], limit_s=60)


CHAT = """
budget: {request_timeout_s: 5}
cells: [{concurrency: 1, prompt_tokens: 65, output_tokens: 2, variant: chat}]
"""


async def test_without_metrics_the_end_is_unknown_and_not_warm():
    """Whether the engine served others can't be known: open by the operator's leave, unproven."""
    async with simulator(WARM) as sim, relay(sim.port) as address:
        address.answers["/metrics"] = reply(404, b'{"detail":"Not Found"}')
        async with serving(address.url) as sidecar:
            body = await sidecar.until_ready()
            assert not body["proven"]
            status = (await sidecar.client.get("/status")).json()
            assert status["verdict"] == "unknown"
            assert "counters could not be read" in " ".join(body["reasons"])


async def test_an_engine_that_flaps_is_open_only_on_what_was_warmed():
    """Restarts one after the other: each opening is on a boot that was sent every wave."""
    async with simulator(WARM) as sim, serving(sim.url) as sidecar:
        for number in range(1, 5):
            body = await sidecar.until_ready()
            assert body["boot"]["number"] >= number
            assert served(sim) > 0
            sim.turn(Knobs(restart_after_s=0.05))
            await sidecar.until(lambda body: not body["ready"], limit_s=2.0)

"""Whether an engine serves, as it is asked over HTTP."""

import json
from dataclasses import replace

import httpx
import pytest

from sidecar.adapters.answer import Answer
from sidecar.adapters.engine import Engine
from sidecar.adapters.presence import PresenceLine
from sidecar.core.watch.presence import Presence
from sidecar.core.wire.metrics import Scrape
from sidecar.simulator.faults import Knobs
from sidecar.simulator.server import simulator
from tests.service.running import WARM

DEV, PLAIN = WARM, replace(WARM, dev_mode=False)


async def presence_of(engine, sim, knobs, *, scrapes=False):
    sim.turn(knobs)
    if scrapes:
        await engine.scrape()
    return await engine.presence()


async def test_in_development_mode_each_state_is_told_at_once():
    """Asleep by its level, paused, rescaling, and serving again after each."""
    async with simulator(DEV) as sim:
        engine = Engine(sim.url, timeout_s=60.0)
        for knobs, back, presence in (
            (Knobs(sleep_level=1), Knobs(sleep_level=0), Presence.SLEEP_1),
            (Knobs(sleep_level=2), Knobs(sleep_level=0), Presence.SLEEP_2),
            (Knobs(paused=True), Knobs(paused=False), Presence.PAUSED),
            (Knobs(rescaling=True), Knobs(rescaling=False), Presence.RESCALING),
        ):
            assert await engine.presence() is Presence.SERVING
            assert await presence_of(engine, sim, knobs) is presence
            sim.turn(back)
        await engine.aclose()


async def test_without_it_the_metric_and_a_503_tell():
    """And the paths that are not there are not asked for again."""
    async with simulator(PLAIN) as sim:
        engine = Engine(sim.url, timeout_s=60.0)
        assert await engine.presence() is Presence.SERVING
        asleep = await presence_of(engine, sim, Knobs(sleep_level=2), scrapes=True)
        assert asleep is Presence.SLEEP_2
        assert await presence_of(engine, sim, Knobs(sleep_level=0)) is Presence.SERVING
        assert await presence_of(engine, sim, Knobs(rescaling=True)) is Presence.RESCALING
        await engine.aclose()


@pytest.mark.parametrize("profile", [DEV, PLAIN])
async def test_nobody_there_tells_nothing(profile):
    """Refused is not away: /health decides about that."""
    async with simulator(profile) as sim:
        engine = Engine(sim.url, timeout_s=60.0)
        assert await engine.presence() is Presence.SERVING
        sim.die()
        assert await engine.presence() is Presence.UNTOLD
        await engine.aclose()


@pytest.mark.parametrize("asleep_for", range(4))
async def test_an_engine_that_wakes_up_while_it_is_asked_serves(asleep_for):
    """What it was warmed for would be forgotten: of several answers each is of its own moment."""
    answered = []

    def is_asleep():
        answered.append(len(answered) < asleep_for)
        return answered[-1]

    async def get(path):
        body = json.dumps({path.removeprefix("/"): is_asleep()}).encode()
        return Answer(200, "application/json", body)

    async def scrape():
        asleep = is_asleep()
        return Scrape(asleep=asleep, sleep_level=1 if asleep else None)

    presence = await PresenceLine(get, scrape).ask()
    assert presence is (Presence.SLEEP_1 if asleep_for == 3 else Presence.SERVING)


async def test_pause_and_resume_have_the_form_of_a_real_server():
    """The simulated server's /pause and /resume move both flags, as vLLM 0.32's do."""
    async with simulator(DEV) as sim, httpx.AsyncClient(base_url=sim.url, timeout=60) as client:
        await client.post("/pause")
        assert (await client.get("/is_paused")).json() == {"is_paused": True}
        assert (await client.get("/is_sleeping")).json() == {"is_sleeping": True}
        await client.post("/resume")
        assert (await client.get("/is_paused")).json() == {"is_paused": False}

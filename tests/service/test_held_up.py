"""A sidecar that did not run for a while: paused, or without a core."""

import asyncio

import anyio
import pytest

from sidecar.core.policy import Rhythm
from sidecar.core.watch.boot import BootMark, Sightings
from sidecar.core.watch.presence import Presence
from sidecar.core.wire.health import Health
from sidecar.watch import Watch
from tests.service.fakes import Stage
from tests.service.virtualtime import VirtualLoop

MARK = BootMark(process_start_s=1.0)


@pytest.fixture(scope="module")
def anyio_backend():
    return "asyncio", {"loop_factory": VirtualLoop}


class Well:
    """An engine that is there and stays the same."""

    async def health(self) -> Health:
        return Health.UP

    async def mark(self) -> BootMark:
        return MARK

    async def presence(self) -> Presence:
        return Presence.SERVING


def stand_still(seconds: float) -> None:
    """All clocks go on, and nothing else does."""
    asyncio.get_running_loop().now += seconds


async def nothing(_: BootMark) -> None:
    pass


async def test_what_it_knew_before_does_not_count() -> None:
    """The watch ends, so that the gate is shut until the engine was looked at; none is blamed."""
    watch = Watch(Well(), Sightings(), Rhythm())
    losses = []

    async def run() -> None:
        losses.append(await watch.until_lost(MARK, nothing))

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(run)
            await anyio.sleep(10.5)
            stand_still(3.2)  # 2.7 s more than it wanted to sleep
            await anyio.sleep(3)
            assert losses == []
            stand_still(4)
    (loss,) = losses
    assert loss.reason.startswith("the sidecar itself was held up for ")
    assert not loss.broken


async def test_who_asks_before_it_has_noticed_is_not_told_of_the_time_before():
    """A request that waited in the socket is served before any timer: the gate is shown shut to it,
    too, and open again once the engine was looked at, without another wave."""
    stage = Stage()
    async with stage.running():
        await stage.until(lambda s: s.is_ready)
        await anyio.sleep(10)
        stand_still(2)
        assert stage.snapshot.is_ready
        await anyio.sleep(10)
        sent = stage.sent
        stand_still(5)
        told = stage.snapshot
        assert (told.is_ready, told.proven) == (False, False)
        assert told.reasons[0].startswith("the sidecar itself was held up for ")
        await anyio.sleep(0.5)
        assert stage.snapshot.is_ready
        assert stage.snapshots[-1] is stage.snapshot
    assert stage.sent == sent
    stand_still(60)
    assert stage.snapshot.is_ready, "who is no longer watched for is not late"

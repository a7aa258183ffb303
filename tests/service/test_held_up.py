"""A sidecar that did not run for a while: paused, or without a core."""

import asyncio

import anyio
import pytest

from sidecar.core.policy import Rhythm
from sidecar.core.watch.boot import BootMark, Sightings
from sidecar.core.watch.presence import Presence
from sidecar.core.wire.health import Health
from sidecar.watch import Watch
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

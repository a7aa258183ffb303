"""A sidecar that did not run for a while: paused, or without a core."""

import time

import anyio

from sidecar.core.policy import Rhythm
from sidecar.core.watch.boot import BootMark, Sightings
from sidecar.core.watch.presence import Presence
from sidecar.core.wire.health import Health
from sidecar.watch import Watch

MARK = BootMark(process_start_s=1.0)


class Well:
    """An engine that is there and stays the same."""

    async def health(self) -> Health:
        return Health.UP

    async def mark(self) -> BootMark:
        return MARK

    async def presence(self) -> Presence:
        return Presence.SERVING


async def nothing(_: BootMark) -> None:
    pass


async def test_what_it_knew_before_does_not_count() -> None:
    """The watch ends, so that the gate is shut until the engine was looked at; none is blamed."""
    watch = Watch(Well(), Sightings(), Rhythm(health_every_s=0.05, held_up_s=0.5))
    losses = []

    async def run() -> None:
        losses.append(await watch.until_lost(MARK, nothing))

    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            group.start_soon(run)
            await anyio.sleep(0.1)
            assert losses == []
            until = time.monotonic() + 0.8
            while time.monotonic() < until:  # the whole process stands still
                pass
    (loss,) = losses
    assert loss.reason.startswith("the sidecar itself was held up for ")
    assert not loss.broken

"""How a wave is let go, by its gait (R3)."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from sidecar.adapters.wire import Exchange
from sidecar.core.grid.cells import Gait, Look
from sidecar.core.judge.pacing import Pace


@dataclass(frozen=True, slots=True)
class Loaded:
    """One wave, all of it written but its last byte."""

    look: Look
    pace: Pace
    plug: Exchange | None
    ours: Sequence[Exchange]

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """The plug first, if there is one."""
        return (*(() if self.plug is None else (self.plug,)), *self.ours)

    @property
    def together(self) -> Sequence[Exchange]:
        """Those that are let go at the same time."""
        if self.look.gait is Gait.LED:
            return self.ours[1:]
        return self.ours[:-1] if self.look.gait is Gait.MIXED else self.ours


async def fire(wave: Loaded, timeout_s: float) -> float:
    """Let the requests go; the release, on the monotonic clock. `timeout_s` is of one request."""
    if wave.plug is not None:
        wave.plug.release(timeout_s)
        await _until(wave.plug.let_go_s + wave.pace.wave_after_s)
    release_s = time.monotonic()
    if wave.look.gait is Gait.LED:
        wave.ours[0].release(timeout_s)
        await _until(wave.ours[0].let_go_s + (wave.pace.rest_after_s if wave.together else 0.0))
    mixed = wave.look.gait is Gait.MIXED
    decoding = [exchange.decodes() for exchange in wave.together] if mixed else []
    for exchange in wave.together:
        exchange.release(timeout_s)
    if decoding:
        await asyncio.wait(decoding)  # each ends by itself, at the latest by its time limit
        wave.ours[-1].release(timeout_s)
    return release_s


async def _until(moment_s: float) -> None:
    await asyncio.sleep(max(0.0, moment_s - time.monotonic()))

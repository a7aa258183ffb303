"""A whole sidecar in this process, and what an operator sees of it."""

from contextlib import asynccontextmanager
from dataclasses import replace

import anyio
import httpx

from sidecar import running as program
from sidecar.core.grid.shapes import parse
from sidecar.core.policy import Rhythm
from sidecar.settings import Settings
from sidecar.simulator.model import EngineConfig
from sidecar.simulator.profile import Profile
from tests.patience import until

PROFILE = Profile(
    engine=EngineConfig(
        max_model_len=2048,
        max_num_seqs=8,
        max_num_batched_tokens=512,
        kv_cache_tokens=16_384,
        prefill_s_per_token=2e-4,
        decode_step_s=0.004,
        noise_small=0.05,
        noise_large=0.05,
        outlier_rate=0.0,
    ),
    time_scale=0.2,
    dev_mode=True,
)

WARM = replace(PROFILE, rules=())
"""An engine that never pays for anything: for tests of what comes after the warm-up."""

SHAPES = "cells: [{concurrency: 1, prompt_tokens: 65, output_tokens: 2}]"

NEVER_HELD_UP = Rhythm(held_up_s=3600.0)
"""Engine and sidecar are one process here, which a busy machine may let stand still for seconds:
that a sidecar then looks again is tested by itself, and nothing else is to be disturbed by it."""

QUICK = replace(
    NEVER_HELD_UP,
    health_every_s=0.1,
    mark_every_s=0.5,
    search_every_s=0.1,
    between_marks_s=0.02,
)


def asking(url):
    """A client that keeps no connection: where the machine stands still for five seconds, a kept
    one is closed for its idleness in the moment in which it is used again."""
    limits = httpx.Limits(max_keepalive_connections=0)
    return httpx.AsyncClient(base_url=url, trust_env=False, timeout=60, limits=limits)


class Sidecar:
    """One running `serve`."""

    def __init__(self, port):
        self.url = f"http://127.0.0.1:{port}"
        self.client = asking(self.url)

    async def ready(self):
        return (await self.client.get("/ready")).json()

    async def until(self, condition, limit_s=30.0):
        """Poll /ready until its body meets `condition`; the body."""
        body = None

        async def is_so():
            nonlocal body
            body = await self.ready()
            return condition(body)

        try:
            await until(is_so, limit_s)
        except AssertionError as late:
            raise AssertionError(f"{late}: {body}") from None
        return body

    async def until_ready(self):
        return await self.until(lambda body: body["ready"])


def settings(url, **changes):
    return Settings(engine_url=url, host="127.0.0.1", port=0, **changes)


@asynccontextmanager
async def serving(url, *, shapes=SHAPES, rhythm=QUICK, **changes):
    """A sidecar for the engine at `url`, stopped as at the end of its process."""
    listening = anyio.Event()
    ports = []

    def on_listening(port):
        ports.append(port)
        listening.set()

    async def serve():
        await program.serve(
            settings(url, **changes),
            parse(shapes, "shapes.yaml"),
            rhythm=rhythm,
            on_listening=on_listening,
        )

    async with anyio.create_task_group() as group:
        group.start_soon(serve)
        await listening.wait()
        sidecar = Sidecar(ports[0])
        async with sidecar.client:
            yield sidecar
            group.cancel_scope.cancel()

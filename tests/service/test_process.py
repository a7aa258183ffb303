"""`serve` and `once` as processes: signals, exit statuses, sentences."""

import os
import signal
import sys
from contextlib import asynccontextmanager

import anyio
import httpx
import pytest

from sidecar.simulator.faults import Knobs
from sidecar.simulator.server import simulator
from tests.live.process import free_port
from tests.service.running import PROFILE, SHAPES, WARM

pytestmark = pytest.mark.programs

END_LIMIT_S = 2.0
"""From the signal to the end of the process."""


@asynccontextmanager
async def started(command, url, folder, *, more_env=None, **settings):
    """A sidecar process, killed if it has not ended by itself."""
    shapes = anyio.Path(folder) / "shapes.yaml"
    await shapes.write_text(SHAPES)
    kept = {k: v for k, v in os.environ.items() if not k.startswith("WARMUP_")}
    ours = {"ENGINE_URL": url, "HOST": "127.0.0.1", "SHAPES": str(shapes), **settings}
    env = kept | {f"WARMUP_{name}": str(value) for name, value in ours.items()} | (more_env or {})
    process = await anyio.open_process(
        [sys.executable, "-m", "sidecar", command], env=env, start_new_session=True
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        with anyio.CancelScope(shield=True):
            await process.aclose()


async def until(url, status, limit_s=20.0):
    async with httpx.AsyncClient(trust_env=False) as http:
        with anyio.fail_after(limit_s):
            while True:
                try:
                    answer = await http.get(url)
                except httpx.TransportError:
                    answer = None
                if answer is not None and answer.status_code == status:
                    return answer.json()
                await anyio.sleep(0.02)


async def error_of(process):
    return b"".join([chunk async for chunk in process.stderr]).decode()


async def test_sigterm_in_the_middle_of_a_wave_ends_serve_at_once(tmp_path):
    """The gate is shut, the wave is cut off, the process ends with 0 in under two seconds."""
    async with simulator(PROFILE) as sim:
        sim.turn(Knobs(hang=True))
        port = free_port()
        async with started("serve", sim.url, tmp_path, PORT=port) as process:
            body = await until(f"http://127.0.0.1:{port}/ready", 503)
            while body["state"] != "warming":
                body = await until(f"http://127.0.0.1:{port}/ready", 503)
            process.send_signal(signal.SIGTERM)
            with anyio.fail_after(END_LIMIT_S):
                assert await process.wait() == 0


async def test_sigterm_of_an_open_gate_removes_the_ready_file(tmp_path):
    """What promised readiness is gone when the process is; a kept connection doesn't hold it up."""
    file = anyio.Path(tmp_path / "ready")
    async with simulator(WARM) as sim:
        port = free_port()
        settings = {"PORT": port, "READY_FILE": file, "STATE_DIR": tmp_path / "state"}
        async with started("serve", sim.url, tmp_path, **settings) as process:
            await until(f"http://127.0.0.1:{port}/ready", 200)
            async with httpx.AsyncClient(trust_env=False) as http:
                await http.get(f"http://127.0.0.1:{port}/health")
                with anyio.fail_after(1):
                    while not await file.exists():  # noqa: ASYNC110 - another process's file
                        await anyio.sleep(0.01)
                process.send_signal(signal.SIGTERM)
                with anyio.fail_after(END_LIMIT_S):
                    assert await process.wait() == 0
            assert not await file.exists()


async def test_sigterm_ends_once_with_its_own_status(tmp_path):
    """A script sees that it was not the verdict that ended it: 128 + 15."""
    async with simulator(PROFILE) as sim:
        sim.turn(Knobs(hang=True))
        async with started("once", sim.url, tmp_path) as process:
            async for chunk in process.stderr:
                if b"warming" in chunk:
                    break
            process.send_signal(signal.SIGTERM)
            with anyio.fail_after(END_LIMIT_S):
                assert await process.wait() == 143


HUNG_RESOLVER = """
import socket, time
look_up = socket.getaddrinfo
def hang(host, *rest, **more):
    if "hung" in str(host):
        time.sleep(15)
    return look_up(host, *rest, **more)
socket.getaddrinfo = hang
"""


@pytest.mark.parametrize(("command", "status"), [("serve", 0), ("once", 143)])
async def test_a_resolver_that_hangs_does_not_hold_up_the_end(tmp_path, command, status):
    """A look-up sits in a thread that nothing stops; SIGTERM still ends the process in time."""
    (tmp_path / "sitecustomize.py").write_text(HUNG_RESOLVER)
    hung = {"more_env": {"PYTHONPATH": str(tmp_path)}, "PORT": 0}
    async with started(command, "http://hung.invalid:8000", tmp_path, **hung) as process:
        async for chunk in process.stderr:
            if b"WARMUP_STATE_DIR" in chunk or b"waiting" in chunk or b"listening" in chunk:
                break
        await anyio.sleep(0.3)  # into the look-up
        process.send_signal(signal.SIGTERM)
        with anyio.fail_after(END_LIMIT_S):
            assert await process.wait() == status


async def test_serve_answers_health_long_before_the_engine_is_there(tmp_path):
    """Liveness and startup need no engine; the bound is generous, the aim is one second."""
    port = free_port()
    async with started("serve", "http://127.0.0.1:9", tmp_path, PORT=port):
        await until(f"http://127.0.0.1:{port}/health", 200, limit_s=10)
        await until(f"http://127.0.0.1:{port}/startup", 200, limit_s=1)
        body = await until(f"http://127.0.0.1:{port}/ready", 503, limit_s=1)
        assert body["state"] == "waiting"


async def test_a_taken_port_ends_serve_with_one_sentence(tmp_path):
    """Exit 2, port and setting are named, no traceback."""
    async with (
        simulator(WARM) as sim,
        started("serve", sim.url, tmp_path, PORT=sim.port) as process,
    ):
        error = await error_of(process)
        assert await process.wait() == 2
    assert f"port {sim.port}" in error
    assert "WARMUP_PORT" in error
    assert "Traceback" not in error


async def test_an_unwritable_ready_file_ends_serve_with_one_sentence(tmp_path):
    """Exit 2, path and setting are named, no traceback, before anything is sent."""
    path = tmp_path / "nowhere" / "ready"
    async with started("serve", "http://127.0.0.1:9", tmp_path, READY_FILE=path, PORT=0) as process:
        error = await error_of(process)
        assert await process.wait() == 2
    assert error.count("\n") == 1
    assert f"the ready file {path} can't be written" in error
    assert "WARMUP_READY_FILE" in error

"""`serve` and `once` as processes: signals, exit statuses, sentences."""

import signal
import time

import anyio
import httpx
import pytest

from sidecar.simulator.faults import Knobs
from sidecar.simulator.server import simulator
from tests.live.process import free_port
from tests.patience import until
from tests.service.program import started
from tests.service.running import PROFILE, WARM

pytestmark = pytest.mark.programs

END_S = 2.0
"""From the signal to the end of the process, as promised, on a machine that lets it run. What it
must not wait for, a wave, a look-up or somebody's connection, lasts a minute here."""
LIMIT_S = 30.0


@pytest.fixture
def stopped(standstill):
    async def wait(program):
        """Signal the program, and give its exit code if it ends in time."""
        began_s = time.monotonic()
        program.process.send_signal(signal.SIGTERM)
        with anyio.fail_after(LIMIT_S):
            code = await program.process.wait()
        took_s = time.monotonic() - began_s
        assert took_s < END_S + standstill.lost_since_s(began_s)
        return code

    return wait


async def test_sigterm_in_the_middle_of_a_wave_ends_serve_at_once(tmp_path, stopped):
    """The gate is shut, the wave is cut off, the process ends with 0 and waits for nothing."""
    async with simulator(PROFILE) as sim:
        sim.turn(Knobs(hang=True))
        async with started("serve", sim.url, tmp_path, PORT=free_port()) as program:

            async def is_warming():
                return (await program.answers("/ready", 503))["state"] == "warming"

            await until(is_warming)
            assert await stopped(program) == 0


async def test_sigterm_of_an_open_gate_removes_the_ready_file(tmp_path, stopped):
    """What promised readiness is gone when the process is; a kept connection doesn't hold it up."""
    file = anyio.Path(tmp_path / "ready")
    async with simulator(WARM) as sim:
        settings = {"PORT": free_port(), "READY_FILE": file, "STATE_DIR": tmp_path / "state"}
        async with started("serve", sim.url, tmp_path, **settings) as program:
            await program.answers("/ready", 200)
            async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
                await http.get(f"{program.url}/health")
                await until(file.exists)
                assert await stopped(program) == 0
            assert not await file.exists()


async def test_sigterm_ends_once_with_its_own_status(tmp_path, stopped):
    """A script sees that it was not the verdict that ended it: 128 + 15."""
    async with simulator(PROFILE) as sim:
        sim.turn(Knobs(hang=True))
        async with started("once", sim.url, tmp_path) as program:
            await program.until_said("warming")
            assert await stopped(program) == 143


HUNG_RESOLVER = """
import socket, sys, time
look_up = socket.getaddrinfo
def hang(host, *rest, **more):
    if "hung" in str(host):
        print("hung look-up", file=sys.stderr, flush=True)
        time.sleep(60)
    return look_up(host, *rest, **more)
socket.getaddrinfo = hang
"""


@pytest.mark.parametrize(("command", "status"), [("serve", 0), ("once", 143)])
async def test_a_resolver_that_hangs_does_not_hold_up_the_end(tmp_path, stopped, command, status):
    """A look-up sits in a thread that nothing stops; SIGTERM still ends the process in time."""
    (tmp_path / "sitecustomize.py").write_text(HUNG_RESOLVER)
    hung = {"more_env": {"PYTHONPATH": str(tmp_path)}, "PORT": 0}
    async with started(command, "http://hung.invalid:8000", tmp_path, **hung) as program:
        await program.until_said("hung look-up")
        assert await stopped(program) == status


async def test_a_resolver_that_hangs_does_not_hold_up_a_verdict(tmp_path):
    """At the start deadline `once` says so and ends, whatever a look-up still waits for."""
    (tmp_path / "sitecustomize.py").write_text(HUNG_RESOLVER.replace("(60)", "(3600)"))
    hung = {"more_env": {"PYTHONPATH": str(tmp_path)}, "START_DEADLINE_S": 0.5}
    async with started("once", "http://hung.invalid:8000", tmp_path, **hung) as program:
        with anyio.fail_after(LIMIT_S):
            assert await program.process.wait() == 4
    assert "waited longer than the start deadline" in program.err


HUNG_FOLDER = """
import os, sys, time
make = os.mkdir
def hang(path, *rest, **more):
    if "hung" in str(path):
        print("hung folder", file=sys.stderr, flush=True)
        time.sleep(3600)
    return make(path, *rest, **more)
os.mkdir = hang
"""


@pytest.mark.parametrize(("command", "status"), [("serve", 0), ("once", 143)])
async def test_a_folder_that_hangs_at_the_start_does_not_hold_up_the_end(
    tmp_path, stopped, command, status
):
    """Before anything runs SIGTERM has a handler: without one it would not end the first process of
    a container, and another one with -15."""
    (tmp_path / "sitecustomize.py").write_text(HUNG_FOLDER)
    hung = {"more_env": {"PYTHONPATH": str(tmp_path)}, "STATE_DIR": tmp_path / "hung", "PORT": 0}
    async with started(command, "http://127.0.0.1:9", tmp_path, **hung) as program:
        await program.until_said("hung folder")
        assert await stopped(program) == status


async def test_serve_answers_health_long_before_the_engine_is_there(tmp_path):
    """Liveness and startup need no engine."""
    async with started("serve", "http://127.0.0.1:9", tmp_path, PORT=free_port()) as program:
        await program.answers("/health", 200)
        await program.answers("/startup", 200)
        assert (await program.answers("/ready", 503))["state"] == "waiting"


async def test_a_taken_port_ends_serve_with_one_sentence(tmp_path):
    """Exit 2, port and setting are named, no traceback."""
    async with (
        simulator(WARM) as sim,
        started("serve", sim.url, tmp_path, PORT=sim.port) as program,
    ):
        assert await program.process.wait() == 2
    assert f"port {sim.port}" in program.err
    assert "WARMUP_PORT" in program.err
    assert "Traceback" not in program.err


async def test_an_unwritable_ready_file_ends_serve_with_one_sentence(tmp_path):
    """Exit 2, path and setting are named, no traceback, before anything is sent."""
    path = tmp_path / "nowhere" / "ready"
    async with started("serve", "http://127.0.0.1:9", tmp_path, READY_FILE=path, PORT=0) as program:
        assert await program.process.wait() == 2
    assert program.err.count("\n") == 1
    assert f"the ready file {path} can't be written" in program.err
    assert "WARMUP_READY_FILE" in program.err

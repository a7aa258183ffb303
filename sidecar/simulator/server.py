"""A simulated vLLM on a real port: refuses, starts, serves, dies and comes back in one process.

async with simulator(Profile(engine=EngineConfig(max_num_seqs=4), time_scale=0.1)) as sim:
    httpx.get(f"{sim.url}/v1/models")
    sim.turn(Knobs(restart_after_s=0.2))   # or: POST /_sim {"restart_after_s": 0.2}
    await sim.died()
    await sim.opened()
    sim.life.engine.ledger                 # what was paid in this life: the truth
"""

import asyncio
import os
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, TextIO

import anyio
import uvicorn
from anyio.abc import TaskGroup
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from sidecar.simulator.app import App
from sidecar.simulator.faults import Faults, Knobs
from sidecar.simulator.life import Life
from sidecar.simulator.log import Log
from sidecar.simulator.profile import Profile

BACKLOG = 2048
OPEN_LIMIT_S = 60.0
END_LIMIT_S = 5.0
LAST_WORDS_S = 0.02
"""The answer to the POST /_sim that kills still gets out."""
RESET_ON_CLOSE = struct.pack("ii", 1, 0)
"""SO_LINGER on, 0 s: closing sends a reset."""


class Simulator:
    """Made by `simulator(...)`. While the engine is dead its port is still its own, bound and not
    listened on: connections are refused, and nobody else can take it.

    uvicorn's HTTP protocol is used without its Server, which can't stop listening and begin again,
    and without asyncio's, which leaves open what it accepts in the moment in which it is closed.
    """

    def __init__(
        self, profile: Profile, group: TaskGroup, *, host: str, port: int, log: TextIO | None
    ) -> None:
        self.profile = profile
        self.faults = Faults()
        self.life: Life | None = None
        """The running process life; None while connections are refused."""
        self.lives = 0
        self._group = group
        self._host = host
        self._log = log
        self._socket = _reserve(host, port)
        self.port: int = self._socket.getsockname()[1]
        self._state = ServerState()
        self._starting: anyio.CancelScope | None = None
        self._opened = anyio.Event()
        self._died = anyio.Event()

    @property
    def url(self) -> str:
        return f"http://{self._host}:{self.port}"

    async def opened(self, limit_s: float = OPEN_LIMIT_S) -> Life:
        """Wait until it serves. Raises TimeoutError after `limit_s`."""
        with anyio.fail_after(limit_s):
            while self.life is None:
                await self._opened.wait()
        return self.life

    async def died(self, limit_s: float = OPEN_LIMIT_S) -> None:
        """Wait until it refuses. Raises TimeoutError after `limit_s`."""
        with anyio.fail_after(limit_s):
            await self._died.wait()

    def start(self, after_s: float = 0.0) -> None:
        """Begin a process life, after so many wall seconds. The port opens when it has started."""
        self._group.start_soon(self._start, after_s)

    def die(self) -> None:
        """Now: connections are reset, later ones refused, everything in memory is gone."""
        if self._starting is not None:
            self._starting.cancel()
        if self.life is not None:
            self.life.driver.close()
            self.life = None
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = _reserve(self._host, self.port)
        self._opened = _unset(self._opened)
        self._died.set()
        for connection in list(self._state.connections):
            _reset(connection)

    def cut(self, client: str) -> None:
        """Reset the connection of one client, named `ip:port`."""
        for connection in list(self._state.connections):
            peer = connection.client  # type: ignore[union-attr]
            if peer is not None and f"{peer[0]}:{peer[1]}" == client:
                _reset(connection)

    def turn(self, knobs: Knobs) -> None:
        """What POST /_sim does."""
        self.faults.set(knobs)
        if knobs.api_key is not None:
            self.profile = replace(self.profile, api_key=knobs.api_key or None)
        if knobs.model is not None:
            self.profile = replace(self.profile, model=knobs.model)
        if self.life is not None:
            self.life.adjust(self.profile)
        if knobs.die or knobs.restart_after_s is not None:
            self._group.start_soon(self._die, knobs.restart_after_s)

    async def _die(self, restart_after_s: float | None) -> None:
        await anyio.sleep(LAST_WORDS_S)
        self.die()
        if restart_after_s is not None:
            self.start(restart_after_s)

    async def close(self) -> None:
        """Stop serving and wait for the handlers to notice, at most a few seconds."""
        self.die()
        self._socket.close()
        tasks = set(self._state.tasks)
        if tasks:
            await asyncio.wait(tasks, timeout=END_LIMIT_S)

    async def _start(self, after_s: float) -> None:
        with anyio.CancelScope() as self._starting:
            await anyio.sleep(after_s)
            self.lives += 1
            log = Log(self._log, self.profile, os.getpid() + 10 * self.lives, self.port)
            log.starting()
            await anyio.sleep(self.profile.start_delay_s * self.profile.time_scale)
            life = Life(
                self.profile, self.faults, log, number=self.lives, die=self.die, cut=self.cut
            )
            self._listen(life)
            self.life = life
            self._died = _unset(self._died)
            log.ready(self._host)
            self._opened.set()

    def _listen(self, life: Life) -> None:
        config = uvicorn.Config(
            App(life, self.turn),
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            server_header=False,
            date_header=False,
        )
        config.load()
        self._state = state = ServerState()

        def connection() -> asyncio.Protocol:
            return _Connection(
                lambda: self.life is not life, config=config, server_state=state, app_state={}
            )

        self._socket.listen(BACKLOG)
        asyncio.get_running_loop().add_reader(self._socket, self._accept, connection)

    def _accept(self, connection: Callable[[], asyncio.Protocol]) -> None:
        """All who wait."""
        with suppress(OSError):
            while True:
                accepted, _ = self._socket.accept()
                accepted.setblocking(False)
                self._group.start_soon(_connect, accepted, connection)


async def _connect(accepted: socket.socket, connection: Callable[[], asyncio.Protocol]) -> None:
    await asyncio.get_running_loop().connect_accepted_socket(connection, accepted)


class _Connection(HttpToolsProtocol):
    """One that was accepted before the process died and is made after it is reset like the others:
    else the dead would answer."""

    def __init__(self, is_late: Callable[[], bool], **given: Any) -> None:
        super().__init__(**given)
        self._is_late = is_late

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self._is_late():
            _reset(self)


@asynccontextmanager
async def simulator(
    profile: Profile | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    log: TextIO | None = None,
    wait: bool = True,
) -> AsyncIterator[Simulator]:
    """A running simulator; without `wait` it may still be starting, and refuse.

    Raises OSError where the port can't be had.
    """
    failure: BaseException | None = None
    async with anyio.create_task_group() as group:
        sim = Simulator(profile or Profile(), group, host=host, port=port, log=log)
        try:
            sim.start()
            if wait:
                await sim.opened()
            yield sim
        except BaseException as error:
            failure = error  # raised below as it is, not inside the group's exception
        finally:
            with anyio.CancelScope(shield=True):
                await sim.close()
            group.cancel_scope.cancel()
    if failure is not None:
        raise failure


def _reserve(host: str, port: int) -> socket.socket:
    """Bound and not listening: a connect is refused."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, asyncio sets TCP_NODELAY on what it accepts.
    reserved = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind((host, port))
    except OSError:
        reserved.close()
        raise
    reserved.setblocking(False)
    return reserved


def _unset(event: anyio.Event) -> anyio.Event:
    """One that is not set; who waits for it already goes on waiting."""
    return anyio.Event() if event.is_set() else event


def _reset(connection: object) -> None:
    transport = getattr(connection, "transport", None)
    if isinstance(transport, asyncio.Transport):
        peer = transport.get_extra_info("socket")
        if peer is not None:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        transport.abort()

"""The HTTP surface alone, on a real port, around a snapshot that a test sets."""

from contextlib import asynccontextmanager

import anyio
import httpx

from sidecar.web.app import create_app
from sidecar.web.connections import Doorman
from sidecar.web.server import Server, listen
from sidecar.web.waiting import Waiting


class Surface:
    """`show` moves what is shown, as the gate would."""

    def __init__(self, snapshot, limits):
        self.snapshot = snapshot
        self.waiting = Waiting(lambda: self.snapshot)
        self.doorman = Doorman(limits)
        self.app = create_app(
            lambda: self.snapshot, waiting=self.waiting, closed=lambda: dict(self.doorman.closed)
        )
        self.listener = listen("127.0.0.1", 0)
        self.port = self.listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def show(self, snapshot):
        self.snapshot = snapshot
        self.waiting.hear(snapshot)

    def client(self):
        """Without a bound on its connections."""
        limits = httpx.Limits(max_connections=None)
        return httpx.AsyncClient(base_url=self.url, trust_env=False, timeout=60, limits=limits)


@asynccontextmanager
async def surface(snapshot, limits=None):
    made = Surface(snapshot, limits)
    server = Server(made.app, made.doorman)
    async with anyio.create_task_group() as group:
        group.start_soon(server.serve, [made.listener])
        try:
            yield made
        finally:
            server.should_exit = True
    made.listener.close()

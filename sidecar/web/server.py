"""The port: its socket, and uvicorn with what it lacks."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI

from sidecar.core.errors import ConfigError
from sidecar.web.connections import Doorman

_GRACE_S = 1
"""For answers that are being written when the server stops."""

_QUEUE = 1024
"""Connections that the kernel holds until they are accepted: a probe that finds it full tries again
after a second, which is all the time that Kubernetes gives it."""

_ACCEPTED_AT_ONCE = 32
"""Far fewer than may be inside: a probe must have been read before the next ones take its place."""


class Server(uvicorn.Server):
    """Leaves the signals to `serve`, which has a gate to shut before the server stops."""

    def __init__(self, app: FastAPI, doorman: Doorman) -> None:
        protocol: Any = doorman.protocol()
        super().__init__(
            uvicorn.Config(
                app,
                http=protocol,
                log_config=None,
                # A stranger's garbage is a warning to uvicorn: a line of log for each would let him
                # fill the disk.
                log_level="error",
                access_log=False,
                server_header=False,
                lifespan="off",
                ws="none",
                backlog=_ACCEPTED_AT_ONCE,
                timeout_graceful_shutdown=_GRACE_S,
            )
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for one in sockets or ():
            one.listen(_QUEUE)


def listen(host: str, port: int) -> socket.socket:
    """The bound socket of the server. Raises ConfigError with one sentence."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named asyncio sets TCP_NODELAY on what it accepts: without it the second
    # probe on a kept connection waits for the client's delayed acknowledgement, 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # `::` is every address, also the IPv4 ones that probes of `check` and kubelets use.
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind((host, port))
        listener.listen(_QUEUE)
    except (OSError, UnicodeError) as problem:
        listener.close()
        why = problem.strerror if isinstance(problem, OSError) else "no host name"
        raise ConfigError(
            f"can't listen on {host} port {port} ({why or problem}): set WARMUP_PORT "
            "or WARMUP_HOST to one that is free"
        ) from problem
    return listener

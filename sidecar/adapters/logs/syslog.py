"""A syslog server of our own, for Docker's `syslog` logging driver.

    logging:
      driver: syslog
      options: {syslog-format: rfc5424micro, syslog-address: "unix:///run/warmup/log.sock"}

What that driver does, measured with Docker Engine 20.10:

- The listener is missing when a container starts: with unix and tcp the container does not start
  (`no such file or directory`, or `connection refused` where a dead socket file stands); with udp
  it does.
- The same with tcp through a published port: Docker's proxy accepts in our place, the container
  starts, and what it writes before we listen is lost without a trace.
- The listener goes away while the container runs: nothing blocks, with none of the three. The lines
  that are written meanwhile are lost without a trace; over tcp also one that seemed to be sent.
- The listener comes back: the next line connects anew, also to a new socket file of that name.
- The listener is there and does not read: the container stops at a write to its stdout, after
  about 11,000 short lines (unix) or 33,000 (tcp). With `mode: non-blocking` it goes on, and Docker
  drops lines and doesn't say so.
- `docker logs` works beside it, from Docker's own cache, but with unix and tcp only while somebody
  listens; otherwise it fails with `connection refused`.

So with unix and tcp the sidecar must be there before the engine starts, and with unix nothing is
lost while it is there. A container has one connection (a stream, never datagrams) for each of its
runs. Messages end with LF, over TLS they are counted. Lines over 16 KiB come as several messages
that nothing marks as belonging together, and empty messages are not sent, so a line of exactly
16 KiB looks like the first piece of a longer one. Messages have no numbers: over UDP a loss on the
way can't be noticed; what this machine's kernel drops at our socket is counted.
"""

import asyncio
import contextlib
import errno
import logging
import os
import socket
import stat
import time
from collections.abc import AsyncGenerator
from pathlib import Path

from anyio import CancelScope, move_on_after

from sidecar.adapters.logs.datagrams import WANTED_BUFFER_BYTES, Datagrams
from sidecar.adapters.logs.inbox import Inbox
from sidecar.adapters.logs.pace import AT_ONCE, Allowance, pauses_s
from sidecar.adapters.logs.senders import MUTE_S, Connection, Senders
from sidecar.adapters.onethread import OneThread
from sidecar.core.logs.items import Counts, Gap, Item
from sidecar.core.logs.source import SyslogSpec, Transport

log = logging.getLogger(__name__)

_LOOK_S = 0.5
_SILENT_S = 1.0
"""The pieces of a long line follow each other at once."""
_BACKLOG = 64
_CLOSE_LIMIT_S = 1.5
"""For the folder of the socket, which may be on a share that is lost: the process must end."""


class SyslogLog:
    """One address, listened at for as long as `lines` is iterated."""

    def __init__(self, spec: SyslogSpec, *, mute_s: float = MUTE_S) -> None:
        self.spec = spec
        self._inbox = Inbox()
        self._allowance = Allowance()
        self._senders = Senders(spec, self._inbox, mute_s, self._allowance)
        self._datagrams = Datagrams(spec, self._inbox, self._allowance)
        self._server: asyncio.Server | None = None
        self._thread = OneThread()
        """For the socket's file: what closes it waits for what makes it."""
        self._bound: socket.socket | None = None
        """Not the server's yet."""
        self._socket_file: tuple[int, int] | None = None
        """Device and inode of the socket that we made."""
        self._trouble: str | None = None
        self._breaks = 0

    @property
    def is_lossy(self) -> bool:
        """Over UDP: lines can vanish on the way, and nothing tells."""
        return self.spec.lossy

    @property
    def trouble(self) -> str | None:
        """One sentence while nothing can arrive."""
        return self._trouble

    @property
    def is_listening(self) -> bool:
        return self._server is not None or self._datagrams.port is not None

    @property
    def port(self) -> int | None:
        """Of UDP and TCP; None while it doesn't listen."""
        if self._server is not None and self.spec.transport is Transport.TCP:
            return int(self._server.sockets[0].getsockname()[1])
        return self._datagrams.port

    @property
    def counts(self) -> Counts:
        cuts = (self._senders.cut, self._datagrams.frames.cut)
        return Counts(
            lines=self._inbox.lines,
            breaks=self._breaks,
            cut_lines=sum(cut.lines for cut in cuts),
            cut_bytes=sum(cut.bytes for cut in cuts),
            dropped_lines=self._inbox.dropped_lines,
            kernel_drops=self._datagrams.kernel_drops,
            refused=self._senders.refused + self._datagrams.refused,
        )

    async def lines(self) -> AsyncGenerator[Item, None]:
        """Endless; closing or cancelling it closes the socket and removes its file."""
        try:
            await self._listen()
            while True:
                items = await self._inbox.take(_LOOK_S)
                for turn in range(0, len(items), AT_ONCE):
                    began_s = time.monotonic()
                    for item in items[turn : turn + AT_ONCE]:
                        yield item
                    self._allowance.spend(time.monotonic() - began_s)
                    await asyncio.sleep(0)
                self._senders.finish_lines(_SILENT_S)
                self._datagrams.finish_lines(_SILENT_S)
                if self._socket_file and not await self._thread.run(self._has_socket_file):
                    await self._listen_again()
        finally:
            with CancelScope(shield=True):
                await self._close()

    async def _listen(self) -> None:
        """Until it does, with growing pauses."""
        began_s = time.monotonic()
        for pause_s in pauses_s():
            try:
                await self._open()
            except OSError as problem:
                why = problem.strerror or str(problem)
                trouble = f"{self.spec} can't be listened at ({why})"
                if trouble != self._trouble:
                    log.warning("log source unavailable source=%s why=%r", self.spec, why)
                self._trouble = trouble
                await asyncio.sleep(pause_s)
                continue
            if self._trouble is not None:
                now_s = time.monotonic()
                self._breaks += 1
                self._inbox.put(Gap(now_s, self._trouble, seconds=now_s - began_s))
                self._trouble = None
            return

    async def _listen_again(self) -> None:
        """The socket's file is gone: those who are connected stay, nobody else can come."""
        self._trouble = f"the file of {self.spec} was removed or replaced"
        if self._server is not None:
            self._server.close()
            self._server = None
        self._socket_file = None
        await self._listen()

    async def _open(self) -> None:
        loop = asyncio.get_running_loop()
        match self.spec.transport:
            case Transport.UDP:
                await self._datagrams.open()
                if (granted := self._datagrams.buffer_bytes) < WANTED_BUFFER_BYTES:
                    log.warning(
                        "small receive buffer source=%s bytes=%d wanted=%d remedy=%r",
                        *(self.spec, granted, WANTED_BUFFER_BYTES, "raise net.core.rmem_max"),
                    )
            case Transport.TCP:
                self._server = await loop.create_server(
                    lambda: Connection(self._senders),
                    self.spec.host,
                    self.spec.port,
                    backlog=_BACKLOG,
                    reuse_address=True,
                )
            case Transport.UNIX:
                await self._thread.run(self._bind)
                self._server = await loop.create_unix_server(
                    lambda: Connection(self._senders), sock=self._bound, backlog=_BACKLOG
                )
                self._bound = None

    def _bind(self) -> None:
        """Make the socket beside its place, listening, and then move it there: while there is no
        file, or nobody behind it, Docker starts no container. Raises OSError."""
        path = Path(self.spec.path)
        _refuse_if_taken(path)
        beside = path.with_name(f".{os.urandom(3).hex()}")
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.bind(str(beside))
            beside.chmod(0o660)
            sock.listen(_BACKLOG)
            sock.setblocking(False)
            made = beside.stat()
            beside.replace(path)
        except BaseException:
            sock.close()
            beside.unlink(missing_ok=True)
            raise
        self._bound, self._socket_file = sock, (made.st_dev, made.st_ino)

    def _has_socket_file(self) -> bool:
        try:
            found = Path(self.spec.path).stat()
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self._socket_file

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        self._senders.close()
        self._datagrams.close()
        if self.spec.transport is Transport.UNIX:
            with move_on_after(_CLOSE_LIMIT_S):
                await self._thread.run(self._remove)

    def _remove(self) -> None:
        if self._bound is not None:
            self._bound.close()
        if self._socket_file and self._has_socket_file():
            with contextlib.suppress(OSError):
                Path(self.spec.path).unlink()


def _refuse_if_taken(path: Path) -> None:
    """Raises OSError if somebody listens there, or if it is something else than a socket."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise OSError(errno.EEXIST, "there is a file that is no socket: remove it")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        # A listener whose backlog is full is one too.
        if probe.connect_ex(str(path)) in (0, errno.EAGAIN):
            raise OSError(errno.EADDRINUSE, "another process listens there: end it")

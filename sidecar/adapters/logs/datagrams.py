"""Syslog over UDP: what arrives, and what the kernel had no room for."""

import asyncio
import contextlib
import socket
import struct
import time

from sidecar.adapters.logs.inbox import Inbox
from sidecar.adapters.logs.pace import Allowance
from sidecar.core.logs.items import Gap
from sidecar.core.logs.source import SyslogSpec
from sidecar.core.logs.syslog import SyslogLines

WANTED_BUFFER_BYTES = 4 << 20
"""A burst of 20,000 lines while the event loop is busy with a wave."""
_AT_ONCE = 200
_MAX_DATAGRAM_BYTES = 64 << 10
_MAX_KNOWN_SENDERS = 1024

# Linux, not in Python's socket module: include/uapi/asm-generic/socket.h, linux/sock_diag.h
_SO_RCVBUFFORCE = 33
_SO_MEMINFO = 55
_MEMINFO = struct.Struct("=9I")
_DROPS = 8


class Datagrams:
    """One bound socket; what it gets goes into the inbox."""

    def __init__(self, spec: SyslogSpec, inbox: Inbox, allowance: Allowance) -> None:
        self._spec = spec
        self._allowance = allowance
        self._inbox = inbox
        self._frames = SyslogLines()
        self._buffer = bytearray(_MAX_DATAGRAM_BYTES)
        self._may: dict[str, bool] = {}
        self._socket: socket.socket | None = None
        self._drops: int | None = None
        self._drops_before = 0
        """By sockets that are closed."""
        self._heard_s = 0.0
        self.refused = 0

    @property
    def frames(self) -> SyslogLines:
        return self._frames

    @property
    def kernel_drops(self) -> int | None:
        """Since the beginning; None where the kernel doesn't say (Linux before 4.12)."""
        return None if self._drops is None else self._drops_before + self._drops

    @property
    def port(self) -> int | None:
        return self._socket.getsockname()[1] if self._socket else None

    async def open(self) -> None:
        """Raises OSError."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(
            self._spec.host, self._spec.port, type=socket.SOCK_DGRAM, flags=socket.AI_PASSIVE
        )
        family, kind, protocol, _, address = found[0]
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            _enlarge(sock)
            sock.bind(address)
        except BaseException:
            sock.close()
            raise
        self._socket = sock
        self._drops = _drops(sock)
        loop.add_reader(sock, self._readable, sock)

    @property
    def buffer_bytes(self) -> int:
        """What the kernel granted; it counts its own overhead too and so doubles what is set."""
        assert self._socket is not None
        return self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2

    def close(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None
            if self._drops is not None:
                self._drops_before, self._drops = self._drops_before + self._drops, 0

    def finish_lines(self, silent_s: float) -> None:
        """Lines that nobody goes on with are given as they are."""
        now_s = time.monotonic()
        if now_s - self._heard_s > silent_s:
            self._inbox.put_lines(self._frames.end(), now_s)

    def _readable(self, sock: socket.socket) -> None:
        """The kernel drops only while there is much to read, so it need not be asked otherwise."""
        self._tell_drops(sock)
        self._take(sock)
        self._tell_drops(sock)

    def _take(self, sock: socket.socket) -> None:
        """What is there, up to a turn's worth."""
        self._heard_s = now_s = time.monotonic()
        view = memoryview(self._buffer)
        for _ in range(_AT_ONCE):
            try:
                count, sender = sock.recvfrom_into(self._buffer)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as problem:
                self._inbox.put(Gap(now_s, f"the socket reports: {problem.strerror}"))
                return
            if not self._allows(sender[0]):
                self.refused += 1
            elif self._allowance.is_spent:
                self._inbox.miss(1)
            else:
                began_s = time.monotonic()
                self._inbox.put_lines(self._frames.datagram(bytes(view[:count])), now_s)
                self._allowance.spend(time.monotonic() - began_s)

    def _allows(self, sender: str) -> bool:
        may = self._may.get(sender)
        if may is None:
            may = self._spec.allows(sender)
            if len(self._may) < _MAX_KNOWN_SENDERS:
                self._may[sender] = may
        return may

    def _tell_drops(self, sock: socket.socket) -> None:
        drops = _drops(sock)
        if drops is None or drops == self._drops:
            return
        lost, self._drops = drops - (self._drops or 0), drops
        why = "the kernel had no room for datagrams: raise net.core.rmem_max"
        self._inbox.put(Gap(time.monotonic(), why, lost_lines=lost))


def _enlarge(sock: socket.socket) -> None:
    """As far as the kernel lets us: with CAP_NET_ADMIN past net.core.rmem_max."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, WANTED_BUFFER_BYTES)
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, WANTED_BUFFER_BYTES)


def _drops(sock: socket.socket) -> int | None:
    """Datagrams that the kernel dropped at this socket; None where it doesn't say."""
    try:
        info = sock.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, _MEMINFO.size)
        return int(_MEMINFO.unpack(info)[_DROPS])
    except (OSError, struct.error):
        return None

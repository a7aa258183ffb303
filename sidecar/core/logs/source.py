"""Where the engine's log comes from, as operators write it into `WARMUP_LOG`."""

import ipaddress
import re
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

DOCKER_SOCKET = "/var/run/docker.sock"
MAX_SOURCES = 16
ENGINE = "{engine}"
"""In a place: the name of each of several engines."""
_MAX_SOCKET_PATH_BYTES = 107
"""Linux, unix(7): sun_path has 108 bytes with the closing zero."""
_BETWEEN = re.compile(r"[\s,]+(?=[a-z][a-z+]*:|none\b)")
"""A comma inside `?allow=…` is followed by an address, whose letters end in a digit or colon."""
_CONTAINER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


class Transport(StrEnum):
    """How syslog messages come."""

    UDP = "udp"
    TCP = "tcp"
    UNIX = "unix"


@dataclass(frozen=True, slots=True)
class FileSpec:
    """A file that the engine's output goes into: a shared volume."""

    path: str

    lossy = False

    def __str__(self) -> str:
        return f"file://{self.path}"


@dataclass(frozen=True, slots=True)
class SyslogSpec:
    """A syslog server of our own, for Docker's `syslog` logging driver."""

    transport: Transport
    host: str = ""
    port: int = 0
    path: str = ""
    """Of the Unix socket."""
    allow: tuple[Network, ...] = ()
    """Senders; empty: all."""

    @property
    def lossy(self) -> bool:
        """Whether lines can vanish without a trace: then silence proves nothing."""
        return self.transport is Transport.UDP

    def allows(self, sender: str) -> bool:
        """Whether this address may send."""
        if not self.allow:
            return True
        try:
            address = ipaddress.ip_address(sender.partition("%")[0])
        except ValueError:
            return False
        mapped = getattr(address, "ipv4_mapped", None)  # how a socket bound to :: sees IPv4
        return any((mapped or address) in network for network in self.allow)

    def __str__(self) -> str:
        if self.transport is Transport.UNIX:
            return f"syslog+unix://{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"syslog+{self.transport}://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class DockerSpec:
    """A container's log through the Docker Engine's API."""

    name: str
    """Of the container, or of a compose service."""
    socket: str = DOCKER_SOCKET

    lossy = False

    def __str__(self) -> str:
        return f"docker:///{self.name}"


SourceSpec = FileSpec | SyslogSpec | DockerSpec


def parse_sources(text: str) -> tuple[SourceSpec, ...]:
    """One or several, separated by spaces or commas; `none` or nothing: no log.

    Raises ValueError with one sentence.
    """
    words = [word for word in _BETWEEN.split(text.strip(" \t\r\n,")) if word]
    if words in ([], ["none"]):
        return ()
    if "none" in words:
        raise ValueError('"none" stands beside other sources; remove it or them')
    if len(words) > MAX_SOURCES:
        raise ValueError(f"{len(words)} sources are named; {MAX_SOURCES} are the most")
    specs = [spec for word in words if (spec := parse_source(word)) is not None]
    for spec in specs:
        if sum(str(spec) == str(other) for other in specs) > 1:
            raise ValueError(f'"{spec}" is named twice; remove one')
    return tuple(specs)


def checked_sources(text: str) -> str:
    """The text as it is. Raises ValueError with one sentence where it names no sources."""
    parse_sources(text.replace(ENGINE, "engine"))
    return text


def parse_source(text: str) -> SourceSpec | None:
    """One source; None for `none`. Raises ValueError with one sentence."""
    shown = text[:120]
    if text == "none":
        return None
    if any(c.isspace() or not c.isprintable() for c in text):
        raise ValueError(f"{shown!r} holds a space or a control character; remove it")
    try:
        parts = urlsplit(text)
        options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=True))
    except ValueError:
        raise ValueError(f'"{shown}" is no URL; write e.g. file:///var/log/vllm.log') from None
    if parts.fragment:
        raise ValueError(f'"{shown}" has a "#"; write it as %23')
    match parts.scheme:
        case "file":
            spec: SourceSpec = FileSpec(_path(parts, shown))
        case "syslog+unix":
            spec = _unix(parts, shown)
        case "syslog+udp" | "syslog+tcp":
            spec = _network(parts, shown, options.pop("allow", None))
        case "docker":
            spec = _docker(parts, shown, options.pop("socket", DOCKER_SOCKET))
        case _:
            raise ValueError(
                f'"{shown}" is no log source; write none, file:///path, docker:///name, '
                "syslog+unix:///path, syslog+tcp://host:port or syslog+udp://host:port"
            )
    if options:
        raise ValueError(f'"{shown}" has an unknown option "{next(iter(options))}"; remove it')
    return spec


def _path(parts: SplitResult, shown: str) -> str:
    path = unquote(parts.path)
    if parts.netloc:
        raise ValueError(f'"{shown}" names a host; write three slashes: {parts.scheme}:///path')
    if not path.startswith("/") or path.endswith("/") or "\0" in path:
        raise ValueError(f'"{shown}" names no file; write {parts.scheme}:///path/of/it')
    return path


def _unix(parts: SplitResult, shown: str) -> SyslogSpec:
    path = _path(parts, shown)
    if len(path.encode()) > _MAX_SOCKET_PATH_BYTES:
        raise ValueError(
            f'the path of "{shown}" is longer than the {_MAX_SOCKET_PATH_BYTES} bytes '
            "that a socket may have; use a shorter one"
        )
    return SyslogSpec(Transport.UNIX, path=path)


def _network(parts: SplitResult, shown: str, allow: str | None) -> SyslogSpec:
    form = f"{parts.scheme}://0.0.0.0:5514"
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ValueError(f'the port of "{shown}" is no port; write {form}') from None
    if not host or not port or "@" in parts.netloc:
        raise ValueError(f'"{shown}" needs a host and a port; write {form}')
    if parts.path not in ("", "/"):
        raise ValueError(f'"{shown}" has a path; write {form}')
    return SyslogSpec(
        Transport(parts.scheme.removeprefix("syslog+")),
        host,
        port,
        allow=_networks(allow, shown) if allow is not None else (),
    )


def _networks(allow: str, shown: str) -> tuple[Network, ...]:
    try:
        return tuple(ipaddress.ip_network(word, strict=False) for word in allow.split(","))
    except ValueError:
        raise ValueError(
            f'allow={allow[:60]} of "{shown}" is no list of addresses; write allow=10.0.0.0/8'
        ) from None


def _docker(parts: SplitResult, shown: str, socket: str) -> DockerSpec:
    if parts.netloc:
        raise ValueError(f'"{shown}" names a host; write three slashes: docker:///name')
    name = unquote(parts.path).strip("/")
    if not _CONTAINER.fullmatch(name):
        raise ValueError(f'"{shown}" names no container; write docker:///name-or-compose-service')
    if not socket.startswith("/"):
        raise ValueError(f'the socket of "{shown}" is no absolute path; write ?socket=/path')
    return DockerSpec(name, socket)

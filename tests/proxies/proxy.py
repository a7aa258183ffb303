"""HAProxy, nginx and Caddy as an operator runs them: the files of deploy/proxy, where only the
addresses are filled in that the files themselves name as the operator's to change."""

import os
import re
import shutil
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.live.process import Process, free_port

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "proxy"

HAPROXY, NGINX, CADDY = "haproxy", "nginx", "caddy"
ALL = (HAPROXY, NGINX, CADDY)

SHUT = 503
_START_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Backend:
    """An engine and where its gate is asked for, each `host:port`."""

    engine: str
    gate: str


class NotInstalled(Exception):
    """The proxy's program is not on this machine."""


def program(name: str) -> str:
    """Raises NotInstalled. Debian keeps HAProxy and nginx where only root looks."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
    found = shutil.which(name, path=path)
    if found is None:
        raise NotInstalled(f"{name} is not installed (Debian: apt-get install {name})")
    return found


class Proxy:
    """One proxy process in front of one or two engines, on an ephemeral port of loopback.

    `path` is what it asks the gates for; without names of engines in it, anything but the files'
    own /ready is a counter-example.
    """

    def __init__(
        self, name: str, folder: Path, backends: tuple[Backend, ...], *, path: str = "/ready"
    ) -> None:
        self.name = name
        self._port = free_port()
        self.stats = f"127.0.0.1:{free_port()}"
        """Where HAProxy tells of itself."""
        self._log = folder / f"{name}.log"
        self._folder = folder
        self._path = path
        make = {HAPROXY: self._haproxy, NGINX: self._nginx, CADDY: self._caddy}[name]
        self._command, self._env = make(program(name), backends)
        self._process: Process | None = None
        self.first_status: int | None = None
        """Of its first answer."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        """Returns once it answers, whatever it answers."""
        env = {k: v for k, v in os.environ.items() if k in ("PATH", "LANG")}
        env |= {"HOME": str(self._folder), **self._env}
        self._process = Process(self._command, self._log, env=env, cwd=self._folder)
        until = time.monotonic() + _START_LIMIT_S
        while (status := self.status()) is None:
            has_ended = self._process.code is not None
            if has_ended or time.monotonic() > until:
                self._process.end()
                raise AssertionError(
                    f"{self.name} does not answer\n{self._log.read_text()[-3000:]}"
                )
            time.sleep(0.1)
        self.first_status = status
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.end(limit_s=5)

    def status(self) -> int | None:
        """Of a request that no engine would take for a user's: GET on a path that takes POST."""
        try:
            with urllib.request.urlopen(f"{self.url}/v1/models", timeout=10) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as problem:
            problem.close()
            return problem.code
        except OSError:
            return None

    def wait_status(self, wanted: int, limit_s: float = 20.0) -> None:
        until = time.monotonic() + limit_s
        while (status := self.status()) != wanted:
            assert time.monotonic() < until, f"{self.name} answers {status}, not {wanted}"
            time.sleep(0.05)

    def _haproxy(
        self, binary: str, backends: tuple[Backend, ...]
    ) -> tuple[list[str], dict[str, str]]:
        env = {
            "PROXY_BIND": f"127.0.0.1:{self._port}",
            "STATS_BIND": self.stats,
        }
        if self._path != "/ready":
            env["WARMUP_URI"] = self._path
        for number, backend in enumerate(backends, 1):
            env |= {f"VLLM_{number}": backend.engine, f"WARMUP_{number}": backend.gate}
        return [binary, "-db", "-f", str(FOLDER / "haproxy.cfg")], env

    def _nginx(
        self, binary: str, backends: tuple[Backend, ...]
    ) -> tuple[list[str], dict[str, str]]:
        first, second = backends[0], backends[-1]
        gates = free_port(), free_port()
        changes = {
            "server vllm:8000;": f"server {first.engine};",
            "server warmup:8900;": f"server {first.gate};",
            "server vllm-2:8000;": f"server {second.engine};",
            "server warmup-2:8900;": f"server {second.gate};",
            "listen 8080;": f"listen 127.0.0.1:{self._port};",
            # The gates' ports are nginx's own business; here two tests may run at once.
            "8001": str(gates[0]),
            "8002": str(gates[1]),
            "/dev/stdout": str(self._folder / "access.log"),
        }
        if len(backends) == 1:
            changes = {
                f"        server 127.0.0.1:{number} max_fails=0;\n": "" for number in (8002,)
            } | changes
        gate = "http://warmup_$number"
        if self._path != "/ready":
            changes |= {f"proxy_pass {gate};": f"proxy_pass {gate}{self._path};"}
        file = self._file("nginx.conf", changes)
        own = f"daemon off; pid {self._folder}/nginx.pid;"
        return [binary, "-c", str(file), "-g", own], {}

    def _caddy(
        self, binary: str, backends: tuple[Backend, ...]
    ) -> tuple[list[str], dict[str, str]]:
        ports = {backend.gate.rpartition(":")[2] for backend in backends}
        assert len(ports) == 1, "Caddy asks for health at one port of every engine's address"
        env = {
            "PROXY_BIND": f"http://127.0.0.1:{self._port}",
            "VLLM": " ".join(backend.engine for backend in backends),
            "WARMUP_PORT": ports.pop(),
        }
        file = self._file("Caddyfile", {} if self._path == "/ready" else {"/ready": self._path})
        return [binary, "run", "--config", str(file), "--adapter", "caddyfile"], env

    def _file(self, name: str, changes: dict[str, str]) -> Path:
        """The repository's own file; a copy where it has to be changed."""
        original = FOLDER / name
        text = original.read_text()
        if not changes:
            return original
        for old in changes:
            assert old in text, f"{name} has no {old!r} any more"
        # All at once: a port that was put in may have the digits of one that is to be changed.
        some = re.compile("|".join(map(re.escape, changes)))
        copy = self._folder / name
        copy.write_text(some.sub(lambda found: changes[found[0]], text))
        return copy

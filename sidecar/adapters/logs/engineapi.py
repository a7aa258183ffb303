"""The two questions to the Docker Engine: which container is it, and what does it print."""

import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import TypeVar

import httpx
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from sidecar.core.logs.docker import kept_bytes, stamp_ns
from sidecar.core.logs.source import DockerSpec

_ANSWER_S = 10.0
IDLE_S = 10.0
"""A log may be silent for hours. Then it is asked for anew, in case the daemon has hung up without
a word, or follows a container that ended just as it began to: nothing is lost or doubled by that,
and such a question costs next to nothing."""
_MAX_ANSWER_BYTES = 8 << 20
_RUNNING = frozenset({"running", "paused"})
_ALIVE = frozenset({"running", "paused", "restarting"})
_SERVICE = "com.docker.compose.service"
_ONE_OFF = "com.docker.compose.oneoff"

T = TypeVar("T")


class DockerTrouble(Exception):
    """The Docker Engine can't be asked, or refuses. One sentence."""


class ReadAnew(Exception):
    """A stream was left on purpose: ask for it again, and read on where it was."""


@dataclass(frozen=True, slots=True)
class Run:
    """One life of a container's process, or the end of it."""

    container: str
    name: str
    started_at: str
    restart_count: int
    has_started: bool
    """False: the container was made, and nothing of it has run yet."""
    is_running: bool
    has_tty: bool
    exit_code: int
    oom_killed: bool
    since_ns: int
    """No line of this run is older."""
    kept_bytes: int | None
    """How much of its log Docker keeps; None: all."""


class _State(BaseModel):
    status: str = Field(alias="Status")
    started_at: str = Field(alias="StartedAt")
    finished_at: str = Field(alias="FinishedAt")
    exit_code: int = Field(alias="ExitCode")
    oom_killed: bool = Field(alias="OOMKilled", default=False)


class _Config(BaseModel):
    tty: bool = Field(alias="Tty")


class _LogConfig(BaseModel):
    options: dict[str, str] | None = Field(alias="Config", default=None)


class _HostConfig(BaseModel):
    log: _LogConfig = Field(alias="LogConfig", default_factory=_LogConfig)


class _Inspected(BaseModel):
    """/containers/{id}/json, what is needed of it."""

    id: str = Field(alias="Id")
    name: str = Field(alias="Name")
    restart_count: int = Field(alias="RestartCount", default=0)
    state: _State = Field(alias="State")
    config: _Config = Field(alias="Config")
    host_config: _HostConfig = Field(alias="HostConfig", default_factory=_HostConfig)

    def run(self) -> Run:
        state = self.state
        return Run(
            container=self.id,
            name=self.name.removeprefix("/"),
            started_at=state.started_at,
            restart_count=self.restart_count,
            has_started=state.status != "created",
            is_running=state.status in _RUNNING,
            has_tty=self.config.tty,
            exit_code=state.exit_code,
            oom_killed=state.oom_killed,
            since_ns=_since_ns(state),
            kept_bytes=kept_bytes(self.host_config.log.options or {}),
        )


class _Listed(BaseModel):
    """One of /containers/json."""

    id: str = Field(alias="Id")
    names: list[str] = Field(alias="Names")
    state: str = Field(alias="State")
    created: int = Field(alias="Created")


class EngineApi:
    """A connection to the socket of one Docker Engine. Raises DockerTrouble."""

    def __init__(self, spec: DockerSpec, idle_s: float) -> None:
        self._spec = spec
        self._idle_s = idle_s
        self._client = httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(uds=spec.socket),
            base_url="http://docker",
            timeout=_ANSWER_S,
        )

    async def aclose(self) -> None:
        await self._client.aclose()

    async def find(self, known: str | None) -> Run | None:
        """The container of that name, else the one of that compose service; None: not there.

        Of several of a service the `known` one is kept to; else it can't be told which is meant.
        """
        run = await self.inspect(self._spec.name)
        if run is not None:
            return run
        labels = [f"{_SERVICE}={self._spec.name}", f"{_ONE_OFF}=False"]
        params = {"all": "1", "filters": json.dumps({"label": labels})}
        listed = await self._get("/containers/json", list[_Listed], params) or []
        alive = [one for one in listed if one.state in _ALIVE]
        chosen = next((one for one in alive if one.id == known), None)
        if chosen is None and len(alive) > 1:
            names = ", ".join(sorted(one.names[0].removeprefix("/") for one in alive))
            raise DockerTrouble(
                f"{len(alive)} containers of the service {self._spec.name} run: name one of {names}"
            )
        if chosen is None:
            # Compose makes the new one before it removes the old one, whose end is still wanted.
            begun = [one for one in listed if one.state != "created"]
            chosen = max(alive or begun or listed, key=lambda one: one.created, default=None)
        return await self.inspect(chosen.id) if chosen is not None else None

    async def inspect(self, container: str) -> Run | None:
        """By name or id; None: not there."""
        found = await self._get(f"/containers/{container}/json", _Inspected, {})
        return found.run() if found is not None else None

    async def read(self, run: Run, since: str, *, follow: bool) -> AsyncGenerator[bytes, None]:
        """The container's log from `since` on. Ends when that is all or the container has ended;
        raises ReadAnew when it was silent for long."""
        params = {"stdout": "1", "stderr": "1", "timestamps": "1", "since": since}
        timeout = httpx.Timeout(_ANSWER_S, read=self._idle_s if follow else _ANSWER_S)
        request = self._client.build_request(
            "GET",
            f"/containers/{run.container}/logs",
            params=params | ({"follow": "1"} if follow else {}),
            timeout=timeout,
        )
        response = await self._send(request)
        try:
            if response.status_code == httpx.codes.NOT_FOUND:
                raise DockerTrouble(f"the container {run.name} was removed")
            if response.status_code != httpx.codes.OK:
                raise await self._refusal(response)
            async for data in response.aiter_raw():
                yield data
        except httpx.HTTPError as problem:
            if follow and isinstance(problem, httpx.ReadTimeout):
                raise ReadAnew from None
            raise self._broken(problem) from None
        finally:
            await response.aclose()

    async def _get(self, path: str, kind: type[T], params: dict[str, str]) -> T | None:
        """A small answer; None for 404."""
        response = await self._send(self._client.build_request("GET", path, params=params))
        try:
            if response.status_code == httpx.codes.NOT_FOUND:
                return None
            if response.status_code != httpx.codes.OK:
                raise await self._refusal(response)
            return TypeAdapter(kind).validate_json(await _body(response))
        except httpx.HTTPError as problem:
            raise self._broken(problem) from None
        except ValidationError as problem:
            where = f"http+unix://{self._spec.socket}{path}"
            raise DockerTrouble(
                f"{where} is no Docker Engine's answer ({problem.error_count()} mistakes)"
            ) from None
        finally:
            await response.aclose()

    async def _send(self, request: httpx.Request) -> httpx.Response:
        try:
            return await self._client.send(request, stream=True)
        except httpx.HTTPError as problem:
            raise self._broken(problem) from None

    def _broken(self, problem: httpx.HTTPError) -> DockerTrouble:
        why = str(problem) or type(problem).__name__
        return DockerTrouble(f"the Docker Engine at {self._spec.socket} does not answer ({why})")

    async def _refusal(self, response: httpx.Response) -> DockerTrouble:
        """With what the Engine itself says."""
        try:
            said = json.loads(await _body(response))["message"]
        except (ValueError, TypeError, KeyError):
            said = "nothing more"
        status = response.status_code
        return DockerTrouble(f"the Docker Engine answers {status}: {str(said)[:200]}")


async def _body(response: httpx.Response) -> bytes:
    body = bytearray()
    async for data in response.aiter_raw():
        body += data
        if len(body) > _MAX_ANSWER_BYTES:
            raise DockerTrouble(f"the Docker Engine's answer has over {_MAX_ANSWER_BYTES} bytes")
    return bytes(body)


def _since_ns(state: _State) -> int:
    """Docker notes StartedAt when the process may have printed already: what follows the end of the
    run before belongs to this one. A process that was over by then has an end before its start."""
    started, finished = stamp_ns(state.started_at.encode()), stamp_ns(state.finished_at.encode())
    if started is None or started <= 0:
        return 0
    if finished is None or finished <= 0:
        return 0
    if state.status in _RUNNING and finished < started:
        return finished
    return max(0, min(started, finished) - 10**9)

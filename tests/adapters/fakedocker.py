"""The part of a Docker Engine's API that a log source sees, and what can happen to it."""

import asyncio
import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import parse_qs, urlsplit

SECOND = 10**9


def stamp(ns):
    whole = datetime.fromtimestamp(ns // SECOND, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{whole}.{ns % SECOND:09d}Z"


@dataclass
class Container:
    """Its state and its stored log."""

    id: str
    name: str
    service: str | None = None
    created: int = 1
    status: str = "running"
    started_ns: int = 100 * SECOND
    finished_ns: int = 0
    exit_code: int = 0
    restarts: int = 0
    options: dict = field(default_factory=dict)
    entries: list = field(default_factory=list)

    def print(self, text, ns, stream=1):
        self.entries.append((ns, stream, text))

    def end(self, ns, exit_code=0, status="exited"):
        self.status, self.finished_ns, self.exit_code = status, ns, exit_code

    def start(self, ns):
        self.status, self.started_ns = "running", ns
        self.restarts += 1

    def inspected(self):
        return {
            "Id": self.id,
            "Name": f"/{self.name}",
            "RestartCount": self.restarts,
            "State": {
                "Status": self.status,
                "StartedAt": stamp(self.started_ns),
                "FinishedAt": stamp(self.finished_ns) if self.finished_ns else "0001-01-01T00:00Z",
                "ExitCode": self.exit_code,
                "OOMKilled": self.exit_code == 137,
            },
            "Config": {"Tty": False},
            "HostConfig": {"LogConfig": {"Type": "json-file", "Config": self.options}},
        }


class FakeDocker:
    """Serves on a Unix socket for as long as it is entered."""

    def __init__(self, path):
        self.path = str(path)
        self.containers = []
        self.log_error = None
        self.followers = 0
        self.asked = 0
        """How often a log was asked for."""
        self._made = 0
        self._server = None
        self._writers = set()

    async def __aenter__(self):
        self._server = await asyncio.start_unix_server(self._serve, self.path)
        return self

    async def __aexit__(self, *_):
        self.away()
        await self._server.wait_closed()

    def add(self, name, **more):
        self._made += 1
        container = Container(f"{self._made:012}".ljust(64, "0"), name, **more)
        self.containers.append(container)
        return container

    def away(self):
        """The daemon is gone: its connections break and nobody listens."""
        self._server.close()
        for writer in tuple(self._writers):
            writer.transport.abort()

    async def back(self):
        self._server = await asyncio.start_unix_server(self._serve, self.path)

    async def _serve(self, reader, writer):
        self._writers.add(writer)
        try:
            while line := await reader.readline():
                while (await reader.readline()).strip():
                    pass
                url = urlsplit(line.split()[1].decode())
                query = {key: value[0] for key, value in parse_qs(url.query).items()}
                await self._answer(reader, writer, url.path.split("/")[2:], query)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answer(self, reader, writer, parts, query):
        if parts == ["json"]:
            labels = json.loads(query["filters"])["label"]
            found = [
                c for c in self.containers if f"com.docker.compose.service={c.service}" in labels
            ]
            listed = [
                {"Id": c.id, "Names": [f"/{c.name}"], "State": c.status, "Created": c.created}
                for c in found
            ]
            return self._json(writer, 200, listed)
        container = next((c for c in self.containers if parts[0] in (c.id, c.name)), None)
        if container is None:
            return self._json(writer, 404, {"message": f"No such container: {parts[0]}"})
        if parts[1] == "json":
            return self._json(writer, 200, container.inspected())
        if self.log_error:
            return self._json(writer, 500, {"message": self.log_error})
        return await self._log(reader, writer, container, query)

    def _json(self, writer, status, body):
        data = json.dumps(body).encode()
        head = f"HTTP/1.1 {status} -\r\nContent-Length: {len(data)}\r\n\r\n"
        writer.write(head.encode() + data)

    async def _log(self, reader, writer, container, query):
        seconds, _, digits = query["since"].partition(".")
        since = int(seconds) * SECOND + int(digits)
        writer.write(b"HTTP/1.1 200 -\r\nTransfer-Encoding: chunked\r\n\r\n")
        follows = "follow" in query and container.status == "running"
        run = container.started_ns
        at = 0
        self.asked += 1
        self.followers += follows
        try:
            while True:
                for ns, stream, text in container.entries[at:]:
                    if ns >= since:
                        body = f"{stamp(ns)} {text}\n".encode()
                        data = bytes([stream, 0, 0, 0]) + len(body).to_bytes(4, "big") + body
                        writer.write(b"%x\r\n%b\r\n" % (len(data), data))
                at = len(container.entries)
                await writer.drain()
                over = container not in self.containers or container.status != "running"
                if not follows or over or container.started_ns != run:
                    break
                await asyncio.sleep(0.005)
                if reader.at_eof():
                    return
        finally:
            self.followers -= follows
        writer.write(b"0\r\n\r\n")

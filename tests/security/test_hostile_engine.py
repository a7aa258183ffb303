"""S10: an engine, or whoever stands at its address, that answers without end."""

import itertools

import anyio
import httpx
import pytest

from sidecar.simulator.server import simulator
from tests.live.process import free_port
from tests.service.between import relay, reply
from tests.service.program import started
from tests.service.running import WARM, asking

pytestmark = pytest.mark.programs

MAX_MB = 300
"""Of the whole process; 65 with an honest engine. An answer may have 16 MiB, a page of it is text,
lines and numbers at once."""

OK = b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\n"
CHUNK = b"10000\r\n" + b"a" * 65_536 + b"\r\n"


class Endless:
    """The head once, then the piece for ever."""

    def __init__(self, head, piece):
        self.head, self.piece = head, piece

    def __iter__(self):
        return itertools.chain([self.head], itertools.repeat(self.piece))


JSON, SSE = OK % b"application/json", OK % b"text/event-stream"
CHUNKED = b"transfer-encoding: chunked\r\n\r\n"
ANSWERS = {
    "headers": ("/v1/models", Endless(JSON, b"x-a: " + b"a" * 60_000 + b"\r\n")),
    "informational": ("/v1/models", Endless(b"", b"HTTP/1.1 103 Early\r\nx: y\r\n\r\n" * 1000)),
    "body": ("/metrics", Endless(OK % b"text/plain" + CHUNKED, CHUNK)),
    "depth": ("/v1/models", reply(200, b"[" * 15_000_000)),
    "event": ("/v1/completions", Endless(SSE + CHUNKED + b"6\r\ndata: \r\n", CHUNK)),
    "comments": ("/v1/completions", Endless(SSE + CHUNKED, b"4\r\n: a\n\r\n" * 5000)),
}


@pytest.mark.parametrize("kind", ANSWERS)
async def test_s10_answers_without_end_are_given_up(tmp_path, kind):
    """The gate stays shut, its port answers at once all the while, and memory is bounded."""
    path, answer = ANSWERS[kind]
    async with simulator(WARM) as sim, relay(sim.port) as address:
        address.answers[path] = answer
        async with (
            started("serve", address.url, tmp_path, PORT=free_port()) as program,
            asking(program.url) as http,
        ):
            seen, most_mb = 0, 0
            with anyio.fail_after(90):
                while seen < 12:
                    try:
                        body = (await http.get("/ready")).json()
                    except httpx.ConnectError:
                        await anyio.sleep(0.05)
                        continue
                    assert not body["proven"]
                    most_mb = max(most_mb, await rss_mb(program.process.pid))
                    seen += path in address.asked
                    await anyio.sleep(0.05)
        assert most_mb < MAX_MB


async def rss_mb(pid):
    status = await anyio.Path(f"/proc/{pid}/status").read_text()
    (line,) = [row for row in status.splitlines() if row.startswith("VmRSS")]
    return int(line.split()[1]) / 1024

"""`serve` and `once` as processes, and what they say meanwhile."""

import os
import sys
from contextlib import asynccontextmanager

import anyio
import httpx

from tests.patience import until
from tests.service.running import SHAPES, asking

LIMIT_S = 60.0


class Program:
    """A process whose pages are asked for at `url`, and whose output is read all the while: a full
    pipe would hold it up."""

    def __init__(self, process, port):
        self.process = process
        self.url = f"http://127.0.0.1:{port}"
        self._said = {"out": b"", "err": b""}
        self._spoke = anyio.Event()

    @property
    def out(self):
        return self._said["out"].decode()

    @property
    def err(self):
        return self._said["err"].decode(errors="replace")  # it may be in the middle of a letter

    async def read(self, name, stream):
        async for piece in stream:
            self._said[name] += piece
            self._spoke.set()

    async def until_said(self, *words):
        """Wait until one of them stands in what it said on stderr."""
        with anyio.fail_after(LIMIT_S):
            while not any(word in self.err for word in words):
                self._spoke = anyio.Event()
                await self._spoke.wait()

    async def answers(self, path, status):
        """Wait for that status of a page; its JSON."""
        body = None

        async def is_so():
            nonlocal body
            try:
                answer = await http.get(path)
            except httpx.TransportError:
                return False
            body = answer.json()
            return answer.status_code == status

        async with asking(self.url) as http:
            await until(is_so, LIMIT_S)
        return body


@asynccontextmanager
async def started(command, url, folder, *, more_env=None, **settings):
    """A sidecar process, killed if it has not ended by itself; what it said is whole afterwards."""
    shapes = anyio.Path(folder) / "shapes.yaml"
    await shapes.write_text(SHAPES)
    kept = {k: v for k, v in os.environ.items() if not k.startswith("WARMUP_")}
    ours = {"ENGINE_URL": url, "HOST": "127.0.0.1", "SHAPES": str(shapes), **settings}
    env = kept | {f"WARMUP_{name}": str(value) for name, value in ours.items()} | (more_env or {})
    process = await anyio.open_process(
        [sys.executable, "-m", "sidecar", command], env=env, start_new_session=True
    )
    program = Program(process, ours.get("PORT"))
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(program.read, "out", process.stdout)
            group.start_soon(program.read, "err", process.stderr)
            try:
                yield program
            finally:
                if process.returncode is None:
                    process.kill()
    finally:
        with anyio.CancelScope(shield=True):
            await process.aclose()

"""A log source being followed, and what it has given so far."""

import contextlib
from contextlib import aclosing, asynccontextmanager

import anyio

from sidecar.core.logs.items import Ended, Gap, Line
from tests.patience import until


class Follow:
    """What a source has given."""

    def __init__(self, source):
        self.source = source
        self.items = []

    @property
    def texts(self):
        return [item.text for item in self.items if isinstance(item, Line)]

    @property
    def gaps(self):
        return [item for item in self.items if isinstance(item, Gap)]

    def has_ended(self):
        return any(isinstance(item, Ended) for item in self.items)

    async def until(self, is_so):
        """Wait for something that must come."""
        await until(is_so)

    async def until_texts(self, *texts):
        with contextlib.suppress(AssertionError):
            await self.until(lambda: len(self.texts) >= len(texts))
        assert self.texts == list(texts)


@asynccontextmanager
async def following(source):
    follow = Follow(source)

    async def read():
        async with aclosing(source.lines()) as lines:
            async for item in lines:
                follow.items.append(item)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        yield follow
        tasks.cancel_scope.cancel()

"""All proxies at once in front of the same engines, each with users of its own: what is true of
one life of an engine is then seen through each of them."""

import time
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, Self

from tests.proxies.proxy import Backend, Proxy
from tests.proxies.users import Users


class _Together(ExitStack):
    """Things that are entered as one, and left as one."""

    def __init__(self, things: list[Any]) -> None:
        super().__init__()
        self._things: list[AbstractContextManager[Any]] = things

    def __enter__(self) -> Self:
        for thing in self._things:
            self.enter_context(thing)
        return self


class Front(_Together):
    """A proxy of each name, from the block's begin to its end."""

    def __init__(
        self,
        names: tuple[str, ...],
        folder: Path,
        backends: tuple[Backend, ...],
        *,
        path: str = "/ready",
    ) -> None:
        self.proxies = []
        for name in names:
            (own := folder / name).mkdir(exist_ok=True)
            self.proxies.append(Proxy(name, own, backends, path=path))
        super().__init__(self.proxies)

    def users(self) -> "Crowd":
        return Crowd([Users(proxy.url, name=proxy.name) for proxy in self.proxies])


class Crowd(_Together):
    """The users of every proxy, who send from the block's begin to its end."""

    def __init__(self, of: list[Users]) -> None:
        super().__init__(of)
        self.of = of

    def wait_served(self, count: int, *, since: float | None = None) -> None:
        """Wait until so many of each proxy's users who came after `since` (now) were served."""
        since = time.monotonic() if since is None else since
        for users in self.of:
            users.wait_served(count, since=since)

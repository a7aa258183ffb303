"""All proxies at once in front of the same engines, each with users of its own: what is true of
one life of an engine is then seen through each of them."""

import time
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, Self

from tests.live.sidecar import Sidecar
from tests.proxies.proxy import SHUT, Backend, Proxy
from tests.proxies.users import Asked, Users


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


def unexcused(crowd: "Crowd", *sidecars: Sidecar, since: float = 0.0) -> list[Asked]:
    """Requests that were not served. Where a machine that stands still holds a sidecar up for three
    seconds, its gate is shut until it has looked again: who comes then is told to come later."""
    is_held_up = any("held up" in sidecar.log for sidecar in sidecars)
    return [
        asked
        for users in crowd.of
        for asked in users.unserved
        if asked.began > since
        and not (is_held_up and (asked.status, asked.retry_after) == (SHUT, "10"))
    ]


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

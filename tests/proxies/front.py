"""All proxies at once in front of the same engines, each with users of its own: what is true of
one life of an engine is then seen through each of them."""

import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.proxies.proxy import Backend, Proxy
from tests.proxies.users import Users


class Front:
    """Proxies from the block's begin to its end; users from `let_in` to `__exit__`."""

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
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        for proxy in self.proxies:
            self._stack.enter_context(proxy)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def users(self) -> "Crowd":
        return Crowd([Users(proxy.url, name=proxy.name) for proxy in self.proxies])


class Crowd:
    """The users of every proxy, who send from the block's begin to its end."""

    def __init__(self, of: list[Users]) -> None:
        self.of = of
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        for users in self.of:
            self._stack.enter_context(users)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def wait_served(self, count: int, *, since: float | None = None) -> None:
        """Wait until so many of each proxy's users who came after `since` (now) were served."""
        since = time.monotonic() if since is None else since
        for users in self.of:
            users.wait_served(count, since=since)

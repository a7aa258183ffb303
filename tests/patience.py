"""Waiting for what must come, on a machine that may let this process stand still for seconds."""

import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any

import anyio

_LOOK_S = 0.02
_MOST_S = 0.2


class Patience:
    """So many seconds in which this process ran. While it stands still, so does whatever runs in
    it, and all clocks go on: of such a pause no more counts than of one slow turn."""

    def __init__(self, limit_s: float) -> None:
        self._left_s = limit_s
        self._at_s = time.monotonic()

    def is_over(self) -> bool:
        """To be asked at each look."""
        now_s = time.monotonic()
        self._left_s -= min(now_s - self._at_s, _MOST_S)
        self._at_s = now_s
        return self._left_s <= 0


async def until(is_so: Callable[[], Any | Awaitable[Any]], limit_s: float = 30.0) -> Any:
    """Look again and again; what `is_so` gave at last. It may be a coroutine function."""
    patience = Patience(limit_s)
    while True:
        given = is_so()
        if inspect.isawaitable(given):
            given = await given
        if given:
            return given
        assert not patience.is_over(), f"not within {limit_s:g} s"
        await anyio.sleep(_LOOK_S)

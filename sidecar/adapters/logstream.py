"""One sender of one log source, and what is known of it beside the lines that it sends."""

import time
from copy import copy
from dataclasses import dataclass, field

from sidecar.core.logs.bootlog import BootLog
from sidecar.core.logs.facts import StartFacts
from sidecar.core.logs.head import Origin
from sidecar.core.logs.reader import LogReader
from sidecar.core.logs.window import Window

_OWED_S = 30.0
"""How long a fence that did not come in time may still come; a lossy source may have lost it."""
_GRACE_S = 2.0
"""Where no fence ever shows (no access lines): for as long a wave's lines may come late."""


@dataclass(slots=True)
class Stream:
    """Owned by `Evidence`."""

    source: str
    origin: str | None
    reader: LogReader
    boot: BootLog = field(default_factory=BootLog)
    doubtful: bool = False
    """Its last start stands in history, after answers: a user may have written it."""
    window: Window | None = None
    facts: StartFacts = field(default_factory=StartFacts)
    """As they were when this boot was met."""
    listeners: frozenset[Origin] = frozenset()
    is_engines: bool = False
    """A fence of this boot was seen in it."""
    has_ended: bool = False
    lacks_step: bool = False
    """A compile was told, and the step that it was in was not."""
    _met: BootLog | None = None
    _owed: str | None = None
    _owed_until_s: float = 0.0

    def adopt(self) -> None:
        """A boot was met: its start lines are true."""
        self.facts, self.listeners = self.boot.facts, self.boot.listeners
        self._met = copy(self.boot)

    def reject(self) -> None:
        """No other boot was there: what start lines told since then is not true."""
        if self._met is not None:
            self.boot = copy(self._met)

    def owe(self, closing: str) -> None:
        """The wave is over. Where its last fence has not come yet, neither have its last lines."""
        if self.window is not None and not self.window.is_closed:
            limit_s = _OWED_S if self.is_engines else _GRACE_S
            self._owed, self._owed_until_s = closing, time.monotonic() + limit_s

    def has_paid(self, nonce: str) -> None:
        """A fence came."""
        if nonce == self._owed:
            self._owed = None

    def owes(self, at_s: float) -> bool:
        """Whether what came `at_s` may still belong to the last wave."""
        return self._owed is not None and at_s < self._owed_until_s

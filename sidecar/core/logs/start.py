"""The start lines of one source, in order → the facts of the boot, and when a new one begins."""

from dataclasses import dataclass, field, replace

from sidecar.core.logs.events import Access, Activated, LogEvent, Phase, Started
from sidecar.core.logs.facts import StartFacts
from sidecar.core.logs.head import Origin

_MAX_MONITORS = 4096


@dataclass(frozen=True, slots=True)
class _Boot:
    facts: StartFacts = field(default_factory=StartFacts)
    monitors: frozenset[Origin] = frozenset()


class BootLog:
    """Reads the boot at hand.

    Once a server serves, users can write into its log: from its first answer on nothing more is
    learned, until a line says that a server starts. That line could be forged too, and a pid tells
    nothing (in a container it is mostly the same), so whoever reads it must look for the restart by
    other means and `reject()` it if there was none.
    """

    def __init__(self) -> None:
        self.boots = 0
        """Starts seen in this source, without those that were rejected."""
        self.is_serving = False
        self._boot = _Boot()
        self._before = _Boot()

    @property
    def facts(self) -> StartFacts:
        return self._boot.facts

    @property
    def monitors(self) -> int:
        """Processes whose JIT monitor said that it listens. Compare with `facts.ranks`."""
        return len(self._boot.monitors)

    @property
    def listeners(self) -> frozenset[Origin]:
        """Those processes."""
        return self._boot.monitors

    def feed(self, event: LogEvent) -> bool:
        """Whether a server says with this event that it starts."""
        if isinstance(event, Started):
            return self._started(event)
        if isinstance(event, Access):
            self.is_serving = True
        elif isinstance(event, Activated) and not self.is_serving:
            self._listens(event)
        return False

    def reject(self) -> None:
        """There was no restart: forget what the last start line brought."""
        self._boot = self._before
        self.boots -= 1
        self.is_serving = True

    def _started(self, event: Started) -> bool:
        begins = event.phase is Phase.ARGUMENTS
        if begins:
            self._before, self._boot = self._boot, _Boot()
            self.boots += 1
            self.is_serving = False
        if not self.is_serving:
            self._boot = replace(self._boot, facts=self.facts.with_(event.facts))
            self.is_serving = event.phase is Phase.SERVING
        return begins

    def _listens(self, event: Activated) -> None:
        who = replace(event.origin, at=None)
        known = self._boot.monitors
        self._boot = replace(
            self._boot,
            facts=self.facts.with_(StartFacts(jit_monitor_mode=event.mode)),
            monitors=known | {who} if len(known) < _MAX_MONITORS else known,
        )

"""The start lines of one source, in order → the facts of the boot, and who listens in it."""

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
    other means, and go back to a copy from before if there was none.
    """

    def __init__(self) -> None:
        self.is_serving = False
        self._boot = _Boot()

    @property
    def facts(self) -> StartFacts:
        return self._boot.facts

    @property
    def listeners(self) -> frozenset[Origin]:
        """Processes whose JIT monitor said that it listens: as many as `facts.ranks`, or some of
        them compile unheard."""
        return self._boot.monitors

    def feed(self, event: LogEvent) -> None:
        """The next event of this source."""
        if isinstance(event, Started):
            self._started(event)
        elif isinstance(event, Access):
            self.is_serving = True
        elif isinstance(event, Activated) and not self.is_serving:
            self._listens(event)

    def _started(self, event: Started) -> None:
        if event.phase is Phase.ARGUMENTS:
            self._boot = _Boot()
            self.is_serving = False
        if not self.is_serving:
            self._boot = replace(self._boot, facts=self.facts.with_(event.facts))
            self.is_serving = event.phase is Phase.SERVING

    def _listens(self, event: Activated) -> None:
        who = replace(event.origin, at=None)
        known = self._boot.monitors
        self._boot = replace(
            self._boot,
            facts=self.facts.with_(StartFacts(jit_monitor_mode=event.mode)),
            monitors=known | {who} if len(known) < _MAX_MONITORS else known,
        )

"""The start lines of one source, in order → the facts of the boot, and when a new one begins."""

from sidecar.core.logs.events import Access, Activated, LogEvent, Phase, Started
from sidecar.core.logs.facts import StartFacts
from sidecar.core.logs.head import Origin

_MAX_MONITORS = 4096


class BootLog:
    """Reads the boot at hand.

    Once a server serves, users can write into its log. So from its first answer on nothing more
    is learned, until another process says how it was started; and that another process did so is
    to be confirmed by other means before anything rests on it.
    """

    def __init__(self) -> None:
        self.facts = StartFacts()
        self.boots = 0
        """Starts seen in this source."""
        self.is_serving = False
        self._monitors: set[tuple[str | None, int | None]] = set()
        self._starter: Origin | None = None

    @property
    def monitors(self) -> int:
        """Processes whose JIT monitor said that it listens. Compare with `facts.ranks`."""
        return len(self._monitors)

    def feed(self, event: LogEvent) -> bool:
        """Whether a new boot begins with this event."""
        if isinstance(event, Started):
            return self._started(event)
        if isinstance(event, Access):
            self.is_serving = True
        elif isinstance(event, Activated) and not self.is_serving:
            if len(self._monitors) < _MAX_MONITORS:
                self._monitors.add((event.origin.process, event.origin.pid))
            if event.mode is not None:
                self.facts = self.facts.with_(StartFacts(jit_monitor_mode=event.mode))
        return False

    def _started(self, event: Started) -> bool:
        begins = event.phase is Phase.ARGUMENTS and not self._is_same(event.origin)
        if begins:
            self.facts = StartFacts()
            self.boots += 1
            self.is_serving = False
            self._monitors.clear()
            self._starter = event.origin
        if not self.is_serving:
            self.facts = self.facts.with_(event.facts)
            self.is_serving = event.phase is Phase.SERVING
        return begins

    def _is_same(self, origin: Origin) -> bool:
        """The process that is being read already. One without a pid can't be told from it while
        it serves."""
        if self._starter is None:
            return False
        if origin.pid is None or self._starter.pid is None:
            return self.is_serving
        return origin.pid == self._starter.pid

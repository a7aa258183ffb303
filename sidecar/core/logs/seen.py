"""Something that a log source showed while it was read, beside what belongs to a wave's window."""

from dataclasses import dataclass

from sidecar.core.logs.events import Compile, Started, Step, Trouble
from sidecar.core.logs.items import Began, Ended, Gap

Told = Compile | Trouble | Started | Step | Began | Ended | Gap


@dataclass(frozen=True, slots=True)
class Seen:
    """It happened after the source was opened; history is never told."""

    source: str
    at_s: float
    """Monotonic, when it was read."""
    what: Told
    """A Step only where it is the first after a Compile: the one that compiled, as far as the
    order of two writers tells."""
    in_wave: bool
    """A wave of ours was running, or its last lines were not through: a compile is no escape."""

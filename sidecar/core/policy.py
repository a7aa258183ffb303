"""What the operator decided, as the conductor needs it."""

from dataclasses import dataclass, field

from sidecar.core.grid.cells import Converge


@dataclass(frozen=True, slots=True)
class Rhythm:
    """How often it is looked, and how late an answer may be (design: a busy API loop is late)."""

    health_every_s: float = 1.0
    mark_every_s: float = 10.0
    late_answers: int = 3
    """Health answers in a row that timed out, and that for at least `late_s`."""
    late_s: float = 10.0
    search_every_s: float = 1.0
    """While there is no engine."""
    ready_file_every_s: float = 5.0
    """Whether the ready file still says what the gate says."""
    presence_every_s: float = 2.0
    """Whether the engine sleeps, is paused or rescaled; its process lives meanwhile."""
    held_every_s: float = 5.0
    """Whether a cell that is held back was released by the operator."""
    between_marks_s: float = 0.2
    """Of the marks that are taken before a new boot is believed."""
    held_up_s: float = 3.0
    """So much later than it wanted to look the sidecar was held up itself: what it knows is old."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What the operator decided."""

    url: str
    sidecar_version: str
    shapes_digest: str
    converge: Converge = field(default_factory=Converge)
    budget_s: float = 600.0
    max_passes: int = 20
    open_unproven: bool = True
    require_log: bool = False
    """The gate stays shut unless the engine's log was seen whole."""
    start_deadline_s: float = 3600.0
    retry_first_s: float = 15.0
    retry_longest_s: float = 600.0
    sleep_keeps_verdict: bool = False
    """After a sleep of level 1 or a pause the gate opens again without another warm-up."""
    rewarm_on_escape: bool = False
    rewarm_pause_s: float = 900.0
    """Between the opening and a warm-up because of an escape."""
    rhythm: Rhythm = field(default_factory=Rhythm)
    warnings: tuple[str, ...] = ()
    """About the settings, shown for as long as the sidecar lives."""

"""What a log source yields, in the order in which it arrived.

Nothing here is judged: which line is evidence is the parser's to say, and how far the evidence
carries is the window's. Of the lines only those that match are kept; users' prompts can stand in
the others.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Line:
    """One line, without its newline and without what the transport put before it."""

    text: str
    at_s: float
    """When it was read; monotonic."""
    origin: str | None = None
    """Which sender's stream it belongs to, where one source carries several (a syslog tag)."""
    old: bool = False
    """Written before the source was opened: history, not something that happens now."""


@dataclass(frozen=True, slots=True)
class Gap:
    """From here back to the item before, lines may be missing: no silence across it counts."""

    at_s: float
    why: str
    seconds: float | None = None
    """How long the source was not heard; None: not a matter of time."""
    lost_bytes: int | None = None
    """None: not known. 0: shown that nothing is missing, by seeing known lines again."""
    lost_lines: int | None = None
    """None: not known."""

    def __str__(self) -> str:
        parts = [f"gap of {self.seconds:.1f} s" if self.seconds is not None else "gap"]
        if self.lost_lines is not None:
            parts.append(f"{self.lost_lines} lines lost")
        if self.lost_bytes is not None:
            parts.append(f"{self.lost_bytes} bytes lost" if self.lost_bytes else "nothing lost")
        return f"{', '.join(parts)}: {self.why}"


@dataclass(frozen=True, slots=True)
class Began:
    """A sender's stream begins. With `started_at` a run of a container: a boot of the engine."""

    at_s: float
    origin: str
    started_at: str | None = None
    """Docker's StartedAt, as it is written there; None where the source can't know it."""
    restart_count: int | None = None
    """Docker's own restarts of this container (its restart policy), not those by an operator."""
    why: str = "seen first"


@dataclass(frozen=True, slots=True)
class Ended:
    """A sender's stream ended."""

    at_s: float
    origin: str
    why: str
    exit_code: int | None = None
    oom_killed: bool | None = None


Item = Line | Gap | Began | Ended


@dataclass(frozen=True, slots=True)
class Counts:
    """What a source has done so far. Whatever was dropped is here, whether a gap told it or not."""

    lines: int = 0
    breaks: int = 0
    """How often the source was lost and had to be found again."""
    cut_lines: int = 0
    """Lines whose end was dropped because they were too long; their beginnings were yielded."""
    cut_bytes: int = 0
    dropped_lines: int = 0
    """Dropped here because nobody took them in time, or too many senders had come before theirs."""
    kernel_drops: int | None = None
    """Datagrams that the kernel had no room for; None: not a matter of this source, or not told."""
    refused: int = 0
    """Senders that are not allowed, or one connection too many."""


@dataclass(frozen=True, slots=True)
class SourceState:
    """One source for people: its name, what it has done, what is wrong with it now."""

    source: str
    counts: Counts
    trouble: str | None = None

"""What /health said, in the ways that matter to the gate."""

from enum import StrEnum


class Health(StrEnum):
    """The answer of one probe."""

    UP = "up"
    """The process lives and its engine is not in the errored state; nothing more."""
    RECONNECTED = "reconnected"
    """UP, but over a new connection: the kept one broke without notice. A process that was
    replaced between two probes looks like that, and so does a proxy that was."""
    REFUSED = "refused"
    """Refused, reset, or no such host: nobody is there, or not any more."""
    UNAVAILABLE = "unavailable"
    """5xx. vLLM answers 503 once its engine core is dead (0.33
    entrypoints/serve/instrumentator/health.py), and is gone about 5 s later."""
    TIMEOUT = "timeout"
    """No answer in time: an API loop that parses large bodies answers late and is not dead."""
    UNREACHED = "unreached"
    """No connection in time. A busy process still has its connections taken by the kernel, until
    its backlog is full: it may be late, and it may be another process when it is back."""
    VANISHED = "vanished"
    """The kept connection broke, or nobody acknowledged what was sent over it, and no other was
    made in time. A busy process's kernel does acknowledge: the address is gone."""

    @property
    def is_up(self) -> bool:
        return self in (Health.UP, Health.RECONNECTED)

    @property
    def is_late(self) -> bool:
        return self in (Health.TIMEOUT, Health.UNREACHED)

    @property
    def breaks(self) -> bool:
        """Whether a restart since the probe before can't be ruled out."""
        return self not in (Health.UP, Health.TIMEOUT)

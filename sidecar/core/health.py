"""What /health said, in the four ways that matter to the gate."""

from enum import StrEnum


class Health(StrEnum):
    """The answer of one probe."""

    UP = "up"
    """The process lives and its engine is not in the errored state; nothing more."""
    REFUSED = "refused"
    """Refused, reset, or no such host: nobody is there, or not any more."""
    UNAVAILABLE = "unavailable"
    """5xx. vLLM answers 503 once its engine core is dead (0.33
    entrypoints/serve/instrumentator/health.py), and is gone about 5 s later."""
    TIMEOUT = "timeout"
    """No answer in time: an API loop that parses large bodies answers late and is not dead."""

"""Everything that can end a command, and with which exit code.

    WarmupError
    ├── ConfigError          2   the operator's to mend: settings, shapes file, unreadable file
    ├── EngineUnavailable    4   nothing there that could be warmed, within the time that was given
    │   └── EngineRejected   4   something is there and says no: wrong key, unknown model, not vLLM
    └── EvidenceMissing      5   evidence was required and can't be had

"Not warm" is no error but a verdict (exit code 3), and a request that fails is a Result.
"""

from enum import IntEnum


class ExitCode(IntEnum):
    """What `vllm-warmup` answers to the shell."""

    WARM = 0
    BUG = 1
    CONFIG = 2
    NOT_CONVERGED = 3
    ENGINE_UNAVAILABLE = 4
    EVIDENCE_MISSING = 5


class WarmupError(Exception):
    """One sentence for the operator: what is wrong, where, and what to change."""

    exit_code = ExitCode.BUG

    def __str__(self) -> str:
        # It may repeat what a file or an engine said, and terminals obey control characters.
        return "".join(c if c.isprintable() else " " for c in super().__str__())


class ConfigError(WarmupError):
    """Settings or a shapes file that can't be used as they are."""

    exit_code = ExitCode.CONFIG


class EngineUnavailable(WarmupError):
    """The engine did not answer in time."""

    exit_code = ExitCode.ENGINE_UNAVAILABLE


class EngineRejected(EngineUnavailable):
    """The engine, or what stands at its address, answered and refused."""


class EvidenceMissing(WarmupError):
    """The operator required evidence that this engine doesn't give."""

    exit_code = ExitCode.EVIDENCE_MISSING


def unreadable(error: OSError) -> str:
    """Why a file that was named can't be read, and what to change: words to end a sentence with."""
    why = (error.strerror or str(error)).lower()
    if isinstance(error, PermissionError):
        # Mostly a secret of mode 600, mounted from a host where somebody else owns it.
        return f"({why}); let the user that this runs as read it (65532 in the image)"
    if isinstance(error, IsADirectoryError):
        # Docker makes a folder at both ends of a bind mount whose file is not there.
        return f"({why}); name a file, and if it is a mounted one, see that it exists on the host"
    return f"({why}); correct the path"

"""Files that are either as before or as meant, whatever dies in between."""

import contextlib
import os
import tempfile
from pathlib import Path

PRIVATE = 0o600
PART = ".part"
"""How the names of files end that are not whole yet."""


def write_atomically(path: Path, content: str, *, mode: int = 0o644) -> None:
    """Replace `path` by a file with `content`, on disk before it has its name. Raises OSError.

    A link of that name is replaced, never followed. It may be read by everybody, if `mode` doesn't
    say otherwise: a probe in another container has another user.
    """
    handle, name = tempfile.mkstemp(PART, f".{path.name}.", path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            os.fchmod(file.fileno(), mode)
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """The name is on disk too. Some shared volumes can't do this, and then it is not promised."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

"""Finds and reads a shapes file: a path, or the name of one that is shipped with the program."""

from pathlib import Path

from sidecar.core.errors import ConfigError, unreadable
from sidecar.core.grid.shapes import Shapes, parse
from sidecar.core.nearest import suggest
from sidecar.core.yamltext import MAX_BYTES

_PACKAGE = Path(__file__).resolve().parents[1]
# In a wheel the files lie inside the package, in a checkout beside it.
_SHIPPED = (_PACKAGE / "_shapes", _PACKAGE.parent / "shapes")


def shipped() -> dict[str, Path]:
    """Name → path of every shapes file that comes with the program."""
    folder = next((f for f in _SHIPPED if f.is_dir()), None)
    if folder is None:
        return {}
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def find(name: str) -> Path:
    """The file of that name or path. Raises ConfigError for a name that is neither."""
    path = Path(name)
    if path.suffix in (".yaml", ".yml") or "/" in name or path.exists():
        return path
    files = shipped()
    if name not in files:
        raise ConfigError(
            f'no shapes file is called "{name}"{suggest(name, files)}; '
            f"give a path, or one of {', '.join(files)}"
        )
    return files[name]


def read_text(name: str) -> str:
    """The text of a shapes file, bounded. Raises ConfigError if it can't be read."""
    path = find(name)
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: can't be read {unreadable(error)}") from None
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{path}: larger than {MAX_BYTES // 1024} KiB; split it or shorten it")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: not UTF-8 text; save it as UTF-8") from None


def read(name: str) -> Shapes:
    """Read and check a shapes file. Raises ConfigError, one sentence."""
    return parse(read_text(name), str(find(name)))

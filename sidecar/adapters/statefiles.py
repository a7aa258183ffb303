"""The state folder from outside, for commands: what it holds, and clearing it."""

from contextlib import suppress
from pathlib import Path

from sidecar.adapters.state import DEATHS, IN_FLIGHT, LAST_REPORT, MAX_FILE_BYTES
from sidecar.core import report as report_form
from sidecar.core.errors import ConfigError
from sidecar.core.report import Report
from sidecar.core.urls import MAX_ENGINES
from sidecar.core.watch import deaths as deaths_form
from sidecar.core.watch.deaths import Death, InFlight


def remembered(folder: Path) -> tuple[Death, ...]:
    """The deaths that hold cells back. Raises ConfigError, one sentence."""
    text = _text(folder / DEATHS)
    try:
        return () if text is None else deaths_form.deaths_from_json(text)
    except ValueError as problem:
        raise ConfigError(f"{folder / DEATHS} is damaged: {problem}; remove it") from problem


def wave_in_flight(folder: Path) -> InFlight | None:
    """The wave that is being sent, or was when the sidecar was killed. Raises ConfigError."""
    text = _text(folder / IN_FLIGHT)
    try:
        return None if text is None else deaths_form.wave_from_json(text)
    except ValueError as problem:
        raise ConfigError(f"{folder / IN_FLIGHT} is damaged: {problem}; remove it") from problem


def clear(folder: Path) -> bool:
    """Forget all deaths; a running sidecar sees it within seconds. Whether there was anything.

    Raises ConfigError where the folder can't be written.
    """
    if not folder.is_dir():
        raise ConfigError(f"there is no state folder {folder}; correct WARMUP_STATE_DIR")
    found = False
    for name in (DEATHS, IN_FLIGHT):
        try:
            (folder / name).unlink()
            found = True
        except FileNotFoundError:
            continue
        except OSError as problem:
            raise ConfigError(f"{folder / name} can't be removed: {problem.strerror}") from problem
    return found


def _text(path: Path) -> str | None:
    """None where there is no such file. Raises ConfigError."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ConfigError(f"{path} is larger than {MAX_FILE_BYTES >> 20} MiB: none of ours")
        return path.read_text("utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as problem:
        raise ConfigError(f"{path} can't be read: {problem}") from problem


def last_report(folder: Path) -> Report:
    """The report of the last run, for `vllm-warmup report`. Raises ConfigError, one sentence."""
    path = folder / LAST_REPORT
    text = _text(path)
    if text is None:
        raise ConfigError(
            f"no report in {folder}: set WARMUP_STATE_DIR to the folder that the sidecar was "
            "given, and let one warm-up end"
        )
    try:
        return report_form.from_json(text)
    except ConfigError as problem:
        raise ConfigError(f"{path}: {problem}") from problem


def readable_reports(folder: Path) -> tuple[Report, ...]:
    """The last report, and those of the engines that have a folder of their own in it; without
    those that can't be read, for whoever can do without."""
    folders = [folder]
    with suppress(OSError):
        folders += [path.parent for path in sorted(folder.glob(f"*/{LAST_REPORT}"))[:MAX_ENGINES]]
    found = []
    for one in folders:
        with suppress(ConfigError):
            found.append(last_report(one))
    return tuple(found)

"""The state folder: the verdict that outlives the sidecar, the last report, the history, and the
cells that an engine died on.

Every file is replaced as a whole, bounded when read, and set aside when damaged. Once the sidecar
runs, nothing here is fatal: what goes wrong is logged and told in `troubles`.
"""

import fcntl
import json
import logging
import os
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import anyio

from sidecar.adapters.atomic import PART, PRIVATE, write_atomically
from sidecar.adapters.onethread import OneThread
from sidecar.core import report as report_form
from sidecar.core.errors import ConfigError
from sidecar.core.report import Report, with_escapes
from sidecar.core.watch import deaths as deaths_form
from sidecar.core.watch import kept as kept_form
from sidecar.core.watch.boot import BootMark
from sidecar.core.watch.deaths import Death, InFlight
from sidecar.core.watch.escapes import Escape
from sidecar.core.watch.kept import Kept

log = logging.getLogger(__name__)

VERDICT = "verdict.json"
MARK = "mark.json"
"""A newer mark of the verdict's boot, apart from it: it is written every few seconds."""
LAST_REPORT = "last-report.json"
HISTORY = "history.jsonl"
IN_FLIGHT = "in-flight.json"
"""The wave that is being sent. Left behind by whoever was killed meanwhile."""
DEATHS = "deaths.json"

MAX_FILE_BYTES = 32 << 20
"""A thousand cells with two thousand waves make a report of about 2 MB."""
MAX_HISTORY_BYTES = 4 << 20
"""A grid of twenty cells leaves about 10 kB a run; the older half goes when it is full."""


LIMIT_S = 5.0
"""For one visit to the folder. A network share that hangs must not hold up the gate."""

_OTHERS, _SLOW = "used by others", "slow"
"""Troubles of the folder itself, beside those of its files."""

_T = TypeVar("_T")


def _open_own(path: str, flags: int) -> int:
    """Not through a link that somebody planted, and for nobody else to read."""
    return os.open(path, flags | os.O_NOFOLLOW, PRIVATE)


class StateDir:
    """One folder, one sidecar."""

    def __init__(self, folder: Path) -> None:
        """Makes the folder and tries to write into it. Raises ConfigError when it can't."""
        self._folder = folder
        self._troubles: dict[str, str] = {}
        self._kept: Kept | None = None
        self._unwritten: tuple[Death, ...] = ()
        self._thread = OneThread()
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(folder / ".writable", "")
            (folder / ".writable").unlink()
            self._lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            weakref.finalize(self, os.close, self._lock)
        except OSError as problem:
            is_file = isinstance(problem, FileExistsError)
            why = "it is no folder" if is_file else problem.strerror
            raise ConfigError(
                f"the state folder {folder} can't be written ({why}): set "
                "WARMUP_STATE_DIR to a folder that this user may write to"
            ) from problem
        self._claim()
        if _OTHERS not in self._troubles:
            self._tidy()

    @property
    def troubles(self) -> tuple[str, ...]:
        """One sentence for each file that could not be read or written the last time."""
        return tuple(self._troubles.values())

    async def load(self) -> Kept | None:
        """The kept verdict with the newest mark of its boot; None where there is none."""
        return await self._within_limit(self._load)

    async def keep(self, kept: Kept) -> bool:
        """From now on the verdict of this boot. Whether it could be written."""
        self._kept = kept
        return bool(await self._within_limit(partial(self._keep, kept)))

    async def refresh(self, mark: BootMark, at: float) -> None:
        """A newer mark of the boot whose verdict is kept, taken `at` (seconds since 1970)."""
        if self._kept is not None:
            await self._within_limit(partial(self._refresh, self._kept.nonce, mark, at))

    async def last_report(self) -> Report | None:
        """Of the last warm-up that came to a verdict."""
        return await self._within_limit(partial(self._parsed, LAST_REPORT, report_form.from_json))

    async def add_report(self, report: Report) -> None:
        """It becomes the last report, and without its waves a line of the history."""
        await self._within_limit(partial(self._add_report, report))

    async def add_escapes(self, nonce: str, escapes: Sequence[Escape]) -> None:
        """To the last report, if it is of the run with this nonce."""
        await self._within_limit(partial(self._add_escapes, nonce, escapes))

    async def forget(self) -> None:
        """The kept verdict does not hold any more."""
        self._kept = None
        await self._within_limit(partial(self._remove, VERDICT))

    async def take_off(self, wave: InFlight) -> None:
        """This wave is in flight, and no other."""
        await self._within_limit(
            partial(self._write, self._folder / IN_FLIGHT, lambda: deaths_form.wave_to_json(wave))
        )

    async def land(self) -> None:
        """Nothing is in flight."""
        await self._within_limit(partial(self._remove, IN_FLIGHT))

    async def in_flight(self) -> InFlight | None:
        """What was in flight when it was written last; None: nothing."""
        return await self._within_limit(
            partial(self._parsed, IN_FLIGHT, deaths_form.wave_from_json)
        )

    async def bury(self, death: Death) -> None:
        """Remember it; nothing is in flight then."""
        await self._within_limit(partial(self._bury, death))

    async def deaths(self) -> tuple[Death, ...]:
        """All that are remembered, the oldest first."""
        read = await self._within_limit(self._deaths)
        return self._unwritten if read is None else read

    async def _within_limit(self, act: Callable[[], _T]) -> _T | None:
        """What `act` gives, from a thread; None when the folder takes too long, or no thread is
        to be had.

        A write that is left behind does no harm: it is whole or not at all.
        """
        trouble = f"did not answer within {LIMIT_S:g} s"
        with anyio.move_on_after(LIMIT_S):
            try:
                told = await self._thread.run(act)
            except OSError as problem:
                trouble = f"can't be visited: {problem.strerror}"
            else:
                self._troubles.pop(_SLOW, None)
                return told
        self._trouble(self._folder, trouble, kind=_SLOW)
        return None

    def _claim(self) -> None:
        """Say so while another sidecar uses the folder: each would overwrite what the other kept.

        The kernel drops the lock with its process. Where the volume knows no locks none is taken.
        """
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._troubles.pop(_OTHERS, None)
        except BlockingIOError:
            what = "is used by another sidecar too: give each a WARMUP_STATE_DIR of its own"
            self._trouble(self._folder, what, kind=_OTHERS)
        except OSError as problem:
            log.debug("state: no lock on %s: %s", self._folder, problem)

    def _tidy(self) -> None:
        """Remove what an earlier life was killed at writing: each can have some megabytes."""
        for left in self._folder.glob(f".*{PART}"):
            with suppress(OSError):
                left.unlink()

    def _load(self) -> Kept | None:
        kept = self._parsed(VERDICT, kept_form.from_json)
        if kept is not None:
            self._kept = kept = self._with_newest_mark(kept)
        return kept

    def _with_newest_mark(self, kept: Kept) -> Kept:
        path = self._folder / MARK
        text = self._read(path)
        if text is None:
            return kept
        try:
            stored = json.loads(text)
            if stored["nonce"] != kept.nonce:
                return kept
            mark, at = BootMark.from_json(stored["mark"]), float(stored["at"])
            return replace(kept, boot=mark, marked_at=at)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as problem:
            self._set_aside(path, str(problem))
            return kept

    def _keep(self, kept: Kept) -> bool:
        return self._write(self._folder / VERDICT, lambda: kept_form.to_json(kept))

    def _refresh(self, nonce: str, mark: BootMark, at: float) -> None:
        text = json.dumps({"nonce": nonce, "at": at, "mark": mark.to_json()})
        self._write(self._folder / MARK, lambda: text)

    def _add_report(self, report: Report) -> None:
        self._write(self._folder / LAST_REPORT, lambda: report_form.to_json(report, indent=2))
        line = report_form.to_json(replace(report, waves=())) + "\n"
        path = self._folder / HISTORY
        try:
            if path.exists() and path.stat().st_size + len(line) > MAX_HISTORY_BYTES:
                lines = path.read_text("utf-8", "replace").splitlines(keepends=True)
                write_atomically(path, "".join(lines[len(lines) // 2 :]), mode=PRIVATE)
                log.info("history: the older half, %d runs, dropped", len(lines) // 2)
            with open(path, "a", encoding="utf-8", opener=_open_own) as file:
                file.write(line)
            self._troubles.pop(path.name, None)
        except OSError as problem:
            self._trouble(path, f"can't be written: {problem.strerror}")

    def _add_escapes(self, nonce: str, escapes: Sequence[Escape]) -> None:
        report = self._parsed(LAST_REPORT, report_form.from_json)
        if report is not None and report.nonce == nonce:
            more = with_escapes(report, escapes)
            self._write(self._folder / LAST_REPORT, lambda: report_form.to_json(more, indent=2))

    def _bury(self, death: Death) -> None:
        self._unwritten = (*self._unwritten, death)
        known = self._deaths()
        if self._write(self._folder / DEATHS, lambda: deaths_form.deaths_to_json(known)):
            self._unwritten = ()
            self._remove(IN_FLIGHT)

    def _deaths(self) -> tuple[Death, ...]:
        written = self._parsed(DEATHS, deaths_form.deaths_from_json) or ()
        return (*written, *self._unwritten)

    def _remove(self, name: str) -> None:
        try:
            (self._folder / name).unlink(missing_ok=True)
        except OSError as problem:
            self._trouble(self._folder / name, f"can't be removed: {problem.strerror}")

    def _parsed(self, name: str, parse: Callable[[str], _T]) -> _T | None:
        """What a file says; None where there is none, or none that can be read."""
        text = self._read(self._folder / name)
        try:
            return None if text is None else parse(text)
        except (ValueError, ConfigError) as problem:
            self._set_aside(self._folder / name, str(problem))
            return None

    def _read(self, path: Path) -> str | None:
        try:
            # Not everything that has the name is a file: opening a pipe would wait for its writer.
            if path.exists() and not path.is_file():
                self._set_aside(path, "not a file")
                return None
            if path.stat().st_size > MAX_FILE_BYTES:
                self._set_aside(path, f"more than {MAX_FILE_BYTES >> 20} MiB")
                return None
            return path.read_text("utf-8")
        except FileNotFoundError:
            return None
        except UnicodeDecodeError:
            self._set_aside(path, "not UTF-8")
        except OSError as problem:
            self._trouble(path, f"can't be read: {problem.strerror}")
        return None

    def _write(self, path: Path, content: Callable[[], str]) -> bool:
        if _OTHERS in self._troubles:
            self._claim()
        try:
            write_atomically(path, content(), mode=PRIVATE)
        except OSError as problem:
            self._trouble(path, f"can't be written: {problem.strerror}")
            return False
        self._troubles.pop(path.name, None)
        return True

    def _set_aside(self, path: Path, why: str) -> None:
        aside = path.with_name(f"{path.name}.damaged")
        try:
            path.replace(aside)
            self._trouble(path, f"is damaged ({why}) and was set aside as {aside.name}")
        except OSError as problem:
            self._trouble(path, f"is damaged ({why}) and can't be moved: {problem.strerror}")

    def _trouble(self, path: Path, what: str, *, kind: str | None = None) -> None:
        name = kind or path.name
        sentence = f"state: {path} {what}"
        if self._troubles.get(name) != sentence:
            log.warning("%s", sentence)
        self._troubles[name] = sentence

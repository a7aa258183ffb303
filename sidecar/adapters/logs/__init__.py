"""Sources of the log: each yields lines, and gaps where lines may be missing."""

from collections.abc import AsyncGenerator
from typing import Protocol

from sidecar.adapters.logs.docker import DockerLog
from sidecar.adapters.logs.file import FileLog
from sidecar.adapters.logs.syslog import SyslogLog
from sidecar.core.logs.items import Counts, Item
from sidecar.core.logs.source import DockerSpec, FileSpec, SourceSpec


class LogSource(Protocol):
    """One place that the engine's log comes from."""

    @property
    def is_lossy(self) -> bool:
        """Lines can be missing without a gap: its silence proves nothing."""

    @property
    def trouble(self) -> str | None:
        """One sentence while nothing can be read; the gap comes when it can again."""

    @property
    def counts(self) -> Counts: ...

    def lines(self) -> AsyncGenerator[Item, None]:
        """Endless, and never raises for what the outside does: a lost source is found again with
        growing pauses, and the time without it is a `Gap`. Iterate it once, inside
        `contextlib.aclosing`; closing or cancelling it lets go of all it holds.
        """


def open_source(spec: SourceSpec) -> LogSource:
    """The source of that kind; nothing is opened before `lines` is iterated."""
    match spec:
        case FileSpec():
            return FileLog(spec)
        case DockerSpec():
            return DockerLog(spec)
        case _:
            return SyslogLog(spec)

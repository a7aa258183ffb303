"""A line → who wrote it, where and when, and the message proper.

Text lines of vLLM (0.33 logger.py): `(EngineCore pid=797) INFO 11-29 17:14:24 [core.py:116] …`.
The part in parentheses stands before every line of a process up to 0.30 (prints and foreign
loggers too), and from 0.31 only where vLLM's own logger writes. `--logging-config.formatter json`
(0.31+) writes objects instead.

A message is only what follows the head: users can write into logs, and what stands inside a
message is theirs.
"""

import json
import re
from dataclasses import dataclass

LEVELS = frozenset({"DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"})

_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[@-Z\\^_])?")
"""ECMA-48 control sequences; three disjoint classes, so there is nothing to backtrack into."""

_MAX_WRITERS = 3
"""`(EngineCore pid=1) (RayWorkerWrapper pid=2, ip=10.0.0.1)`: Ray puts its own in between."""
_MAX_WRITER = 80
_MAX_PLACE = 200
_REPEATED = " [repeated "


@dataclass(frozen=True, slots=True)
class Origin:
    """Who wrote a line, as far as the line says."""

    process: str | None = None
    """`APIServer`, `EngineCore_DP1`, `Worker_DP0_TP1_EP3` …"""
    pid: int | None = None
    at: str | None = None
    """The line's own stamp as written: `11-29 17:14:24`, without year, zone or fraction."""

    @property
    def rank(self) -> str | None:
        """`DP0_TP1_EP3` of a worker, `DP1` of an engine core; None where there is only one."""
        if self.process is None or not self.process.startswith(("Worker_", "EngineCore_")):
            return None
        return self.process.partition("_")[2] or None


@dataclass(frozen=True, slots=True)
class Message:
    """A line without its head."""

    text: str
    origin: Origin
    place: str | None = None
    """The source file that logged it (`core.py`), or the logger's module in a JSON line; None if
    the line isn't from vLLM's logger: a print, or a foreign logger."""
    repeated: int = 1
    """Ray writes a line once and says how often it came."""


def split(line: str, prefix: str = "") -> Message:
    """The message of a line. `prefix` is what the operator put into VLLM_LOGGING_PREFIX."""
    if "\x1b" in line:
        line = _ESCAPE.sub("", line)
    line = _unstamped(line)
    if prefix:
        line = line.removeprefix(prefix)
    if line.startswith("{") and line.endswith("}"):
        return _from_json(line)
    process, pid, text = _writer(line)
    if prefix:
        text = text.removeprefix(prefix)
    message = _from_vllm(text, process, pid)
    if message is None and ("it/s]" in text or "s/it]" in text):
        # A bar without an end: whatever came next stands on the same line.
        bar = max(text.rfind("it/s]"), text.rfind("s/it]")) + len("it/s]")
        process, pid, rest = _writer(text[bar:], process, pid)
        message = _from_vllm(rest, process, pid)
    return message or Message(text, Origin(process, pid))


def begins_line(text: str) -> bool:
    """Whether a line begins here for certain, and not the rest of one that was split."""
    return _writer(text)[1] is not None or text.partition(" ")[0].rstrip(":") in LEVELS


def _unstamped(line: str) -> str:
    """Without an RFC 3339 time in front (`docker logs -t`, Kubernetes)."""
    if line[10:11] != "T" or line[4:5] != "-" or line[13:14] != ":":
        return line
    stamp, _, rest = line.partition(" ")
    return rest if len(stamp) <= len("2026-11-29T17:14:24.123456789+00:00") else line


def _writer(
    line: str, process: str | None = None, pid: int | None = None
) -> tuple[str | None, int | None, str]:
    """Process, pid, and what follows `(NAME pid=N)`; of several the last that has a pid."""
    for _ in range(_MAX_WRITERS):
        if not line.startswith("("):
            break
        end = line.find(")", 0, _MAX_WRITER)
        name, found, number = line[1:end].partition(" pid=") if end > 0 else ("", "", "")
        number = number.partition(",")[0]
        if not found or not (number.isascii() and number.isdigit()) or not _is_name(name):
            break
        process, pid = name, int(number[:18])
        line = line[end + 1 :].removeprefix(" ")
    return process, pid, line


def _is_name(name: str) -> bool:
    """`Worker_TP0`, and 0.21's `Worker_TP0_EP0 rank=1`."""
    return name.replace("_", "a").replace(" ", "a").replace("=", "a").replace("-", "a").isalnum()


def _from_vllm(text: str, process: str | None, pid: int | None) -> Message | None:
    """From `LEVEL MM-DD HH:MM:SS [file.py:LINE] message`."""
    level, _, rest = text.partition(" ")
    if level not in LEVELS or rest[2:3] != "-" or rest[8:9] != ":" or rest[14:16] != " [":
        return None
    end = rest.find("]", 16, _MAX_PLACE)
    if end < 0:
        return None
    place = rest[16:end].rpartition(":")[0].rpartition("/")[2]
    message, repeated = _once(rest[end + 1 :].removeprefix(" "))
    return Message(message, Origin(process, pid, rest[:14]), place or None, repeated)


def _once(text: str) -> tuple[str, int]:
    """Text and count of `… [repeated 7x across cluster]`, which Ray writes."""
    if not text.endswith("]"):
        return text, 1
    message, found, tail = text.rpartition(_REPEATED)
    count = tail.partition("x")[0]
    if not found or not count.isdigit() or len(count) > 6:
        return text, 1
    return message.rstrip(), int(count)


def _from_json(line: str) -> Message:
    """From an object of python-json-logger; one that it can't be is a message of its own."""
    try:
        body = json.loads(line)
    except (ValueError, RecursionError):
        return Message(line, Origin())
    text = body.get("message") if isinstance(body, dict) else None
    if not isinstance(text, str):
        return Message(line, Origin())
    pid, process, at, name = (
        body.get(key) for key in ("process", "processName", "asctime", "name")
    )
    origin = Origin(
        process if isinstance(process, str) and len(process) <= _MAX_WRITER else None,
        pid if isinstance(pid, int) and not isinstance(pid, bool) else None,
        at[:_MAX_WRITER] if isinstance(at, str) else None,
    )
    # uvicorn's loggers are foreign: their messages are told by their form, as in text lines.
    is_foreign = not isinstance(name, str) or name.partition(".")[0] != "vllm"
    place = None if is_foreign else f"{str(name).rpartition('.')[2]}.py"
    return Message(text, origin, place)

"""How a log line is written: on one line, without control characters, and without the key."""

import logging

from sidecar.adapters.whose import WHOSE

_FORM = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_TIME = "%Y-%m-%dT%H:%M:%S"


class LineFormatter(logging.Formatter):
    """Libraries log what a server sent them, at debug level whole headers; and an engine may send
    our key back, or what a terminal takes for a command. Whatever they log ends here."""

    def __init__(self, secret: str | None) -> None:
        super().__init__(_FORM, _TIME)
        self._secret = secret

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        if self._secret:
            text = text.replace(self._secret, "***")
        return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)

    def formatMessage(self, record: logging.LogRecord) -> str:
        if name := WHOSE.get():
            record.message = f"{name}: {record.message}"
        # Only a traceback, which comes behind it, has lines of its own.
        return super().formatMessage(record).replace("\n", r"\n")

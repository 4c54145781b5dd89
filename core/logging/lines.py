"""The lines of the server's log, as text or as JSON: one line an event, whatever its texts contain.

Texts that clients choose (client ids, names in an error) get into log lines.  A newline or an escape sequence there
would forge lines or drive the reader's terminal, and a long text would fill the disk.

    text  2026-11-22 12:00:00,123 WARNING bmq.core.net.listener: closing connection=10.0.0.7:4711 error="..."
    json  {"time":"2026-11-22T12:00:00.123Z","level":"WARNING","logger":"bmq.core.net.listener",
           "message":"closing ...","connection":"10.0.0.7:4711","error":"..."}
"""

from __future__ import annotations

import logging
import time
from types import TracebackType

from bmq.core.logging.fields import CONTROL, cut, escaped_json, fields_of, in_text

MESSAGE_MAX = 4_000
"""Characters of one message at most; Kafka's names have 249, and an incident needs no more of anything."""
TRACEBACK_MAX = 20_000
TEXT, JSON = "text", "json"
LOG_FORMATS = (TEXT, JSON)
_Caught = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


def formatter(kind: str) -> logging.Formatter:
    """Return the formatter for the setting ``log_format``."""
    return JsonFormatter() if kind == JSON else LineFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s")


class LineFormatter(logging.Formatter):
    """A formatter of one line per record: control characters escaped, long texts cut, fields after the text.

    The lines of a traceback follow, each indented, so that none of them looks like a record.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = one_line(record.message) + in_text(fields_of(record))
        return super().formatMessage(record)

    def formatException(self, ei: _Caught) -> str:
        lines = cut(super().formatException(ei), TRACEBACK_MAX).splitlines()
        return "\n".join(f"    {one_line(line)}" for line in lines)


class JsonFormatter(logging.Formatter):
    """A formatter of one JSON object per record, on one line: time (UTC), level, logger, message, fields, exception."""

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, object] = {
            "time": f"{clock}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": cut(record.getMessage(), MESSAGE_MAX),
        }
        line.update(fields_of(record))
        if record.exc_info:
            line["exception"] = cut(self.formatException(record.exc_info), TRACEBACK_MAX)
        return escaped_json(line)


def one_line(text: str) -> str:
    """Return ``text``, at most ``MESSAGE_MAX`` characters of it, with control characters escaped as in Python."""
    return CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), cut(text, MESSAGE_MAX))

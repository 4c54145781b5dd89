"""The lines of the server's log: one line an event, whatever stands in it.

Texts that clients choose (client ids, names in an error) get into log lines.  A newline or an escape sequence there
would forge lines or drive the terminal of whoever reads them, and a long text would fill the disk.
"""

from __future__ import annotations

import logging
import re
from types import TracebackType

MESSAGE_MAX = 4_000
"""Characters of one message; Kafka's names have 249 at most, and an incident needs no more of anything."""
TRACEBACK_MAX = 20_000
_Caught = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


class LineFormatter(logging.Formatter):
    """Formats a record as one line: control characters are escaped, what is too long is cut.

    The lines of a traceback follow, each indented: none of them looks like a record of its own.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = one_line(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: _Caught) -> str:
        lines = _cut(super().formatException(ei), TRACEBACK_MAX).splitlines()
        return "\n".join(f"    {one_line(line)}" for line in lines)


def one_line(text: str) -> str:
    """Return ``text`` without control characters (escaped as in Python), at most ``MESSAGE_MAX`` of it."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), _cut(text, MESSAGE_MAX))


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[:longest]}... ({len(text) - longest} characters left out)"

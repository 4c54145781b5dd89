"""The handler of the server's log: formats lines, and bounds their number.

DEBUG lines are not bounded: they are written only where an operator has asked for them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import NamedTuple, TextIO

from bmq.core.logging.fields import fields_of, set_fields, subject_of
from bmq.core.logging.limit import REPEAT_S, EventLimits
from bmq.core.logging.lines import formatter

OWN = "bmq"
"""The logger above all of BMQ's."""


class _LeftOut(NamedTuple):
    """A line that was not written, as text: its arguments may refer to anything, and are not kept."""

    logger: str
    level: int
    message: str
    given: dict[str, object]


class BoundedHandler(logging.StreamHandler[TextIO]):
    """A handler that writes to ``stream`` the lines that ``core.logging.limit`` admits.

    ``now`` returns seconds on a clock that never goes back.
    """

    def __init__(self, stream: TextIO, log_format: str, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__(stream)
        self.setFormatter(formatter(log_format))
        self._now = now
        self._limits = EventLimits[_LeftOut]()

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record, or count it.  The caller holds the handler's lock."""
        if record.levelno < logging.INFO:
            super().emit(record)
            return
        is_own = record.name == OWN or record.name.startswith(f"{OWN}.")
        # Other packages' loggers may be given finished texts, without end in number: each such logger is one event.
        key = (record.name, record.levelno, record.msg if is_own else "")
        try:
            given = dict(fields_of(record))
            message = record.getMessage()
        except Exception:  # noqa: BLE001 - as StreamHandler: a wrong log call must not end its caller
            self.handleError(record)
            return
        left_out = self._limits.admit(key, subject_of(given, message), self._now())
        if left_out is None:
            self._limits.keep(key, _LeftOut(record.name, record.levelno, message, given))
            return
        if left_out:
            set_fields(record, {**given, "left_out": left_out})
        super().emit(record)

    def write_left_out(self, *, is_last: bool = False) -> None:
        """Write the last line left out of each event that has been quiet for a while, and the count before it.

        ``is_last``: of every event, however recent.
        """
        self.acquire()
        try:
            for line, more in self._limits.due(float("inf") if is_last else self._now()):
                record = logging.LogRecord(line.logger, line.level, "", 0, line.message, None, None)
                set_fields(record, {**line.given, "left_out": more or None})
                super().emit(record)
        finally:
            self.release()


def install(stream: TextIO, log_format: str, level: str) -> BoundedHandler:
    """Make every logger of the process write to ``stream``, from ``level`` on.  Return the handler."""
    handler = BoundedHandler(stream, log_format)
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(level.upper())
    return handler


async def write_left_out_forever() -> None:
    """Write left-out lines of the root logger's ``BoundedHandler`` regularly, until cancelled; then the rest."""
    handlers = [each for each in logging.getLogger().handlers if isinstance(each, BoundedHandler)]
    try:
        while True:
            await asyncio.sleep(REPEAT_S / 2)
            for handler in handlers:
                handler.write_left_out()
    finally:
        for handler in handlers:
            handler.write_left_out(is_last=True)

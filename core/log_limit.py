"""Log lines that anybody on the network can cause: a few at once, then one a second, and how many were left out."""

from __future__ import annotations

import logging
from collections.abc import Callable

BURST = 20


class LogLimit:
    """A token bucket before a logger.  ``now`` gives seconds."""

    __slots__ = ("_left_out", "_log", "_now", "_since", "_tokens")

    def __init__(self, log: logging.Logger, now: Callable[[], float]) -> None:
        self._log = log
        self._now = now
        self._tokens = float(BURST)
        self._since = now()
        self._left_out = 0

    def log(self, level: int, text: str, *arguments: object, error: BaseException | None = None) -> None:
        now = self._now()
        self._tokens = min(float(BURST), self._tokens + now - self._since)
        self._since = now
        if self._tokens < 1:
            self._left_out += 1
            return
        self._tokens -= 1
        if self._left_out:
            self._log.log(level, "%d lines like the next one were left out", self._left_out)
            self._left_out = 0
        self._log.log(level, text, *arguments, exc_info=error)


class LogLimits:
    """One ``LogLimit`` for each kind of line, so that one kind does not silence another.  Kinds are the code's own."""

    __slots__ = ("_limits", "_log", "_now")

    def __init__(self, log: logging.Logger, now: Callable[[], float]) -> None:
        self._log = log
        self._now = now
        self._limits: dict[str, LogLimit] = {}

    def log(self, kind: str, level: int, text: str, *arguments: object, error: BaseException | None = None) -> None:
        """Log the line, or count it as left out."""
        limit = self._limits.get(kind)
        if limit is None:
            limit = self._limits[kind] = LogLimit(self._log, self._now)
        limit.log(level, text, *arguments, error=error)

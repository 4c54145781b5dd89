"""Levels of the process's loggers, read and set while it runs; after a restart the settings hold again."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

ROOT = "root"
"""The logger above all others, whose level is the setting ``log_level``; Kafka's name for it, too."""
DEFAULT = "DEFAULT"
"""The level that stands for "none of its own": the logger above decides, or the settings for the root."""
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
_ALIASES = {"WARN": "WARNING", "FATAL": "ERROR", "CRITICAL": "ERROR", "TRACE": "DEBUG"}
LOGGERS_MAX = 10_000
"""Loggers listed at once at most; a process has some two hundred."""


class LogLevelError(ValueError):
    """A logger or level that does not exist; ``str`` lists those that do."""


class LoggerLevel(NamedTuple):
    """A logger and its level."""

    logger: str
    level: str
    """The level in force."""
    is_set: bool
    """Whether the level is the logger's own, not inherited from a logger above."""


class LogLevels:
    """The levels of the loggers below ``root``: the root logger, except in tests."""

    def __init__(self, root: logging.Logger | None = None) -> None:
        self._root = root or logging.getLogger()
        self._first = self._root.level
        """The level from the settings."""

    def levels(self) -> Sequence[LoggerLevel]:
        """Return the levels of the root and of every logger that a part of the process has created, by name."""
        names = sorted(self._names())[:LOGGERS_MAX]
        return [self.get(ROOT), *(self.get(name) for name in names)]

    def get(self, name: str) -> LoggerLevel:
        """Return the level of the logger ``name``.  Raises LogLevelError if there is no such logger."""
        logger = self._find(name)
        return LoggerLevel(name, _name_of(logger.getEffectiveLevel()), logger.level != logging.NOTSET)

    def set_level(self, name: str, level: str) -> LoggerLevel:
        """Set the level of a logger, and of those below that have none of their own; ``DEFAULT`` removes it.

        Raises LogLevelError, before any change, if there is no such logger or level.
        """
        logger = self._find(name)
        logger.setLevel(self.parse(level, is_root=logger is self._root))
        return self.get(name)

    def check(self, name: str, level: str) -> None:
        """Check the arguments of ``set_level`` without a change.  Raises LogLevelError as it would."""
        self.parse(level, is_root=self._find(name) is self._root)

    def parse(self, level: str, *, is_root: bool = False) -> int:
        """Return the number of a level's name, in any case of letters.  Raises LogLevelError if it is unknown."""
        name = level.upper()
        if name == DEFAULT:
            return self._first if is_root else logging.NOTSET
        name = _ALIASES.get(name, name)
        if name not in LEVELS:
            raise LogLevelError(f"there is no level {level[:40]!r}; choose from {', '.join((*LEVELS, DEFAULT))}")
        return int(logging.getLevelName(name))

    def _find(self, name: str) -> logging.Logger:
        """Return the logger; one that exists only as a parent of others is created."""
        if name == ROOT:
            return self._root
        if name not in self._names():
            like = sorted(each for each in self._names() if each.startswith("bmq") and each.count(".") == 1)
            told = ", ".join((ROOT, "bmq", *like))
            raise LogLevelError(f"there is no logger {name[:100]!r}; there are {told}, and those below them")
        return self._root.manager.getLogger(name)

    def _names(self) -> set[str]:
        return set(self._root.manager.loggerDict)


def _name_of(number: int) -> str:
    """Return the name of a level; for one between two, as libraries have them, the next below."""
    return next((name for name in reversed(LEVELS) if number >= logging.getLevelName(name)), LEVELS[0])

"""Levels of the process's loggers, seen and set while it runs; after a restart the settings count again."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

ROOT = "root"
"""The logger above all others, which has the level of the setting ``log_level``; Kafka's name of it, too."""
DEFAULT = "DEFAULT"
"""In the place of a level: the one of the logger above, or of the settings for the root."""
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
_ALIASES = {"WARN": "WARNING", "FATAL": "ERROR", "CRITICAL": "ERROR", "TRACE": "DEBUG"}
LOGGERS_MAX = 10_000
"""Told at once; a process has some two hundred."""


class LogLevelError(ValueError):
    """There is no such logger or level; ``str`` says which there are."""


class LoggerLevel(NamedTuple):
    """One logger."""

    logger: str
    level: str
    """The one that holds."""
    is_set: bool
    """Whether it is the logger's own; else the one of a logger above."""


class LogLevels:
    """Loggers below ``root``.  One for the process: others are tests."""

    def __init__(self, root: logging.Logger | None = None) -> None:
        self._root = root or logging.getLogger()
        self._first = self._root.level
        """The level of the settings."""

    def levels(self) -> Sequence[LoggerLevel]:
        """Return the root and every logger that a part of the process has, by name."""
        names = sorted(self._names())[:LOGGERS_MAX]
        return [self.get(ROOT), *(self.get(name) for name in names)]

    def get(self, name: str) -> LoggerLevel:
        """Return one.  Raises LogLevelError if there is none of that name."""
        logger = self._find(name)
        return LoggerLevel(name, _name_of(logger.getEffectiveLevel()), logger.level != logging.NOTSET)

    def set_level(self, name: str, level: str) -> LoggerLevel:
        """Give a logger, and those below that have none of their own, a level from now on; ``DEFAULT`` takes it back.

        Raises LogLevelError if there is no such logger or level; then nothing has changed.
        """
        logger = self._find(name)
        logger.setLevel(self.parse(level, is_root=logger is self._root))
        return self.get(name)

    def check(self, name: str, level: str) -> None:
        """Raise LogLevelError as ``set_level`` would."""
        self.parse(level, is_root=self._find(name) is self._root)

    def parse(self, level: str, *, is_root: bool = False) -> int:
        """Return the number of a level's name, in any case.  Raises LogLevelError."""
        name = level.upper()
        if name == DEFAULT:
            return self._first if is_root else logging.NOTSET
        name = _ALIASES.get(name, name)
        if name not in LEVELS:
            raise LogLevelError(f"there is no level {level[:40]!r}; choose from {', '.join((*LEVELS, DEFAULT))}")
        return int(logging.getLevelName(name))

    def _find(self, name: str) -> logging.Logger:
        """Return the logger; one that is merely above others comes into being."""
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
    """Return the name of a level; one between two, as libraries have them, is the next below."""
    return next((name for name in reversed(LEVELS) if number >= logging.getLevelName(name)), LEVELS[0])

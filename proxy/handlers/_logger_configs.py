"""Levels of this node's loggers as Kafka's configs: resources of type BROKER_LOGGER (KIP-412)."""

from __future__ import annotations

from collections.abc import Sequence

from bmq.core.errors import ErrorCode, RequestError
from bmq.core.logging.levels import DEFAULT, LEVELS, ROOT, LogLevelError, LogLevels
from bmq.meta.config_changes import ConfigChange, Operation

SOURCE = 6
"""``ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG``."""
_KAFKAS = {"WARNING": "WARN"}
"""Kafka's name of a level, where it differs; clients' TRACE and FATAL count as DEBUG and ERROR."""


def describe(levels: LogLevels) -> Sequence[tuple[str, str]]:
    """Return each logger with its effective level, by Kafka's name."""
    return [(each.logger, _KAFKAS.get(each.level, each.level)) for each in levels.levels()]


def alter(levels: LogLevels, changes: Sequence[ConfigChange], *, validate_only: bool) -> None:
    """Make all changes or none; with ``validate_only``, only check them.

    Raises RequestError as Kafka does (``RuntimeLoggerManager``).
    """
    wanted = []
    for change in changes:
        if change.operation not in (Operation.SET, Operation.DELETE):
            text = f"{change.operation.name} operation is not allowed for the BROKER_LOGGER resource"
            raise RequestError(ErrorCode.INVALID_REQUEST, text)
        if change.operation is Operation.DELETE and change.name == ROOT:
            text = "Removing the log level of the root logger is not allowed"
            raise RequestError(ErrorCode.INVALID_REQUEST, text)
        level = DEFAULT if change.operation is Operation.DELETE else change.value or ""
        if change.operation is Operation.SET and level.upper() == DEFAULT:
            text = f"Cannot set the log level of {change.name} to {level}: choose from {', '.join(LEVELS)}"
            raise RequestError(ErrorCode.INVALID_CONFIG, text)
        wanted.append((change.name, level))
    try:
        for name, level in wanted:
            levels.check(name, level)
    except LogLevelError as error:
        raise RequestError(ErrorCode.INVALID_CONFIG, str(error)) from None
    if not validate_only:
        for name, level in wanted:
            levels.set_level(name, level)

"""Which of Spark's filters a read can answer by itself, and what they leave.

Pushed down are comparisons of ``topic``, ``partition``, ``offset`` and ``timestamp`` with constants; the rest goes back
to Spark.  A pushed filter is kept exactly, record by record: planning prunes by it, decoding cuts by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

_NEVER_NULL = frozenset({"topic", "partition", "offset", "timestamp", "timestampType"})
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LOW, _HIGH = -(2**63), 2**63 - 1


@dataclass(slots=True)
class Bounds:
    """Integers of [low, high)."""

    low: int = _LOW
    high: int = _HIGH

    def narrow(self, low: int, high: int) -> None:
        self.low, self.high = max(self.low, low), min(self.high, high)


@dataclass(slots=True)
class Pushed:
    """All pushed filters together.  ``timestamps`` are milliseconds."""

    offsets: Bounds = field(default_factory=Bounds)
    timestamps: Bounds = field(default_factory=Bounds)
    numbers: Bounds = field(default_factory=Bounds)
    partitions: frozenset[int] | None = None
    topics: frozenset[str] | None = None

    def keeps(self, topic: str, partition: int) -> bool:
        """Whether the partition may hold such records."""
        return (
            (self.topics is None or topic in self.topics)
            and (self.partitions is None or partition in self.partitions)
            and self.numbers.low <= partition < self.numbers.high
        )

    def push(self, given: Filter, columns: Mapping[str, str]) -> bool:
        """Take ``given`` on, if it can be; ``columns`` are the source's names by the query's."""
        attribute: tuple[str, ...] = getattr(given, "attribute", ())
        column = columns.get(attribute[0]) if len(attribute) == 1 else None
        if isinstance(given, IsNotNull):
            return column in _NEVER_NULL
        value: Any = getattr(given, "value", None)
        match column:
            case "topic":
                return self._push_topic(given, value)
            case "partition" if isinstance(given, In):
                return self._push_partitions(value)
            case "partition":
                return _push_number(self.numbers, given, value)
            case "offset":
                return _push_number(self.offsets, given, value)
            case "timestamp":
                return _push_time(self.timestamps, given, value)
        return False

    def _push_topic(self, given: Filter, value: Any) -> bool:
        names = (value,) if isinstance(given, EqualTo) else value if isinstance(given, In) else ()
        if not names or not all(isinstance(name, str) for name in names):
            return False
        self.topics = frozenset(names) if self.topics is None else self.topics & frozenset(names)
        return True

    def _push_partitions(self, value: Iterable[Any]) -> bool:
        numbers = frozenset(value)
        if not all(_is_integer(number) for number in numbers):
            return False
        self.partitions = numbers if self.partitions is None else self.partitions & numbers
        return True


def _push_number(bounds: Bounds, given: Filter, value: Any) -> bool:
    if not _is_integer(value):
        return False
    found = _bounds(given, value, value + 1)
    if found is None:
        return False
    bounds.narrow(*found)
    return True


def _push_time(bounds: Bounds, given: Filter, value: Any) -> bool:
    """Records have milliseconds, Spark's constants microseconds: one between two milliseconds equals none."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        return False
    microseconds = (value - _EPOCH) // timedelta(microseconds=1)
    found = _bounds(given, -(-microseconds // 1000), microseconds // 1000 + 1)
    if found is None:
        return False
    bounds.narrow(*found)
    return True


def _bounds(given: Filter, at: int, behind: int) -> tuple[int, int] | None:
    """``at``: the first not below the constant, ``behind``: the first above it."""
    match given:
        case EqualTo():
            return at, behind
        case GreaterThan():
            return behind, _HIGH
        case GreaterThanOrEqual():
            return at, _HIGH
        case LessThan():
            return _LOW, at
        case LessThanOrEqual():
            return _LOW, behind
    return None


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)

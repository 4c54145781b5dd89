"""Filters: what is taken on, exactly, and what goes back to Spark."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from bmq.spark.filters import Pushed

COLUMNS = {name: name for name in ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")}
LOW, HIGH = -(2**63), 2**63 - 1


def at(microseconds: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)


@pytest.mark.parametrize(
    ("kind", "low", "high"),
    [
        (EqualTo, 5, 6),
        (GreaterThan, 6, HIGH),
        (GreaterThanOrEqual, 5, HIGH),
        (LessThan, LOW, 5),
        (LessThanOrEqual, LOW, 6),
    ],
)
def test_comparisons(kind: Any, low: int, high: int) -> None:
    pushed = Pushed()
    assert pushed.push(kind(("offset",), 5), COLUMNS)
    assert (pushed.offsets.low, pushed.offsets.high) == (low, high)


@pytest.mark.parametrize(
    ("kind", "microseconds", "low", "high"),
    [
        (EqualTo, 7000, 7, 8),
        (EqualTo, 7001, 8, 8),  # no record has such a time
        (GreaterThan, 7000, 8, HIGH),
        (GreaterThan, 7001, 8, HIGH),
        (GreaterThanOrEqual, 7000, 7, HIGH),
        (GreaterThanOrEqual, 7001, 8, HIGH),
        (LessThan, 7000, LOW, 7),
        (LessThan, 7001, LOW, 8),
        (LessThanOrEqual, 7000, LOW, 8),
        (LessThanOrEqual, 6999, LOW, 7),
        (LessThan, -1, LOW, 0),
        (GreaterThanOrEqual, -1000, -1, HIGH),
    ],
)
def test_times_are_milliseconds(kind: Any, microseconds: int, low: int, high: int) -> None:
    pushed = Pushed()
    assert pushed.push(kind(("timestamp",), at(microseconds)), COLUMNS)
    assert (pushed.timestamps.low, pushed.timestamps.high) == (low, high)


def test_together_they_narrow() -> None:
    pushed = Pushed()
    for given in (GreaterThan(("offset",), 3), LessThan(("offset",), 9), GreaterThanOrEqual(("offset",), 2)):
        assert pushed.push(given, COLUMNS)
    assert (pushed.offsets.low, pushed.offsets.high) == (4, 9)


def test_partitions_and_topics() -> None:
    pushed = Pushed()
    for given in (
        In(("partition",), (1, 2, 3)),
        In(("partition",), (2, 3, 4)),
        LessThan(("partition",), 3),
        In(("topic",), ("a", "b")),
        EqualTo(("topic",), "a"),
    ):
        assert pushed.push(given, COLUMNS)
    kept = [(topic, number) for topic in "abc" for number in range(6) if pushed.keeps(topic, number)]
    assert kept == [("a", 2)]


@pytest.mark.parametrize(
    "given",
    [
        EqualTo(("key",), b"x"),
        GreaterThan(("timestampType",), 0),
        Not(EqualTo(("offset",), 3)),
        EqualNullSafe(("offset",), 3),
        IsNull(("offset",)),
        IsNotNull(("value",)),
        In(("offset",), (1, 2)),
        In(("partition",), (1, None)),
        EqualTo(("offset",), True),
        EqualTo(("offset",), 3.5),
        EqualTo(("timestamp",), datetime(2020, 1, 1)),  # noqa: DTZ001 - Spark's timestamp without a zone
        GreaterThan(("topic",), "a"),
        StringStartsWith(("topic",), "a"),
        EqualTo(("offset", "part"), 3),
        EqualTo(("other",), 3),
    ],
)
def test_the_rest_goes_back(given: Filter) -> None:
    pushed = Pushed()
    assert not pushed.push(given, COLUMNS)
    assert pushed == Pushed()


def test_columns_that_are_never_null() -> None:
    assert all(Pushed().push(IsNotNull((name,)), COLUMNS) for name in ("topic", "partition", "offset", "timestamp"))


def test_the_query_may_name_columns_as_it_likes() -> None:
    pushed = Pushed()
    assert pushed.push(EqualTo(("OFFSET",), 3), {"OFFSET": "offset"})
    assert pushed.offsets.low == 3

"""The parts of JSON values that Spark's parser passes over, or takes for others."""

from __future__ import annotations

import pickle

import pytest
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from bmq.spark.jobs.json_check import CORRUPT, FINE, UNKNOWN_FIELDS, json_check

PAIR = StructType([StructField("a", LongType()), StructField("b", StringType())])
NESTED = StructType(
    [
        StructField("pair", PAIR),
        StructField("list", ArrayType(PAIR)),
        StructField("map", MapType(StringType(), PAIR)),
        StructField("any", StringType()),
        StructField("numbers", ArrayType(LongType())),
    ]
)


@pytest.mark.parametrize(
    ("value", "verdict"),
    [
        (None, None),
        (b'{"a": 1, "b": "x"}', FINE),
        (b' {"a": 1}\r\n', FINE),
        (b'{"a": NaN}', FINE),
        (b'{"a": null, "b": "\xc3\xbc\\ud83d\\ude00 \\\\ud83d \\u00fc"}', FINE),
        (b'{"a": 1}{"a": 2}', CORRUPT),
        (b'{"a": 1}\n{"a": 2}\n', CORRUPT),
        (b'{"a": 1} trailing garbage', CORRUPT),
        (b'{"a": 1}}', CORRUPT),
        (b'{"a": 1},"b":2', CORRUPT),
        (b'{"a": 1}\0', CORRUPT),
        (b"{'a': 1}", CORRUPT),
        (b'{"b": "\xff\xfe"}', CORRUPT),
        (b'\xef\xbb\xbf{"a": 1}', CORRUPT),
        (b'{"b": "\\ud83d"}', CORRUPT),
        (b'{"b": "\\uDE00\\uD83D"}', CORRUPT),
        (b'{"c": [{"\\udfff": 1}]}', CORRUPT),
        (b'{"a": 1, "a": 2}', CORRUPT),
        (b'{"a": 1, "\\u0061": 1}', CORRUPT),
        (b'{"c": 1, "c": 1}', CORRUPT),
        (b'{"c": [{"d": 1, "d": 1}]}', CORRUPT),
        (b"", CORRUPT),
        (b"[" * 100_000, CORRUPT),
        (b'{"a": 1, "c": 5}', UNKNOWN_FIELDS),
        (b'{"A": 7}', UNKNOWN_FIELDS),
        (b'{"c": null}', UNKNOWN_FIELDS),
    ],
)
def test_a_value_is_one_document_of_known_fields(value: bytes | None, verdict: int | None) -> None:
    assert json_check(PAIR)(value) == verdict


@pytest.mark.parametrize(
    ("value", "verdict"),
    [
        (b'{"pair": {"a": 1}, "list": [{"b": ""}, null], "map": {"any": {"a": 1}}, "numbers": [1]}', FINE),
        (b'{"any": {"what": ["ever", {"c": 1}]}}', FINE),
        (b'{"pair": null, "list": null, "map": null}', FINE),
        (b'{"pair": {"c": 1}}', UNKNOWN_FIELDS),
        (b'{"list": [{"a": 1}, {"c": 1}]}', UNKNOWN_FIELDS),
        (b'{"map": {"x": {"c": 1}}}', UNKNOWN_FIELDS),
        (b'{"pair": {"a": 1, "a": 2}}', CORRUPT),
        (b'{"list": [null, {"a": 1, "a": 2}]}', CORRUPT),
        (b'{"map": {"x": {"a": 1}, "x": {"a": 1}}}', CORRUPT),
        (b'{"any": {"x": 1, "x": 2}}', CORRUPT),
        (b'{"pair": [1], "list": {"x": 1}, "map": 3}', FINE),  # Spark calls these corrupt
    ],
)
def test_unknown_fields_are_found_at_any_depth(value: bytes, verdict: int) -> None:
    assert json_check(NESTED)(value) == verdict


def verdict_of(kind: DataType, text: str) -> int | None:
    """Return the verdict of a value with that text as a field, an element, and an entry of a map."""
    fields = [("field", kind), ("list", ArrayType(kind)), ("map", MapType(StringType(), kind))]
    schema = StructType([StructField(name, each) for name, each in fields])
    texts = (f'{{"field": {text}}}', f'{{"list": [null, {text}]}}', f'{{"map": {{"x": {text}}}}}')
    verdicts = {json_check(schema)(each.encode()) for each in texts}
    assert len(verdicts) == 1, "one rule at all depths"
    return verdicts.pop()


DECIMAL, TEXT = DecimalType(5, 2), StringType()


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (DECIMAL, "1.23"),
        (DECIMAL, "-999.99"),
        (DECIMAL, "1.2300"),
        (DECIMAL, "1e2"),
        (DECIMAL, "0e-1000"),
        (DECIMAL, '"1.23"'),
        (DECIMAL, "null"),
        (DecimalType(38, 0), "9" * 38),
        (DecimalType(38, 18), "0.123456789012345678"),
        (ByteType(), "-128"),
        (ByteType(), "127"),
        (DoubleType(), "1e308"),
        (DoubleType(), "0.1234567890123456789"),
        (DoubleType(), "1e-999"),
        (DoubleType(), "Infinity"),
        (DoubleType(), '"-Infinity"'),
        (DoubleType(), "NaN"),
        (FloatType(), "3.4028235e38"),
        (FloatType(), "16777217"),
        (FloatType(), "-Infinity"),
        (TEXT, '"1e999"'),
        (TEXT, "1.10"),
        (TEXT, '"NaN"'),
        (TEXT, '{"NaN": "Infinity"}'),
        (TEXT, "1e23"),  # 9.999999999999999E22, the same double
        (TEXT, "123456789012345678901234567890"),
        (TEXT, '{"x": [0.1, {"y": 1e300}], "z": true}'),
        (DateType(), '"2026-01-01"'),
        (DateType(), '" 2026-1-1 "'),
        (DateType(), '"0001-01-01"'),
        (DateType(), '"9999-12-31"'),
        (TimestampType(), '"2026-01-01"'),
        (TimestampType(), '"2026-01-01 10:20"'),
        (TimestampType(), '"2026-01-01T00:00:00.123456789+01:00"'),  # microseconds are read
        (TimestampType(), '"9999-12-31T23:59:59.999999Z"'),
        (TimestampType(), '"0001-01-01T00:00:00"'),
        (TimestampType(), '"+0001-1-1T00:00:00"'),
        (TimestampType(), '"0001-01-01T00:00:00-05:00"'),
        (TimestampType(), '" 9999-12-31T23:59:59+08 "'),
        (TimestampType(), '"9999-12-31"'),
        (TimestampType(), '"9999-12-30T23:59:59 America/Los_Angeles"'),
        (TimestampType(), '"0001-1-2T00:00:00+5:00"'),
        (TimestampType(), "1700000000"),
        (TimestampType(), "-62135596800"),
        (TimestampType(), "253402300799"),
        (TimestampNTZType(), '"9999-12-31T23:59:59"'),
    ],
)
def test_a_field_says_what_is_read(kind: DataType, text: str) -> None:
    assert verdict_of(kind, text) == FINE


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (DECIMAL, "1.23456"),  # 1.23
        (DECIMAL, "1234.5"),
        (DECIMAL, '"1.239"'),  # 1.24
        (DECIMAL, '"1,23"'),  # 123
        (DECIMAL, "1e999999999"),
        (DECIMAL, "1e99999999999999999999"),
        (DecimalType(38, 0), "0." + "1" * 50),
        (ByteType(), "128"),  # -128
        (DoubleType(), "1e999"),
        (DoubleType(), "-1e999"),
        (DoubleType(), "1" * 400),
        (FloatType(), "1e39"),
        (FloatType(), "3.4028236e38"),
        (TEXT, "1e999"),
        (TEXT, "NaN"),  # "NaN", a text with quotes
        (TEXT, "-Infinity"),
        (TEXT, '{"x": [{"y": Infinity}]}'),
        (TEXT, "0.1234567890123456789"),
        (TEXT, '{"x": [1, 12345678901234567.5]}'),
        (DateType(), '"2026-01-01 garbage"'),
        (DateType(), '"2026-01-01T10:00:00Z"'),
        (DateType(), '"2026"'),  # 2026-01-01
        (DateType(), '"2026-01"'),
        (DateType(), '"20260101"'),  # +57440-04-10
        (DateType(), '"\u0662026-01-01"'),
        (DateType(), '"0000-12-31"'),
        (DateType(), '"-0001-01-01"'),
        (DateType(), '"+10000-01-01"'),
        (TimestampType(), '"10:20"'),  # today
        (TimestampType(), '"T10:20"'),
        (TimestampType(), '"2026"'),
        (TimestampType(), '"2026-01-01garbage"'),
        (TimestampType(), '"0000-12-31T23:59:59Z"'),
        (TimestampType(), '"+10000-01-01T00:00:00Z"'),
        (TimestampType(), '"0001-01-01T00:00:00+05:00"'),
        (TimestampType(), '"9999-12-31T23:00:00-05:00"'),
        (TimestampType(), '"9999-12-31T23:59:59-8:00"'),
        (TimestampType(), '"9999-12-31T23:59:59 America/Los_Angeles"'),
        (TimestampType(), '"9999-12-31T23:59:59 GMT-8"'),
        (TimestampType(), '"+9999-12-31T23:59:59-08:00"'),
        (TimestampType(), '"0001-1-1T00:00:00+05:00"'),
        (TimestampType(), '"0001-01-1T00:00:00+05:00"'),
        (TimestampType(), '"0001-01-01T00:00:00 Asia/Tokyo"'),
        (TimestampType(), '"0001-01-01T00:00:00+5:00"'),
        (TimestampType(), "1700000000000"),  # milliseconds
        (TimestampType(), "99999999999999"),  # Spark's microseconds overflow
        (TimestampType(), "253402300800"),
        (TimestampType(), "-62135596801"),
        (TimestampNTZType(), '"2026"'),
    ],
)
def test_a_field_that_would_be_read_as_another_value_is_corrupt(kind: DataType, text: str) -> None:
    assert verdict_of(kind, text) == CORRUPT


def test_a_corrupt_field_is_found_behind_an_unknown_field() -> None:
    schema = StructType([StructField("date", DateType())])
    assert json_check(schema)(b'{"other": 1, "date": "2026"}') == CORRUPT
    assert json_check(schema)(b'{"date": "2026-01-01", "other": 1}') == UNKNOWN_FIELDS


def test_values_of_a_type_that_spark_refuses_are_not_judged() -> None:
    for kind in (DECIMAL, ByteType(), DoubleType(), DateType(), TimestampType()):
        for text in ("true", "[1.5]", '{"x": 1.5}'):
            assert json_check(StructType([StructField("a", kind)]))(f'{{"a": {text}}}'.encode()) in (FINE, None)


def test_the_check_is_sent_to_workers() -> None:
    check = pickle.loads(pickle.dumps(json_check(StructType([StructField("a", DECIMAL), StructField("b", TEXT)]))))
    assert check(b'{"a": 1.25, "b": 1.5}') == FINE
    assert check(b'{"a": 1.255}') == CORRUPT

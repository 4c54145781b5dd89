"""The parts of JSON values that Spark's parser passes over."""

from __future__ import annotations

import pytest
from pyspark.sql.types import ArrayType, LongType, MapType, StringType, StructField, StructType

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
        (b'{"a": null, "b": "\xc3\xbc\\ud83d"}', FINE),
        (b'{"a": 1}{"a": 2}', CORRUPT),
        (b'{"a": 1}\n{"a": 2}\n', CORRUPT),
        (b'{"a": 1} trailing garbage', CORRUPT),
        (b'{"a": 1}}', CORRUPT),
        (b'{"a": 1},"b":2', CORRUPT),
        (b'{"a": 1}\0', CORRUPT),
        (b"{'a': 1}", CORRUPT),
        (b'{"b": "\xff\xfe"}', CORRUPT),
        (b'\xef\xbb\xbf{"a": 1}', CORRUPT),
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
        (b'{"pair": [1], "list": {"x": 1}, "map": 3}', FINE),  # Spark calls these corrupt
    ],
)
def test_unknown_fields_are_found_at_any_depth(value: bytes, verdict: int) -> None:
    assert json_check(NESTED)(value) == verdict

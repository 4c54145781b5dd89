"""Avro schemas as tables, and those that no table can hold."""

from __future__ import annotations

import io
import json

import fastavro
import pytest
from pyspark.sql.types import StructType

from bmq.spark.jobs import JobError
from bmq.spark.jobs.avro_values import AvroReader, avro_schema


def type_of(schema: StructType | str) -> str:
    assert isinstance(schema, StructType)
    return schema.simpleString()


def record(*types: object) -> str:
    fields = [{"name": f"f{number}", "type": each} for number, each in enumerate(types)]
    return json.dumps({"type": "record", "name": "R", "namespace": "n", "fields": fields})


def test_an_avro_schema_is_a_struct() -> None:
    part = {"type": "record", "name": "Part", "fields": [{"name": "n", "type": "int"}]}
    text = record(
        ["null", "string"], ["int", "long"], {"type": "map", "values": part}, ["null", "Part"], "n.Part",
        {"type": "enum", "name": "E", "symbols": ["A"]}, {"type": "long", "logicalType": "timestamp-micros"},
        {"type": "string", "logicalType": "uuid"}, {"type": "fixed", "name": "F", "size": 4}, {"type": "int"},
    )  # fmt: skip
    assert avro_schema(text).simpleString() == (
        "struct<f0:string,f1:bigint,f2:map<string,struct<n:int>>,f3:struct<n:int>,f4:struct<n:int>,f5:string,"
        "f6:timestamp,f7:string,f8:binary,f9:int>"
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not an Avro schema"),
        ('{"type": "recod"}', "not an Avro schema"),
        ('"string"', "must be Avro records"),
        (record(["string", "int"]), "f0 is a union of several types"),
        (record(["null", "R"]), "f0 is a R within a R"),
    ],
)
def test_an_avro_schema_that_no_table_can_hold_is_refused(text: str, says: str) -> None:
    with pytest.raises(JobError, match=says):
        avro_schema(text)


@pytest.mark.parametrize(
    ("kind", "logical", "first", "last"),
    [
        ("int", "date", -719_162, 2_932_896),
        ("long", "timestamp-millis", -62_135_596_800_000, 253_402_300_799_999),
        ("long", "timestamp-micros", -62_135_596_800_000_000, 253_402_300_799_999_999),
    ],
)
def test_times_outside_of_the_years_1_to_9999_are_corrupt(kind: str, logical: str, first: int, last: int) -> None:
    read = AvroReader(record({"type": kind, "logicalType": logical}))()
    for number in (first, last):
        assert read(written(kind, number))[0]["f0"].year in (1, 9999)
    for number in (first - 1, last + 1):
        with pytest.raises((ValueError, OverflowError)):
            read(written(kind, number))


def written(kind: str, number: int) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(json.loads(record(kind))), {"f0": number})
    return stream.getvalue()

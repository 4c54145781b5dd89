"""JSON schemas as tables, and those that no table can hold."""

from __future__ import annotations

import json

import pytest
from pyspark.sql.types import StructType

from bmq.spark.jobs import JobError
from bmq.spark.jobs.json_schema import json_schema


def type_of(schema: StructType | str) -> str:
    assert isinstance(schema, StructType)
    return schema.simpleString()


def test_a_json_schema_is_a_struct() -> None:
    document = {
        "type": "object",
        "properties": {
            "id": {"type": "integer"},
            "price": {"type": ["number", "null"]},
            "at": {"type": "string", "format": "date-time"},
            "day": {"anyOf": [{"type": "null"}, {"type": "string", "format": "date"}]},
            "tags": {"type": "array", "items": {"type": "boolean"}},
            "who": {"$ref": "#/$defs/person"},
            "counts": {"type": "object", "additionalProperties": {"type": "integer"}},
            "any": {},
            "either": {"type": ["string", "integer"]},
        },
        "$defs": {"person": {"properties": {"name": {"type": "string", "minLength": 1}}}},
    }
    assert type_of(json_schema(json.dumps(document))) == (
        "struct<id:bigint,price:double,at:timestamp,day:date,tags:array<boolean>,who:struct<name:string>,"
        "counts:map<string,bigint>,any:string,either:string>"
    )


def test_a_schema_may_be_sparks_ddl_or_json() -> None:
    assert json_schema(" id bigint\n") == "id bigint"
    spark = {"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]}
    assert type_of(json_schema(json.dumps(spark))) == "struct<id:bigint>"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "neither"),
        ('{"type": "array"}', "no object"),
        ('{"properties": {"a": {"$ref": "other.json"}}}', "outside"),
        ('{"properties": {"a": {"$ref": "#"}}}', "refers to itself"),
        ('{"properties": {"a": {"$ref": "#/nowhere"}}}', "neither"),
    ],
)
def test_text_that_is_not_a_schema_is_refused(text: str, says: str) -> None:
    with pytest.raises(JobError, match=says):
        json_schema(text)

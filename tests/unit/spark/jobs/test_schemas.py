"""Schemas of values, and what stands before framed ones."""

from __future__ import annotations

import json

import pytest
from google.protobuf import descriptor_pb2
from pyspark.sql.types import StructType

from bmq.spark.jobs import JobError
from bmq.spark.jobs.avro_values import avro_schema
from bmq.spark.jobs.framed import past_message_path, unframed
from bmq.spark.jobs.json_schema import json_schema
from bmq.spark.jobs.protobuf_values import protobuf_schema
from bmq.spark.jobs.values import json_texts


def told(schema: StructType | str) -> str:
    assert isinstance(schema, StructType)
    return schema.simpleString()


def test_a_json_schema() -> None:
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
    assert told(json_schema(json.dumps(document))) == (
        "struct<id:bigint,price:double,at:timestamp,day:date,tags:array<boolean>,who:struct<name:string>,"
        "counts:map<string,bigint>,any:string,either:string>"
    )


def test_other_ways_to_say_a_schema_of_json() -> None:
    assert json_schema(" id bigint\n") == "id bigint"
    spark = {"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]}
    assert told(json_schema(json.dumps(spark))) == "struct<id:bigint>"


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
def test_what_is_no_schema_of_json(text: str, says: str) -> None:
    with pytest.raises(JobError, match=says):
        json_schema(text)


def record(*types: object) -> str:
    fields = [{"name": f"f{number}", "type": each} for number, each in enumerate(types)]
    return json.dumps({"type": "record", "name": "R", "namespace": "n", "fields": fields})


def test_avro() -> None:
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
def test_avro_that_no_table_can_hold(text: str, says: str) -> None:
    with pytest.raises(JobError, match=says):
        avro_schema(text)


def test_protobuf_that_no_table_can_hold() -> None:
    file = descriptor_pb2.FileDescriptorProto(name="t.proto", package="p", syntax="proto3")
    tree = file.message_type.add(name="Tree")
    field = descriptor_pb2.FieldDescriptorProto
    tree.field.add(name="left", number=1, type=field.TYPE_MESSAGE, type_name=".p.Tree", label=field.LABEL_OPTIONAL)
    data = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    for message, says in (("p.Tree", "may hold another one"), ("p.Bush", "has p.Tree"), (None, "--message is missing")):
        with pytest.raises(JobError, match=says):
            protobuf_schema(data, message)
    with pytest.raises(JobError, match="not a complete descriptor set"):
        protobuf_schema(b"\xff", "p.Tree")


def test_a_registry_s_head() -> None:
    assert unframed(b"value", "none") == b"value"
    assert unframed(b"\0\0\0\0\x09value", "confluent") == b"value"
    for wrong in (b"", b"\0\0\0", b"\x01\0\0\0\x09value"):
        with pytest.raises(ValueError, match="no schema registry's head"):
            unframed(wrong, "confluent")
    assert past_message_path(b"\0value") == b"value"
    assert past_message_path(b"\x04\x02\x80\x02value") == b"value"  # two indexes: 1 and 128
    for wrong in (b"", b"\x02", b"\x01", b"\x80" * 20):
        with pytest.raises(ValueError, match="message path"):
            past_message_path(wrong)


def test_a_sample_of_json() -> None:
    """Sample values of which some lack the head: they will be corrupt, and are left out of the schema's sample."""
    framed, bare = b"\0\0\0\0\1{}", b'{"id": 1}'
    assert json_texts([bare, b"\xff"], "none") == ['{"id": 1}', "\ufffd"]
    assert json_texts([bare, framed, b"", b"\0{}"], "confluent") == ["{}"]


@pytest.mark.parametrize(
    ("value", "framing", "says"),
    [
        (b"\0\0\0\0\1{}", "none", "the first 1 values begin with a schema registry's head.*give --framing confluent"),
        (b'{"id": 1}', "confluent", "none of the first 1 values begins with .*leave out --framing confluent"),
    ],
)
def test_a_sample_that_is_framed_otherwise(value: bytes, framing: str, says: str) -> None:
    with pytest.raises(JobError, match=says):
        json_texts([value], framing)

"""Values in Confluent's wire format: what is shown of them, and what a hostile one cannot do."""

from __future__ import annotations

import base64
import datetime
import io
import json
from decimal import Decimal
from typing import Any
from uuid import UUID

import fastavro
import pytest
from google.protobuf import descriptor_pb2 as d

from bmq.console.payloads import show
from bmq.console.schemas import (
    DECIMAL_BYTES_MAX,
    HEADER,
    VALUE_BYTES_MAX,
    Schema,
    compile_schema,
    schema_id,
    to_json,
)
from bmq.core.schema_registry import SchemaError, SchemaSource

FLIGHT = {
    "type": "record",
    "name": "Flight",
    "namespace": "air",
    "fields": [
        {"name": "carrier", "type": "string"},
        {"name": "delay", "type": ["null", "int"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "raw", "type": "bytes"},
    ],
}
LIST = {
    "type": "record",
    "name": "List",
    "fields": [{"name": "next", "type": ["null", "List"]}],
}


def of(number: int, payload: bytes) -> bytes:
    return HEADER.pack(0, number) + payload


def avro(schema: Any, *references: SchemaSource) -> Schema:
    return compile_schema(SchemaSource("", "AVRO", json.dumps(schema)), references)


def written(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return of(7, out.getvalue())


def test_avro_is_shown_as_json() -> None:
    value = {
        "carrier": "ÜA", "delay": None, "at": datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC),
        "price": Decimal("12.50"), "id": UUID(int=3), "raw": b"\x00\xff",
    }  # fmt: skip
    assert json.loads(to_json(avro(FLIGHT), written(FLIGHT, value))) == {
        "carrier": "ÜA",
        "delay": None,
        "at": "2026-01-02T00:00:00+00:00",
        "price": "12.50",
        "id": str(UUID(int=3)),
        "raw": "00ff",
    }


def test_avro_refers_to_other_schemas() -> None:
    carrier = {"type": "enum", "name": "Carrier", "namespace": "air", "symbols": ["UA", "DL"]}
    schema = {"type": "record", "name": "R", "fields": [{"name": "c", "type": "air.Carrier"}]}
    reference = SchemaSource("air.Carrier", "AVRO", json.dumps(carrier))
    assert json.loads(to_json(avro(schema, reference), of(7, b"\x02"))) == {"c": "DL"}
    with pytest.raises(SchemaError, match="cannot be used"):
        avro(schema)


@pytest.mark.parametrize(
    "items",
    [
        "null",
        {"type": "record", "name": "Nothing", "fields": []},
        {"type": "record", "name": "Nulls", "fields": [{"name": "a", "type": "null"}]},
        {"type": "fixed", "name": "None", "size": 0},
    ],
)
def test_arrays_of_items_without_bytes_are_refused(items: Any) -> None:
    """Nine bytes of a value would ask for 2^62 of them."""
    with pytest.raises(SchemaError, match="without any bytes"):
        avro({"type": "array", "items": items})
    nested = {"type": "record", "name": "R", "fields": [{"name": "a", "type": {"type": "array", "items": items}}]}
    with pytest.raises(SchemaError, match="without any bytes"):
        avro({"type": "map", "values": ["string", nested]})


def test_recursive_schemas_are_shown_up_to_a_depth() -> None:
    schema = avro(LIST)
    assert to_json(schema, of(7, b"\x02\x02\x00")) == '{"next": {"next": {"next": null}}}'
    with pytest.raises(SchemaError, match="nested too deep"):
        to_json(schema, of(7, b"\x02" * 100_000 + b"\x00"))


def test_what_would_take_long_is_refused() -> None:
    price = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
    schema = avro(price)
    assert to_json(schema, written(price, Decimal("-0.01"))) == '"-0.01"'
    many = DECIMAL_BYTES_MAX + 1
    with pytest.raises(SchemaError, match="a decimal of 65 bytes"):
        to_json(schema, of(7, bytes([(many << 1) & 0x7F | 0x80, (many << 1) >> 7]) + b"\x7f" * many))
    with pytest.raises(SchemaError, match=f"up to {VALUE_BYTES_MAX} are decoded"):
        to_json(avro("bytes"), of(7, bytes(VALUE_BYTES_MAX)))


@pytest.mark.parametrize("data", [b"", b"\x06ab", b"\x02a" + b"tail", b"\x02\xff", b"\xff" * 1000])
def test_values_that_are_not_of_their_schema(data: bytes) -> None:
    with pytest.raises(SchemaError):
        to_json(avro("string"), of(7, data))


@pytest.mark.parametrize("text", ["", "no json", '{"type": "what"}', "[" * 100_000, '{"type": "record"}', "7", "null"])
def test_schemas_that_are_none(text: str) -> None:
    with pytest.raises(SchemaError):
        compile_schema(SchemaSource("", "AVRO", text), ())


# ------------------------------------------------------------------------------------------------------------ Protobuf


def proto(text: d.FileDescriptorProto) -> str:
    return base64.b64encode(text.SerializeToString()).decode()


def message(name: str, *fields: tuple[str, int, int, str], nested: tuple[d.DescriptorProto, ...] = ()) -> Any:
    made = d.DescriptorProto(name=name, nested_type=nested)
    for field, number, kind, type_name in fields:
        made.field.add(name=field, number=number, type=kind, type_name=type_name or None, label=1)
    return made


STRING, INT64, MESSAGE = 9, 3, 11
INNER = message("Inner", ("n", 1, INT64, ""))
SHARED = d.FileDescriptorProto(
    name="whatever", package="air", syntax="proto3", message_type=[message("Carrier", ("name", 1, STRING, ""))]
)
FILE = d.FileDescriptorProto(
    name="flight", package="air", syntax="proto3", dependency=["air/carrier.proto", "google/protobuf/timestamp.proto"],
    message_type=[
        message("Flight", ("tail_num", 1, STRING, ""), ("c", 2, MESSAGE, ".air.Carrier"),
                ("at", 3, MESSAGE, ".google.protobuf.Timestamp"), nested=(INNER,)),
        message("Second", ("s", 1, STRING, "")),
    ],
)  # fmt: skip


def flight() -> Schema:
    reference = SchemaSource("air/carrier.proto", "PROTOBUF", proto(SHARED))
    return compile_schema(SchemaSource("", "PROTOBUF", proto(FILE)), [reference])


@pytest.mark.parametrize(
    ("indexes", "payload", "shown"),
    [
        (b"\x00", b"\x0a\x01N\x12\x03\x0a\x01U\x1a\x02\x08\x01",
         {"tail_num": "N", "c": {"name": "U"}, "at": "1970-01-01T00:00:01Z"}),
        (b"\x02\x02", b"\x0a\x01x", {"s": "x"}),
        (b"\x04\x00\x00", b"\x08\x05", {"n": "5"}),
        (b"\x00", b"", {}),
    ],
)  # fmt: skip
def test_protobuf_is_shown_as_json(indexes: bytes, payload: bytes, shown: object) -> None:
    assert json.loads(to_json(flight(), of(7, indexes + payload))) == shown


@pytest.mark.parametrize(
    "data",
    [b"", b"\x80", b"\x02", b"\x02\x08", b"\x02\x01", b"\x7e" + b"\x00" * 63, b"\x01", b"\x00\x0a\x05a", b"\xff" * 20],
)
def test_protobuf_values_that_are_not_of_their_schema(data: bytes) -> None:
    with pytest.raises(SchemaError):
        to_json(flight(), of(7, data))


def test_a_registry_that_does_not_serialize_protobuf_is_told_so() -> None:
    with pytest.raises(SchemaError, match="format=serialized"):
        compile_schema(SchemaSource("", "PROTOBUF", 'syntax = "proto3";'), ())


def test_a_protobuf_schema_without_its_imports() -> None:
    with pytest.raises(SchemaError, match="cannot be used"):
        compile_schema(SchemaSource("", "PROTOBUF", proto(FILE)), ())


# --------------------------------------------------------------------------------------------------------------- shown


def test_json_schema_and_unknown_kinds() -> None:
    schema = compile_schema(SchemaSource("", "JSON", "{}"), ())
    assert to_json(schema, of(7, b'{"a":[1]}')) == '{"a": [1]}'
    with pytest.raises(SchemaError, match="THRIFT are not known"):
        compile_schema(SchemaSource("", "THRIFT", ""), ())


def test_ids() -> None:
    assert schema_id(of(7, b"")) == 7
    assert schema_id(b"\x00\xff\xff\xff\xff") == 0xFFFFFFFF
    for data in (None, b"", b"\x00\x00\x00\x00", b"\x01\x00\x00\x00\x07", b'{"a": 1}'):
        assert schema_id(data) is None


def test_a_payload_by_its_schema() -> None:
    data = written("string", "né")
    schemas: dict[int, Schema | SchemaError] = {7: avro("string"), 8: SchemaError("gone")}
    assert show(data, "auto", 100, schemas) == {
        "format": "avro", "text": '"né"', "bytes": 9, "is_cut": False, "schema_id": 7, "error": "",
    }  # fmt: skip
    cut = show(data, "registry", 2, schemas)
    assert (cut["text"], cut["is_cut"]) == ('"n', True)
    gone = show(of(8, b"x"), "registry", 100, schemas)
    assert (gone["format"], gone["text"], gone["error"]) == ("hex", "000000000878", "gone")
    assert show(of(8, b"x"), "auto", 100, schemas)["error"] == ""
    wrong = show(of(7, b"\x08a"), "auto", 100, schemas)
    assert (wrong["format"], wrong["schema_id"]) == ("hex", None)
    assert "not of its schema" in wrong["error"]
    plain = show(b"text", "registry", 100, schemas)
    assert (plain["format"], plain["text"]) == ("text", "text")
    assert "zero byte" in plain["error"]

"""Decoders of keys and values to JSON, by Avro, Protobuf or JSON Schema.  No I/O.

Confluent's wire format has, before the value, a zero byte, the schema's id in four bytes, and for Protobuf the index of
the message in its file.  Values are untrusted: those whose size, depth or counts could end the process are refused.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import decimal
import io
import json
import struct
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from bmq.core.extras import how_to_install
from bmq.core.schema_registry import AVRO, JSON, PROTOBUF, SchemaError, SchemaSource

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.descriptor_pool import DescriptorPool

MAGIC = 0
HEADER = struct.Struct(">BI")
VALUE_BYTES_MAX = 256 << 10
"""Most bytes of a value that is decoded: some megabytes of Python objects, and at worst seconds."""
DECIMAL_BYTES_MAX = 64
"""Most bytes of a decimal number, 154 digits: the time to convert one grows with the square of its size."""
INDEXES_MAX = 32
"""Most levels of Protobuf messages that are nested in one another."""
_DECIMAL = "bmq-decimal"
SHOWN_AS = {AVRO: "avro", PROTOBUF: "protobuf", JSON: "json"}
_LEAST_AVRO: Mapping[str, int] = {
    "null": 0, "boolean": 1, "int": 1, "long": 1, "float": 4, "double": 8, "bytes": 1, "string": 1,
}  # fmt: skip


class Schema(NamedTuple):
    """A compiled schema: ``decode`` returns the value after the id as an object for JSON, or raises SchemaError."""

    kind: str
    decode: Callable[[bytes], Any]


def schema_id(data: bytes | None) -> int | None:
    """Return the schema id that ``data`` begins with; None if it is not in Confluent's wire format."""
    if data is None or len(data) < HEADER.size or data[0] != MAGIC:
        return None
    return int(HEADER.unpack_from(data)[1])


def compile_schema(source: SchemaSource, references: Sequence[SchemaSource]) -> Schema:
    """Compile ``source``; a schema in ``references`` comes before the schemas that refer to it.

    Raises SchemaError if the schema is wrong, of an unknown type, or needs a library that is not installed.
    """
    try:
        match source.kind:
            case "AVRO":
                return Schema(AVRO, _avro(source, references))
            case "PROTOBUF":
                return Schema(PROTOBUF, _protobuf(source, references))
            case "JSON":
                return Schema(JSON, _decode_json)
    except SchemaError:
        raise
    except Exception as error:  # noqa: BLE001 - three libraries, each with its own errors for a wrong schema
        raise SchemaError(f"the schema cannot be used: {type(error).__name__}: {error}"[:500]) from None
    raise SchemaError(f"schemas of type {source.kind[:50]} are not known")


def to_json(schema: Schema, data: bytes) -> str:
    """Return a value in Confluent's wire format as JSON.

    Raises SchemaError if the value is too large, nested too deep, or not of its schema.
    """
    if len(data) > VALUE_BYTES_MAX:
        raise SchemaError(f"the value has {len(data)} bytes; up to {VALUE_BYTES_MAX} are decoded")
    try:
        return json.dumps(schema.decode(data[HEADER.size :]), default=_plain, ensure_ascii=False)
    except SchemaError:
        raise
    except RecursionError:
        raise SchemaError("the value is nested too deep") from None
    except Exception as error:  # noqa: BLE001 - as above, for a value that is not of the schema
        raise SchemaError(f"the value is not of its schema: {type(error).__name__}: {error}"[:500]) from None


def _plain(value: Any) -> Any:
    """Return a value that JSON has no form for as text: bytes in hex, times in ISO 8601, decimals and ids as such."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal | uuid.UUID):
        return str(value)
    raise TypeError(f"{type(value).__name__} is not shown")


def _decode_json(data: bytes) -> Any:
    return json.loads(data)


# ---------------------------------------------------------------------------------------------------------------- Avro


def _avro(source: SchemaSource, references: Sequence[SchemaSource]) -> Callable[[bytes], Any]:
    """Return a decoder by fastavro in Python: its decoder in C does not bound the depth, and can end the process."""
    try:
        from fastavro import parse_schema
        from fastavro._read_py import LOGICAL_READERS, schemaless_reader  # type: ignore[attr-defined]
    except ImportError:
        raise SchemaError(f"Avro needs fastavro: {how_to_install('registry')}") from None
    LOGICAL_READERS[f"bytes-{_DECIMAL}"] = LOGICAL_READERS[f"fixed-{_DECIMAL}"] = _decimal
    named: dict[str, Any] = {}
    for each in references:
        parse_schema(_bounded_decimals(json.loads(each.text)), named_schemas=named)
    parsed = parse_schema(_bounded_decimals(json.loads(source.text)), named_schemas=named)
    _refuse_free_items(parsed, named)

    def decode(data: bytes) -> Any:
        stream = io.BytesIO(data)
        value = schemaless_reader(stream, parsed, None)
        if stream.tell() != len(data):
            raise SchemaError(f"the value has {len(data) - stream.tell()} bytes after its end")
        return value

    return decode


def _bounded_decimals(schema: Any) -> Any:
    """Return the schema with a private logical type for decimals, which ``_decimal`` reads."""
    if isinstance(schema, list):
        return [_bounded_decimals(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    bounded = {name: _bounded_decimals(each) for name, each in schema.items() if name != "default"}
    if bounded.get("logicalType") == "decimal":
        bounded["logicalType"] = _DECIMAL
    return bounded


def _decimal(data: bytes, writer: Any = None, reader: Any = None) -> decimal.Decimal:
    """Return a decimal: big-endian two's complement, with the schema's ``scale``.  Raises SchemaError if large."""
    if len(data) > DECIMAL_BYTES_MAX:
        raise SchemaError(f"a decimal of {len(data)} bytes; up to {DECIMAL_BYTES_MAX} are shown")
    digits = decimal.Decimal(int.from_bytes(data, "big", signed=True))
    return digits.scaleb(-int(writer.get("scale", 0)), decimal.Context(prec=1_000))


def _refuse_free_items(schema: Any, named: Mapping[str, Any]) -> None:
    """Raise SchemaError for arrays whose items take no bytes: a few bytes of a value could stand for any number."""
    known: dict[str, int] = {}

    def least(each: Any) -> int:
        """Return the least bytes of a value."""
        if isinstance(each, list):
            for one in each:
                least(one)
            return 1
        if isinstance(each, str):
            if each in _LEAST_AVRO:
                return _LEAST_AVRO[each]
            return known[each] if each in known else least(named[each])
        kind = each["type"]
        if kind in ("record", "error"):
            known[each["name"]] = 1  # within itself, where a finite value must have a branch that ends
            known[each["name"]] = sum(least(field["type"]) for field in each["fields"])
            return known[each["name"]]
        if kind == "array" and least(each["items"]) == 0:
            raise SchemaError("arrays of items without any bytes are not shown")
        if kind == "map":
            least(each["values"])
        if kind == "fixed":
            return int(each["size"])
        return 1 if kind in ("array", "map", "enum") else least(kind)

    least(schema)


# ------------------------------------------------------------------------------------------------------------ Protobuf


def _protobuf(source: SchemaSource, references: Sequence[SchemaSource]) -> Callable[[bytes], Any]:
    from google.protobuf import descriptor_pool, json_format, message_factory
    from google.protobuf.message import DecodeError

    pool = descriptor_pool.DescriptorPool()
    _add_well_known(pool)
    for each in references:
        pool.Add(_file(each, each.name))
    name = "bmq-shown.proto"
    pool.Add(_file(source, name))
    messages = list(pool.FindFileByName(name).message_types_by_name.values())

    def decode(data: bytes) -> Any:
        indexes, start = _message_indexes(data)
        found, within = None, messages
        for index in indexes:
            if not 0 <= index < len(within):
                raise SchemaError(f"the schema has no message at {list(indexes)}")
            found = within[index]
            within = list(found.nested_types)
        assert found is not None, "there is at least one index"
        message = message_factory.GetMessageClass(found)()
        try:
            message.ParseFromString(data[start:])
        except DecodeError as error:
            raise SchemaError(f"the value is not of its schema: {error}") from None
        return json_format.MessageToDict(message, preserving_proto_field_name=True, descriptor_pool=pool)

    return decode


def _file(source: SchemaSource, name: str) -> FileDescriptorProto:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.message import DecodeError

    try:
        file = FileDescriptorProto.FromString(base64.b64decode(source.text, validate=True))
    except (binascii.Error, DecodeError):
        raise SchemaError("the schema registry does not serialize Protobuf schemas (format=serialized)") from None
    file.name = name
    return file


def _add_well_known(pool: DescriptorPool) -> None:
    from google.protobuf import (
        any_pb2,
        duration_pb2,
        empty_pb2,
        field_mask_pb2,
        struct_pb2,
        timestamp_pb2,
        wrappers_pb2,
    )

    for module in (any_pb2, duration_pb2, empty_pb2, field_mask_pb2, struct_pb2, timestamp_pb2, wrappers_pb2):
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)


def _message_indexes(data: bytes) -> tuple[Sequence[int], int]:
    """Return the indexes of the message in its file, and the position after them.  A single zero is the first one."""
    count, at = _zigzag(data, 0)
    if count == 0:
        return (0,), at
    if not 0 < count <= INDEXES_MAX:
        raise SchemaError(f"the value has a message index of {count} levels; up to {INDEXES_MAX} are allowed")
    indexes = []
    for _ in range(count):
        index, at = _zigzag(data, at)
        indexes.append(index)
    return indexes, at


def _zigzag(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 28:
            raise SchemaError("the value ends within its header")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7

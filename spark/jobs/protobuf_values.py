"""Protobuf values: a message of a descriptor set as Spark's schema, and a reader of it.

Types become those that Spark's own Protobuf functions give them, except that unsigned numbers are never negative:
uint32 is a bigint, uint64 a decimal(20,0).  Fields with presence are null when they are not set.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from bmq.spark.jobs import JobError
from bmq.spark.jobs.framed import past_message_path

_TIMESTAMP = "google.protobuf.Timestamp"
_F = FieldDescriptor
_PLAIN: dict[int, DataType] = {
    _F.CPPTYPE_INT32: IntegerType(),
    _F.CPPTYPE_INT64: LongType(),
    _F.CPPTYPE_UINT32: LongType(),
    _F.CPPTYPE_UINT64: DecimalType(20, 0),
    _F.CPPTYPE_DOUBLE: DoubleType(),
    _F.CPPTYPE_FLOAT: FloatType(),
    _F.CPPTYPE_BOOL: BooleanType(),
    _F.CPPTYPE_ENUM: StringType(),
}


def protobuf_schema(data: bytes, message: str | None) -> StructType:
    """Return the Spark schema of ``message`` in the descriptor set ``data``.

    Raises JobError if the set does not contain it, or if a table cannot hold it.
    """
    return _struct(_descriptor(data, message), ())


@dataclass(frozen=True, slots=True)
class ProtobufReader:
    """A reader of Protobuf values, sent to the workers as bytes and built there once."""

    data: bytes
    message: str | None
    is_framed: bool = False

    def __call__(self) -> Callable[[bytes], Any]:
        kind = message_factory.GetMessageClass(_descriptor(self.data, self.message))

        def read(value: bytes) -> Any:
            return _fields(kind.FromString(past_message_path(value) if self.is_framed else value))

        return read


def _descriptor(data: bytes, message: str | None) -> Descriptor:
    pool = descriptor_pool.DescriptorPool()
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(data)
        for file in files.file:
            pool.Add(file)
        names = [f"{file.package}.{each.name}".strip(".") for file in files.file for each in file.message_type]
        if message is None:
            raise JobError(f"--message is missing; the descriptor set has {', '.join(names) or 'none'}")
        return pool.FindMessageTypeByName(message)
    except KeyError:
        raise JobError(f"--message {message}: the descriptor set has {', '.join(names) or 'none'}") from None
    except (DecodeError, TypeError) as error:
        raise JobError(
            f"--schema is not a complete descriptor set: use protoc --include_imports --descriptor_set_out ({error})"
        ) from error


def _struct(message: Descriptor, within: tuple[str, ...]) -> StructType:
    if message.full_name in within:
        raise JobError(f"--message: a {message.full_name} may hold another one, which no table can: use --format raw")
    inner = (*within, message.full_name)
    return StructType([StructField(field.name, _type(field, inner)) for field in message.fields])


def _type(field: FieldDescriptor, within: tuple[str, ...]) -> DataType:
    if _is_map(field):
        kinds = _message(field).fields_by_name
        return MapType(_single(kinds["key"], within), _single(kinds["value"], within))
    kind = _single(field, within)
    return ArrayType(kind) if field.is_repeated else kind


def _single(field: FieldDescriptor, within: tuple[str, ...]) -> DataType:
    if field.cpp_type == _F.CPPTYPE_MESSAGE:
        if _message(field).full_name == _TIMESTAMP:
            return TimestampType()
        return _struct(_message(field), within)
    if field.cpp_type == _F.CPPTYPE_STRING:
        return BinaryType() if field.type == _F.TYPE_BYTES else StringType()
    return _PLAIN[field.cpp_type]


def _message(field: FieldDescriptor) -> Descriptor:
    assert field.message_type is not None, f"{field.full_name} holds no message"
    return field.message_type


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _fields(message: Message) -> dict[str, Any]:
    return {field.name: _value(message, field) for field in message.DESCRIPTOR.fields}


def _value(message: Message, field: Any) -> Any:
    if field.has_presence and not message.HasField(field.name):
        return None
    value = getattr(message, field.name)
    if _is_map(field):
        kind = _message(field).fields_by_name["value"]
        return {key: _plain(each, kind) for key, each in value.items()}
    if field.is_repeated:
        return [_plain(each, field) for each in value]
    return _plain(value, field)


def _plain(value: Any, field: FieldDescriptor) -> Any:
    if field.cpp_type == _F.CPPTYPE_MESSAGE:
        if _message(field).full_name == _TIMESTAMP:
            return value.seconds * 1_000_000 + value.nanos // 1000
        return _fields(value)
    if field.cpp_type == _F.CPPTYPE_ENUM:
        assert field.enum_type is not None, f"{field.full_name} is of no enum"
        known = field.enum_type.values_by_number.get(value)
        return str(value) if known is None else known.name
    return value

"""Protobuf values: a message of a descriptor set as Spark's schema, and a reader of it.

Types become the types of Spark's own Protobuf functions, except for unsigned numbers, which are never negative: uint32
is a bigint, uint64 a decimal(20,0).  Fields with presence are null when they are not set.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from google.protobuf import (
    any_pb2,
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    message_factory,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet
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
from bmq.spark.jobs.framed import head_of, message_path
from bmq.spark.jobs.time_range import FIRST_S, LAST_S
from bmq.spark.jobs.worker_decoding import Reader
from bmq.spark.jobs.writer_schemas import WriterSchemas, remembered

_WELL_KNOWN = (any_pb2, duration_pb2, empty_pb2, field_mask_pb2, struct_pb2, timestamp_pb2, wrappers_pb2)
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
    """A reader of Protobuf values, sent to the workers as bytes and built there once.

    ``schemas``, if values are framed: a value must be the wanted message in the schema whose id is in front of it.
    """

    data: bytes
    message: str | None
    schemas: WriterSchemas | None = None

    def __call__(self) -> Reader:
        wanted = _descriptor(self.data, self.message)
        kind = message_factory.GetMessageClass(wanted)

        def read(value: bytes) -> tuple[Any, bool]:
            found = kind.FromString(value)
            return _fields(found), _has_unknown(found)

        if self.schemas is None:
            return read
        find = self.schemas.open()

        @remembered
        def files(number: int) -> WrittenMessages:
            return WrittenMessages(find(number).data, wanted)

        def read_framed(value: bytes) -> tuple[Any, bool]:
            number, body = head_of(value)
            path, message = message_path(body)
            files(number).check(path)
            return read(message)

        return read_framed


class WrittenMessages:
    """The messages of one writer's schema, and whether they are the wanted message."""

    def __init__(self, data: bytes, wanted: Descriptor) -> None:
        """Take the messages of the last file of the descriptor set ``data``.  Raises ValueError if it is invalid."""
        try:
            files = descriptor_pb2.FileDescriptorSet.FromString(data).file
            self._pool = descriptor_pool.DescriptorPool()
            _add(self._pool, files)
            self._file = files[-1]
        except (DecodeError, TypeError, KeyError, IndexError) as error:
            raise ValueError(f"the writer's schema is not a complete descriptor set: {error!r}") from error
        self._wanted = wanted
        self._checked: set[tuple[int, ...]] = set()

    def check(self, path: tuple[int, ...]) -> None:
        """Raise ValueError if the message at ``path`` is not the wanted message, or cannot be read as it."""
        if path in self._checked:
            return
        name, within = self._file.package, self._file.message_type
        for index in path:
            if not 0 <= index < len(within):
                raise ValueError(f"the writer's schema has no message at {list(path)}")
            name = f"{name}.{within[index].name}".strip(".")
            within = within[index].nested_type
        if name != self._wanted.full_name:
            raise ValueError(f"it is a {name}, not a {self._wanted.full_name}")
        _check_fields(self._pool.FindMessageTypeByName(name), self._wanted, set())
        self._checked.add(path)


def _check_fields(writer: Descriptor, wanted: Descriptor, done: set[str]) -> None:
    """Raise ValueError if a field number has another type in the two messages, at any depth."""
    if wanted.full_name in done:
        return
    done.add(wanted.full_name)
    for number, field in wanted.fields_by_number.items():
        written = writer.fields_by_number.get(number)
        if written is None:
            continue
        if (written.type, written.is_repeated) != (field.type, field.is_repeated):
            raise ValueError(f"{field.full_name} was written with another type")
        if field.message_type is not None and written.message_type is not None:
            _check_fields(written.message_type, field.message_type, done)


def _has_unknown(message: Message) -> bool:
    """Return whether the message, or one in it, has fields that the descriptor does not have."""
    if len(UnknownFieldSet(message)):
        return True
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if not field.is_repeated:
            inner: Any = (value,)
        elif not _is_map(field):
            inner = value
        elif _message(field).fields_by_name["value"].message_type is not None:
            inner = value.values()
        else:
            inner = ()
        if any(map(_has_unknown, inner)):
            return True
    return False


def _add(pool: descriptor_pool.DescriptorPool, files: Iterable[descriptor_pb2.FileDescriptorProto]) -> None:
    """Add files to the pool, and what they import of Protobuf's own files.  Raises TypeError if an import is
    missing."""
    files = list(files)
    given = {file.name for file in files}
    for module in _WELL_KNOWN:
        if module.DESCRIPTOR.name not in given:
            pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    for file in files:
        pool.Add(file)


def _descriptor(data: bytes, message: str | None) -> Descriptor:
    pool = descriptor_pool.DescriptorPool()
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(data)
        _add(pool, files.file)
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
            return _micros(value.seconds, value.nanos)
        return _fields(value)
    if field.cpp_type == _F.CPPTYPE_ENUM:
        assert field.enum_type is not None, f"{field.full_name} is of no enum"
        known = field.enum_type.values_by_number.get(value)
        return str(value) if known is None else known.name
    return value


def _micros(seconds: int, nanos: int) -> int:
    """Return the microseconds of a Timestamp.  Raises ValueError if it is outside of Protobuf's own bounds."""
    if not (FIRST_S <= seconds <= LAST_S and 0 <= nanos < 1_000_000_000):
        raise ValueError(f"a Timestamp of {seconds} seconds and {nanos} nanoseconds is outside of the years 1 to 9999")
    return seconds * 1_000_000 + nanos // 1000

"""Messages of every API and version as plain values, and what two other codecs make of the same values.

kio is the independent codec: its modules are generated from Apache Kafka's schemas by other people.  kafka-python's
classes are what our handlers use.  A message's *values* are a dict by kafka-python's field names, of what is on the
wire: whole numbers, texts, bytes, UUIDs, lists and dicts.
"""

from __future__ import annotations

import dataclasses
import datetime
import io
import random
import re
import typing
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from typing import Any
from uuid import UUID

import kafka.protocol.consumer
import kafka.protocol.producer
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from bmq.core.wire import messages
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.messages import stable_range

Values = dict[str, Any]

HAND_WRITTEN = ("Produce", "Fetch")
SERVED = tuple(sorted(name.removesuffix("Request") for name in messages.__all__ if name.endswith("Request")))
KIO_LACKS: tuple[tuple[str, int], ...] = ()
"""Advertised versions that kio cannot speak.  None today; one that is added here must be compared otherwise."""

_RANGES = {
    "bool": (0, 1),
    "int8": (-(1 << 7), (1 << 7) - 1),
    "int16": (-(1 << 15), (1 << 15) - 1),
    "uint16": (0, (1 << 16) - 1),
    "int32": (-(1 << 31), (1 << 31) - 1),
    "bitfield": (-(1 << 31), (1 << 31) - 1),
    "int64": (-(1 << 63), (1 << 63) - 1),
}
_TEXTS = ("", "a", "topic-1", "größe", "主题", "x" * 126, "x" * 127, "y" * 300)
_ERROR_CODES = tuple(ErrorCode)
_SIZES = (0, 0, 1, 1, 2, 3)


def kafka_class(name: str) -> Any:
    """Return kafka-python's class of that name, such as ``ProduceRequest``. Raises LookupError if it has none."""
    for module in (messages, kafka.protocol.consumer, kafka.protocol.producer):
        if hasattr(module, name):
            return getattr(module, name)
    raise LookupError(name)


@cache
def kio_class(name: str, version: int) -> Any:
    api, kind = re.fullmatch(r"(.*)(Request|Response)", name).groups()  # type: ignore[union-attr]
    folder = re.sub(r"(?<!^)(?=[A-Z])", "_", api).lower()
    return getattr(import_module(f"kio.schema.{folder}.v{version}.{kind.lower()}"), name)


def versions(api: str) -> range:
    least, most = stable_range(kafka_class(api + "Request").API_KEY)
    return range(least, most + 1)


def advertised() -> Iterator[tuple[str, int]]:
    """Yield each API and version that is decoded from schemas."""
    for api in SERVED:
        for version in versions(api):
            yield api, version


def api_key(api: str) -> ApiKey:
    return ApiKey(kafka_class(api + "Request").API_KEY)


def fields(description: Any, version: int) -> tuple[Any, ...]:
    """Return Kafka's fields of a class or a structure that this version has, in the schema's order."""
    key = id(description), version
    if key not in _fields:
        found = tuple(
            field
            for field in description.fields.values()
            if field.for_version_q(version) and (field.tag is None or field.tag < OWN_TAGS)
        )
        _fields[key] = description, found
    return _fields[key][1]


OWN_TAGS = 10_000
"""Tags from here on are this project's: kio does not know them."""
_fields: dict[tuple[int, int], tuple[Any, tuple[Any, ...]]] = {}
"""Each description with its fields, by the description's id and the version: descriptions of arrays have no hash."""


# ------------------------------------------------------------------------------------------ making values


def sample(rng: random.Random, name: str, version: int) -> Values:
    """Return values that every codec can encode: error codes exist, points in time are whole seconds of kio's years."""
    return _sample_struct(rng, kafka_class(name), kio_class(name, version), version)


def _sample_struct(rng: random.Random, description: Any, kio_type: Any, version: int) -> Values:
    return {
        field.name: _sample(rng, field, kind, other.metadata, version)
        for field, other, kind in _paired(description, kio_type, version)
    }


def _sample(rng: random.Random, field: Any, kio_type: Any, metadata: Any, version: int) -> Any:
    if (field.nullable_for_version_q(version) or (field.is_struct() and field.tag is not None)) and rng.random() < 0.3:
        return None
    if field.is_array():
        count = rng.choice(_SIZES)
        if field.is_struct_array():
            return [_sample_struct(rng, field, _entity(kio_type), version) for _ in range(count)]
        return [_sample_simple(rng, field.array_of.type_str, metadata, is_tagged=False) for _ in range(count)]
    if field.is_struct():
        return _sample_struct(rng, field, _entity(kio_type), version)
    if metadata["kafka_type"] == "datetime_i64" and type(None) not in typing.get_args(kio_type):
        return rng.randrange(0, 1 << 37) * 1000  # kio has no -1 there
    return _sample_simple(rng, field.type_str, metadata, is_tagged=field.tag is not None)


def _sample_simple(rng: random.Random, kind: str, metadata: Any, *, is_tagged: bool) -> Any:
    match metadata["kafka_type"]:
        case "error_code":
            return rng.choice(_ERROR_CODES).value
        case "datetime_i64":
            return rng.choice((-1, rng.randrange(0, 1 << 37) * 1000))
        case "timedelta_i64":
            return rng.randrange(*_RANGES["int32"])
    match kind:
        case "string":
            return rng.choice(_TEXTS)
        case "bytes" | "records":
            return rng.randbytes(rng.choice((0, 1, 5, 127, 128, 300)))
        case "uuid":
            return rng.choice((UUID(int=rng.getrandbits(128)), UUID(int=0)))
        case "bool":
            return rng.random() < 0.5
        case "float64":
            return rng.choice((0.0, -1.5, 1e300, rng.random()))
    least, most = _RANGES[kind]
    return rng.choice((least, most, 0, rng.randint(least, most), rng.randint(least, most)))


# ------------------------------------------------------------------------------------------ to and from kafka-python


def to_kafka(name: str, version: int, values: Values) -> Any:
    return kafka_class(name)(version=version, **_kafka_fields(kafka_class(name), version, values))


def _kafka_fields(description: Any, version: int, values: Values) -> Values:
    return {field.name: _to_kafka(field, version, values[field.name]) for field in fields(description, version)}


def _to_kafka(field: Any, version: int, value: Any) -> Any:
    if value is None:
        return None
    if field.is_struct_array():
        return [field.data_class(version=version, **_kafka_fields(field, version, each)) for each in value]
    if field.is_struct():
        return field.data_class(version=version, **_kafka_fields(field, version, value))
    if field.type_str == "bitfield":
        return None if value == -(1 << 31) else {bit for bit in range(32) if value >> bit & 1}
    if field.type_str == "uuid":
        return value if value.int else None
    return value


def of_kafka(description: Any, version: int, message: Any) -> Values:
    """Return the values of a decoded message; a zero uuid, which kafka-python's classes call None, is a zero uuid
    again."""
    return {
        field.name: _of_kafka(field, version, getattr(message, field.name)) for field in fields(description, version)
    }


def _of_kafka(field: Any, version: int, value: Any) -> Any:
    if field.type_str == "uuid":
        return value or UUID(int=0)
    if value is None:
        return None
    if field.is_struct_array():
        return [of_kafka(field, version, each) for each in value]
    if field.is_struct():
        return of_kafka(field, version, value)
    if field.is_array() and field.array_of.type_str == "uuid":
        return [each or UUID(int=0) for each in value]
    return value


def kafka_bytes(name: str, version: int, values: Values) -> bytes:
    return bytes(to_kafka(name, version, values).encode(version=version))


# ------------------------------------------------------------------------------------------ to and from kio


def to_kio(name: str, version: int, values: Values) -> Any:
    return _kio_entity(kafka_class(name), kio_class(name, version), version, values)


def kio_bytes(name: str, version: int, values: Values) -> bytes:
    out = io.BytesIO()
    entity_writer(kio_class(name, version))(out, to_kio(name, version, values))
    return out.getvalue()


def kio_read(name: str, version: int, data: bytes) -> Any:
    entity, end = entity_reader(kio_class(name, version))(data, 0)
    assert end == len(data)
    return entity


def _kio_entity(description: Any, kio_type: Any, version: int, values: Values) -> Any:
    return kio_type(
        **{
            other.name: _to_kio(field, kind, other, version, values[field.name])
            for field, other, kind in _paired(description, kio_type, version)
        }
    )


def _to_kio(field: Any, kio_type: Any, other: Any, version: int, value: Any) -> Any:
    if value is None:
        return other.default if field.is_struct() and field.tag is not None else None
    if field.is_struct_array():
        return tuple(_kio_entity(field, _entity(kio_type), version, each) for each in value)
    if field.is_struct():
        return _kio_entity(field, _entity(kio_type), version, value)
    if field.is_array():
        return tuple(_simple_to_kio(other.metadata["kafka_type"], each) for each in value)
    return _simple_to_kio(other.metadata["kafka_type"], value)


def _simple_to_kio(kind: str, value: Any) -> Any:
    match kind:
        case "error_code":
            return ErrorCode(value)
        case "timedelta_i32" | "timedelta_i64":
            return datetime.timedelta(milliseconds=value)
        case "datetime_i64":
            return None if value == -1 else datetime.datetime.fromtimestamp(value // 1000, tz=datetime.UTC)
        case "uuid":
            return value if value.int else None
    return value


def _paired(description: Any, kio_type: Any, version: int) -> tuple[tuple[Any, dataclasses.Field[Any], Any], ...]:
    """Return each field of a version with kio's field and its type."""
    if kio_type not in _pairs:  # kio has a class for each version
        types = typing.get_type_hints(kio_type)
        both = zip(fields(description, version), dataclasses.fields(kio_type), strict=True)
        _pairs[kio_type] = tuple((ours, theirs, types[theirs.name]) for ours, theirs in both)
    return _pairs[kio_type]


_pairs: dict[Any, tuple[tuple[Any, dataclasses.Field[Any], Any], ...]] = {}


@cache
def _entity(kio_type: Any) -> Any:
    """Return the dataclass in ``T``, ``T | None``, ``tuple[T, ...]`` or ``tuple[T, ...] | None``, None if there is
    none."""
    if dataclasses.is_dataclass(kio_type):
        return kio_type
    return (
        next(found for arg in typing.get_args(kio_type) if (found := _entity(arg)) is not None)
        if (typing.get_args(kio_type))
        else None
    )

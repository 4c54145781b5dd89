"""Avro values: their schema as Spark's, and a reader of them.

Types become those that Spark's own Avro source gives them.  The logical types date, timestamp and decimal become
Spark's; values of all others are kept as they are stored.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import fastavro
from fastavro.schema import SchemaParseException, UnknownType
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from bmq.spark.jobs import JobError
from bmq.spark.jobs.avro_resolution import has_more_fields
from bmq.spark.jobs.framed import head_of
from bmq.spark.jobs.worker_decoding import Reader
from bmq.spark.jobs.writer_schemas import WriterSchemas, remembered

_PLAIN: dict[str, DataType] = {
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "bytes": BinaryType(),
    "string": StringType(),
    "enum": StringType(),
    "fixed": BinaryType(),
}
_LOGICAL: dict[str, DataType] = {
    "date": DateType(),
    "timestamp-millis": TimestampType(),
    "timestamp-micros": TimestampType(),
}
_KEPT_LOGICAL = frozenset({*_LOGICAL, "decimal"})
_WIDENED = ({"int", "long"}, LongType()), ({"float", "double"}, DoubleType())


def avro_schema(text: str) -> StructType:
    """Return Spark's schema of the Avro schema ``text``.

    Raises JobError if it is not an Avro record, or cannot be a table's column.
    """
    raw = _parsed(text)
    found = _Types().type_of(raw, ())
    if not isinstance(found, StructType):
        raise JobError("--schema: values must be Avro records")
    return found


@dataclass(frozen=True, slots=True)
class AvroReader:
    """A reader of Avro values of one schema, sent to the workers as text and built there once."""

    text: str

    def __call__(self) -> Reader:
        schema = fastavro.parse_schema(_stripped(_parsed(self.text)))

        def read(value: bytes) -> tuple[Any, bool]:
            return _whole(value, schema, None), False

        return read


@dataclass(frozen=True, slots=True)
class FramedAvroReader:
    """A reader of Avro values, each written with the schema whose id is in front of it, into the schema ``text``."""

    text: str
    schemas: WriterSchemas

    def __call__(self) -> Reader:
        find = self.schemas.open()
        named: dict[str, Any] = {}
        wanted = fastavro.parse_schema(_stripped(_parsed(self.text)), named_schemas=named)

        @remembered
        def written(number: int) -> tuple[Any, bool]:
            """Return (the schema of that id, whether it has fields that the table does not have)."""
            writer = find(number)
            try:
                names: dict[str, Any] = {}
                for text in writer.references:
                    fastavro.parse_schema(_stripped(json.loads(text)), named_schemas=names)
                parsed = fastavro.parse_schema(_stripped(json.loads(writer.data)), named_schemas=names)
            except (ValueError, KeyError, TypeError, SchemaParseException, UnknownType) as error:
                raise ValueError(f"schema {number} is not an Avro schema: {error!r}") from error
            return parsed, has_more_fields(parsed, names, wanted, named)

        def read(value: bytes) -> tuple[Any, bool]:
            number, body = head_of(value)
            writer, has_more = written(number)
            return _whole(body, writer, wanted), has_more

        return read


def _whole(body: bytes, writer: Any, wanted: Any) -> Any:
    """Return the record that ``body`` holds from its first to its last byte.  Raises ValueError, and what fastavro
    raises."""
    stream = io.BytesIO(body)
    found = fastavro.schemaless_reader(stream, writer, wanted)
    if stream.tell() != len(body):
        raise ValueError(f"{len(body) - stream.tell()} bytes are left after the record")
    return found


def _parsed(text: str) -> Any:
    try:
        raw = json.loads(text)
        fastavro.parse_schema(raw)
    except (ValueError, KeyError, TypeError, SchemaParseException, UnknownType) as error:
        raise JobError(f"--schema is not an Avro schema: {error!r}") from error
    return raw


def _stripped(raw: Any) -> Any:
    """Return the schema without the logical types that a column cannot hold."""
    if isinstance(raw, list):
        return [_stripped(each) for each in raw]
    if not isinstance(raw, Mapping):
        return raw
    is_dropped = raw.get("logicalType") not in _KEPT_LOGICAL
    return {
        name: _stripped(value) if name in ("type", "items", "values", "fields") else value
        for name, value in raw.items()
        if not (name == "logicalType" and is_dropped)
    }


class _Types:
    """A conversion of one schema; a name that it has defined may be used again."""

    def __init__(self) -> None:
        self._named: dict[str, DataType | None] = {}  # None while it is being defined

    def type_of(self, raw: Any, path: tuple[str, ...], namespace: str = "") -> DataType:
        if isinstance(raw, list):
            return self._union(raw, path, namespace)
        if isinstance(raw, str):
            return _PLAIN[raw] if raw in _PLAIN else self._known(raw, path, namespace)
        kind, logical = raw["type"], raw.get("logicalType")
        if logical == "decimal":
            found: DataType = DecimalType(raw["precision"], raw.get("scale", 0))
        elif logical in _LOGICAL:
            found = _LOGICAL[logical]
        elif kind == "array":
            return ArrayType(self.type_of(raw["items"], path, namespace))
        elif kind == "map":
            return MapType(StringType(), self.type_of(raw["values"], path, namespace))
        elif kind == "record":
            return self._record(raw, path, namespace)
        elif isinstance(kind, str) and kind in _PLAIN:
            found = _PLAIN[kind]
        else:
            return self.type_of(kind, path, namespace)
        if "name" in raw and kind in ("enum", "fixed"):
            self._named[_full_name(raw, namespace)] = found
        return found

    def _record(self, raw: Mapping[str, Any], path: tuple[str, ...], namespace: str) -> DataType:
        name = _full_name(raw, namespace)
        self._named[name] = None
        inner = name.rpartition(".")[0]
        found = StructType()
        for field in raw["fields"]:
            found.add(field["name"], self.type_of(field["type"], (*path, field["name"]), inner))
        self._named[name] = found
        return found

    def _known(self, name: str, path: tuple[str, ...], namespace: str) -> DataType:
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        full = full if full in self._named else name
        found = self._named.get(full)
        if found is None:
            raise JobError(f"--schema: {'.'.join(path)} is a {name} within a {name}, which no table can hold")
        return found

    def _union(self, branches: list[Any], path: tuple[str, ...], namespace: str) -> DataType:
        left = [each for each in branches if each != "null"]
        if len(left) == 1:
            return self.type_of(left[0], path, namespace)
        for kinds, wider in _WIDENED:
            if left and all(isinstance(each, str) and each in kinds for each in left):
                return wider
        raise JobError(f"--schema: {'.'.join(path) or 'the value'} is a union of several types: use --format raw")


def _full_name(raw: Mapping[str, Any], namespace: str) -> str:
    name = str(raw["name"])
    space = raw.get("namespace", namespace)
    return name if "." in name or not space else f"{space}.{name}"

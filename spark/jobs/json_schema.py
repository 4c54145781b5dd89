"""The schema of JSON values, from DDL, Spark's own JSON of a schema, or a JSON Schema.  Pure.

In a JSON Schema the types of values count; keywords that bound values (``minimum``, ``pattern``, ...) are ignored.  A
value that may have several types, or none, becomes a string that holds its JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from bmq.spark.jobs import JobError

_PLAIN: dict[str, DataType] = {
    "string": StringType(),
    "integer": LongType(),
    "number": DoubleType(),
    "boolean": BooleanType(),
}
_TIMES: dict[str, DataType] = {"date-time": TimestampType(), "date": DateType()}
DEPTH_MAX = 32
"""Levels of a schema: references may refer to themselves."""


def json_schema(text: str) -> StructType | str:
    """Return the schema; ``text`` itself if it is not JSON, to be read as DDL.  Raises JobError if it is another kind
    of JSON."""
    if not text.lstrip().startswith("{"):
        return text.strip()
    try:
        raw = json.loads(text)
        if raw.get("type") == "struct":
            return StructType.fromJson(raw)
        found = _Document(raw).type_of(raw, 0)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise JobError(f"--schema is neither Spark's JSON of a schema nor a JSON Schema: {error!r}") from error
    if not isinstance(found, StructType) or not found.fields:
        raise JobError("--schema: the JSON Schema describes no object with properties")
    return found


class _Document:
    """A JSON Schema, to which its parts may refer."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root

    def type_of(self, schema: Any, depth: int) -> DataType:
        if depth > DEPTH_MAX:
            raise JobError(f"--schema refers to itself, or is more than {DEPTH_MAX} levels deep")
        if not isinstance(schema, Mapping):  # true: anything
            return StringType()
        if "$ref" in schema:
            return self.type_of(self._resolve(schema["$ref"]), depth + 1)
        schema = _without_null(schema)
        kind = schema.get("type", "object" if "properties" in schema else None)
        if kind == "array":
            return ArrayType(self.type_of(schema.get("items", True), depth + 1))
        if kind == "object":
            return self._object(schema, depth)
        if kind == "string":
            return _TIMES.get(schema.get("format", ""), StringType())
        return _PLAIN.get(kind, StringType()) if isinstance(kind, str) else StringType()

    def _object(self, schema: Mapping[str, Any], depth: int) -> DataType:
        if "properties" in schema:
            fields = schema["properties"].items()
            return StructType([StructField(name, self.type_of(each, depth + 1)) for name, each in fields])
        return MapType(StringType(), self.type_of(schema.get("additionalProperties", True), depth + 1))

    def _resolve(self, reference: str) -> Any:
        if not reference.startswith("#"):
            raise JobError(f"--schema refers to {reference}, outside of itself")
        found: Any = self._root
        for name in reference[1:].strip("/").split("/"):
            found = found[name.replace("~1", "/").replace("~0", "~")] if name else found
        return found


def _without_null(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return ``schema`` without null as a second type, or choice of ``anyOf``, which marks a value that may be
    missing."""
    kind = schema.get("type")
    if isinstance(kind, list):
        left = [each for each in kind if each != "null"]
        return {**schema, "type": left[0] if len(left) == 1 else None}
    for name in ("anyOf", "oneOf"):
        choices = [each for each in schema.get(name, ()) if each != {"type": "null"}]
        if len(choices) == 1 and isinstance(choices[0], Mapping):
            return choices[0]
    return schema

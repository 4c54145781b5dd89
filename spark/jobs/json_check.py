"""A check of JSON values beside Spark's parser, which reads a value's first document and leaves the rest unread.  Pure.

Spark replaces bytes that are not UTF-8, and drops fields that the schema does not have.  The check finds both.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pyspark.sql.types import ArrayType, DataType, MapType, StructType

FINE, CORRUPT, UNKNOWN_FIELDS = 0, 1, 2
"""Verdicts of the check."""


class _Elements(NamedTuple):
    """The shape of an array's elements or a map's values."""

    shape: Any


def json_check(schema: StructType) -> Callable[[bytes | None], int | None]:
    """Return a function from a value to its verdict; None for None.

    A value is ``CORRUPT`` unless it is UTF-8 and one JSON document from its first byte to its last one (``NaN`` and
    ``Infinity`` are numbers, as for Spark).  It has ``UNKNOWN_FIELDS`` if an object of it, at any depth, has a field
    that ``schema`` does not have there; names differ if their case does.
    """
    shape = _shape(schema)

    def check(value: bytes | None) -> int | None:
        if value is None:
            return None
        try:
            found = json.loads(bytes(value).decode())
            return UNKNOWN_FIELDS if _has_unknown(found, shape) else FINE
        except (ValueError, RecursionError):
            return CORRUPT

    return check


def _shape(kind: DataType) -> Any:
    """Return a mapping for a struct, ``_Elements`` for an array or a map, and None for a type without fields."""
    if isinstance(kind, StructType):
        return {field.name: _shape(field.dataType) for field in kind.fields}
    if isinstance(kind, ArrayType):
        return _Elements(_shape(kind.elementType))
    if isinstance(kind, MapType):
        return _Elements(_shape(kind.valueType))
    return None


def _has_unknown(found: Any, shape: Any) -> bool:
    if shape is None or found is None:
        return False
    if isinstance(shape, _Elements):
        if shape.shape is None:
            return False
        inner = found.values() if isinstance(found, Mapping) else found if isinstance(found, list) else ()
        return any(_has_unknown(each, shape.shape) for each in inner)
    if not isinstance(found, Mapping):
        return False
    return any(name not in shape or _has_unknown(each, shape[name]) for name, each in found.items())

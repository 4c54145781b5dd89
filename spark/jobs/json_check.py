"""A check of JSON values beside Spark's parser, which takes many values for others without a word.  Pure.

Spark's parser reads a value's first document, and the last of two fields with the same name.  It replaces bytes that
are not UTF-8, and drops fields without a column.  It rounds decimals, reads the first part of a date, adds
today's date to a time, and lets numbers overflow.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import Context, Decimal, Inexact, InvalidOperation
from functools import partial
from typing import Any, NamedTuple

from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from bmq.spark.jobs.time_range import FIRST_S, LAST_S

FINE, CORRUPT, UNKNOWN_FIELDS = 0, 1, 2
"""Verdicts of the check."""
_DAY = r"\s*\+?(?!0000)(\d{4})-(\d{1,2})-(\d{1,2})"
_DATE = re.compile(rf"{_DAY}\s*", re.ASCII)
_TIME = re.compile(rf"{_DAY}(?:[T ].*)?\s*", re.ASCII)
_EDGES = (1, 1, 1), (9999, 12, 31)
"""Days (year, month, day) of which a part lies outside of the range, in some time zones."""
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_INFINITY = float("inf")
_FLOATS_END = 2.0**128 - 2.0**103
"""The smallest number that becomes an infinite float."""


_NO_FIELD = object()


class _Elements(NamedTuple):
    """The shape of an array's elements or a map's values."""

    shape: Any


class _DigitsNeeded(Exception):
    """A judgement that needs the number as it was written."""


def json_check(schema: StructType) -> Callable[[bytes | None], int | None]:
    """Return a function from a value to its verdict; None for None.

    A value is ``CORRUPT`` unless it is UTF-8 and one JSON document from its first byte to its last one.  ``NaN`` and
    ``Infinity`` are numbers, as for Spark.  Lone surrogates, objects with a name twice, and fields that Spark would
    read as another value are corrupt.  The rules for fields:

    - decimals fit without rounding; numbers for bytes, floats and doubles are in the type's range;
    - dates are a whole day, times begin with one; both are in the years 1 to 9999;
    - numbers within strings are doubles, since Spark writes them as doubles; ``NaN`` and ``Infinity`` are not within
      strings, since Spark writes them as texts.

    Some values are corrupt, although Spark reads them right: decimals of Arabic digits, years with a leading zero, and
    some numbers just above the largest float.

    A value has ``UNKNOWN_FIELDS`` if an object of it, at any depth, has a field that ``schema`` does not have there;
    names differ if their case does.  Types that Spark itself refuses are not looked at.
    """
    return partial(_verdict, _shape(schema), _holds_decimals(schema))


def _verdict(shape: Any, needs_digits: bool, value: bytes | None) -> int | None:
    if value is None:
        return None
    try:
        raw = bytes(value)
        text = raw.decode()
        found = (_DIGITS if needs_digits else _FLOATS).decode(text)
        if b"\\u" in raw and _SURROGATE.search(raw):
            _require_characters(found)
        try:
            has_unknown = _has_unknown(found, shape)
        except _DigitsNeeded:
            has_unknown = _has_unknown(_DIGITS.decode(text), shape)
        return UNKNOWN_FIELDS if has_unknown else FINE
    except (ValueError, ArithmeticError, RecursionError):
        return CORRUPT


def _unique(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object with these fields.  Raises ValueError if two of them have the same name."""
    found = dict(fields)
    if len(found) != len(fields):
        raise ValueError("an object has a name twice")
    return found


class _Constant(str):
    """``NaN``, ``Infinity`` or ``-Infinity``, without quotes: a number for Spark."""

    __slots__ = ()


_FLOATS = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_Constant)
_DIGITS = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_Constant, parse_float=Decimal)
"""Slower: it keeps the digits of all numbers.  In both, an infinite float is an overflow, and ``Infinity`` is not."""


def _require_characters(found: Any) -> None:
    """Raise UnicodeEncodeError (a ValueError) if a string of the document, or a name, has a lone surrogate."""
    if isinstance(found, str):
        found.encode()
    elif isinstance(found, Mapping):
        for name, each in found.items():
            name.encode()
            _require_characters(each)
    elif isinstance(found, list):
        for each in found:
            _require_characters(each)


# ----------------------------------------------------------------------------------------------------------- shapes


def _holds_decimals(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return any(_holds_decimals(field.dataType) for field in kind.fields)
    if isinstance(kind, ArrayType):
        return _holds_decimals(kind.elementType)
    return _holds_decimals(kind.valueType) if isinstance(kind, MapType) else isinstance(kind, DecimalType)


def _shape(kind: DataType) -> Any:
    """Return a mapping for a struct, and ``_Elements`` for an array or a map.

    The shape of a type in ``_JUDGES`` is its judge, a function that returns whether Spark reads a value as it is.  All
    other types have None.
    """
    if isinstance(kind, StructType):
        return {field.name: _shape(field.dataType) for field in kind.fields}
    if isinstance(kind, ArrayType):
        return _Elements(_shape(kind.elementType))
    if isinstance(kind, MapType):
        return _Elements(_shape(kind.valueType))
    if isinstance(kind, DecimalType):
        context = Context(prec=kind.precision, traps=[Inexact, InvalidOperation])
        return partial(_is_decimal, context, Decimal((0, (1,), -kind.scale)))
    return next((judge for each, judge in _JUDGES.items() if isinstance(kind, each)), None)


def _has_unknown(found: Any, shape: Any) -> bool:
    """Return whether ``found`` has a field that ``shape`` does not have.

    Raises ValueError if a field does not say what Spark reads, ``_DigitsNeeded`` if that takes the digits of a number.
    """
    has_unknown = False
    if type(shape) is dict:
        for name, each in found.items() if type(found) is dict else ():
            inner = shape.get(name, _NO_FIELD)
            if inner is _NO_FIELD:
                has_unknown = True
            elif inner is None or each is None or (inner is _is_text and type(each) is str):
                continue
            elif type(inner) is dict or type(inner) is _Elements:
                if _has_unknown(each, inner):
                    has_unknown = True
            elif not inner(each):
                raise ValueError(f"the field {name} does not say what would be read")
    elif type(shape) is _Elements:
        inner = shape.shape
        elements = found.values() if type(found) is dict else found if type(found) is list else ()
        for each in elements if inner is not None else ():
            if each is not None and _has_unknown(each, inner):
                has_unknown = True
    elif not shape(found):
        raise ValueError("an element does not say what would be read")
    return has_unknown


# ----------------------------------------------------------------------------------------------------------- judges


def _is_decimal(context: Context, unit: Decimal, found: Any) -> bool:
    """Return whether the number fits without rounding.  Raises ArithmeticError if it does not.

    In texts Spark passes over commas, and would take a decimal comma for none.
    """
    if isinstance(found, str) and not _NUMBER.fullmatch(found):
        return False
    if isinstance(found, Decimal | int | str):
        context.quantize(Decimal(found), unit)
    return True


def _is_byte(found: Any) -> bool:
    return not isinstance(found, int) or -128 <= found < 128


def _is_double(found: Any) -> bool:
    if type(found) is float:
        return -_INFINITY < found < _INFINITY
    return not isinstance(found, Decimal | int) or abs(float(found)) < _INFINITY


def _is_float(found: Any) -> bool:
    return not isinstance(found, float | Decimal | int) or abs(float(found)) < _FLOATS_END


def _is_text(found: Any) -> bool:
    """Return whether Spark's text of the value has the same numbers, as doubles.

    Spark's text of ``1e23`` is ``9.999999999999999E22``: the same double.  Its text of ``NaN`` has quotes.
    """
    match found:
        case _Constant():
            return False
        case float():
            raise _DigitsNeeded
        case Decimal():
            return Decimal(repr(float(found))) == found
        case list():
            return all(map(_is_text, found))
        case dict():
            return all(map(_is_text, found.values()))
    return True


def _is_date(found: Any) -> bool:
    return not isinstance(found, str) or _DATE.fullmatch(found) is not None


def _is_time(found: Any) -> bool:
    if isinstance(found, int):  # seconds
        return FIRST_S <= found <= LAST_S
    if not isinstance(found, str):
        return True
    match = _TIME.fullmatch(found)
    if match is None:
        return False
    year, month, day = map(int, match.groups())
    if (year, month, day) not in _EDGES:
        return True
    return _is_in_range(f"{year:04}-{month:02}-{day:02}{found[match.end(3) :].rstrip()}")


def _is_in_range(text: str) -> bool:
    """Return whether the time is in the range.  A time of a form that Python does not have, and Spark has, is not.

    Spark's forms are many: a time zone's name, one digit for an hour or an offset.
    """
    try:
        time = datetime.fromisoformat(text)
        (time if time.tzinfo is not None else time.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        return False
    return True


_JUDGES: Mapping[type[DataType], Callable[[Any], bool]] = {
    ByteType: _is_byte,
    FloatType: _is_float,
    DoubleType: _is_double,
    StringType: _is_text,
    DateType: _is_date,
    TimestampType: _is_time,
    TimestampNTZType: _is_time,
}

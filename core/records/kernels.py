"""The loops over a batch's records, compiled by numba: twins of those in ``core.records.walk``, fault by fault.

No byte that is read is trusted: every length is compared with the bytes left before it is followed.  The machine code
is kept on disk, so whatever is used here must be defined here; ``core.machine_code`` chooses the folder.  A test
compares the two walks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
from numba import njit
from numba import types as numba_types

Bytes = npt.NDArray[np.uint8]
Rows = npt.NDArray[np.int64]
_F = TypeVar("_F", bound=Callable[..., Any])
if TYPE_CHECKING:
    Int64 = int
else:
    Int64 = np.int64  # numba makes Python's int of a byte unsigned, and a float of signed and unsigned together

# As in ``core.records.walk.Fault``.
_FINE, _LENGTH, _NUMBER, _OFFSET_DELTA, _FIELD, _HEADERS, _RECORD_END, _BATCH_END, _TIMESTAMP, _KEY = range(10)
_NO_TIMESTAMP = -1
_VARINT_BYTES = 5
_VARLONG_BYTES = 10
_BELOW_SIGN = 2**63 - 1

types: Any = numba_types


def _inlined(function: _F) -> _F:
    return cast(_F, njit(nogil=True)(function))


def _compiled(signature: Any) -> Callable[[_F], _F]:
    return cast(Callable[[_F], _F], njit(signature, nogil=True, cache=True))


@_inlined
def _varint(data: Bytes, at: int, end: int, bytes_max: int) -> tuple[int, int]:
    """Return a zig-zag number and the position behind it; position -1 if no such number ends before ``end``."""
    value = Int64(0)
    shift = 0
    stop = min(end, at + bytes_max)
    while at < stop:
        byte = Int64(data[at])
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return ((value >> 1) & _BELOW_SIGN) ^ -(value & 1), at
        shift += 7
    return Int64(0), -1


_RECORDS: Any = types.Array(types.uint8, 1, "C", readonly=True)
_BOUNDS: Any = (types.int64, types.int64, types.int64, types.int64, types.boolean)


@_compiled(types.UniTuple(types.int64, 3)(_RECORDS, *_BOUNDS, types.int64))
def walk(
    data: Bytes, count: int, base_timestamp: int, earliest: int, latest: int, needs_key: bool, missing: int
) -> tuple[int, int, int]:
    """Return (fault, number of the record, largest timestamp): see ``core.records.walk.Walk``."""
    at, end = Int64(0), Int64(len(data))
    max_timestamp = Int64(_NO_TIMESTAMP)
    untimely, keyless = Int64(-1), Int64(-1)
    due = Int64(0)
    for number in range(count):
        length, at = _varint(data, at, end, _VARINT_BYTES)
        if at < 0:
            return _NUMBER, number, max_timestamp
        if length < 0 or length > end - at:
            return _LENGTH, number, max_timestamp
        stop = at + length
        delta, at = _varint(data, at + 1, end, _VARLONG_BYTES)
        if at < 0:
            return _NUMBER, number, max_timestamp
        timestamp = base_timestamp + delta
        delta, at = _varint(data, at, end, _VARINT_BYTES)
        if at < 0:
            return _NUMBER, number, max_timestamp
        if delta < due or delta > number + missing:
            return _OFFSET_DELTA, number, max_timestamp
        due = delta + 1
        lacks_key = False
        for field in range(2):  # key, value
            size, at = _varint(data, at, end, _VARINT_BYTES)
            if at < 0:
                return _NUMBER, number, max_timestamp
            if size < -1 or size > stop - at:
                return _FIELD, number, max_timestamp
            if size < 0 and field == 0:
                lacks_key = needs_key
            at += max(size, 0)
        headers, at = _varint(data, at, end, _VARINT_BYTES)
        if at < 0:
            return _NUMBER, number, max_timestamp
        if headers < 0 or 2 * headers > stop - at:
            return _HEADERS, number, max_timestamp
        for _ in range(headers):
            size, at = _varint(data, at, end, _VARINT_BYTES)
            if at < 0:
                return _NUMBER, number, max_timestamp
            if size < 0 or size > stop - at:
                return _FIELD, number, max_timestamp
            size, at = _varint(data, at + size, end, _VARINT_BYTES)
            if at < 0:
                return _NUMBER, number, max_timestamp
            if size < -1 or size > stop - at:
                return _FIELD, number, max_timestamp
            at += max(size, 0)
        if at != stop:
            return _RECORD_END, number, max_timestamp
        if lacks_key:
            if keyless < 0:
                keyless = Int64(number)
        elif timestamp != _NO_TIMESTAMP and (timestamp < earliest or timestamp > latest) and untimely < 0:
            untimely = Int64(number)
        max_timestamp = max(max_timestamp, timestamp)
    if at != end:
        return _BATCH_END, Int64(count), max_timestamp
    if untimely >= 0:
        return _TIMESTAMP, untimely, max_timestamp
    if keyless >= 0:
        return _KEY, keyless, max_timestamp
    return _FINE, Int64(count), max_timestamp


@_compiled(types.int64(_RECORDS, *_BOUNDS, types.Array(types.int64, 2, "C")))
def bad_records(
    data: Bytes, count: int, base_timestamp: int, earliest: int, latest: int, needs_key: bool, found: Rows
) -> int:
    """Return how many records lack a key or have a wrong timestamp; fill ``found`` with the first of these.

    A row of ``found`` is (number, 1 if the record lacks its key, timestamp): see
    ``core.records.walk.bad_records_python``.  The structure is right; bytes that are not end the walk.
    """
    at, end = Int64(0), Int64(len(data))
    total = Int64(0)
    for number in range(count):
        length, at = _varint(data, at, end, _VARINT_BYTES)
        if at < 0 or length < 0 or length > end - at:
            return total
        stop = at + length
        delta, at = _varint(data, at + 1, end, _VARLONG_BYTES)
        if at < 0:
            return total
        timestamp = base_timestamp + delta
        delta, at = _varint(data, at, end, _VARINT_BYTES)
        if at < 0:
            return total
        size, at = _varint(data, at, end, _VARINT_BYTES)
        if at < 0:
            return total
        lacks_key = needs_key and size < 0
        if lacks_key or (timestamp != _NO_TIMESTAMP and (timestamp < earliest or timestamp > latest)):
            if total < len(found):
                found[total, 0], found[total, 1], found[total, 2] = number, lacks_key, timestamp
            total += 1
        at = stop
    return total

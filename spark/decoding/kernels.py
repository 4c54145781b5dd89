"""The loops over bytes: batch headers into a table, records into columns.  Compiled by numba, free of Python objects.

No length is trusted: it is compared with the bytes left before it is followed.  So damage that happens to match its
CRC, or that a producer wrote, ends in a fault and never past the end of a buffer.

``scan`` fills a table, a row for each batch.  ``decode`` takes rows whose records lie in one buffer.  It appends to
columns that the caller has made large enough: as many rows as the headers promise, as many bytes as there are.  A batch
that turns out wrong adds nothing.

Columns are in Arrow's layout except for validity, which is a byte for each value and made bits later.  Columns of
variable length stand in groups, so that a call has few arguments (each costs time to unpack):

=========  ============================================================
``fixed``  offsets, timestamps (microseconds)
``ends``   keys, values, headers of a row, header names, header values
``bytes``  keys, values, header names, header values
``valid``  keys, values, header values
=========  ============================================================

Compiling takes seconds, so a function has a single signature, and its machine code is kept on disk, beside this file.
Everything used here must be defined here, or a change would not be noticed. ``bmq.spark.decoding.compiled`` finds a
place for the machine code if that folder cannot be written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
from numba import njit
from numba import types as numba_types

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]
_F = TypeVar("_F", bound=Callable[..., Any])
if TYPE_CHECKING:
    Int64 = int
else:
    Int64 = np.int64  # numba makes Python's int of a byte unsigned, and a float of signed and unsigned together

# ------------------------------------------------------------------------------------------------- the table

(
    POSITION,  # in the data
    SIZE,
    BASE_OFFSET,
    ATTRIBUTES,
    LAST_DELTA,
    BASE_TIMESTAMP,
    MAX_TIMESTAMP,
    PRODUCER_ID,
    COUNT,
    CRC,
    NEEDS,  # one of the three below
    START,  # of the records, in the data until they are decompressed
    END,
    ROWS,  # returned by ``decode``
) = range(14)
FIELDS = 14

# How much of a batch must be read: nothing (it is out of range), its header alone, its records.
NOTHING, HEADER, RECORDS = range(3)

# The columns wanted, as bits.
OFFSET, TIMESTAMP, KEY, VALUE, HEADERS, TIME_RANGE = 1, 2, 4, 8, 16, 32
_RECORD_FIELDS = KEY | VALUE | HEADERS

# The ends of ``scan``, and the faults that ``decode`` finds.
(
    FINE,
    TORN,
    BATCH_LENGTH,
    NO_MAGIC,
    DISORDER,
    RECORD_LENGTH,
    NUMBER,
    OFFSET_DELTA,
    BYTES_LENGTH,
    HEADER_COUNT,
    HEADER_NAME,
    RECORD_END,
    BATCH_END,
) = range(13)

# ``decode``'s cursor: its row in the table, how far each column is filled, and what it met.
AT_BATCH, AT_ROW, KEYS_END, VALUES_END, HEADERS_END, NAMES_END, HEADER_VALUES_END = range(7)
NULL_KEYS, NULL_VALUES, NULL_HEADER_VALUES, NAMES_BEYOND_ASCII, TIMES_CUT, FAULTY_RECORD = range(7, 13)
CURSOR = 13

HEADER_BYTES = 61
_LENGTH_OVERHEAD = 12
_MAGIC = 2
_LOG_APPEND_TIME = 0x08
_MICROS = 1000
_TIME_MAX = (2**63 - 1) // _MICROS  # milliseconds, the most that microseconds can hold
_VARINT_BYTES = 5
_VARLONG_BYTES = 10
_BELOW_SIGN = 2**63 - 1

types: Any = numba_types
_bytes_in = types.Array(types.uint8, 1, "C", readonly=True)
_bytes_out = types.Array(types.uint8, 1, "C")
_ints = types.Array(types.int32, 1, "C")
_longs = types.Array(types.int64, 1, "C")
_table = types.Array(types.int64, 2, "C")
_long = types.int64
_bounds = types.UniTuple(types.int64, 4)


def _inlined(function: _F) -> _F:
    """Compile a part of one of the two functions below together with it."""
    return cast(_F, njit(nogil=True)(function))


def _compiled(signature: Any) -> Callable[[_F], _F]:
    """Compile a function at import, unless that was done before on this kind of processor."""
    return cast(Callable[[_F], _F], njit(signature, nogil=True, cache=True))


# ------------------------------------------------------------------------------------------------- headers


@_inlined
def _big_endian(data: Bytes, at: int, size: int) -> int:
    """Return the signed integer of 1 to 8 bytes at ``at``."""
    value = Int64(0)
    for index in range(at, at + size):
        value = (value << 8) | Int64(data[index])
    unused = 64 - 8 * size
    return (value << unused) >> unused


@_inlined
def _is_displaced(data: Bytes, at: int, end: int, expected: int, next_offset: int) -> bool:
    """Return whether the batch before ``at`` has a base offset that is too high, as the batch at ``at`` shows.

    Base offsets lie outside the CRC.  Skipped damage leaves gaps, so only the next batch can show it: it begins where
    this batch should have been.
    """
    if end - at < HEADER_BYTES or data[at + 16] != _MAGIC:
        return False
    return expected <= _big_endian(data, at, 8) < next_offset


@_inlined
def _is_in_range(row: Longs, bounds: tuple[int, int, int, int]) -> bool:
    """Return whether some of the batch's records may be in range, as far as its header shows."""
    if row[BASE_OFFSET] + row[LAST_DELTA] < bounds[0] or row[MAX_TIMESTAMP] < bounds[2]:
        return False
    return not (row[ATTRIBUTES] & _LOG_APPEND_TIME and row[MAX_TIMESTAMP] > bounds[3])


@_inlined
def _needs(row: Longs, wants: int, bounds: tuple[int, int, int, int]) -> int:
    """Return how much of a batch must be read: its header holds offsets without gaps, and a time that all records
    share."""
    if not _is_in_range(row, bounds):
        return NOTHING
    if wants & _RECORD_FIELDS:
        return RECORDS
    if wants & (TIMESTAMP | TIME_RANGE) and not row[ATTRIBUTES] & _LOG_APPEND_TIME:
        return RECORDS
    is_cut = row[BASE_OFFSET] < bounds[0] or row[BASE_OFFSET] + row[LAST_DELTA] >= bounds[1]
    has_gaps = row[LAST_DELTA] != row[COUNT] - 1
    return RECORDS if has_gaps and (is_cut or wants & OFFSET) else HEADER


@_inlined
def _read_header(data: Bytes, at: int, size: int, row: Longs) -> None:
    row[POSITION] = at
    row[SIZE] = size
    row[BASE_OFFSET] = _big_endian(data, at, 8)
    row[CRC] = _big_endian(data, at + 17, 4) & 0xFFFFFFFF
    row[ATTRIBUTES] = _big_endian(data, at + 21, 2)
    row[LAST_DELTA] = _big_endian(data, at + 23, 4)
    row[BASE_TIMESTAMP] = _big_endian(data, at + 27, 8)
    row[MAX_TIMESTAMP] = _big_endian(data, at + 35, 8)
    row[PRODUCER_ID] = _big_endian(data, at + 43, 8)
    row[COUNT] = _big_endian(data, at + 57, 4)
    row[START] = at + HEADER_BYTES
    row[END] = at + size
    row[ROWS] = 0


@_compiled(types.UniTuple(_long, 4)(_bytes_in, _long, _long, _long, _bounds, _table))
def scan(
    data: Bytes, at: int, expected: int, wants: int, bounds: tuple[int, int, int, int], table: Longs
) -> tuple[int, int, int, int]:
    """Fill rows for the batches from ``at`` on; return (rows, where it stopped, the offset due there, the fault there).

    ``bounds``: first offset, offset to stop at, first time, last time.  ``expected``: least offset of the first batch,
    -1 if unknown.  Stops when the table is full, at a fault, at the end, and after the last offset wanted.  Batches out
    of range have a row too: the header that shows it has yet to be checked by its CRC.
    """
    end = len(data)
    rows = 0
    while rows < len(table) and at < end and expected < bounds[1]:
        if end - at < HEADER_BYTES:
            return rows, at, expected, TORN
        if data[at + 16] != _MAGIC:
            return rows, at, expected, NO_MAGIC
        size = _big_endian(data, at + 8, 4) + _LENGTH_OVERHEAD
        if size < HEADER_BYTES:
            return rows, at, expected, BATCH_LENGTH
        if size > end - at:
            return rows, at, expected, TORN
        row = table[rows]
        _read_header(data, at, size, row)
        next_offset = row[BASE_OFFSET] + row[LAST_DELTA] + 1
        is_behind = row[BASE_OFFSET] < max(expected, 0)
        is_ahead = row[BASE_OFFSET] > expected >= 0
        if is_behind or (is_ahead and _is_displaced(data, at + size, end, expected, next_offset)):
            return rows, at, expected, DISORDER
        if row[BASE_OFFSET] < bounds[1]:
            row[NEEDS] = _needs(row, wants, bounds)
            rows += 1
        expected = max(next_offset, 0)
        at += size
    return rows, at, expected, FINE


# ------------------------------------------------------------------------------------------------- records


@_inlined
def _varint(data: Bytes, at: int, end: int, bytes_max: int) -> tuple[int, int]:
    """Return a zig-zag number and the position after it, which is -1 if no such number ends before ``end``."""
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


@_inlined
def _length(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """Return the length of the bytes that follow (-1: null) and their position, which is -1 if they do not fit."""
    size, at = _varint(data, at, end, _VARINT_BYTES)
    if at < 0 or size < -1 or size > end - at:
        return Int64(-1), -1
    return size, at


@_inlined
def _copy(data: Bytes, at: int, size: int, out: Bytes, out_end: int) -> int:
    """Append ``size`` bytes (-1: null, no bytes) and return the new end.

    Positions are unsigned, since Python's meaning of negative ones would keep LLVM from making wide moves of the loop.
    """
    if size > 0:
        source, target = np.uint64(at), np.uint64(out_end)
        for index in range(np.uint64(size)):
            out[target + index] = data[source + index]
    return out_end + max(size, 0)


@_inlined
def _put_headers(
    data: Bytes,
    at: int,
    stop: int,
    count: int,
    name_ends: Ints,
    names: Bytes,
    value_ends: Ints,
    values: Bytes,
    valid: Bytes,
    cursor: Longs,
) -> tuple[int, int]:
    """Append a record's ``count`` headers; return (position after them, fault)."""
    header, names_end, values_end = cursor[HEADERS_END], cursor[NAMES_END], cursor[HEADER_VALUES_END]
    for _ in range(count):
        size, at = _length(data, at, stop)
        if at < 0 or size < 0:
            return at, HEADER_NAME
        beyond = 0
        for index in range(at, at + size):
            beyond |= data[index] & 0x80
        cursor[NAMES_BEYOND_ASCII] += beyond != 0
        names_end = _copy(data, at, size, names, names_end)
        size, at = _length(data, at + size, stop)
        if at < 0:
            return at, BYTES_LENGTH
        values_end = _copy(data, at, size, values, values_end)
        at += max(size, 0)
        valid[header] = size >= 0
        cursor[NULL_HEADER_VALUES] += size < 0
        header += 1
        name_ends[header] = names_end
        value_ends[header] = values_end
    cursor[HEADERS_END], cursor[NAMES_END], cursor[HEADER_VALUES_END] = header, names_end, values_end
    return at, FINE


@_inlined
def _micros(time: int, cursor: Longs) -> int:
    """Return milliseconds as microseconds; those outside their range become the nearest in it."""
    if -_TIME_MAX <= time <= _TIME_MAX:
        return time * _MICROS
    cursor[TIMES_CUT] += 1
    return _TIME_MAX * _MICROS if time > 0 else -_TIME_MAX * _MICROS


@_inlined
def _put_from_header(
    batch: Longs, wants: int, bounds: tuple[int, int, int, int], fixed: tuple[Longs, Longs], cursor: Longs
) -> None:
    """Append the rows of a batch whose records need not be read; with gaps they are all in range, and only counted."""
    first, count, row = batch[BASE_OFFSET], batch[COUNT], cursor[AT_ROW]
    if batch[LAST_DELTA] == count - 1:
        stop = min(first + count, bounds[1])
        first = max(first, bounds[0])
        count = stop - first
    time = _micros(batch[MAX_TIMESTAMP], cursor) if wants & TIMESTAMP and count > 0 else 0
    for index in range(count):
        if wants & OFFSET:
            fixed[0][row + index] = first + index
        if wants & TIMESTAMP:
            fixed[1][row + index] = time
    cursor[AT_ROW] = row + max(count, 0)


@_inlined
def _put_records(
    data: Bytes,
    batch: Longs,
    wants: int,
    bounds: tuple[int, int, int, int],
    fixed: tuple[Longs, Longs],
    ends: tuple[Ints, ...],
    out: tuple[Bytes, ...],
    valid: tuple[Bytes, ...],
    cursor: Longs,
) -> int:
    """Append the records of one batch that are in range; return a fault, or FINE.

    A long loop over local names: passing arrays to a function in it would count their references, atomically, for each
    record.
    """
    offsets, times = fixed
    key_ends, value_ends, header_ends, name_ends, header_value_ends = ends
    keys, values, names, header_values = out
    valid_keys, valid_values, valid_header_values = valid
    offset_from, offset_to, time_from, time_to = bounds
    at, end = batch[START], batch[END]
    base_offset, delta_max = batch[BASE_OFFSET], batch[LAST_DELTA]
    is_append_time = batch[ATTRIBUTES] & _LOG_APPEND_TIME != 0
    base_time = batch[MAX_TIMESTAMP] if is_append_time else batch[BASE_TIMESTAMP]
    row, keys_end, values_end = cursor[AT_ROW], cursor[KEYS_END], cursor[VALUES_END]
    last_delta = Int64(-1)
    for number in range(batch[COUNT]):
        cursor[FAULTY_RECORD] = number
        length, at = _varint(data, at, end, _VARINT_BYTES)
        if at < 0 or length < 1 or length > end - at:
            return RECORD_LENGTH
        stop = at + length
        time_delta, at = _varint(data, at + 1, stop, _VARLONG_BYTES)
        if at < 0:
            return NUMBER
        delta, at = _varint(data, at, stop, _VARINT_BYTES)
        if at < 0:
            return NUMBER
        if delta <= last_delta or delta > delta_max:
            return OFFSET_DELTA
        last_delta = delta
        offset = base_offset + delta
        time = base_time if is_append_time else base_time + time_delta
        if not (offset_from <= offset < offset_to and time_from <= time <= time_to):
            at = stop
            continue
        if wants & OFFSET:
            offsets[row] = offset
        if wants & TIMESTAMP:
            times[row] = _micros(time, cursor)
        if wants & _RECORD_FIELDS:
            size, at = _length(data, at, stop)
            if at < 0:
                return BYTES_LENGTH
            if wants & KEY:
                keys_end = _copy(data, at, size, keys, keys_end)
                key_ends[row + 1] = keys_end
                valid_keys[row] = size >= 0
                cursor[NULL_KEYS] += size < 0
            at += max(size, 0)
        if wants & (VALUE | HEADERS):
            size, at = _length(data, at, stop)
            if at < 0:
                return BYTES_LENGTH
            if wants & VALUE:
                values_end = _copy(data, at, size, values, values_end)
                value_ends[row + 1] = values_end
                valid_values[row] = size >= 0
                cursor[NULL_VALUES] += size < 0
            at += max(size, 0)
        if wants & HEADERS:
            count, at = _varint(data, at, stop, _VARINT_BYTES)
            if at < 0 or count < 0 or 2 * count > stop - at:  # each has two lengths
                return HEADER_COUNT
            if count:
                at, fault = _put_headers(
                    data,
                    at,
                    stop,
                    count,
                    name_ends,
                    names,
                    header_value_ends,
                    header_values,
                    valid_header_values,
                    cursor,
                )
                if fault:
                    return fault
            if at != stop:
                return RECORD_END
            header_ends[row + 1] = cursor[HEADERS_END]
        row += 1
        at = stop
    cursor[AT_ROW], cursor[KEYS_END], cursor[VALUES_END] = row, keys_end, values_end
    return FINE if at == end else BATCH_END


@_compiled(
    _long(
        _bytes_in,
        _table,
        _long,
        _long,
        _bounds,
        types.UniTuple(_longs, 2),
        types.UniTuple(_ints, 5),
        types.UniTuple(_bytes_out, 4),
        types.UniTuple(_bytes_out, 3),
        _longs,
    )
)
def decode(
    data: Bytes,
    table: Longs,
    stop: int,
    wants: int,
    bounds: tuple[int, int, int, int],
    fixed: tuple[Longs, Longs],
    ends: tuple[Ints, ...],
    out: tuple[Bytes, ...],
    valid: tuple[Bytes, ...],
    cursor: Longs,
) -> int:
    """Decode the batches from the cursor's up to row ``stop`` of the table, whose START and END lie in ``data``.

    Returns FINE, or the fault of the batch at the cursor, which has added nothing to the columns; the caller may go on
    after it.
    """
    before = np.empty(CURSOR, np.int64)
    while cursor[AT_BATCH] < stop:
        batch = table[cursor[AT_BATCH]]
        if batch[NEEDS] == RECORDS:
            before[:] = cursor
            fault = _put_records(data, batch, wants, bounds, fixed, ends, out, valid, cursor)
            if fault:
                before[FAULTY_RECORD] = cursor[FAULTY_RECORD]
                cursor[:] = before
                return fault
            batch[ROWS] = cursor[AT_ROW] - before[AT_ROW]
        elif batch[NEEDS] == HEADER:
            row = cursor[AT_ROW]
            _put_from_header(batch, wants, bounds, fixed, cursor)
            batch[ROWS] = cursor[AT_ROW] - row
        cursor[AT_BATCH] += 1
    return FINE

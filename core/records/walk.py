"""The walk over a batch's records at a produce: does every record agree with the batch's header?

As Kafka's ``LogValidator`` does by iterating ``DefaultRecordBatch``: structure first, to the last byte; then each
record's key, where its topic wants one, and timestamp.  A second walk, over a refused batch only, names its bad
records.  Two implementations give the same verdict for the same bytes:

* ``walk_python``: always there; one to two microseconds a record.
* ``core.records.kernels``: compiled by numba; a microsecond a call and some 10 ns a record, GIL released.
  ``load_compiled`` switches to it; the extra ``fast`` installs numba.

Stricter than Kafka: offset deltas of a produced batch must be 0, 1, 2, …  Kafka keeps (uncompressed) or renumbers
(compressed) a batch whose deltas are not, which no current client sends.  A stored batch may lack records: compaction
took them.
"""

from __future__ import annotations

import importlib.util
from enum import IntEnum
from typing import Any, NamedTuple

from bmq.core import machine_code
from bmq.core.records.batch import NO_TIMESTAMP, wrap_long

_VARINT_BYTES = 5
_VARLONG_BYTES = 10
_LONG_MIN, _LONG_MAX = -(1 << 63), (1 << 63) - 1
_UNSIGNED = (1 << 64) - 1


class Fault(IntEnum):
    """A fault of a record, or of what follows the last one."""

    FINE = 0
    LENGTH = 1
    NUMBER = 2
    OFFSET_DELTA = 3
    FIELD = 4
    HEADERS = 5
    RECORD_END = 6
    BATCH_END = 7
    TIMESTAMP = 8
    KEY = 9


MEANING = {
    Fault.LENGTH: "its length does not fit into the batch",
    Fault.NUMBER: "a number in it does not end, or the bytes end first",
    Fault.OFFSET_DELTA: "its offset delta is not its place in the batch",
    Fault.FIELD: "a key, value or header is longer than the record",
    Fault.HEADERS: "it cannot hold so many headers",
    Fault.RECORD_END: "its fields do not fill its length",
    Fault.BATCH_END: "more bytes follow the last record",
}


class Walk(NamedTuple):
    """A verdict on a batch's records.

    ``number`` is that of the faulty record, or the count if all are right; ``max_timestamp`` the largest of the records
    seen, at least -1 (none), as Kafka counts it.
    """

    fault: int
    number: int
    max_timestamp: int


class BadRecord(NamedTuple):
    """A record that a batch of right structure is refused for: it lacks its key, or its timestamp (ms) is wrong."""

    number: int
    lacks_key: bool
    timestamp: int


def walk_python(
    data: bytes,
    count: int,
    base_timestamp: int,
    earliest: int,
    latest: int,
    needs_key: bool = False,
    missing: int = 0,
) -> Walk:
    """Walk ``count`` records in ``data``.  Their timestamps (ms) must be in [earliest, latest], or -1 for none.

    ``needs_key``: each record must have a key, of any length.  The fault is TIMESTAMP if a record that has its key has
    a wrong timestamp, else KEY.  ``missing``: the number of records that the batch has lost; the offset deltas then
    rise, and pass over so many numbers at most.
    """
    at, end = 0, len(data)
    max_timestamp, untimely, number = NO_TIMESTAMP, -1, 0
    keyless = last_keyless = -1
    due = 0
    key_and_value = (needs_key, False)
    try:
        for number in range(count):
            length = data[at]
            at += 1
            if length < 0x80:
                length = (length >> 1) ^ -(length & 1)
            else:
                length, at = _varint(data, at - 1, _VARINT_BYTES)
            if length < 0 or length > end - at:
                return Walk(Fault.LENGTH, number, max_timestamp)
            stop = at + length
            delta = data[at + 1]
            at += 2
            if delta < 0x80:
                delta = (delta >> 1) ^ -(delta & 1)
            else:
                delta, at = _varint(data, at - 1, _VARLONG_BYTES)
            timestamp = base_timestamp + delta
            delta, at = _varint(data, at, _VARINT_BYTES)
            if delta != due:
                if delta < due or delta > number + missing:
                    return Walk(Fault.OFFSET_DELTA, number, max_timestamp)
                due = delta
            due += 1
            for is_needed in key_and_value:
                size = data[at]
                at += 1
                if size < 0x80:
                    size = (size >> 1) ^ -(size & 1)
                else:
                    size, at = _varint(data, at - 1, _VARINT_BYTES)
                if size > 0:
                    if size > stop - at:
                        return Walk(Fault.FIELD, number, max_timestamp)
                    at += size
                elif size < -1 or size > stop - at:
                    return Walk(Fault.FIELD, number, max_timestamp)
                elif size < 0 and is_needed:
                    last_keyless = number
                    if keyless < 0:
                        keyless = number
            headers = data[at]
            at += 1
            if headers:
                headers, at = _varint(data, at - 1, _VARINT_BYTES)
                if headers < 0 or 2 * headers > stop - at:
                    return Walk(Fault.HEADERS, number, max_timestamp)
                for _ in range(headers):
                    size, at = _varint(data, at, _VARINT_BYTES)
                    if size < 0 or size > stop - at:
                        return Walk(Fault.FIELD, number, max_timestamp)
                    size, at = _varint(data, at + size, _VARINT_BYTES)
                    if size < -1 or size > stop - at:
                        return Walk(Fault.FIELD, number, max_timestamp)
                    if size > 0:
                        at += size
            elif at > stop:
                return Walk(Fault.HEADERS, number, max_timestamp)
            if at != stop:
                return Walk(Fault.RECORD_END, number, max_timestamp)
            if not _LONG_MIN <= timestamp <= _LONG_MAX:
                timestamp = wrap_long(timestamp)
            is_outside = (timestamp > latest or timestamp < earliest) and timestamp != NO_TIMESTAMP
            if is_outside and untimely < 0 and last_keyless != number:
                untimely = number
            if timestamp > max_timestamp:
                max_timestamp = timestamp
    except IndexError:
        return Walk(Fault.NUMBER, number, max_timestamp)
    if at != end:
        return Walk(Fault.BATCH_END, count, max_timestamp)
    if untimely >= 0:
        return Walk(Fault.TIMESTAMP, untimely, max_timestamp)
    if keyless >= 0:
        return Walk(Fault.KEY, keyless, max_timestamp)
    return Walk(Fault.FINE, count, max_timestamp)


def bad_records_python(
    data: bytes, count: int, base_timestamp: int, earliest: int, latest: int, needs_key: bool, limit: int
) -> tuple[int, list[BadRecord]]:
    """Return how many records lack a key or have a wrong timestamp, and the first ``limit`` of these records.

    The arguments are those of ``walk_python``, which must have found TIMESTAMP or KEY: the structure is right.
    """
    at = total = 0
    found: list[BadRecord] = []
    for number in range(count):
        length, at = _varint(data, at, _VARINT_BYTES)
        stop = at + length
        delta, at = _varint(data, at + 1, _VARLONG_BYTES)
        _, at = _varint(data, at, _VARINT_BYTES)
        size, at = _varint(data, at, _VARINT_BYTES)
        timestamp = wrap_long(base_timestamp + delta)
        lacks_key = needs_key and size < 0
        if lacks_key or (timestamp != NO_TIMESTAMP and not earliest <= timestamp <= latest):
            total += 1
            if len(found) < limit:
                found.append(BadRecord(number, lacks_key, timestamp))
        at = stop
    return total, found


def _varint(data: bytes, at: int, bytes_max: int) -> tuple[int, int]:
    """Return a zig-zag number and the position behind it.  Raises IndexError if no such number is there."""
    value = shift = 0
    for index in range(at, at + bytes_max):
        byte = data[index]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            value &= _UNSIGNED
            return (value >> 1) ^ -(value & 1), index + 1
        shift += 7
    raise IndexError


# ---------------------------------------------------------------------------------------- the implementation in use


class Walker:
    """The walk of one process: compiled from ``load_compiled`` on, in Python before and without numba."""

    __slots__ = ("_compiled", "_compiled_bad_records", "_from_buffer", "_np", "_uint8")

    def __init__(self) -> None:
        self._compiled: Any = None
        self._compiled_bad_records: Any = None
        self._from_buffer: Any = None
        self._np: Any = None

    @property
    def is_compiled(self) -> bool:
        return self._compiled is not None

    def load_compiled(self) -> bool:
        """Load the compiled walk.  Return False if numba is not installed.

        Takes half a second, and seconds the first time.
        """
        if self._compiled is None and importlib.util.find_spec("numba") is not None:
            import numpy as np

            kernels: Any = machine_code.load("bmq.core.records.kernels")
            self._from_buffer = np.frombuffer
            self._uint8 = np.uint8
            self._np = np
            self._compiled_bad_records = kernels.bad_records
            self._compiled = kernels.walk
        return self._compiled is not None

    def walk(
        self,
        data: memoryview,
        count: int,
        base_timestamp: int,
        earliest: int,
        latest: int,
        needs_key: bool = False,
        missing: int = 0,
    ) -> Walk:
        """Walk ``count`` records: see ``walk_python``."""
        if self._compiled is None:
            return walk_python(bytes(data), count, base_timestamp, earliest, latest, needs_key, missing)
        records = self._from_buffer(data, self._uint8)
        return Walk(*self._compiled(records, count, base_timestamp, earliest, latest, needs_key, missing))

    def bad_records(
        self,
        data: memoryview,
        count: int,
        base_timestamp: int,
        earliest: int,
        latest: int,
        needs_key: bool,
        limit: int,
    ) -> tuple[int, list[BadRecord]]:
        """Return how many records are bad, and the first ``limit`` of them: see ``bad_records_python``."""
        if self._compiled is None:
            return bad_records_python(bytes(data), count, base_timestamp, earliest, latest, needs_key, limit)
        records = self._from_buffer(data, self._uint8)
        found = self._np.empty((limit, 3), self._np.int64)
        total = self._compiled_bad_records(records, count, base_timestamp, earliest, latest, needs_key, found)
        rows = found[: min(total, limit)].tolist()
        return int(total), [BadRecord(number, bool(lacks_key), timestamp) for number, lacks_key, timestamp in rows]


WALKER = Walker()
"""The walker of this process."""

"""Columns of one run of batches: memory for the kernels to fill, and Arrow arrays over it without a copy."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bmq.spark.decoding import compiled

if TYPE_CHECKING:
    from bmq.spark.decoding import kernels
else:
    kernels = compiled.load()

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")

ROWS_MAX = 64 << 10
"""Rows of a returned record batch: the cost of a batch in Python and in Spark is small beside so many rows."""
BYTES_MAX = 8 << 20
"""Bytes of records in a returned record batch, unless one record is larger.  More does not make Spark faster, and what
was read, decompressed and copied should still lie in the processor's cache."""

_HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
_TYPES = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(_HEADER),
}
_WANTS = {
    "key": kernels.KEY,
    "value": kernels.VALUE,
    "offset": kernels.OFFSET,
    "timestamp": kernels.TIMESTAMP,
    "headers": kernels.HEADERS,
}


def schema(columns: tuple[str, ...]) -> pa.Schema:
    """Return the types of ``columns``, which are those of Spark's Kafka source.  Raises ValueError if one does not
    exist."""
    if unknown := [name for name in columns if name not in _TYPES]:
        raise ValueError(f"no column {', '.join(map(repr, unknown))}; there are {', '.join(COLUMNS)}")
    return pa.schema([(name, _TYPES[name]) for name in columns])


def wants(columns: tuple[str, ...]) -> int:
    """Return the columns as the kernels' bits; columns that are the same in all rows are not the kernels'."""
    return sum(_WANTS.get(name, 0) for name in set(columns))


class Memory:
    """Memory for ``rows`` rows, of ``size`` bytes of records, of the columns wanted.

    Bytes are reserved for each column as if it held all: pages that nothing is written to cost nothing.
    """

    __slots__ = ("bytes", "cursor", "ends", "fixed", "valid")

    def __init__(self, wanted: int, rows: int, size: int) -> None:
        key, value, headers = wanted & kernels.KEY, wanted & kernels.VALUE, wanted & kernels.HEADERS
        entries = size // 2 + 1 if headers else 0  # a header has two lengths, so two bytes at least
        self.cursor = np.zeros(kernels.CURSOR, np.int64)
        self.fixed = (
            _room(rows if wanted & kernels.OFFSET else 0, np.int64),
            _room(rows if wanted & kernels.TIMESTAMP else 0, np.int64),
        )
        self.ends = (
            _ends(rows if key else 0),
            _ends(rows if value else 0),
            _ends(rows if headers else 0),
            _ends(entries),
            _ends(entries),
        )
        self.bytes = tuple(_room(size if column else 0, np.uint8) for column in (key, value, headers, headers))
        self.valid = tuple(_room(count, np.uint8) for count in (rows if key else 0, rows if value else 0, entries))

    @property
    def rows(self) -> int:
        """The number of rows filled."""
        return int(self.cursor[kernels.AT_ROW])

    @property
    def times_cut(self) -> int:
        """The number of timestamps outside Arrow's range, which became the nearest in it."""
        return int(self.cursor[kernels.TIMES_CUT])

    def keys(self) -> pa.Array:
        """Return the keys, without a copy."""
        nulls = self.cursor[kernels.NULL_KEYS]
        return _binary(pa.binary(), self.rows, self.ends[0], self.bytes[0], self.valid[0], nulls)

    def values(self) -> pa.Array:
        """Return the values, without a copy."""
        nulls = self.cursor[kernels.NULL_VALUES]
        return _binary(pa.binary(), self.rows, self.ends[1], self.bytes[1], self.valid[1], nulls)

    def offsets(self) -> pa.Array:
        """Return the offsets, without a copy."""
        return _fixed(pa.int64(), self.rows, self.fixed[0])

    def timestamps(self) -> pa.Array:
        """Return the timestamps in microseconds, without a copy."""
        return _fixed(_TYPES["timestamp"], self.rows, self.fixed[1])

    def headers(self) -> tuple[pa.Array, int]:
        """Return the headers, and how many names were not UTF-8.  A row without any is null, as in Spark's Kafka
        source."""
        count = int(self.cursor[kernels.HEADERS_END])
        if not count:
            return pa.nulls(self.rows, _TYPES["headers"]), 0
        names = _binary(pa.string(), count, self.ends[3], self.bytes[2], self.valid[2], 0)
        replaced = 0
        if self.cursor[kernels.NAMES_BEYOND_ASCII]:
            names, replaced = _as_utf8(names)
        nulls = self.cursor[kernels.NULL_HEADER_VALUES]
        values = _binary(pa.binary(), count, self.ends[4], self.bytes[3], self.valid[2], nulls)
        entries = pa.StructArray.from_arrays([names, values], fields=list(_HEADER))
        ends = self.ends[2][: self.rows + 1]
        present = np.diff(ends) > 0
        empty = self.rows - int(np.count_nonzero(present))
        buffers = [_bits(present) if empty else None, pa.py_buffer(ends)]
        column = pa.Array.from_buffers(_TYPES["headers"], self.rows, buffers, empty, children=[entries])
        return column, replaced

    def cuts(self) -> Iterator[tuple[int, int]]:
        """Yield (first row, count) of pieces within ``ROWS_MAX`` and ``BYTES_MAX``.

        It is one piece, unless a single batch is larger than that.  A single row may exceed ``BYTES_MAX``.
        """
        rows, filled = self.rows, self.cursor
        used = filled[kernels.KEYS_END] + filled[kernels.VALUES_END]
        used += filled[kernels.NAMES_END] + filled[kernels.HEADER_VALUES_END]
        if rows <= ROWS_MAX and used <= BYTES_MAX:
            yield 0, rows
            return
        total = self._total_ends()
        first = 0
        while first < rows:
            fitting = int(np.searchsorted(total, total[first] + BYTES_MAX, side="right")) - 1
            stop = min(max(fitting, first + 1), first + ROWS_MAX, rows)
            yield first, stop - first
            first = stop

    def _total_ends(self) -> npt.NDArray[np.int64]:
        """Return the end of each row's bytes, over all columns."""
        total = np.zeros(self.rows + 1, np.int64)
        for ends in self.ends[:2]:
            if len(ends) > 1:
                total += ends[: self.rows + 1]
        if len(self.ends[2]) > 1:
            rows = self.ends[2][: self.rows + 1]
            total += self.ends[3][rows]
            total += self.ends[4][rows]
        return total


class Constants:
    """Columns that are the same in all rows, made at their first use and cut to length."""

    def __init__(self, topic: str, partition: int) -> None:
        self._name = topic.encode()
        self._number = partition

    def topic(self, rows: int) -> pa.Array:
        """Return the topic's name, ``rows`` times; ROWS_MAX at most, here and below."""
        return self._topic.slice(0, rows)

    def partition(self, rows: int) -> pa.Array:
        """Return the partition's number, ``rows`` times."""
        return self._partition.slice(0, rows)

    def timestamp_type(self, is_append_time: bool, rows: int) -> pa.Array:
        """Return Kafka's number of the timestamp type (0: CreateTime, 1: LogAppendTime), ``rows`` times."""
        return self._types[is_append_time].slice(0, rows)

    @cached_property
    def _topic(self) -> pa.Array:
        ends = np.arange(ROWS_MAX + 1, dtype=np.int32) * np.int32(len(self._name))
        buffers = [None, pa.py_buffer(ends), pa.py_buffer(self._name * ROWS_MAX)]
        return pa.Array.from_buffers(pa.string(), ROWS_MAX, buffers, 0)

    @cached_property
    def _partition(self) -> pa.Array:
        return _repeated(self._number)

    @cached_property
    def _types(self) -> tuple[pa.Array, pa.Array]:
        return _repeated(0), _repeated(1)


def _repeated(value: int) -> pa.Array:
    return pa.array(np.full(ROWS_MAX, value, np.int32))


def _room(count: int, kind: type[np.generic]) -> npt.NDArray[Any]:
    """Return uninitialised memory from Arrow's pool, which keeps pages for reuse, where malloc gives large ones
    back."""
    return np.frombuffer(pa.allocate_buffer(count * np.dtype(kind).itemsize), kind)


def _ends(count: int) -> npt.NDArray[np.int32]:
    ends = _room(count + 1, np.int32)
    ends[0] = 0
    return ends


def _fixed(kind: pa.DataType, rows: int, data: npt.NDArray[np.int64]) -> pa.Array:
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(data[:rows])], 0)


def _binary(
    kind: pa.DataType,
    rows: int,
    ends: npt.NDArray[np.int32],
    data: npt.NDArray[np.uint8],
    valid: npt.NDArray[np.uint8],
    nulls: int,
) -> pa.Array:
    buffers = [_bits(valid[:rows]) if nulls else None, pa.py_buffer(ends[: rows + 1]), pa.py_buffer(data[: ends[rows]])]
    return pa.Array.from_buffers(kind, rows, buffers, int(nulls))


def _bits(valid: npt.NDArray[Any]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


def _as_utf8(names: pa.Array) -> tuple[pa.Array, int]:
    """Return names as Kafka's Java clients show them, with U+FFFD for bytes that are not UTF-8, and how many have
    those."""
    try:
        names.validate(full=True)
    except pa.ArrowInvalid:
        raw = names.cast(pa.binary(), safe=False).to_pylist()
    else:
        return names, 0
    texts = [name.decode("utf-8", "replace") for name in raw]
    changed = sum(text.encode() != name for text, name in zip(texts, raw, strict=True))
    return pa.array(texts, pa.string()), changed

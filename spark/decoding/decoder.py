"""A decoder of Kafka's record batches, as they lie in a segment, to Arrow, without a Python object for a record.

Bytes pass through three steps: ``scan`` reads the headers of many batches into a table; Python checks each batch once
(CRC, transactions) and decompresses it; ``decode`` copies the records of many batches at once into columns.  Work for a
batch is done in Python, work for a record in compiled code.  Columns that are not wanted cost nothing: a count reads
headers only, and so do offsets without gaps.

Usable alone::

    table = read_segment("00000000000000000000-00000001-0000.log")
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from crc32c import crc32c

from bmq.core.errors import FormatError
from bmq.core.records.batch import (
    CODEC_MASK,
    CONTROL,
    CRC_START,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    NO_PRODUCER_ID,
    TRANSACTIONAL,
    Batch,
)
from bmq.core.records.control import Marker, marker_of
from bmq.core.records.isolation import Aborted
from bmq.core.records.reader import RECORDS_BYTES_MAX
from bmq.spark.decoding import compiled
from bmq.spark.decoding.columns import BYTES_MAX, COLUMNS, ROWS_MAX, Constants, Memory, schema, wants
from bmq.spark.decoding.damage import FAULTS, Corrupt, CorruptSegment, Damage, misplaced, next_batch
from bmq.spark.decoding.scratch import Scratch
from bmq.storage.layout import parse_segment
from bmq.storage.segment import decode_idx

if TYPE_CHECKING:
    from bmq.spark.decoding import kernels
else:
    kernels = compiled.load()

__all__ = ("COLUMNS", "BatchDecoder", "CorruptSegment", "DecodeOptions", "read_segment", "schema")

Buffer: TypeAlias = "bytes | bytearray | memoryview | pa.Buffer"

OFFSET_MAX = 2**63 - 1
BATCHES_MAX = 4096
"""Rows of the table of batches: those of a segment of small batches that are held before any is decoded."""

_RUN_BYTES_MIN = 1 << 20
"""Size in bytes below which a run of decompressed batches takes in uncompressed batches by a copy. So a topic of both
kinds does not become many small record batches."""
_RECORD_BYTES_MIN = 7  # length, attributes, timestamp, offset, key, value and headers of an empty one
_TIME_MIN = -(2**63)
_TIME_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeOptions:
    """Options of decoding a stretch of batches."""

    columns: tuple[str, ...]
    """Columns among ``COLUMNS``, in the order wanted; none gives batches that only have a number of rows."""
    start_offset: int = 0
    end_offset: int = OFFSET_MAX
    """The first offset that is not wanted.  Bytes after the last batch below it are not read."""
    committed: bool = True
    """Leave out aborted transactions.  Control batches are never records."""
    start_timestamp: int | None = None
    """Milliseconds; records before it are left out."""
    end_timestamp: int | None = None
    """Milliseconds; records at or after it are left out."""
    permissive: bool = False
    """Skip and count corrupt batches; without it they raise CorruptSegment."""
    batch_bytes_max: int = RECORDS_BYTES_MAX
    """Bytes; a batch that decompresses to more is corrupt."""


class _Chunk(NamedTuple):
    """Bytes of a segment that begin at ``position`` of the file, for Python and for the kernels."""

    view: memoryview
    array: npt.NDArray[np.uint8]
    position: int


class BatchDecoder:
    """A decoder of the batches of one file, in order, in as many parts as the caller likes.

    ``corrupt`` counts what was skipped; ``replaced`` the values that Arrow cannot hold: header names that are not UTF-8
    have U+FFFD in them, times outside Arrow's range (past the year 294,246) become the nearest in it.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        options: DecodeOptions,
        *,
        where: str,
        aborted: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Create a decoder.

        ``aborted``: (producer id, first offset) of the transactions whose abort marker is yet to come.  ``where`` names
        the file in errors.
        """
        self.corrupt = Corrupt()
        self.replaced = 0
        self._where = where
        self._options = options
        self._schema = schema(options.columns)
        first, last = options.start_timestamp, options.end_timestamp
        self._bounds = (
            options.start_offset,
            options.end_offset,
            _TIME_MIN if first is None else first,
            _TIME_MAX if last is None else last - 1,
        )
        is_timed = first is not None or last is not None
        self._wants = wants(options.columns) | (kernels.TIME_RANGE if is_timed else 0)
        self._aborted = Aborted(aborted if options.committed else ())
        self._constants = Constants(topic, partition)
        self._scratch = Scratch(BYTES_MAX, options.batch_bytes_max)
        self._table = np.empty((BATCHES_MAX, kernels.FIELDS), np.int64)
        self._due = -1  # the least offset that the next batch may have

    def decode(self, data: Buffer, position: int) -> Iterator[pa.RecordBatch]:
        """Yield the records in ``data``, which is whole batches; its first byte is at ``position`` of the file.

        Record batches are copies, of at most ``ROWS_MAX`` rows and ``BYTES_MAX`` bytes (or one record), none empty.
        Raises CorruptSegment after all that precedes the place it names.
        """
        view = memoryview(data).cast("B")
        if not view:
            return
        chunk = _Chunk(view, np.frombuffer(view, np.uint8), position)
        at = 0
        while at < len(view) and self._due < self._options.end_offset:
            before = self._due
            rows, at, self._due, fault = kernels.scan(chunk.array, at, before, self._wants, self._bounds, self._table)
            headers, damage = self._judge(view, rows, before)
            if damage is None and fault:
                damage = misplaced(view, at, fault, self._due)
            yield from self._runs(chunk, headers)
            if damage is not None:
                self._report(chunk, damage)
                at, self._due = damage.stop, damage.due

    # --------------------------------------------------------------------------------------------- a batch

    def _judge(self, view: memoryview, rows: int, due: int) -> tuple[list[list[int]], Damage | None]:
        """Return the table's rows up to the first damage, and that damage, if any.

        Rows without wanted records are emptied.  ``due``: the least offset that the first batch may have.
        """
        headers: list[list[int]] = self._table[:rows].tolist()
        for index, header in enumerate(headers):
            position, base_offset = header[kernels.POSITION], header[kernels.BASE_OFFSET]
            stop = position + header[kernels.SIZE]
            if crc32c(view[position + CRC_START : stop]) != header[kernels.CRC]:
                stop = next_batch(view, position, due)
                return headers[:index], Damage(position, stop, base_offset, due, "the batch's CRC does not match")
            try:
                is_seen = self._is_seen(view, header)
            except FormatError as fault:
                return headers[:index], Damage(position, stop, base_offset, due, str(fault))
            if not is_seen:
                self._empty(index, header)
            due = base_offset + header[kernels.LAST_DELTA] + 1
        return headers, None

    def _is_seen(self, view: memoryview, header: list[int]) -> bool:
        """Return whether a right batch holds wanted records.  Raises FormatError if its fields contradict one
        another."""
        count, last_delta, attributes = header[kernels.COUNT], header[kernels.LAST_DELTA], header[kernels.ATTRIBUTES]
        if not 0 <= count <= last_delta + 1:
            raise FormatError(f"{count} records do not fit last offset delta {last_delta}")
        is_plain = not attributes & CODEC_MASK
        if not count and not is_plain and not attributes & CONTROL:
            return False  # a compressed nothing is some bytes, which Kafka's consumers do not look at either
        _check_count(count, header[kernels.SIZE] - HEADER_BYTES if is_plain else self._options.batch_bytes_max)
        if not attributes & (TRANSACTIONAL | CONTROL):
            return header[kernels.NEEDS] != kernels.NOTHING
        producer_id, last_offset = header[kernels.PRODUCER_ID], header[kernels.BASE_OFFSET] + last_delta
        if attributes & CONTROL:
            position, size = header[kernels.POSITION], header[kernels.SIZE]
            if self._options.committed and marker_of(Batch(view[position : position + size])) is Marker.ABORT:
                self._aborted.end(producer_id, last_offset)
            return False
        is_hidden = producer_id != NO_PRODUCER_ID and self._aborted.hides(producer_id, last_offset)
        return not is_hidden and header[kernels.NEEDS] != kernels.NOTHING

    def _empty(self, index: int, header: list[int]) -> None:
        """Mark the batch as having no records, so that it is left out."""
        header[kernels.COUNT] = 0
        header[kernels.NEEDS] = kernels.NOTHING
        self._table[index, kernels.NEEDS] = kernels.NOTHING

    # --------------------------------------------------------------------------------------------- runs of batches

    def _runs(self, chunk: _Chunk, headers: list[list[int]]) -> Iterator[pa.RecordBatch]:
        """Decode together as many batches as make one record batch and lie in one buffer."""
        source, first, rows, size = chunk.array, 0, 0, 0
        for index, header in enumerate(headers):
            place, start, end = source, 0, 0
            if header[kernels.NEEDS] == kernels.RECORDS and header[kernels.COUNT]:
                try:
                    is_small = size < _RUN_BYTES_MIN
                    place, start, end = self._place(chunk, index, header, source if is_small else chunk.array)
                except FormatError as fault:
                    if not self._options.permissive:  # first the records before it
                        yield from self._run(chunk, source, first, index, rows, size)
                    self._report(chunk, Damage.of(header, str(fault)))
                    self._empty(index, header)
            count = header[kernels.COUNT]
            if place is not source or rows + count > ROWS_MAX or size + end - start > BYTES_MAX:
                yield from self._run(chunk, source, first, index, rows, size)
                source, first, rows, size = place, index, 0, 0
            rows += count
            size += end - start
        yield from self._run(chunk, source, first, len(headers), rows, size)

    def _place(
        self, chunk: _Chunk, index: int, header: list[int], source: npt.NDArray[np.uint8]
    ) -> tuple[npt.NDArray[np.uint8], int, int]:
        """Return (buffer, start, end) of the batch's records, decompressed.

        An uncompressed batch is copied to the others of its run if those are not in the chunk.  Raises FormatError.
        """
        start, end = header[kernels.START], header[kernels.END]
        codec = header[kernels.ATTRIBUTES] & CODEC_MASK
        if not codec and source is chunk.array:
            return chunk.array, start, end
        source, start, end = self._scratch.put(codec, chunk.view[start:end])
        _check_count(header[kernels.COUNT], end - start)
        self._table[index, kernels.START] = start
        self._table[index, kernels.END] = end
        return source, start, end

    def _run(
        self, chunk: _Chunk, source: npt.NDArray[np.uint8], first: int, stop: int, rows: int, size: int
    ) -> Iterator[pa.RecordBatch]:
        """Decode rows [first, stop) of the table, whose records are ``size`` bytes in ``source``."""
        if not rows:
            return
        memory = Memory(self._wants, rows, size)
        cursor = memory.cursor
        cursor[kernels.AT_BATCH] = first
        while True:
            fault = kernels.decode(
                source,
                self._table,
                stop,
                self._wants,
                self._bounds,
                memory.fixed,
                memory.ends,
                memory.bytes,
                memory.valid,
                cursor,
            )
            if fault == kernels.FINE or not self._options.permissive:
                break
            self._report(chunk, self._faulty_record(cursor, fault))
            cursor[kernels.AT_BATCH] += 1
        self.replaced += memory.times_cut
        if memory.rows:
            yield from self._record_batches(memory, self._table[first : cursor[kernels.AT_BATCH]])
        if fault != kernels.FINE:
            self._report(chunk, self._faulty_record(cursor, fault))

    def _faulty_record(self, cursor: npt.NDArray[np.int64], fault: int) -> Damage:
        header = self._table[cursor[kernels.AT_BATCH]].tolist()
        number, count = cursor[kernels.FAULTY_RECORD], header[kernels.COUNT]
        return Damage.of(header, f"record {number} of {count}: {FAULTS[fault]}")

    def _record_batches(self, memory: Memory, batches: npt.NDArray[np.int64]) -> Iterator[pa.RecordBatch]:
        columns = {name: self._column(name, memory) for name in self._options.columns}
        is_append_time = batches[:, kernels.ATTRIBUTES] & LOG_APPEND_TIME != 0
        is_mixed = is_append_time.any() and not is_append_time.all()
        for first, count in memory.cuts():
            arrays = []
            for name, column in columns.items():
                if column is not None:
                    arrays.append(column.slice(first, count))
                elif name == "topic":
                    arrays.append(self._constants.topic(count))
                elif name == "partition":
                    arrays.append(self._constants.partition(count))
                elif is_mixed:
                    types = np.repeat(is_append_time.astype(np.int32), batches[:, kernels.ROWS])
                    arrays.append(pa.array(types[first : first + count]))
                else:
                    arrays.append(self._constants.timestamp_type(bool(is_append_time[0]), count))
            yield _record_batch(arrays, self._schema, count)

    def _column(self, name: str, memory: Memory) -> pa.Array | None:
        """Return the decoded column; None if it is the same in all rows."""
        if name == "key":
            return memory.keys()
        if name == "value":
            return memory.values()
        if name == "offset":
            return memory.offsets()
        if name == "timestamp":
            return memory.timestamps()
        if name == "headers":
            column, replaced = memory.headers()
            self.replaced += replaced
            return column
        return None

    # --------------------------------------------------------------------------------------------- damage

    def _report(self, chunk: _Chunk, damage: Damage) -> None:
        """Count the damage if permissive, else raise CorruptSegment."""
        if not self._options.permissive:
            raise CorruptSegment(self._where, chunk.position + damage.at, damage.offset, damage.fault)
        self.corrupt.batches += 1
        self.corrupt.bytes += damage.stop - damage.at


def _check_count(count: int, size: int) -> None:
    """Raise FormatError if a batch of ``size`` bytes cannot hold ``count`` records: memory is reserved for so many
    rows."""
    if count * _RECORD_BYTES_MIN > size:
        raise FormatError(f"{count} records do not fit {size} bytes")


def _record_batch(arrays: list[pa.Array], wanted: pa.Schema, rows: int) -> pa.RecordBatch:
    if arrays:
        return pa.RecordBatch.from_arrays(arrays, schema=wanted)
    return pa.RecordBatch.from_struct_array(pa.StructArray.from_buffers(pa.struct([]), rows, [None]))


# ------------------------------------------------------------------------------------------------- a file


def read_segment(
    source: str | os.PathLike[str] | Buffer,
    options: DecodeOptions | None = None,
    *,
    topic: str | None = None,
    partition: int | None = None,
    aborted: Sequence[tuple[int, int]] | None = None,
) -> pa.Table:
    """Return a segment as a table, with all columns unless ``options`` say otherwise.  ``source``: a path or the bytes.

    For a path, topic and partition are by default those of its folders, ``<topic>/<topic id>/<partition>/``, and the
    aborted transactions those of the ``.idx`` beside it.  An open segment has none: its last records may belong to a
    transaction that is not decided.  Raises CorruptSegment, and FormatError if the ``.idx`` is damaged.
    """
    options = options or DecodeOptions(columns=COLUMNS)
    where = "<bytes>"
    data: Buffer
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        where = str(path)
        topic, partition = _named(path, topic, partition)
        aborted = _aborted_beside(path) if aborted is None else aborted
        with pa.memory_map(where) as file:
            data = file.read_buffer()
    else:
        data = source
    decoder = BatchDecoder(topic or "", partition or 0, options, where=where, aborted=aborted or ())
    return pa.Table.from_batches(decoder.decode(data, 0), schema=schema(options.columns))


def _named(path: Path, topic: str | None, partition: int | None) -> tuple[str | None, int | None]:
    folders = path.absolute().parent.parts
    if parse_segment(path.name) is None or len(folders) < 3 or not folders[-1].isdecimal():
        return topic, partition
    return folders[-3] if topic is None else topic, int(folders[-1]) if partition is None else partition


def _aborted_beside(path: Path) -> list[tuple[int, int]]:
    idx = path.with_suffix(".idx")
    if not idx.exists():
        return []
    return [(transaction.producer_id, transaction.first_offset) for transaction in decode_idx(idx.read_bytes()).aborted]

"""``spark.read.format("bmq-batches")``: a row for each record batch of a topic, from its header alone.

It takes the options of ``format("bmq")``, and shows the batches that ``format("bmq")`` hides: control batches and
batches of aborted transactions.  It also shows the batches from which compaction took records.  Only the records of
control batches are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from bmq.core.errors import FormatError
from bmq.core.records.batch import CODEC_MASK, CODECS, Batch
from bmq.core.records.control import Marker, marker_of
from bmq.core.records.cursor import read_batches
from bmq.spark.options import ReadOptions
from bmq.spark.planning.discover import relocate
from bmq.spark.planning.input_partition import BmqPartition
from bmq.spark.planning.roots import with_namenodes
from bmq.spark.planning.slices import Slice
from bmq.spark.reading.batch_reader import planned
from bmq.spark.reading.ranged_reader import RangedReader, ReadPolicy
from bmq.spark.reading.storage_loop import storage_loop
from bmq.spark.source import require_nullable

SCHEMA = (
    "partition int, base_offset bigint, last_offset bigint, records bigint, bytes bigint, base_timestamp bigint,"
    " max_timestamp timestamp, codec string, producer_id bigint, producer_epoch int, base_sequence int,"
    " is_transactional boolean, marker string"
)
"""``marker`` is null unless the batch is a control batch: abort, commit or other.  ``max_timestamp`` is null if the
batch has none."""
_ARROW = pa.schema(
    [
        ("partition", pa.int32()),
        ("base_offset", pa.int64()),
        ("last_offset", pa.int64()),
        ("records", pa.int64()),
        ("bytes", pa.int64()),
        ("base_timestamp", pa.int64()),
        ("max_timestamp", pa.timestamp("us", tz="UTC")),
        ("codec", pa.string()),
        ("producer_id", pa.int64()),
        ("producer_epoch", pa.int32()),
        ("base_sequence", pa.int32()),
        ("is_transactional", pa.bool_()),
        ("marker", pa.string()),
    ]
)
ROWS_MAX = 16_384
"""Rows of a record batch."""
_TIME_MAX_MS = 2**63 // 1000 - 1


class BatchHeaders(DataSource):
    """Spark's data source of a topic's record batches."""

    @classmethod
    def name(cls) -> str:
        return "bmq-batches"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        require_nullable(schema)
        return _Reader(with_namenodes(ReadOptions.parse(self.options)))


class _Reader(DataSourceReader):
    """A reader that plans as the batch source does and reads headers, for which nothing is compiled."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        return planned(self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, BmqPartition):  # Spark's own, if there is nothing to read
            return iter(())
        return self._read(partition)

    def _read(self, partition: BmqPartition) -> Iterator[pa.RecordBatch]:
        io = storage_loop()
        fs = io.filesystem(self._options.root, token=partition.token)
        policy = ReadPolicy(
            find=lambda piece: io.run(relocate(fs, piece)),
            fail_on_data_loss=self._options.fail_on_data_loss,
            permissive=self._options.permissive,
        )
        rows: list[tuple[Any, ...]] = []
        for piece, run in RangedReader(io, fs, policy).runs(partition.slices):
            for batch in read_batches(run.data):
                if batch.next_offset > piece.start and batch.base_offset < piece.end:
                    rows.append(_row(piece, batch))
                if len(rows) == ROWS_MAX:
                    yield _as_arrow(rows)
                    rows = []
        if rows:
            yield _as_arrow(rows)


def _row(piece: Slice, batch: Batch) -> tuple[Any, ...]:
    time = batch.max_timestamp
    return (
        piece.partition,
        batch.base_offset,
        batch.last_offset,
        batch.count,
        batch.size,
        batch.base_timestamp,
        time * 1000 if 0 <= time <= _TIME_MAX_MS else None,
        CODECS[batch.attributes & CODEC_MASK] if batch.attributes & CODEC_MASK < len(CODECS) else "unknown",
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        batch.is_transactional,
        _marker(batch) if batch.is_control else None,
    )


def _marker(batch: Batch) -> str:
    """Return a control batch's type; "other" if its record cannot be read, which the read of the records reports."""
    try:
        return marker_of(batch).value
    except FormatError:
        return Marker.OTHER.value


def _as_arrow(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), _ARROW, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=_ARROW)

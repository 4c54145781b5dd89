"""Reading of slices into Arrow, on an executor: the part that batch and streaming queries share."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.types import StructType

from bmq.spark.decoding.decoder import BatchDecoder, DecodeOptions
from bmq.spark.options import ReadOptions
from bmq.spark.planning.discover import relocate
from bmq.spark.planning.input_partition import BmqPartition
from bmq.spark.planning.slices import Slice
from bmq.spark.pyspark_version import arrow_schema
from bmq.spark.reading.ranged_reader import RangedReader, ReadPolicy, path_of
from bmq.spark.reading.storage_loop import storage_loop

_log = logging.getLogger("bmq.spark")


class SliceReading:
    """A reader of slices into ``schema``, whose columns are ``columns`` of the source."""

    def __init__(self, options: ReadOptions, schema: StructType, columns: tuple[str, ...]) -> None:
        self._options = options
        self._schema = schema
        self._columns = columns

    def batches(self, partition: BmqPartition) -> Iterator[pa.RecordBatch]:
        """Yield record batches of the partition's records, in order.

        Raises DataLoss, CorruptSegment or StorageError.
        """
        io = storage_loop()
        fs = io.filesystem(self._options.root, token=partition.token)
        policy = ReadPolicy(
            find=lambda piece: io.run(relocate(fs, piece)),
            fail_on_data_loss=self._options.fail_on_data_loss,
            permissive=self._options.permissive,
        )
        reader = RangedReader(io, fs, policy)
        schema = arrow_schema(self._schema)
        current: Slice | None = None
        decoder: BatchDecoder | None = None
        for piece, run in reader.runs(partition.slices):
            if piece is not current or decoder is None:
                _warn_of_corrupt(current, decoder)
                current, decoder = piece, self._decoder(piece)
            for batch in decoder.decode(run.data, run.position):
                yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)
        _warn_of_corrupt(current, decoder)

    def _decoder(self, piece: Slice) -> BatchDecoder:
        options = DecodeOptions(
            columns=self._columns,
            start_offset=piece.start,
            end_offset=piece.end,
            committed=self._options.committed,
            permissive=self._options.permissive,
        )
        aborted = [(producer_id, first) for producer_id, first, _ in piece.aborted]
        return BatchDecoder(piece.topic, piece.partition, options, where=path_of(piece), aborted=aborted)


def _warn_of_corrupt(piece: Slice | None, decoder: BatchDecoder | None) -> None:
    if piece is not None and decoder is not None and decoder.corrupt.batches:
        found = decoder.corrupt
        _log.warning("%s: %d corrupt batches of %d bytes skipped", path_of(piece), found.batches, found.bytes)

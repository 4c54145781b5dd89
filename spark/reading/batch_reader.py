"""The batch reader: it plans on the driver and reads on executors.

Spark keeps a plan per ``load()`` and uses it for every query of the DataFrame, whatever the query filters by.  A plan
therefore depends on the options alone.  The reader takes no pushed filters: the filters of a query would prune the rows
of the next query.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from bmq.spark.decoding.handover import WithMachineCode
from bmq.spark.options import ReadOptions
from bmq.spark.planning.discover import PARTITIONS_AT_ONCE, find_logs
from bmq.spark.planning.executor_tokens import plan_token
from bmq.spark.planning.input_partition import BmqPartition, partitions_of
from bmq.spark.planning.log_view import LogView, in_windows
from bmq.spark.planning.permissions import reading
from bmq.spark.planning.slices import Slice, pack, raise_or_warn, spacing_of
from bmq.spark.reading.gc_freeze import freeze_gc
from bmq.spark.reading.storage_loop import storage_loop
from bmq.storage.filesystem import FileSystem

if TYPE_CHECKING:
    import pyarrow as pa


class BmqBatchReader(WithMachineCode, DataSourceReader):
    """A reader of the records that ``options`` select, into ``schema``.

    ``columns`` maps the schema's names to the source's own, in order.
    """

    def __init__(self, options: ReadOptions, schema: StructType, columns: dict[str, str]) -> None:
        self._options = options
        self._schema = schema
        self._columns = columns

    # ---- on the driver

    def partitions(self) -> list[InputPartition]:
        found = planned(self._options)
        freeze_gc()
        return found

    # ---- on executors

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, BmqPartition):  # Spark's own, if there is nothing to read
            return iter(())
        from bmq.spark.reading.slice_reader import SliceReading

        freeze_gc()
        return SliceReading(self._options, self._schema, tuple(self._columns.values())).batches(partition)


def planned(options: ReadOptions) -> list[InputPartition]:
    """Return the tasks of a read.  Raises DataLoss, OptionError, NoSuchTopic or StorageError."""
    io = storage_loop()
    tasks = io.run(_plan(io.filesystem(options.root), options))
    token = io.run(plan_token(options.root)) if tasks else None
    return partitions_of(tasks, token)


async def _plan(fs: FileSystem, options: ReadOptions) -> list[list[Slice]]:
    views = await find_logs(fs, options)
    size = sum(segment.length for view in views for segment in view.log.segments)
    most, least = options.max_partition_bytes, options.min_partitions
    spacing = spacing_of(size, max_bytes=most, min_partitions=least)

    async def slices_of(view: LogView) -> tuple[list[Slice], list[str]]:
        wanted = await view.wanted(options)
        found = await view.slices(wanted, read_committed=options.committed, spacing=spacing)
        return found, [*wanted.losses, *view.losses]

    found_logs = await in_windows(views, lambda view: reading(fs, view.path.topic, slices_of(view)), PARTITIONS_AT_ONCE)
    for _, losses in found_logs:
        raise_or_warn(losses, fail_on_data_loss=options.fail_on_data_loss)
    return pack([piece for found, _ in found_logs for piece in found], max_bytes=most, min_partitions=least)

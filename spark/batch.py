"""The batch reader: plans on the driver, reads on executors."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from bmq.spark.discover import find_logs
from bmq.spark.filters import Pushed
from bmq.spark.handover import WithMachineCode
from bmq.spark.logview import Pruning
from bmq.spark.loop import storage_loop
from bmq.spark.options import ReadOptions
from bmq.spark.partition import BmqPartition
from bmq.spark.plan import DataLoss, Slice, pack
from bmq.storage.filesystem import FileSystem

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger("bmq.spark")
_NO_LOW, _NO_HIGH = Pushed().timestamps.low, Pushed().timestamps.high
CUTS_PER_PARTITION = 64
"""Places where an input partition may end are thinned to so many a partition's bytes."""


@dataclass(frozen=True, slots=True)
class _Pushing:
    """``pushFilters`` of one reader.

    Spark refuses a reader that overrides ``pushFilters`` while spark.sql.python.filterPushdown.enabled is false, which
    is its default, lest filters that the reader relies on be ignored.  Nothing is relied on here: filters that are not
    pushed are Spark's to apply.  So the reader does not override; it carries this, which passes for the inherited one.
    """

    pushed: Pushed
    columns: dict[str, str]

    @property
    def __func__(self) -> Any:
        return DataSourceReader.pushFilters

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return [each for each in filters if not self.pushed.push(each, self.columns)]


class BmqBatchReader(WithMachineCode, DataSourceReader):
    """Reads what ``options`` ask for into ``schema``, whose names are ``columns``' keys.

    ``columns`` maps them to the source's own, in order.
    """

    def __init__(self, options: ReadOptions, schema: StructType, columns: dict[str, str]) -> None:
        self._options = options
        self._schema = schema
        self._columns = columns
        self._pushed = Pushed()
        self.pushFilters = _Pushing(self._pushed, columns)  # type: ignore[method-assign]

    # ---- on the driver

    def partitions(self) -> list[InputPartition]:
        io = storage_loop()
        fs = io.filesystem(self._options.root)
        tasks = io.run(_plan(fs, self._options, self._pushed))
        return [BmqPartition(task) for task in tasks]

    # ---- on executors

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, BmqPartition):  # Spark's own, when there is nothing to read
            return iter(())
        from bmq.spark.reading import SliceReading

        times = self._pushed.timestamps
        reading = SliceReading(
            self._options,
            self._schema,
            tuple(self._columns.values()),
            start_timestamp=None if times.low == _NO_LOW else times.low,
            end_timestamp=None if times.high == _NO_HIGH else times.high,
        )
        return reading.batches(partition.slices)


async def _plan(fs: FileSystem, options: ReadOptions, pushed: Pushed) -> list[list[Slice]]:
    """The tasks.  DataLoss, OptionError, NoSuchTopic, StorageError."""
    offsets, times = pushed.offsets, pushed.timestamps
    pruning = Pruning(
        start=max(0, offsets.low), end=offsets.high, start_timestamp=None if times.low == _NO_LOW else times.low
    )
    views = await find_logs(fs, options, pushed.keeps)
    size = sum(segment.length for view in views for segment in view.log.segments)
    spacing = max(1, min(options.max_partition_bytes, size // options.min_partitions) // CUTS_PER_PARTITION)
    found: list[Slice] = []
    for view in views:
        wanted = await view.wanted(options)
        found += await view.slices(wanted, pruning, committed=options.committed, spacing=spacing)
        for loss in (*wanted.losses, *view.losses):
            if options.fail_on_data_loss:
                raise DataLoss(f"{loss}. With failOnDataLoss=false what is there would be read")
            _log.warning("%s", loss)
    return pack(found, max_bytes=options.max_partition_bytes, min_partitions=options.min_partitions)

"""The batch reader: plans on the driver, reads on executors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from bmq.spark.discover import PARTITIONS_AT_ONCE, find_logs
from bmq.spark.filters import Pushed
from bmq.spark.handover import WithMachineCode
from bmq.spark.logview import LogView, Pruning, in_windows
from bmq.spark.loop import storage_loop
from bmq.spark.losses import accept
from bmq.spark.options import ReadOptions
from bmq.spark.partition import BmqPartition
from bmq.spark.plan import Slice, pack, spacing_of
from bmq.spark.residents import spare_loaded
from bmq.storage.filesystem import FileSystem

if TYPE_CHECKING:
    import pyarrow as pa

_NO_LOW, _NO_HIGH = Pushed().timestamps.low, Pushed().timestamps.high


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
        found = planned(self._options, self._pushed)
        spare_loaded()
        return found

    # ---- on executors

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, BmqPartition):  # Spark's own, when there is nothing to read
            return iter(())
        from bmq.spark.reading import SliceReading

        spare_loaded()
        times = self._pushed.timestamps
        reading = SliceReading(
            self._options,
            self._schema,
            tuple(self._columns.values()),
            start_timestamp=None if times.low == _NO_LOW else times.low,
            end_timestamp=None if times.high == _NO_HIGH else times.high,
        )
        return reading.batches(partition.slices)


def planned(options: ReadOptions, pushed: Pushed) -> list[InputPartition]:
    """The tasks of a read.  DataLoss, OptionError, NoSuchTopic, StorageError."""
    io = storage_loop()
    return [BmqPartition(task) for task in io.run(_plan(io.filesystem(options.root), options, pushed))]


async def _plan(fs: FileSystem, options: ReadOptions, pushed: Pushed) -> list[list[Slice]]:
    offsets, times = pushed.offsets, pushed.timestamps
    pruning = Pruning(
        start=max(0, offsets.low), end=offsets.high, start_timestamp=None if times.low == _NO_LOW else times.low
    )
    views = await find_logs(fs, options, pushed.keeps)
    size = sum(segment.length for view in views for segment in view.log.segments)
    most, least = options.max_partition_bytes, options.min_partitions
    spacing = spacing_of(size, max_bytes=most, min_partitions=least)

    async def slices_of(view: LogView) -> tuple[list[Slice], list[str]]:
        wanted = await view.wanted(options)
        found = await view.slices(wanted, pruning, committed=options.committed, spacing=spacing)
        return found, [*wanted.losses, *view.losses]

    looked = await in_windows(views, slices_of, PARTITIONS_AT_ONCE)
    for _, losses in looked:
        accept(losses, fail_on_data_loss=options.fail_on_data_loss)
    return pack([piece for found, _ in looked for piece in found], max_bytes=most, min_partitions=least)

"""The stream reader: it chooses offsets and plans on the driver, and reads on executors.

Spark keeps a reader in a Python process beside the driver for as long as a query runs.  So the reader keeps its data
from storage for the next micro-batch.  Another copy of it is sent to executors, and only reads.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from bmq.spark.decoding.handover import WithMachineCode
from bmq.spark.options import ReadOptions
from bmq.spark.planning.executor_tokens import ExecutorTokens
from bmq.spark.planning.input_partition import BmqPartition, partitions_of
from bmq.spark.reading.gc_freeze import freeze_gc
from bmq.spark.reading.storage_loop import StorageLoop, storage_loop
from bmq.spark.streaming.offsets import Offsets, from_json, to_json
from bmq.spark.streaming.planner import StreamPlanner
from bmq.spark.streaming.rate_limits import RateLimits

if TYPE_CHECKING:
    import pyarrow as pa


class BmqStreamReader(WithMachineCode, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A reader of the records that ``options`` select into ``schema``, in micro-batches.

    ``columns`` maps the schema's names to the source's own, in order.
    """

    def __init__(self, options: ReadOptions, limits: RateLimits, schema: StructType, columns: dict[str, str]) -> None:
        self._options = options
        self._limits = limits
        self._schema = schema
        self._columns = columns
        self._driver: _Driver | None = None

    # ---- on the driver

    def initialOffset(self) -> dict[str, Any]:
        return to_json(self._on_driver().initial())

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return one limit for all of them: Spark takes one, passes it back, and does not read it."""
        limits = self._limits
        if limits.max_offsets is not None:
            return ReadMaxRows(limits.max_offsets)
        if limits.max_bytes is not None:
            return ReadMaxBytes(limits.max_bytes)
        return ReadAllAvailable() if limits.min_offsets is None else ReadMinRows(limits.min_offsets)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        is_limited = not isinstance(limit, ReadAllAvailable)
        return to_json(self._on_driver().latest(from_json(start), is_limited=is_limited))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return to_json(self._on_driver().seen) or None

    def prepareForTriggerAvailableNow(self) -> None:
        self._on_driver().settle_target()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        if start == end:  # called for each restarted query, and for batches with nothing of this source
            return []
        return self._on_driver().partitions(from_json(start), from_json(end))

    def commit(self, end: dict[str, Any]) -> None:
        self._on_driver().planner.follower.trim(from_json(end))

    def _on_driver(self) -> _Driver:
        if self._driver is None:
            self._driver = _Driver(self._options, self._limits)
        return self._driver

    # ---- on executors

    def __reduce__(self) -> tuple[Any, ...]:
        assert self._driver is None, "the reader that plans is not sent to executors"
        return super().__reduce__()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from bmq.spark.reading.slice_reader import SliceReading

        freeze_gc()
        assert isinstance(partition, BmqPartition)
        return SliceReading(self._options, self._schema, tuple(self._columns.values())).batches(partition)


class _Driver:
    """The state of the reader that plans: storage's loop, the planner, the executors' token, and the first offsets."""

    def __init__(self, options: ReadOptions, limits: RateLimits) -> None:
        self._io: StorageLoop = storage_loop()
        self._options = options
        self._initial: Offsets | None = None
        self._is_begun = False
        self._tokens = ExecutorTokens.for_root(options.root)
        fs = self._io.filesystem(options.root)
        self.planner = StreamPlanner(fs, options, limits, lambda: time.monotonic() * 1000)

    @property
    def seen(self) -> Offsets:
        return self.planner.seen

    def initial(self) -> Offsets:
        """Return the offsets at which a new query begins, the same all through one run: Spark calls it more than
        once."""
        if self._initial is None:
            self._initial = self._io.run(self.planner.initial())
        return self._initial

    def latest(self, start: Offsets, *, is_limited: bool) -> Offsets:
        """Return the end of the micro-batch that begins at ``start``.

        The first one of a query that begins at ``latest`` is empty.  Spark writes down the end of a micro-batch, never
        the beginning of the first micro-batch.  A query killed in it would begin at another ``latest`` when restarted,
        past records that it had taken.  An empty first micro-batch writes the beginning down.
        """
        if not self._is_begun:
            self._is_begun = True
            if start == self._initial and self._options.begins_at_latest:
                return start
        return self._io.run(self.planner.latest(start, is_limited=is_limited))

    def settle_target(self) -> None:
        self._io.run(self.planner.settle_target())

    def partitions(self, start: Offsets, end: Offsets) -> list[InputPartition]:
        tasks = self._io.run(self.planner.tasks(start, end, is_first=start == self._initial))
        token = self._io.run(self._tokens.current()) if tasks else None
        return partitions_of(tasks, token)

"""The plan of ``compact`` in Spark: from groups of sources to a draft for each."""

from __future__ import annotations

import importlib.util
import secrets
import socket
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark import Broadcast
from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

from bmq.core.extras import how_to_install
from bmq.spark.jobs.cleaning_tasks import CompactionWork, WrittenFile, hashes_of, write_group
from bmq.spark.reading.storage_loop import storage_loop
from bmq.storage.cleaning.last_offsets import LastOffsetsFilter

if TYPE_CHECKING:
    from bmq.storage.hdfs.delegation_token import StorageToken

WRITE_PARTITIONS_MAX = 10_000
_FILES = (
    "file int, draft string, draft_index string, bytes_before bigint, bytes_after bigint, records_before bigint,"
    " records_after bigint"
)


def write_drafts(spark: SparkSession, work: CompactionWork, token: StorageToken | None) -> dict[int, WrittenFile]:
    """Have all drafts written; return them by the group's number."""
    # Broadcast values go through files: the token and the secret are in the tasks instead.
    shared = spark.sparkContext.broadcast(work)
    task = DraftTask(shared, secrets.token_bytes(16), token)
    count = len(work.groups)
    numbers = spark.range(0, count, 1, count)
    hashes = numbers.mapInArrow(task.hashes, "partition int, first bigint, second bigint, offset bigint")
    lasts = hashes.groupBy("partition", "first", "second").agg(sql.max("offset").alias("offset"))
    placed = lasts.mapInArrow(task.places, "file int, offset bigint")
    # A single task: each task before a shuffle writes a file with a place for each task behind it.
    every = spark.range(0, count, 1, 1).select(
        sql.col("id").cast("int").alias("file"), sql.lit(-1).cast("bigint").alias("offset")
    )
    # More partitions than files: few of them have two files then.
    spread = min(4 * count, WRITE_PARTITIONS_MAX)
    rows = placed.unionByName(every).repartition(spread, "file").sortWithinPartitions("file")
    written = {}
    for row in rows.mapInArrow(task.files, _FILES).collect():
        fields = row.asDict()
        number = fields.pop("file")
        written[number] = WrittenFile(group=number, **fields)
    return written


class DraftTask:
    """The functions of the plan's tasks, from record batches of Arrow to record batches."""

    def __init__(self, work: Broadcast[CompactionWork], secret: bytes, token: StorageToken | None) -> None:
        self._shared = work
        self._secret = secret
        self._token = token

    @property
    def _work(self) -> CompactionWork:
        if importlib.util.find_spec("numba") is None:
            text = f"the executors' Python has no numba ({sys.executable} on {socket.gethostname()})"
            advice = (
                f"on every executor, install the wheel with the extra spark ({how_to_install('spark')}), or send a"
                ' packed environment (docs/spark.md, "Getting the package to executors")'
            )
            raise ModuleNotFoundError(f"{text}: {advice}", name="numba")
        return replace(self._shared.value, secret=self._secret, token=self._token)

    def hashes(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield partition, both halves of the hash, and offset of each key's records in the groups of these numbers."""
        work = self._work
        for number in _numbers(batches):
            group = work.groups[number]
            for first, second, offset in hashes_of(storage_loop(), work, group):
                partition = np.full(len(offset), group.partition, np.int32)
                columns = [pa.array(column) for column in (partition, first, second, offset)]
                yield pa.RecordBatch.from_arrays(columns, names=["partition", "first", "second", "offset"])

    def places(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the file's number for each last offset, and the offset."""
        numbers: dict[int, list[int]] = {}
        work = self._work
        for number, group in enumerate(work.groups):
            numbers.setdefault(group.partition, []).append(number)
        bases = {part: np.array([work.groups[at].base for at in found]) for part, found in numbers.items()}
        for batch in batches:
            partitions, offsets = batch.column("partition").to_numpy(), batch.column("offset").to_numpy()
            files = np.empty(len(offsets), np.int32)
            for part in np.unique(partitions):
                chosen = partitions == part
                places = np.searchsorted(bases[int(part)], offsets[chosen], side="right") - 1
                files[chosen] = np.array(numbers[int(part)], np.int32)[places]
            yield pa.RecordBatch.from_arrays([pa.array(files), pa.array(offsets)], names=["file", "offset"])

    def files(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the file of each number; yield its facts.  The last offsets of a file come together."""
        work = self._work

        def write(number: int, records: LastOffsetsFilter) -> pa.RecordBatch:
            done = write_group(storage_loop(), work, number, records)
            names = [field.split()[0] for field in _FILES.split(", ")]
            values = [done.group, *(getattr(done, name) for name in names[1:])]
            kinds = [pa.int32(), pa.string(), pa.string(), *[pa.int64()] * 4]
            arrays = [pa.array([value], kind) for value, kind in zip(values, kinds, strict=True)]
            return pa.RecordBatch.from_arrays(arrays, names=names)

        current, records = -1, None
        for batch in batches:
            files, offsets = batch.column("file").to_numpy(), batch.column("offset").to_numpy()
            for start, end in _runs(np.flatnonzero(np.diff(files)) + 1, len(files)):
                if records is None or files[start] != current:
                    if records is not None:
                        yield write(current, records)
                    current = int(files[start])
                    group = work.groups[current]
                    records = LastOffsetsFilter(group.base, group.end_offset)
                some = offsets[start:end]
                records.add(some[some >= 0])
        if records is not None:
            yield write(current, records)


def _numbers(batches: Iterator[pa.RecordBatch]) -> Iterator[int]:
    for batch in batches:
        yield from batch.column(0).to_pylist()


def _runs(changes: Any, count: int) -> Sequence[tuple[int, int]]:
    """Return start and end of each run of equal values, from the places where the value changes."""
    edges = [0, *(int(at) for at in changes), count]
    return [(start, end) for start, end in pairwise(edges) if start < end]

"""Slices into rows, on an executor: what was known when they were planned holds when they are read."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from bmq.spark.options import ReadOptions
from bmq.spark.planning.discover import find_logs
from bmq.spark.planning.input_partition import BmqPartition
from bmq.spark.planning.slices import Slice
from bmq.spark.reading.slice_reader import SliceReading
from bmq.spark.reading.storage_loop import storage_loop
from bmq.storage.filesystem import FileSystem
from tests.unit.spark.storing import Store, batch, marker, transactional

OFFSET = StructType([StructField("offset", LongType())])


async def planned(fs: FileSystem, options: ReadOptions) -> list[Slice]:
    (view,) = await find_logs(fs, options)
    return await view.slices(await view.wanted(options), read_committed=options.committed)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("isolation", "expected"), [("read_committed", [3, 6]), ("read_uncommitted", [0, 1, 2, 3, 4, 6])]
)
def test_rule_10_a_file_joined_after_it_was_planned(tmp_path: Path, isolation: str, expected: list[int]) -> None:
    """Join a file whose transaction's abort stands in the segment that is still open, which only the journal covers."""
    options = ReadOptions.parse({"root": tmp_path.as_uri(), "topic": "orders", "isolationLevel": isolation})
    io = storage_loop()
    fs = io.filesystem(options.root)

    async def work() -> list[Slice]:
        store = await Store(fs).create()
        first = await store.segment([transactional(0, b"a", b"b", pid=7)])
        second = await store.segment([transactional(2, b"c", pid=7), batch(3, b"d")], n=1)
        opened = [transactional(4, b"e", pid=7), marker(5, pid=7, is_abort=True), batch(6, b"f")]
        await store.journal((await store.segment(opened, n=2, has_idx=False)).checkpoint)
        pieces = await planned(fs, options)
        await fs.concat(store.path().log(first.name), [store.path().log(second.name)])
        return pieces

    pieces = io.run(work())
    assert len(pieces) == 3
    reading = SliceReading(options, OFFSET, ("offset",))
    found = reading.batches(BmqPartition(pieces))
    assert [offset for rows in found for offset in rows.column(0).to_pylist()] == expected

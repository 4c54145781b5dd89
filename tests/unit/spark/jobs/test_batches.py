"""Batches' headers as rows: faults on the way, and nothing loaded that they do not need."""

from __future__ import annotations

import pickle
import subprocess
import sys
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from bmq.spark.jobs.batches import BatchHeaders
from bmq.spark.planning.slices import DataLoss
from bmq.spark.reading.storage_loop import storage_loop
from bmq.storage.filesystem import FileSystem
from tests.unit.spark.storing import Store, Written, series

pytestmark = pytest.mark.slow


class Topic:
    """Three segments of ten batches each."""

    def __init__(self, folder: Path) -> None:
        self.root = folder.as_uri()
        self._io = storage_loop()
        self._fs: FileSystem = self._io.filesystem(self.root, must_exist=False)
        self._io.run(self._write())

    async def _write(self) -> None:
        self._store = await Store(self._fs, "orders", uuid.uuid4()).create()
        self._written: list[Written] = [await self._store.segment(series(10 * n, 10), n=n) for n in range(3)]

    def _log(self, n: int) -> str:
        return self._store.path().log(self._written[n].name)

    def join(self) -> None:
        self._io.run(self._fs.concat(self._log(0), [self._log(1)]))

    def delete(self) -> None:
        self._io.run(self._fs.delete(self._log(0)))

    def reader(self, **options: str) -> DataSourceReader:
        source = BatchHeaders(CaseInsensitiveDict({"root": self.root, "topic": "orders"} | options))
        return source.reader(StructType())


def offsets(reader: DataSourceReader, partitions: Sequence[InputPartition]) -> list[int]:
    """Read partitions as an executor does, with a pickled reader, and return the base offsets."""
    copy = pickle.loads(pickle.dumps(reader))
    return [n for part in partitions for rows in copy.read(part) for n in rows.column("base_offset").to_pylist()]


@pytest.mark.parametrize(
    ("change", "options", "expected"),
    [
        (Topic.join, {}, range(30)),
        (Topic.delete, {"failOnDataLoss": "false"}, range(10, 30)),
        (Topic.delete, {}, None),
    ],
)
def test_rule_10_a_file_that_went_after_it_was_planned(
    tmp_path: Path, change: Callable[[Topic], None], options: dict[str, str], expected: range | None
) -> None:
    topic = Topic(tmp_path)
    reader = topic.reader(**options)
    partitions = reader.partitions()
    change(topic)
    if expected is None:
        with pytest.raises(DataLoss, match="offsets 0 to 10 were deleted while being read"):
            offsets(reader, partitions)
    else:
        assert offsets(reader, partitions) == list(expected)


def test_headers_need_no_decoder(tmp_path: Path) -> None:
    """Importing numba takes longer than to plan and to read."""
    (tmp_path / "reader").write_bytes(pickle.dumps(Topic(tmp_path / "root").reader()))
    code = (
        "import pickle, sys\n"
        "reader = pickle.load(open(sys.argv[1], 'rb'))\n"
        "rows = [rows.num_rows for part in reader.partitions() for rows in reader.read(part)]\n"
        "sys.exit(sum(rows) != 30 or 'numba' in sys.modules)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "reader")]
    assert subprocess.run(command, timeout=120, check=False).returncode == 0

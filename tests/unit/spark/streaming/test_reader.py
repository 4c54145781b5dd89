"""The stream reader's face towards Spark: limits, the first micro-batch, what goes to executors; and its page."""

from __future__ import annotations

import asyncio
import pickle
import re
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows, ReadMinRows

from bmq.spark import BmqDataSource
from bmq.spark.options import STREAM_OPTIONS, OptionError
from bmq.spark.planning.input_partition import BmqPartition
from bmq.spark.streaming.rate_limits import LIMITS
from bmq.spark.streaming.reader import BmqStreamReader
from bmq.storage.local.filesystem import LocalFileSystem
from tests.unit.spark.storing import Store, series
from tests.unit.spark.test_source import PAGE


def reader(root: str = "memory:", **options: str) -> BmqStreamReader:
    source = BmqDataSource(CaseInsensitiveDict({"root": root, "topic": "orders"} | options))
    made = source.streamReader(source.schema())
    assert isinstance(made, BmqStreamReader)
    return made


def append(root: Path, start: int, count: int, n: int, *, is_new: bool = False) -> None:
    async def main() -> None:
        fs = LocalFileSystem(root, "test")
        store = Store(fs, "orders", uuid.UUID(int=7))
        if is_new:
            await store.create()
        await store.segment(series(start, count), n=n)
        await fs.close()

    asyncio.run(main())


def offset(number: int) -> dict[str, Any]:
    return {"orders": {"0": number}}


def rows_of(reader: BmqStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    """Read as an executor does, with pickled reader and partitions, and return the offsets."""
    copy = pickle.loads(pickle.dumps(BmqStreamReader(*_parts(reader))))
    found: list[int] = []
    for partition in reader.partitions(start, end):
        for batch in copy.read(pickle.loads(pickle.dumps(partition))):
            found += batch.column("offset").to_pylist()
    return found


def _parts(reader: BmqStreamReader) -> tuple[Any, ...]:
    return reader._options, reader._limits, reader._schema, reader._columns


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ReadAllAvailable()),
        ({"maxTriggerDelay": "1s"}, ReadAllAvailable()),
        ({"maxOffsetsPerTrigger": "5", "maxBytesPerTrigger": "7"}, ReadMaxRows(5)),
        ({"maxBytesPerTrigger": "7"}, ReadMaxBytes(7)),
        ({"minOffsetsPerTrigger": "3"}, ReadMinRows(3)),
    ],
)
def test_spark_is_told_that_there_are_limits(options: dict[str, str], expected: ReadLimit) -> None:
    assert reader(**options).getDefaultReadLimit() == expected


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"endingOffsets": "latest"}, "endingOffsets has no meaning"),
        ({"endingTimestamp": "1"}, "endingTimestamp has no meaning"),
        ({"consistency": "latest"}, "not in a streaming query"),
        ({"maxFilesPerTrigger": "1"}, "unknown option"),
        ({"maxOffsetsPerTrigger": "none"}, "maxOffsetsPerTrigger"),
    ],
)
def test_what_a_stream_refuses(options: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        reader(**options)


def test_a_query_from_latest_writes_down_where_it_began(tmp_path: Path) -> None:
    """Killed in its first micro-batch and restarted, it has lost nothing of what came since it was started."""
    append(tmp_path, 0, 10, 0, is_new=True)
    first = reader(tmp_path.as_uri())
    begin = first.initialOffset()
    append(tmp_path, 10, 5, 1)
    logged = first.latestOffset(begin, ReadAllAvailable())
    assert begin == logged == offset(10) == first.initialOffset(), "an empty micro-batch, which Spark logs"
    assert first.partitions(begin, logged) == []
    second = reader(tmp_path.as_uri())
    assert second.initialOffset() == offset(15)
    assert rows_of(second, second.initialOffset(), logged) == []
    end = second.latestOffset(logged, ReadAllAvailable())
    assert end == offset(15)
    assert rows_of(second, logged, end) == [10, 11, 12, 13, 14]
    assert second.reportLatestOffset() == offset(15)


def test_a_query_from_elsewhere_begins_at_once(tmp_path: Path) -> None:
    append(tmp_path, 0, 10, 0, is_new=True)
    for starting, first in {"earliest": 0, '{"orders":{"0":4}}': 4}.items():
        begun = reader(tmp_path.as_uri(), startingOffsets=starting)
        assert begun.reportLatestOffset() is None
        begin = begun.initialOffset()
        assert rows_of(begun, begin, begun.latestOffset(begin, ReadAllAvailable())) == list(range(first, 10))


def test_read_all_available_goes_before_limits(tmp_path: Path) -> None:
    append(tmp_path, 0, 10, 0, is_new=True)
    limited = reader(tmp_path.as_uri(), startingOffsets="earliest", maxOffsetsPerTrigger="3")
    assert limited.latestOffset(offset(0), limited.getDefaultReadLimit()) == offset(3)
    assert limited.latestOffset(offset(0), ReadAllAvailable()) == offset(10)
    limited.prepareForTriggerAvailableNow()
    append(tmp_path, 10, 5, 1)
    assert limited.latestOffset(offset(0), ReadAllAvailable()) == offset(10)
    limited.commit(offset(3))
    assert [type(each) for each in limited.partitions(offset(3), offset(6))] == [BmqPartition]


@pytest.mark.slow
def test_executors_adopt_the_drivers_machine_code_before_they_load_anything(tmp_path: Path) -> None:
    (tmp_path / "reader").write_bytes(pickle.dumps(reader()))
    source = BmqDataSource(CaseInsensitiveDict({"root": "memory:", "topic": "orders"}))
    (tmp_path / "batch").write_bytes(pickle.dumps(source.reader(source.schema())))
    code = (
        "import pickle, sys\n"
        "from bmq.spark.decoding import compiled\n"
        "adopt, seen = compiled.adopt, []\n"
        "def watched(code):\n"
        "    seen.append('numba' in sys.modules)\n"
        "    adopt(code)\n"
        "compiled.adopt = watched\n"
        "pickle.load(open(sys.argv[1], 'rb'))\n"
        "sys.exit(seen != [False])\n"
    )
    for name in ("reader", "batch"):
        command = [sys.executable, "-c", code, str(tmp_path / name)]
        assert subprocess.run(command, timeout=120, check=False).returncode == 0


def test_the_page_names_every_limit() -> None:
    table = PAGE.read_text().partition("## Streaming")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == list(LIMITS)
    assert set(LIMITS) == set(STREAM_OPTIONS)

"""The stream reader's face towards Spark: limits, the first micro-batch, what goes to executors; and its page."""

from __future__ import annotations

import asyncio
import pickle
import re
import subprocess
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict

from bmq.spark import BmqDataSource
from bmq.spark.options import STREAM_OPTIONS, OptionError
from bmq.spark.planning.input_partition import BmqPartition
from bmq.spark.streaming.rate_limits import LIMITS
from bmq.storage.hdfs.delegation_token import StorageToken, TokenGrant
from bmq.storage.local.filesystem import LocalFileSystem
from tests.unit.spark.planning.tokens import granted
from tests.unit.spark.storing import Store, series
from tests.unit.spark.test_source import PAGE

if TYPE_CHECKING:
    from pyspark.sql.streaming import datasource as spark

    from bmq.spark.streaming.reader import BmqStreamReader
else:  # the whole module is left out where PySpark has no such module
    spark = pytest.importorskip("pyspark.sql.streaming.datasource", reason="stream reader: needs PySpark 4.2")

pytestmark = pytest.mark.needs_spark("stream reader")


def reader(root: str = "memory:", **options: str) -> BmqStreamReader:
    from bmq.spark.streaming.reader import BmqStreamReader

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
    copy = pickle.loads(pickle.dumps(type(reader)(*_parts(reader))))
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
        ({}, spark.ReadAllAvailable()),
        ({"maxTriggerDelay": "1s"}, spark.ReadAllAvailable()),
        ({"maxOffsetsPerTrigger": "5", "maxBytesPerTrigger": "7"}, spark.ReadMaxRows(5)),
        ({"maxBytesPerTrigger": "7"}, spark.ReadMaxBytes(7)),
        ({"minOffsetsPerTrigger": "3"}, spark.ReadMinRows(3)),
    ],
)
def test_spark_is_told_that_there_are_limits(options: dict[str, str], expected: spark.ReadLimit) -> None:
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


@pytest.mark.slow
def test_a_query_from_latest_writes_down_where_it_began(tmp_path: Path) -> None:
    """Killed in its first micro-batch and restarted, it has lost nothing of what came since it was started."""
    append(tmp_path, 0, 10, 0, is_new=True)
    first = reader(tmp_path.as_uri())
    begin = first.initialOffset()
    append(tmp_path, 10, 5, 1)
    logged = first.latestOffset(begin, spark.ReadAllAvailable())
    assert begin == logged == offset(10) == first.initialOffset(), "an empty micro-batch, which Spark logs"
    assert first.partitions(begin, logged) == []
    second = reader(tmp_path.as_uri())
    assert second.initialOffset() == offset(15)
    assert rows_of(second, second.initialOffset(), logged) == []
    end = second.latestOffset(logged, spark.ReadAllAvailable())
    assert end == offset(15)
    assert rows_of(second, logged, end) == [10, 11, 12, 13, 14]
    assert second.reportLatestOffset() == offset(15)


def test_a_query_from_elsewhere_begins_at_once(tmp_path: Path) -> None:
    append(tmp_path, 0, 10, 0, is_new=True)
    for starting, first in {"earliest": 0, '{"orders":{"0":4}}': 4}.items():
        begun = reader(tmp_path.as_uri(), startingOffsets=starting)
        assert begun.reportLatestOffset() is None
        begin = begun.initialOffset()
        assert rows_of(begun, begin, begun.latestOffset(begin, spark.ReadAllAvailable())) == list(range(first, 10))


@pytest.mark.slow
def test_read_all_available_goes_before_limits(tmp_path: Path) -> None:
    append(tmp_path, 0, 10, 0, is_new=True)
    limited = reader(tmp_path.as_uri(), startingOffsets="earliest", maxOffsetsPerTrigger="3")
    assert limited.latestOffset(offset(0), limited.getDefaultReadLimit()) == offset(3)
    assert limited.latestOffset(offset(0), spark.ReadAllAvailable()) == offset(10)
    limited.prepareForTriggerAvailableNow()
    append(tmp_path, 10, 5, 1)
    assert limited.latestOffset(offset(0), spark.ReadAllAvailable()) == offset(10)
    limited.commit(offset(3))
    assert [type(each) for each in limited.partitions(offset(3), offset(6))] == [BmqPartition]


def test_every_task_carries_the_token_and_a_reader_never_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan as on a cluster with Kerberos: a batch fetches a token for its plan, a stream one with its life."""

    async def fetched(root: str, **_: object) -> StorageToken:
        return granted(1, root)

    async def grant(root: str, owner: str, **_: object) -> TokenGrant:
        return TokenGrant(granted(2, root), 86_400)

    monkeypatch.setattr("bmq.spark.planning.executor_tokens.fetch_storage_token", fetched)
    monkeypatch.setattr("bmq.spark.planning.executor_tokens.grant_storage_token", grant)
    append(tmp_path, 0, 10, 0, is_new=True)
    root = tmp_path.as_uri()
    source = BmqDataSource(CaseInsensitiveDict({"root": root, "topic": "orders"}))
    batch, stream = source.reader(source.schema()), reader(root, startingOffsets="earliest")
    by_batch, by_stream = batch.partitions(), stream.partitions(offset(0), offset(10))
    for found, number in (by_batch, 1), (by_stream, 2):
        assert [each.token for each in found if isinstance(each, BmqPartition)] == [granted(number, root)]
        assert b"the-password" in pickle.dumps(found)
        assert "the-password" not in repr(found)
    assert b"the-password" not in pickle.dumps(batch)
    assert rows_of(stream, offset(0), offset(10)) == list(range(10))


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

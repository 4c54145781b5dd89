"""Spark jobs end to end: a topic that `bmq serve` has written on HDFS becomes a table there, and is audited.

The job's process is killed with SIGKILL at its steps and at moments between them that a seed chooses; after every kill
the table holds a whole number of commits, and in the end every record once.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import uuid
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import hdfs_native
import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from pyarrow import dataset, parquet

from bmq.cli.main import main
from bmq.core.records.batch import Record, build_batch, build_gap
from bmq.spark.jobs import JobError
from bmq.spark.jobs import audit as audit_job
from bmq.spark.jobs import to_parquet as parquet_job
from bmq.spark.jobs.audit_frames import Audit
from bmq.spark.jobs.session import add_session_arguments
from bmq.spark.jobs.table import Step, committed_files, read_state
from bmq.spark.options import ReadOptions
from bmq.spark.planning.discover import find_topics
from bmq.spark.reading.storage_loop import storage_loop
from bmq.storage.local.filesystem import LocalFileSystem
from tests.harness.cleaned import cleaned_batch
from tests.services.bmq import BmqServer
from tests.services.hdfs import HdfsCluster
from tests.services.spark import start_spark
from tests.unit.spark.storing import Store, batch, marker, transactional

ROOT = Path(__file__).resolve().parents[2]
PARTITIONS, RECORDS = 3, 3000
DAYS = ("2023-11-14", "2023-11-15", "2023-11-16", "2023-11-17")
COLUMNS = ["partition", "offset", "timestamp", "key", "value", "headers", "_corrupt"]
START_MS = 1_700_000_000_000
JOB_TIMEOUT_S = 600.0
KILLS = (
    ("written", 1),  # everything in staging, nothing committed
    ("committed", 1),  # nothing in place
    ("placed", 2),  # half in place
    ("merge written", 1),
    ("removed", 3),  # a merge is committed, half of what it replaces is gone
)
RANDOM_KILLS = 2
SHORT_LIVED = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""Start-up is most of what these processes compute."""


@pytest.fixture(scope="module")
def root(shared_hdfs: HdfsCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield a root on HDFS with topic orders, over four days; its server has ended."""
    place = f"/jobs-{uuid.uuid4().hex[:12]}"
    server = BmqServer(shared_hdfs.root + place, folder=tmp_path_factory.mktemp("server"))
    with server:
        admin = AdminClient({"bootstrap.servers": server.bootstrap})
        admin.create_topics([NewTopic("orders", PARTITIONS)])["orders"].result(30)
        producer = Producer({"bootstrap.servers": server.bootstrap, "compression.type": "lz4", "linger.ms": 20})
        for number in range(RECORDS):
            value = b'{"id": ' if number % 500 == 499 else json.dumps({"id": number, "name": f"n{number % 7}"}).encode()
            producer.produce(
                "orders", key=b"%d" % number, value=value, headers=[("n", b"%d" % number)],
                timestamp=START_MS + number * 60_000, partition=number % PARTITIONS,
            )  # fmt: skip
        assert producer.flush(60) == 0
    yield shared_hdfs.root + place
    server.remove(keep_log=False)
    hdfs_native.Client(shared_hdfs.root).delete(place, recursive=True)


# --------------------------------------------------------------------------------------------------------- exactly once


def job_process(root: str, table: str, step: str, count: int, delay_s: float = 0) -> subprocess.Popen[bytes]:
    arguments = ["--master", "local[2]", "--root", root, "--topic", "orders", "--table", table]
    arguments += ["--format", "json", "--schema", "id bigint, name string", "--max-offsets", "1000"]
    arguments += ["--merge-files", "2", "--conf", f"spark.driver.extraJavaOptions={SHORT_LIVED}"]
    command = [sys.executable, "-m", "tests.integration.parquet_job", step, str(count), str(delay_s), *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


class Table:
    """A table as its readers find it."""

    def __init__(self, url: str) -> None:
        self._io = storage_loop()
        self._fs = self._io.filesystem(url, must_exist=False)

    @property
    def reached(self) -> dict[int, int]:
        """First offset of each partition that the table does not hold, by its log."""
        return dict(self._io.run(read_state(self._fs)).reached)

    def committed(self) -> list[dict[str, Any]]:
        """Return the records of the files that the table's log names."""
        return self._rows(self._io.run(committed_files(self._fs)))

    def visible(self) -> dict[str, list[dict[str, Any]]]:
        """Return the records by folder, as found by a reader that ignores the log, and names with _ or a dot first."""
        found: dict[str, list[dict[str, Any]]] = {}
        for folder in self._names(""):
            files = [f"{folder}/{name}" for name in self._names(folder)]
            found[folder] = self._rows(files)
        return {folder: rows for folder, rows in found.items() if rows}

    def _names(self, folder: str) -> list[str]:
        async def names() -> list[str]:
            return [child.path.rpartition("/")[2] async for child in self._fs.list("/" + folder)]

        return [name for name in self._io.run(names()) if not name.startswith(("_", "."))]

    def _rows(self, files: list[str]) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for file in files:
            data = self._io.run(self._fs.read("/" + file, 0, 64 << 20))
            table = parquet.read_table(io.BytesIO(data))
            assert table.schema.names == COLUMNS, file
            rows += table.to_pylist()
        return rows


def check_whole(table: Table) -> int:
    """Check that every offset below the table's end is there once, and no reader finds more; return their number."""
    reached, rows = table.reached, table.committed()
    found = sorted((row["partition"], row["offset"]) for row in rows)
    assert found == [(partition, offset) for partition in sorted(reached) for offset in range(reached[partition])]
    seen = [(row["partition"], row["offset"]) for rows in table.visible().values() for row in rows]
    assert len(seen) == len(set(seen)), "a record is visible twice"
    assert set(seen) <= set(found), "what is not committed is visible"
    return len(rows)


def test_killed_and_run_again(root: str) -> None:
    url = root + "-table"
    table = Table(url)
    seen = 0
    for step, count in KILLS:
        process = job_process(root, url, step, count)
        _, stderr_text = process.communicate(timeout=JOB_TIMEOUT_S)
        assert process.returncode == -signal.SIGKILL, f"{step}: {stderr_text.decode()}"
        now = check_whole(table)
        assert now >= seen
        seen = now
    seed = random.randrange(10**6)
    moments = random.Random(seed)
    for _ in range(RANDOM_KILLS):
        process = job_process(root, url, "begun", 1, moments.uniform(0.1, 5))
        _, stderr_text = process.communicate(timeout=JOB_TIMEOUT_S)
        assert process.returncode in (-signal.SIGKILL, 0), stderr_text.decode()  # 0: it was through by then
        now = check_whole(table)
        assert now >= seen, f"seed {seed}"
        seen = now
    process = job_process(root, url, "never", 0)
    _, stderr_text = process.communicate(timeout=JOB_TIMEOUT_S)
    assert process.returncode == 0, stderr_text.decode()
    assert check_whole(table) == RECORDS
    check_content(table)


def check_content(table: Table) -> None:
    """Each record as it was sent, in the folder of its day; and the folders show what the log does."""
    rows = table.committed()
    for row in rows:
        number = row["offset"] * PARTITIONS + row["partition"]
        assert (row["key"], row["headers"]) == (b"%d" % number, [{"key": "n", "value": b"%d" % number}])
        assert row["timestamp"] == datetime.fromtimestamp((START_MS + number * 60_000) / 1000, UTC)
        if number % 500 == 499:
            assert (row["value"], row["_corrupt"]) == (None, b'{"id": ')
        else:
            assert (row["value"], row["_corrupt"]) == ({"id": number, "name": f"n{number % 7}"}, None)
    visible = table.visible()
    assert sorted(visible) == [f"date={day}" for day in DAYS]
    assert sum(map(len, visible.values())) == len(rows)
    for folder, found in visible.items():
        assert {f"date={row['timestamp'].date()}" for row in found} == {folder}


# -------------------------------------------------------------------------------------------------------------- formats


def stored(folder: Path, values: list[bytes | None], *, topic: str = "orders") -> str:
    """Store these values in one partition, and return the root."""

    async def write() -> None:
        fs = LocalFileSystem(folder, "test")
        store = await Store(fs, topic, uuid.uuid4()).create(1)
        records = [Record(key=None, value=value, timestamp_delta=i) for i, value in enumerate(values)]
        await store.segment([bytes(build_batch(records, base_offset=0, base_timestamp=START_MS))])
        await fs.close()

    asyncio.run(write())
    return folder.as_uri()


def to_parquet(folder: Path, root: str, *arguments: str) -> list[dict[str, Any]]:
    """Run the job in this process, and return the table's rows in the order of offsets."""
    table = folder / "table"
    command = ["job", "to_parquet", "--master", "local[2]", "--root", root, "--topic", "orders"]
    assert main([*command, "--table", str(table), *arguments]) == 0
    return sorted(parquet.read_table(table, partitioning="hive").to_pylist(), key=lambda row: row["offset"])


def test_raw_values_by_hour(tmp_path: Path) -> None:
    root = stored(tmp_path / "root", [b"a", None, b"\xff"])
    rows = to_parquet(tmp_path, root, "--by", "hour")
    assert [row["value"] for row in rows] == [b"a", None, b"\xff"]
    assert {(str(row["date"]), int(row["hour"])) for row in rows} == {("2023-11-14", 22)}
    assert to_parquet(tmp_path, root, "--by", "hour") == rows, "a run that finds nothing new changes nothing"


def test_json_of_a_schema_inferred_once(tmp_path: Path) -> None:
    values = [b'{"id": 1, "at": {"x": 1.5}}', None, b"7", b"{", b'{"id": "no number"}', b'{"id": 2, "more": 1}']
    root = stored(tmp_path / "root", values)
    rows = to_parquet(tmp_path, root, "--format", "json", "--sample", "1")
    assert [row["value"] for row in rows] == [
        {"at": {"x": 1.5}, "id": 1}, None, None, None, None, {"at": None, "id": 2},
    ]  # fmt: skip
    assert [row["_corrupt"] for row in rows] == [None, None, b"7", b"{", b'{"id": "no number"}', None]
    assert to_parquet(tmp_path, root, "--format", "json", "--sample", "1000") == rows


def test_json_values_are_one_document_and_what_is_not_read_is_counted(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Keep what Spark's parser would pass over: a second document, broken UTF-8; and count fields without a column."""
    good, unknown = b'{"a": 1, "b": "x"}', [b'{"a": 2, "c": 5}', b'{"A": 7}']
    corrupt = [good + good, good + b"\n" + good, good + b" trailing", b'{"b": "\xff\xfe"}']
    root = stored(tmp_path / "root", [good, *unknown, *corrupt, None])
    rows = to_parquet(tmp_path, root, "--format", "json", "--schema", "a bigint, b string", "--keep-raw")
    assert [row["value"] for row in rows] == [
        {"a": 1, "b": "x"}, {"a": 2, "b": None}, {"a": None, "b": None}, None, None, None, None, None,
    ]  # fmt: skip
    assert [row["_corrupt"] for row in rows] == [None] * 3 + corrupt + [None]
    assert [row["_raw"] for row in rows] == [good, *unknown, *corrupt, None]
    says = "; 4 values are corrupt; 2 values have fields that the schema does not have\n"
    assert f"committed 8 records of 8 offsets, 1 files{says}" in capfd.readouterr().err
    state = storage_loop().run(read_state(LocalFileSystem(tmp_path / "table", "test")))
    assert (state.rows, state.corrupt, state.unknown) == (8, 4, 2)


def test_json_fields_say_what_is_read_or_are_corrupt(tmp_path: Path) -> None:
    """Keep what Spark's parser would round, cut, complete or overflow, and give it all that fits."""
    schema = "b tinyint, d decimal(5,2), f float, g double, s string, day date, t timestamp, m map<string,bigint>"
    names = ["b", "d", "f", "g", "s", "day", "t", "m"]
    day = datetime(2026, 1, 1, tzinfo=UTC)
    good: dict[bytes, tuple[str, Any]] = {
        b'{"d": 1.230}': ("d", Decimal("1.23")),
        b'{"g": Infinity}': ("g", float("inf")),
        b'{"s": 1.5}': ("s", "1.5"),
        b'{"s": "\\ud83d\\ude00"}': ("s", "\N{GRINNING FACE}"),
        b'{"day": "2026-01-01"}': ("day", day.date()),
        b'{"day": "9999-12-31"}': ("day", datetime(9999, 12, 31, tzinfo=UTC).date()),
        b'{"t": "2026-01-01T00:00:00.123456789Z"}': ("t", day.replace(microsecond=123456)),
        b'{"t": 1767225600}': ("t", day),
    }
    corrupt = [
        b'{"b": 1, "b": 2}', b'{"m": {"x": 1, "x": 2}}', b'{"b": 128}', b'{"d": 1.23456}', b'{"d": "1,23"}',
        b'{"d": 1e999999999}', b'{"f": 1e39}', b'{"g": 1e999}', b'{"s": 0.1234567890123456789}', b'{"s": "\\ud83d"}',
        b'{"day": "2026-01-01 garbage"}', b'{"day": "20260101"}', b'{"t": "10:20"}', b'{"t": 1767225600000}',
    ]  # fmt: skip
    root = stored(tmp_path / "root", [*good, *corrupt])
    rows = to_parquet(tmp_path, root, "--format", "json", "--schema", schema)
    nothing = dict.fromkeys(names)
    assert [row["value"] for row in rows] == [{**nothing, name: each} for name, each in good.values()] + [None] * 14
    assert [row["_corrupt"] for row in rows] == [None] * len(good) + corrupt


def test_records_of_times_without_a_date(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Put records of times that no date names into the folder of nulls: pyarrow reads the table."""
    first, last = -62_135_596_800_000, 253_402_300_799_999
    times = [START_MS, first - 1, first, last, last + 1, START_MS * 1000]

    async def write() -> None:
        fs = LocalFileSystem(tmp_path / "root", "test")
        store = await Store(fs, "orders", uuid.uuid4()).create(1)
        await store.segment([batch(offset, b"v", timestamp=time) for offset, time in enumerate(times)])
        await fs.close()

    asyncio.run(write())
    root, table = (tmp_path / "root").as_uri(), tmp_path / "table"
    command = ["job", "to_parquet", "--master", "local[2]", "--root", root, "--topic", "orders", "--table", str(table)]
    assert main([*command, "--by", "hour"]) == 0
    folders = sorted(path.relative_to(table).as_posix() for path in table.glob("date=*/hour=*"))
    nowhere = "__HIVE_DEFAULT_PARTITION__"
    assert folders == [
        "date=0001-01-01/hour=00", "date=2023-11-14/hour=22", "date=9999-12-31/hour=23",
        f"date={nowhere}/hour={nowhere}",
    ]  # fmt: skip
    kinds = dataset.partitioning(pa.schema([("date", pa.date32()), ("hour", pa.int32())]), flavor="hive")
    found = parquet.read_table(table, partitioning=kinds, columns=["offset", "timestamp", "date", "hour"])
    micros = found["timestamp"].cast(pa.int64()).to_pylist()
    assert sorted(zip(found["offset"].to_pylist(), micros, strict=True)) == [(i, t * 1000) for i, t in enumerate(times)]
    assert {row["offset"] for row in found.drop_columns(["timestamp"]).to_pylist() if row["date"] is None} == {1, 4, 5}
    status, rows = audit(root, tmp_path / "audit.json", "--picture", str(tmp_path / "audit.png"))
    assert (status, capsys.readouterr().out.count("every offset is accounted for")) == (0, 1)
    assert {row["hour"]: row["records"] for row in rows} == {
        None: 4, "2023-11-14T22:00:00+00:00": 1, "9999-12-31T23:00:00+00:00": 1,
    }  # fmt: skip


def test_failfast_commits_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    root = stored(tmp_path / "root", [b'{"id": 1}', b"{"])
    command = ["job", "to_parquet", "--master", "local[2]", "--root", root, "--topic", "orders"]
    command += ["--table", str(tmp_path / "table"), "--format", "json", "--schema", "id int", "--mode", "failfast"]
    assert main(command) == 1
    says = "bmq: topic orders, partition 0, offset 1: the value cannot be read as JSON\n"
    assert capfd.readouterr().err.endswith(says)
    table = Table((tmp_path / "table").as_uri())
    assert (table.reached, table.committed()) == ({}, [])


def test_a_topic_that_is_created_again_between_two_commits(tmp_path: Path) -> None:
    """Delete and create the topic between two commits: the table keeps the old records and gets none of the new."""
    root, table = stored(tmp_path / "root", [b"old %d" % n for n in range(6)]), tmp_path / "table"

    def on_step(step: str) -> None:
        if step == "in place":
            shutil.rmtree(tmp_path / "root" / "topics" / "orders")
            apart(lambda: stored(tmp_path / "root", [b"new %d" % n for n in range(6)]))

    with pytest.raises(Exception, match="it was deleted and created again"):
        run_to_parquet(root, table, on_step, "--max-offsets", "3")
    rows = parquet.read_table(table).to_pylist()
    assert sorted(row["value"] for row in rows) == [b"old 0", b"old 1", b"old 2"]
    with pytest.raises(JobError, match="deleted and created again"):
        run_to_parquet(root, table, lambda step: None)


def test_partitions_that_are_added_while_a_run_goes_on(tmp_path: Path) -> None:
    """Add a partition after a run has begun: its records come with the next run."""
    root, table = stored(tmp_path / "root", [b"0", b"1"]), tmp_path / "table"

    async def grow() -> None:
        fs = LocalFileSystem(tmp_path / "root", "test")
        (topic,) = await find_topics(fs, ReadOptions.parse({"root": root, "topic": "orders"}))
        store = Store(fs, "orders", topic.topic_id)
        await store.resize(2)
        await store.segment([batch(0, b"2", timestamp=START_MS)], partition=1)
        await fs.close()

    def on_step(step: str) -> None:
        if step == "begun" and not (tmp_path / "root" / "topics" / "orders" / "grown").exists():
            (tmp_path / "root" / "topics" / "orders" / "grown").touch()
            apart(lambda: asyncio.run(grow()))

    assert run_to_parquet(root, table, on_step) == 0
    assert sorted(row["value"] for row in parquet.read_table(table).to_pylist()) == [b"0", b"1"]
    assert run_to_parquet(root, table, on_step) == 0
    assert sorted(row["value"] for row in parquet.read_table(table).to_pylist()) == [b"0", b"1", b"2"]


def run_to_parquet(root: str, table: Path, on_step: Step, *arguments: str) -> int:
    parser = ArgumentParser()
    parquet_job.add_arguments(parser)
    add_session_arguments(parser)
    given = ["--master", "local[2]", "--root", root, "--topic", "orders", "--table", str(table), *arguments]
    return parquet_job.run(parser.parse_args(given), on_step)


def apart(work: Callable[[], object]) -> None:
    """Do the work in a thread, since a step is reported on a running loop."""
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


@pytest.mark.parametrize("modes", [("permissive", "failfast"), ("failfast", "permissive")])
def test_files_of_both_modes_are_merged(tmp_path: Path, modes: tuple[str, str]) -> None:
    """Merge files of both modes, of which only those of one have the column _corrupt."""
    values: dict[str, list[bytes | None]] = {"permissive": [b'{"id": 1}', b"{"], "failfast": [b'{"id": 2}', None]}
    read: dict[str, list[Any]] = {
        "permissive": [({"id": 1}, None), (None, b"{")],
        "failfast": [({"id": 2}, None), (None, None)],
    }
    root = stored(tmp_path / "root", [value for mode in modes for value in values[mode]])
    arguments = ("--format", "json", "--schema", "id int", "--merge-files", "2")
    to_parquet(tmp_path, root, *arguments, "--mode", modes[0], "--to", '{"orders": {"0": 2}}')
    rows = to_parquet(tmp_path, root, *arguments, "--mode", modes[1])
    assert [(row["value"], row["_corrupt"]) for row in rows] == [pair for mode in modes for pair in read[mode]]
    assert len(list((tmp_path / "table").glob("date=*/*.parquet"))) == 1


def test_framed_json(tmp_path: Path) -> None:
    """Infer the schema from framed values; one without a frame is corrupt, whatever follows its first five bytes."""
    head = b"\0\0\0\0\x09"
    values = [b'12345{"id": 1}', head + b'{"id": 2}', head, b"\0{}", None]
    root = stored(tmp_path / "root", [*values])
    rows = to_parquet(tmp_path, root, "--format", "json", "--framing", "confluent")
    assert [row["value"] for row in rows] == [None, {"id": 2}, None, None, None]
    assert [row["_corrupt"] for row in rows] == [values[0], None, head, values[3], None]


AVRO = {
    "type": "record", "name": "Order", "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "tags", "type": {"type": "map", "values": "int"}},
        {"name": "parts", "type": {"type": "array", "items": {
            "type": "record", "name": "Part", "fields": [{"name": "n", "type": "int"}]}}},
    ],
}  # fmt: skip


def avro_value(record: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(AVRO), record)
    return stream.getvalue()


ORDER = {"id": 7, "note": None, "at": datetime(2026, 11, 1, 12, tzinfo=UTC), "tags": {"a": 1}, "parts": [{"n": 3}]}


def test_avro(tmp_path: Path) -> None:
    record = {**ORDER, "price": Decimal("1.25")}
    schema = tmp_path / "order.avsc"
    schema.write_text(json.dumps(AVRO))
    values = [avro_value(record), None, b"\xff"]
    root = stored(tmp_path / "root", values)
    rows = to_parquet(tmp_path, root, "--format", "avro", "--schema", str(schema))
    assert rows[0]["value"] == {**record, "tags": [("a", 1)]}
    assert [row["value"] for row in rows[1:]] == [None] * 2
    assert [row["_corrupt"] for row in rows] == [None, None, b"\xff"]


def test_framed_avro_of_many_schemas_in_a_table_that_gets_a_column(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Read each value by its writer's schema; a run with a later schema adds its column to the table."""
    string, refund = ["null", "string"], {"type": "record", "name": "Refund", "fields": [{"name": "n", "type": "long"}]}
    first = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
    later = {**first, "fields": [{"name": "name", "type": string, "default": None}, *first["fields"]]}
    folder = tmp_path / "schemas"
    folder.mkdir()
    for number, schema in ((1, first), (2, later), (3, refund)):
        (folder / f"{number}.avsc").write_text(json.dumps(schema))

    def value(number: int, schema: dict[str, Any], **fields: Any) -> bytes:
        stream = io.BytesIO(b"\0" + number.to_bytes(4, "big"))
        stream.seek(5)
        fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), fields)
        return stream.getvalue()

    values = [value(1, first, id=1), value(2, later, name="b", id=2), value(3, refund, n=9900), value(9, first, id=4)]
    root = stored(tmp_path / "root", [*values, value(2, later, name="e", id=5)])
    given = ["--format", "avro", "--framing", "confluent", "--schemas", str(folder), "--schema"]
    to_parquet(tmp_path, root, *given, str(folder / "1.avsc"), "--to", '{"orders": {"0": 4}}', "--merge-files", "0")
    says = (
        "committed 4 records of 4 offsets, 1 files; 2 values are corrupt; 1 values have fields that the schema does not"
    )
    assert says in capfd.readouterr().err
    rows = to_parquet(tmp_path, root, *given, str(folder / "2.avsc"), "--merge-files", "2")
    assert [row["value"] for row in rows] == [
        {"name": None, "id": 1}, {"name": None, "id": 2}, None, None, {"name": "e", "id": 5},
    ]  # fmt: skip
    assert [row["_corrupt"] for row in rows] == [None, None, values[2], values[3], None]
    with pytest.raises(JobError, match=r"cannot take this --schema: the table has value\.name, which --schema"):
        run_to_parquet(root, tmp_path / "table", lambda step: None, *given, str(folder / "1.avsc"))


def descriptors() -> descriptor_pb2.FileDescriptorSet:
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    state = file.enum_type.add(name="State")
    for number, name in enumerate(("NEW", "PAID")):
        state.value.add(name=name, number=number)
    part = file.message_type.add(name="Part")
    field = descriptor_pb2.FieldDescriptorProto
    part.field.add(name="n", number=1, type=field.TYPE_UINT64, label=field.LABEL_OPTIONAL)
    order = file.message_type.add(name="Order")
    order.field.add(name="id", number=1, type=field.TYPE_INT64, label=field.LABEL_OPTIONAL)
    order.field.add(name="state", number=2, type=field.TYPE_ENUM, type_name=".shop.State", label=field.LABEL_OPTIONAL)
    order.field.add(name="part", number=3, type=field.TYPE_MESSAGE, type_name=".shop.Part", label=field.LABEL_OPTIONAL)
    order.field.add(name="names", number=4, type=field.TYPE_STRING, label=field.LABEL_REPEATED)
    return descriptor_pb2.FileDescriptorSet(file=[file])


def test_protobuf(tmp_path: Path) -> None:
    files = descriptors()
    pool = descriptor_pool.DescriptorPool()
    pool.Add(files.file[0])
    order = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    good = order(id=7, state=1, part={"n": 2**64 - 1}, names=["a", "b"]).SerializeToString()
    path = tmp_path / "order.desc"
    path.write_bytes(files.SerializeToString())
    root = stored(tmp_path / "root", [good, b"", b"\xff\xff"])
    rows = to_parquet(tmp_path, root, "--format", "protobuf", "--schema", str(path), "--message", "shop.Order")
    assert rows[0]["value"] == {"id": 7, "state": "PAID", "part": {"n": 2**64 - 1}, "names": ["a", "b"]}
    assert rows[1]["value"] == {"id": 0, "state": "NEW", "part": None, "names": []}
    assert (rows[2]["value"], rows[2]["_corrupt"]) == (None, b"\xff\xff")


# ---------------------------------------------------------------------------------------------------------------- audit


def faulty(folder: Path, *, is_cleaned: bool = False) -> str:
    """Ten records; an aborted transaction of two; a hole of three; a batch that was sent twice.

    The topic's policy is to compact.  ``is_cleaned``: compaction took the records of the hole and two others.
    """

    async def write() -> None:
        fs = LocalFileSystem(folder, "test")
        store = await Store(fs, "orders", uuid.uuid4()).create(2, is_compacted=True)
        hour = 3_600_000
        batches = [batch(n, b"v%d" % n, timestamp=START_MS + n * hour) for n in range(10)]
        batches += [
            transactional(10, b"x", b"y", pid=7, timestamp=START_MS),
            marker(12, pid=7, is_abort=True, timestamp=START_MS),
            batch(16, b"once", timestamp=START_MS, pid=8),
            batch(17, b"once", timestamp=START_MS, pid=8),
        ]
        if is_cleaned:
            batches[13:] = [*map(bytes, build_gap(13, 16, 1)), batch(16, b"0", b"1", b"2", timestamp=START_MS)]
            batches[14] = cleaned_batch(batches[14], {17}, horizon=START_MS + 9 * hour)
        await store.segment(batches)
        await fs.close()

    asyncio.run(write())
    return folder.as_uri()


def audit(root: str, output: Path, *arguments: str) -> tuple[int, list[dict[str, Any]]]:
    command = ["job", "audit", "--master", "local[2]", "--root", root, "--topic", "orders", "--output", str(output)]
    status = main([*command, *arguments])
    return status, [json.loads(line) for line in output.read_text().splitlines()]


def test_audit_of_faults(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, picture = faulty(tmp_path / "root"), tmp_path / "audit.png"
    status, rows = audit(root, tmp_path / "audit.json", "--picture", str(picture))
    printed = capsys.readouterr().out
    assert status == 1
    assert "partition 0: 3 offsets have no batch, for no known reason" in printed
    assert "partition 0: 1 records are in batches that are there twice" in printed
    assert "offsets 13 to 16 (3, missing)" in printed
    assert "could not be read" not in printed
    first = rows[0]
    assert first["hour"] == "2023-11-14T22:00:00+00:00"
    counts = ("records", "batches", "stored", "control", "aborted", "missing", "resent", "value_bytes")
    assert [first[name] for name in counts] == [3, 5, 5, 1, 2, 3, 1, 10]
    assert [row["records"] for row in rows] == [3, *[1] * 9]
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_audit_of_a_compacted_topic(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Offsets whose records compaction took have batches; the policy of a topic explains no others."""
    status, rows = audit(faulty(tmp_path / "root", is_cleaned=True), tmp_path / "audit.json")
    printed = capsys.readouterr().out
    assert status == 0
    assert "every offset is accounted for" in printed
    assert [sum(row[name] for row in rows) for name in ("removed", "compacted", "missing")] == [2, 3, 0]


def test_an_audit_while_retention_removes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Remove a segment between the audit's listing and its counting: its records do not count as missing."""
    root = tmp_path / "root"
    real = Audit.cells
    store: list[Store] = []

    async def write() -> None:
        fs = LocalFileSystem(root, "test")
        store.append(await Store(fs, "orders", uuid.uuid4()).create())
        await store[0].segment([batch(n, b"v") for n in range(10)])
        await store[0].segment([batch(n, b"v") for n in range(10, 20)], n=1)
        await fs.close()

    def remove() -> None:
        log = next(root.rglob("00000000000000000000-*.log"))
        log.with_suffix(".idx").unlink()
        log.unlink()

    def cells(self: Audit, **given: Any) -> Any:
        if list(root.rglob("00000000000000000000-*.log")):
            remove()
        return real(self, **given)

    asyncio.run(write())
    monkeypatch.setattr(Audit, "cells", cells)
    status, rows = audit(root.as_uri(), tmp_path / "audit.json", "--json")
    printed = json.loads(capsys.readouterr().out)
    assert (status, printed["faults"]) == (0, [])
    assert (printed["partitions"]["0"]["start"], printed["partitions"]["0"]["end"]) == (10, 20)
    assert sum(row["records"] for row in rows) == 10


def transactions(folder: Path) -> str:
    """Two producers', interleaved; the last of one has not ended."""

    async def write() -> None:
        fs = LocalFileSystem(folder, "test")
        store = await Store(fs, "orders", uuid.uuid4()).create(1)
        first = [
            transactional(0, b"a", b"b", pid=7),
            transactional(2, b"c", pid=8),
            batch(3, b"d"),
            marker(4, pid=7, is_abort=True),
            transactional(5, b"e", pid=7),
            transactional(6, b"f", pid=8),
        ]
        second = [
            marker(7, pid=8, is_abort=False),
            transactional(8, b"g", pid=8),
            marker(9, pid=7, is_abort=False),
            marker(10, pid=8, is_abort=True),
            transactional(11, b"h", b"i", pid=7),
        ]
        await store.segment(first)
        await store.segment(second, n=1)
        await fs.close()

    asyncio.run(write())
    return folder.as_uri()


def test_audit_of_transactions(tmp_path: Path) -> None:
    """Each batch's outcome is its producer's next marker.  No window looks ahead: that is work by the square."""
    from bmq.spark.jobs.audit_frames import Audit
    from bmq.spark.jobs.batches import BatchHeaders

    session = start_spark()
    try:
        session.dataSource.register(BatchHeaders)
        options = {"root": transactions(tmp_path / "root"), "topic": "orders", "isolationLevel": "read_uncommitted"}
        judged = Audit(session, options, {0: (0, 13)})._batches
        rows = judged.where("aborted > 0 or undecided > 0").orderBy("base_offset").collect()
        plan = judged._jdf.queryExecution().toString()
    finally:
        session.stop()
    assert [(row.base_offset, row.aborted, row.undecided) for row in rows] == [(0, 2, 0), (8, 1, 0), (11, 0, 2)]
    assert "specifiedwindowframe(RowFrame" in plan
    assert "unboundedfollowing" not in plan


def test_audit_of_what_a_server_wrote(root: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, rows = audit(root, tmp_path / "audit.json", "--same-content")
    printed = capsys.readouterr().out
    assert status == 0, printed
    assert "every offset is accounted for" in printed
    assert sum(row["records"] for row in rows) == RECORDS
    assert len({row["hour"] for row in rows}) == len({(START_MS + n * 60_000) // 3_600_000 for n in range(RECORDS)})
    assert not any(row["same_content"] for row in rows)


def test_spark_submit(tmp_path: Path) -> None:
    """The same module as an application: Spark starts Python here, not the other way round."""
    root, table = stored(tmp_path / "root", [b"a", b"b"]), tmp_path / "audit.csv"
    command = [str(Path(sys.executable).with_name("spark-submit")), "--master", "local[1]"]
    command += ["--driver-java-options", SHORT_LIVED, "--conf", "spark.sql.shuffle.partitions=2"]
    command += [str(audit_job.__file__), "--root", root, "--topic", "orders", "--output", str(table)]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=JOB_TIMEOUT_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every offset is accounted for" in done.stdout
    assert len(table.read_text().splitlines()) == 2  # names, and one hour

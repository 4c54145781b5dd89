"""An old state of the metadata store is brought back beside a root that went on: noticed before the first write.

A copied SQLite file, and the data of an etcd as it was at an earlier moment, which is what `etcdutl snapshot restore`
makes.  No process starts with it.  Where the root has no count of the store, as one of an earlier version, partitions
notice: no acknowledged offset is given twice, the log names the command that mends it, and after it nothing is missing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message, Producer

from tests.integration.conftest import EtcdFactory
from tests.integration.load import Writer, check_log, create_topic
from tests.services.bmq import BmqServer
from tests.services.processes import wait_for

BMQ = str(Path(sys.executable).with_name("bmq"))
OLDER = "the metadata store is older than storage"
TOPIC = "orders"
PARTITIONS = 2
RECORDS = 2_000
TIMEOUT_S = 120.0


def rebuild(root: str, meta: str) -> None:
    done = subprocess.run(
        [BMQ, "cluster", "rebuild", "--root", root, "--meta", meta],
        env=dict(os.environ), capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def check_not_started(server: BmqServer) -> None:
    """Check that a process does not start with this store, and says why and what to do."""
    before = len(server.log.read_text())
    server.start(wait=False)
    assert server.process.wait_end(timeout_s=TIMEOUT_S) == 1
    said = server.log.read_text()[before:]
    assert OLDER in said
    assert "bmq cluster rebuild" in said
    assert "ready" not in said


def forget_count(root: Path) -> None:
    """Remove the count of the store from the root: a root of an earlier version has none."""
    (count,) = (root / "store").iterdir()
    count.rmdir()


def check_refused(server: BmqServer) -> None:
    """Check that no partition takes a record, that the log says why, and that a repair is refused."""
    outcomes: list[tuple[KafkaError | None, int | None]] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        outcomes.append((error, message.offset()))

    producer = Producer(
        {"bootstrap.servers": server.bootstrap, "message.timeout.ms": 5_000, "enable.idempotence": False}
    )
    for partition in range(PARTITIONS):
        producer.produce(TOPIC, b"given twice?", partition=partition, on_delivery=delivered)
    assert producer.flush(TIMEOUT_S) == 0
    assert [error is not None for error, _ in outcomes] == [True] * PARTITIONS, outcomes
    wait_for(lambda: OLDER in server.log.read_text(), "a line in the log", timeout_s=TIMEOUT_S)
    repaired = subprocess.run(
        [BMQ, "segment", "repair", TOPIC, "0", "--http", server.http, "--yes"],
        env=dict(os.environ), capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert repaired.returncode != 0
    assert "store is older than storage" in repaired.stderr
    assert "bmq cluster rebuild" in repaired.stderr


def write_on(server: BmqServer, writer: Writer) -> None:
    """Go on for two more lives of the process: each has segments of its own."""
    for _ in range(2):
        server.restart()
        writer.wait_acked(RECORDS)


@pytest.mark.smoke
def test_a_copy_of_the_sqlite_file(tmp_path: Path) -> None:
    root, meta = (tmp_path / "log").as_uri(), f"sqlite://{tmp_path}/meta.db"
    server = BmqServer(root, meta, folder=tmp_path)
    try:
        server.start()
        create_topic(server.bootstrap, TOPIC, PARTITIONS)
        writer = Writer(server.bootstrap, TOPIC, PARTITIONS)
        writer.start()
        writer.wait_acked(RECORDS)
        server.kill()
        old = {path: path.read_bytes() for path in tmp_path.glob("meta.db*")}
        write_on(server, writer)
        writer.finish()
        server.kill()
        for path in tmp_path.glob("meta.db*"):
            path.unlink()
        for path, data in old.items():
            path.write_bytes(data)
        check_not_started(server)
        forget_count(tmp_path / "log")
        for _ in range(3):  # each start raises the epoch of the old store
            server.restart()
        check_refused(server)
        server.kill()
        for path in tmp_path.glob("meta.db*"):
            path.unlink()
        rebuild(root, meta)
        server.start()
        check_log(server.bootstrap, writer)
        server.stop()
    finally:
        server.kill()


def test_an_etcd_that_was_restored(tmp_path: Path, etcd_new: EtcdFactory) -> None:
    """The data of the stopped etcd is copied, and put back later: keys and revisions go back, as by a snapshot."""
    etcd = etcd_new()
    root = (tmp_path / "log").as_uri()
    server = BmqServer(root, etcd.url, folder=tmp_path)
    try:
        server.start()
        create_topic(server.bootstrap, TOPIC, PARTITIONS)
        writer = Writer(server.bootstrap, TOPIC, PARTITIONS)
        writer.start()
        writer.wait_acked(RECORDS)
        server.kill()
        etcd.kill_all()
        shutil.copytree(etcd.folder / "data", tmp_path / "old")
        etcd.heal()
        write_on(server, writer)
        writer.finish()
        server.kill()
        etcd.kill_all()
        shutil.rmtree(etcd.folder / "data")
        shutil.copytree(tmp_path / "old", etcd.folder / "data")
        etcd.heal()
        check_not_started(server)
        forget_count(tmp_path / "log")
        server.start()
        check_refused(server)
        server.kill()
        etcd.kill_all()
        shutil.rmtree(etcd.folder / "data")
        etcd.heal()
        rebuild(root, etcd.url)
        server.start()
        check_log(server.bootstrap, writer)
        server.stop()
    finally:
        server.kill()

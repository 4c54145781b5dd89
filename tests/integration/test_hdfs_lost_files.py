"""Open files after an administrator's deletion, a restart of the datanodes, or the loss of all of them at once."""

from __future__ import annotations

import time
from pathlib import Path

import hdfs_native
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.integration.conftest import HdfsFactory
from tests.integration.load import create_topic
from tests.services.bmq import BmqServer
from tests.services.hdfs import HdfsCluster
from tests.services.processes import wait_for

TOPIC = "orders"
TIMEOUT_S = 180.0


def send(bootstrap: str, count: int, value: bytes = b"v") -> int:
    """Produce records, require that all are acknowledged, and return the last one's offset."""
    offsets: list[int | None] = []
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "message.timeout.ms": 120_000})
    for _ in range(count):
        producer.produce(TOPIC, value, on_delivery=lambda error, message: offsets.append(message.offset()))
    assert producer.flush(120) == 0
    assert len(offsets) == count
    last = max(offset for offset in offsets if offset is not None)
    assert None not in offsets
    return last


def watermarks(bootstrap: str) -> tuple[int, int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "w"})
    try:
        low, high = consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), timeout=60)
        return low, high
    finally:
        consumer.close()


def first_answer(bootstrap: str, offset: int) -> int | KafkaError:
    """Return the offset of the first record from this offset on, or the error that the consumer gets."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "r", "auto.offset.reset": "error"})
    try:
        consumer.assign([TopicPartition(TOPIC, 0, offset)])
        message = consumer.poll(60)
        assert message is not None, f"the consumer waits at offset {offset} in silence"
        error, found = message.error(), message.offset()
        if error is not None:
            return error
        assert found is not None
        return found
    finally:
        consumer.close()


def test_rule_10_a_log_start_outlives_all_datanodes_at_once(hdfs_new: HdfsFactory, tmp_path: Path) -> None:
    """The deletion stands in the journal alone, whose replicas wait for recovery when they are read."""
    hdfs = hdfs_new(datanodes=3)
    with BmqServer(f"{hdfs.root}/all-at-once", folder=tmp_path) as server:
        create_topic(server.bootstrap, TOPIC, 1)
        send(server.bootstrap, 1000)
        admin = AdminClient({"bootstrap.servers": server.bootstrap})
        for future in admin.delete_records([TopicPartition(TOPIC, 0, 500)]).values():
            future.result(60)
        assert watermarks(server.bootstrap) == (500, 1000)
        server.kill()
        for index in range(3):
            hdfs.kill_datanode(index)
        for index in range(3):
            hdfs.restart_datanode(index)
        server.start()
        assert send(server.bootstrap, 1) == 1000
        assert watermarks(server.bootstrap) == (500, 1001)


def test_an_idle_topic_is_read_after_a_rolling_restart_of_the_datanodes(hdfs_new: HdfsFactory, tmp_path: Path) -> None:
    """Nobody produces: the open segment and the journal are closed, and can be read, all the same.

    Each replica of an open file waits for recovery once its datanode has been restarted, and gives no bytes.  The
    records are several times what the server keeps in memory.
    """
    hdfs = hdfs_new(datanodes=3)
    count, value = 100, bytes(500_000)
    small = {"BMQ_CACHE_BYTES": str(16 << 20)}
    with BmqServer(f"{hdfs.root}/idle", folder=tmp_path, environment=small) as server:
        create_topic(server.bootstrap, TOPIC, 1)
        send(server.bootstrap, count, value)
        for index in range(3):
            hdfs.restart_datanode(index)
        assert read_from_start(server.bootstrap, count, timeout_s=60) == list(range(count))


def read_from_start(bootstrap: str, count: int, *, timeout_s: float) -> list[int]:
    """Return the offsets of the first ``count`` records, or of those that came in time."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "s", "auto.offset.reset": "error"})
    offsets: list[int] = []
    until = time.monotonic() + timeout_s
    try:
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        while len(offsets) < count and time.monotonic() < until:
            message = consumer.poll(1)
            if message is not None and message.error() is None:
                offset = message.offset()
                assert offset is not None
                offsets.append(offset)
        return offsets
    finally:
        consumer.close()


def test_an_open_segment_that_is_deleted(hdfs: HdfsCluster, hdfs_root: str, tmp_path: Path) -> None:
    """Delete an open segment: the log reports it, writing goes on in a new one, and lost records give an error."""
    with BmqServer(hdfs_root, folder=tmp_path) as server:
        create_topic(server.bootstrap, TOPIC, 1)
        send(server.bootstrap, 10)
        client = hdfs_native.Client(hdfs.root)
        root = hdfs_root.removeprefix(hdfs.root)
        (path,) = [each.path for each in client.list_status(root, recursive=True) if each.path.endswith(".log")]
        assert client.delete(path)

        def is_told() -> bool:
            send(server.bootstrap, 1)
            return b"was deleted or moved while" in server.log.read_bytes()

        wait_for(is_told, "the report in the log", timeout_s=TIMEOUT_S)
        kept = send(server.bootstrap, 10) - 9
        assert first_answer(server.bootstrap, kept) == kept
        server.kill()  # its caches have the records yet
        server.start()
        assert isinstance(first_answer(server.bootstrap, 0), KafkaError)
        assert first_answer(server.bootstrap, kept) == kept

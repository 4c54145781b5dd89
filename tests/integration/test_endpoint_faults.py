"""Faults under real clients: ``kill -9`` of the server, and datanodes that die, stop and crawl.

An idempotent librdkafka producer on default retries writes numbered records without pause; no produce may fail.  In the
end every record stands in the log once, in its producer's order.  How long a partition gave no answer is reported.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.integration.history import report
from tests.services.bmq import BmqServer
from tests.services.hdfs import HdfsCluster

IS_SOAK = bool(os.environ.get("BMQ_SOAK"))
KILLS = 50 if IS_SOAK else 4
ROUNDS = 12 if IS_SOAK else 4
TOPIC = "faults"
PARTITIONS = 4
VALUE_BYTES = 1000
LIMIT_S = 120.0
SLOW_PERIOD_S = 4.0


@dataclass
class Writer:
    """A producer in a thread of its own, from ``start`` to ``finish``."""

    bootstrap: str
    errors: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._acked = [0] * PARTITIONS
        self._last_ack = [0.0] * PARTITIONS
        self._longest_pause_s = 0.0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.sent = 0

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 5,
                "compression.type": "none",
            }
        )
        self._last_ack = [time.monotonic()] * PARTITIONS
        while not self._stop.is_set():
            value = b"%012d" % self.sent + b"." * VALUE_BYTES
            try:
                producer.produce(TOPIC, value, partition=self.sent % PARTITIONS, on_delivery=self._delivered)
            except BufferError:
                producer.poll(0.05)
                continue
            self.sent += 1
            producer.poll(0)
            if self.sent % 50 == 0:
                time.sleep(0.005)  # about 8 MB/s: a load, not a benchmark
        left = producer.flush(LIMIT_S)
        if left:
            self.errors.append(f"{left} records were not answered after {LIMIT_S} s")

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        now, partition = time.monotonic(), message.partition()
        assert partition is not None
        self._longest_pause_s = max(self._longest_pause_s, now - self._last_ack[partition])
        self._last_ack[partition] = now
        if error is not None:
            self.errors.append(str(error))
        else:
            self._acked[partition] += 1

    def take_pause(self) -> float:
        """The longest time in which a partition gave no answer, since it was last asked, in seconds."""
        longest = max(self._longest_pause_s, time.monotonic() - min(self._last_ack))
        self._longest_pause_s = 0.0
        return longest

    def wait_acked(self, more: int) -> None:
        """Until every partition has acknowledged its share of so many more: none hides behind the others."""
        goals, end = [acked + more // PARTITIONS for acked in self._acked], time.monotonic() + LIMIT_S
        while any(acked < goal for acked, goal in zip(self._acked, goals, strict=True)):
            assert not self.errors, self.errors
            assert time.monotonic() < end, f"only {self._acked} of {goals} acknowledged after {LIMIT_S} s"
            time.sleep(0.005)

    def finish(self) -> None:
        self._stop.set()
        self._thread.join(2 * LIMIT_S)
        assert not self._thread.is_alive()
        assert not self.errors, self.errors
        assert sum(self._acked) == self.sent


def describe(pauses: list[float]) -> str:
    """One pause for each fault."""
    return (
        "longest time without an answer from a partition"
        f" min/median/max {min(pauses):.2f}/{median(pauses):.2f}/{max(pauses):.2f} s"
    )


def create_topic(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(TOPIC, PARTITIONS, -1)], operation_timeout=30).values():
        future.result(30)


def check_log(bootstrap: str, count: int) -> None:
    """Each partition holds its share, once, in order."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "check", "enable.auto.commit": False, "enable.partition.eof": True}
    )
    consumer.assign([TopicPartition(TOPIC, partition, OFFSET_BEGINNING) for partition in range(PARTITIONS)])
    found: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}
    ended: set[int] = set()
    end = time.monotonic() + LIMIT_S
    while len(ended) < PARTITIONS:
        assert time.monotonic() < end, f"read {sum(map(len, found.values()))} of {count}, ended {ended}"
        for message in consumer.consume(10_000, 0.5):
            error, partition, value = message.error(), message.partition(), message.value()
            assert partition is not None
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ended.add(partition)
                continue
            assert message.offset() == len(found[partition]), "offsets have a gap"
            found[partition].append(int((value or b"")[:12]))
    consumer.close()
    for partition, numbers in found.items():
        assert numbers == list(range(partition, count, PARTITIONS)), f"partition {partition}: lost, doubled or swapped"


def kill_again_and_again(server: BmqServer, kills: int, request: pytest.FixtureRequest) -> None:
    create_topic(server.bootstrap)
    writer = Writer(server.bootstrap)
    writer.start()
    rng, pauses = random.Random(7), []
    for _ in range(kills):
        writer.wait_acked(rng.randint(500, 8000))
        writer.take_pause()
        server.restart()
        writer.wait_acked(500)
        pauses.append(writer.take_pause())
    writer.finish()
    check_log(server.bootstrap, writer.sent)
    report(request, f"{kills} x kill -9 and restart: {writer.sent} records, {describe(pauses)}")


@pytest.mark.smoke
def test_kill_9_on_a_local_folder(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    with BmqServer((tmp_path / "root").as_uri(), folder=tmp_path) as server:
        kill_again_and_again(server, KILLS, request)


def test_kill_9_on_hdfs(hdfs_root: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    with BmqServer(hdfs_root, folder=tmp_path) as server:
        kill_again_and_again(server, KILLS, request)


def break_datanode(cluster: HdfsCluster, index: int, fault: str) -> Callable[[], None]:
    """Break it; the call undoes that."""
    if fault == "killed":
        cluster.kill_datanode(index)
        return lambda: cluster.restart_datanode(index)
    if fault == "stopped":
        cluster.stop_datanode(index)
    else:
        cluster.slow_datanode(index, stopped=0.9, period_s=SLOW_PERIOD_S)
    return lambda: cluster.resume_datanode(index)


@pytest.mark.parametrize("fault", ["killed", "stopped", "slowed"])
def test_datanode(
    fault: str, hdfs: HdfsCluster, hdfs_root: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """One datanode of the open pipelines fails under load; it comes back before the next round."""
    with BmqServer(hdfs_root, folder=tmp_path) as server:
        create_topic(server.bootstrap)
        writer = Writer(server.bootstrap)
        writer.start()
        pauses = []
        for number in range(ROUNDS):
            writer.wait_acked(4000)
            writer.take_pause()
            undo = break_datanode(hdfs, number % len(hdfs.datanodes), fault)
            end = time.monotonic() + (2 * SLOW_PERIOD_S if fault == "slowed" else 0)  # meets it running and stopped
            writer.wait_acked(6000)
            while time.monotonic() < end:
                writer.wait_acked(1000)
            pauses.append(writer.take_pause())
            undo()
        writer.finish()
        check_log(server.bootstrap, writer.sent)
        report(request, f"{len(pauses)} x datanode {fault}: {writer.sent} records, {describe(pauses)}")

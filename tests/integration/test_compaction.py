"""A compacted topic of a real server, on a folder and on HDFS: it is cleaned, also across kills, and readers agree."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import hdfs_native
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic
from kafka import KafkaConsumer
from kafka import TopicPartition as KafkaPartition

from tests.services.bmq import BmqServer
from tests.services.hdfs import HdfsCluster
from tests.services.hdfs_tools import hdfs_tool
from tests.services.processes import wait_for
from tests.services.spark import frame, start_spark

BMQ = str(Path(sys.executable).with_name("bmq"))
TIMEOUT_S = 120.0
TOPIC = "accounts"
KEYS = 20
VALUE_BYTES = 20_000
UPDATES = 250
"""Records of one burst: 5 MB, which are five segments of one block."""
KILLS = 3
START_MS = 1_700_000_000_000
SETTINGS = {
    "BMQ_OFFSETS_TOPIC_NUM_PARTITIONS": "1",
    "BMQ_CACHE_BYTES": str(64 << 20),
    "BMQ_BLOCK_BYTES": str(1 << 20),
    "BMQ_LOG_CLEANER_BACKOFF_MS": "100",
}
CONFIGS = {
    "cleanup.policy": "compact",
    "segment.bytes": str(1 << 20),
    "min.cleanable.dirty.ratio": "0",
    "file.delete.delay.ms": "0",
}
UNCLEANABLE = "kafka_log_logcleanermanager_uncleanable_partitions_count"
Read = tuple[int, int, bytes, bytes]
"""Offset, timestamp, key and value of a record."""


class Story:
    """One topic, its server, and the model: ``last`` has each key's last acknowledged record."""

    def __init__(self, server: BmqServer, root: str, names: Callable[[], list[str]]) -> None:
        self.server = server
        self.root = root
        self.names = names
        self.last: dict[bytes, Read] = {}
        self.end = 0

    def update(self, count: int = UPDATES) -> None:
        """Produce records of keys in turn, each with a time of its own."""
        producer = Producer({"bootstrap.servers": self.server.bootstrap, "batch.num.messages": 10, "linger.ms": 50})

        def done(error: KafkaError | None, message: Message) -> None:
            assert error is None, error
            key, value, offset = message.key(), message.value(), message.offset()
            assert key is not None
            assert value is not None
            assert offset is not None
            self.last[key] = (offset, message.timestamp()[1], key, value)

        for number in range(self.end, self.end + count):
            key = b"k%d" % (number * 7 % KEYS)
            value = b"%d " % number + os.urandom(VALUE_BYTES)
            producer.produce(TOPIC, key=key, value=value, timestamp=START_MS + number, partition=0, on_delivery=done)
        assert producer.flush(TIMEOUT_S) == 0
        self.end += count

    def cleaned(self) -> set[str]:
        """Return the names of cleaned segments: those with a fourth number."""
        return {name for name in self.names() if re.fullmatch(r"\d+-\d+-\d+-\d+\.log", name)}

    def metric(self, name: str) -> float:
        with urllib.request.urlopen(f"{self.server.http}/metrics", timeout=TIMEOUT_S) as response:
            text = response.read().decode()
        (found,) = re.findall(rf"^{name} (\S+)$", text, re.MULTILINE)
        return float(found)

    def size(self) -> int:
        described = self.bmq("topic", "describe", TOPIC, "--json", "--bootstrap", self.server.bootstrap)
        (partition,) = json.loads(described)["partitions"]
        return int(partition["bytes"])

    def cleaning(self) -> dict[str, Any]:
        """Return the state of cleaning of the topic's partition, as a user of the command line gets it."""
        described = self.bmq(*self.describe, "--json")
        (partition,) = json.loads(described)["partitions"]
        return dict(partition["cleaning"])

    @property
    def describe(self) -> tuple[str, ...]:
        return ("topic", "describe", TOPIC, "--bootstrap", self.server.bootstrap, "--http", self.server.http)

    def bmq(self, *arguments: str) -> str:
        done = subprocess.run([BMQ, *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def check(self, found: list[Read], start_ms: int = 0) -> None:
        """Check that a reader found the last record of each key among those from ``start_ms`` on."""
        last = {key: record for record in found for key in (record[2],)}
        assert last == {key: record for key, record in self.last.items() if record[1] >= start_ms or key in last}
        assert [record[0] for record in found] == sorted({record[0] for record in found})

    def check_found(self, offset: int, time: int, earlier: list[Read]) -> None:
        """Check the result of a search by time among the records of an ``earlier`` read.

        The log may have been cleaned again meanwhile.  So the search passes over records that have a later one of their
        key, and over no others.
        """
        found = [record for record in earlier if record[1] >= time]
        assert offset in {record[0] for record in found}
        passed_over = [record for record in found if record[0] < offset]
        assert all(self.last[record[2]][0] > record[0] for record in passed_over), passed_over

    def check_first(self, first: Read, offset: int, time: int) -> None:
        """Check the first record of a read from the offset that a search has found.

        Another record comes first only if the log was cleaned meanwhile, of a record that a later one replaces.
        """
        if first[:2] != (offset, time):
            assert first[0] > offset
            assert offset not in {record[0] for record in self.last.values()}


def kill_in_a_cleaning(story: Story) -> None:
    """Update the topic, and kill the server as soon as a draft or another cleaned segment is on storage."""
    before = story.cleaned()
    story.update()
    wait_for(
        lambda: story.cleaned() != before or any(name.startswith(".clean") for name in story.names()),
        "a cleaning that has begun",
        timeout_s=TIMEOUT_S,
        interval_s=0.005,
    )
    story.server.restart()


def run(story: Story) -> None:
    admin = AdminClient({"bootstrap.servers": story.server.bootstrap})
    admin.create_topics([NewTopic(TOPIC, 1, -1, config=CONFIGS)])[TOPIC].result(30)
    for _ in range(KILLS):
        kill_in_a_cleaning(story)
    story.update()
    produced = story.end * VALUE_BYTES
    wait_for(lambda: story.size() < produced / 2, "fewer bytes", timeout_s=TIMEOUT_S, interval_s=0.5)
    wait_for(lambda: story.metric("bmq_cleaning_rounds_total") > 0, "a round of this process", timeout_s=TIMEOUT_S)
    assert story.metric("bmq_cleaning_bytes_after_total") < story.metric("bmq_cleaning_bytes_before_total")
    assert story.metric(UNCLEANABLE) == 0
    check_shown(story)
    times = [START_MS + number for number in range(0, story.end, story.end // 9)]
    read_with_librdkafka(story, times)
    read_with_kafka_python(story, times)
    asyncio.run(asyncio.wait_for(read_with_aiokafka(story, times), TIMEOUT_S))


def check_shown(story: Story) -> None:
    """Check that operators see the last round of the log, and why it is not cleaned now."""
    wait_for(lambda: story.cleaning()["reason"] == "open_segment", "a clean log", timeout_s=TIMEOUT_S)
    state = story.cleaning()
    assert state["dirty_percent"] == 0
    assert state["why"] == "all closed segments are clean"
    assert 0 < state["bytes_after"] < state["bytes_before"]
    assert state["bytes_before"] <= story.metric("bmq_cleaning_bytes_before_total")
    assert state["cleaned_ms"] > START_MS
    assert "open_segment: all closed segments are clean" in story.bmq(*story.describe)


def check_storage(story: Story) -> None:
    """Check the files of a server that has ended."""
    read_with_spark(story)
    assert "a compacted log was cleaned" in story.server.log.read_text()
    story.bmq("segment", "verify", "--root", story.root, "--topic", TOPIC, "--records")


def test_on_a_folder(tmp_path: Path) -> None:
    root = tmp_path / "log"

    def names() -> list[str]:
        return [path.name for path in root.glob(f"topics/{TOPIC}/*/0/*")]

    with BmqServer(f"file://{root}", f"sqlite://{tmp_path}/meta.db", environment=SETTINGS, folder=tmp_path) as server:
        story = Story(server, f"file://{root}", names)
        run(story)
    check_storage(story)


def test_on_hdfs(hdfs: HdfsCluster, hdfs_root: str, tmp_path: Path) -> None:
    client, folder = hdfs_native.Client(hdfs.root), f"{urlsplit(hdfs_root).path}/topics/{TOPIC}"

    def names() -> list[str]:
        return [Path(status.path).name for status in client.list_status(folder, recursive=True)]

    with BmqServer(hdfs_root, f"sqlite://{tmp_path}/meta.db", environment=SETTINGS, folder=tmp_path) as server:
        story = Story(server, hdfs_root, names)
        run(story)
    check_storage(story)


def test_a_quota_without_room_for_a_draft_leaves_the_log_as_it_is_until_there_is_room(
    hdfs: HdfsCluster, hdfs_root: str, tmp_path: Path
) -> None:
    client, folder = hdfs_native.Client(hdfs.root), f"{urlsplit(hdfs_root).path}/topics/{TOPIC}"

    def names() -> list[str]:
        return [Path(status.path).name for status in client.list_status(folder, recursive=True)]

    with BmqServer(hdfs_root, f"sqlite://{tmp_path}/meta.db", environment=SETTINGS, folder=tmp_path) as server:
        story = Story(server, hdfs_root, names)
        admin = AdminClient({"bootstrap.servers": server.bootstrap})
        held = CONFIGS | {"min.cleanable.dirty.ratio": "1"}
        admin.create_topics([NewTopic(TOPIC, 1, -1, config=held)])[TOPIC].result(30)
        story.update()
        wait_for(lambda: len(names()) > 2 * UPDATES * VALUE_BYTES >> 20, "closed segments", timeout_s=TIMEOUT_S)
        (place,) = {
            status.path.rpartition("/")[0]
            for status in client.list_status(folder, recursive=True)
            if status.path.endswith(".log")
        }
        hdfs_tool(hdfs, "dfsadmin", "-setQuota", "1", place)
        before = set(names())
        alter = ConfigEntry("min.cleanable.dirty.ratio", "0", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, TOPIC, incremental_configs=[alter])
        admin.incremental_alter_configs([resource])[resource].result(30)
        wait_for(lambda: story.cleaning()["reason"] == "failed", "a failed round is shown", timeout_s=TIMEOUT_S)
        lines = [line for line in server.log.read_text().splitlines() if f"{place}/.clean" in line]
        assert lines
        assert all("NSQuotaExceededException" in line for line in lines)
        assert {name for name in names() if name.endswith(".log")} == {name for name in before if name.endswith(".log")}
        found = read_whole(story)
        assert [record[0] for record in found] == list(range(story.end))
        assert story.metric(UNCLEANABLE) == 1
        hdfs_tool(hdfs, "dfsadmin", "-clrQuota", place)
        wait_for(lambda: len(story.cleaned()) > 0, "a cleaned segment", timeout_s=TIMEOUT_S)
        wait_for(lambda: story.metric(UNCLEANABLE) == 0, "a round without a failure", timeout_s=TIMEOUT_S)
        story.check(read_whole(story))
    story.bmq("segment", "verify", "--root", story.root, "--topic", TOPIC, "--records")


# ----------------------------------------------------------------------------------------------------------- readers


def read_from(consumer: Consumer, offset: int, end: int) -> list[Read]:
    """Return the records from ``offset`` up to the one before ``end``."""
    consumer.assign([TopicPartition(TOPIC, 0, offset)])
    found: list[Read] = []
    while not found or found[-1][0] < end - 1:
        message = consumer.poll(TIMEOUT_S)
        assert message is not None
        assert message.error() is None, message.error()
        key, value, at = message.key(), message.value(), message.offset()
        assert key is not None
        assert value is not None
        assert at is not None
        found.append((at, message.timestamp()[1], key, value))
    return found


def consumer_of(story: Story) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": story.server.bootstrap,
            "group.id": "g",
            "enable.auto.commit": False,
            "check.crcs": True,
        }
    )


def read_whole(story: Story) -> list[Read]:
    consumer = consumer_of(story)
    try:
        return read_from(consumer, 0, story.end)
    finally:
        consumer.close()


def read_with_librdkafka(story: Story, times: list[int]) -> None:
    consumer = consumer_of(story)
    try:
        everything = read_from(consumer, 0, story.end)
        story.check(everything)
        assert len(everything) < story.end / 2
        for time in times:
            (at,) = consumer.offsets_for_times([TopicPartition(TOPIC, 0, time)], timeout=TIMEOUT_S)
            story.check_found(at.offset, time, everything)
            story.check(read_from(consumer, at.offset, story.end), time)
    finally:
        consumer.close()


def read_with_kafka_python(story: Story, times: list[int]) -> None:
    at = KafkaPartition(TOPIC, 0)
    consumer = KafkaConsumer(
        bootstrap_servers=story.server.bootstrap, enable_auto_commit=False, consumer_timeout_ms=TIMEOUT_S * 1000
    )
    try:
        consumer.assign([at])
        for time in (0, *times):
            found = consumer.offsets_for_times({at: time})[at]
            consumer.seek(at, found.offset)
            read: list[Read] = []
            for record in consumer:
                read.append((record.offset, record.timestamp, record.key, record.value))
                if record.offset == story.end - 1:
                    break
            story.check_first(read[0], found.offset, found.timestamp)
            story.check(read, time)
    finally:
        consumer.close()


async def read_with_aiokafka(story: Story, times: list[int]) -> None:
    at = AioPartition(TOPIC, 0)
    async with AIOKafkaConsumer(bootstrap_servers=story.server.bootstrap, enable_auto_commit=False) as consumer:
        consumer.assign([at])
        for time in (0, *times):
            found = (await consumer.offsets_for_times({at: time}))[at]
            consumer.seek(at, found.offset)
            read: list[Read] = []
            while not read or read[-1][0] < story.end - 1:
                record = await consumer.getone()
                read.append((record.offset, record.timestamp, record.key, record.value))
            story.check_first(read[0], found.offset, found.timestamp)
            story.check(read, time)


def read_with_spark(story: Story) -> None:
    spark = start_spark()
    try:
        data = frame(spark, story.root, topic=TOPIC).selectExpr("offset", "unix_millis(timestamp) time", "key", "value")
        story.check(
            [(row.offset, row.time, bytes(row.key), bytes(row.value)) for row in data.orderBy("offset").collect()]
        )
    finally:
        spark.stop()

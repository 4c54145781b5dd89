"""`bmq job compact`: a compacted topic of a real server is cleaned by Spark, also across kills, and readers agree."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import hdfs_native
import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.cimpl import NewTopic

from tests.services.bmq import BmqServer
from tests.services.hdfs import HdfsCluster
from tests.services.processes import wait_for
from tests.services.spark import frame, start_spark

BMQ = str(Path(sys.executable).with_name("bmq"))
JOB = Path(__file__).with_name("compact_job.py")
TIMEOUT_S = 120.0
JOB_TIMEOUT_S = 600.0
TOPIC = "accounts"
PARTITIONS = 2
KEYS = 40
VALUE_BYTES = 10_000
UPDATES = 800
SETTINGS = {
    "BMQ_OFFSETS_TOPIC_NUM_PARTITIONS": "1",
    "BMQ_TRANSACTION_STATE_LOG_NUM_PARTITIONS": "1",
    "BMQ_CACHE_BYTES": str(64 << 20),
    "BMQ_BLOCK_BYTES": str(1 << 20),
    "BMQ_LOG_CLEANER_BACKOFF_MS": "100",
}
CONFIGS = {
    "cleanup.policy": "compact",
    "segment.bytes": str(1 << 20),
    "min.cleanable.dirty.ratio": "1",  # the owner itself never begins a round
    "file.delete.delay.ms": "0",
}
Last = dict[tuple[int, bytes], bytes | None]
"""The value of each partition's keys; None stands for a tombstone."""


class Story:
    """One topic, its server, and the model: ``last`` has each key's last committed value."""

    def __init__(self, server: BmqServer, root: str, names: Callable[[], list[str]]) -> None:
        self.server = server
        self.root = root
        self.names = names
        self.last: Last = {}
        self.number = 0

    def update(self, count: int = UPDATES) -> None:
        """Produce records of keys in turn: plain, of committed and of aborted transactions, and tombstones."""
        plain = Producer({"bootstrap.servers": self.server.bootstrap, "batch.num.messages": 10, "linger.ms": 50})
        bound = Producer({"bootstrap.servers": self.server.bootstrap, "transactional.id": "story"})
        bound.init_transactions(TIMEOUT_S)

        def done(error: KafkaError | None, message: Message) -> None:
            assert error is None, error

        def put(producer: Producer, *, counts: bool) -> None:
            self.number += 1
            partition, key = self.number % PARTITIONS, b"k%d" % (self.number * 7 % KEYS)
            value = None if self.number % 11 == 0 else b"%d " % self.number + os.urandom(VALUE_BYTES)
            producer.produce(TOPIC, key=key, value=value, partition=partition, on_delivery=done)
            if counts:
                self.last[partition, key] = value

        for burst in range(count // 20):
            for _ in range(10):
                put(plain, counts=True)
            assert plain.flush(TIMEOUT_S) == 0
            bound.begin_transaction()
            for _ in range(10):
                put(bound, counts=burst % 2 == 0)
            if burst % 2 == 0:
                bound.commit_transaction(TIMEOUT_S)
            else:
                assert bound.flush(TIMEOUT_S) == 0
                bound.abort_transaction(TIMEOUT_S)

    def cleaned(self) -> set[str]:
        """Return the names of cleaned segments: those with a fourth number."""
        return {name for name in self.names() if re.fullmatch(r"\d+/\d+-\d+-\d+-\d+\.log", name)}

    def sources(self) -> list[str]:
        """Return the names of segments that a cleaned segment has replaced: each base has a single cleaned segment."""
        ends = {name.partition("/")[0]: name for name in sorted(self.cleaned())}
        plain = [name for name in self.names() if re.fullmatch(r"\d+/\d+-\d+-\d+\.log", name)]
        return [name for name in plain if name <= ends.get(name.partition("/")[0], "")]

    def drafts(self) -> list[str]:
        return [name for name in self.names() if ".compact-" in name]

    def job(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [BMQ, "job", "compact", "--root", self.root, "--topic", TOPIC, "--http", self.server.http, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=JOB_TIMEOUT_S, check=False)

    def job_of_its_turn(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Return a job that did not meet a look of the owner, which refuses jobs meanwhile, also after its start."""
        done: list[subprocess.CompletedProcess[str]] = []

        def has_its_turn() -> bool:
            done.append(self.job(*arguments))
            return "its owner is cleaning the log" not in done[-1].stderr

        wait_for(has_its_turn, "a job that the owner does not refuse", timeout_s=JOB_TIMEOUT_S)
        return done[-1]

    def kill_a_job(self, step: str) -> None:
        """Kill a job with SIGKILL at a step of it."""
        command = [sys.executable, str(JOB), step, "--root", self.root, "--topic", TOPIC, "--http", self.server.http]
        done = subprocess.run(command, capture_output=True, text=True, timeout=JOB_TIMEOUT_S, check=False)
        assert done.returncode == -signal.SIGKILL, done.stderr

    def read(self) -> tuple[Last, int]:
        """Return what a consumer at read_committed finds, and its number of records."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.server.bootstrap,
                "group.id": "story",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
            }
        )
        try:
            consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
            found: Last = {}
            count, ended = 0, set[int]()
            while len(ended) < PARTITIONS:
                message = consumer.poll(TIMEOUT_S)
                assert message is not None
                partition, key = message.partition(), message.key()
                assert partition is not None
                error = message.error()
                if error is not None:
                    assert error.code() == KafkaError._PARTITION_EOF
                    ended.add(partition)
                    continue
                assert key is not None
                found[partition, key] = message.value()
                count += 1
            return found, count
        finally:
            consumer.close()

    def check(self) -> int:
        """Check that each key has its last value; return the number of records."""
        found, count = self.read()
        assert found == self.last
        return count

    def alter(self, name: str, value: str) -> None:
        resource = ConfigResource(ConfigResource.Type.TOPIC, TOPIC)
        resource.add_incremental_config(ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET))
        admin = AdminClient({"bootstrap.servers": self.server.bootstrap})
        admin.incremental_alter_configs([resource])[resource].result(30)


def run(story: Story) -> None:
    admin = AdminClient({"bootstrap.servers": story.server.bootstrap})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, -1, config=CONFIGS)])[TOPIC].result(30)
    story.update(2 * UPDATES)  # many segments: the record names the newest, which no round takes
    before = story.check()
    assert story.cleaned() == set()
    story.kill_a_job("written")
    assert story.cleaned() == set()
    left = story.drafts()
    assert left
    assert story.check() == before
    refused = story.job()
    assert refused.returncode == 1, refused.stderr
    assert "cleans the log; if it is dead, try again in" in refused.stderr
    story.server.restart()  # a new owner knows of no hold
    done = story.job_of_its_turn("--partitions", "0-1")
    assert done.returncode == 0, done.stderr
    assert story.cleaned()
    after = story.check()
    assert after < before / 2
    wait_for(lambda: not story.sources(), "sources deleted", timeout_s=TIMEOUT_S)
    assert story.drafts() == [name for name in story.drafts() if name in left], "drafts of the job that ended well"
    assert story.check() == after
    clean_the_rest(story)
    story.update()
    story.alter("min.cleanable.dirty.ratio", "0")  # the owner's own rounds go on where the job has ended
    cleaned = story.cleaned()
    wait_for(lambda: story.cleaned() - cleaned != set(), "a round of the owner", timeout_s=TIMEOUT_S)
    story.check()


def clean_the_rest(story: Story) -> None:
    """Run jobs until nothing is left for them: the record lets go of the names of closed segments meanwhile."""
    for _ in range(4):
        wait_for(lambda: not story.sources(), "sources deleted", timeout_s=TIMEOUT_S)
        done = story.job()
        assert done.returncode == 0, done.stderr
        if done.stderr.count("nothing can be cleaned now") == PARTITIONS:
            return
    raise AssertionError("each job finds something to clean")


def check_storage(story: Story) -> None:
    """Check the files of a server that has ended, as Spark and the verifier read them."""
    verified = subprocess.run(
        [BMQ, "segment", "verify", "--root", story.root, "--topic", TOPIC, "--records", "--json"],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert json.loads(verified.stdout.splitlines()[-1])["faults"] == 0
    spark = start_spark()
    try:
        rows = frame(spark, story.root, topic=TOPIC).select("partition", "key", "value", "offset").collect()
    finally:
        spark.stop()
    found: Last = {(row.partition, bytes(row.key)): row.value for row in sorted(rows, key=lambda row: row.offset)}
    assert {place: value if value is None else bytes(value) for place, value in found.items()} == story.last


def test_on_a_folder(tmp_path: Path) -> None:
    root = tmp_path / "log"

    def names() -> list[str]:
        return [f"{path.parent.name}/{path.name}" for path in root.glob(f"topics/{TOPIC}/*/*/*")]

    with BmqServer(f"file://{root}", f"sqlite://{tmp_path}/meta.db", environment=SETTINGS, folder=tmp_path) as server:
        story = Story(server, f"file://{root}", names)
        run(story)
    check_storage(story)


@pytest.mark.soak
def test_on_hdfs(hdfs: HdfsCluster, hdfs_root: str, tmp_path: Path) -> None:
    client, folder = hdfs_native.Client(hdfs.root), f"{urlsplit(hdfs_root).path}/topics/{TOPIC}"

    def names() -> list[str]:
        found = [Path(status.path).parts for status in client.list_status(folder, recursive=True)]
        return ["/".join(parts[parts.index(TOPIC) + 2 :][:2]) for parts in found]

    with BmqServer(hdfs_root, f"sqlite://{tmp_path}/meta.db", environment=SETTINGS, folder=tmp_path) as server:
        story = Story(server, hdfs_root, names)
        run(story)
    check_storage(story)

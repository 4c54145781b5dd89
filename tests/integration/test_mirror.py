"""MirrorMaker 2 from Kafka to BMQ and back, with the properties that docs/operations/migration.md prints.

Only what depends on the machine is changed: addresses, one copy instead of several, shorter intervals.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from tests.services.bmq import BmqServer
from tests.services.kafka import KafkaCluster
from tests.services.mirror import mirror
from tests.services.processes import ServiceProcess, wait_for

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "operations" / "migration.md").read_text()
TOPIC = "orders"
GROUP = "billing"
PARTITIONS = 2
RECORDS = 1_000
TIMEOUT_S = 300.0
END_S = 60.0
HERE = {
    "replication.factor": "1",
    "offset-syncs.topic.replication.factor": "1",
    "checkpoints.topic.replication.factor": "1",
    "heartbeats.topic.replication.factor": "1",
    "config.storage.replication.factor": "1",
    "offset.storage.replication.factor": "1",
    "status.storage.replication.factor": "1",
    "refresh.topics.interval.seconds": "2",
    "refresh.groups.interval.seconds": "2",
    "sync.group.offsets.interval.seconds": "1",
    "emit.checkpoints.interval.seconds": "1",
}
BMQ_SETTINGS = {"BMQ_OFFSETS_TOPIC_NUM_PARTITIONS": "4", "BMQ_GROUP_INITIAL_REBALANCE_DELAY_MS": "0"}


STOPPING = "Kafka MirrorMaker stopping"
"""The first line of MirrorMaker's shutdown."""
SHUTDOWN_RACE = re.compile(
    r"\S+ ERROR MirrorCheckpointTask: Error querying for consumer group .*\n"
    r"java\.util\.concurrent\.ExecutionException: java\.lang\.IllegalStateException:"
    r" Cannot accept new calls when AdminClient is closing\.\n"
)
"""Kafka's own race: one thread closes the admin client of the task while the task's timer still asks it."""


def printed(name: str) -> dict[str, str]:
    """Return the properties of this file of the page."""
    (block,) = re.findall(rf"`{re.escape(name)}`.*?^```properties\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    lines = [line for line in block.splitlines() if line and not line.startswith("#")]
    return {key.strip(): value.strip() for key, _, value in (line.partition("=") for line in lines)}


def errors(log: str) -> list[str]:
    """Return MirrorMaker's errors: all of its work, and of its shutdown all but Kafka's own race."""
    work, _, shutdown = log.partition(STOPPING)
    found = [each for each in _entries(work) if " ERROR " in each]
    return found + [each for each in _entries(shutdown) if " ERROR " in each and SHUTDOWN_RACE.match(each) is None]


def _entries(log: str) -> list[str]:
    """Return the entries of a log, each with the lines of its exception."""
    return re.split(r"^(?=\d\d:\d\d:\d\d\.\d{3} )", log, flags=re.MULTILINE)


class Clusters:
    """A Kafka and a BMQ, each with its own bootstrap address, and the mirrors between them."""

    def __init__(self, kafka: KafkaCluster, bmq: BmqServer, folder: Path) -> None:
        self.addresses = {"kafka": kafka.bootstrap, "bmq": bmq.bootstrap}
        self.mirrors: list[ServiceProcess] = []
        self._folder = folder

    def mirror(self, name: str) -> ServiceProcess:
        """Start MirrorMaker with a file of the page."""
        properties = printed(name)
        for cluster, address in self.addresses.items():
            assert f"{cluster}.bootstrap.servers" in properties
            properties[f"{cluster}.bootstrap.servers"] = address
        self.mirrors.append(mirror(self._folder, name.removesuffix(".properties"), {**properties, **HERE}))
        self.mirrors[-1].start()
        return self.mirrors[-1]

    def produce(self, cluster: str, first: int, count: int) -> None:
        """Append records with these numbers, by turns to the partitions."""
        producer = Producer({"bootstrap.servers": self.addresses[cluster], "linger.ms": 5})
        for number in range(first, first + count):
            producer.produce(TOPIC, key=b"k%d" % number, value=b"%d" % number, partition=number % PARTITIONS)
        assert producer.flush(TIMEOUT_S) == 0

    def ends(self, cluster: str, topic: str = TOPIC) -> list[int]:
        """Return LATEST of each partition; -1 while there is none."""
        consumer = self._consumer(cluster, "ends")
        try:
            known = consumer.list_topics(topic, timeout=30).topics[topic].partitions
            return [consumer.get_watermark_offsets(TopicPartition(topic, number), 30)[1] for number in sorted(known)]
        finally:
            consumer.close()

    def read(self, cluster: str) -> list[list[tuple[object, ...]]]:
        """Return offset, key and value of every record, by partition."""
        found: list[list[tuple[object, ...]]] = [[] for _ in range(PARTITIONS)]
        left = sum(self.ends(cluster))
        consumer = self._consumer(cluster, "reader")
        consumer.assign([TopicPartition(TOPIC, number, 0) for number in range(PARTITIONS)])
        try:
            while left:
                message = consumer.poll(60)
                assert message is not None, f"{left} records of {cluster} did not come"
                assert message.error() is None, message.error()
                partition = message.partition()
                assert partition is not None
                found[partition].append((message.offset(), message.key(), message.value()))
                left -= 1
        finally:
            consumer.close()
        return found

    def commit(self, cluster: str, offsets: list[int]) -> None:
        """Commit these offsets for the group, which has no members, one for each partition."""
        consumer = self._consumer(cluster, GROUP)
        at = [TopicPartition(TOPIC, number, offset) for number, offset in enumerate(offsets)]
        consumer.commit(offsets=at, asynchronous=False)
        consumer.close()

    def committed(self, cluster: str) -> list[int]:
        consumer = self._consumer(cluster, GROUP)
        try:
            found = consumer.committed([TopicPartition(TOPIC, number) for number in range(PARTITIONS)], timeout=30)
            return [each.offset for each in found]
        finally:
            consumer.close()

    def wait_mirrored(self, source: str, target: str) -> None:
        """Wait until LATEST of all partitions is the same on both sides."""
        wait_for(
            lambda: TOPIC in self._topics(target) and self.ends(target) == self.ends(source),
            f"{TOPIC} of {source} on {target}; logs in {self._folder}",
            timeout_s=TIMEOUT_S,
            interval_s=1,
        )

    def wait_committed(self, cluster: str, offsets: list[int]) -> None:
        seen: list[list[int]] = []

        def is_there() -> bool:
            seen[:] = [self.committed(cluster)]
            return seen == [offsets]

        wait_for(is_there, f"{GROUP} at {offsets} on {cluster}; {self._folder}", timeout_s=TIMEOUT_S, interval_s=1)

    def config(self, cluster: str, name: str) -> str:
        resource = ConfigResource(ResourceType.TOPIC, TOPIC)
        admin = self._admin(cluster)
        found = admin.describe_configs([resource])[resource].result(30)
        return str(found[name].value)

    def create(self, cluster: str, config: dict[str, str]) -> None:
        admin = self._admin(cluster)
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1, config=config)])[TOPIC].result(60)

    def _admin(self, cluster: str) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.addresses[cluster], "log_level": 0})

    def _topics(self, cluster: str) -> set[str]:
        return set(self._admin(cluster).list_topics(timeout=30).topics)

    def _consumer(self, cluster: str, group: str) -> Consumer:
        return Consumer({"bootstrap.servers": self.addresses[cluster], "group.id": group, "log_level": 0})


@pytest.fixture
def clusters(tmp_path: Path) -> Iterator[Clusters]:
    with KafkaCluster() as kafka:
        bmq = BmqServer((tmp_path / "root").as_uri(), folder=tmp_path, environment=BMQ_SETTINGS)
        try:
            bmq.start()
            clusters = Clusters(kafka, bmq, tmp_path)
            yield clusters
        finally:
            for each in clusters.mirrors:
                each.kill()
            bmq.kill()


def test_a_topic_and_a_group_move_to_bmq_and_what_is_written_there_comes_back(clusters: Clusters) -> None:
    """The cut-over of the page, and its way back: in the end both sides have the same records at the same offsets."""
    clusters.create("kafka", {"retention.ms": "123456789"})
    clusters.produce("kafka", 0, RECORDS)
    there = clusters.mirror("mm2.properties")
    clusters.wait_mirrored("kafka", "bmq")
    assert clusters.config("bmq", "retention.ms") == "123456789"
    clusters.commit("kafka", clusters.ends("kafka"))
    clusters.wait_committed("bmq", clusters.ends("kafka"))
    clusters.produce("kafka", RECORDS, RECORDS)
    clusters.wait_mirrored("kafka", "bmq")
    assert clusters.read("bmq") == clusters.read("kafka")
    there.terminate(timeout_s=END_S)

    back = clusters.mirror("mm2-back.properties")
    for number, end in enumerate(clusters.ends("bmq")):
        line = rf"Resetting offset for partition {TOPIC}-{number} to position FetchPosition\{{offset={end},"
        wait_for(lambda line=line: re.search(line, back.log.read_text()) is not None, line, timeout_s=TIMEOUT_S)  # type: ignore[misc]
    clusters.produce("bmq", 2 * RECORDS, RECORDS)
    clusters.wait_mirrored("bmq", "kafka")
    clusters.commit("bmq", clusters.ends("bmq"))
    clusters.wait_committed("kafka", clusters.ends("bmq"))
    assert clusters.read("kafka") == clusters.read("bmq")
    assert sum(clusters.ends("kafka")) == 3 * RECORDS
    back.terminate(timeout_s=END_S)
    log = back.log.read_text()
    assert STOPPING in log
    assert errors(log) == []


def test_only_the_race_of_a_shutdown_is_no_error() -> None:
    race = (
        "07:12:37.715 ERROR MirrorCheckpointTask: Error querying for consumer group billing on cluster kafka.\n"
        "java.util.concurrent.ExecutionException: java.lang.IllegalStateException: Cannot accept new calls when"
        " AdminClient is closing.\n\tat java.base/java.util.concurrent.CompletableFuture.get(CompletableFuture.java)\n"
    )
    stopping = f"07:12:37.700 INFO MirrorMaker: {STOPPING}\n"
    stopped = "07:12:38.000 INFO MirrorMaker: Kafka MirrorMaker stopped.\n"
    other = "07:12:37.800 ERROR MirrorSourceTask: Failure during poll.\n"
    refused = race.replace("Cannot accept new calls when AdminClient is closing", "refused")
    assert errors(stopping + race + stopped) == []
    assert errors(race + stopping + stopped) == [race]
    assert errors(stopping + race + other + stopped) == [other]
    assert errors(stopping + refused + stopped) == [refused]

"""The two clusters of the failover measurement: BMQ on HDFS and etcd, and three Kafka brokers and a spare one."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from confluent_kafka import ElectionType, KafkaError, TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from kafka import TopicPartition
from kafka.admin import KafkaAdminClient

from bench.roots import DATANODES, JAVA_OPTIONS
from bench.servers import KAFKA_HEAP_MB, KAFKA_JAVA, KAFKA_PROPERTIES
from tests.services.bmq_cluster import BROKER, BmqCluster
from tests.services.etcd import EtcdCluster
from tests.services.hdfs import HdfsCluster
from tests.services.kafka import KafkaCluster
from tests.services.processes import ServiceProcess, wait_for

NAMES = ("bmq", "kafka")
RETURN_TIMEOUT_S = 3600.0
"""Seconds: a Kafka broker that was away copies what it missed, and a new one everything."""
NOTHING_TO_DO = (KafkaError.ELECTION_NOT_NEEDED,)
SPARE = 4
"""The Kafka broker that owns nothing at first."""


class Site(Protocol):
    """One of the two clusters.  A victim is a broker, by the name that the site gives it."""

    bootstrap: str

    @property
    def processes(self) -> Sequence[ServiceProcess]:
        """The server processes."""

    def create_topic(self, name: str, partitions: int, configs: Mapping[str, str] | None = None) -> None: ...

    def victim(self, topic: str) -> str:
        """Return the broker that leads most of the topic's partitions."""

    def stop(self, victim: str) -> None:
        """Stop a broker politely; returns when the process has ended."""

    def kill(self, victim: str, *, with_datanode: bool = False) -> None:
        """Send ``kill -9`` to a broker, and to its machine's datanode as well, if there is one."""

    def restore_storage(self) -> None:
        """Start the datanode that was killed, if one was."""

    def come_back(self, victim: str) -> None:
        """Start the broker that was stopped or killed, and wait until it has caught up."""

    def spread(self, victim: str) -> None:
        """Lead partitions evenly again, as before the victim was lost."""

    def add_broker(self, topic: str) -> None:
        """Add a broker, and wait until it has its share of the topic's partitions."""

    def remove_added(self) -> None: ...

    def delete_topic(self, name: str) -> None: ...

    def leaders(self, topics: Sequence[str]) -> dict[tuple[str, int], str]:
        """Return the broker that leads each partition."""

    def broker_cpu_s(self) -> dict[str, float]:
        """Return the processor seconds of each broker that holds topics."""

    def stored_bytes(self) -> dict[str, float]:
        """Return the bytes on each disk: of a datanode, or a broker."""


class BmqSite:
    """A cluster of three proxies, three brokers, two controllers and two coordinators."""

    def __init__(self, cluster: BmqCluster, hdfs: HdfsCluster, etcd: EtcdCluster) -> None:
        self.bootstrap = cluster.bootstrap
        self._cluster = cluster
        self._hdfs = hdfs
        self.processes = [*cluster.processes, *etcd.members, *hdfs.processes]
        self._added = ""
        self._admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    def create_topic(self, name: str, partitions: int, configs: Mapping[str, str] | None = None) -> None:
        topic = NewTopic(name, partitions, 3, config=dict(configs or {}))
        self._admin.create_topics([topic], operation_timeout=60)[name].result(90)
        self._cluster.wait_stable()

    def victim(self, topic: str) -> str:
        return self._cluster.busiest(BROKER)

    def stop(self, victim: str) -> None:
        self._cluster.stop_politely(victim)

    def kill(self, victim: str, *, with_datanode: bool = False) -> None:
        if with_datanode:
            self._hdfs.kill_datanode(0)  # it has a replica of three in four of the open segments
        self._cluster.kill(victim)

    def restore_storage(self) -> None:
        if not self._hdfs.datanodes[0].process.is_running:
            self._hdfs.restart_datanode(0)

    def come_back(self, victim: str) -> None:
        self._cluster.start_again(victim)
        self._cluster.wait_stable()

    def spread(self, victim: str) -> None:
        self._cluster.balance()
        self._cluster.wait(lambda: self._cluster.has_share(victim), f"a share for {victim}")

    def add_broker(self, topic: str) -> None:
        self._added = self._cluster.add(BROKER)
        self._cluster.balance()
        self._cluster.wait(lambda: self._cluster.has_share(self._added), f"a share for {self._added}")

    def remove_added(self) -> None:
        self._cluster.remove(self._added)
        self._cluster.wait_stable()

    def delete_topic(self, name: str) -> None:
        self._admin.delete_topics([name], operation_timeout=60)[name].result(90)

    def leaders(self, topics: Sequence[str]) -> dict[tuple[str, int], str]:
        owners = self._cluster.owners()
        names = {}
        for name, asked in self._admin.describe_topics(TopicCollection(list(topics))).items():
            found = asked.result(60).topic_id
            high, low = (found.get_most_significant_bits(), found.get_least_significant_bits())
            names[uuid.UUID(int=high % (1 << 64) << 64 | low % (1 << 64))] = name
        return {(names[key.topic_id], key.partition): owner for key, owner in owners.items() if key.topic_id in names}

    def broker_cpu_s(self) -> dict[str, float]:
        return {name: used for name, used in self._cluster.cpu_seconds.items() if name.startswith(BROKER)}

    def stored_bytes(self) -> dict[str, float]:
        return {str(n): _size(datanode.data_dir) for n, datanode in enumerate(self._hdfs.datanodes)}


class KafkaSite:
    """A cluster of three brokers, each a controller too, and a fourth without partitions."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self.bootstrap = cluster.bootstrap
        self.processes = cluster.processes
        self._cluster = cluster
        self._admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    def create_topic(self, name: str, partitions: int, configs: Mapping[str, str] | None = None) -> None:
        start = zlib.crc32(name.encode())  # Kafka begins each topic with a random broker
        replicas = [[1 + (start + first + each) % 3 for each in range(3)] for first in range(partitions)]
        topic = NewTopic(name, partitions, replica_assignment=replicas, config=dict(configs or {}))
        self._admin.create_topics([topic], operation_timeout=60)[name].result(90)
        self._wait_in_sync()

    def victim(self, topic: str) -> str:
        leaders = [part.leader for part in self._admin.list_topics(topic, timeout=30).topics[topic].partitions.values()]
        return str(max({1, 2, 3}, key=leaders.count))

    def stop(self, victim: str) -> None:
        self._cluster.stop_node(int(victim))

    def kill(self, victim: str, *, with_datanode: bool = False) -> None:
        self._cluster.kill_node(int(victim))  # its machine's replicas are lost with it in any case

    def come_back(self, victim: str) -> None:
        self._cluster.start_node(int(victim))
        self._wait_in_sync()

    def spread(self, victim: str) -> None:
        found = self._admin.elect_leaders(ElectionType.PREFERRED).result(60)
        refused = [str(error) for error in found.values() if error is not None and error.code() not in NOTHING_TO_DO]
        if refused:
            raise AssertionError(f"leaders were not elected: {refused[:3]}")

    def add_broker(self, topic: str) -> None:
        """Replace the first replica by the spare broker in a quarter of all replica sets, which it then leads."""
        plan = {
            number: [SPARE, *list(partition.replicas)[1:]] if number % 4 == 0 else list(partition.replicas)
            for number, partition in self._admin.list_topics(topic, timeout=30).topics[topic].partitions.items()
        }
        admin = KafkaAdminClient(bootstrap_servers=self.bootstrap.split(","))
        try:
            admin.alter_partition_reassignments(
                {TopicPartition(topic, number): replicas for number, replicas in plan.items()}
            )
        finally:
            admin.close()
        wait_for(
            lambda: self._are_placed(topic, plan), f"{topic} reassigned", timeout_s=RETURN_TIMEOUT_S, interval_s=0.05
        )

    def restore_storage(self) -> None:
        """Do nothing: there is no storage beside the brokers."""

    def remove_added(self) -> None:
        """Do nothing: the topics are deleted, and the next ones are made without the spare broker."""

    def delete_topic(self, name: str) -> None:
        self._admin.delete_topics([name], operation_timeout=60)[name].result(90)

    def leaders(self, topics: Sequence[str]) -> dict[tuple[str, int], str]:
        found = self._admin.list_topics(timeout=30).topics
        return {
            (topic, number): str(partition.leader)
            for topic in topics
            for number, partition in found[topic].partitions.items()
        }

    def broker_cpu_s(self) -> dict[str, float]:
        return {str(node): self._cluster.node(node).cpu_seconds for node in self._cluster.node_ids if node != SPARE}

    def stored_bytes(self) -> dict[str, float]:
        return {str(node): _size(self._cluster.folder / "data" / str(node)) for node in range(1, SPARE)}

    def _are_placed(self, topic: str, plan: Mapping[int, list[int]]) -> bool:
        found = self._admin.list_topics(topic, timeout=30).topics[topic].partitions
        return all(
            list(found[number].replicas) == replicas and set(found[number].isrs) == set(replicas)
            for number, replicas in plan.items()
        )

    def _wait_in_sync(self) -> None:
        def are_in_sync() -> bool:
            topics = self._admin.list_topics(timeout=30).topics.values()
            return all(len(part.isrs) == len(part.replicas) for topic in topics for part in topic.partitions.values())

        wait_for(are_in_sync, "every replica in sync", timeout_s=RETURN_TIMEOUT_S, interval_s=0.05)


def _size(folder: Path) -> float:
    """Return the bytes on disk of the files below; one that is renamed or deleted meanwhile does not count."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += os.stat(os.path.join(place, name)).st_blocks * 512
    return float(total)


@contextlib.contextmanager
def open_site(name: str, parent: Path | None) -> Iterator[Site]:
    """Start one of ``NAMES`` on defaults, its data in a folder of ``parent``, and stop it at the end."""
    folder = Path(tempfile.mkdtemp(prefix=f"bmq-failover-{name}-", dir=parent))
    try:
        if name == "kafka":
            with KafkaCluster(
                nodes=SPARE, heap_mb=KAFKA_HEAP_MB, java_options=KAFKA_JAVA, properties=KAFKA_PROPERTIES,
                folder=folder / "kafka",
            ) as kafka:  # fmt: skip
                yield KafkaSite(kafka)
        else:
            hdfs = HdfsCluster(datanodes=DATANODES, java_options=JAVA_OPTIONS, folder=folder / "hdfs")
            with EtcdCluster(folder=folder / "etcd") as etcd, hdfs:
                with BmqCluster(f"{hdfs.root}/bench", etcd, folder=folder / "bmq") as cluster:
                    yield BmqSite(cluster, hdfs, etcd)
    finally:
        shutil.rmtree(folder, ignore_errors=True)

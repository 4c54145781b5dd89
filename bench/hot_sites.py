"""The two clusters of bench.hot: BMQ on HDFS and etcd, and three Kafka brokers; and what each of their brokers does."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.deployments import NODES
from bench.failover_sites import COPIES, size_of
from bench.roots import DATANODES, JAVA_OPTIONS
from bench.servers import KAFKA_HEAP_MB, KAFKA_JAVA, KAFKA_PROPERTIES
from tests.services.bmq_cluster import BROKER, BmqCluster
from tests.services.etcd import EtcdCluster
from tests.services.hdfs import HdfsCluster
from tests.services.kafka import KafkaCluster
from tests.services.processes import ServiceProcess, wait_for

NAMES = ("bmq", "kafka")
SYNC_TIMEOUT_S = 300.0


class Site(Protocol):
    """One of the two clusters."""

    bootstrap: str

    @property
    def processes(self) -> Sequence[ServiceProcess]:
        """The server processes."""

    def create_topic(self, name: str, partitions: int, configs: Mapping[str, str] | None = None) -> None: ...

    def leaders(self, topics: Sequence[str]) -> dict[tuple[str, int], str]:
        """Return the broker that leads each partition."""

    def broker_cpu_s(self) -> dict[str, float]:
        """Return the processor seconds of each broker that holds topics."""

    def stored_bytes(self) -> dict[str, int]:
        """Return the bytes on each disk: of a datanode, or a broker."""


class BmqSite:
    """A cluster of three proxies, three brokers, two controllers and two coordinators."""

    def __init__(self, cluster: BmqCluster, hdfs: HdfsCluster, etcd: EtcdCluster) -> None:
        self.bootstrap = cluster.bootstrap
        self._cluster = cluster
        self._hdfs = hdfs
        self.processes = [*cluster.processes, *etcd.members, *hdfs.processes]
        self._admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    def create_topic(self, name: str, partitions: int, configs: Mapping[str, str] | None = None) -> None:
        topic = NewTopic(name, partitions, COPIES, config=dict(configs or {}))
        self._admin.create_topics([topic], operation_timeout=60)[name].result(90)
        self._cluster.wait_stable()

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

    def stored_bytes(self) -> dict[str, int]:
        return {str(n): size_of(datanode.data_dir) for n, datanode in enumerate(self._hdfs.datanodes)}


class KafkaSite:
    """A cluster of three brokers, each a controller too."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self.bootstrap = cluster.bootstrap
        self.processes = cluster.processes
        self._cluster = cluster
        self._admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    def create_topic(self, name: str, partitions: int, configs: Mapping[str, str] | None = None) -> None:
        start = zlib.crc32(name.encode())  # Kafka begins each topic with a random broker
        replicas = [[1 + (start + first + each) % NODES for each in range(COPIES)] for first in range(partitions)]
        topic = NewTopic(name, partitions, replica_assignment=replicas, config=dict(configs or {}))
        self._admin.create_topics([topic], operation_timeout=60)[name].result(90)
        self._wait_in_sync()

    def leaders(self, topics: Sequence[str]) -> dict[tuple[str, int], str]:
        found = self._admin.list_topics(timeout=30).topics
        return {
            (topic, number): str(partition.leader)
            for topic in topics
            for number, partition in found[topic].partitions.items()
        }

    def broker_cpu_s(self) -> dict[str, float]:
        return {str(node): self._cluster.node(node).cpu_seconds for node in self._cluster.node_ids}

    def stored_bytes(self) -> dict[str, int]:
        return {str(node): size_of(self._cluster.folder / "data" / str(node)) for node in self._cluster.node_ids}

    def _wait_in_sync(self) -> None:
        def are_in_sync() -> bool:
            topics = self._admin.list_topics(timeout=30).topics.values()
            return all(len(part.isrs) == len(part.replicas) for topic in topics for part in topic.partitions.values())

        wait_for(are_in_sync, "every replica in sync", timeout_s=SYNC_TIMEOUT_S, interval_s=0.05)


@contextlib.contextmanager
def open_site(name: str, parent: Path | None) -> Iterator[Site]:
    """Start one of ``NAMES`` on defaults, its data in a folder of ``parent``, and stop it at the end."""
    folder = Path(tempfile.mkdtemp(prefix=f"bmq-hot-{name}-", dir=parent))
    try:
        if name == "kafka":
            with KafkaCluster(
                nodes=NODES, heap_mb=KAFKA_HEAP_MB, java_options=KAFKA_JAVA, properties=KAFKA_PROPERTIES,
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

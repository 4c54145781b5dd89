"""The servers that are measured side by side: Apache Kafka and ``bmq serve``, each as its users would run it."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.roots import JAVA_OPTIONS
from tests.services.bmq import BmqServer
from tests.services.hdfs import HdfsCluster
from tests.services.kafka import SERVER_JAVA, KafkaCluster

PAIRS = {"local": ("kafka-1", "bmq-local"), "hdfs": ("kafka-3", "bmq-hdfs")}
"""The servers that are compared: one node on a local disk, and three replicas."""
KAFKA_HEAP_MB = 1024
"""Heap that Kafka's own kafka-server-start.sh sets."""
KAFKA_PROPERTIES = {
    # Kafka's documentation recommends one thread a core at most; its defaults (3 and 8) are for larger machines.
    "num.network.threads": "2",
    "num.io.threads": "4",
    "num.recovery.threads.per.data.dir": "2",
    "group.initial.rebalance.delay.ms": "0",
    "auto.create.topics.enable": "false",
}
BMQ_ENVIRONMENT = {
    "BMQ_CACHE_BYTES": str(2 << 30),  # Kafka's cache is the machine's free memory
    "BMQ_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
    "BMQ_AUTO_CREATE_TOPICS_ENABLE": "false",
    "BMQ_LOG_LEVEL": "WARNING",
}
DATANODES = 4


@dataclass(slots=True)
class Server:
    """A server that is measured; it runs from the beginning to the end of the run."""

    name: str
    bootstrap: str
    replicas: int
    kafka: KafkaCluster | None = None
    bmq: BmqServer | None = None
    hdfs: HdfsCluster | None = None

    @property
    def cpu_s(self) -> float:
        """Processor seconds of the server itself: of Kafka's nodes, or of ``bmq serve``."""
        if self.kafka is not None:
            return self.kafka.cpu_seconds
        assert self.bmq is not None
        return self.bmq.cpu_seconds

    @property
    def storage_cpu_s(self) -> float:
        """Processor seconds of HDFS: NameNode and datanodes."""
        return sum(process.cpu_seconds for process in self.hdfs.processes) if self.hdfs is not None else 0.0

    @property
    def rss_bytes(self) -> int:
        """Resident memory of the server in bytes."""
        if self.kafka is not None:
            return self.kafka.rss_bytes
        assert self.bmq is not None
        return self.bmq.rss_bytes

    def leader(self, topic: str) -> int:
        """Return the node that leads the topic's partition 0."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 3})
        node: int = admin.list_topics(topic, timeout=30).topics[topic].partitions[0].leader
        return node

    def kill_and_start(self, node: int) -> None:
        """Send ``kill -9`` to one node, and start it; returns without waiting until it is ready."""
        if self.kafka is not None:
            self.kafka.kill_node(node)
            self.kafka.start_node(node, wait=False)
        else:
            assert self.bmq is not None
            self.bmq.kill()
            self.bmq.start(wait=False)

    def create_topic(self, partitions: int) -> str:
        """Create a topic and return its name."""
        name = f"bench-{uuid.uuid4().hex[:12]}"
        self.create_topics([name], partitions)
        return name

    def create_topics(self, names: Sequence[str], partitions: int) -> None:
        """Create topics with so many partitions each.  Raises KafkaException if one is refused."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 3})
        topics = [NewTopic(name, partitions, self.replicas) for name in names]
        for future in admin.create_topics(topics, operation_timeout=120, request_timeout=120).values():
            future.result(150)

    def delete_topic(self, name: str) -> None:
        """Delete a topic."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 3})  # it must outlive its futures
        admin.delete_topics([name])[name].result(60)


@contextlib.contextmanager
def start(name: str, parent: Path | None = None) -> Iterator[Server]:
    """Start one server, its data in a folder of ``parent``, and stop it at the end."""
    folder = Path(tempfile.mkdtemp(prefix=f"bmq-bench-{name}-", dir=parent))
    try:
        if name.startswith("kafka-"):
            nodes = int(name.removeprefix("kafka-"))
            cluster = KafkaCluster(
                nodes=nodes, heap_mb=KAFKA_HEAP_MB, java_options=SERVER_JAVA, properties=KAFKA_PROPERTIES,
                folder=folder / "kafka",
            )  # fmt: skip
            with cluster:
                yield Server(name, cluster.bootstrap, min(nodes, 3), kafka=cluster)
        elif name == "bmq-local":
            with BmqServer((folder / "root").as_uri(), folder=folder, environment=BMQ_ENVIRONMENT) as server:
                yield Server(name, server.bootstrap, 1, bmq=server)
        else:
            hdfs = HdfsCluster(datanodes=DATANODES, java_options=JAVA_OPTIONS, folder=folder / "hdfs")
            with hdfs:
                root = f"{hdfs.root}/bench-{uuid.uuid4().hex[:8]}"
                with BmqServer(root, folder=folder, environment=BMQ_ENVIRONMENT) as server:
                    yield Server(name, server.bootstrap, 3, bmq=server, hdfs=hdfs)
    finally:
        shutil.rmtree(folder, ignore_errors=True)

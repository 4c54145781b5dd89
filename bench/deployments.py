"""The deployments that are measured side by side: Apache Kafka and BMQ, each as its users would run it.

| name        | processes                                                        | copies |
|-------------|------------------------------------------------------------------|--------|
| `kafka-1`   | one node on a local folder                                       | 1      |
| `bmq-local` | one `bmq serve` on a local folder                                | 1      |
| `kafka-3`   | three nodes, each broker and controller                          | 3      |
| `bmq-3`     | three `bmq serve` with all roles, three etcd, HDFS               | 3      |
| `bmq-hdfs`  | one `bmq serve`, HDFS: what a second process on the way costs    | 3      |

HDFS is a NameNode and three datanodes, so that both sides keep three copies on three nodes.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.roots import JAVA_OPTIONS
from bench.servers import BMQ_ENVIRONMENT, KAFKA_HEAP_MB, KAFKA_JAVA, KAFKA_PROPERTIES
from tests.services.bmq import BmqServer
from tests.services.etcd import EtcdCluster
from tests.services.hdfs import HdfsCluster
from tests.services.kafka import KafkaCluster
from tests.services.processes import ServiceProcess, wait_for

SITES = {"local": ("kafka-1", "bmq-local"), "replicas": ("kafka-3", "bmq-3", "bmq-hdfs")}
"""The deployments that are compared, Kafka's first."""
NAMES = {
    "kafka-1": "Kafka, one node",
    "kafka-3": "Kafka, three nodes",
    "bmq-local": "BMQ, one process",
    "bmq-3": "BMQ, three processes over etcd and HDFS",
    "bmq-hdfs": "BMQ, one process over HDFS",
}
"""Their names on the pages."""
NODES = 3
DATANODES = 3
REPLICATED_ENVIRONMENT = BMQ_ENVIRONMENT | {"BMQ_MIN_INSYNC_REPLICAS": "2"}
"""Settings of BMQ on HDFS: as three Kafka brokers, it refuses a record that fewer than two nodes have."""
ETCD_ARGUMENTS = ("--heartbeat-interval", "100", "--election-timeout", "1000")
"""The defaults of etcd: tests have half of them, and pay for that in processor time."""
OWN, HDFS, ETCD = "own", "hdfs", "etcd"
"""The groups of a deployment's processes: its own are Kafka's nodes, or every ``bmq serve``."""
READY_TIMEOUT_S = 60.0


@dataclass(slots=True)
class Deployment:
    """A deployment that is measured; it runs from the beginning to the end of the run."""

    name: str
    bootstrap: str
    """``host:port,…`` of every node that clients may reach."""
    replicas: int
    groups: Mapping[str, Sequence[ServiceProcess]]
    restart: Mapping[int, Callable[[], None]] = field(default_factory=dict)
    """For each node id a function that kills the node and starts it, and returns before it is ready."""
    root: str = ""
    """URL of BMQ's root; "" for Kafka."""
    folder: Path = field(default_factory=Path)
    """The folder in which all of its servers keep their data."""
    metrics_urls: Sequence[str] = ()
    """Addresses of its processes' own counters; Kafka has them in JMX only."""
    servers: Mapping[int, BmqServer] = field(default_factory=dict)
    """Each ``bmq serve`` by its node id."""
    hdfs: HdfsCluster | None = None
    etcd: EtcdCluster | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    """Settings of its clients besides: how they log in."""

    @property
    def processes(self) -> list[ServiceProcess]:
        """All server processes, HDFS's and etcd's too."""
        return [process for group in self.groups.values() for process in group]

    def cpu_s(self) -> dict[str, float]:
        """Return the processor seconds of each group of processes."""
        return {name: sum(process.cpu_seconds for process in group) for name, group in self.groups.items()}

    def rss_bytes(self) -> dict[str, int]:
        """Return the resident memory of each group of processes."""
        return {name: sum(process.rss_bytes for process in group) for name, group in self.groups.items()}

    def create_topic(self, partitions: int, *, config: Mapping[str, str] | None = None) -> str:
        """Create a topic with these topic configs, and return its name."""
        name = f"bench-{uuid.uuid4().hex[:12]}"
        self.create_topics([name], partitions, config=config)
        return name

    def create_topics(self, names: Sequence[str], partitions: int, *, config: Mapping[str, str] | None = None) -> None:
        """Create topics with so many partitions each.  Raises KafkaException if one is refused."""
        admin = self._admin()
        topics = [NewTopic(name, partitions, self.replicas, config=dict(config or {})) for name in names]
        for future in admin.create_topics(topics, operation_timeout=120, request_timeout=120).values():
            future.result(150)

    def delete_topic(self, name: str) -> None:
        """Delete a topic."""
        admin = self._admin()  # it must outlive its futures
        admin.delete_topics([name])[name].result(60)

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 3, **self.properties})


@contextlib.contextmanager
def start(name: str, parent: Path | None = None, *, hdfs: HdfsCluster | None = None) -> Iterator[Deployment]:
    """Start a deployment of ``SITES``, its data in a folder of ``parent``, and stop it at the end.

    ``hdfs``: one that runs, to be used instead of an own one; the deployment has a folder of its own there.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"bmq-bench-{name}-", dir=parent))
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        if name.startswith("kafka-"):
            yield _kafka(stack, name, folder)
        else:
            yield _bmq(stack, name, folder, hdfs)


def _kafka(stack: contextlib.ExitStack, name: str, folder: Path) -> Deployment:
    nodes = int(name.removeprefix("kafka-"))
    cluster = KafkaCluster(
        nodes=nodes, heap_mb=KAFKA_HEAP_MB, java_options=KAFKA_JAVA, properties=KAFKA_PROPERTIES,
        folder=folder / "kafka",
    )  # fmt: skip
    stack.enter_context(cluster)

    def restart(node: int) -> Callable[[], None]:
        def kill_and_start() -> None:
            cluster.kill_node(node)
            cluster.start_node(node, wait=False)

        return kill_and_start

    return Deployment(
        name, cluster.bootstrap, nodes, {OWN: cluster.processes}, {node: restart(node) for node in cluster.node_ids},
        folder=folder,
    )  # fmt: skip


@contextlib.contextmanager
def start_hdfs(folder: Path) -> Iterator[HdfsCluster]:
    """Start the HDFS of a deployment, its data in ``folder``, and stop it at the end."""
    with HdfsCluster(datanodes=DATANODES, java_options=JAVA_OPTIONS, folder=folder) as hdfs:
        yield hdfs


def _bmq(stack: contextlib.ExitStack, name: str, folder: Path, hdfs: HdfsCluster | None) -> Deployment:
    root, environment, nodes = (folder / "root").as_uri(), BMQ_ENVIRONMENT, 1
    etcd: EtcdCluster | None = None
    outside: dict[str, Sequence[ServiceProcess]] = {}
    if name != "bmq-local":
        hdfs = hdfs or stack.enter_context(start_hdfs(folder / "hdfs"))
        root, environment = f"{hdfs.root}/{name}", REPLICATED_ENVIRONMENT
        outside[HDFS] = hdfs.processes
    if name == "bmq-3":
        etcd = stack.enter_context(EtcdCluster(members=NODES, folder=folder / "etcd", arguments=ETCD_ARGUMENTS))
        nodes = NODES
        outside[ETCD] = etcd.members
    meta = None if etcd is None else etcd.url
    servers = {}
    for node in range(nodes):
        home = folder / f"bmq-{node}"
        home.mkdir()
        servers[node] = BmqServer(root, meta, environment=environment, arguments=("--node-id", str(node)), folder=home)
        stack.push(servers[node])
    start_servers(servers.values(), members=nodes)
    return Deployment(
        name,
        ",".join(server.bootstrap for server in servers.values()),
        1 if name == "bmq-local" else 3,
        {OWN: [server.process for server in servers.values()], **outside},
        {node: _restart(server) for node, server in servers.items()},
        root=root,
        folder=folder,
        metrics_urls=[f"{server.http}/metrics" for server in servers.values()],
        servers=servers,
        hdfs=hdfs,
        etcd=etcd,
    )


def _restart(server: BmqServer) -> Callable[[], None]:
    def kill_and_start() -> None:
        server.kill()
        server.start(wait=False)

    return kill_and_start


def start_servers(servers: Collection[BmqServer], *, members: int) -> None:
    """Start the servers of one cluster; return when each lists all of its members to clients."""
    for server in servers:
        server.start(wait=False)
    for server in servers:
        server.wait_ready()
    admins = [AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 0}) for server in servers]

    def know_each_other() -> bool:
        return all(len(admin.list_topics(timeout=10).brokers) == members for admin in admins)

    wait_for(know_each_other, f"{members} members of {servers!r}", timeout_s=READY_TIMEOUT_S)

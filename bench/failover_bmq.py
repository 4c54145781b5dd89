"""BMQ in the failover measurement: three processes with all roles, or processes of one role each, on etcd and HDFS."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.deployments import DATANODES, ETCD_ARGUMENTS, NODES, REPLICATED_ENVIRONMENT
from bench.failover_acts import BROKER, CONTROLLER, COORDINATOR, DATANODE, ETCD, MACHINE, NAMENODE, NODE, PROXY
from bench.failover_sites import CHECK_S, COPIES, WHOLE_TIMEOUT_S, Part, size_of
from bench.roots import JAVA_OPTIONS
from bmq.meta.group_placement import shard_of
from tests.services.bmq_cluster import BmqCluster
from tests.services.etcd import EtcdCluster
from tests.services.hdfs import HdfsCluster
from tests.services.netns import Network
from tests.services.processes import wait_for

BALANCE_S = 1.0
"""Seconds between two requests of a balance, until partitions are spread."""
MANY = 1000
"""Owned partitions from which on a check, which reads all of etcd, is made only each MANY_CHECK_S."""
MANY_CHECK_S = 0.5


class BmqSite:
    """A cluster of ``bmq serve``, with the etcd and the HDFS that it is over."""

    def __init__(self, cluster: BmqCluster, hdfs: HdfsCluster, etcd: EtcdCluster) -> None:
        self.bootstrap = cluster.bootstrap
        self._cluster = cluster
        self._hdfs = hdfs
        self._etcd = etcd
        self._owner_role = NODE if cluster.names(NODE) else BROKER
        self._admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        self._check_s = CHECK_S
        self._streamed = 0

    @property
    def parts(self) -> Mapping[str, Part]:
        etcd, hdfs = self._etcd, self._hdfs
        found = {f"etcd-{n}": Part(each, each.start, etcd.machines.get(n)) for n, each in enumerate(etcd.members)}
        found |= {each.name: Part(each, each.start, hdfs.machines.get(each.name)) for each in hdfs.processes}
        return found | {
            name: Part(member.process, partial(member.start, wait=False), self._cluster.machine(name))
            for name, member in self._cluster.members.items()
        }

    def create_topic(self, name: str, partitions: int, streamed: int) -> None:
        self._streamed = streamed
        self._check_s = MANY_CHECK_S if partitions >= MANY else CHECK_S
        self._admin.create_topics([NewTopic(name, partitions, COPIES)], operation_timeout=300)[name].result(600)
        self.wait_whole()

    def victims(self, part: str, topic: str, group: str) -> Sequence[str]:
        find: dict[str, Callable[[], str]] = {
            DATANODE: lambda: "datanode-0",  # of three datanodes with three copies each has everything
            NAMENODE: lambda: "namenode-0",
            ETCD: lambda: f"etcd-{self._etcd.leader()}",
            PROXY: lambda: self._busiest_proxy(topic),
            CONTROLLER: lambda: str(self._cluster.leader()),
            COORDINATOR: lambda: self._coordinator(group),
        }
        if part in find:
            return [find[part]()]
        owner = self._busiest(topic)
        number = owner.rpartition("-")[2]
        return [f"etcd-{number}", f"datanode-{number}", owner] if part == MACHINE else [owner]

    def stop(self, victim: str) -> None:
        self._cluster.stop_politely(victim)

    def wait_whole(self) -> None:
        """Wait until all members are known, all partitions are with their owners, and no whole block lacks a copy."""
        self._cluster.wait_ready(self._cluster.members)
        self._wait(lambda: not self._cluster.unstable(), "every partition with its owner")
        self._etcd.wait_healthy()
        self._hdfs.wait_live()
        self._wait(lambda: self._hdfs.blocks_short_of_copies() == 0, "every block with its copies")

    def spread(self, topic: str) -> None:
        """Request balances, as an operator does who does not wait for the next one, until each owner has its share."""
        asked = float("-inf")

        def is_spread() -> bool:
            nonlocal asked
            if time.monotonic() - asked >= BALANCE_S:
                self._cluster.balance()
                asked = time.monotonic()
            owned = self._owned(topic)
            owners = self._cluster.names(self._owner_role)
            has_share = min(owned[name] for name in owners) >= owned.total() // len(owners) - 1
            return has_share and not self._cluster.unstable()

        self._wait(is_spread, f"{topic} spread evenly")

    def add(self, topic: str) -> None:
        added = self._cluster.add(self._owner_role)
        self.spread(topic)
        if not self._owned(topic)[added]:
            raise AssertionError(f"{added} got no partition of {topic}: this measured nothing")

    def stored_bytes(self) -> int:
        return sum(size_of(datanode.data_dir) for datanode in self._hdfs.datanodes)

    def _owned(self, topic: str) -> Counter[str]:
        """Return how many of the topic's partitions that get records each member owns."""
        found = self._admin.describe_topics(TopicCollection([topic]))[topic].result(60).topic_id
        high, low = found.get_most_significant_bits(), found.get_least_significant_bits()
        topic_id = uuid.UUID(int=high % (1 << 64) << 64 | low % (1 << 64))
        return Counter(
            owner
            for key, owner in self._cluster.owners().items()
            if key.topic_id == topic_id and key.partition < self._streamed
        )

    def _busiest(self, topic: str) -> str:
        owned = self._owned(topic)
        return max(self._cluster.names(self._owner_role), key=lambda name: owned[name])

    def _coordinator(self, group: str) -> str:
        shards = self._cluster.shards()
        return shards[shard_of(group, len(shards))]

    def _busiest_proxy(self, topic: str) -> str:
        partitions = self._admin.list_topics(topic, timeout=30).topics[topic].partitions.values()
        leaders = Counter(each.leader for each in partitions)
        return f"{PROXY}-{leaders.most_common(1)[0][0]}"

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        wait_for(condition, what, timeout_s=WHOLE_TIMEOUT_S, interval_s=self._check_s)


def start(stack: contextlib.ExitStack, name: str, folder: Path, network: Network | None) -> BmqSite:
    """Start ``bmq-3`` or ``bmq-roles``."""
    hdfs = HdfsCluster(datanodes=DATANODES, java_options=JAVA_OPTIONS, folder=folder / "hdfs", network=network)
    etcd = EtcdCluster(members=NODES, folder=folder / "etcd", arguments=ETCD_ARGUMENTS, network=network)
    stack.enter_context(etcd)
    stack.enter_context(hdfs)
    counts = {"nodes": NODES, "proxies": 0, "brokers": 0, "controllers": 0, "coordinators": 0}
    cluster = BmqCluster(
        f"{hdfs.root}/bench", etcd, environment=REPLICATED_ENVIRONMENT, network=network, folder=folder / "bmq",
        **counts if name == "bmq-3" else {},
    )  # fmt: skip
    return BmqSite(stack.enter_context(cluster), hdfs, etcd)

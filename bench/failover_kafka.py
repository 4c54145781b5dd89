"""Apache Kafka in the failover measurement: three brokers that are controllers too, or three of each, and a spare."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import ElectionType, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._metadata import PartitionMetadata
from confluent_kafka.cimpl import NewTopic
from kafka import TopicPartition
from kafka.admin import KafkaAdminClient

from bench.deployments import NODES
from bench.failover_acts import CONTROLLER, COORDINATOR
from bench.failover_sites import CHECK_S, COPIES, WHOLE_TIMEOUT_S, Part, size_of
from bench.servers import KAFKA_HEAP_MB, KAFKA_JAVA, KAFKA_PROPERTIES
from tests.services.kafka import KafkaCluster
from tests.services.netns import Network
from tests.services.processes import wait_for

SPARE = NODES + 1
"""The broker that is added: it is no controller, and has no partition at first."""
NOTHING_TO_DO = (KafkaError.ELECTION_NOT_NEEDED,)
READY_TIMEOUT_S = 600.0
"""Seconds for a node to start.  One that starts slowly, because the machine has other work, has not failed."""
BEHIND_MAX = 10
"""Entries of the controllers' log that a controller may be behind: the leader appends some every second."""


class KafkaSite:
    """One Apache Kafka."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self.bootstrap = cluster.bootstrap
        self._cluster = cluster
        self._running = [node for node in cluster.numbers if node != SPARE]
        self._admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    @property
    def parts(self) -> Mapping[str, Part]:
        return {
            str(node): Part(
                self._cluster.node(node),
                partial(self._cluster.start_node, node, wait=False),
                self._cluster.machines.get(node),
            )
            for node in self._running
        }

    def create_topic(self, name: str, partitions: int, streamed: int) -> None:
        replicas = [[1 + (first + each) % NODES for each in range(COPIES)] for first in range(partitions)]
        topic = NewTopic(name, partitions, replica_assignment=replicas)
        self._admin.create_topics([topic], operation_timeout=60)[name].result(90)
        self.wait_whole()

    def victims(self, part: str, topic: str, group: str) -> Sequence[str]:
        if part == CONTROLLER:
            return [str(self._quorum()["leader_id"])]
        if part == COORDINATOR:
            return [str(self._admin.describe_consumer_groups([group])[group].result(60).coordinator.id)]
        leaders = Counter(each.leader for each in self._partitions(topic).values())
        return [str(max(self._cluster.node_ids, key=lambda node: leaders[node]))]

    def stop(self, victim: str) -> None:
        self._cluster.stop_node(int(victim))

    def wait_whole(self) -> None:
        """Wait until every replica is in sync, and every controller has the log of the leading one."""
        self._cluster.wait_ready(timeout_s=READY_TIMEOUT_S)
        wait_for(self._is_whole, "every replica in sync", timeout_s=WHOLE_TIMEOUT_S, interval_s=CHECK_S)

    def spread(self, topic: str) -> None:
        """Let each partition's first replica lead."""
        found = self._admin.elect_leaders(ElectionType.PREFERRED).result(60)
        refused = [str(error) for error in found.values() if error is not None and error.code() not in NOTHING_TO_DO]
        if refused:
            raise AssertionError(f"leaders were not elected: {refused[:3]}")
        wait_for(
            lambda: all(each.leader == each.replicas[0] for each in self._partitions(topic).values()),
            f"the first replicas of {topic} lead", timeout_s=WHOLE_TIMEOUT_S, interval_s=CHECK_S,
        )  # fmt: skip

    def add(self, topic: str) -> None:
        """Start the spare broker, and let it replace the first replica, which leads, of a quarter of the partitions."""
        self._cluster.start_node(SPARE)
        self._running.append(SPARE)
        plan = {
            number: [SPARE, *list(found.replicas)[1:]]
            for number, found in self._partitions(topic).items()
            if number % SPARE == 0
        }
        admin = KafkaAdminClient(bootstrap_servers=self.bootstrap.split(","))
        try:
            admin.alter_partition_reassignments(
                {TopicPartition(topic, number): replicas for number, replicas in plan.items()}
            )
        finally:
            admin.close()
        wait_for(
            lambda: self._are_placed(topic, plan), f"{topic} reassigned", timeout_s=WHOLE_TIMEOUT_S, interval_s=CHECK_S
        )
        self.spread(topic)

    def stored_bytes(self) -> int:
        return size_of(self._cluster.folder / "data")

    def _are_placed(self, topic: str, plan: Mapping[int, list[int]]) -> bool:
        found = self._partitions(topic)
        return all(
            list(found[number].replicas) == replicas and set(found[number].isrs) == set(replicas)
            for number, replicas in plan.items()
        )

    def _is_whole(self) -> bool:
        try:
            topics = self._admin.list_topics(timeout=10).topics.values()
        except KafkaException:
            return False  # a node that comes back does not respond yet
        if any(len(each.isrs) < len(each.replicas) for topic in topics for each in topic.partitions.values()):
            return False
        quorum = self._quorum()
        ends: dict[int, int] = {voter["replica_id"]: voter["log_end_offset"] for voter in quorum["current_voters"]}
        return min(ends.values()) >= ends[quorum["leader_id"]] - BEHIND_MAX

    def _partitions(self, topic: str) -> dict[int, PartitionMetadata]:
        return self._admin.list_topics(topic, timeout=30).topics[topic].partitions

    def _quorum(self) -> Mapping[str, Any]:
        admin = KafkaAdminClient(bootstrap_servers=self.bootstrap.split(","))
        try:
            found: Mapping[str, Any] = admin.describe_metadata_quorum()["topics"][0]["partitions"][0]
            return found
        finally:
            admin.close()


def start(stack: contextlib.ExitStack, name: str, folder: Path, network: Network | None) -> KafkaSite:
    """Start ``kafka-3`` or ``kafka-roles``."""
    cluster = KafkaCluster(
        nodes=NODES, controllers=0 if name == "kafka-3" else NODES, spares=1, heap_mb=KAFKA_HEAP_MB,
        java_options=KAFKA_JAVA, properties=KAFKA_PROPERTIES, folder=folder / "kafka", network=network,
    )  # fmt: skip
    return KafkaSite(stack.enter_context(cluster))

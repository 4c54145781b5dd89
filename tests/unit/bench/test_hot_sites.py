"""The clusters of the measurement of hot partitions: each broker's figures under its own name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from bench.hot_sites import KafkaSite
from tests.services.kafka import KafkaCluster


def test_the_time_of_a_kafka_broker_is_that_of_its_node() -> None:
    nodes = {node: SimpleNamespace(cpu_seconds=10.0 * node) for node in (3, 2, 1)}  # as they are started
    cluster = SimpleNamespace(
        bootstrap="127.0.0.1:1", node_ids=[1, 2, 3], processes=list(nodes.values()), node=nodes.__getitem__
    )
    site = KafkaSite(cast(KafkaCluster, cluster))
    assert site.broker_cpu_s() == {"1": 10.0, "2": 20.0, "3": 30.0}

"""The clusters of the failover measurement: each broker's figures under its own name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from bench.failover_sites import SPARE, KafkaSite
from tests.services.kafka import KafkaCluster


def test_the_time_of_a_kafka_broker_is_that_of_its_node_and_the_spare_one_does_not_count() -> None:
    nodes = {node: SimpleNamespace(cpu_seconds=10.0 * node) for node in (4, 3, 2, 1)}  # as they are started
    cluster = SimpleNamespace(
        bootstrap="127.0.0.1:1", node_ids=[1, 2, 3, 4], processes=list(nodes.values()), node=nodes.__getitem__
    )
    site = KafkaSite(cast(KafkaCluster, cluster))
    assert SPARE == 4
    assert site.broker_cpu_s() == {"1": 10.0, "2": 20.0, "3": 30.0}

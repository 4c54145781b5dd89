"""The consumer of `bmq consume` in groups whose topics get partitions, with BMQ and with Apache Kafka."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from bmq.cli.records.group_consumer import GroupConsumer
from tests.integration.clients.drivers.base import (
    HEARTBEAT_MS,
    OPERATION_TIMEOUT_S,
    SESSION_TIMEOUT_MS,
    poll_until,
)
from tests.integration.clients.drivers.kafka_python import subscribe
from tests.integration.clients.endpoint import Endpoint
from tests.integration.clients.story import new_name
from tests.integration.load import create_topic

pytestmark = pytest.mark.clients

POLL_MS = 1
"""Less than a SyncGroup request takes: a poll ends between the responses to JoinGroup and SyncGroup."""
METADATA_MS = 200
ROUNDS = 5


def test_polls_that_end_during_a_rejoin_lose_no_assignment(endpoint: Endpoint) -> None:
    """The leader of the group joins again for each new partition, and gets it."""
    topic = new_name("grows")
    create_topic(endpoint.bootstrap, topic, 1)
    admin = AdminClient({"bootstrap.servers": endpoint.bootstrap, "log_level": 0})
    consumer = GroupConsumer(
        bootstrap_servers=endpoint.bootstrap, group_id=new_name("group"), enable_auto_commit=False,
        metadata_max_age_ms=METADATA_MS, session_timeout_ms=SESSION_TIMEOUT_MS, heartbeat_interval_ms=HEARTBEAT_MS,
    )  # fmt: skip

    def assigned() -> list[int]:
        return sorted(place.partition for place in consumer.assignment())

    def wait(partitions: int) -> None:
        def step() -> bool:
            consumer.poll(timeout_ms=POLL_MS)
            return assigned() == list(range(partitions))

        poll_until(step, lambda: f"{partitions} partitions assigned: {assigned()}")

    try:
        subscribe(consumer, [topic])
        wait(1)
        for partitions in range(2, 2 + ROUNDS):
            admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(OPERATION_TIMEOUT_S)
            wait(partitions)
    finally:
        consumer.close()

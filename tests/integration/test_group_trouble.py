"""A group that does not go on: the load's report tells a group that waits for a client from servers that are silent."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.integration.load import LIMIT_S, Group, create_topic
from tests.services.bmq import BmqServer
from tests.services.processes import wait_for

TOPIC, PARTITIONS = "orders", 2
SETTINGS = {"BMQ_GROUP_INITIAL_REBALANCE_DELAY_MS": "0", "BMQ_OFFSETS_TOPIC_NUM_PARTITIONS": "1"}


def write(bootstrap: str) -> None:
    create_topic(bootstrap, TOPIC, PARTITIONS)
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for partition in range(PARTITIONS):
        producer.produce(TOPIC, b"value", partition=partition)
    assert producer.flush(30) == 0


def absent_member(bootstrap: str, group: str) -> Consumer:
    """Return a member that keeps its session and joins no generation after its first: nobody calls it any more."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "client.id": "absent", "log_level": 0})

    def changed(_: Consumer, partitions: list[TopicPartition]) -> None:
        """Leave the change to the client: with a callback, it changes nothing unless it is called."""

    consumer.subscribe([TOPIC], on_assign=changed, on_revoke=changed)
    wait_for(lambda: consumer.poll(0.1) is None and bool(consumer.assignment()), "an assignment", timeout_s=30)
    return consumer


def test_a_group_that_waits_for_a_member_and_servers_that_are_silent_look_different(tmp_path: Path) -> None:
    with BmqServer(tmp_path.as_uri(), environment=SETTINGS) as server:
        write(server.bootstrap)
        absent = absent_member(server.bootstrap, "g")
        group = Group("g", TOPIC, PARTITIONS, [server.bootstrap], limit_s=5)
        group.start()
        try:
            with pytest.raises(AssertionError) as waits:
                group.wait_committed([1, 1])
            assert "the coordinator says PREPARING_REBALANC" in str(waits.value)
            assert "client absent is not of this test: the group waits for ['absent-" in str(waits.value)
            for partition in range(PARTITIONS):
                assert f"partition {partition} at 0: the servers give offset 0" in str(waits.value)

            server.process.pause()
            with pytest.raises(AssertionError) as silent:
                group.wait_committed([1, 1])
            assert "the coordinator does not respond" in str(silent.value)
            for partition in range(PARTITIONS):
                assert f"partition {partition} at 0: the servers give nothing" in str(silent.value)

            server.process.resume()
            absent.close()
            group.limit_s = LIMIT_S
            group.finish([1, 1])
        finally:
            group.abandon()

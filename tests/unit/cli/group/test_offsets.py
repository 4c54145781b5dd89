"""The ends of partitions: only of those that exist and have a leader."""

from __future__ import annotations

from typing import cast

from kafka import TopicPartition

from bmq.cli.admin_client import AdminClient
from bmq.cli.group.offsets import PartitionEnds, ends_of, leaders_of, led_partitions
from tests.unit.cli.fake_admin import FakeAdmin, FakePartition

LED, LEADERLESS, GONE = TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("gone", 0)


def with_orders(admin: FakeAdmin) -> AdminClient:
    admin.add_topic("orders", FakePartition(earliest=3, latest=9), FakePartition(latest=5, leader=-1))
    return cast(AdminClient, admin)


def test_partitions_without_a_leader_or_a_topic_have_no_ends(admin: FakeAdmin) -> None:
    client = with_orders(admin)
    assert ends_of(client, [LED, LEADERLESS, GONE, TopicPartition("orders", 7)]) == {LED: PartitionEnds(3, 9, 7)}
    assert ends_of(client, [LEADERLESS, GONE]) == {}


def test_partitions_are_listed_with_whether_they_have_a_leader(admin: FakeAdmin) -> None:
    client = with_orders(admin)
    assert led_partitions(client, {"orders", "gone"}) == {LED: True, LEADERLESS: False}
    assert leaders_of(client, {"orders", "gone"}) == {LED: 1, LEADERLESS: -1}


def test_no_topics_are_not_asked_for(admin: FakeAdmin) -> None:
    """Kafka's request without names would list every topic of the cluster."""
    assert led_partitions(with_orders(admin), []) == {}

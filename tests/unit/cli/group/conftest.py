"""A group with committed offsets, for the tests of `bmq group`."""

from __future__ import annotations

import pytest
from kafka import TopicPartition

from tests.unit.cli.fake_admin import FakeAdmin, FakeGroup, FakePartition


@pytest.fixture
def billing(admin: FakeAdmin) -> FakeGroup:
    """Two partitions of 10..100 and 0..50, of which 40 of the first and 50 of the second are committed."""
    admin.add_topic(
        "orders",
        FakePartition(earliest=10, latest=100, by_timestamp={1_000: 20, 2_000: 30}),
        FakePartition(latest=50, by_timestamp={1_000: 5}),
    )
    group = FakeGroup(committed={TopicPartition("orders", 0): 40, TopicPartition("orders", 1): 50})
    admin.groups["billing"] = group
    return group

"""The planner's table: its totals are those of its partitions after any sequence of changes."""

from __future__ import annotations

import uuid
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bmq.controller.planning.partition_table import PartitionTable
from bmq.controller.planning.rates import NO_RATE, NO_TRAFFIC, Rate, Rates
from bmq.core.model import PartitionKey
from bmq.meta.cluster.assignment import CHUNK
from tests.harness.seeds import example_count

pytestmark = pytest.mark.slow

TOPICS = [uuid.UUID(int=n + 1) for n in range(3)]
OWNERS = ["", "a", "b"]

CHANGES = st.one_of(
    st.tuples(st.just("topic"), st.sampled_from(TOPICS), st.sampled_from([1, 2, 5, CHUNK, CHUNK + 2])),
    st.tuples(st.just("gone"), st.sampled_from(TOPICS)),
    st.tuples(
        st.just("chunk"), st.sampled_from(TOPICS), st.integers(0, 1), st.lists(st.sampled_from(OWNERS), max_size=6)
    ),
    st.tuples(
        st.just("rate"),
        st.sampled_from(TOPICS),
        st.sampled_from([0, 1, 4, CHUNK, CHUNK + 1]),
        st.builds(Rate, st.floats(0, 1e6), st.floats(0, 100)),
    ),
)


@given(st.lists(CHANGES, max_size=30))
@settings(max_examples=example_count(50, 2_000), deadline=None)
def test_the_totals_are_those_of_the_partitions(changes: list[tuple[object, ...]]) -> None:
    table, rates = PartitionTable(), dict[PartitionKey, Rate]()
    for change in changes:
        match change:
            case ("topic", uuid.UUID() as topic, int() as partitions):
                if topic in table.topics and table.topics[topic].partitions > partitions:
                    continue  # a topic never has fewer
                table.set_topic(topic, partitions)
            case ("gone", uuid.UUID() as topic):
                table.remove_topic(topic)
                rates = {key: rate for key, rate in rates.items() if key.topic_id != topic}
            case ("chunk", uuid.UUID() as topic, int() as number, list() as names):
                table.set_chunk(topic, number, names)
            case ("rate", uuid.UUID() as topic, int() as partition, Rate() as rate):
                key = PartitionKey(topic, partition)
                table.set_rate(key, rate)
                if key in table:
                    rates[key] = rate
    owners = dict(table)
    assert len(owners) == len(table)
    counted = Counter(owners.values())
    assert {owner: table.count(owner) for owner in table.owners} == counted
    assert set(table.unowned) == {key.topic_id for key, owner in owners.items() if not owner}
    found = {key: rate for key, rate in rates.items() if rate != NO_RATE}
    assert {key: table.rate(key) for key in owners if table.rate(key) != NO_RATE} == found
    for owner in OWNERS:
        sums = NO_TRAFFIC
        for key, rate in found.items():
            if owners[key] == owner:
                sums = sums.plus(rate, 1)
        assert table.traffic_of(owner) == sums
        assert dict(table.rates_of(owner)) == {key: rate for key, rate in found.items() if owners[key] == owner}
    assert table.traffic == Rates(
        sum(table.traffic_of(owner).bytes_s for owner in OWNERS),
        sum(table.traffic_of(owner).millirequests_s for owner in OWNERS),
    )
    for topic in table.topics:
        assert table.spread(topic) == Counter(owner for key, owner in owners.items() if key.topic_id == topic)


def test_a_chunk_is_as_long_as_its_topic() -> None:
    """Set chunks shorter than their topic (it has grown) and longer (it is seen late): the topic's length counts."""
    table = PartitionTable()
    table.set_topic(TOPICS[0], 3)
    table.set_chunk(TOPICS[0], 0, ["a"])
    assert list(dict(table).values()) == ["a", "", ""]
    table.set_chunk(TOPICS[0], 0, ["a", "b", "b", "b"])
    assert list(dict(table).values()) == ["a", "b", "b"]
    table.set_topic(TOPICS[0], CHUNK + 1)
    assert table.count("") == CHUNK - 2
    assert table[PartitionKey(TOPICS[0], 1)] == "b"

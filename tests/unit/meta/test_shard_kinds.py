"""Kinds of shards, and how a shard is named in messages between processes."""

from __future__ import annotations

from uuid import UUID

from bmq.core.config import NodeConfig
from bmq.meta.catalog import INTERNAL_TOPICS, OFFSETS_TOPIC, TRANSACTIONS_TOPIC, Topic
from bmq.meta.shard_kinds import (
    GROUPS,
    SHARD_KINDS,
    TRANSACTIONS,
    ShardId,
    kind_of_key,
    kind_of_topic,
    planned_kind,
    present_shards,
    shard_count,
    shard_of_code,
)
from tests.harness.fakes import FakeCatalog

PARTITIONS_MAX = 100_000


def test_every_kind_is_found_by_its_topic_its_key_and_its_place_in_a_plan() -> None:
    for kind in SHARD_KINDS:
        assert kind_of_topic(kind.topic) is kind_of_key(kind.key) is planned_kind(kind.planned_as) is kind
    assert {kind.topic for kind in SHARD_KINDS} == INTERNAL_TOPICS
    assert kind_of_topic("orders") is kind_of_key("members") is None


def test_the_code_of_a_groups_shard_is_its_number() -> None:
    """Processes of versions with this single kind send and read numbers."""
    assert [ShardId(GROUPS, number).code for number in (0, 7, PARTITIONS_MAX)] == [0, 7, PARTITIONS_MAX]


def test_a_shard_is_read_from_its_code_and_has_it_alone() -> None:
    shards = [ShardId(kind, number) for kind in SHARD_KINDS for number in (0, 1, PARTITIONS_MAX)]
    assert [shard_of_code(shard.code) for shard in shards] == shards
    assert len({shard.code for shard in shards}) == len(shards)
    assert all(0 <= shard.code < 1 << 31 for shard in shards)
    assert ShardId(TRANSACTIONS, 0).code > PARTITIONS_MAX, "an earlier version would take it for a groups' shard"
    assert shard_of_code(len(SHARD_KINDS) << 24 | 3) is shard_of_code(-1) is None


def test_shards_have_an_order_and_a_name() -> None:
    shards = [ShardId(kind, number) for kind in SHARD_KINDS for number in (0, 1)]
    shuffled = [shards[place] for place in (2, 0, 3, 1)]
    assert sorted(shuffled) == shards
    assert str(ShardId(GROUPS, 3)) == "shard 3 of __consumer_offsets"


def test_only_the_shards_of_groups_exist_before_their_topic() -> None:
    catalog, config = FakeCatalog(), NodeConfig(offsets_topic_num_partitions=40)
    assert [shard_count(kind, catalog, config) for kind in SHARD_KINDS] == [40, 0]
    assert [present_shards(kind, catalog) for kind in SHARD_KINDS] == [0, 0]
    for number, (name, partitions) in enumerate(((OFFSETS_TOPIC, 7), (TRANSACTIONS_TOPIC, 9))):
        catalog.put(name, Topic(name=name, topic_id=UUID(int=number + 1), partitions=partitions))
    assert [shard_count(kind, catalog, config) for kind in SHARD_KINDS] == [7, 9]
    assert [present_shards(kind, catalog) for kind in SHARD_KINDS] == [7, 9]

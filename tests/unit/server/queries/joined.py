"""A real membership whose view and peers are a test's, and the topics of its cluster: it never joins."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Mapping
from random import Random
from typing import Any, cast

from bmq.core.clock import SystemClock
from bmq.core.config import NodeConfig
from bmq.core.features import FEATURES, FeatureTable
from bmq.core.model import PartitionKey
from bmq.meta.catalog import Topic
from bmq.meta.cluster.member import Address, Member
from bmq.meta.cluster.view import ShardOwner
from bmq.meta.kv_memory import MemoryKeyValue, MemoryStore
from bmq.meta.shard_kinds import ShardId
from bmq.server.cluster_member import ClusterMember
from bmq.storage.memory import MemoryFileSystem, MemoryStorage
from tests.harness.fakes import FakeCatalog, FakeView

Ask = Callable[[Member, Any, float], Awaitable[Any]]


def member(name: str, *roles: str, port: int = 1) -> Member:
    return Member(incarnation=name, roles=frozenset(roles), internal=Address(host="h", port=port))


def topic(name: str, topic_id: uuid.UUID, partitions: int = 1) -> Topic:
    return Topic(name=name, topic_id=topic_id, partitions=partitions)


def catalog_of(*topics: Topic) -> FakeCatalog:
    return FakeCatalog(*topics)


def joined_as(view: FakeView, ask: Ask | None = None, features: FeatureTable = FEATURES) -> ClusterMember:
    """Return the membership of ``view.own``; ``ask`` responds in place of the other members."""
    fs, kv = MemoryFileSystem(MemoryStorage(Random(0)), view.own), MemoryKeyValue(MemoryStore())
    made = ClusterMember(NodeConfig(), fs, kv, SystemClock(), view.own, features=features)
    made.view = cast(Any, view)
    if ask is not None:
        made.peers.ask = ask  # type: ignore[method-assign,assignment]
    return made


def joined(
    *members: Member,
    ask: Ask | None = None,
    owners: Mapping[PartitionKey, str] | None = None,
    shards: Mapping[ShardId, ShardOwner] | None = None,
    own: str = "own",
) -> ClusterMember:
    """Return the membership of ``own`` in a cluster of these members, which own partitions and shards as given."""
    view = FakeView(own)
    view.members.update((each.incarnation, each) for each in members)
    view.owners.update(owners or {})
    view.shards.update(shards or {})
    return joined_as(view, ask)

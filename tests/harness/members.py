"""Stand-ins for the other processes of a cluster, for tests of one: there are none, and this one is a member."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from bmq.broker.assignment.assigned_partitions import AssignedPartitions
from bmq.broker.assignment.handover import HandoverNotifier
from bmq.broker.broker import Broker
from bmq.core.aio.subscribers import Subscribers
from bmq.core.model import PartitionKey
from bmq.meta.cluster.levels import NO_LEVELS
from bmq.meta.cluster.member import Member
from bmq.meta.cluster.view import ClusterView, ShardOwner, ViewChange
from bmq.meta.kv import KeyValue
from bmq.meta.kv_memory import MemoryKeyValue, MemoryStore
from bmq.meta.proxy_addresses import ProxyAddress
from bmq.meta.shard_kinds import ShardId
from bmq.storage.filesystem import FileSystem
from bmq.storage.layout import PartitionPath
from bmq.storage.memory import MemoryFileSystem, MemoryStorage
from tests.harness.broker_wiring import LooseWiring


class Registered:
    """A membership that lasts until a test ends it."""

    is_member = True


def lone_broker(fs: FileSystem, kv: KeyValue, **options: Any) -> Broker:
    """Return a broker that stays a member, and to which no other is alive."""
    options.setdefault("wiring", LooseWiring().frozen())
    return Broker(fs, kv, is_member=lambda: True, is_alive=lambda incarnation: False, **options)


def memory_broker(**options: Any) -> Broker:
    """Return ``lone_broker`` on an empty storage and store in memory."""
    fs = MemoryFileSystem(MemoryStorage(), "b")
    return lone_broker(fs, MemoryKeyValue(MemoryStore()), incarnation="b", **options)


class NotServing(AssignedPartitions):
    """A broker's partitions, of which it cannot serve these, each for a reason."""

    def __init__(self, broker: Broker, partitions: Sequence[tuple[PartitionPath, str]]) -> None:
        super().__init__(broker)
        self._not_served = partitions

    def not_served(self) -> Iterator[tuple[PartitionPath, str]]:
        return iter(self._not_served)


class OneView:
    """A ``ClusterView`` in which one member owns everything."""

    revision = 0
    levels = NO_LEVELS

    def __init__(self, own: str, *roles: str) -> None:
        self.own = own
        self.member = Member(incarnation=own, roles=frozenset(roles))
        self._subscribers = Subscribers[[ViewChange]]()

    @property
    def members(self) -> Mapping[str, Member]:
        return {self.own: self.member}

    @property
    def controller(self) -> Member | None:
        return self.member

    def owner_of(self, key: PartitionKey) -> str:
        return self.own

    def owned_count(self, incarnation: str) -> int:
        raise NotImplementedError("everything")

    def shard(self, shard: ShardId) -> ShardOwner | None:
        return ShardOwner(self.own, 1)

    @property
    def shards(self) -> Mapping[ShardId, ShardOwner]:
        raise NotImplementedError("all of them")

    def subscribe(self, call: Callable[[ViewChange], None]) -> Callable[[], None]:
        return self._subscribers.add(call)


class OneProxy:
    """``Proxies`` of which there is one."""

    version = 0

    def __init__(self, own: ProxyAddress) -> None:
        self.own = own

    @property
    def addresses(self) -> Sequence[ProxyAddress]:
        return (self.own,)

    def version_of(self, topic_id: uuid.UUID) -> int:
        return self.version

    def leader_of(self, key: PartitionKey) -> int:
        return self.own.node_id

    def coordinator_of(self, shard: ShardId) -> int:
        return self.own.node_id


class _NoPeers:
    async def ask(self, member: Member, request: object, timeout_s: float) -> Any:
        raise AssertionError("there is no other member")


def no_successors(view: ClusterView) -> HandoverNotifier:
    """Return the notifier of a broker that is alone in its cluster: it notifies nobody."""
    return HandoverNotifier(view, _NoPeers(), timeout_s=1.0)

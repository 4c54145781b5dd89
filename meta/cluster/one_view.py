"""The view of a process that is its whole cluster: everything is assigned to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bmq.core.aio.subscribers import Subscribers
from bmq.core.model import PartitionKey
from bmq.meta.cluster.member import Member
from bmq.meta.cluster.view import ShardOwner, ViewChange

_NUMBER = 1
"""The ownership number of every shard: no other process ever has one."""


class OneView:
    """A ``ClusterView`` that changes in the member's own addresses only."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._subscribers = Subscribers[[ViewChange]]()

    revision = 0

    @property
    def own(self) -> str:
        return self._member.incarnation

    @property
    def members(self) -> Mapping[str, Member]:
        return {self.own: self._member}

    @property
    def controller(self) -> Member | None:
        return self._member

    def owner_of(self, key: PartitionKey) -> str:
        return self.own

    def owned_count(self, incarnation: str) -> int:
        raise NotImplementedError("everything: the catalog has the number of partitions")

    def shard(self, shard: int) -> ShardOwner | None:
        return ShardOwner(self.own, _NUMBER)

    @property
    def shards(self) -> Mapping[int, ShardOwner]:
        raise NotImplementedError("all of them: the catalog has the number of shards")

    def subscribe(self, call: Callable[[ViewChange], None]) -> Callable[[], None]:
        return self._subscribers.add(call)

    def move(self, member: Member) -> None:
        """Change the member's addresses, and notify subscribers."""
        self._member = member
        self._subscribers.notify(ViewChange(members={member.incarnation}))

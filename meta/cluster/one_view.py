"""The view of a process that is its whole cluster: it is to own everything."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bmq.core.aio.subscribers import Subscribers
from bmq.core.model import PartitionKey
from bmq.meta.cluster.member import Member
from bmq.meta.cluster.view import ShardOwner, ViewChange

_NUMBER = 1
"""The ownership of every shard: nobody else ever has one."""


class OneView:
    """A ``ClusterView`` that only ever changes in the member's own addresses."""

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
        raise NotImplementedError("everything: ask the catalog what there is")

    def shard(self, shard: int) -> ShardOwner | None:
        return ShardOwner(self.own, _NUMBER)

    @property
    def shards(self) -> Mapping[int, ShardOwner]:
        raise NotImplementedError("all of them: ask the catalog how many there are")

    def subscribe(self, call: Callable[[ViewChange], None]) -> Callable[[], None]:
        return self._subscribers.add(call)

    def move(self, member: Member) -> None:
        """It has other addresses from now on."""
        self._member = member
        self._subscribers.tell(ViewChange(members={member.incarnation}))

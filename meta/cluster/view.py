"""What every process knows of its cluster: read from memory, told when it changes."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from bmq.core.model import PartitionKey
from bmq.meta.cluster.member import Member


class ShardOwner(NamedTuple):
    """Who serves a shard of ``__consumer_offsets``.  ``number`` grows with every assignment of the shard."""

    incarnation: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewChange:
    """What has changed; the view shows all of it already.  ``members``: incarnations that came, went or changed.

    ``revision``: the store's, of the last of these changes.  ``chunks``: those of the assignment that were written, by
    topic and number; ``partitions`` are those in them that have another owner.
    """

    revision: int = 0
    members: Set[str] = frozenset()
    partitions: Set[PartitionKey] = frozenset()
    chunks: Set[tuple[uuid.UUID, int]] = frozenset()
    shards: Set[int] = frozenset()
    is_controller: bool = False


class ClusterView(Protocol):
    """Watched; a moment behind the store, never going back."""

    @property
    def own(self) -> str:
        """This process's incarnation."""

    @property
    def revision(self) -> int:
        """The store's, up to which everything is shown; in a subscriber's call that of the changes before."""

    @property
    def members(self) -> Mapping[str, Member]:
        """Those registered, by incarnation."""

    @property
    def controller(self) -> Member | None:
        """The leader, if it is known and registered."""

    def owner_of(self, key: PartitionKey) -> str:
        """The incarnation that is to own the partition; "" when none is assigned."""

    def owned_count(self, incarnation: str) -> int:
        """How many partitions it is to own."""

    def shard(self, shard: int) -> ShardOwner | None:
        """Who is to serve the shard; None when nobody is."""

    @property
    def shards(self) -> Mapping[int, ShardOwner]:
        """All that are assigned."""

    def subscribe(self, call: Callable[[ViewChange], None]) -> Callable[[], None]:
        """Have ``call`` run at every change from here on, in order; the answer ends that."""

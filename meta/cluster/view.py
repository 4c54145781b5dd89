"""A process's view of its cluster: read from memory, with notifications of changes."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from bmq.core.model import PartitionKey
from bmq.meta.cluster.levels import FeatureLevels
from bmq.meta.cluster.member import Member
from bmq.meta.shard_kinds import ShardId


class ShardOwner(NamedTuple):
    """The process that serves a shard.

    ``number`` grows with every assignment of the shard.
    """

    incarnation: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewChange:
    """A set of changes; the view shows all of them already.  ``members``: incarnations that came, went or changed.

    ``revision``: the store's, of the last of these changes.  ``chunks``: those of the assignment that were written, by
    topic and number; ``partitions`` are those in them that have another owner.  ``left``: the partitions of these that
    this process owned before.  ``are_levels``: the record of the levels of features was written.
    """

    revision: int = 0
    members: Set[str] = frozenset()
    partitions: Set[PartitionKey] = frozenset()
    left: Set[PartitionKey] = frozenset()
    chunks: Set[tuple[uuid.UUID, int]] = frozenset()
    shards: Set[ShardId] = frozenset()
    is_controller: bool = False
    are_levels: bool = False


class ClusterView(Protocol):
    """A watched view; a moment behind the store, and never going back."""

    @property
    def own(self) -> str:
        """The incarnation of this process."""

    @property
    def revision(self) -> int:
        """The store's revision up to which everything is shown; in a subscriber's call, of the changes before."""

    @property
    def members(self) -> Mapping[str, Member]:
        """The registered members, by incarnation."""

    @property
    def levels(self) -> FeatureLevels:
        """The levels of features, in force and intended."""

    @property
    def controller(self) -> Member | None:
        """The leader, if it is known and registered."""

    def owner_of(self, key: PartitionKey) -> str:
        """Return the incarnation that the partition is assigned to; "" if it is assigned to none."""

    def owned_count(self, incarnation: str) -> int:
        """Return the number of partitions that are assigned to it."""

    def shard(self, shard: ShardId) -> ShardOwner | None:
        """Return the process that the shard is assigned to; None if there is none."""

    @property
    def shards(self) -> Mapping[ShardId, ShardOwner]:
        """All shards that are assigned, of all kinds."""

    def subscribe(self, call: Callable[[ViewChange], None]) -> Callable[[], None]:
        """Call ``call`` at every change from here on, in order.  Return a function that unsubscribes it."""

"""``ClusterView`` over a store: one watch of one prefix."""

from __future__ import annotations

import logging
import operator
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from itertools import chain, compress, repeat

from bmq.core.aio.subscribers import Subscribers, no_op
from bmq.core.errors import FormatError
from bmq.core.model import PartitionKey
from bmq.meta.cluster.assignment import CHUNK, AssignmentChunk, decode_chunk, decode_shards
from bmq.meta.cluster.keys import cluster_prefix
from bmq.meta.cluster.levels import NO_LEVELS, FeatureLevels, decode_record
from bmq.meta.cluster.member import Member, decode_member
from bmq.meta.cluster.view import ShardOwner, ViewChange
from bmq.meta.kv import Changes, Event, KeyValue
from bmq.meta.prefix_watch import PrefixWatcher
from bmq.meta.shard_kinds import ShardId, ShardKind, kind_of_key

_log = logging.getLogger(__name__)


class KvClusterView:
    """A watched view.  ``start`` returns when it is complete; it then follows until ``close``.

    Subscribers must not raise: an exception stops the view, as in ``meta.prefix_watch``.
    """

    def __init__(self, kv: KeyValue, cluster: str, own: str, on_failed: Callable[[str], None] = no_op) -> None:
        """``on_failed``: see ``meta.prefix_watch``."""
        self.own = own
        self._prefix = cluster_prefix(cluster)
        self._members: dict[str, Member] = {}
        self._controller = ""
        self._chunks: dict[tuple[uuid.UUID, int], AssignmentChunk] = {}
        self._counts: dict[str, int] = {}  # partitions by owner; the keys would take more memory than all else here
        self._shards: dict[ShardId, ShardOwner] = {}
        self._levels = NO_LEVELS
        self._subscribers = Subscribers[[ViewChange]]()
        self._following = PrefixWatcher(kv, self._prefix, self._take, what="cluster", on_failed=on_failed)

    def __repr__(self) -> str:
        return f"<KvClusterView members={len(self._members)} leader={self._controller} seen={self._following.seen}>"

    async def start(self) -> None:
        """Start following.  Returns when the view is complete.  Raises KvError if the store does not answer."""
        await self._following.start()

    async def close(self) -> None:
        await self._following.close()

    async def wait_revision(self, revision: int) -> None:
        """Wait until the view shows everything up to ``revision``."""
        await self._following.wait_revision(revision)

    @property
    def revision(self) -> int:
        """The revision of the store up to which the view shows everything."""
        return self._following.seen

    def revision_of(self, key: str) -> int:
        """Return the revision of the entry that the view shows for a key of the store; 0 for none.

        A write that was decided by this view compares it.
        """
        return self._following.revision_of(key)

    # ------------------------------------------------------------------------------------------------- what it shows

    @property
    def members(self) -> Mapping[str, Member]:
        return self._members

    @property
    def levels(self) -> FeatureLevels:
        return self._levels

    @property
    def controller(self) -> Member | None:
        return self._members.get(self._controller)

    @property
    def elected(self) -> str:
        """The incarnation under the election key, a member or not; "" for none."""
        return self._controller

    def owner_of(self, key: PartitionKey) -> str:
        chunk = self._chunks.get((key.topic_id, key.partition // CHUNK))
        place = key.partition % CHUNK
        return chunk.owners[place] if chunk is not None and place < len(chunk.owners) else ""

    def owned_count(self, incarnation: str) -> int:
        return self._counts.get(incarnation, 0)

    @property
    def owners(self) -> Set[str]:
        """Owners of any partition, members or not."""
        return self._counts.keys() - {""}

    def chunk(self, topic_id: uuid.UUID, number: int) -> AssignmentChunk | None:
        return self._chunks.get((topic_id, number))

    @property
    def chunks(self) -> Mapping[tuple[uuid.UUID, int], AssignmentChunk]:
        """All chunks that are written, by topic and number: those of deleted topics too."""
        return self._chunks

    def shard(self, shard: ShardId) -> ShardOwner | None:
        return self._shards.get(shard)

    @property
    def shards(self) -> Mapping[ShardId, ShardOwner]:
        return self._shards

    def subscribe(self, call: Callable[[ViewChange], None]) -> Callable[[], None]:
        return self._subscribers.add(call)

    @property
    def unreadable(self) -> Mapping[str, str]:
        """Keys that this version cannot read, with the reasons."""
        return self._following.unreadable

    # -------------------------------------------------------------------------------------------------- what changes

    def _take(self, changes: Changes) -> None:
        members: set[str] = set()
        partitions: set[PartitionKey] = set()
        left: set[PartitionKey] = set()
        chunks: set[tuple[uuid.UUID, int]] = set()
        shards: set[ShardId] = set()
        is_controller = are_levels = False
        for event in changes:
            name, _, rest = event.key.removeprefix(self._prefix).partition("/")
            try:
                if name == "members":
                    self._change_member(rest, event)
                    members.add(rest)
                elif name == "assignment":
                    topic, _, number = rest.partition("/")
                    place = (uuid.UUID(topic), int(number))
                    partitions |= self._change_chunk(place, event, left)
                    chunks.add(place)
                elif (kind := kind_of_key(name)) is not None:
                    shards |= self._change_shards(kind, event)
                elif name == "controller":
                    self._controller = event.entry.value.decode() if event.entry is not None else ""
                    is_controller = True
                elif name == "features":
                    self._levels = decode_record(event.entry.value) if event.entry is not None else NO_LEVELS
                    are_levels = True
            except (FormatError, ValueError) as error:
                if event.entry is not None:
                    self._following.keep(event.key, str(error))
        revision = max(event.revision for event in changes)
        change = ViewChange(
            revision=revision,
            members=members,
            partitions=partitions,
            left={key for key in left if self.owner_of(key) != self.own} if left else left,
            chunks=chunks,
            shards=shards,
            is_controller=is_controller,
            are_levels=are_levels,
        )
        self._subscribers.notify(change)

    def _change_member(self, incarnation: str, event: Event) -> None:
        if event.entry is None:
            self._members.pop(incarnation, None)
        else:
            member = decode_member(event.entry.value)
            if member.incarnation != incarnation:
                raise FormatError(f"{event.key} is of {member.incarnation}, by its value")
            self._members[incarnation] = member

    def _change_chunk(self, place: tuple[uuid.UUID, int], event: Event, left: set[PartitionKey]) -> set[PartitionKey]:
        """Take a chunk over.  Return the partitions with another owner; add to ``left`` those this process owned."""
        before = self._chunks.get(place, AssignmentChunk(())).owners
        after = decode_chunk(event.entry.value).owners if event.entry is not None else ()
        topic_id, first = place[0], place[1] * CHUNK
        if before != after:
            length = max(len(before), len(after))
            differs = map(operator.ne, _padded(before, length), _padded(after, length))
            changed = {PartitionKey(topic_id, first + index) for index in compress(range(length), differs)}
            if self.own in before:
                padded = tuple(_padded(before, length))
                left |= {key for key in changed if padded[key.partition - first] == self.own}
            self._count(before, after)
        else:
            changed = set()
        if event.entry is None:
            self._chunks.pop(place, None)
        else:
            self._chunks[place] = AssignmentChunk(after)
        return changed

    def _count(self, before: Sequence[str], after: Sequence[str]) -> None:
        old, new = Counter(before), Counter(after)
        for owner in old.keys() | new.keys():
            count = self._counts.get(owner, 0) + new[owner] - old[owner]
            if count:
                self._counts[owner] = count
            else:
                self._counts.pop(owner, None)

    def _change_shards(self, kind: ShardKind, event: Event) -> set[ShardId]:
        owners = decode_shards(event.entry.value) if event.entry is not None else {}
        after = {ShardId(kind, number): owner for number, owner in owners.items()}
        before = {shard: owner for shard, owner in self._shards.items() if shard.kind is kind}
        others = {shard: owner for shard, owner in self._shards.items() if shard.kind is not kind}
        self._shards = others | after
        return {shard for shard in before.keys() | after.keys() if before.get(shard) != after.get(shard)}


def _padded(owners: Sequence[str], length: int) -> Iterable[str]:
    """Extend the owners: partitions that a chunk does not have are without an owner."""
    return chain(owners, repeat("", length - len(owners)))

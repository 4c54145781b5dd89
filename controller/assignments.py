"""Writing of the assignment: moves become bounded transactions, and a transaction compares the keys that it changes.

A transaction also compares the election key, so that only the leader's transactions succeed.  They are decided on the
view, and the leader waits for the view afterwards: it holds no copy that could differ from the view of all processes.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from bmq.controller.election import Leadership
from bmq.controller.kv_commit import is_deposed
from bmq.controller.planning.partition_table import PartitionTable
from bmq.controller.planning.planner_view import Move
from bmq.core.logging.fields import fields
from bmq.core.model import PartitionKey
from bmq.meta.catalog import Topic
from bmq.meta.cluster.assignment import CHUNK, AssignmentChunk, encode_chunk, encode_shards
from bmq.meta.cluster.keys import assignment_key, member_key, shards_key
from bmq.meta.cluster.kv_view import KvClusterView
from bmq.meta.cluster.ownership_numbers import COUNT_BITS, is_past_its_count, next_number
from bmq.meta.cluster.view import ShardOwner
from bmq.meta.kv import COMMIT_OPERATIONS_MAX, Compare, Delete, KeyValue, Put, Write
from bmq.meta.settled_commit import Settled, commit_settled
from bmq.meta.shard_kinds import SHARD_KINDS, ShardId, ShardKind, planned_kind

_log = logging.getLogger(__name__)

KEYS_PER_COMMIT = COMMIT_OPERATIONS_MAX - 8
BYTES_PER_COMMIT = 64 << 10
MOVES_PER_COMMIT = 2_500
"""Bounds of one transaction.  Every process of the cluster decodes it, and acts on its moves, in one turn of its loop:
some 10 ms with these."""
_NOBODY = ShardOwner("", 0)


class Deposed(Exception):
    """Raised when another process leads, so that this term must not write any more."""


@dataclass(slots=True)
class AssignmentTransaction:
    """The compares and writes of one transaction."""

    compares: list[Compare] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    """The moves that the transaction carries out."""
    bytes: int = 0

    def has_room(self, size: int) -> bool:
        """Return whether a further write of ``size`` bytes fits; the first one always does."""
        if not self.writes:
            return True
        has_bytes = self.bytes + size <= BYTES_PER_COMMIT
        return has_bytes and len(self.writes) < KEYS_PER_COMMIT and len(self.moves) < MOVES_PER_COMMIT


class Assignments:
    """The assignment of one term: read from the view, written to the store."""

    def __init__(
        self, kv: KeyValue, cluster: str, view: KvClusterView, leadership: Leadership, rebuild_count: int
    ) -> None:
        """``rebuild_count``: how often the store was rebuilt; shards' ownership numbers begin above it."""
        self._kv = kv
        self._cluster = cluster
        self._view = view
        self._leadership = leadership
        self._rebuild_count = rebuild_count
        self._stuck: set[ShardId] = set()  # shards without a further number, each logged once

    # ------------------------------------------------------------------------------------------------------- reading

    def shard_owners(self, counts: Callable[[ShardKind], int]) -> PartitionTable:
        """Return the owners of all shards in the planner's form: the shards of a kind are partitions of one topic.

        ``counts`` returns the number of a kind's shards.  Shards beyond it that were ever assigned are included.
        """
        return PartitionTable.of(
            {
                PartitionKey(kind.planned_as, number): owner.incarnation
                for kind in SHARD_KINDS
                for number, owner in self._owners_of(kind, counts(kind)).items()
            }
        )

    def _owners_of(self, kind: ShardKind, count: int) -> dict[int, ShardOwner]:
        """Return the owners of a kind's first ``count`` shards, and of all that were ever assigned."""
        known = {shard.number: owner for shard, owner in self._view.shards.items() if shard.kind is kind}
        return {number: known.get(number, _NOBODY) for number in range(max([count, *(each + 1 for each in known)]))}

    def _chunk(self, topic_id: uuid.UUID, number: int, partitions: int) -> Sequence[str]:
        """Return the owners of the topic's partitions in a chunk, "" for a partition without an owner."""
        length = min(CHUNK, partitions - number * CHUNK)
        chunk = self._view.chunk(topic_id, number)
        owners = chunk.owners if chunk is not None else ()
        return owners[:length] + ("",) * (length - len(owners))

    # ------------------------------------------------------------------------------------------------------- writing

    def batches(
        self,
        moves: Sequence[Move],
        dead: Iterable[str],
        gone: Iterable[uuid.UUID],
        find_topic: Callable[[uuid.UUID], Topic | None],
    ) -> Iterator[AssignmentTransaction]:
        """Yield the transactions that carry out ``moves``, in the order in which they must be committed.

        ``dead``: incarnations to be deleted from the members, in the first transactions; ``gone``: ids of deleted
        topics, whose assignments are deleted last.  Each transaction is made when it is asked for, from the view then.
        """
        batch = AssignmentTransaction()
        for write, some in self._writes(moves, dead, gone, find_topic):
            revision = self._view.revision_of(write.key)
            if isinstance(write, Delete) and not revision:
                continue  # deleted already
            size = len(write.key) * 2 + (len(write.value) if isinstance(write, Put) else 0)
            if not batch.has_room(size):
                yield batch
                batch = AssignmentTransaction()
            batch.compares.append(Compare(write.key, revision))
            batch.writes.append(write)
            batch.moves += some
            batch.bytes += size
        if batch.writes:
            yield batch

    def _writes(
        self,
        moves: Sequence[Move],
        dead: Iterable[str],
        gone: Iterable[uuid.UUID],
        find_topic: Callable[[uuid.UUID], Topic | None],
    ) -> Iterator[tuple[Write, Sequence[Move]]]:
        for incarnation in sorted(dead):
            yield Delete(member_key(self._cluster, incarnation)), ()
        for kind in SHARD_KINDS:
            shard_moves = [
                move for move in moves if planned_kind(move.key.topic_id) is kind and self._has_number(kind, move)
            ]
            if shard_moves:
                yield Put(shards_key(self._cluster, kind), self._moved_shards(kind, shard_moves)), shard_moves
        by_chunk: dict[tuple[uuid.UUID, int], list[Move]] = {}
        for move in moves:
            by_chunk.setdefault((move.key.topic_id, move.key.partition // CHUNK), []).append(move)
        for (topic_id, number), some in by_chunk.items():
            topic = find_topic(topic_id)
            if topic is not None:
                yield Put(assignment_key(self._cluster, topic_id, number), self._moved(topic, number, some)), some
        deleted = set(gone)
        if deleted:
            for topic_id, number in sorted(place for place in self._view.chunks if place[0] in deleted):
                yield Delete(assignment_key(self._cluster, topic_id, number)), ()

    def _moved(self, topic: Topic, number: int, moves: Sequence[Move]) -> bytes:
        owners = list(self._chunk(topic.topic_id, number, topic.partitions))
        for move in moves:
            owners[move.key.partition % CHUNK] = move.target
        return encode_chunk(AssignmentChunk(tuple(owners)))

    def _moved_shards(self, kind: ShardKind, moves: Sequence[Move]) -> bytes:
        """Encode the owners of all shards of a kind after ``moves``.

        Each assignment of a shard has a higher number than the last.

        No shard is ever left out, or its numbers would begin again at 0.
        """
        shards = {shard.number: owner for shard, owner in self._view.shards.items() if shard.kind is kind}
        for move in moves:
            number = self._next_number(shards.get(move.key.partition, _NOBODY))
            assert number is not None, "such moves are left out"
            if is_past_its_count(number, self._rebuild_count):
                _log.warning(
                    "shard has ownership number %d, which a rebuilt store would give again; `bmq cluster rebuild` must"
                    " then be run %d times",
                    number,
                    (number >> COUNT_BITS) - self._rebuild_count + 1,
                    extra=fields(topic=kind.topic, shard=move.key.partition),
                )
            shards[move.key.partition] = ShardOwner(move.target, number)
        return encode_shards(shards)

    def _next_number(self, before: ShardOwner) -> int | None:
        return next_number(before.number, self._rebuild_count)

    def _has_number(self, kind: ShardKind, move: Move) -> bool:
        """Return whether the shard has a number for one more assignment; it stays with its last owner if not."""
        shard = ShardId(kind, move.key.partition)
        if self._next_number(self._view.shard(shard) or _NOBODY) is not None:
            return True
        if shard not in self._stuck:
            self._stuck.add(shard)
            _log.error(
                "no ownership number is left for the shard, which stays with its last owner; rebuild the store by"
                " `bmq cluster rebuild`",
                extra=fields(topic=kind.topic, shard=shard.number),
            )
        return False

    async def commit(self, batch: AssignmentTransaction) -> bool:
        """Commit the transaction, and wait until the view shows it.

        Returns False if it was decided on values that have changed since, or this process may not act now.  Raises
        Deposed if another process leads, KvError.
        """
        if not self._leadership.may_act:
            return False
        guard = [self._leadership.compare()]
        settled = await commit_settled(self._kv, [*guard, *batch.compares], batch.writes)
        commit = settled.commit
        if is_deposed(guard, commit):
            raise Deposed
        revision = commit.revision if commit.succeeded else _done_before(settled, batch.writes)
        if not revision:
            return False
        await self._view.wait_revision(revision)
        return True


def _done_before(settled: Settled, writes: Sequence[Write]) -> int:
    """Return the revision at which an earlier try was committed whose response was lost; 0 if none was.

    Its Puts show that, since only the leader writes their keys.  A transaction of deletions alone looks like the end of
    leases.  It moves nothing, and deletions that the view does not show yet are made again.
    """
    puts = [(settled.commit.current[write.key], write) for write in writes if isinstance(write, Put)]
    if not settled.may_be_ours or not all(entry is not None and entry.value == put.value for entry, put in puts):
        return 0
    return max((entry.revision for entry, _ in puts if entry is not None), default=0)

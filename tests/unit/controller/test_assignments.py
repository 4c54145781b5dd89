"""Writes of the assignment: what one transaction carries and in which order, and whether it was done."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from bmq.controller.assignments import (
    BYTES_PER_COMMIT,
    KEYS_PER_COMMIT,
    MOVES_PER_COMMIT,
    Assignments,
    AssignmentTransaction,
    Deposed,
)
from bmq.controller.election import Leadership
from bmq.controller.planning.planner_view import Move, Why
from bmq.core.clock import LoopClock
from bmq.core.model import PartitionKey
from bmq.meta.catalog import Topic
from bmq.meta.cluster.assignment import CHUNK, AssignmentChunk, decode_chunk, decode_shards, encode_chunk, encode_shards
from bmq.meta.cluster.keys import assignment_key, controller_key, member_key, shards_key
from bmq.meta.cluster.kv_view import KvClusterView
from bmq.meta.cluster.member import Member, encode_member
from bmq.meta.cluster.ownership_numbers import COUNT_BITS, LAST
from bmq.meta.cluster.view import ShardOwner
from bmq.meta.kv import Delete, Put
from bmq.meta.kv_memory import MemoryKeyValue, MemoryStore
from bmq.meta.shard_kinds import GROUPS, TRANSACTIONS, ShardId, ShardKind
from tests.unit.controller.world import world

TOPIC = Topic(name="t", topic_id=uuid.UUID(int=1), partitions=CHUNK + 2)
DELETED = uuid.UUID(int=2)


def move(partition: int, target: str, topic_id: uuid.UUID = TOPIC.topic_id) -> Move:
    return Move(PartitionKey(topic_id, partition), "", target, Why.UNASSIGNED)


def find_topic(topic_id: uuid.UUID) -> Topic | None:
    return TOPIC if topic_id == TOPIC.topic_id else None


class Written:
    """A store, a view of it, and the assignment of a leader over both."""

    def __init__(self) -> None:
        self.kv = MemoryKeyValue(MemoryStore())
        self.view = KvClusterView(self.kv, "c", "c1")
        self.leadership = Leadership(controller_key("c"), 0, 0, 1e9, LoopClock())
        self.lead()

    def lead(self, rebuild_count: int = 0) -> None:
        """Begin a term of a store that was rebuilt so often."""
        self.assignments = Assignments(self.kv, "c", self.view, self.leadership, rebuild_count)

    async def put(self, key: str, value: bytes = b"") -> None:
        done = await self.kv.commit([], [Put(key, value)])
        await self.view.wait_revision(done.revision)

    def batches(
        self, moves: Sequence[Move] = (), dead: Sequence[str] = (), gone: Sequence[uuid.UUID] = ()
    ) -> list[AssignmentTransaction]:
        return list(self.assignments.batches(moves, dead, gone, find_topic))


@asynccontextmanager
async def written() -> AsyncIterator[Written]:
    """Start over a store in which this process is elected."""
    w = Written()
    await w.view.start()
    try:
        await w.put(w.leadership.key, b"c1")
        w.leadership.revision = w.view.revision
        yield w
    finally:
        await w.view.close()


async def test_the_moves_of_a_chunk_are_one_write_that_keeps_the_other_owners() -> None:
    async with written() as w:
        key = assignment_key("c", TOPIC.topic_id, 0)
        await w.put(key, encode_chunk(AssignmentChunk(("a", "b"))))  # the topic has grown since
        (batch,) = w.batches([move(1, "c"), move(5, "d"), move(CHUNK + 1, "e")])
        chunks = {each.key: decode_chunk(each.value).owners for each in batch.writes if isinstance(each, Put)}
        assert chunks[key] == ("a", "c", "", "", "", "d") + ("",) * (CHUNK - 6)
        assert chunks[assignment_key("c", TOPIC.topic_id, 1)] == ("", "e")
        assert [compare.revision for compare in batch.compares] == [w.view.revision_of(key), 0]


async def test_dead_members_are_deleted_first_and_deleted_topics_last() -> None:
    async with written() as w:
        member = member_key("c", "a")
        await w.put(member, encode_member(Member(incarnation="a", roles=frozenset())))
        last = assignment_key("c", DELETED, 3)
        await w.put(last, encode_chunk(AssignmentChunk(("a",))))
        (batch,) = w.batches(
            [move(0, "b"), move(0, "b", GROUPS.planned_as), move(0, "b", DELETED)], ["gone", "a"], [DELETED]
        )
        between = [shards_key("c", GROUPS), assignment_key("c", TOPIC.topic_id, 0)]
        assert [write.key for write in batch.writes] == [member, *between, last]


def three_groups(kind: ShardKind) -> int:
    """Return the number of a kind's shards, of a cluster in which only the groups' topic exists."""
    return 3 if kind is GROUPS else 0


async def test_every_assignment_of_a_shard_has_a_higher_number_and_no_shard_is_forgotten() -> None:
    async with written() as w:
        for target in ("a", "b"):
            (batch,) = w.batches([move(1, target, GROUPS.planned_as)])
            assert await w.assignments.commit(batch)
        (batch,) = w.batches([move(4, "a", GROUPS.planned_as)])
        (write,) = batch.writes
        assert isinstance(write, Put)
        assert decode_shards(write.value) == {1: ("b", 2), 4: ("a", 1)}
        assert dict(w.assignments.shard_owners(three_groups)) == {
            PartitionKey(GROUPS.planned_as, 0): "",
            PartitionKey(GROUPS.planned_as, 1): "b",
            PartitionKey(GROUPS.planned_as, 2): "",
        }
        assert await w.assignments.commit(batch)
        assert len(w.assignments.shard_owners(three_groups)) == 5, "a shard beyond the count was assigned once"


def test_a_transaction_is_bounded_in_keys_bytes_and_moves_and_takes_one_write_of_any_size() -> None:
    batch = AssignmentTransaction()
    assert batch.has_room(10 * BYTES_PER_COMMIT)
    batch = AssignmentTransaction(writes=[Delete("k")], bytes=100)
    assert batch.has_room(BYTES_PER_COMMIT - 100)
    assert not batch.has_room(BYTES_PER_COMMIT - 99)
    assert not AssignmentTransaction(writes=[Delete("k")] * KEYS_PER_COMMIT).has_room(1)
    assert not AssignmentTransaction(writes=[Delete("k")], moves=[move(0, "a")] * MOVES_PER_COMMIT).has_room(1)


async def test_a_transaction_decided_on_old_values_is_not_done() -> None:
    async with written() as w:
        (first,) = w.batches([move(0, "a")])
        (second,) = w.batches([move(0, "b")])
        assert await w.assignments.commit(first)
        assert not await w.assignments.commit(second)
        chunk = w.view.chunk(TOPIC.topic_id, 0)
        assert chunk is not None
        assert chunk.owners[0] == "a"


async def test_a_leader_that_may_not_act_writes_nothing_and_a_deposed_one_ends_its_term() -> None:
    async with written() as w:
        (batch,) = w.batches([move(0, "a")])
        w.leadership.holds_until = 0.0
        assert not await w.assignments.commit(batch)
        w.leadership.holds_until = 1e9
        await w.put(w.leadership.key, b"c2")
        with pytest.raises(Deposed):
            await w.assignments.commit(batch)
        assert w.view.chunk(TOPIC.topic_id, 0) is None


@pytest.mark.slow
async def test_a_move_whose_response_is_lost_is_recognised_as_done() -> None:
    """Lose the response to a move's write: unless recognised as done, balancing would move the partition again."""
    async with world("a", "b") as w:
        one = w.led_by()
        key = next(key for key, owner in w.owners(one).items() if owner == "a")
        one.kv.answers_to_lose = 1
        await w.admin().move("t", key.partition, "b")
        assert one.controller.leading is not None
        assert key in one.controller.leading.planner_view().moved_at
        assert w.owners(one)[key] == "b"


@pytest.mark.slow
async def test_a_members_removal_whose_response_is_lost_is_recognised_as_done() -> None:
    async with world("a", "b") as w:
        one = w.led_by()
        await w.kill("b")
        one.kv.answers_to_lose = 1
        one.controller.report("proxy", "b")
        writes = len(w.writes)
        await w.until(lambda: w.is_assigned("a"))
        await asyncio.sleep(5)
        assert len(w.writes) == writes + 1


async def test_the_shards_of_each_kind_have_owners_and_numbers_of_their_own() -> None:
    """The groups' key keeps its name and format, which members of earlier versions read."""
    async with written() as w:
        moves = [move(1, "a", GROUPS.planned_as), move(1, "b", TRANSACTIONS.planned_as)]
        (batch,) = w.batches(moves)
        assert [write.key for write in batch.writes] == ["/c/cluster/shards", "/c/cluster/transaction-shards"]
        assert [decode_shards(write.value) for write in batch.writes if isinstance(write, Put)] == [
            {1: ("a", 1)},
            {1: ("b", 1)},
        ]
        assert await w.assignments.commit(batch)
        assert w.view.shards == {ShardId(GROUPS, 1): ("a", 1), ShardId(TRANSACTIONS, 1): ("b", 1)}
        (batch,) = w.batches([move(1, "a", TRANSACTIONS.planned_as)])
        assert await w.assignments.commit(batch)
        assert w.view.shards == {ShardId(GROUPS, 1): ("a", 1), ShardId(TRANSACTIONS, 1): ("a", 2)}
        owners = w.assignments.shard_owners(lambda kind: 2)
        assert {key.topic_id: owners[key] for key in owners if key.partition == 1} == {
            GROUPS.planned_as: "a",
            TRANSACTIONS.planned_as: "a",
        }
        assert len(owners) == 4


async def test_ownership_numbers_of_a_rebuilt_store_are_above_those_of_the_store_before() -> None:
    """A rebuilt store knows no assignment: partitions would refuse the markers of lower numbers for good."""
    async with written() as before:
        for target in ("a", "b", "a"):
            (batch,) = before.batches([move(1, target, TRANSACTIONS.planned_as)])
            assert await before.assignments.commit(batch)
        shard = ShardId(TRANSACTIONS, 1)
        last = before.view.shards[shard].number
    async with written() as rebuilt:
        rebuilt.lead(rebuild_count=1)
        (batch,) = rebuilt.batches([move(1, "a", TRANSACTIONS.planned_as)])
        assert await rebuilt.assignments.commit(batch)
        assert rebuilt.view.shards[shard].number > last


async def test_a_number_that_a_rebuilt_store_would_give_again_is_served_and_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with written() as w:
        await w.put(shards_key("c", GROUPS), encode_shards({1: ShardOwner("a", (3 << COUNT_BITS) - 1)}))
        w.lead(rebuild_count=2)
        (batch,) = w.batches([move(1, "b", GROUPS.planned_as)])
        assert await w.assignments.commit(batch)
        assert w.view.shards[ShardId(GROUPS, 1)] == ("b", 3 << COUNT_BITS)
        assert "must then be run 2 times" in caplog.text


async def test_a_shard_without_a_further_number_keeps_its_owner_and_others_move(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with written() as w:
        await w.put(shards_key("c", GROUPS), encode_shards({1: ShardOwner("a", LAST), 2: ShardOwner("a", 1)}))
        for _ in range(2):
            (batch,) = w.batches([move(1, "b", GROUPS.planned_as), move(2, "b", GROUPS.planned_as)])
            assert [each.key.partition for each in batch.moves] == [2], "what is not moved is not counted as a move"
        assert await w.assignments.commit(batch)
        assert w.view.shards == {ShardId(GROUPS, 1): ("a", LAST), ShardId(GROUPS, 2): ("b", 2)}
        assert caplog.text.count("no ownership number is left") == 1

"""Loading and loss of a large shard without a stop of the loop."""

from __future__ import annotations

import asyncio

import pytest

from bmq.coordinator.records import (
    CoordinatorRecord,
    GroupRecord,
    Offset,
    OffsetRecord,
    StoredGroup,
    encode,
)
from bmq.coordinator.shard.log_records import BatchProducer
from bmq.coordinator.shard.replay import Replay
from bmq.coordinator.stored_members import StoredMember
from bmq.core.aio.turns import ELEMENTS_A_TURN
from bmq.core.records.batch import Record, build_batch
from tests.harness.loop_stops import TurnCounter, is_short, loop_stops
from tests.harness.seeds import amount
from tests.unit.coordinator.fakes import MemoryLog, MemoryPartition, World, running, topic
from tests.unit.coordinator.shard.kv_kind import KvState

pytestmark = pytest.mark.slow

GROUPS = amount(10_000, 20_000)
COMMITS = 20_000


async def test_a_large_shard_is_loaded_and_lost_without_a_stop_of_the_loop() -> None:
    """Groups with members, committed offsets of others, and one group with very many offsets."""

    world = World()
    world.catalog.topics["wide"] = topic("wide", COMMITS)
    wide = world.catalog.topics["wide"].topic_id
    member = StoredMember("m", None, "c", "/h", 300_000, 600_000, b"\0\1\0\0\0\1\0\1a", b"x" * 50)
    stored = StoredGroup("consumer", 1, "range", "m", 0, (member,))
    records: list[CoordinatorRecord] = [
        *(GroupRecord(f"members-{n}", stored) for n in range(GROUPS)),
        *(OffsetRecord(f"g{n}", "orders", 0, Offset(n)) for n in range(GROUPS)),
        *(OffsetRecord("many", "wide", n, Offset(n, topic_id=wide)) for n in range(COMMITS)),
    ]  # fmt: skip
    for at in range(0, len(records), 2_000):
        pairs = [Record(key=key, value=value) for key, value in map(encode, records[at : at + 2_000])]
        world.log.store(build_batch(pairs, base_timestamp=0))
    async with running(world):
        with loop_stops() as loading:
            await world.coordinator.ready("many")
        assert await world.fetch("many", topic="wide", partition=7) == 7
        with loop_stops() as forgetting:
            world.catalog.delete("wide")
            await asyncio.sleep(60)
        assert await world.fetch("many", topic="wide", partition=7) == -1
        assert not world.coordinator.shards._shards[0].serving.state.offsets.has_group("many")  # type: ignore[union-attr]
        log = world.log.open_log
        assert log is not None
        with loop_stops() as losing:
            log.end()
            await asyncio.sleep(1e-6)
            await world.coordinator.ready("g1")
    for each in (loading, forgetting, losing):
        assert each.turns > 20
        assert is_short(each.longest_s), each.longest_s


async def test_the_log_is_at_most_a_few_times_the_live_records() -> None:
    """However much was committed: the next owner has no more than that to read."""

    world = World(snapshot_bytes=20_000)
    async with running(world):
        for turn in range(3_000):
            assert await world.commit(f"g{turn % 100}", turn, partition=turn % 4) == 0
        await asyncio.sleep(1)
        live = sum(len(key) + len(value or b"") for key, value in (encode(each) for each in _records(world)))
        stored = sum(len(data) for _, data in world.log.batches)
        assert live < 10_000
        assert stored < 20_000 + 4 * 100 * live / 60, "a batch of one record has a head of 61 bytes"
        before = world.log.snapshots
        assert before > 5
        await world.crash()
        await world.coordinator.ready("g0")
        await world.commit("g0", 1)
        assert world.log.snapshots == before, "what was read does not count as new"


def _records(world: World) -> list[OffsetRecord]:
    serving = world.coordinator.shards._shards[0].serving
    assert serving is not None
    return list(serving.state.offsets)


@pytest.mark.parametrize("is_by_key", [True, False])
async def test_shards_that_are_loaded_together_share_the_turns_of_the_loop(is_by_key: bool) -> None:
    """A process that starts loads all its shards at once."""
    turns = TurnCounter()

    class Counted(KvState):
        def replay(self, key: bytes, value: bytes | None, producer: BatchProducer | None) -> None:
            turns.count()
            super().replay(key, value, producer)

    partition = MemoryPartition()
    for batch in range(20):
        pairs = [Record(key=b"%d-%d" % (batch, number), value=b"v") for number in range(30)]
        partition.store(build_batch(pairs, base_timestamp=0))
    replays = [Replay(MemoryLog(partition, lambda: None), Counted(is_by_key=is_by_key), 1 << 20) for _ in range(10)]
    await asyncio.gather(*(each.read(partition.next_offset) for each in replays))
    counts = turns.take()
    assert sum(counts) == 10 * 20 * 30
    assert max(counts) <= ELEMENTS_A_TURN

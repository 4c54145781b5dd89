"""The writer of a shard: which records share a batch, what it refuses, and what waits for the log."""

from __future__ import annotations

import asyncio

import pytest

from bmq.coordinator.shard import writer
from bmq.coordinator.shard.log_records import BatchProducer
from bmq.coordinator.shard.writer import Writer
from bmq.core.clock import LoopClock
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.records.batch import Batch, Record, build_batch
from bmq.core.records.reader import read_records
from bmq.core.wire import messages as m
from tests.harness.waiting import until
from tests.unit.coordinator.fakes import (
    CLIENT,
    MemoryLog,
    MemoryPartition,
    World,
    commit_request,
    join_alone,
    join_code,
    running,
    sync_request,
)


async def test_rule_1_a_commit_is_answered_when_it_is_flushed() -> None:
    async with running(World()) as world:
        await world.coordinator.ready("g")
        world.log.flush_s = 2.0
        before = asyncio.get_running_loop().time()
        assert await world.commit("g", 7) == 0
        assert asyncio.get_running_loop().time() - before >= 2.0


async def test_commits_of_one_turn_share_a_batch() -> None:
    async with running(World()) as world:
        await world.coordinator.ready("g")
        before = len(world.log.batches)
        await asyncio.gather(*(world.commit("g", n, partition=n) for n in range(50)))
        assert len(world.log.batches) - before == 1
        # Those that come while it is in flight go into the next, together.
        first = asyncio.ensure_future(world.commit("g", 1))
        await asyncio.sleep(0.0005)
        await asyncio.gather(first, *(world.commit("g", n, partition=n) for n in range(50)))
        assert len(world.log.batches) - before == 3


async def test_a_large_commit_is_split_and_answered_once() -> None:
    async with running(World()) as world:
        await world.coordinator.ready("g")
        world.log.max_batch_bytes = 1_000
        request = commit_request("g", [("orders", n, n) for n in range(200)], metadata="x" * 100)
        response = await world.coordinator.offset_commit(request, CLIENT)
        assert {each.partitions[0].error_code for each in response.topics} == {0}
        assert all(len(data) <= 1_000 for _, data in world.log.batches)
        assert await world.fetch("g", partition=199) == 199


async def test_a_record_that_the_log_does_not_take_is_refused_alone() -> None:
    async with running(World()) as world:
        await world.coordinator.ready("g")
        world.log.max_batch_bytes = 300
        assert await world.commit("g", 1, metadata="x" * 400) == ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        assert await world.commit("g", 1) == 0


async def test_a_write_that_hangs_is_answered_in_time() -> None:
    async with running(World()) as world:
        await world.coordinator.ready("g")
        world.log.hang = True
        assert await world.commit("g", 1) == ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_a_write_that_too_few_datanodes_would_hold_is_not_available_until_there_are_enough() -> None:
    async with running(World()) as world:
        await world.coordinator.ready("g")
        world.log.refuse_next = ErrorCode.NOT_ENOUGH_REPLICAS
        assert await world.commit("g", 1) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        world.log.refuse_next = ErrorCode.NOT_ENOUGH_REPLICAS  # and so does the barrier of the next load
        await until(lambda: world.log.refuse_next is None)
        assert await world.commit("g", 2) == 0


async def test_requests_that_wait_for_room_are_refused_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log hangs, and more waits for it than may."""
    monkeypatch.setattr(writer, "QUEUE_BYTES_MAX", 10_000)

    async with running(World()) as world:
        member, generation = await join_alone(world, "g", session_timeout_ms=1_000_000)
        assert await world.commit("simple", 1) == 0
        world.log.hang = True
        first = [asyncio.ensure_future(world.commit("in flight", 1))]
        await asyncio.sleep(1)
        first += [asyncio.ensure_future(world.commit(f"g{n}", n, metadata="x" * 4_000)) for n in range(5)]
        await asyncio.sleep(0)
        began = asyncio.get_running_loop().time()
        topic_class = m.OffsetDeleteRequest.OffsetDeleteRequestTopic
        part = topic_class.OffsetDeleteRequestPartition(partition_index=0)
        deletion = m.OffsetDeleteRequest(group_id="simple", topics=[topic_class(name="orders", partitions=[part])])
        answers = await asyncio.gather(
            world.commit("late", 1),
            join_code(world, "g", member),
            _sync(world, member, generation),
            _delete(world, "simple"),
            _code(world.coordinator.offset_delete(deletion, CLIENT)),
        )
        assert set(answers) == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
        assert asyncio.get_running_loop().time() - began < 5.1
        assert {await each for each in first} == {ErrorCode.COORDINATOR_NOT_AVAILABLE}


async def _code(response: object) -> int:
    return int((await response).error_code)  # type: ignore[misc]


async def _sync(world: World, member: str, generation: int) -> int:
    return await _code(world.coordinator.sync_group(sync_request("g", member, generation), CLIENT))


async def _delete(world: World, group: str) -> int:
    response = await world.coordinator.delete_groups(m.DeleteGroupsRequest(groups_names=[group]), CLIENT)
    return int(response.results[0].error_code)


class Written:
    """A writer on a log in memory, and the numbers of its operations in the order in which they completed."""

    def __init__(self) -> None:
        self.partition = MemoryPartition()
        self.completed: list[int] = []
        self.failures: list[RequestError] = []
        self._log = MemoryLog(self.partition, lambda: None)
        self.writer = Writer(self._log, LoopClock(), flushed=lambda sent_s: None, failed=self.failures.append)

    def write(self, number: int, records: int, producer: BatchProducer | None = None, size: int = 100) -> None:
        """Write an operation of so many records, whose keys are its number and theirs."""
        pairs = [(f"{number}-{each}".encode(), b"x" * size) for each in range(records)]
        self.writer.write(pairs, "g", lambda error: self.completed.append(number), producer)

    @property
    def batches(self) -> list[tuple[int, int, bool, list[int]]]:
        """Return producer id, epoch, whether it is transactional, and the operation of each record, of each batch."""
        found = []
        for _, data in self.partition.batches:
            batch = Batch(memoryview(data))
            operations = [int((record.key or b"").split(b"-")[0]) for record in read_records(batch)]
            found.append((batch.producer_id, batch.producer_epoch, batch.is_transactional, operations))
        return found


async def test_an_operation_with_a_producer_is_a_batch_of_its_own() -> None:
    """Neither the records before it nor those behind it are in its batch, and all complete in order."""
    w = Written()
    w.write(0, 2)
    w.write(1, 1)
    w.write(2, 3, BatchProducer(7, 4))
    w.write(3, 2, BatchProducer(8, 0, is_transactional=False))
    w.write(4, 0)
    w.write(5, 1)
    await until(lambda: len(w.completed) == 6)
    assert w.completed == [0, 1, 2, 3, 4, 5]
    assert w.batches == [
        (-1, -1, False, [0, 0, 1]),
        (7, 4, True, [2, 2, 2]),
        (8, 0, False, [3, 3]),
        (-1, -1, False, [5]),
    ]


@pytest.mark.slow
async def test_a_batch_of_its_own_is_not_split_where_others_are() -> None:
    w = Written()
    w.write(0, 4_000)
    w.write(1, 4_000, BatchProducer(7, 4))
    await until(lambda: w.completed == [0, 1])
    *split, whole = w.batches
    assert len(split) > 1
    assert {batch[0] for batch in split} == {-1}
    assert whole == (7, 4, True, [1] * 4_000)


async def test_a_batch_of_its_own_may_be_as_large_as_the_log_accepts_and_no_larger() -> None:
    """The refusal leaves nothing behind: operations before and after it are written."""
    size, records = 0, 0
    while size <= 1_000:  # the size of a batch is found by building it
        records += 1
        size = len(build_batch([Record(key=f"1-{each}".encode(), value=b"x" * 100) for each in range(records)]))
    w = Written()
    w.partition.max_batch_bytes = size
    w.write(0, 1)
    with pytest.raises(RequestError) as refused:
        w.write(1, records + 1, BatchProducer(7, 4))
    assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE
    w.write(1, records, BatchProducer(7, 4))
    await until(lambda: w.completed == [0, 1])
    assert [batch[3] for batch in w.batches] == [[0], [1] * records]
    assert not w.writer.has_open_writes("g")


async def test_batches_that_wait_count_for_the_bound_of_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "QUEUE_BYTES_MAX", 1_000)
    w = Written()
    w.write(0, 1)
    await asyncio.sleep(0)
    for number in (1, 2):
        assert w.writer.has_room
        w.write(number, 5, BatchProducer(7, 4))
    assert not w.writer.has_room
    await until(lambda: w.completed == [0, 1, 2])
    assert w.writer.has_room


async def test_a_batch_of_its_own_that_fails_ends_all_that_follow() -> None:
    w = Written()
    w.partition.fail_next = 1
    w.write(0, 1, BatchProducer(7, 4))
    w.write(1, 1)
    await until(lambda: bool(w.failures))
    assert w.completed == [0, 1]
    assert w.batches == []
    w.write(2, 1, BatchProducer(7, 4))
    await until(lambda: w.completed == [0, 1, 2])
    assert w.batches == []


@pytest.mark.parametrize("code", [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED])
async def test_a_producer_that_the_log_refuses_gets_the_reason_and_others_find_the_coordinator_again(
    code: ErrorCode,
) -> None:
    """Else the producer would come again, and each time the shard would be loaded again."""
    written = Written()
    errors: list[RequestError | None] = []
    written.writer.write([(b"a", b"1")], "", errors.append, BatchProducer(1, 0))
    written.writer.write([(b"b", b"2")], "", errors.append, BatchProducer(2, 0))
    written.partition.refuse_next = code
    await until(lambda: len(errors) == 2)
    assert [each.code for each in errors if each is not None] == [code, ErrorCode.NOT_COORDINATOR]


async def test_parts_that_fit_into_a_batch_each() -> None:
    written = Written()
    written.partition.max_batch_bytes = 1_000
    records = [(b"k" * 100, b"v" * 100)] * 10
    parts = [records[each] for each in written.writer.batches_of(records)]
    assert sum(map(len, parts)) == 10
    assert len(parts) == 3
    for part in parts:
        written.writer.write(part, "", lambda error: None, BatchProducer(1, 0))

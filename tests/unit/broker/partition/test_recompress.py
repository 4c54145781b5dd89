"""The queue of batches that are checked or recompressed off the loop (broker/partition/recompress.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from bmq.broker.partition.recompress import PARALLEL_MAX, Outcome, Recompressor, RecompressQueue, is_needed
from bmq.broker.partition.record_checks import Work
from bmq.core.aio.byte_budget import ByteBudget
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.records.batch import HEADER_BYTES, Batch, BatchRules, Record, build_batch
from bmq.core.records.compression import Compression, recompress
from bmq.core.wire.produce import Transaction
from bmq.endpoint.partitions import AppendCallback, Appended

CHECK = Work(BatchRules(), 0, None)
ZSTD = Compression("zstd", 3)


def batch(value: bytes = b"v") -> Batch:
    return Batch(memoryview(build_batch([Record(value=value)])))


def bad() -> Batch:
    """Return a batch whose record has a wrong length, under a right CRC."""
    made = batch()
    made.data[HEADER_BYTES] ^= 0x40
    made.set_max_timestamp(made.max_timestamp)  # makes the CRC right
    return made


class Append:
    transaction: Transaction | None = None

    def __init__(self) -> None:
        self.codes: list[ErrorCode] = []
        self.is_gone = False
        """The client has closed its connection."""
        self.on_end: Callable[[], object] = int

    @property
    def is_over(self) -> bool:
        return self.is_gone or bool(self.codes)

    def on_appended(self, appended: Appended) -> None:
        self.codes.append(ErrorCode.NONE)
        self.on_end()

    def on_failed(self, error: RequestError) -> None:
        self.codes.append(error.code)

    def on_given_back(self, data: memoryview, *, may_be_appended: bool) -> None:
        raise AssertionError("an owner gives nothing back")


class Partition:
    """A partition whose batches take a moment to check."""

    def __init__(self) -> None:
        self.accepted: list[AppendCallback] = []
        self.batches: list[Batch] = []
        self.refuses = False
        self.tasks: list[asyncio.Task[None]] = []
        self.process = ByteBudget(1 << 20)
        self.queue = RecompressQueue(Recompressor(self.offload), self.accept, self.spawn, self.process, 1 << 20)

    async def offload(self, call: Callable[[], Outcome]) -> Outcome:
        await asyncio.sleep(0.01)
        return call()

    def accept(self, batch: Batch, callback: AppendCallback, acks_all: bool) -> None:
        if self.refuses:
            raise RequestError(ErrorCode.NOT_ENOUGH_REPLICAS, "no")
        self.accepted.append(callback)
        self.batches.append(batch)
        callback.on_appended(Appended(0, -1, 0))

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        self.tasks.append(asyncio.create_task(work))
        return self.tasks[-1]

    def put(self, append: Append, produced: Batch | None = None, *, acks_all: bool = True) -> None:
        self.queue.put(produced or batch(), CHECK, append, acks_all=acks_all)


async def test_a_batch_in_the_turn_in_which_the_queue_becomes_empty_is_checked_too() -> None:
    """The queue's task has ended then, but the callback of that end has not run."""

    partition = Partition()
    first, second, third = Append(), Append(), Append()
    loop = asyncio.get_running_loop()

    def next_comes() -> None:
        loop.call_soon(partition.put, third)
        partition.put(second)

    first.on_end = lambda: loop.call_soon(next_comes)
    partition.put(first)
    await asyncio.sleep(1)
    assert partition.accepted == [first, second, third]
    assert [append.codes for append in (first, second, third)] == [[ErrorCode.NONE]] * 3
    assert (partition.queue.budget.used, partition.process.used, bool(partition.queue)) == (0, 0, False)


async def test_the_end_of_the_partition_refuses_those_that_wait() -> None:
    partition = Partition()
    appends = [Append(), Append()]
    for append in appends:
        partition.put(append)
    await asyncio.sleep(0.005)
    partition.tasks[0].cancel()
    await asyncio.sleep(1)
    assert [append.codes for append in appends] == [[ErrorCode.NOT_LEADER_OR_FOLLOWER]] * 2
    assert partition.accepted == []
    assert (partition.queue.budget.used, partition.process.used) == (0, 0)


def test_only_a_batch_of_another_codec_than_the_topics_is_recompressed() -> None:
    packed = Batch(memoryview(recompress(batch(), ZSTD)))
    assert not is_needed(batch(), None)
    assert not is_needed(packed, None)
    assert is_needed(batch(), ZSTD)
    assert not is_needed(packed, ZSTD)
    assert is_needed(packed, Compression("none", 0))


async def test_batches_are_handed_on_in_their_order_and_count_until_then() -> None:
    partition = Partition()
    sent = [batch(b"v" * 10 * number) for number in range(1, 4)]
    for each in sent:
        partition.put(Append(), each)
    assert partition.queue.budget.used == partition.process.used == sum(each.size for each in sent)
    await asyncio.sleep(0.015)
    assert partition.batches == sent[:1]
    assert partition.queue.budget.used == sent[1].size + sent[2].size
    await asyncio.sleep(1)
    assert partition.batches == sent
    assert (partition.queue.budget.used, partition.process.used, bool(partition.queue)) == (0, 0, False)
    assert len(partition.tasks) == 1
    partition.put(Append())
    await asyncio.sleep(1)
    assert len(partition.tasks) == 2, "an empty queue has no task"


async def test_a_batch_with_wrong_records_is_refused_and_the_next_one_goes_on() -> None:
    partition = Partition()
    refused, taken = Append(), Append()
    partition.put(refused, bad())
    partition.put(taken)
    await asyncio.sleep(1)
    assert (refused.codes, taken.codes) == ([ErrorCode.INVALID_RECORD], [ErrorCode.NONE])
    assert partition.accepted == [taken]


async def test_a_batch_that_is_not_accepted_any_more_is_refused_with_the_owners_error() -> None:
    partition = Partition()
    partition.refuses = True
    refused = Append()
    partition.put(refused)
    await asyncio.sleep(1)
    assert (refused.codes, partition.process.used) == ([ErrorCode.NOT_ENOUGH_REPLICAS], 0)


async def test_a_batch_whose_client_is_gone_is_dropped_if_it_waits_for_all_copies() -> None:
    partition = Partition()
    first, dropped, stored = Append(), Append(), Append()
    partition.put(first)
    partition.put(dropped)
    partition.put(stored, acks_all=False)
    dropped.is_gone = stored.is_gone = True
    await asyncio.sleep(1)
    assert partition.accepted == [first, stored]


async def test_a_process_works_on_a_bounded_number_of_batches_at_once() -> None:
    under_way = most = 0

    async def counted(call: Callable[[], Outcome]) -> Outcome:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.01)
        under_way -= 1
        return call()

    recompressor = Recompressor(counted)
    await asyncio.gather(*(recompressor.do(batch(), CHECK) for _ in range(3 * PARALLEL_MAX)))
    assert most == PARALLEL_MAX

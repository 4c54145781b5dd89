"""The queue of batches that are checked or recompressed off the loop (broker/partition/recompress.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from bmq.broker.partition.recompress import Outcome, Recompressor, RecompressQueue
from bmq.broker.partition.record_checks import Work
from bmq.core.aio.byte_budget import ByteBudget
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.records.batch import Batch, BatchRules, Record, build_batch
from bmq.endpoint.partitions import AppendCallback, Appended


class Append:
    def __init__(self) -> None:
        self.codes: list[ErrorCode] = []
        self.on_end: Callable[[], object] = int

    @property
    def is_over(self) -> bool:
        return bool(self.codes)

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
        self.tasks: list[asyncio.Task[None]] = []
        self.process = ByteBudget(1 << 20)
        self.queue = RecompressQueue(Recompressor(self.offload), self.accept, self.spawn, self.process, 1 << 20)

    async def offload(self, call: Callable[[], Outcome]) -> Outcome:
        await asyncio.sleep(0.01)
        return call()

    def accept(self, batch: Batch, callback: AppendCallback, acks_all: bool) -> None:
        self.accepted.append(callback)
        callback.on_appended(Appended(0, -1, 0))

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        self.tasks.append(asyncio.create_task(work))
        return self.tasks[-1]

    def put(self, append: Append) -> None:
        batch = Batch(memoryview(bytearray(build_batch([Record(value=b"v")]))))
        self.queue.put(batch, Work(BatchRules(), 0, None), append, acks_all=True)


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

"""Record checks and recompression (``compression.type``) off the loop, in each partition's order.

A partition has a queue only while a batch needs such work. Every later batch waits behind it, so no batch overtakes.
The process bounds the number of batches that are worked on at once, and every partition bounds its waiting bytes. Past
its bound the partition has no room.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from bmq.broker.partition.record_checks import Work
from bmq.core.aio.byte_budget import ByteBudget
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.records.batch import CODEC_MASK, Batch
from bmq.core.records.compression import Compression
from bmq.endpoint.partitions import AppendCallback

PARALLEL_MAX = 2
"""Batches worked on at once: each may take 256 MB while it is decompressed."""

Outcome = Batch | RequestError
Offload = Callable[[Callable[[], Outcome]], Awaitable[Outcome]]
"""A function that runs the call elsewhere: ``asyncio.to_thread``, or an executor of its own."""


async def run_inline(call: Callable[[], Outcome]) -> Outcome:
    """Run the call on the loop: for simulation and tests."""
    return call()


class Recompressor:
    """The bound on record checks and recompression of one process."""

    def __init__(self, offload: Offload = run_inline) -> None:
        self._offload = offload
        self._turns = asyncio.Semaphore(PARALLEL_MAX)

    async def do(self, batch: Batch, work: Work) -> Batch | RequestError:
        """Return the batch as it is to be stored, or the error that it is refused with."""
        async with self._turns:
            return await self._offload(lambda: work.do(batch))


def is_needed(batch: Batch, compression: Compression | None) -> bool:
    """Return whether the batch must be compressed in another way than it is; None: batches stay as they came."""
    return compression is not None and batch.attributes & CODEC_MASK != compression.number


class _Job:
    __slots__ = ("acks_all", "batch", "callback", "work")

    def __init__(self, batch: Batch, work: Work, callback: AppendCallback, *, acks_all: bool) -> None:
        self.batch = batch
        self.work = work
        self.acks_all = acks_all
        self.callback = callback

    @property
    def is_abandoned(self) -> bool:
        """True if the client that waited for the flush does so no more.

        With other acks the batch is stored all the same.
        """
        return self.acks_all and self.callback.is_over


class RecompressQueue:
    """The batches of a partition that wait for a check or recompression, and the batches behind them.

    ``accept(batch, callback, acks_all)`` numbers and queues a batch that is ready; ``process`` is the broker's byte
    budget.
    """

    def __init__(
        self,
        recompressor: Recompressor,
        accept: Callable[[Batch, AppendCallback, bool], None],
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        process: ByteBudget,
        bytes_max: int,
    ) -> None:
        self._recompressor = recompressor
        self._accept = accept
        self._spawn = spawn
        self._process = process
        self._jobs: deque[_Job] = deque()
        self._task: asyncio.Task[None] | None = None
        self.budget = ByteBudget(bytes_max)

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def put(self, batch: Batch, work: Work, callback: AppendCallback, *, acks_all: bool) -> None:
        """Queue a batch whose header was checked."""
        self._jobs.append(_Job(batch, work, callback, acks_all=acks_all))
        self.budget.take(batch.size)
        self._process.take(batch.size)
        if self._task is None:
            self._task = self._spawn(self._run())
            self._task.add_done_callback(self._ended)

    async def _run(self) -> None:
        while self._jobs:
            job = self._jobs[0]
            if not job.is_abandoned:
                done = await self._recompressor.do(job.batch, job.work)
                if isinstance(done, RequestError):
                    job.callback.on_failed(done)
                else:
                    self._hand_on(done, job)
            self._leave()
        self._task = None  # not later: the next batch may come in this turn of the loop, and begins a task of its own

    def _hand_on(self, batch: Batch, job: _Job) -> None:
        try:
            self._accept(batch, job.callback, job.acks_all)
        except RequestError as error:
            job.callback.on_failed(error)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Refuse the batches that are left if the task was cancelled: the partition is leaving this broker."""
        if task is not self._task:
            return
        self._task = None
        while self._jobs:
            error = RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the partition is moving")
            self._leave().callback.on_failed(error)

    def _leave(self) -> _Job:
        job = self._jobs.popleft()
        self.budget.give_back(job.batch.size)
        self._process.give_back(job.batch.size)
        return job

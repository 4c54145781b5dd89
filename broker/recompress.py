"""Batches on their way through another codec (``compression.type``), in each partition's order, off the loop.

A partition has a queue only while it has such batches; whatever comes after one waits behind it, needed or not, so
that nothing overtakes.  How many are worked on at once is bounded for the process, and how many bytes may wait for each
partition: past that it has no room.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from bmq.broker.budget import Budget
from bmq.core.compression import Compression, recompress
from bmq.core.errors import ErrorCode, FormatError, RequestError
from bmq.core.records import CODEC_MASK, Appended, Batch

PARALLEL_MAX = 2
"""Batches worked on at once: each may take 256 MB while it is decompressed."""

Offload = Callable[[Callable[[], bytearray]], Awaitable[bytearray]]
"""Runs the call somewhere else: ``asyncio.to_thread``, or an executor of its own."""


async def run_inline(call: Callable[[], bytearray]) -> bytearray:
    """No somewhere else: simulation, tests."""
    return call()


class Recompressor:
    """One process's."""

    def __init__(self, offload: Offload = run_inline) -> None:
        self._offload = offload
        self._turns = asyncio.Semaphore(PARALLEL_MAX)

    async def recompress(self, batch: Batch, compression: Compression) -> Batch:
        """RequestError INVALID_RECORD when its records are damaged, although its CRC is right."""
        async with self._turns:
            try:
                data = await self._offload(lambda: recompress(batch, compression))
            except FormatError as error:
                raise RequestError(ErrorCode.INVALID_RECORD, str(error)) from error
        return Batch(memoryview(data))


def is_needed(batch: Batch, compression: Compression | None) -> bool:
    return compression is not None and batch.attributes & CODEC_MASK != compression.number


class _Job:
    __slots__ = ("acks_all", "batch", "future")

    def __init__(self, batch: Batch, *, acks_all: bool) -> None:
        self.batch = batch
        self.acks_all = acks_all
        self.future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()


class RecompressQueue:
    """One partition's.  ``accept(batch, acks_all)`` takes over what is ready; ``process`` is the broker's budget."""

    def __init__(
        self,
        recompressor: Recompressor,
        accept: Callable[[Batch, bool], Appended | asyncio.Future[Appended]],
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        process: Budget,
        bytes_max: int,
    ) -> None:
        self._recompressor = recompressor
        self._accept = accept
        self._spawn = spawn
        self._process = process
        self._jobs: deque[_Job] = deque()
        self.budget = Budget(bytes_max)

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def put(self, batch: Batch, compression: Compression | None, *, acks_all: bool) -> asyncio.Future[Appended]:
        """Queue a batch that was checked."""
        job = _Job(batch, acks_all=acks_all)
        self._jobs.append(job)
        self.budget.take(batch.size)
        self._process.take(batch.size)
        if len(self._jobs) == 1:
            self._spawn(self._run(compression)).add_done_callback(self._ended)
        return job.future

    async def _run(self, compression: Compression | None) -> None:
        """``compression`` as it was for the first: a change takes effect when the queue has run empty."""
        while self._jobs:
            job = self._jobs[0]
            try:
                batch = job.batch
                if compression is not None and is_needed(batch, compression):
                    batch = await self._recompressor.recompress(batch, compression)
                _follow(self._accept(batch, job.acks_all), job.future)
            except RequestError as error:
                _fail(job.future, error)
            self._leave()

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Cancelled with jobs left: the partition is ours no more."""
        while self._jobs:
            _fail(self._leave().future, RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the partition is moving"))

    def _leave(self) -> _Job:
        job = self._jobs.popleft()
        self.budget.give_back(job.batch.size)
        self._process.give_back(job.batch.size)
        return job


def _follow(accepted: Appended | asyncio.Future[Appended], future: asyncio.Future[Appended]) -> None:
    """``future`` ends as ``accepted`` does."""
    if isinstance(accepted, Appended):
        if not future.done():
            future.set_result(accepted)
        return

    def landed(done: asyncio.Future[Appended]) -> None:
        error = done.exception()
        if error is not None:
            _fail(future, error)
        elif not future.done():
            future.set_result(done.result())

    accepted.add_done_callback(landed)


def _fail(future: asyncio.Future[Appended], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)

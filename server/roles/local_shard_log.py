"""Shard logs whose partitions are owned by the broker in the same process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bmq.broker.assignment.assigned_partitions import AssignedPartitions
from bmq.broker.partition.owner import PartitionOwner
from bmq.broker.shard_log_fence import ShardFence
from bmq.coordinator.shard.remote_log import log_key
from bmq.core.errors import ErrorCode, FormatError, RequestError
from bmq.meta.catalog import Catalog
from bmq.meta.shard_kinds import ShardId
from bmq.storage.block_cache import BlockCache
from bmq.storage.filesystem import StorageError
from bmq.storage.layout import PartitionPath
from bmq.storage.log_reader import LogReader, OffsetNotFound


class LocalShardLog:
    """The ``ShardLog`` of a partition of this process: open while ``owner`` has it under ``epoch``, until ``end``."""

    def __init__(self, owner: PartitionOwner, reader: LogReader, closed: Callable[[], None]) -> None:
        self._owner = owner
        self._reader = reader
        self._closed: Callable[[], None] | None = closed
        self.epoch = owner.epoch

    @property
    def is_open(self) -> bool:
        return self._closed is not None and self._owner.is_open and self._owner.epoch == self.epoch

    @property
    def log_start(self) -> int:
        return self._owner.log_start

    @property
    def high_watermark(self) -> int:
        return self._owner.high_watermark

    @property
    def max_batch_bytes(self) -> int:
        return self._owner.max_message_bytes

    def append(self, batch: bytearray) -> asyncio.Future[int]:
        self._check()
        future = self._owner.append_internal(memoryview(batch))
        future.add_done_callback(self._appended)
        return future

    def _appended(self, future: asyncio.Future[int]) -> None:
        """End the handle if an append failed: its fate is unknown, so no later append may succeed."""
        if future.cancelled() or future.exception() is not None:
            self.end()

    async def read(self, offset: int, max_bytes: int) -> bytes:
        self._check()
        end = self.high_watermark
        if offset >= end:
            return b""
        try:
            return await self._reader.read(offset, max_bytes, end, active=self._owner.active_segment)
        except (StorageError, OffsetNotFound, FormatError) as error:
            raise RequestError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error

    async def confirm(self) -> None:
        """Check that the handle is open, and the ownership of ``owner`` proven.

        A later open of the log at this broker would have ended the handle.  Without a standstill no request is needed.
        """
        self._check()
        await self._owner.confirm_ownership()
        self._check()

    async def delete_before(self, offset: int) -> None:
        self._check()
        await self._owner.delete_before(offset)

    def _check(self) -> None:
        if not self.is_open:
            raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self._reader.path} has another owner now")

    def end(self) -> None:
        """Accept no more appends, and call ``closed`` once, in a later turn of the event loop.  Idempotent."""
        closed, self._closed = self._closed, None
        if closed is not None:
            asyncio.get_running_loop().call_soon(closed)


class LocalShardLogs:
    """The ``ShardLogs`` of partitions of this process.

    ``fence`` is the broker's, which coordinators of other processes use too (``broker.shard_log_api``).
    """

    def __init__(self, assigned: AssignedPartitions, catalog: Catalog, pool: BlockCache, fence: ShardFence) -> None:
        self._assigned = assigned
        self._catalog = catalog
        self._pool = pool
        self._fence = fence

    async def open(self, shard: ShardId, ownership: int, timeout_s: float, closed: Callable[[], None]) -> LocalShardLog:
        key = log_key(self._catalog, shard)
        owner = await self._assigned.wait(key, timeout_s)
        path = PartitionPath(shard.kind.topic, str(key.topic_id), shard.number)
        log = LocalShardLog(owner, LogReader(self._pool, path), closed)
        self._fence.open(key, owner.epoch, ownership, log, log.end)
        return log

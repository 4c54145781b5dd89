"""The coordinator's logs when the broker that owns ``__consumer_offsets`` is in the same process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bmq.broker.assignment.assigned_partitions import AssignedPartitions
from bmq.broker.partition.owner import PartitionOwner
from bmq.broker.shard_log_fence import ShardFence
from bmq.core.errors import ErrorCode, FormatError, RequestError
from bmq.core.model import PartitionKey
from bmq.meta.catalog import OFFSETS_TOPIC, Catalog
from bmq.storage.block_cache import BlockCache
from bmq.storage.filesystem import StorageError
from bmq.storage.layout import PartitionPath
from bmq.storage.log_reader import LogReader, OffsetNotFound


class LocalShardLog:
    """A ``coordinator.shard.log.ShardLog``: good while ``owner`` owns the partition under ``epoch``, until ``end``."""

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
        """After one that failed none may succeed: whoever wrote it cannot know any more what the log holds."""
        if future.cancelled() or future.exception() is not None:
            self.end()

    async def read(self, offset: int, max_bytes: int) -> bytes:
        self._check()
        end = self.high_watermark
        if offset >= end:
            return b""
        try:
            return await self._reader.read(offset, max_bytes, end, live=self._owner.live)
        except (StorageError, OffsetNotFound, FormatError) as error:
            raise RequestError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error

    async def confirm(self) -> None:
        """Another open of the log in this broker has ended the handle, so nobody needs to be asked."""
        self._check()

    async def delete_before(self, offset: int) -> None:
        self._check()
        await self._owner.delete_before(offset)

    def _check(self) -> None:
        if not self.is_open:
            raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self._reader.path} has another owner by now")

    def end(self) -> None:
        """Take nothing more; said once."""
        closed, self._closed = self._closed, None
        if closed is not None:
            asyncio.get_running_loop().call_soon(closed)


class LocalShardLogs:
    """A ``coordinator.shard.log.ShardLogs``.  ``fence`` is the broker's, which other processes' coordinators meet too
    (``broker.shard_log_api``)."""

    def __init__(
        self, assigned: AssignedPartitions, catalog: Catalog, pool: BlockCache, fence: ShardFence | None = None
    ) -> None:
        self._assigned = assigned
        self._catalog = catalog
        self._pool = pool
        self._fence = ShardFence() if fence is None else fence

    async def open(self, partition: int, ownership: int, timeout_s: float, closed: Callable[[], None]) -> LocalShardLog:
        topic = self._catalog.topics.get(OFFSETS_TOPIC)
        if topic is None or partition >= topic.partitions:
            raise RequestError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{OFFSETS_TOPIC}-{partition} is not there yet")
        key = PartitionKey(topic.topic_id, partition)
        owner = await self._assigned.wait(key, timeout_s)
        path = PartitionPath(OFFSETS_TOPIC, str(topic.topic_id), partition)
        log = LocalShardLog(owner, LogReader(self._pool, path), closed)
        self._fence.open(key, owner.epoch, ownership, log, log.end)
        return log

    def ended(self, key: PartitionKey) -> None:
        """The owner is none any more: which ownership is the highest is for the next one to hear."""
        self._fence.closed(key)

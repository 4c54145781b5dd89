"""The listener of a process's own partitions: it notifies the fetches and the fence of shard logs."""

from __future__ import annotations

from bmq.broker.shard_log_fence import ShardFence
from bmq.core.model import PartitionKey
from bmq.endpoint.partitions import FlushListener


class FetchAndShardListener:
    """The ``endpoint.partitions.FlushListener`` that notifies the process's fetches, and its fence of closed logs.

    The fence ends the handle of a partition that this broker no longer owns.  It forgets the highest ownership too: the
    next owner of the partition collects the ownership from the opens that it gets.
    """

    def __init__(self, fetches: FlushListener, fence: ShardFence) -> None:
        self._fetches = fetches
        self._fence = fence
        self.flushed = fetches.flushed  # on the hot path: no call in between
        self.log_start_moved = fetches.log_start_moved
        self.changed = fetches.changed

    def opened(self, key: PartitionKey, epoch: int, log_start: int, high_watermark: int) -> None:
        self._fetches.opened(key, epoch, log_start, high_watermark)

    def closed(self, key: PartitionKey) -> None:
        self._fetches.closed(key)
        self._fence.closed(key)

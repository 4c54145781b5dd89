"""The listener of a process's own partitions: it notifies fetches and logs of shards."""

from __future__ import annotations

from bmq.core.model import PartitionKey
from bmq.endpoint.partitions import FlushListener
from bmq.server.roles.local_shard_log import LocalShardLogs


class FetchAndShardListener:
    """The ``endpoint.partitions.FlushListener`` that notifies the process's fetches and the logs of its coordinator."""

    def __init__(self, fetches: FlushListener, logs: LocalShardLogs) -> None:
        self._fetches = fetches
        self._logs = logs
        self.flushed = fetches.flushed  # on the hot path: no call in between
        self.log_start_moved = fetches.log_start_moved
        self.changed = fetches.changed

    def opened(self, key: PartitionKey, epoch: int, log_start: int, high_watermark: int) -> None:
        self._fetches.opened(key, epoch, log_start, high_watermark)

    def closed(self, key: PartitionKey) -> None:
        self._fetches.closed(key)
        self._logs.ended(key)

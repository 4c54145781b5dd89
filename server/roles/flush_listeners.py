"""The listeners of a process's partitions and of those that it follows: they notify fetches and logs of shards.

Both are ``endpoint.partitions.FlushListener``.  Owners and followed partitions call them for each flush.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from bmq.core.model import PartitionKey
from bmq.core.records.batch import Batch
from bmq.endpoint.partitions import FlushListener
from bmq.server.roles.local_shard_log import LocalShardLogs


class HasFetchService(Protocol):
    """The process (``server.node.Node``), as its listener needs it."""

    @property
    def fetch_service(self) -> FlushListener:
        """The process's ``FetchService``."""


class FetchAndShardListener:
    """Listener of this process's partitions, which notifies its fetches and the logs of its coordinator."""

    def __init__(self, fetch_service: FlushListener, logs: LocalShardLogs) -> None:
        self._fetch_service = fetch_service
        self._logs = logs
        self.flushed = fetch_service.flushed  # on the hot path: no call in between
        self.log_start_moved = fetch_service.log_start_moved

    def opened(self, key: PartitionKey, epoch: int, log_start: int, high_watermark: int) -> None:
        self._fetch_service.opened(key, epoch, log_start, high_watermark)

    def closed(self, key: PartitionKey) -> None:
        self._fetch_service.closed(key)
        self._logs.ended(key)


class FetchListener:
    """Listener that notifies the node's ``FetchService``, for objects that are made before it."""

    def __init__(self, node: HasFetchService) -> None:
        self._node = node

    def opened(self, key: PartitionKey, epoch: int, log_start: int, high_watermark: int) -> None:
        self._node.fetch_service.opened(key, epoch, log_start, high_watermark)

    def flushed(self, key: PartitionKey, batches: Sequence[Batch], high_watermark: int) -> None:
        self._node.fetch_service.flushed(key, batches, high_watermark)

    def log_start_moved(self, key: PartitionKey, log_start: int) -> None:
        self._node.fetch_service.log_start_moved(key, log_start)

    def closed(self, key: PartitionKey) -> None:
        self._node.fetch_service.closed(key)

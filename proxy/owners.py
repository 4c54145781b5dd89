"""What the proxy asks of partitions' owners: the seam between proxy and broker.

With both in one process a call is a function call; between processes the same goes over ``core.rpc``.  Offsets are as
in Kafka: ``log_start <= last_stable_offset <= high_watermark``; everything below the watermark is flushed (rule 2).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from bmq.core.model import PartitionKey
from bmq.core.records import Appended, Batch
from bmq.storage.checkpoint import ProducerState
from bmq.storage.reader import LiveSegment

__all__ = ["Appended", "Owner", "Owners", "Tails"]


class Owner(Protocol):
    """One partition in WRITE, as its owner answers for it.  Its properties are true when read, without a call."""

    @property
    def key(self) -> PartitionKey: ...
    @property
    def epoch(self) -> int: ...
    @property
    def is_open(self) -> bool:
        """Still the owner, in WRITE: what the other properties say may be told to a client."""

    @property
    def log_start(self) -> int: ...
    @property
    def high_watermark(self) -> int: ...
    @property
    def last_stable_offset(self) -> int: ...
    @property
    def live(self) -> LiveSegment | None:
        """The open segment, for ``LogReader``; None when there is none."""

    @property
    def has_room(self) -> bool:
        """Whether the buffers take another batch now; else wait for ``room``."""

    async def room(self) -> None: ...

    def append(self, data: memoryview, *, acks_all: bool) -> Appended | asyncio.Future[Appended]:
        """Accept the batches in ``data`` (one, in Kafka's present versions).

        The future is done once they are flushed; with ``acks_all`` False the answer is known at once.  RequestError
        with Kafka's code when they are refused, now or in the future.  The bytes are the owner's from here on.
        """

    async def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """Kafka's OffsetForLeaderEpoch: (largest epoch at or below, where the next one begins); (-1, -1) unknown."""

    async def offset_of_max_timestamp(self) -> tuple[int, int]:
        """(offset, timestamp) of the record with the largest timestamp; (-1, -1) of an empty log."""

    async def offset_for_timestamp(self, timestamp: int) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record at or after ``timestamp``; None when there is none."""

    def producers(self) -> Sequence[ProducerState]: ...

    async def delete_before(self, offset: int) -> int:
        """Kafka's DeleteRecords: the new log start.  RequestError OFFSET_OUT_OF_RANGE past the watermark."""

    async def log_bytes(self) -> int:
        """Bytes on storage, for DescribeLogDirs."""


class Owners(Protocol):
    """All partitions' owners, wherever they run."""

    def get(self, key: PartitionKey) -> Owner | None:
        """The owner when it is in WRITE now."""

    async def wait(self, key: PartitionKey, timeout_s: float) -> Owner:
        """The owner once it is in WRITE.  RequestError, always retriable unless the partition is OFFLINE, when
        that takes longer or cannot come: NOT_LEADER_OR_FOLLOWER, KAFKA_STORAGE_ERROR, UNKNOWN_TOPIC_OR_PARTITION."""


class Tails(Protocol):
    """Who is told of what owners flush: the proxy's tail cache.  Called by owners, in each partition's order."""

    def opened(self, key: PartitionKey, epoch: int, log_start: int, high_watermark: int) -> None:
        """The partition is in WRITE under this epoch."""

    def flushed(self, key: PartitionKey, batches: Sequence[Batch], high_watermark: int) -> None:
        """These batches are below the watermark now.  Their bytes may be kept: nobody writes into them any more."""

    def log_start_moved(self, key: PartitionKey, log_start: int) -> None: ...

    def closed(self, key: PartitionKey) -> None:
        """The owner here is none any more: whoever waits must look again."""

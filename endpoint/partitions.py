"""What the proxy asks of partitions' owners: the seam between proxy and broker.

With both in one process a call is a function call; between processes the same goes over ``core.rpc.peers``.  Offsets
are as in Kafka: ``log_start <= last_stable_offset <= high_watermark``; everything below the watermark is flushed (rule
2).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Protocol

from bmq.core.model import PartitionKey
from bmq.core.records.batch import Appended, Batch, Ends
from bmq.storage.checkpoint import ProducerState
from bmq.storage.log_reader import LiveSegment

__all__ = ["Appended", "Ends", "PartitionView", "Owner", "Owners", "FlushListener"]


class PartitionView(Protocol):
    """One partition as this process reads it: properties cost no call.

    They are the owner's own when it is in this process.  Of an owner elsewhere they are what it told last, so they may
    be a moment behind: everything below an older watermark is flushed too, and a log start only moves forward.
    """

    @property
    def epoch(self) -> int: ...
    @property
    def is_open(self) -> bool:
        """It has an owner in WRITE, and we hear from it: what the other properties say may be told to a client."""

    @property
    def log_start(self) -> int: ...
    @property
    def high_watermark(self) -> int: ...
    @property
    def last_stable_offset(self) -> int: ...
    @property
    def has_seen_end(self) -> bool:
        """The watermark is the owner's word of now: only then may an offset past it be called out of range (rule 2).
        When it is False, asking has the owner asked, and whoever follows the partition looks again when it answered."""

    @property
    def live(self) -> LiveSegment | None:
        """The open segment, for ``LogReader``, flushed as far as ``high_watermark`` at least; None without one."""

    @property
    def knows_live(self) -> bool:
        """``live`` may be believed; else ``ask_live``."""

    async def ask_live(self) -> LiveSegment | None:
        """``live``, from the owner.  RequestError when it does not answer."""


class Owner(Protocol):
    """One partition's owner, to write to and to ask.  Questions are RequestError when it does not answer in time."""

    @property
    def key(self) -> PartitionKey: ...
    @property
    def is_open(self) -> bool:
        """Appends may be handed to it now."""

    @property
    def has_room(self) -> bool:
        """Whether it takes another batch now; else wait for ``room``."""

    async def room(self) -> None: ...

    def append(
        self, data: memoryview, *, acks_all: bool, held_until: float = math.inf
    ) -> Appended | asyncio.Future[Appended]:
        """Accept the batches in ``data`` (one, in Kafka's present versions).

        The future is done once they are flushed; with ``acks_all`` False the answer may be known at once.  RequestError
        with Kafka's code when they are refused, now or in the future.  The bytes are the owner's from here on.
        ``held_until``, on the loop's clock: the next owner, where this one is none any more, is waited for until then.
        """

    async def ends(self) -> Ends:
        """Its epoch and offsets now."""

    async def settled_ends(self) -> Ends:
        """Its epoch and offsets once everything that was acknowledged before is flushed."""

    async def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """Kafka's OffsetForLeaderEpoch: (largest epoch at or below, where the next one begins); (-1, -1) unknown."""

    async def offset_of_max_timestamp(self) -> tuple[int, int]:
        """(offset, timestamp) of the record with the largest timestamp; (-1, -1) of an empty log."""

    async def offset_for_timestamp(self, timestamp: int) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record at or after ``timestamp``; None when there is none."""

    async def producers(self) -> Sequence[ProducerState]: ...

    async def delete_before(self, offset: int) -> int:
        """Kafka's DeleteRecords: the new log start.  What was acknowledged before is flushed first.  RequestError
        OFFSET_OUT_OF_RANGE past that."""

    async def log_bytes(self) -> int:
        """Bytes on storage, for DescribeLogDirs."""


class Owners(Protocol):
    """All partitions' owners, wherever they run."""

    def get(self, key: PartitionKey) -> Owner | None:
        """The owner when it can be handed appends now."""

    async def wait(self, key: PartitionKey, timeout_s: float) -> Owner:
        """The owner once it can be.  RequestError, always retriable unless the partition is OFFLINE, when that takes
        longer or cannot come: NOT_LEADER_OR_FOLLOWER, KAFKA_STORAGE_ERROR, UNKNOWN_TOPIC_OR_PARTITION."""

    def follow(self, key: PartitionKey) -> PartitionView | None:
        """The partition, for reading.  None when nobody tells of it yet: the ``FlushListener`` hear ``opened`` when
        that has changed.  One that nobody has asked for in a while is followed no longer."""


class FlushListener(Protocol):
    """Who is told of what owners flush: the proxy's tail cache.  Called by owners, in each partition's order."""

    def opened(self, key: PartitionKey, epoch: int, log_start: int, high_watermark: int) -> None:
        """The partition is in WRITE under this epoch."""

    def flushed(self, key: PartitionKey, batches: Sequence[Batch], high_watermark: int) -> None:
        """These batches are below the watermark now.  Their bytes may be kept: nobody writes into them any more."""

    def log_start_moved(self, key: PartitionKey, log_start: int) -> None: ...

    def closed(self, key: PartitionKey) -> None:
        """The owner here is none any more: whoever waits must look again."""

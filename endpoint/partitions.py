"""The interface of partitions' owners, through which handlers read and write: the seam between proxy and broker.

If the owner is in this process, a call is a function call; otherwise it goes over ``core.rpc.peers``.  Offsets are as
in Kafka: ``log_start <= last_stable_offset <= high_watermark``; everything below the watermark is flushed (rule 2).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

from bmq.core.errors import RequestError
from bmq.core.model import PartitionKey
from bmq.core.records.batch import Appended, Batch, Ends
from bmq.core.records.control import TransactionMarker
from bmq.core.wire.produce import Transaction
from bmq.storage.aborted import RecentAborted, StableMove
from bmq.storage.checkpoint import ProducerState
from bmq.storage.log_reader import ActiveSegment

__all__ = ["AppendCallback", "Appended", "Ends", "PartitionView", "Owner", "Owners", "FlushListener"]


class PartitionView(Protocol):
    """One partition as this process reads it: a property costs no request.

    If the owner is in this process, the properties are its own.  Otherwise they are what the owner sent last, so they
    may be a moment old.  Old properties are safe: everything below an older watermark is flushed, too, and a log start
    only moves forward.
    """

    @property
    def epoch(self) -> int: ...
    @property
    def is_open(self) -> bool:
        """True while an owner in WRITE is reachable: only then may a response use the other properties."""

    @property
    def log_start(self) -> int: ...
    @property
    def high_watermark(self) -> int: ...
    @property
    def last_stable_offset(self) -> int: ...

    def ask_end(self) -> bool:
        """Return whether the watermark is certain: only then is an offset past it out of range (rule 2).

        If it is not certain, start a query to the owner, unless a query is under way.  The end of the query notifies
        the followers of the partition (``FlushListener.changed``), which then check it again.
        """

    @property
    def active_segment(self) -> ActiveSegment | None:
        """The active segment, for ``LogReader``, flushed up to ``high_watermark`` at least; None if there is none."""

    @property
    def knows_active_segment(self) -> bool:
        """True if ``active_segment`` is up to date; otherwise use ``ask_active_segment``."""

    async def ask_active_segment(self) -> ActiveSegment | None:
        """Return ``active_segment`` as the owner has it now.

        Raises RequestError if the owner does not respond in time.
        """

    @property
    def recent_aborted(self) -> RecentAborted | None:
        """The aborted transactions that no index has yet, up to date with ``active_segment``; None: not known.

        It goes on growing with what is flushed.
        """


class AppendCallback(Protocol):
    """The caller of one append.  It gets one result, perhaps before ``Owner.append`` returns; later ones are ignored.

    The owner may be in the middle of an event when it calls: append nothing then.
    """

    @property
    def is_over(self) -> bool:
        """True once there is a result, or the caller no longer waits for one."""

    @property
    def transaction(self) -> Transaction | None:
        """The transaction of a transactional batch; None if its request names none."""

    def on_appended(self, appended: Appended) -> None:
        """Handle that the batch is accepted and, with acks=all, flushed."""

    def on_failed(self, error: RequestError) -> None:
        """Handle that the batch is refused, or that it is lost or not known whether it is."""

    def on_given_back(self, data: memoryview, *, may_be_appended: bool) -> None:
        """Handle, in place of a result, that the owner has let the batch go: it must be appended before any newer one.

        Several batches of a partition are given back newest first.  ``may_be_appended``: a former owner may have
        appended it.
        """


class Owner(Protocol):
    """One partition's owner, for appends and queries.

    Every coroutine but ``room`` raises RequestError if the owner does not respond in time.
    """

    @property
    def key(self) -> PartitionKey: ...
    @property
    def is_open(self) -> bool:
        """True while the owner accepts appends."""

    @property
    def has_room(self) -> bool:
        """True if the owner accepts another batch now; otherwise wait for ``room``."""

    async def room(self) -> None:
        """Wait until the owner may have room.  Check ``has_room`` again: the owner may also have changed."""

    def append(
        self, data: memoryview, callback: AppendCallback, *, acks_all: bool, held_until: float = math.inf
    ) -> Callable[[], None] | None:
        """Append the batches in ``data`` (one, in Kafka's present versions), which belongs to the owner from here on.

        ``callback`` gets the result: once the batches are flushed, or with ``acks_all`` False once they have their
        offsets.  ``held_until``, on the loop's clock, is the end of all waits for an owner.  It also bounds the waits
        in another process, if this process's view of the owner is out of date.

        Returns a function for a caller that no longer waits: it takes batches back that were not sent yet.  None if
        there is nothing to take back.
        """

    async def ends(self) -> Ends:
        """Return the owner's epoch and offsets as they are now."""

    async def flushed_ends(self) -> Ends:
        """Return the owner's epoch and offsets, once all that was acknowledged before the call is flushed."""

    async def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """Return the largest epoch at or below ``epoch``, and its end offset; (-1, -1) if unknown.

        Kafka's OffsetForLeaderEpoch.
        """

    async def offset_of_max_timestamp(self) -> tuple[int, int]:
        """Return (offset, timestamp) of the record with the largest timestamp; (-1, -1) of an empty log."""

    async def offset_for_timestamp(self, timestamp: int) -> tuple[int, int] | None:
        """Return (offset, timestamp) of the first record at or after ``timestamp``; None if there is none.

        Timestamps are milliseconds, as in Kafka.
        """

    async def producers(self) -> Sequence[ProducerState]:
        """Return the state of each idempotent producer, for DescribeProducers."""

    async def end_transaction(self, marker: TransactionMarker) -> None:
        """Append the marker that ends a producer's transaction; return once it is flushed as an acks=all batch.

        A repeated or late marker is not written again.  Raises RequestError TRANSACTION_COORDINATOR_FENCED or
        INVALID_PRODUCER_EPOCH if a later coordinator, or a later epoch of the producer, has written here; other codes
        are retriable.
        """

    async def delete_before(self, offset: int) -> int:
        """Delete the records below ``offset`` (Kafka's DeleteRecords), and return the new log start.

        -1 stands for the high watermark.  For that, and for an offset past it, what was acknowledged before the call is
        flushed first.  Raises RequestError OFFSET_OUT_OF_RANGE if ``offset`` is still past the watermark then.
        """

    async def log_bytes(self) -> int:
        """Return the partition's bytes on storage, for DescribeLogDirs."""


class Owners(Protocol):
    """All partitions' owners, wherever they run."""

    def get(self, key: PartitionKey) -> Owner | None:
        """Return the partition's owner; None unless it accepts appends now."""

    async def wait(self, key: PartitionKey, timeout_s: float) -> Owner:
        """Return the partition's owner, once it accepts appends.

        Raises RequestError if that takes longer than ``timeout_s`` or cannot happen: NOT_LEADER_OR_FOLLOWER,
        KAFKA_STORAGE_ERROR or UNKNOWN_TOPIC_OR_PARTITION, always retriable unless the partition is OFFLINE.
        """

    def follow(self, key: PartitionKey) -> PartitionView | None:
        """Return the partition, for reading; None if no owner sends its state yet.

        Once an owner does, the ``FlushListener`` gets ``opened``.  A partition that is not asked for during a while is
        no longer followed.
        """


class FlushListener(Protocol):
    """Receiver of what owners flush: the process's ``FetchContext``.  Owners call it in each partition's order."""

    def opened(self, key: PartitionKey, epoch: int, log_start: int, high_watermark: int) -> None:
        """Handle that the partition is in WRITE under this epoch."""

    def flushed(
        self, key: PartitionKey, batches: Sequence[Batch], high_watermark: int, move: StableMove | None = None
    ) -> None:
        """Handle that these batches are below the watermark now.

        Their bytes may be kept: they do not change any more.  ``move`` None: they are below the last stable offset,
        too, as all before them were, and no transaction was aborted.
        """

    def log_start_moved(self, key: PartitionKey, log_start: int) -> None:
        """Handle that the partition's log begins at ``log_start`` now."""

    def changed(self, key: PartitionKey) -> None:
        """Handle that the partition's view may show more now: parked fetches of the partition must check it again."""

    def closed(self, key: PartitionKey) -> None:
        """Handle that the partition has no owner here any more: parked fetches of it must check again."""

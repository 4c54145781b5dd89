"""The result of one partition for a fetch, from its owner's present state and the tail cache.  Pure.

Rule 2 decides:

====================================== ==================================================================
the partition                          the fetch
====================================== ==================================================================
records at or past the high watermark  never returns them
records at or past the last stable     never returns them at read_committed, whose response lists the aborted
offset                                 transactions of the records that it has
no owner in WRITE                      waits: the partition may be moving
offset below the log start             OFFSET_OUT_OF_RANGE
offset past the watermark              waits until the owner has confirmed that it is the owner, and has
                                       flushed what it acknowledged before (acks=1); then the offset is
                                       OFFSET_OUT_OF_RANGE, or below the watermark
====================================== ==================================================================

A fact that is not known by the end of the fetch's time (``endpoint.fetch.fetch_time``) is a retriable error.
"""

from __future__ import annotations

from collections.abc import Sequence

from bmq.core.errors import ErrorCode
from bmq.core.net.request import Buffer
from bmq.core.records.batch import HEADER_BYTES
from bmq.endpoint.fetch.purgatory import NO_MARKS, Marks, SessionPartition
from bmq.endpoint.fetch.tail_cache import TailCache
from bmq.endpoint.leader_epochs import epoch_error
from bmq.endpoint.leader_hints import LeaderHint
from bmq.endpoint.partitions import PartitionView
from bmq.meta.catalog import Topic
from bmq.storage.checkpoint import AbortedTransaction
from bmq.storage.log_reader import ActiveSegment


class PartitionRead:
    """One partition's result::

    error      the partition's error; with ``waits`` it is sent only when the fetch's time is up
    buffers    whole batches of ``size`` bytes, ``batches`` of them from memory
    aborted    aborted transactions of ``buffers``, if they are wanted
    reads      there are records below ``end``, but on storage: at most ``limit`` bytes are wanted
    has_more   there are records, but none was taken, as they did not fit
    view       the partition, for a read from storage
    asks       True: ask the view for the active segment before the read; False: use ``active_segment``
    is_stored  the buffers came from storage, and keep ``kept_bytes`` alive
    hint       leader to which the client is to go with the partition, which has moved (KIP-951); else None
    is_gone    the catalog had this partition at the last check, and does not have it now
    preferred  node id of the proxy that the client is to read the partition from (KIP-392), without records
               here; else -1
    marks      high watermark, last stable offset and log start
    """

    __slots__ = (
        "aborted",
        "active_segment",
        "asks",
        "batches",
        "buffers",
        "end",
        "error",
        "has_more",
        "hint",
        "is_gone",
        "is_stored",
        "kept_bytes",
        "key",
        "limit",
        "marks",
        "offset",
        "preferred",
        "reads",
        "size",
        "topic",
        "view",
        "waits",
        "wanted",
        "wants_aborted",
    )

    def __init__(self, wanted: SessionPartition, topic: Topic | None, limit: int) -> None:
        self.wanted = wanted
        self.topic = topic
        self.key = wanted.key
        self.limit = limit
        self.offset = wanted.offset  # a later request of the session may change it there
        self.error = ErrorCode.NONE
        self.marks: Marks = NO_MARKS
        self.buffers: Sequence[Buffer] = ()
        self.aborted: Sequence[AbortedTransaction] = ()
        self.size = self.batches = self.kept_bytes = 0
        self.end = 0
        self.active_segment: ActiveSegment | None = None
        self.view: PartitionView | None = None
        self.hint: LeaderHint | None = None
        self.preferred = -1
        self.reads = self.waits = self.has_more = self.is_stored = self.is_gone = False
        self.asks = self.wants_aborted = False

    def __repr__(self) -> str:
        return (
            f"<PartitionRead {self.wanted!r} {self.error.name} {self.size} bytes marks={self.marks} reads={self.reads}>"
        )

    @property
    def is_unknown(self) -> bool:
        """True if the catalog has no such partition, and the client may know that."""
        return self.topic is None and self.error is not ErrorCode.TOPIC_AUTHORIZATION_FAILED

    @property
    def is_news(self) -> bool:
        """True if an incremental response must carry the partition."""
        return bool(self.size or self.error) or self.preferred >= 0 or self.marks != self.wanted.sent_marks

    def prefers(self, node_id: int) -> None:
        """Send the client to proxy ``node_id`` for the partition, and read nothing here."""
        self.preferred = node_id
        self.buffers, self.size = (), 0
        self.reads = self.has_more = False

    def moves_to(self, hint: LeaderHint) -> None:
        """Send the client to the partition's new leader, and read nothing here."""
        self.hint = hint
        self.buffers, self.size = (), 0
        self.reads = self.has_more = False
        self.fails(self.error if self.error is ErrorCode.FENCED_LEADER_EPOCH else ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def fails(self, error: ErrorCode, *, waits: bool = False) -> PartitionRead:
        """Set the error, and return this object.  As in Kafka, a partition with an error carries no marks.

        ``waits``: the error may pass, and is sent only when the fetch's time is up.
        """
        self.error = error
        self.waits = waits
        self.marks = NO_MARKS
        return self


def read_partition(
    wanted: SessionPartition,
    topic: Topic,
    followed: PartitionView | None,
    tails: TailCache,
    limit: int,
    *,
    at_least_one: bool,
    committed: bool,
    wants_aborted: bool,
    batches_max: int,
) -> PartitionRead:
    """Return the partition's result: at most ``limit`` bytes, or one batch if ``at_least_one``.

    From memory at most ``batches_max`` batches.

    ``wanted.key`` must be set.  ``committed``: only records below the last stable offset.  ``wants_aborted``: with the
    aborted transactions of the records.
    """
    result = PartitionRead(wanted, topic, limit)
    if followed is None or not followed.is_open:
        return result.fails(ErrorCode.NOT_LEADER_OR_FOLLOWER, waits=True)
    error = epoch_error(followed.epoch, wanted.leader_epoch)
    if error:
        return result.fails(error)
    watermark, stable, log_start = followed.high_watermark, followed.last_stable_offset, followed.log_start
    offset = wanted.offset
    if offset < log_start:
        return result.fails(ErrorCode.OFFSET_OUT_OF_RANGE)
    if offset > watermark:
        if followed.ask_end():
            return result.fails(ErrorCode.OFFSET_OUT_OF_RANGE)
        return result.fails(ErrorCode.OFFSET_NOT_AVAILABLE, waits=True)
    result.marks = (watermark, stable, log_start)
    result.end = stable if committed else watermark
    if offset >= result.end:
        return result
    if limit < HEADER_BYTES and not at_least_one:
        result.has_more = True
        return result
    assert result.key is not None
    found = tails.read(result.key, offset, limit, result.end, at_least_one=at_least_one, batches_max=batches_max)
    if found is None:
        result.reads, result.view, result.wants_aborted = True, followed, wants_aborted
        result.active_segment = followed.active_segment
        result.asks = not followed.knows_active_segment
    else:
        result.buffers, result.size, end, result.batches = found
        result.has_more = not result.size
        if wants_aborted:
            result.aborted = tails.aborted(result.key, offset, end)
    return result

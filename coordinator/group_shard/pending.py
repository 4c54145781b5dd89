"""Pending offsets: their transaction is open.  And the epochs of transactional producers.  Pure.

An offset of a transaction is pending by its producer and its key until the transaction's marker (KIP-98, KIP-447).  As
in Kafka's ``OffsetMetadataManager``, the later record in the log wins of two commits of one key, whichever transaction
ends first:

==============================================  ====================================================================
record, or end of a transaction                 pending offsets of the key
==============================================  ====================================================================
offset of producer P's transaction              P's is replaced, and is the latest of the key's
plain commit                                    all are overtaken: none of them will be committed
tombstone (OffsetDelete, DeleteGroups, expiry)  all are removed
COMMIT of P                                     P's is committed unless overtaken, and overtakes those before it
ABORT of P                                      P's is removed
==============================================  ====================================================================

So no offset keeps its place in the log: the order of the pending ones is enough.  A key with an overtaken offset is
unstable like any other until the marker comes, since records of the same transaction are undecided.
"""

from __future__ import annotations

import math
import uuid
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from bmq.coordinator.records import Offset, OffsetRecord
from bmq.coordinator.shard.log_records import BatchProducer
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.records.control import EndMarker, Marker, TransactionMarker
from bmq.core.records.marker_rules import KnownProducer, changes_nothing, verdict_on

PRODUCERS_KEPT = 10_000
"""Producers without an open transaction whose epochs are kept.  The owner of the log's partition checks epochs too."""
KEPT_S = 5.0
"""A producer is kept for so long after its last marker, also past ``PRODUCERS_KEPT``.

A coordinator that has lost its shard may respond for ``FRESH_S`` yet (``coordinator.shard.freshness``).  By the kept
epoch the group's shard knows its answer for outdated.  A later question gets an answer of the present coordinator.
Markers are batches of their own, and a log flushes some thousands of batches in this time.
"""
_LONG_AGO = -math.inf
_NO_COORDINATOR = -1

OffsetKey = tuple[str, str, int]
"""Group, topic and partition of an offset."""


class Epochs(NamedTuple):
    """The highest epochs of a producer in the log: its own, and its transaction coordinator's."""

    producer: int
    coordinator: int = _NO_COORDINATOR
    seen_s: float = _LONG_AGO
    """Time of the last marker, monotonic; before all times if a replay has found it."""


_UNSEEN = Epochs(-1)


class PendingTransaction:
    """An open transaction's part in one shard: a producer's offsets by key, None for an overtaken offset."""

    __slots__ = ("began_ms", "epochs", "first_offset", "is_reported", "offsets", "producer_id")

    def __init__(self, producer_id: int, first_offset: int, epochs: Epochs, began_ms: int) -> None:
        self.producer_id = producer_id
        self.epochs = epochs
        self.began_ms = began_ms
        """Time of the first offset's commit, in ms of wall time; its record has the time for replays."""
        self.is_reported = False
        """True once a log line has named the transaction."""
        self.first_offset = first_offset
        """The base offset of the transaction's first batch; -1 until the batch is durable."""
        self.offsets: dict[OffsetKey, Offset | None] = {}


class PendingOffsets:
    """Open transactions of one shard by producer id."""

    def __init__(self) -> None:
        self._open: dict[int, PendingTransaction] = {}
        self._producers: dict[str, dict[tuple[str, int], dict[int, None]]] = {}
        """Producers of each key with a pending offset, by group; in the order of their records."""
        self._epochs: OrderedDict[int, Epochs] = OrderedDict()  # of the others, in the order of their ends

    @property
    def open(self) -> Mapping[int, PendingTransaction]:
        return self._open

    # ------------------------------------------------------------------------------------------------------ the records

    def add(self, record: OffsetRecord, value: Offset, producer: BatchProducer) -> None:
        """Note an offset that a producer's transaction commits."""
        transaction = self._open.get(producer.producer_id)
        if transaction is None:
            known = self._epochs.pop(producer.producer_id, _UNSEEN)
            transaction = PendingTransaction(producer.producer_id, producer.base_offset, known, value.commit_timestamp)
            self._open[producer.producer_id] = transaction
        if transaction.epochs.producer < producer.producer_epoch:
            transaction.epochs = transaction.epochs._replace(producer=producer.producer_epoch)
        transaction.offsets[record[:3]] = value
        keys = self._producers.setdefault(record.group_id, {})
        producers = keys.setdefault((record.topic, record.partition), {})
        producers.pop(producer.producer_id, None)
        producers[producer.producer_id] = None

    def overtake(self, key: OffsetKey) -> None:
        """Note a later plain commit of ``key``."""
        for producer_id in self._of(key):
            self._open[producer_id].offsets[key] = None

    def remove(self, key: OffsetKey) -> None:
        """Note a tombstone of ``key``."""
        for producer_id in list(self._of(key)):
            del self._open[producer_id].offsets[key]
            self._forget(key, producer_id)

    def end(self, producer: BatchProducer, marker: EndMarker, now_s: float = _LONG_AGO) -> Iterator[OffsetRecord]:
        """End the producer's transaction, if any is open here; yield its offsets.

        An offset that becomes committed has its value, any other has none.  Other records may be applied between two
        steps, as if they were behind the marker in the log.  Only the producer's own records must wait: its
        transaction is open until the end.  ``now_s``: monotonic time.
        """
        transaction = self._open.get(producer.producer_id)
        while transaction is not None and transaction.offsets:
            key, value = transaction.offsets.popitem()
            is_committed = value is not None and marker.marker is Marker.COMMIT
            if is_committed:
                for earlier in self._of(key):
                    if earlier == producer.producer_id:
                        break
                    self._open[earlier].offsets[key] = None
            self._forget(key, producer.producer_id)
            yield OffsetRecord(*key, value if is_committed else None)
        known = self._known(producer.producer_id) or _UNSEEN
        self._open.pop(producer.producer_id, None)
        self._epochs[producer.producer_id] = Epochs(
            max(known.producer, producer.producer_epoch), max(known.coordinator, marker.coordinator_epoch), now_s
        )
        self._epochs.move_to_end(producer.producer_id)
        while len(self._epochs) > PRODUCERS_KEPT and not now_s - KEPT_S < next(iter(self._epochs.values())).seen_s:
            self._epochs.popitem(last=False)

    def report_overdue(self, now_ms: int, longest_ms: int) -> list[PendingTransaction]:
        """Return the transactions older than ``longest_ms``, the oldest first, and mark them as reported.

        Marked transactions are left out.  ``now_ms``: wall time.
        """
        overdue = [each for each in self._open.values() if not each.is_reported and now_ms - each.began_ms > longest_ms]
        for each in overdue:
            each.is_reported = True
        return sorted(overdue, key=lambda each: each.began_ms)

    def began_at(self, producer_id: int, offset: int) -> None:
        """Note that a batch of the producer's transaction is durable at ``offset``."""
        transaction = self._open.get(producer_id)
        if transaction is not None and transaction.first_offset < 0:
            transaction.first_offset = offset

    # ------------------------------------------------------------------------------------------------------ the answers

    def has(self, key: OffsetKey) -> bool:
        """Return whether an open transaction has an offset of ``key``."""
        return bool(self._producers) and bool(self._of(key))

    def has_of(self, key: OffsetKey, topic_id: uuid.UUID) -> bool:
        """Return whether an open transaction has an offset of ``key`` that is not of another topic of the same name."""
        if not self.has(key):
            return False
        values = (self._open[each].offsets[key] for each in self._of(key))
        return any(value is None or value.is_of(topic_id) for value in values)

    def has_group(self, group_id: str) -> bool:
        """Return whether an open transaction has an offset of the group."""
        return group_id in self._producers

    def keys(self, group_id: str) -> list[tuple[str, int]]:
        """Return topic and partition of the group's pending offsets."""
        return list(self._producers.get(group_id, ()))

    def count_of_group(self, group_id: str) -> int:
        """Return how many keys of the group have a pending offset."""
        return len(self._producers.get(group_id, ()))

    def count_of_producer(self, producer_id: int) -> int:
        """Return how many pending offsets the producer's transaction has."""
        transaction = self._open.get(producer_id)
        return 0 if transaction is None else len(transaction.offsets)

    @property
    def group_ids(self) -> list[str]:
        return list(self._producers)

    @property
    def topics(self) -> set[tuple[str, uuid.UUID | None]]:
        """The topics that have pending offsets."""
        return {
            (key[1], value.topic_id)
            for transaction in self._open.values()
            for key, value in transaction.offsets.items()
            if value is not None
        }

    def check(self, producer_id: int, producer_epoch: int) -> None:
        """Check the producer of a commit.  Raises RequestError INVALID_PRODUCER_EPOCH if the log has a higher epoch."""
        known = self._known(producer_id)
        if known is not None and producer_epoch < known.producer:
            message = f"producer {producer_id} sent epoch {producer_epoch}, current is {known.producer}"
            raise RequestError(ErrorCode.INVALID_PRODUCER_EPOCH, message)

    def has_open(self, producer_id: int) -> bool:
        """Return whether the producer's transaction is open here, with any epoch."""
        return producer_id in self._open

    def is_open(self, producer_id: int, producer_epoch: int) -> bool:
        """Return whether the producer's transaction is open here, with this epoch."""
        transaction = self._open.get(producer_id)
        return transaction is not None and transaction.epochs.producer == producer_epoch

    def coordinator_epoch(self, producer_id: int) -> int:
        """Return the highest epoch of the producer's coordinator in the log; -1 if none is known."""
        known = self._known(producer_id)
        return _NO_COORDINATOR if known is None else known.coordinator

    def verdict(self, marker: TransactionMarker) -> ErrorCode | None:
        """Return the code of a marker that is not written: NONE if it is done already.  None: it must be written.

        The rules are a partition owner's (``core.records.marker_rules``).
        """
        return verdict_on(marker, self._known_producer(marker.producer_id))

    def changes_nothing(self, marker: TransactionMarker) -> bool:
        """Return whether the epochs in the log are the marker's, and nothing is open here."""
        return changes_nothing(marker, self._known_producer(marker.producer_id))

    def facts(self) -> dict[tuple[object, ...], object]:
        """Return the pending offsets by producer and key, and each key's producers in their order."""
        return {
            **{
                ("pending", pid, *key): value for pid, each in self._open.items() for key, value in each.offsets.items()
            },
            **{("open", pid): True for pid in self._open},
            **{("order", group, *key): tuple(p) for group, keys in self._producers.items() for key, p in keys.items()},
        }

    def parts(self) -> Iterator[object]:
        """Yield the objects that hold most of the memory, for freeing in turns."""
        return (each.offsets for each in self._open.values())

    def _of(self, key: OffsetKey) -> Iterable[int]:
        return self._producers.get(key[0], {}).get(key[1:], ())

    def _forget(self, key: OffsetKey, producer_id: int) -> None:
        group_id, topic, partition = key
        keys = self._producers[group_id]
        del keys[topic, partition][producer_id]
        if not keys[topic, partition]:
            del keys[topic, partition]
            if not keys:
                del self._producers[group_id]

    def _known_producer(self, producer_id: int) -> KnownProducer | None:
        known = self._known(producer_id)
        return None if known is None else KnownProducer(known.producer, known.coordinator, producer_id in self._open)

    def _known(self, producer_id: int) -> Epochs | None:
        transaction = self._open.get(producer_id)
        return self._epochs.get(producer_id) if transaction is None else transaction.epochs

"""The rules of a cleaning: records to keep, and delete horizons.  Pure.

The rules are those of Kafka's ``Cleaner``, ``CleanedTransactionMetadata`` and ``MemoryRecords.filterTo`` (KIP-98,
KIP-534):

============================================  ========================================================================
batch or record                               stays
============================================  ========================================================================
a record with a key                           if no later record below the round's end has its key
a tombstone                                   as a record with a key, and until its batch's delete horizon
a record without a key                        always: the topic became compacted later.  Kafka removes it
data of an aborted transaction                never
a marker (COMMIT, ABORT)                      while the round passes a batch of its transaction, then until its horizon
another control batch with a record           always
the last batch of a producer                  its header, so that sequence and epoch stay known
============================================  ========================================================================

The *delete horizon* of a batch is the time of a cleaning and ``delete.retention.ms``.  A batch with tombstones gets its
horizon in its first round, a marker in the first round without data of its transaction.  No later
round changes a horizon.  A reader sees the tombstone if it began before the round and needs at most
``delete.retention.ms``.  In a segment that no round wrote, the attribute comes from a producer, and is no horizon.

A round of Kafka's cleaner, or of a partition's owner, counts from its begin.  Hours may lie between a job's plan and
its swaps, and until a swap readers find the deleted values.  So a job counts from the latest time of its swaps.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from operator import attrgetter
from typing import NamedTuple

from bmq.core.records.batch import NO_PRODUCER_ID, Batch
from bmq.core.records.control import Marker, marker_of
from bmq.storage.checkpoint import AbortedTransaction, ProducerState
from bmq.storage.cleaning.plain_runs import RunRules

DELETE_HORIZON = 0x40
"""The attribute of a batch whose base timestamp is its delete horizon (KIP-534)."""
NO_HORIZON = -1
NEVER = (1 << 63) - 1
"""A horizon of 64 bits, in no clock's reach: tombstones stay."""
_FIRST_OFFSET = attrgetter("first_offset")


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundBounds:
    """The offsets and times of a round.

    ``first_dirty``: below it no key has two records.  ``end``: where the last source ends; no batch at or past it is
    read.  ``now_ms`` is the time of the cleaning: horizons up to it are over.  ``swap_until_ms``: the latest time of a
    swap of this round; new horizons count from there, or from ``now_ms`` if it is None.
    """

    first_dirty: int
    end: int
    now_ms: int
    delete_retention_ms: int
    swap_until_ms: int | None = None

    @property
    def horizon(self) -> int:
        """The delete horizon of this round's batches: NEVER at most."""
        since_ms = self.now_ms if self.swap_until_ms is None else self.swap_until_ms
        return min(since_ms + self.delete_retention_ms, NEVER)


class ProducerEnd(NamedTuple):
    """The end of what a producer wrote: its last data's offset, -1 if only a marker is known, and its epoch."""

    last_offset: int
    epoch: int

    @classmethod
    def of(cls, states: Iterable[ProducerState]) -> dict[int, ProducerEnd]:
        """Return the ends of the producers that the partition's owner knows, by producer id."""
        return {
            state.producer_id: cls(
                max((batch.base_offset + batch.last_delta for batch in state.batches), default=-1), state.epoch
            )
            for state in states
        }


class AbortedRanges:
    """The aborted transactions of a round, found by a batch of their data."""

    __slots__ = ("_by_producer",)

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        found: dict[int, set[AbortedTransaction]] = {}
        for each in aborted:
            found.setdefault(each.producer_id, set()).add(each)
        self._by_producer = {producer_id: sorted(some, key=_FIRST_OFFSET) for producer_id, some in found.items()}

    def find(self, batch: Batch) -> AbortedTransaction | None:
        """Return the aborted transaction that a batch of data belongs to; None if there is none."""
        if not batch.is_transactional:
            return None
        some = self._by_producer.get(batch.producer_id, [])
        at = bisect_right(some, batch.base_offset, key=_FIRST_OFFSET) - 1
        return some[at] if at >= 0 and batch.base_offset <= some[at].last_offset else None


class RecordRule(Enum):
    """The rule for the records of a batch."""

    NONE = "no record stays"
    ALL = "all records stay"
    BY_KEY = "each record is judged by its key"


class BatchVerdict(NamedTuple):
    """The judgement of one batch.

    ``keeps_tombstones``: the last record of a key stays although it is a tombstone.  ``may_get_horizon``: the batch may
    get its delete horizon in this round, if it keeps tombstones or is a free marker.  ``is_free_marker``: a COMMIT or
    ABORT whose transaction's data is gone.  ``is_empty_kept``: without records the batch stays as its header.
    """

    rule: RecordRule
    keeps_tombstones: bool
    may_get_horizon: bool
    is_free_marker: bool
    is_empty_kept: bool


class Retention:
    """The judge of the batches of a round, called with all batches in order of offsets.

    ``open_before``: producers whose transaction may have data before the first batch.
    """

    __slots__ = ("_aborted", "_bounds", "_ended", "_lasts", "_open_before", "_producers", "_with_data")

    def __init__(
        self,
        bounds: RoundBounds,
        aborted: AbortedRanges,
        producers: Mapping[int, ProducerEnd],
        open_before: Container[int] = (),
    ) -> None:
        self._bounds = bounds
        self._aborted = aborted
        self._producers = producers
        self._open_before = open_before
        self._lasts = sorted(end.last_offset for end in producers.values())
        self._ended: set[int] = set()  # producers of ``open_before`` whose transaction's end has been passed
        self._with_data: set[int] = set()  # producers of whose transaction a batch has been passed, but not its end

    def judge(self, batch: Batch, *, is_cleaned: bool = True) -> BatchVerdict:
        """Return what becomes of the next batch.  Raises FormatError if a control record cannot be read.

        ``is_cleaned``: a round wrote its segment.  A delete horizon in another segment is a producer's, and is none.
        """
        has_horizon = is_cleaned and bool(batch.attributes & DELETE_HORIZON)
        is_past = has_horizon and bool(batch.base_timestamp <= self._bounds.now_ms)
        is_free = False
        if batch.is_control:
            is_free = self._is_free(batch)
            is_due = batch.count == 0 or (is_free and is_past)
            rule = RecordRule.NONE if is_due else RecordRule.ALL
        elif self._aborted.find(batch) is not None:
            rule = RecordRule.NONE
        else:
            rule = RecordRule.BY_KEY
        if batch.is_transactional and not batch.is_control:
            self._with_data.add(batch.producer_id)
        return BatchVerdict(
            rule,
            keeps_tombstones=not is_past,
            may_get_horizon=not has_horizon,
            is_free_marker=is_free,
            is_empty_kept=self._is_last_of_producer(batch),
        )

    def run_rules(
        self, offset: int, end_offset: int, *, epoch: int, gap_from: int, is_cleaned: bool = True
    ) -> RunRules:
        """Return the rules for batches from ``offset`` on that ``judge`` need not see: data without a transaction.

        They end before the next batch that may be the last of a producer, and at ``end_offset``.
        """
        at = bisect_left(self._lasts, offset)
        bounds = self._bounds
        return RunRules(
            end_offset=min(end_offset, self._lasts[at]) if at < len(self._lasts) else end_offset,
            epoch=epoch,
            gap_from=gap_from,
            now_ms=bounds.now_ms,
            new_horizon=bounds.horizon,
            is_cleaned=is_cleaned,
        )

    def _is_free(self, batch: Batch) -> bool:
        """Return whether a control batch is a marker without data; the end of its transaction is noted."""
        if not batch.count or marker_of(batch) is Marker.OTHER:
            return False
        producer_id = batch.producer_id
        has_data = producer_id in self._with_data
        self._with_data.discard(producer_id)
        if producer_id in self._open_before and producer_id not in self._ended:
            self._ended.add(producer_id)
            has_data = True
        return not has_data

    def _is_last_of_producer(self, batch: Batch) -> bool:
        if batch.producer_id == NO_PRODUCER_ID:
            return False
        end = self._producers.get(batch.producer_id)
        if end is None:
            return False
        if end.last_offset >= 0:
            return not batch.is_control and batch.last_offset == end.last_offset
        return batch.is_control and batch.producer_epoch == end.epoch

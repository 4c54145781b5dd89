"""A partition's checkpoints, full ones and deltas: pure.

At most one checkpoint of a partition is on its way, so that a slow journal makes checkpoints rarer, not their queue
longer.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import replace

from bmq.broker.config import BrokerConfig
from bmq.broker.partition.producer_state import ProducerTable
from bmq.core.model import PartitionKey, SegmentName
from bmq.meta.ownership import SegmentEntry
from bmq.storage.aborted import AbortedTransactions
from bmq.storage.checkpoint import AbortedTransaction, Checkpoint, segment_bytes
from bmq.storage.index import SegmentIndex


class OpenSegment:
    """The state of the segment that is being written.

    Positions are bytes in its file; ``epochs`` are (epoch, first offset).
    """

    __slots__ = (
        "aborted",
        "aborted_covered",
        "block_bytes",
        "copies",
        "delta_bytes",
        "dirty_since_ms",
        "entry",
        "epochs",
        "flushed",
        "flushes",
        "index",
        "index_covered",
        "is_covered",
        "is_fence_checked",
        "last_write_ms",
        "opened_ms",
        "position",
        "uncovered_bytes",
    )

    def __init__(
        self, entry: SegmentEntry, block_bytes: int, interval_bytes: int, now_ms: int, copies: int = 1
    ) -> None:
        self.entry = entry
        self.copies = copies  # datanodes that it is written to
        self.block_bytes = block_bytes  # the most that its file can hold
        self.position = 0  # end of what was sent to the pipeline
        self.flushed = 0  # end of what the pipeline acknowledged
        self.flushes = 0  # flushes sent
        self.index = SegmentIndex(interval_bytes)
        self.epochs: list[tuple[int, int]] = []
        self.aborted = AbortedTransactions()  # their markers are flushed in this segment
        self.opened_ms = now_ms
        self.last_write_ms = now_ms
        self.is_covered = False  # a full checkpoint of this segment exists
        self.is_fence_checked = False  # storage refuses its writes, and the process that fenced it is searched for
        self.index_covered = 0  # numbers of the index that a checkpoint holds
        self.aborted_covered = 0  # aborted transactions that a checkpoint holds
        self.uncovered_bytes = 0  # flushed since the last checkpoint
        self.delta_bytes = 0  # of index and aborted transactions in deltas since the last full checkpoint
        self.dirty_since_ms = -1  # first flush since the last checkpoint; -1: none

    def fence_checked(self) -> bool:
        """Note that storage refuses its writes; return whether a search for the cause is under way already."""
        was_checked, self.is_fence_checked = self.is_fence_checked, True
        return was_checked

    def has_aged(self, segment_ms: int, now_ms: int) -> bool:
        """Return whether it has been open for ``segment_ms``. An empty segment has nothing to roll: it begins again."""
        if now_ms - self.opened_ms < segment_ms:
            return False
        if self.position == 0:
            self.opened_ms = now_ms
            return False
        return True


class Checkpointer:
    """Maker of one partition's checkpoints, from what is flushed."""

    __slots__ = ("_config", "_key", "is_under_way", "is_wanted", "last")

    def __init__(self, key: PartitionKey, config: BrokerConfig) -> None:
        self._key = key
        self._config = config
        self.is_under_way = False
        self.is_wanted = False  # another one is due once that one is durable
        self.last: Checkpoint | None = None
        """Final checkpoint of the newest closed segment, without its index and producers."""

    def full(
        self, segment: OpenSegment | None, end_offset: int, log_start: int, producers: ProducerTable
    ) -> Checkpoint | None:
        """Return a checkpoint of everything that is flushed; None before the first byte."""
        if segment is not None and segment.flushed > 0:
            return self._of(segment, end_offset, log_start, producers, is_full=True)
        if self.last is None:
            return None
        first_open = producers.transactions.first_open
        return replace(self.last, log_start=log_start, first_open_txn=first_open, producers=producers.snapshot())

    def next(
        self, segment: OpenSegment | None, end_offset: int, log_start: int, producers: ProducerTable
    ) -> Checkpoint | None:
        """Return the checkpoint to write now, a delta where that is enough.

        Returns None while another one is on its way (the next one is then wanted), or if nothing was ever flushed.
        """
        if self.is_under_way:
            self.is_wanted = True
            return None
        if segment is None or segment.flushed == 0:
            checkpoint = self.full(segment, end_offset, log_start, producers)
            if checkpoint is not None:
                self.begin()
            return checkpoint
        is_full = not segment.is_covered or segment.delta_bytes > self._config.checkpoint_full_bytes
        if is_full:
            producers.take_changes()  # the full one holds them
        checkpoint = self._of(segment, end_offset, log_start, producers, is_full=is_full)
        segment.delta_bytes = 0 if is_full else segment.delta_bytes + segment_bytes(checkpoint)
        segment.is_covered = True
        segment.index_covered = len(segment.index.entries)
        segment.aborted_covered = len(segment.aborted)
        segment.uncovered_bytes = 0
        segment.dirty_since_ms = -1
        self.begin()
        return checkpoint

    def begin(self) -> None:
        """Note that a checkpoint was sent to the journal."""
        self.is_under_way, self.is_wanted = True, False

    def written(self) -> bool:
        """Note that it is durable; return whether another one is wanted."""
        self.is_under_way = False
        return self.is_wanted

    def close(
        self,
        name: SegmentName,
        length: int,
        end_offset: int,
        log_start: int,
        index: SegmentIndex,
        epochs: list[tuple[int, int]],
        aborted: Iterable[AbortedTransaction],
        producers: ProducerTable,
    ) -> Checkpoint:
        """Return the final checkpoint of a segment, for its index file.

        It is also kept for checkpoints while no segment is open.
        """
        final = Checkpoint(
            key=self._key,
            segment=name,
            position=length,
            end_offset=end_offset,
            log_start=log_start,
            is_closed=True,
            max_timestamp=index.max_timestamp,
            max_timestamp_offset=index.max_timestamp_offset,
            first_open_txn=producers.transactions.first_open,
            index=index.entries,
            epochs=tuple(epochs),
            producers=producers.snapshot(),
            aborted=tuple(aborted),
        )
        self.last = replace(final, index=array("q"), producers=())
        return final

    def adopt(self, last: Checkpoint) -> None:
        """Note the final checkpoint of the newest closed segment, which another owner has closed."""
        self.last = replace(last, is_full=True, is_closed=True, index=array("q"), producers=())

    def _of(
        self, segment: OpenSegment, end_offset: int, log_start: int, producers: ProducerTable, *, is_full: bool
    ) -> Checkpoint:
        index = segment.index
        return Checkpoint(
            key=self._key,
            segment=segment.entry.name,
            position=segment.flushed,
            end_offset=end_offset,
            log_start=log_start,
            is_full=is_full,
            max_timestamp=index.max_timestamp,
            max_timestamp_offset=index.max_timestamp_offset,
            first_open_txn=producers.transactions.first_open,
            index=index.entries[:] if is_full else index.entries[segment.index_covered :],
            epochs=tuple(segment.epochs),
            producers=producers.snapshot() if is_full else producers.take_changes(),
            aborted=segment.aborted.behind(0 if is_full else segment.aborted_covered),
        )

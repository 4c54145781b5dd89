"""The transactions of one partition's files, for ``bmq segment cat``: open and aborted, as at the time of the call.

A segment's index holds its aborted transactions and what is open at its end.  A segment is scanned
if it has no index or if its index ends before the segment.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import aclosing
from enum import Enum

from bmq.cli.segment.targets import PartitionFiles, TargetSegment
from bmq.core.errors import FormatError
from bmq.core.records.batch import NO_PRODUCER_ID, Batch
from bmq.storage.checkpoint import AbortedTransaction, Checkpoint
from bmq.storage.damage_reader import FoundBatch, walk_batches
from bmq.storage.filesystem import FileSystem
from bmq.storage.segment import decode_idx
from bmq.storage.transactions import NOTHING_OPEN, Transactions


class Outcome(Enum):
    """The outcome of the transaction of a batch."""

    DECIDED = ""
    ABORTED = "aborted"
    OPEN = "open"


class LogTransactions:
    """The aborted and the open transactions of a log from some segment on."""

    def __init__(self, aborted: Iterable[AbortedTransaction], opened: Iterable[tuple[int, int]]) -> None:
        self._aborted: dict[int, list[tuple[int, int]]] = {}
        for each in aborted:
            self._aborted.setdefault(each.producer_id, []).append((each.first_offset, each.last_offset))
        self._open = dict(opened)

    @property
    def first_open(self) -> int:
        """The first offset of the oldest open transaction, -1 for none: the last stable offset."""
        return min(self._open.values(), default=NOTHING_OPEN)

    def outcome_of(self, batch: Batch) -> Outcome:
        """Return the outcome of the batch's transaction; DECIDED for a plain batch and a marker."""
        if batch.producer_id == NO_PRODUCER_ID or batch.is_control or not batch.is_transactional:
            return Outcome.DECIDED
        if self._open.get(batch.producer_id, batch.next_offset) <= batch.base_offset:
            return Outcome.OPEN
        ranges = self._aborted.get(batch.producer_id, ())
        is_aborted = any(first <= batch.base_offset <= last for first, last in ranges)
        return Outcome.ABORTED if is_aborted else Outcome.DECIDED


async def find_transactions(fs: FileSystem, files: PartitionFiles, start: int) -> LogTransactions:
    """Return the transactions of the records from offset ``start`` on.

    The markers of a transaction may lie in any later segment, so the read goes on to the log's end.  Raises
    StorageError.
    """
    segments = [each for each in files.segments if each.has_log and not each.is_superseded]
    first = max((at for at, each in enumerate(segments) if each.name.base <= start), default=0)
    indexes: dict[int, Checkpoint | None] = {}
    while first > 0:  # what is open where the first segment begins is in an index before it
        first -= 1
        indexes[first] = await _index(fs, segments[first])
        if indexes[first] is not None:
            break
    aborted: list[AbortedTransaction] = []
    opened: tuple[tuple[int, int], ...] = ()
    for at, segment in enumerate(segments[first:], first):
        index = indexes[at] if at in indexes else await _index(fs, segment)
        if index is not None:
            aborted += index.aborted
            opened = Transactions.of(index.producers).opened
        else:
            transactions = Transactions(opened)
            await _scan(fs, segment, transactions)
            aborted += transactions.take_aborted()
            opened = transactions.opened
    return LogTransactions(aborted, opened)


async def _index(fs: FileSystem, segment: TargetSegment) -> Checkpoint | None:
    """Return the segment's index if it describes all of the segment."""
    if not segment.has_idx:
        return None
    try:
        index = decode_idx(await fs.read(segment.idx, 0, await fs.visible_length(segment.idx)))
    except FormatError:
        return None
    if segment.limit is None:
        return index if index.position == await fs.visible_length(segment.log) else None
    return index if index.end_offset == segment.limit else None


async def _scan(fs: FileSystem, segment: TargetSegment, transactions: Transactions) -> None:
    length = await fs.visible_length(segment.log)
    async with aclosing(walk_batches(fs, segment.log, 0, length, segment.name.base)) as items:
        async for item in items:
            if not isinstance(item, FoundBatch):
                continue
            if segment.limit is not None and item.batch.base_offset >= segment.limit:
                return
            try:
                transactions.pass_batch(item.batch)
            except FormatError:
                continue  # `bmq segment verify` reports the marker

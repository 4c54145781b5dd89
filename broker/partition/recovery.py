"""Takeover of a predecessor's log: fence its segments, find the last checkpoint, read on from there (rule 4)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial

from bmq.broker import events as ev
from bmq.broker.context import BrokerContext
from bmq.broker.events import Event
from bmq.broker.files.context import FileContext
from bmq.broker.files.deferred_indexes import LOOK_MS
from bmq.broker.files.segment_files import SegmentFiles
from bmq.broker.partition.index_maker import IndexMaker, UnreadSegment
from bmq.broker.partition.missing_indexes import MissingIndexes, Work
from bmq.broker.partition.older_producers import producers_before
from bmq.broker.partition.producer_state import ProducerTable
from bmq.broker.partition.release import ReleaseNote
from bmq.core.aio.steps import run_in_steps
from bmq.core.aio.turns import gather_in_turns
from bmq.core.errors import FormatError
from bmq.core.model import PartitionKey, SegmentName
from bmq.meta.ownership import PartitionRecord, SegmentEntry
from bmq.storage.checkpoint import Checkpoint
from bmq.storage.filesystem import NoSuchFile
from bmq.storage.log_segments import first_base
from bmq.storage.recovery import (
    FencedSegment,
    Found,
    Offline,
    Recovered,
    ends,
    find_unlisted,
    recover,
    refusal_of,
)
from bmq.storage.segment import decode_idx_steps
from bmq.storage.transactions import NOTHING_OPEN

LOOKS_AT_ONCE = 100
"""Most journals and indexes of one takeover under way at once."""


class Takeover:
    """The takeover of one partition. Every step may be repeated.

    ``found``: the partition's record and revision, if known; ``note``: the previous owner's release note, if it sent
    one.
    """

    __slots__ = (
        "_context",
        "_index_interval_bytes",
        "_indexed",
        "_key",
        "_missing",
        "_note",
        "_noted",
        "_segments",
        "_shortened",
        "_unread",
        "found",
        "losses",
        "trouble",
    )  # fmt: skip

    def __init__(
        self,
        context: BrokerContext,
        segments: SegmentFiles,
        key: PartitionKey,
        index_interval_bytes: int,
        found: tuple[PartitionRecord, int] | None = None,
        note: ReleaseNote | None = None,
    ) -> None:
        self._context = context
        self._segments = segments
        self._key = key
        self._index_interval_bytes = index_interval_bytes
        self._indexed: set[SegmentName] = set()  # closed segments with a whole index, on storage or deferred
        self._unread: list[UnreadSegment] = []  # segments whose index is not known, and whose bytes were not read
        self._missing: dict[SegmentName, int] = {}  # closed segments without a file, and their end offsets
        self._shortened: dict[SegmentName, tuple[int, int]] = {}  # their lost bytes, and all bytes
        self._note = note
        self._noted: SegmentEntry | None = None  # its index came by the note, and may not be on storage yet
        self.found = found
        self.trouble = ""
        """The reason why storage did not complete the last attempt; "" if none failed."""
        self.losses: list[Callable[[], None]] = []
        """Reports of what the last recovery found missing; to be called if this broker is still the owner."""

    async def fence_all(self, entries: Sequence[SegmentEntry]) -> tuple[FencedSegment, ...]:
        """Fence these segments, all at once. Raises StorageError, once every fence has ended, to be tried again.

        A fence that fails does not cancel the others: a lease recovery takes seconds, and would begin again and again.
        None goes on beside the next attempt, or after the partition's end.
        """
        outcomes = await asyncio.gather(*map(self.fence, entries), return_exceptions=True)
        fenced = []
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
            fenced.append(outcome)
        return tuple(fenced)

    async def fence(self, entry: SegmentEntry) -> FencedSegment:
        """Stop the segment's writer; return what was found of the segment. Raises StorageError, to be tried again."""
        if entry.is_closed:
            return FencedSegment(name=entry.name, found=Found.FINAL, length=entry.length)
        try:
            length = await self._segments.fence(entry)
        except NoSuchFile:
            try:
                length = await self._segments.fence_copy(entry)
            except NoSuchFile:
                return FencedSegment(name=entry.name, found=Found.NOWHERE, length=0)
        try:
            status = await self._context.fs.status(self._segments.path.log(entry.name))
        except NoSuchFile:
            return FencedSegment(name=entry.name, found=Found.SPARE, length=length)
        # The namespace's length, not the fence's: a merge (HDFS concat) may have made a closed file longer.
        return FencedSegment(name=entry.name, found=Found.FINAL, length=max(length, status.length))

    async def recover(self, effect: ev.RecoverLog, is_ours: Callable[[], Awaitable[bool]]) -> Event:
        """Recover the log; return LogRecovered or RecoveryRefused.

        ``is_ours`` reads from the metadata store whether this broker still owns the partition, and may raise KvError.
        The result counts for nothing if it returned False. Raises StorageError if storage does not respond or has no
        sound replica (CorruptData), FormatError for damage.
        """
        self._missing.clear()
        self._shortened.clear()
        self.losses.clear()
        if not self._is_noted(effect):
            refused = await find_later_store(
                self._context, self._segments, effect.segments, effect.last, effect.epoch, is_ours
            )
            if refused is not None:
                return refused
        settled = await self._settled_index(effect)
        first: int | None = None  # base of the first segment; not needed for a settled log, whose index is enough
        found: list[Checkpoint | None] = [settled]
        if settled is None:
            found, first = await asyncio.gather(
                self._find_checkpoints(effect), first_base(self._context.fs, self._segments.path)
            )
        self._report_shortened()
        base = max((c for c in found if c is not None), key=lambda c: c.order, default=None)
        log_start = max((c.log_start for c in found if c is not None), default=0)
        wall_ms = self._context.clock.now_ms()
        producers = await self._known_producers(effect, found, base, first, wall_ms)
        if base is not None and not base.knows_producers:
            base = replace(base, producers=producers.snapshot(), knows_producers=True)
        recovered = await recover(
            self._context.fs,
            self._segments.path,
            effect.segments,
            base,
            lambda batch: producers.replay(batch, wall_ms),
            log_start=log_start,
            index_interval_bytes=self._index_interval_bytes,
            producers=producers.snapshot,
        )
        if isinstance(recovered, Offline):
            return ev.RecoveryRefused(recovered.reason)
        log_start = self._clamped(log_start, first)
        self._report_missing(log_start)
        self._note_unread(effect, recovered, log_start)
        unindexed = {segment.name for segment in recovered.segments} - self._indexed
        unindexed.update(each.name for each in (*self._unread, self._noted) if each is not None)
        return ev.LogRecovered(recovered, base, producers.snapshot(), log_start, frozenset(unindexed))

    def _note_unread(self, effect: ev.RecoverLog, recovered: Recovered, log_start: int) -> None:
        """Note the segments behind which the recovery began, unless their index is known to exist.

        A segment's owner may have died before the write of the index.
        """
        others = self._indexed | self._missing.keys() | {segment.name for segment in recovered.segments}
        segments = sorted(effect.segments, key=lambda segment: segment.name.order)
        limits = ends([segment.name for segment in segments])
        entries = {entry.name: entry for entry in effect.entries}
        self._unread = []
        for segment, limit in zip(segments, limits, strict=True):
            entry = entries[segment.name]
            end = entry.end_offset if entry.is_closed else limit
            if end is None or end <= max(log_start, segment.name.base) or segment.name in others:
                continue
            if segment.found is Found.FINAL and segment.length > 0:
                self._unread.append(UnreadSegment(segment.name, segment.length, end, entry.is_closed))

    async def _known_producers(
        self,
        effect: ev.RecoverLog,
        found: Sequence[Checkpoint | None],
        base: Checkpoint | None,
        first: int | None,
        wall_ms: int,
    ) -> ProducerTable:
        """Return the producers up to the offset at which the recovery from ``base`` begins to read.

        As a rule these are the producers of ``base``. If no checkpoint holds them, they are read on from an older
        source (``broker.partition.older_producers``). ``first``: base of the first segment that is left.
        """
        start = _first_read(effect, base)
        known = max((c for c in found if c is not None and c.knows_producers), key=lambda c: c.order, default=None)
        if known is not None and known.end_offset >= start:
            return ProducerTable(known.producers)
        if first is None or first >= start:
            return ProducerTable()  # no record from before is left: nothing of a transaction could be shown
        path = self._segments.path
        older = await producers_before(self._context.fs, path, known, start, wall_ms)
        first_open = older.table.transactions.first_open
        if not older.is_complete and first_open != NOTHING_OPEN:
            text = (
                "batches below offset %d are missing: the transaction that is open from offset %d on may have ended in"
                " them. It holds readers of committed records back until its coordinator ends it"
            )
            self.losses.append(partial(self._context.report, text, start, first_open, **path.log_fields))
        return older.table

    def _is_noted(self, effect: ev.RecoverLog) -> bool:
        """Return whether the claimed record is the one that the previous owner sent in its release note.

        The previous owner has just served with this record: the metadata store is not older than storage.
        """
        if self._note is None or self._note.revision < 0:
            return False
        left = self._note.record
        return (left.epoch + 1, left.last_registered, left.segments) == (effect.epoch, effect.last, effect.entries)

    def _clamped(self, log_start: int, first: int | None) -> int:
        """Return the log start, at least the first segment's base, as in Kafka (``LogLoader``).

        If the checkpoint with the log start is lost, the log start would lie below files that were deleted long ago: a
        consumer that begins there would wait for ever.
        """
        if first is None or first <= log_start:
            return log_start
        text = "no checkpoint gives a log start above %d, but the first segment begins at %d: the log starts there"
        self.losses.append(partial(self._context.report, text, log_start, first, **self._segments.path.log_fields))
        return first

    async def _settled_index(self, effect: ev.RecoverLog) -> Checkpoint | None:
        """Return the last segment's index if the log is settled: then it holds everything, the log start too.

        It comes from the release note, or from storage. Returns None if the log is not settled or the index is missing.
        """
        if not effect.is_settled or not effect.entries or not all(entry.is_closed for entry in effect.entries):
            return None
        last = effect.entries[-1]  # others are named until their indexes are written
        try:
            found = self._from_note(last) or await self._from_index(last)
            return found if last.name in self._indexed else None
        except NoSuchFile:
            return None  # its writer died first, or retention deleted it: the journals hold the log start

    async def _find_checkpoints(self, effect: ev.RecoverLog) -> list[Checkpoint | None]:
        """Return the last checkpoints from the journals and from the closed segments' indexes.

        None stands for a journal or an index without one.
        """
        looks: list[Callable[[], Awaitable[Checkpoint | None]]] = [
            *(
                partial(self._context.journals.find, incarnation, self._key, passes_damaged=effect.passes_damaged)
                for incarnation in effect.journals
            ),
            *(partial(self._closed_checkpoint, entry) for entry in effect.entries if entry.is_closed),
        ]
        return await gather_in_turns(lambda look: look(), looks, LOOKS_AT_ONCE)

    async def _closed_checkpoint(self, entry: SegmentEntry) -> Checkpoint | None:
        """Return the checkpoint in the closed segment's index.

        | the index                                 | the result                                                     |
        | ----------------------------------------- | -------------------------------------------------------------- |
        | is damaged or gone, and so is the segment | the end that the record itself holds, without producers        |
        | is damaged, or was never written          | None: the segment is scanned as an open one, for its producers |
        """
        try:
            index = await self._from_index(entry)
        except NoSuchFile:
            index = None
        if index is not None or entry.name not in self._missing:
            return index
        return Checkpoint(
            key=self._key,
            segment=entry.name,
            position=entry.length,
            end_offset=entry.end_offset,
            log_start=0,
            is_closed=True,
            knows_producers=False,
        )

    def _from_note(self, entry: SegmentEntry) -> Checkpoint | None:
        """Return the index from the release note; None if there is none, or if it is damaged or of another segment."""
        path = self._segments.path
        if self._note is None:
            return None
        try:
            noted = self._note.checkpoint(entry)
        except FormatError as error:
            self._report("the index in a release note is damaged, reading it from storage", path.idx(entry.name), error)
            return None
        if noted is None:
            return None
        if entry.name not in self._indexed and self._context.deferred_indexes.has_room:
            self._noted = entry
        self._indexed.add(entry.name)
        return replace(noted, is_full=True)

    async def _from_index(self, entry: SegmentEntry) -> Checkpoint | None:
        """Return the checkpoint in the segment's index; None if it is damaged. Raises NoSuchFile.

        The segment is then not scanned, so its length is checked on the way: it must be as long as when it was closed.
        The check also ends before the error of an index that is gone.
        """
        checked, status = await asyncio.gather(
            self._check_length(entry),
            self._context.fs.status(self._segments.path.idx(entry.name)),
            return_exceptions=True,
        )
        if checked is not None:
            raise checked
        if isinstance(status, BaseException):
            raise status
        data = await self._context.fs.read(self._segments.path.idx(entry.name), 0, status.length)
        try:
            found = replace(await run_in_steps(decode_idx_steps(data)), is_full=True)
            if found.end_offset >= entry.end_offset:  # else the segment is read on from there, and indexed again
                self._indexed.add(entry.name)
            return found
        except FormatError as error:
            self._report("an index is damaged, scanning the segment", self._segments.path.idx(entry.name), error)
            return None

    async def _check_length(self, entry: SegmentEntry) -> None:
        """Note a closed segment that has lost bytes. The log's end is known, so the takeover goes on without them.

        By its name: the check of an attempt that failed may end beside the next attempt's.
        """
        path = self._segments.path.log(entry.name)
        try:
            length = (await self._context.fs.status(path)).length
        except NoSuchFile:
            self._missing[entry.name] = entry.end_offset
            return
        if length < entry.length:
            self._shortened[entry.name] = entry.length - length, entry.length

    def _report_shortened(self) -> None:
        """Report closed segments that have lost bytes."""
        for name, (lost, length) in self._shortened.items():
            self._lost("storage lost %d of the %d bytes of a segment", lost, length, path=self._segments.path.log(name))

    def _report_missing(self, log_start: int) -> None:
        """Report closed segments without a file, unless retention may have removed them."""
        for name, end_offset in self._missing.items():
            if end_offset > log_start:
                text = "a segment vanished with records up to offset %d"
                self._lost(text, end_offset, path=self._segments.path.log(name))

    def _lost(self, text: str, *arguments: int, path: str) -> None:
        """Note a loss, to be reported once the partition is known to be this broker's still."""
        about = self._segments.path.log_fields
        self.losses.append(partial(self._context.report, text, *arguments, **about, path=path))

    def _report(self, text: str, path: str, error: object) -> None:
        self._context.report(text, **self._segments.path.log_fields, path=path, error=error)

    def missing_indexes(
        self,
        effect: ev.WriteIndexes,
        ended: Callable[[SegmentName], None],
        begin: Callable[[Callable[[], Work]], asyncio.Task[None] | None],
    ) -> MissingIndexes:
        """Return the work on the missing indexes (``MissingIndexes`` describes ``ended`` and ``begin``)."""
        if self._noted is not None and self._note is not None:  # usually the previous owner has written it by then
            name, length, late = self._noted.name, self._noted.length, self._context.deferred_indexes
            index, end = self._note.last_index, partial(ended, self._noted.name)
            late.add(self._segments, name, length, index, after_ms=LOOK_MS, ended=end)
        recovered = [segment for segment in effect.recovered.segments if segment.name not in self._indexed]
        maker = IndexMaker(self._context, self._segments, self._key, self._index_interval_bytes, effect.log_start)
        return MissingIndexes(self._context, maker, [*self._unread, *recovered], ended, begin)


def _first_read(effect: ev.RecoverLog, base: Checkpoint | None) -> int:
    """Return the offset at which a recovery from ``base`` begins to read."""
    later = [s.name.base for s in effect.segments if base is None or s.name.order >= base.segment.order]
    if base is None:
        return min(later, default=0)
    return max(base.end_offset, min(later, default=base.end_offset))


async def find_later_store(
    context: FileContext,
    segments: SegmentFiles,
    listed: Sequence[FencedSegment],
    last: tuple[int, int],
    epoch: int,
    is_ours: Callable[[], Awaitable[bool]],
) -> ev.RecoveryRefused | None:
    """Return the event of a file that proves the metadata store to be older than storage; None if there is none.

    See ``storage.recovery.find_unlisted``. Such a file may have a writer, which is fenced: unless ``is_ours`` returns
    False. Then a successor may have registered the file. It claimed the partition before the file got its name, so a
    read of the store after the listing shows the claim. A fence would seem foreign to the successor, and end its
    process. The result counts for nothing then. A file that proves nothing is deleted once it is fenced. Raises
    StorageError, and what ``is_ours`` raises.
    """

    async def length_of(name: SegmentName) -> int | None:
        if not await is_ours():
            return None
        try:
            return await segments.fence_copy(SegmentEntry(name=name, spare="", holder="", file_id=0))
        except NoSuchFile:
            return 0

    async def drop(name: SegmentName) -> None:
        await context.fs.delete(segments.path.log(name))

    found = await find_unlisted(context.fs, segments.path, listed, last, epoch, length_of, drop)
    return None if found is None else ev.RecoveryRefused(refusal_of(segments.path, found))

"""The state of one partition as a repair finds it: its record, its files, its last checkpoint.

Only two things are changed here, and only on request: listed files are fenced, and files that a repair which died has
set aside get their names back.
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from bmq.core.aio.subscribers import no_op
from bmq.core.errors import FormatError
from bmq.core.model import PartitionKey, SegmentName
from bmq.meta.ownership import PartitionRecord, SegmentEntry
from bmq.storage.checkpoint import Checkpoint
from bmq.storage.filesystem import CorruptData, FileSystem, Lease, NoSuchFile, StorageUnavailable
from bmq.storage.journal import read_journals
from bmq.storage.layout import PartitionPath, base_name, parse_segment
from bmq.storage.log_segments import walk
from bmq.storage.recovery import FencedSegment, Found, Offline, find_unlisted, recover
from bmq.storage.segment import decode_idx

REPLACING, DAMAGED = "replacing-", "damaged-"
"""Prefixes of the name of a segment's old file: while it is replaced, and after that."""


@dataclass(slots=True)
class RepairFacts:
    """The findings of one reading of the store and of storage."""

    record: PartitionRecord
    revision: int
    segments: list[FencedSegment]
    base: Checkpoint | None
    """The last checkpoint that can be read."""
    log_start: int
    unlisted: FencedSegment | None = None
    """A file that proves the metadata store to be older than storage."""
    notes: list[str] = field(default_factory=list)
    """Sentences for the operator."""


def vanished_unseen(facts: RepairFacts) -> SegmentEntry | None:
    """Return the last segment if its file is missing and no checkpoint shows what it held; else None."""
    found = {segment.name: segment.found for segment in facts.segments}
    last = max(facts.record.segments, key=lambda entry: entry.name.order, default=None)
    if last is None or last.is_closed or found[last.name] is not Found.NOWHERE:
        return None
    is_covered = facts.base is not None and facts.base.segment == last.name and facts.base.position > 0
    return None if is_covered else last


def without_data(facts: RepairFacts) -> tuple[SegmentEntry, ...]:
    """Return the record's segments, with the one of ``vanished_unseen`` as closed and empty."""
    vanished = vanished_unseen(facts)
    return tuple(
        entry.closed(0, entry.name.base) if vanished is not None and entry.name == vanished.name else entry
        for entry in facts.record.segments
    )


class PartitionIdentity(NamedTuple):
    """A partition's identity in the metadata store."""

    cluster: str
    key: PartitionKey
    path: PartitionPath
    replication: int


class Inspector:
    """Collector of the facts of one partition."""

    def __init__(self, fs: FileSystem, place: PartitionIdentity) -> None:
        self._fs = fs
        self._key = place.key
        self._path = place.path

    async def gather(self, record: PartitionRecord, revision: int, *, is_fenced: bool) -> RepairFacts:
        """Return the facts of the segments and journals that the record lists.

        With ``is_fenced``, segments that are not closed are fenced first.  An index or journal that cannot be read
        becomes a note.  Raises StorageError.
        """
        facts = RepairFacts(record, revision, [], None, 0)
        for entry in record.segments:
            if is_fenced and not entry.is_closed:
                await self._fence(entry)
            facts.segments.append(await self._find_file(entry))
        facts.unlisted = await find_unlisted(
            self._fs,
            self._path,
            facts.segments,
            record.last_registered,
            record.epoch + 1,
            lambda name: self._fs.visible_length(self._path.log(name)),
        )
        found = [await self._from_index(entry, facts) for entry in record.segments if entry.is_closed]
        for incarnation in record.journals:
            try:
                found.append((await read_journals(self._fs, incarnation, {self._key})).get(self._key))
            except (FormatError, CorruptData) as error:
                facts.notes.append(f"the journal of {incarnation} is not read: {error}")
        known = [checkpoint for checkpoint in found if checkpoint is not None]
        facts.base = max(known, key=lambda checkpoint: checkpoint.order, default=None)
        facts.log_start = max((checkpoint.log_start for checkpoint in known), default=0)
        return facts

    async def _fence(self, entry: SegmentEntry) -> None:
        lease = Lease(paths=(self._path.log(entry.name), entry.spare), holder=entry.holder, file_id=entry.file_id)
        try:
            await self._fs.fence(lease)
        except NoSuchFile:
            return  # the file is missing: the plan decides what that means

    async def _find_file(self, entry: SegmentEntry) -> FencedSegment:
        for path, found in ((self._path.log(entry.name), Found.FINAL), (entry.spare, Found.SPARE)):
            try:
                return FencedSegment(name=entry.name, found=found, length=await self._fs.visible_length(path))
            except NoSuchFile:
                continue
        return FencedSegment(name=entry.name, found=Found.NOWHERE, length=0)

    async def _from_index(self, entry: SegmentEntry, facts: RepairFacts) -> Checkpoint | None:
        try:
            return await self._index(entry.name)
        except (FormatError, CorruptData) as error:
            facts.notes.append(f"{self._path.idx(entry.name)} is not read: {error}")
            return None

    async def _index(self, name: SegmentName) -> Checkpoint | None:
        path = self._path.idx(name)
        try:
            return replace(decode_idx(await self._fs.read(path, 0, await self._fs.visible_length(path))), is_full=True)
        except NoSuchFile:
            return None

    async def known(self, name: SegmentName) -> Checkpoint | None:
        """Return the checkpoint in the segment's index; None if it has none that can be read."""
        try:
            return await self._index(name)
        except (FormatError, CorruptData):
            return None

    async def judge(self, facts: RepairFacts, *, unreadable_is_lost: bool) -> str:
        """Return why a broker would take the partition OFFLINE; "" if it would open it.

        Raises StorageUnavailable if bytes cannot be read now, unless ``unreadable_is_lost``: then that is the reason.
        """
        lengths = {entry.name: entry.length for entry in facts.record.segments if entry.is_closed}
        segments = [  # a broker trusts the record about a closed one
            replace(segment, found=Found.FINAL, length=lengths[segment.name]) if segment.name in lengths else segment
            for segment in facts.segments
        ]
        try:
            verdict = await recover(self._fs, self._path, segments, facts.base, no_op, log_start=facts.log_start)
        except (CorruptData, FormatError) as error:
            return str(error)
        except StorageUnavailable as error:
            if not unreadable_is_lost:
                raise
            return str(error)
        return verdict.reason if isinstance(verdict, Offline) else ""

    async def aside(self, name: SegmentName) -> str:
        """Return the path where a repair that died has put the segment's file; else ""."""
        async for status in self._fs.list(self._path.folder, after=f"{REPLACING}{name}-"):
            if not base_name(status.path).startswith(f"{REPLACING}{name}-"):
                break
            if _replaced(status.path) == name:  # else a file that was cleaned from it
                return status.path
        return ""

    async def put_back(self, facts: RepairFacts) -> None:
        """Give the files of closed segments that a repair which died has set aside their names back.

        A file of a listed segment stays: its plan finds it.  So does the file of a segment that is not missing, because
        it was merged with its neighbour or deleted since; it is renamed from ``replacing-`` to ``damaged-``.
        """
        listed = {entry.name for entry in facts.record.segments}
        asides = [
            (status.path, name)
            async for status in self._fs.list(self._path.folder, after=REPLACING)
            if (name := _replaced(status.path)) is not None
        ]
        for path, name in asides:
            if name in listed:
                continue
            if await self._is_missing(name, facts.log_start):
                await self._fs.rename(path, self._path.log(name))
            else:
                await self._fs.rename(path, path.replace(f"/{REPLACING}", f"/{DAMAGED}"))

    async def _is_missing(self, name: SegmentName, log_start: int) -> bool:
        """Return whether the log lacks this segment: the one before it ends at its base, and no file has its name."""
        before: SegmentName | None = None
        async with aclosing(walk(self._fs, self._path)) as listing:
            async for listed in listing:
                if listed.name == name and listed.has_log:
                    return False
                if listed.is_live and listed.name.base < name.base:
                    before = listed.name
        if before is None:
            return name.base >= log_start
        checkpoint = await self._index(before)
        return checkpoint is not None and checkpoint.end_offset == name.base


def _replaced(path: str) -> SegmentName | None:
    """Return the name of the segment that a repair has set aside under ``path``; None for another file."""
    parsed = parse_segment(base_name(path).removeprefix(REPLACING).rpartition("-")[0] + ".log")
    return parsed[0] if parsed is not None else None

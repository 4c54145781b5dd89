"""A partition's segments as one log, derived from their names on storage.

Names are enough (rules 3 and 5): a final ``.log`` name means registered, ``(epoch, n)`` is the order of registration,
and a segment ends where the first one registered after it begins.  Later registrations never begin below earlier
acknowledged data.  So in order of bases, a segment is *live* if its ``(epoch, n)`` is greater than any before.  Any
other segment is *superseded*: none of its bytes count.  So one pass over the folder in order of names is enough, with
one segment of look-ahead, and listings are incremental: new segments are at the end.  A cleaned segment has the
``(epoch, n)`` of its last source.  Its cleaning number is third in the order, so it hides its sources and no others.

``LogSegments`` is a reader's list (a name for each live segment).  ``walk`` streams a folder for upkeep, which keeps no
list.  The retention decisions at the end are plain functions.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from operator import attrgetter
from typing import NamedTuple

from bmq.core.model import SegmentName
from bmq.storage.filesystem import FileStatus, FileSystem, NoSuchFile
from bmq.storage.layout import PartitionPath, base_name, parse_segment
from bmq.storage.read_progress import ReadProgress

_PAST_SCAFFOLDING = ".~"  # byte order: every name beginning with a dot, then this, then the digits
_BASE = attrgetter("base")
FIRST_NAMES = 256
"""Live names at a log's begin that are read again whole: with hidden names and indexes about a page of a listing."""
FOR_EVER = -1
"""The retention setting that switches a rule off."""


class Extent(NamedTuple):
    """A live segment.  It holds the offsets [name.base, end), or up to the log's end if ``end`` is None."""

    name: SegmentName
    end: int | None


class ListedSegment(NamedTuple):
    """A folder's entries for one segment name.

    ``end`` is as in ``Extent``, and equal to the base if the segment is superseded.  ``length`` (bytes) and
    ``modified_ms`` are the namespace's values for the ``.log`` (lower bounds while it is open), -1 if only the ``.idx``
    is there.  ``block_bytes`` is the namespace's value too, 0 if unknown, and so is ``coding``, as in ``FileStatus``.
    """

    name: SegmentName
    end: int | None
    length: int
    modified_ms: int
    has_idx: bool
    block_bytes: int = 0
    coding: str = ""

    @property
    def has_log(self) -> bool:
        return self.length >= 0

    @property
    def is_live(self) -> bool:
        return self.has_log and self.end != self.name.base


class LogSegments:
    """The live segments of one partition, in order of offsets.  Its memory is one name for each segment.

    ``cover(end)`` makes sure that every segment beginning below ``end`` is known.  It lists only behind the last known
    segment, and lists nothing below a position that was covered before.  The caller passes a name that turns out to be
    gone (retention, concat) to ``refresh``.  Only the first ``cover`` lists the whole folder.  ``progress`` counts the
    listings.
    """

    def __init__(self, fs: FileSystem, path: PartitionPath, progress: ReadProgress | None = None) -> None:
        self._fs = fs
        self._progress = progress or ReadProgress()
        self.path = path
        self._names: list[SegmentName] = []
        self._lock = asyncio.Lock()
        self._covered = -1
        self.listings = 0

    def __repr__(self) -> str:
        last = self._names[-1] if self._names else "-"
        return f"<LogSegments {self.path} {len(self._names)} up to {last} covered={self._covered}>"

    def __len__(self) -> int:
        return len(self._names)

    @property
    def first_offset(self) -> int | None:
        """The base of the oldest known segment, None without any.  The log start may lie inside it or beyond."""
        return self._names[0].base if self._names else None

    @property
    def last(self) -> SegmentName | None:
        """The newest known segment, None without any."""
        return self._names[-1] if self._names else None

    def find(self, offset: int) -> Extent | None:
        """Return the known segment that holds ``offset``, None below the first."""
        at = bisect_right(self._names, offset, key=_BASE) - 1
        return None if at < 0 else self._extent(at)

    def between(self, start: int, end: int) -> Iterator[Extent]:
        """Give the known segments that hold offsets of [start, end), oldest first."""
        at = max(0, bisect_right(self._names, start, key=_BASE) - 1)
        while at < len(self._names) and self._names[at].base < end:
            yield self._extent(at)
            at += 1

    def _extent(self, at: int) -> Extent:
        end = self._names[at + 1].base if at + 1 < len(self._names) else None
        return Extent(self._names[at], end)

    async def cover(self, end_offset: int, current: SegmentName | None = None) -> None:
        """List every segment that begins below ``end_offset``, unless they are known.

        ``end_offset`` is a high watermark that the caller got before this call.  A segment has its final name before it
        is written, and the watermark follows the writing: so a listing begun now shows all of them.  ``current`` is the
        owner's newest segment when it sent the watermark: no listing is needed if it is the last known segment.  Raises
        StorageError if storage does not respond.
        """
        if end_offset <= self._covered:
            return
        async with self._lock:  # held across the listing on purpose: it may cover the calls that wait
            if current is not None and self.last == current:
                self._covered = max(self._covered, end_offset)
            if end_offset > self._covered:
                await self._list_new(end_offset)

    async def _list_new(self, end_offset: int) -> None:
        last = self.last
        with self._progress.waiting():
            found = [listed.name async for listed in walk(self._fs, self.path, last) if listed.is_live]
        self.listings += 1
        if last is None or found[:1] == [last]:
            self._names[-1:] = found
        else:  # merged into its neighbour, cleaned with its neighbours, or superseded
            with self._progress.waiting():
                await self._list_again(last)
                if not self._names:  # all that was known is deleted
                    self._names = [listed.name async for listed in walk(self._fs, self.path) if listed.is_live]
        self._covered = end_offset

    async def refresh(self, missing: SegmentName) -> None:
        """List again around ``missing``, a known segment whose file is gone (rule 10).

        Retention removes the oldest segments, so the names older than the folder's first segment are dropped.  Concat
        removes neighbours, so the names around ``missing`` are read again, from the last name before it that still
        exists to the first such name behind it.  This takes one listing, or two in a log of more than ``FIRST_NAMES``,
        and questions for a few files.
        """
        async with self._lock:  # as in cover: calls that wait may find the work done
            if missing in self._names:
                with self._progress.waiting():
                    await self._list_again(missing)

    async def _list_again(self, missing: SegmentName) -> None:
        """Read the names around ``missing`` again: with the log's first names, or with a second listing.

        The second listing begins at a name before ``missing`` whose file is still there: a cleaned or merged file that
        took ``missing`` in begins behind it.  To ask for a file costs less than a listing.
        """
        floor = await self._list_first(missing)
        back = 1
        while (at := self._place(missing)) >= 0:
            start = max(floor, at - back)
            back *= 8
            if start > floor and not await self._is_there(self._names[start]):
                continue
            if await self._list_around(start, missing) or start == 0:
                break
            if start == floor:
                floor = 0  # its file is gone since the first listing
        if not self._names:
            self._covered = -1

    async def _list_first(self, missing: SegmentName) -> int:
        """Read the log's first names again, up to the next one still there behind ``missing`` if it is among them.

        Return the place of the last name that was read.
        """
        found: list[SegmentName] = []
        async with aclosing(walk(self._fs, self.path)) as listing:
            async for listed in listing:
                name = listed.name
                if not listed.is_live:
                    continue
                if not found and name.base > missing.base:  # it has expired, and no listing is needed behind it
                    self._names = self._names[bisect_right(self._names, name.base - 1, key=_BASE) :]
                    return 0
                if name > missing and (at := self._place(name)) >= 0:
                    self._names[:at] = found
                    return 0
                if len(found) == FIRST_NAMES and name.base < missing.base:
                    self._names[: bisect_right(self._names, found[-1].base, key=_BASE)] = found
                    return len(found) - 1
                found.append(name)
        self._names, self._covered = found, -1
        return 0

    def _place(self, name: SegmentName) -> int:
        """Return the place of a known name, -1 if it is not known."""
        at = bisect_right(self._names, name.base, key=_BASE) - 1
        return at if at >= 0 and self._names[at] == name else -1

    async def _is_there(self, name: SegmentName) -> bool:
        try:
            await self._fs.status(self.path.log(name))
        except NoSuchFile:
            return False
        return True

    async def _list_around(self, start: int, missing: SegmentName) -> bool:
        """Read the names from ``start`` to the next one still there behind ``missing`` again.

        Return False if the name at ``start`` is gone too: both may have been merged into its own predecessor.
        """
        before = self._names[start]
        found: list[SegmentName] = []
        rest: list[SegmentName] = []
        async with aclosing(walk(self._fs, self.path, before)) as listing:
            async for listed in listing:
                if listed.name > missing and listed.is_live and (at := self._place(listed.name)) > start:
                    rest = self._names[at:]
                    break
                if listed.is_live:
                    found.append(listed.name)
        if not rest:
            self._covered = -1
        if start > 0 and (not found or found[0] != before):
            return False
        self._names = [*self._names[:start], *found, *rest]
        return True


async def walk(
    fs: FileSystem, path: PartitionPath, after: SegmentName | None = None
) -> AsyncGenerator[ListedSegment, None]:
    """Give every segment name in the folder in order of bases, beginning with ``after`` (a live one) itself.

    Names of the same base come in order of registration, also where ``n`` has outgrown its digits.  A live segment is
    given once the next live one, where it ends, has been seen; the last one has no end.  ``after`` counts as live: the
    caller knows that no segment was cleaned over its base since.
    """
    top = (after.epoch, after.n, after.cleaning - 1) if after is not None else (-1, -1, -1)
    held: list[ListedSegment] = []
    async for group in _groups(fs, path, after):
        live = max((listed.name.order for listed in group if listed.has_log), default=top)
        is_next = live > top
        if is_next:
            top = live
            for listed in held:
                yield _ended(listed, group[0].name.base)
            held = []
        for listed in group:
            is_live = is_next and listed.has_log and listed.name.order == live
            held.append(listed if is_live else listed._replace(end=listed.name.base))
    for listed in held:
        yield listed


def _ended(listed: ListedSegment, base: int) -> ListedSegment:
    return listed._replace(end=base) if listed.end is None else listed


async def first_base(fs: FileSystem, path: PartitionPath) -> int | None:
    """Return the base of the oldest segment that has a ``.log``, None without any.

    As a rule this reads one page of a listing.
    """
    async with aclosing(_groups(fs, path, None)) as groups:
        async for group in groups:
            if any(listed.has_log for listed in group):
                return group[0].name.base
    return None


async def logs_from(fs: FileSystem, path: PartitionPath, base: int) -> AsyncGenerator[SegmentName, None]:
    """Give the name of every ``.log`` whose base is at least ``base``, in the order of the listing.

    Raises StorageError.
    """
    listing = fs.list(path.folder, after=f"{base:020d}")
    try:
        async for status in listing:
            parsed = parse_segment(base_name(status.path))
            if parsed is not None and parsed[1] == "log":
                yield parsed[0]
    finally:
        if isinstance(listing, AsyncGenerator):
            await listing.aclose()


async def _groups(
    fs: FileSystem, path: PartitionPath, after: SegmentName | None
) -> AsyncGenerator[list[ListedSegment], None]:
    """Give the names of each base, in order of registration, without their ends.

    The first group is that of the base of ``after``, complete: another segment of the same base may sort before or
    behind it.
    """
    start = f"{after.base:020d}" if after is not None else _PAST_SCAFFOLDING
    group: dict[SegmentName, ListedSegment] = {}
    base = -1
    listing = fs.list(path.folder, after=start)
    try:
        async for status in listing:
            parsed = parse_segment(base_name(status.path))
            if parsed is None:
                continue  # not a segment's file
            name, kind = parsed
            if name.base != base:
                if group:
                    yield sorted(group.values(), key=lambda listed: listed.name.order)
                group, base = {}, name.base
            group[name] = _merge(group.get(name), name, kind, status)
        if group:
            yield sorted(group.values(), key=lambda listed: listed.name.order)
    finally:
        if isinstance(listing, AsyncGenerator):
            await listing.aclose()


def _merge(seen: ListedSegment | None, name: SegmentName, kind: str, status: FileStatus) -> ListedSegment:
    if kind == "log":
        length, modified_ms, block_bytes = status.length, status.modified_ms, status.block_bytes
        return ListedSegment(name, None, length, modified_ms, seen is not None, block_bytes, status.coding)
    return seen._replace(has_idx=True) if seen is not None else ListedSegment(name, None, -1, -1, True)


# ------------------------------------------------------------------------------------------------------- retention


class Retained(NamedTuple):
    """A live segment, as retention needs it.  ``size`` is in bytes.

    ``end`` None: it is still written.  ``timestamp`` is the largest of its records, or the file's modification time if
    they carry none (milliseconds); None: it was not looked up.
    """

    base: int
    end: int | None
    size: int
    timestamp: int | None


def expired(
    segments: Sequence[Retained],
    *,
    now_ms: int,
    retention_ms: int,
    retention_bytes: int,
    high_watermark: int,
    log_start: int,
) -> int:
    """Return the log start after retention.

    Whole segments are removed from the oldest on, never past the watermark, and never the one being written.  The rules
    are Kafka's (``UnifiedLog.deleteRetentionMsBreachedSegments`` and ``...SizeBreachedSegments``): by time, the oldest
    segments are removed while their largest timestamp is more than ``retention_ms`` ago; by size, while at least
    ``retention_bytes`` remain (the segment being written counts).  ``FOR_EVER`` (-1) switches a rule off.
    """
    left = sum(segment.size for segment in segments)
    for segment in segments:
        if segment.end is None or segment.end > high_watermark:
            break
        is_old = is_expired(segment.timestamp, now_ms, retention_ms)
        is_surplus = retention_bytes != FOR_EVER and left - segment.size >= retention_bytes
        if not (is_old or is_surplus) and segment.end > log_start:
            break
        left -= segment.size
        log_start = max(log_start, segment.end)
    return log_start


def is_expired(timestamp: int | None, now_ms: int, retention_ms: int) -> bool:
    """Return whether a segment with this largest timestamp has outlived ``retention_ms``; False if it is unknown."""
    return retention_ms != FOR_EVER and timestamp is not None and now_ms - timestamp > retention_ms


def is_deletable(listed: ListedSegment, log_start: int) -> bool:
    """Return whether the files of this name may be deleted.

    To be called for the names of a ``walk`` in order, up to the first False.  A segment may be deleted if it is wholly
    below the log start and a later segment follows it: the newest name on storage shows how far the log and its epochs
    had come, should the key-value store be lost.  Superseded segments and stray indexes are deleted with their base: if
    one were left, it would seem to be live once the segment that superseded it is gone.
    """
    return listed.end is not None and listed.end <= log_start and listed.name.base < log_start


async def find_deletable(
    fs: FileSystem,
    path: PartitionPath,
    log_start: int,
    limit: int,
    may_be_open: Callable[[ListedSegment], bool],
) -> tuple[list[ListedSegment], bool, ListedSegment | None]:
    """Return about ``limit`` segments below the log start, in the order in which their files are to be deleted.

    The order is the order of names, with an exception: a live segment comes behind the superseded segments in its
    range, such as the sources of a cleaned segment.  Without the live segment they would seem to be live.  The result
    also says whether more segments can be deleted now, and has the segment that stays although it begins below the log
    start, because it is the newest or ``may_be_open``.  Raises StorageError.
    """
    found: list[ListedSegment] = []
    held: ListedSegment | None = None
    async with aclosing(walk(fs, path)) as listing:
        async for listed in listing:
            is_busy = may_be_open(listed)
            if not is_deletable(listed, log_start) or is_busy:
                if held is not None and (held.end is None or listed.name.base >= held.end):
                    found.append(held)  # else a name within its range stays
                stays = listed.name.base < log_start and (listed.end is None or is_busy)
                return found, False, listed if stays else None
            if listed.is_live and held is not None:
                found.append(held)
                held = None
            if len(found) >= limit:
                return found, True, None
            if listed.is_live:
                held = listed
            else:
                found.append(listed)
    return found, False, None  # not reached while there is a segment: the newest one stays

"""Retention of one partition at a time: moving the log start past expired segments, then deleting the files below it.

The log start moves first, durably and with the ownership proven after it; the files are deleted
``file_delete_delay_ms`` later, after another proof (rule 10).  Bytes below a durable log start are garbage for every
owner, so a janitor that has just lost its partition does no harm.

The ``Janitor`` keeps the queue; retention asks it for the next call.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from functools import partial
from typing import Generic, TypeVar

from bmq.broker.cleanup.index_reads import IndexReads, Unread
from bmq.broker.cleanup.merge_drafts import may_gain, targets_below
from bmq.broker.partition.driver import PartitionDriver
from bmq.broker.partition.states import PartitionState
from bmq.core.model import SegmentName
from bmq.storage.checkpoint import Checkpoint
from bmq.storage.filesystem import FileSystem
from bmq.storage.log_segments import FOR_EVER, ListedSegment, Retained, expired, find_deletable, is_expired, walk

_PENDING_DELETES_MAX = 16
HOUR_MS = 3_600_000
CHECK_MS = 240_000
"""Milliseconds to the next look at a partition whose last segment has no index yet, as after a hand-over.  With the
time to the round that looks this is less than five minutes, Kafka's log.retention.check.interval.ms."""
AWAY_LOOKS = 25
"""Looks in a row that find the blocks of an index away before its file's time stands for its records: a day, an hour
apart.  A restart, an upgrade or a repair of datanodes is over by then, and records that expired early are lost for
good.  The files of a lost index take a day's room."""
AHEAD_MAX = 64
"""Most indexes behind an index that is away, read in the same look: the day begins for all lost neighbours at once."""


class RetentionState:
    """The state that retention keeps for one ownership of a partition."""

    __slots__ = (
        "config", "counted_to", "driver", "held_below", "indexes", "leftover", "log_start", "pending_deletes",
        "swaps_begun", "swaps_done", "swaps_ended", "total",
    )  # fmt: skip

    def __init__(self, driver: PartitionDriver) -> None:
        self.driver = driver
        self.config = driver.machine.config
        self.log_start = driver.machine.log_start
        self.pending_deletes: deque[tuple[int, int]] = deque()  # (monotonic ms, log start): files below it go then
        self.leftover: ListedSegment | None = None  # below the log start, and not to be deleted yet
        self.held_below: int | None = None  # the log start of a deletion that waits for a merge
        self.total = 0  # bytes of the closed segments from the log start to ``counted_to``
        self.counted_to: SegmentName | None = None
        self.indexes: IndexReads | None = None  # made by the first look at times
        self.swaps_begun = 0  # swaps of cleaned segments by this owner, also the swaps that failed
        self.swaps_ended = 0
        self.swaps_done = 0  # swaps by this owner's rounds that took effect

    @property
    def is_leftover_closed(self) -> bool:
        """True if an open segment held the last deletion up, and is closed now.

        The newest segment holds nothing up. It can be deleted once another is registered.
        """
        held = self.leftover
        return held is not None and held.end is not None and held.name not in self.driver.machine.open_names

    def forget_count(self) -> None:
        """Count from the log start again."""
        self.counted_to, self.total = None, 0

    def forget_files(self) -> None:
        """Forget names and sizes of closed files: a swap may have hidden some files."""
        self.forget_count()

    @contextmanager
    def swapping(self) -> Iterator[None]:
        """Note that the log's files are swapped meanwhile, and forget names and sizes behind the swap."""
        self.swaps_begun += 1
        try:
            yield
        finally:
            self.swaps_ended += 1
            self.forget_files()

    def is_swapped_since(self, swaps_ended: int) -> bool:
        """Return whether a swap was under way since ``swaps_ended`` swaps had ended, or may take effect late."""
        return self.swaps_begun != swaps_ended or self.driver.machine.record.swap is not None


L = TypeVar("L", bound=RetentionState)


class Retention(Generic[L]):
    """Retention of one broker's partitions.

    ``retain_at`` and ``delete_at`` ask for the next call of ``retain`` and ``delete``, in milliseconds of the monotonic
    clock that ``now_ms`` reads; ``failed`` is called with the path of a damaged index and the error.

    Wall time only decides what has expired.  It may be set at any moment, so no deadline is kept in it.
    """

    def __init__(
        self,
        fs: FileSystem,
        *,
        interval_ms: int,
        names_per_job: int,
        deletes_per_job: int,
        merge_sources_max: int,
        retain_at: Callable[[L, int], None],
        delete_at: Callable[[L, int], None],
        now_ms: Callable[[], int],
        failed: Callable[[str, Exception], None],
    ) -> None:
        self._fs = fs
        self._now_ms = now_ms
        self._interval_ms = interval_ms
        self._names_per_job = names_per_job
        self._deletes_per_job = deletes_per_job
        self._merge_sources_max = merge_sources_max
        self._retain_at = retain_at
        self._delete_at = delete_at
        self._failed = failed
        self.files_deleted = 0

    async def retain(self, state: L, wall_ms: int) -> None:
        """Move the log start past expired segments, and ask to be called when the next one can expire.

        Raises StorageError, and RequestError or KvError if the new log start cannot be made durable.
        """
        driver, config = state.driver, state.config
        machine = driver.machine
        log_start, watermark = machine.log_start, machine.high_watermark
        by_size, swaps = config.retention_bytes != FOR_EVER, state.swaps_ended
        total = await self._count(state) if by_size else 0
        oldest, is_exact = await self._oldest(state, total, wall_ms)
        if by_size and state.is_swapped_since(swaps):
            # The total has the sources' bytes, and the listing the cleaned segment: nearly all would seem surplus.
            state.forget_count()
            self._retain_at(state, self._now_ms() + self._interval_ms)
            return
        rest = Retained(watermark, None, total - sum(segment.size for segment in oldest), None)
        new_start = expired(
            [*oldest, rest],
            now_ms=wall_ms,
            retention_ms=config.retention_ms,
            retention_bytes=config.retention_bytes,
            high_watermark=watermark,
            log_start=log_start,
        )
        left = [segment for segment in oldest if segment.end is None or segment.end > new_start]
        self._schedule_next(state, left, wall_ms, is_exact=is_exact)
        if new_start <= log_start or machine.state is not PartitionState.WRITE:
            return
        await driver.delete_before(new_start)
        if state.counted_to is not None:
            passed = [one for one in oldest if one.base < new_start and one.base <= state.counted_to.base]
            state.total -= sum(segment.size for segment in passed)
        state.log_start = new_start
        self.delete_later(state, new_start)
        if oldest[-1].base < new_start:
            self._retain_at(state, self._now_ms())  # all segments that were listed have expired: list further

    def delete_later(self, state: L, log_start: int) -> None:
        """Have the files below ``log_start`` deleted after ``file_delete_delay_ms``."""
        if len(state.pending_deletes) >= _PENDING_DELETES_MAX:
            state.pending_deletes.pop()  # the new entry includes its files, a little later
        state.pending_deletes.append((self._now_ms() + state.config.file_delete_delay_ms, log_start))
        self._delete_at(state, state.pending_deletes[0][0])

    def delete_leftovers(self, state: L) -> None:
        """Have the files below the log start deleted that the last deletion had to leave, if there are any."""
        if state.leftover is not None:
            state.leftover = None
            self.delete_later(state, state.log_start)

    def delete_held(self, state: L) -> None:
        """Have the files deleted now that waited for a merge, if there are any: the merge may be settled."""
        if state.held_below is not None:
            self._delete_at(state, 0)

    def _schedule_next(self, state: L, left: Sequence[Retained], wall_ms: int, *, is_exact: bool) -> None:
        """Ask for the next call by time: when the oldest segment in ``left`` expires.

        The size grows only when a segment is registered, which the janitor notices.  If ``is_exact`` is False the time
        of a file stands for its index, and the records may be much older; or the index is away.  It may be back within
        an hour.
        """
        retention_ms = state.config.retention_ms
        if retention_ms == FOR_EVER:
            return
        is_open = state.driver.machine.current is not None
        wait_ms = min(retention_ms, HOUR_MS if is_open else CHECK_MS)  # not open: its index is still to come
        if left and left[0].timestamp is not None:
            wait_ms = left[0].timestamp + retention_ms + 1 - wall_ms
            if not is_exact:
                wait_ms = min(wait_ms, HOUR_MS)
        elif left and not is_exact:
            wait_ms = HOUR_MS
        elif state.driver.machine.log_start == state.driver.machine.high_watermark:
            return  # empty: nothing to expire before something is registered
        self._retain_at(state, self._now_ms() + max(wait_ms, self._interval_ms))

    async def _oldest(self, state: RetentionState, total: int, wall_ms: int) -> tuple[list[Retained], bool]:
        """Return the closed segments from the log start on, up to and with the first that stays.

        The second result is False if the time of the last one is not from a whole index.  A segment whose index is away
        stays, and has no time.
        """
        machine, config = state.driver.machine, state.config
        found: list[Retained] = []
        read: list[SegmentName] = []
        names, is_exact = 0, True
        async with aclosing(walk(self._fs, state.driver.path)) as listing:
            async for listed in listing:
                names += 1
                if names > self._names_per_job:
                    break
                end = self._closed_end(state, listed)
                if not listed.is_live or (end is not None and end <= machine.log_start):
                    continue
                if end is None:
                    break
                by_time = config.retention_ms != FOR_EVER
                if by_time:
                    read.append(listed.name)
                timestamp, is_exact = await self._timestamp(state, listed) if by_time else (None, True)
                found.append(Retained(listed.name.base, end, listed.length, timestamp))
                total -= listed.length
                is_surplus = config.retention_bytes != FOR_EVER and total >= config.retention_bytes
                if not is_surplus and not is_expired(timestamp, wall_ms, config.retention_ms):
                    break
            if found and found[-1].timestamp is None and not is_exact:  # the index is away
                read += await self._look_ahead(state, listing, wall_ms)
        if state.indexes is not None:
            state.indexes.keep([state.driver.path.idx(name) for name in read])
        return found, is_exact

    async def _look_ahead(
        self, state: RetentionState, listing: AsyncIterator[ListedSegment], wall_ms: int
    ) -> list[SegmentName]:
        """Read the indexes behind an index that is away, up to the first readable index; return their segments.

        Only of files that would expire by their times.  More and more are read at once: a failing read takes long.
        Raises StorageError.
        """
        ahead: list[ListedSegment] = []
        async for listed in listing:
            if not listed.is_live:
                continue
            is_old = is_expired(listed.modified_ms, wall_ms, state.config.retention_ms)
            if self._closed_end(state, listed) is None or not is_old or len(ahead) == AHEAD_MAX:
                break
            ahead.append(listed)
        done, reads = 0, self._indexes(state)
        while done < len(ahead):
            part = ahead[done : 2 * done + 1]
            done += len(part)
            outcomes = await asyncio.gather(*(reads.read(one.name) for one in part), return_exceptions=True)
            for outcome in outcomes:
                if isinstance(outcome, BaseException):
                    raise outcome
            if not all(isinstance(outcome, Unread) for outcome in outcomes):
                break
        return [listed.name for listed in ahead[:done]]

    @staticmethod
    def _closed_end(state: RetentionState, listed: ListedSegment) -> int | None:
        """Return the offset where the segment ends; None while it is, or may be, open.

        The newest segment ends at the watermark once it has an index and no segment is open.  HDFS reports an open
        file's creation as its time, so a file that was left open does not show how young its records are.
        """
        machine = state.driver.machine
        if listed.end is not None:
            return None if _may_be_open(state, listed) else listed.end
        is_closed = listed.has_idx and machine.current is None
        return machine.high_watermark if is_closed else None

    def _indexes(self, state: RetentionState) -> IndexReads:
        if state.indexes is None:
            state.indexes = IndexReads(self._fs, state.driver.path, self._now_ms, self._failed)
        return state.indexes

    async def _timestamp(self, state: RetentionState, listed: ListedSegment) -> tuple[int | None, bool]:
        """Return Kafka's ``largestTimestamp`` in milliseconds, and whether it is from an index of the whole file.

        It is the records' largest, else the file's time; None while the blocks of the index are away.  Records may be
        younger than their file, by their timestamps.  The index of an interrupted merge covers the oldest part of its
        file; the file is younger than all parts.
        """
        if not listed.has_idx:
            return listed.modified_ms, False
        checkpoint = await self._indexes(state).read(listed.name)
        if isinstance(checkpoint, Unread):
            return None if 0 < checkpoint.looks < AWAY_LOOKS else listed.modified_ms, False
        timestamp = largest_timestamp(checkpoint, listed.modified_ms)
        is_whole = checkpoint.position >= listed.length
        return timestamp if is_whole else max(timestamp, listed.modified_ms), is_whole

    async def _count(self, state: RetentionState) -> int:
        """Return the bytes from the log start on, with the segment being written.

        Lists only files that are new since the last count.
        """
        machine = state.driver.machine
        if machine.log_start != state.log_start:  # DeleteRecords
            state.forget_count()
        counted_to, total, opened = state.counted_to, state.total, 0
        opened_names = machine.open_names
        async with aclosing(walk(self._fs, state.driver.path, counted_to)) as listing:
            async for listed in listing:
                is_below = listed.end is not None and listed.end <= machine.log_start
                if not listed.is_live or is_below or listed.name == state.counted_to:
                    continue
                if listed.name in opened_names or listed.end is None or opened:
                    opened += listed.length  # a lower bound; counted for good when it is closed
                else:
                    counted_to, total = listed.name, total + listed.length
        state.counted_to, state.total = counted_to, total
        current = machine.current
        return total + max(opened, current.flushed if current is not None else 0)

    async def delete(self, state: L, wall_ms: int) -> None:
        """Delete the files below a log start that is due, once it is durable and the ownership is proven.

        Raises StorageError, KvError, RequestError; the deletion is then due again.
        """
        now_ms = self._now_ms()
        log_start, state.held_below = -1 if state.held_below is None else state.held_below, None
        while state.pending_deletes and state.pending_deletes[0][0] <= now_ms:
            log_start = state.pending_deletes.popleft()[1]  # a later log start is never an earlier offset
        if state.pending_deletes:
            self._delete_at(state, state.pending_deletes[0][0])
        if log_start < 0:
            return
        try:
            await state.driver.delete_before(log_start)
            await self._delete_below(state, log_start)
        except BaseException:
            state.pending_deletes.appendleft((now_ms, log_start))
            raise

    async def _delete_below(self, state: L, log_start: int) -> None:
        # Before the files: the append of a merge whose draft is gone is over, and shows in the listing of the files.
        targets = await targets_below(self._fs, state.driver.path.folder, log_start)
        # A file that may be open is never deleted: its writer would go on being acknowledged.
        below, is_more, state.leftover = await find_deletable(
            self._fs, state.driver.path, log_start, self._deletes_per_job, partial(_may_be_open, state)
        )
        for listed in below:
            if listed.name in targets and await self._may_gain(state, listed.name, log_start):
                is_more, state.held_below = False, log_start
                self._delete_at(state, self._now_ms() + CHECK_MS)  # no change of the record ends the wait
                break
            # The index first: a log without one is scanned, an index without a log stays as garbage.
            await self._fs.delete(state.driver.path.idx(listed.name))
            self.files_deleted += await self._fs.delete(state.driver.path.log(listed.name))
        if is_more:
            state.pending_deletes.appendleft((0, log_start))
            self._delete_at(state, 0)

    async def _may_gain(self, state: L, target: SegmentName, log_start: int) -> bool:
        """Return whether a merge that is still to come may append records from the log start on to this file.

        Its deletion would take them along.  Raises StorageError.
        """
        floor = min((entry.name.order for entry in state.driver.machine.record.segments), default=None)
        path, most = state.driver.path, self._merge_sources_max
        return await may_gain(self._fs, path, target, log_start, floor=floor, most=most)


def _may_be_open(state: RetentionState, listed: ListedSegment) -> bool:
    return not listed.has_idx and listed.name in state.driver.machine.open_names


def largest_timestamp(index: Checkpoint, modified_ms: int) -> int:
    """Return Kafka's ``largestTimestamp`` of a segment with this index; ``modified_ms``: the time of its file.

    The file's time stands for records without timestamps.  For a cleaned file, it is the time of the last source.
    """
    if index.max_timestamp >= 0:
        return index.max_timestamp
    cleaned = index.cleaned
    return cleaned.modified_ms if cleaned is not None and cleaned.modified_ms >= 0 else modified_ms

"""Indexes of closed segments that are written after the partition has changed hands.

A partition that changes hands acknowledges nothing meanwhile, and an index is one more file to create. So the old owner
puts the index into its release note (``broker.partition.release``), and writes it to storage ``BEHIND_MS`` later, when
the new owner has opened the partition. The new owner checks after ``LOOK_MS`` whether that was done, since the old one
may have died. In between readers scan the segment, as they do while it is open.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Protocol

from bmq.core.aio.backoff import Backoff
from bmq.core.aio.byte_budget import ByteBudget
from bmq.core.aio.subscribers import no_op
from bmq.core.aio.tasks import OwnedTasks
from bmq.core.aio.timers import TimerHeap
from bmq.core.logging.fields import Report
from bmq.core.model import SegmentName
from bmq.storage.filesystem import NoSuchFile, StorageError, Unsupported
from bmq.storage.layout import PartitionPath

BEHIND_MS = 500
"""Time from the release to the old owner's write of the index."""
LOOK_MS = 10_000
"""Time from the takeover to the new owner's check for the index."""
BYTES_MAX = 16 << 20
"""Most bytes of indexes that wait. Past it an index is written before its partition is released, and the new owner does
not check for it.
"""
ATTEMPTS = 3
"""Attempts to write one index at once; then the failure is reported, and pauses begin: readers scan the segment."""
PAUSES_MS = Backoff(LOOK_MS, 30 * LOOK_MS)
"""Pauses between attempts while storage does not take an index."""


class IndexFiles(Protocol):
    """The indexes of one partition.  Calls raise StorageError.

    The class is ``broker.files.segment_files.SegmentFiles``; its module imports this module.
    """

    path: PartitionPath

    async def lacks_idx(self, name: SegmentName, length: int) -> bool:
        """Return whether the segment is still ``length`` bytes long, without an index.  Raises NoSuchFile."""

    async def write_encoded_idx(self, name: SegmentName, data: bytes) -> None:
        """Write the index of a segment."""


class _Late:
    __slots__ = ("data", "due_ms", "ended", "files", "length", "name")

    def __init__(
        self,
        files: IndexFiles,
        name: SegmentName,
        length: int,
        data: bytes,
        due_ms: int,
        ended: Callable[[], None],
    ) -> None:
        self.files = files
        self.name = name
        self.length = length
        self.data = data
        self.due_ms = due_ms
        self.ended = ended


class DeferredIndexes:
    """Deferred indexes of one broker. While none waits there is neither a task nor a timer.

    ``turns`` bounds the indexes that are written at once.
    """

    def __init__(self, timers: TimerHeap, now_ms: Callable[[], int], report: Report, turns: asyncio.Semaphore) -> None:
        self._timers = timers
        self._now_ms = now_ms
        self._report = report
        self._waiting: dict[_Late, None] = {}
        self._tasks = OwnedTasks()
        self._turns = turns
        self._budget = ByteBudget(BYTES_MAX)
        self._is_finishing = asyncio.Event()

    def __repr__(self) -> str:
        return f"<DeferredIndexes {len(self)}, {self._budget.used} bytes>"

    def __len__(self) -> int:
        return len(self._waiting) + len(self._tasks)

    @property
    def has_room(self) -> bool:
        """True while fewer than ``BYTES_MAX`` bytes wait: one more index may be deferred."""
        return self._budget.has_room

    def add(
        self,
        files: IndexFiles,
        name: SegmentName,
        length: int,
        data: bytes,
        *,
        after_ms: int,
        ended: Callable[[], None] = no_op,
    ) -> None:
        """Write the index ``data`` of a closed segment after ``after_ms``, if the segment has none by then.

        Does nothing then if the segment is gone, or no longer ``length`` bytes long. Calls ``ended`` once no more work
        is due on the index.
        """
        late = _Late(files, name, length, data, self._now_ms() + after_ms, ended)
        self._budget.take(len(data))
        self._waiting[late] = None
        self._timers.at(late.due_ms, lambda: self._begin(late))

    def _begin(self, late: _Late) -> None:
        if late not in self._waiting:
            return
        del self._waiting[late]
        self._tasks.start(self._write(late), "deferred index")

    async def _write(self, late: _Late) -> None:
        failures = 0
        try:
            while not await self._is_done(late, failures):
                failures += 1
                if failures >= ATTEMPTS:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(PAUSES_MS.pause(failures - ATTEMPTS + 1) / 1000):
                            await self._is_finishing.wait()
        finally:
            self._budget.give_back(len(late.data))
        late.ended()

    async def _is_done(self, late: _Late, failures: int) -> bool:
        """Write the index if the segment still lacks it; return whether no more work is due on it."""
        try:
            async with self._turns:  # held across the writing on purpose: it bounds how many run at once
                if await late.files.lacks_idx(late.name, late.length):
                    await late.files.write_encoded_idx(late.name, late.data)
            return True
        except NoSuchFile:
            return True  # deleted, or merged into its neighbour
        except StorageError as error:
            if failures + 1 == ATTEMPTS:
                self._report(
                    "could not write the index of a segment; readers scan the segment",
                    **late.files.path.log_fields,
                    path=late.files.path.idx(late.name),
                    error=repr(error),
                )
            is_last = isinstance(error, Unsupported) or self._is_finishing.is_set()
            return is_last and failures + 1 >= ATTEMPTS

    async def finish(self) -> None:
        """Write every index that waits, at shutdown.

        First waits for those due within ``BEHIND_MS``, until their time: new owners are still opening these partitions.
        Ends after ``ATTEMPTS`` attempts if storage does not take an index.
        """
        due = [late.due_ms - self._now_ms() for late in self._waiting]
        soon = [each for each in due if each <= BEHIND_MS]
        if soon:
            await asyncio.sleep(max(0, *soon) / 1000)
        self._is_finishing.set()
        for late in list(self._waiting):
            self._begin(late)
        await self._tasks.finish()

    async def abandon(self) -> None:
        """Drop every index that waits: storage does not take them. The segments' present owners check for them."""
        self._waiting.clear()
        await self._tasks.close()

"""Indexes of closed segments that are written when there is time for it.

A partition that changes hands acknowledges nothing meanwhile, and an index costs a file of its own on storage.  So its
old owner hands the index over with its word (``broker.partition.release``), and writes it when the new one has opened
the partition (``BEHIND_MS``); the new one looks later whether that was done (``LOOK_MS``), since the old one may have
died. In between readers scan the segment, as they do while it is open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from bmq.broker.files.flush_scheduler import Alarms
from bmq.core.logging.fields import Report
from bmq.core.model import SegmentName
from bmq.storage.filesystem import NoSuchFile, StorageError

if TYPE_CHECKING:
    from bmq.broker.files.segment_files import SegmentFiles

BEHIND_MS = 500
LOOK_MS = 10_000
PARALLEL = 4
"""Written at once: nobody waits for them."""
BYTES_MAX = 16 << 20
"""Of all that wait; past it indexes are written before their partitions are let go of, and nobody looks later."""
ATTEMPTS = 3


class _Late:
    __slots__ = ("data", "due_ms", "files", "length", "name")

    def __init__(self, files: SegmentFiles, name: SegmentName, length: int, data: bytes, due_ms: int) -> None:
        self.files = files
        self.name = name
        self.length = length
        self.data = data
        self.due_ms = due_ms


class DeferredIndexes:
    """One broker's.  Without any waiting it has neither task nor timer."""

    def __init__(self, alarms: Alarms, now_ms: Callable[[], int], report: Report) -> None:
        self._alarms = alarms
        self._now_ms = now_ms
        self._report = report
        self._waiting: dict[_Late, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.turns = asyncio.Semaphore(PARALLEL)
        """One is held by each that is written."""
        self._bytes = 0

    def __repr__(self) -> str:
        return f"<LateIndexes {len(self)}, {self._bytes} bytes>"

    def __len__(self) -> int:
        return len(self._waiting) + len(self._tasks)

    @property
    def has_room(self) -> bool:
        return self._bytes < BYTES_MAX

    def add(self, files: SegmentFiles, name: SegmentName, length: int, data: bytes, *, after_ms: int) -> None:
        """See that the closed segment, of ``length`` bytes, has its index in a while, if it is still there then."""
        late = _Late(files, name, length, data, self._now_ms() + after_ms)
        self._bytes += len(data)
        self._waiting[late] = None
        self._alarms.at(late.due_ms, lambda: self._begin(late))

    def _begin(self, late: _Late) -> None:
        if late not in self._waiting:
            return
        del self._waiting[late]
        task = asyncio.get_running_loop().create_task(self._write(late))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            asyncio.get_running_loop().call_exception_handler(
                {"message": "writing an index failed", "exception": task.exception(), "task": task}
            )

    async def _write(self, late: _Late) -> None:
        try:
            async with self.turns:  # held across the writing on purpose: it bounds how many run at once
                await self._try(late)
        finally:
            self._bytes -= len(late.data)

    async def _try(self, late: _Late) -> None:
        for attempt in range(ATTEMPTS):
            try:
                if await late.files.lacks_idx(late.name, late.length):
                    await late.files.write_encoded_idx(late.name, late.data)
                return
            except NoSuchFile:
                return  # deleted meanwhile, or joined to its neighbour
            except StorageError as error:
                if attempt + 1 == ATTEMPTS:
                    path = late.files.path
                    self._report(
                        "an index is not written", **path.log_fields, path=path.idx(late.name), error=repr(error)
                    )

    async def finish(self) -> None:
        """Write what waits: what is due soon in its time, since new owners are opening what we let go of."""
        due = [late.due_ms - self._now_ms() for late in self._waiting]
        soon = [each for each in due if each <= BEHIND_MS]
        if soon:
            await asyncio.sleep(max(0, *soon) / 1000)
        for late in list(self._waiting):
            self._begin(late)
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def abandon(self) -> None:
        """Storage does not let us: whoever owns the segments now looks himself."""
        self._waiting.clear()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

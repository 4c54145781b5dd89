"""First files of partitions that are about to move here, created while the old owner closes its own, or is fenced.

Creating a file takes several round trips to storage, and the first batch would wait for it. A file is created ahead,
under the epoch that this broker is about to claim, only if a batch will come. So either a request waits for the
partition already, or its owner has died with a segment open. It is a spare like any other. A file that is not taken is
closed and deleted; the janitor of a later owner removes the files of a dead process. Each has its place under the
broker's bound (``broker.files.open_file_limit``), and none is created while another file waits for a place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from bmq.broker import events as ev
from bmq.broker.files.open_file_limit import OpenFileLimit
from bmq.broker.files.unused_files import remove_unused
from bmq.core.aio.tasks import OwnedTasks
from bmq.core.aio.timers import TimerHeap
from bmq.storage.filesystem import Appender, FileSystem, OutOfSpace, StorageError
from bmq.storage.layout import PartitionPath

SERIAL = 0
"""Serial number in the name of such a spare: a partition numbers its own from 1."""
CLOSE_S = 10.0
"""Limit of closing, and of deleting, an unused file, in seconds."""

Create = Callable[[ev.CreateSpare], Awaitable[Appender]]


class _Made:
    __slots__ = ("asked", "asked_ms", "task")

    def __init__(self, asked: ev.CreateSpare, asked_ms: int, task: asyncio.Task[Appender]) -> None:
        self.asked = asked
        self.asked_ms = asked_ms
        self.task = task


class PrecreatedSegments:
    """A broker's files that were created ahead: at most ``most`` at once, and every file for at most ``keep_ms``."""

    def __init__(
        self,
        fs: FileSystem,
        open_files: OpenFileLimit,
        timers: TimerHeap,
        now_ms: Callable[[], int],
        *,
        most: int,
        keep_ms: int,
    ) -> None:
        self._fs = fs
        self._open_files = open_files
        self._timers = timers
        self._now_ms = now_ms
        self._most = most
        self._keep_ms = keep_ms
        self._made: dict[PartitionPath, _Made] = {}
        self._dropping = OwnedTasks()

    def __repr__(self) -> str:
        return f"<PrecreatedSegments {len(self._made)}, {len(self._dropping)} being dropped>"

    def __len__(self) -> int:
        return len(self._made)

    def make(self, path: PartitionPath, asked: ev.CreateSpare, create: Create) -> None:
        """Begin to create a file, unless the partition has one, there are ``most``, or no place is free."""
        if (
            path in self._made
            or len(self._made) + len(self._dropping) >= self._most
            or not self._open_files.try_enter()
        ):
            return
        now_ms = self._now_ms()
        task = asyncio.get_running_loop().create_task(self._create(create(asked)))
        made = self._made[path] = _Made(asked, now_ms, task)
        self._timers.at(now_ms + self._keep_ms, lambda: self._expire(path, made))

    async def take(self, path: PartitionPath, wanted: ev.CreateSpare) -> Appender | None:
        """Return the file that was made ahead, with its place, if it has the right epoch and a block at least as large.

        Returns None if there is none, or if it failed; the caller then creates one. Its checksum chunks may be wider
        than ``wanted`` says.
        """
        made = self._made.pop(path, None)
        if made is None:
            return None
        if made.asked.epoch != wanted.epoch or made.asked.block_bytes < wanted.block_bytes:
            self._drop(made)
            return None
        try:
            appender = await asyncio.shield(made.task)
        except StorageError:
            return None
        except asyncio.CancelledError:
            self._drop(made)
            raise
        if appender.failure is None:
            return appender
        self._drop(made)  # its pipeline broke before it was taken
        return None

    def forget(self, path: PartitionPath) -> None:
        """Close and delete the partition's file, if there is one: it will not be taken."""
        made = self._made.pop(path, None)
        if made is not None:
            self._drop(made)

    def drop_older(self, most: int, age_ms: int) -> int:
        """Drop at most ``most`` files that were not taken within ``age_ms``, to free their places; return how many."""
        before_ms = self._now_ms() - age_ms
        old = [path for path, made in self._made.items() if made.asked_ms <= before_ms and made.task.done()]
        for path in old[: max(most, 0)]:
            self.forget(path)
        return min(len(old), max(most, 0))

    async def close(self) -> None:
        """Remove every file, and wait until that has ended."""
        for path in list(self._made):
            self.forget(path)
        await self._dropping.finish()

    def _expire(self, path: PartitionPath, made: _Made) -> None:
        if self._made.get(path) is made:
            self.forget(path)

    def _drop(self, made: _Made) -> None:
        self._dropping.start(self._remove(made), "removal of a precreated segment")

    async def _create(self, creation: Awaitable[Appender]) -> Appender:
        try:
            appender = await creation
        except OutOfSpace as error:
            self._open_files.refused(str(error))
            raise
        except BaseException:
            self._open_files.failed()
            raise
        self._open_files.opened()
        return appender

    async def _remove(self, made: _Made) -> None:
        try:
            appender = await made.task
        except StorageError:
            return  # it was not created
        self._open_files.leaves()
        try:
            await remove_unused(self._fs, appender, CLOSE_S)
        finally:
            self._open_files.left()

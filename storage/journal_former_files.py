"""The files of a broker's journal before the open file: files left open are closed, and old files deleted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bmq.storage import layout
from bmq.storage.filesystem import FileSystem, Lease, NoSuchFile, StorageError
from bmq.storage.journal import journal_numbers

_LEFT_MAX = 1_000
_SEAL_PARALLEL = 8
_DELETE_AGAIN_S = 1.0
"""The time from a deletion of old files that storage did not serve to the next try."""


class FormerFiles:
    """The former files of one journal.  ``on_deleted`` is called after each try to delete old ones."""

    def __init__(self, fs: FileSystem, incarnation: str, on_deleted: Callable[[], None]) -> None:
        self._fs = fs
        self._incarnation = incarnation
        self._on_deleted = on_deleted
        self._left: list[Lease] = []
        self._is_left = asyncio.Event()  # a file was left while no other waited to be sealed
        self._closed = ""  # the last file that was closed in order, with all its copies
        self._has_old = False  # there may be files that are to be deleted
        self._deletion: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<FormerFiles left={len(self._left)}{' to be deleted' if self._has_old else ''}>"

    def add_left(self, lease: Lease) -> None:
        """Add a file whose pipeline was given up: ``seal`` closes it."""
        if not self._left:
            self._is_left.set()
        self._left.append(lease)
        self._has_old = True
        del self._left[:-_LEFT_MAX]

    def add_closed(self, path: str) -> None:
        """Add a file that was closed in order, with all its copies: it is kept for its readers."""
        self._closed = path

    def add_old(self) -> None:
        """Note that another file was begun, so older files may be deleted."""
        self._has_old = True

    async def wait_left(self) -> None:
        """Wait until a file is left that ``seal`` has not tried, unless others wait for its next try."""
        await self._is_left.wait()

    async def seal(self, *, sync: bool) -> None:
        """Close the files that were left open.

        This process's lease would keep them open, and their blocks reserved, for as long as it lives.  A task that may
        take long calls it now and then.  Every file is tried once, a few files at a time; a file on a dead datanode
        takes minutes.  A file that cannot be closed is tried again by the next call.
        """
        self._is_left.clear()
        turns = asyncio.Semaphore(_SEAL_PARALLEL)

        async def seal(lease: Lease) -> None:
            async with turns:  # held across the fence on purpose: it bounds how many run at once
                try:
                    await self._fs.fence(lease, sync=sync)
                except NoSuchFile:
                    pass  # deleted as an old file
                except StorageError:
                    return
            if lease in self._left:
                self._left.remove(lease)

        async with asyncio.TaskGroup() as group:
            for lease in self._left:
                group.create_task(seal(lease))

    def delete_old(self, path: str, *, has_all_copies: bool) -> None:
        """Begin to delete the files before ``path``, the open one, except the newest: it may be being read.

        Once the open file has all its copies, only a file that was closed in order, with all of its own, is kept.
        Another may be on dead datanodes alone: it cannot be read then, and takeovers would wait for facts that the open
        file repeats.  Files after the open one are left from failed attempts: the next file that is begun repeats their
        content, and they are deleted with it.
        """
        if self._deletion is not None and self._deletion.done():
            self._deletion.result()
            self._deletion = None
        if self._has_old and self._deletion is None:
            self._has_old = False
            self._deletion = asyncio.get_running_loop().create_task(
                self._delete_before(path, has_all_copies), name="deletion of old journal files"
            )

    async def _delete_before(self, path: str, has_all_copies: bool) -> None:
        try:
            numbers = await journal_numbers(self._fs, self._incarnation)
            older = [old for n in numbers if (old := layout.journal(self._incarnation, n)) < path]
            kept = self._closed if has_all_copies else max(older, default="")
            for old in older:
                if old != kept:
                    await self._fs.delete(old)
        except StorageError:
            await asyncio.sleep(_DELETE_AGAIN_S)
            self._has_old = True
        finally:
            self._on_deleted()

    async def close(self) -> None:
        """End a deletion that is under way."""
        if self._deletion is not None:
            self._deletion.cancel()
            await asyncio.wait([self._deletion])

"""Open files of one partition, each with its place under the broker's bound (``broker.files.open_file_limit``)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from bmq.broker import events as ev
from bmq.broker.files.context import FileContext
from bmq.broker.files.segment_files import SegmentFiles, TooFewNodes, copies_of
from bmq.meta.ownership import SegmentEntry
from bmq.storage.filesystem import Appender, LeaseLost, OutOfSpace, PipelineFailed


class OpenFiles:
    """The open files of one partition, by spare path: the name under which a file was created stays its key here.

    A file that is being closed is no longer among them.
    """

    __slots__ = ("_context", "_files", "_segments", "_waits_since")

    def __init__(self, context: FileContext, segments: SegmentFiles) -> None:
        self._context = context
        self._segments = segments
        self._files: dict[str, Appender] = {}
        self._waits_since: float | None = None  # by the loop's clock; kept while storage refuses, so the turn is kept

    def __repr__(self) -> str:
        return f"<OpenFiles {sorted(self._files)}>"

    def __len__(self) -> int:
        return len(self._files)

    def has(self, spare: str) -> bool:
        """Return whether the file that was created as ``spare`` is open."""
        return spare in self._files

    def __getitem__(self, spare: str) -> Appender:
        return self._files[spare]

    async def create(self, effect: ev.CreateSpare) -> tuple[Appender, int]:
        """Return an open file and its block's bytes: a file created ahead, or a new file once a place is free.

        Raises TooFewNodes if it is on fewer datanodes than the waiting batch needs copies, or StorageError.
        """
        appender, block_bytes = await self._segments.take_first(effect), effect.block_bytes
        if appender is None:
            appender, block_bytes = await self._create(effect)
        copies = copies_of(appender)
        if copies < effect.copies:
            await self._drop(appender)
            raise TooFewNodes(f"{appender.lease.paths[0]}: {copies} of {effect.copies} nodes")
        self._files[appender.lease.paths[0]] = appender
        return appender, block_bytes

    async def _create(self, effect: ev.CreateSpare) -> tuple[Appender, int]:
        open_files = self._context.open_files
        since = await open_files.enter(self._waits_since)
        self._waits_since = None
        try:
            created = await self._create_in_its_place(effect)
        except OutOfSpace as error:
            self._waits_since = since
            open_files.refused(str(error))
            raise
        except BaseException:
            open_files.failed()
            raise
        open_files.opened()
        return created

    async def _create_in_its_place(self, effect: ev.CreateSpare) -> tuple[Appender, int]:
        """Create the file, with smaller and smaller blocks while storage has no room for a larger one."""
        context, least = self._context, effect.least_bytes or effect.block_bytes
        while True:
            size = context.block_ceiling.fit(effect.block_bytes, least, context.now_ms())
            try:
                return await self._segments.create(replace(effect, block_bytes=size)), size
            except OutOfSpace:
                context.block_ceiling.refused(size, context.now_ms())
                if size <= least:
                    raise

    async def close(self, entry: SegmentEntry) -> None:
        """Close the segment's file, or abort it after ``close_timeout_ms``, or when this call is cancelled.

        The pipeline has ended in any case. Raises StorageError if the file is not closed.
        """
        appender = self._files.pop(entry.spare, None)
        if appender is None:
            raise LeaseLost(f"{entry.spare}: its pipeline was given up")
        limit_s = self._context.config.close_timeout_ms / 1000
        self._context.open_files.leaves()
        try:
            async with asyncio.timeout(limit_s):
                await appender.close()
        except TimeoutError:
            appender.abort()
            raise PipelineFailed(f"{entry.spare}: not closed in {limit_s:g} s") from None
        except BaseException:
            appender.abort()
            raise
        finally:
            self._context.open_files.left()

    async def drop(self, entry: SegmentEntry) -> None:
        """Close and delete an unused file, also if it does not close; do nothing if it is not open any more."""
        appender = self._files.pop(entry.spare, None)
        if appender is not None:
            await self._drop(appender)

    async def _drop(self, appender: Appender) -> None:
        self._context.open_files.leaves()
        try:
            await self._segments.drop(appender)
        finally:
            self._context.open_files.left()

    def abort(self, entry: SegmentEntry) -> None:
        """Abort the segment's file without a call to storage, if it is open."""
        appender = self._files.pop(entry.spare, None)
        if appender is not None:
            self._abort(appender)

    def abort_all(self) -> None:
        """Abort every open file without a call to storage."""
        files, self._files = self._files, {}
        for appender in files.values():
            self._abort(appender)

    def _abort(self, appender: Appender) -> None:
        self._context.open_files.leaves()
        appender.abort()
        self._context.open_files.left()

"""Looks for the files of the segments that are written.

Who deletes or moves an open file does not stop its writer: datanodes do not ask the NameNode, and acknowledge bytes
that nobody will find.  So its name is looked up now and then.  When it is gone, the segment is given up like one whose
pipeline failed: what was not acknowledged is written to the next one, and the loss is reported.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from bmq.broker.partition import events as ev
from bmq.broker.partition.driver import PartitionDriver
from bmq.core.logging.fields import Report, fields
from bmq.core.model import SegmentName
from bmq.meta.kv import KvError
from bmq.storage.filesystem import StorageError

_log = logging.getLogger("bmq.broker.file_check")
AT_ONCE = 16


class FileCheck:
    """One broker's.  Costs a call for each segment that was flushed to since the last one, none for an idle one."""

    def __init__(self, every_ms: int, report: Report) -> None:
        self._every_ms = every_ms
        self._report = report
        self._looking: asyncio.Task[None] | None = None
        self._seen: dict[PartitionDriver, tuple[SegmentName, int, int]] = {}  # segment, flushed, when it was looked for

    def __repr__(self) -> str:
        return f"<FileCheck {len(self._seen)} segments>"

    def look(self, writers: Iterable[PartitionDriver], now_ms: int) -> None:
        """Begin to look for those that are due, unless the last look is still under way."""
        if self._looking is not None and not self._looking.done():
            return
        due = self._due(writers, now_ms)
        if due:
            self._looking = asyncio.get_running_loop().create_task(self._look_for_all(due), name="file check")

    async def close(self) -> None:
        """End the look that is under way."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    async def _look_for_all(self, due: list[PartitionDriver]) -> None:
        turns = asyncio.Semaphore(AT_ONCE)

        async def look_for(writer: PartitionDriver) -> None:
            async with turns:
                await self._look_for(writer)

        await asyncio.gather(*map(look_for, due))

    def _due(self, writers: Iterable[PartitionDriver], now_ms: int) -> list[PartitionDriver]:
        seen, self._seen = self._seen, {}
        due = []
        for writer in writers:
            segment = writer.partition.current
            if segment is None or not segment.flushed:
                continue
            name, flushed, looked_ms = seen.get(writer, (segment.entry.name, 0, segment.opened_ms))
            if name != segment.entry.name:
                flushed, looked_ms = 0, segment.opened_ms
            if segment.flushed > flushed and now_ms - looked_ms >= self._every_ms:
                flushed, looked_ms = segment.flushed, now_ms
                due.append(writer)
            self._seen[writer] = segment.entry.name, flushed, looked_ms
        return due

    async def _look_for(self, writer: PartitionDriver) -> None:
        """Twice, and only while the partition is ours: a successor may do with the file what it likes."""
        segment = writer.partition.current
        if segment is None:
            return
        entry = segment.entry
        try:
            if await writer.is_in_place(entry) or not await writer.is_ours() or await writer.is_in_place(entry):
                return
        except (StorageError, KvError) as error:
            _log.info("a partition's file is looked for later", extra=fields(**writer.path.log_fields, error=error))
            self._seen.pop(writer, None)
            return
        self._report(
            "a segment was deleted or moved by somebody while it was written, with %d flushed bytes (file id %s): if it"
            " was moved, move it back; going on in a new segment",
            segment.flushed,
            entry.file_id,
            **writer.path.log_fields,
            path=writer.path.log(entry.name),
        )
        writer.post(ev.SegmentFailed(entry.name, "its file was deleted or moved by somebody"))

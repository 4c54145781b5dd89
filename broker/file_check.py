"""Checks that the files of the segments that are written still exist.

Deleting or moving an open file does not stop its writer: datanodes do not ask the NameNode, and acknowledge bytes that
cannot be found any more.  So the file's name is looked up now and then.  When the file is gone, the segment is given up
as after a failed pipeline.  Bytes without acknowledgement are written to the next segment, and the loss is reported.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from bmq.broker import events as ev
from bmq.broker.context import OpenPartition
from bmq.core.aio.tasks import cancel_and_wait
from bmq.core.logging.fields import Report, fields
from bmq.core.model import SegmentName
from bmq.meta.kv import KvError
from bmq.storage.filesystem import StorageError

_log = logging.getLogger(__name__)
AT_ONCE = 16
"""Files that are looked up at once."""


class FileCheck:
    """One broker's check of its segments' files.

    A check costs a call to storage for every segment with a flush since its last check, and nothing for an idle
    segment.
    """

    def __init__(self, every_ms: int, report: Report) -> None:
        self._every_ms = every_ms
        self._report = report
        self._running: asyncio.Task[None] | None = None
        self._seen: dict[OpenPartition, tuple[SegmentName, int, int]] = {}  # segment, flushed bytes, time of check

    def __repr__(self) -> str:
        return f"<FileCheck {len(self._seen)} segments>"

    def check(self, drivers: Iterable[OpenPartition], now_ms: int) -> None:
        """Begin to check the segments that are due, unless the last check is still under way."""
        if self._running is not None and not self._running.done():
            return
        due = self._due(drivers, now_ms)
        if due:
            self._running = asyncio.get_running_loop().create_task(self._check_all(due), name="file check")

    async def close(self) -> None:
        """Cancel the check that is under way."""
        await cancel_and_wait(self._running)

    async def _check_all(self, due: list[OpenPartition]) -> None:
        turns = asyncio.Semaphore(AT_ONCE)

        async def check(driver: OpenPartition) -> None:
            async with turns:
                await self._check_file(driver)

        await asyncio.gather(*map(check, due))

    def _due(self, drivers: Iterable[OpenPartition], now_ms: int) -> list[OpenPartition]:
        seen, self._seen = self._seen, {}
        due = []
        for driver in drivers:
            segment = driver.machine.current
            if segment is None or not segment.flushed:
                continue
            name, flushed, checked_ms = seen.get(driver, (segment.entry.name, 0, segment.opened_ms))
            if name != segment.entry.name:
                flushed, checked_ms = 0, segment.opened_ms
            if segment.flushed > flushed and now_ms - checked_ms >= self._every_ms:
                flushed, checked_ms = segment.flushed, now_ms
                due.append(driver)
            self._seen[driver] = segment.entry.name, flushed, checked_ms
        return due

    async def _check_file(self, driver: OpenPartition) -> None:
        """Look the file up twice, and ask the store for the owner between: a successor may rightly have removed it."""
        segment = driver.machine.current
        if segment is None:
            return
        entry = segment.entry
        try:
            if await driver.is_in_place(entry) or not await driver.is_ours() or await driver.is_in_place(entry):
                return
        except (StorageError, KvError) as error:
            _log.info(
                "could not check that a segment's file exists, trying again later",
                extra=fields(**driver.path.log_fields, error=error),
            )
            self._seen.pop(driver, None)
            return
        self._report(
            "the file of a segment was deleted or moved while it was written, with %d flushed bytes (file id %s): if it"
            " was moved, move it back; going on in a new segment",
            segment.flushed,
            entry.file_id,
            **driver.path.log_fields,
            path=driver.path.log(entry.name),
        )
        driver.post(ev.SegmentFailed(entry.name, "its file was deleted or moved"))

"""Tells the NameNode how long open files are: one task a process, one call at a time.

Datanodes acknowledge, and the NameNode does not see it: while a block is written, it knows the length that it was told
last (DFSOutputStream's UPDATE_LENGTH).  An HDFS snapshot holds that much of an open file, and no more is left of one
that is deleted while it is open.  A segment may be open for days.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Protocol

from bmq.core.log_fields import fields
from bmq.storage.filesystem import StorageUnavailable

log = logging.getLogger(__name__)


class OpenFile(Protocol):
    """An open file whose NameNode may know less than was acknowledged."""

    async def tell_length(self) -> None:
        """Tell what was acknowledged since it was last told.  Raises StorageUnavailable if the NameNode is away."""
        ...


class LengthTeller:
    """Owns the task; ``close`` ends and awaits it.

    Files are told of one after another, so that a thousand cost the NameNode a thousand small calls in ``interval_s``
    and never a burst.  If it is away, the rest of the round is left: all of it is due again in the next.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._open: dict[OpenFile, None] = {}
        self._has_files = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"LengthTeller(files={len(self._open)})"

    def add(self, file: OpenFile) -> None:
        self._open[file] = None
        self._has_files.set()
        if self._task is None:
            self._task = asyncio.create_task(self._tell_for_ever(), name="tell the NameNode lengths of open files")

    def remove(self, file: OpenFile) -> None:
        self._open.pop(file, None)
        if not self._open:
            self._has_files.clear()

    async def tell_all(self) -> None:
        """Go once through the files that are open.  Raises StorageUnavailable with the first that cannot be told."""
        for file in list(self._open):
            if file in self._open:  # not closed meanwhile
                await file.tell_length()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def _tell_for_ever(self) -> None:
        while True:
            await self._has_files.wait()
            await asyncio.sleep(self._interval_s)
            try:
                await self.tell_all()
            except StorageUnavailable as error:
                log.warning(
                    "lengths of open files not told to the NameNode, trying again in %g s: a snapshot made now holds"
                    " less of them",
                    self._interval_s,
                    extra=fields(error=error),
                )

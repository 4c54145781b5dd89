"""Tells the NameNode how long open files are: one task a process, one call at a time.

Datanodes acknowledge, and the NameNode does not see it: while a block is written, it knows the length that it was told
last (DFSOutputStream's UPDATE_LENGTH).  An HDFS snapshot holds that much of an open file, and no more is left of one
that is deleted while it is open.  A segment may be open for days.
"""

from __future__ import annotations

import logging
from typing import Protocol

from bmq.core.logging.fields import fields
from bmq.storage.filesystem import StorageUnavailable
from bmq.storage.hdfs.open_file_task import OpenFileTask

log = logging.getLogger(__name__)


class OpenFile(Protocol):
    """An open file whose NameNode may know less than was acknowledged."""

    async def tell_length(self) -> None:
        """Tell what was acknowledged since it was last told.  Raises StorageUnavailable if the NameNode is away."""
        ...


class LengthTeller(OpenFileTask[OpenFile]):
    """Tells the lengths of all open files in each turn.

    Files are told of one after another, so that a thousand cost the NameNode a thousand small calls in ``interval_s``
    and never a burst.  If it is away, the rest of the round is left: all of it is due again in the next.
    """

    def __init__(self, interval_s: float) -> None:
        super().__init__("tell the NameNode lengths of open files", interval_s, self._tell)

    async def tell_all(self) -> None:
        """Go once through the files that are open.  Raises StorageUnavailable with the first that cannot be told."""
        for file in list(self.files):
            if file in self.files:  # not closed meanwhile
                await file.tell_length()

    async def _tell(self) -> None:
        try:
            await self.tell_all()
        except StorageUnavailable as error:
            log.warning(
                "lengths of open files not told to the NameNode, trying again in %g s: a snapshot made now holds"
                " less of them",
                self.interval_s,
                extra=fields(error=error),
            )

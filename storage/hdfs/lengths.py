"""The lengths of open files, sent to the NameNode by one task a process, one call at a time.

Datanodes acknowledge bytes without the NameNode: while a block is written, the NameNode has the length that was last
sent to it (DFSOutputStream's UPDATE_LENGTH).  An HDFS snapshot holds that much of an open file, and no more is left of
a file that is deleted while it is open.  A segment may be open for days.
"""

from __future__ import annotations

import logging
from typing import Protocol

from bmq.core.logging.fields import fields
from bmq.storage.filesystem import StorageUnavailable
from bmq.storage.hdfs.open_file_task import OpenFileTask

_log = logging.getLogger(__name__)


class GrowingFile(Protocol):
    """An open file, of which more may be acknowledged than the NameNode has.

    The class is ``storage.hdfs.appender.HdfsAppender``; its module imports this module, by way of the client's.
    """

    async def report_length(self) -> None:
        """Send the acknowledged length if it has grown.  Raises StorageUnavailable if the NameNode does not respond."""


class LengthReporter(OpenFileTask[GrowingFile]):
    """The task that sends the lengths of all open files, once in ``interval_s``.

    They are sent one after another, so that a thousand files cost the NameNode a thousand small calls in ``interval_s``
    and never a burst.  If the NameNode does not respond, the rest of the round is skipped: the next one sends all.
    """

    def __init__(self, interval_s: float) -> None:
        super().__init__("send the lengths of open files to the NameNode", interval_s, self._report)

    async def report_all(self) -> None:
        """Send the length of each open file.  Raises StorageUnavailable at the first that cannot be sent."""
        for file in list(self.files):
            if file in self.files:  # not closed meanwhile
                await file.report_length()

    async def _report(self) -> None:
        try:
            await self.report_all()
        except StorageUnavailable as error:
            _log.warning(
                "cannot send the lengths of open files to the NameNode, trying again in %g s: a snapshot made now holds"
                " less of them",
                self.interval_s,
                extra=fields(error=error),
            )

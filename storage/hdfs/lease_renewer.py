"""The renewal of this process's lease while it has files open: one task a holder, not one a file.

The lease is the holder's, not the file's (LeaseManager.java): one ``renewLease`` covers all of them.
"""

from __future__ import annotations

import logging

from bmq.core.logging.fields import fields
from bmq.storage.filesystem import StorageError
from bmq.storage.hdfs.namenode import NameNode
from bmq.storage.hdfs.open_file_task import OpenFileTask

_log = logging.getLogger(__name__)


class LeaseRenewer(OpenFileTask[int]):
    """The task that renews one holder's lease while files are open; these are named by their ids.

    A renewal that fails is tried again at the next turn.  If the lease is lost, the calls on its files raise LeaseLost
    or PipelineFailed.
    """

    def __init__(self, namenode: NameNode, holder: str, interval_s: float) -> None:
        super().__init__(f"renew the HDFS lease of {holder}", interval_s, self._renew)
        self._namenode = namenode
        self._holder = holder

    async def _renew(self) -> None:
        try:
            await self._namenode.renew_lease(self._holder)
        except StorageError as error:
            _log.warning(
                "HDFS lease not renewed, trying again in %g s",
                self.interval_s,
                extra=fields(member=self._holder, error=error),
            )

"""Keeps this process's lease alive while it has files open: one task a holder, not one a file.

The lease is the holder's, not the file's (LeaseManager.java): one ``renewLease`` covers all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from bmq.core.log_fields import fields
from bmq.storage.filesystem import StorageError
from bmq.storage.hdfs.namenode import NameNode

log = logging.getLogger(__name__)


class LeaseRenewer:
    """Owns the renewal task; ``close`` ends and awaits it.

    A renewal that fails is tried again at the next turn: losing the lease shows as LeaseLost or a broken pipeline
    where it matters, at the file.
    """

    def __init__(self, namenode: NameNode, holder: str, interval_s: float) -> None:
        self._namenode = namenode
        self._holder = holder
        self._interval_s = interval_s
        self._open_files: set[int] = set()
        self._has_files = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"LeaseRenewer({self._holder}, files={len(self._open_files)})"

    def add(self, file_id: int) -> None:
        self._open_files.add(file_id)
        self._has_files.set()
        if self._task is None:
            self._task = asyncio.create_task(self._renew_for_ever(), name=f"renew lease {self._holder}")

    def remove(self, file_id: int) -> None:
        self._open_files.discard(file_id)
        if not self._open_files:
            self._has_files.clear()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def _renew_for_ever(self) -> None:
        while True:
            await self._has_files.wait()
            await asyncio.sleep(self._interval_s)
            if not self._open_files:
                continue
            try:
                await self._namenode.renew_lease(self._holder)
            except StorageError as error:
                log.warning(
                    "HDFS lease not renewed, trying again in %g s",
                    self._interval_s,
                    extra=fields(member=self._holder, error=error),
                )
            except Exception:  # without its leases this process loses every open file after 20 minutes
                log.exception(
                    "bug: HDFS lease not renewed, trying again in %g s",
                    self._interval_s,
                    extra=fields(member=self._holder),
                )

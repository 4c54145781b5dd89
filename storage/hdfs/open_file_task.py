"""A periodic task for all files that a process has open on HDFS."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from bmq.core.logging.fields import fields

_log = logging.getLogger(__name__)
F = TypeVar("F")


class OpenFileTask(Generic[F]):
    """A task that runs ``step`` every ``interval_s`` while ``files`` has any; ``close`` ends and awaits it.

    An exception of ``step`` is logged, and does not end the task: its next turn comes.  ``name`` is an imperative
    ("renew the lease"), which that log line quotes.
    """

    def __init__(self, name: str, interval_s: float, step: Callable[[], Awaitable[None]]) -> None:
        self.files: dict[F, None] = {}
        """The open files, in the order in which they were added."""
        self.interval_s = interval_s
        self._name = name
        self._step = step
        self._has_files = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<OpenFileTask {self._name!r} files={len(self.files)}>"

    def add(self, file: F) -> None:
        """Count the file as open.  The first one starts the task."""
        self.files[file] = None
        self._has_files.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=self._name)

    def remove(self, file: F) -> None:
        """Stop counting the file as open.  Idempotent."""
        self.files.pop(file, None)
        if not self.files:
            self._has_files.clear()

    async def close(self) -> None:
        """Cancel the task, and return when it has ended.  Idempotent."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def _run(self) -> None:
        while True:
            await self._has_files.wait()
            await asyncio.sleep(self.interval_s)
            if not self.files:
                continue
            try:
                await self._step()
            except Exception as error:  # noqa: BLE001  # no other task does this: leases would end, snapshots miss records
                _log.exception(
                    "bug: cannot %s, trying again in %g s", self._name, self.interval_s, extra=fields(error=repr(error))
                )

"""An event loop for storage, one a process, in a thread of its own, and the file systems opened on it.

Spark calls Python synchronously, starts worker processes by fork and reuses them.  So the loop is made at its first
use, and made again in a child.
"""

from __future__ import annotations

import asyncio
import os
import threading
import uuid
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from bmq.core.aio.lru import LruCache
from bmq.spark.planning.driver_login import driver_login
from bmq.storage.filesystem import FileSystem
from bmq.storage.open import open_filesystem

if TYPE_CHECKING:
    from bmq.storage.hdfs.delegation_token import StorageToken

ROOTS_MAX = 8
"""File systems kept open.  A process reads one or two roots; a stream's root is opened again for each token."""

T = TypeVar("T")


class StorageLoop:
    """A thread that runs one event loop as long as the process lives."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._roots: LruCache[tuple[str, bytes], FileSystem] = LruCache(ROOTS_MAX)
        self._opening = asyncio.Lock()
        threading.Thread(target=self._loop.run_forever, name="bmq-storage", daemon=True).start()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start ``work`` on the loop and return its future; cancelling the future cancels ``work``."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` to its end and return its result; if the caller is interrupted, ``work`` is cancelled."""
        future = self.submit(work)
        try:
            return future.result()
        finally:
            future.cancel()

    def filesystem(self, root: str, *, must_exist: bool = True, token: StorageToken | None = None) -> FileSystem:
        """Return the file system of ``root``, opened once for each token.

        An executor has the ``token`` of its partition.  Without a token the log-in is the driver's, as a server's.
        Raises what ``open_filesystem`` raises.
        """
        return self.run(self._filesystem(root, must_exist=must_exist, token=token))

    async def _filesystem(self, root: str, *, must_exist: bool, token: StorageToken | None) -> FileSystem:
        key = root, b"" if token is None else token.token.identifier
        async with self._opening:  # held across the opening on purpose: other callers wait for the same root
            fs = self._roots.get(key)
            if fs is None:
                holder = f"spark-{uuid.uuid4().hex[:16]}"
                if token is not None:
                    fs = await open_filesystem(root, holder=holder, must_exist=must_exist, token=token)
                else:
                    own = driver_login(root)
                    fs = await open_filesystem(
                        root,
                        holder=holder,
                        must_exist=must_exist,
                        hadoop_conf_dir=own.hadoop_conf_dir,
                        hdfs_login=own.login,
                    )
                for _, unused in self._roots.put(key, fs):
                    await unused.close()
            return fs


_current: StorageLoop | None = None
_making = threading.Lock()


def storage_loop() -> StorageLoop:
    """Return the loop of this process."""
    global _current
    with _making:
        if _current is None or _current.pid != os.getpid():
            _current = StorageLoop()
        return _current

"""The memory HDFS's client in one process: a ``FileSystem`` whose process can crash and pause."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import TypeVar

from bmq.storage.filesystem import (
    BlockPlace,
    CorruptData,
    CreateOptions,
    FileStatus,
    Lease,
    PipelineFailed,
    StorageError,
    StorageUnavailable,
)
from bmq.storage.memory.appender import MemoryAppender
from bmq.storage.memory.storage import MemoryStorage, Opened

T = TypeVar("T")

FENCE_ATTEMPTS = 4
_DEFAULT = CreateOptions()


class MemoryFileSystem:
    """The ``FileSystem`` of the memory HDFS (``bmq.storage.filesystem``).

    A call is a request under way, not a step of its caller: it may still be done if the caller is cancelled or its
    process dies.
    """

    def __init__(self, storage: MemoryStorage, holder: str) -> None:
        self.storage = storage
        self.is_crashed = False
        self._holder = holder
        self._is_paused = False
        self._resumed = asyncio.Event()
        self._never = asyncio.Event()

    @property
    def url(self) -> str:
        return "memory:"

    @property
    def holder(self) -> str:
        return self._holder

    def __repr__(self) -> str:
        state = "crashed" if self.is_crashed else "paused" if self._is_paused else "running"
        return f"<MemoryFileSystem {self._holder} {state}>"

    # The process

    @property
    def is_running(self) -> bool:
        """False once the process has crashed, and while it is paused."""
        return not (self.is_crashed or self._is_paused)

    def crash(self) -> None:
        """Kill the process (``kill -9``): none of its calls ever returns, but requests under way may arrive.

        Its files stay open.
        """
        self.is_crashed = True
        for appender in self._appenders():
            appender.process_died()

    def pause(self) -> None:
        """Stop the process (SIGSTOP): storage serves the requests under way; responses and new calls wait."""
        self._is_paused = True
        self._resumed.clear()

    def resume(self) -> None:
        """Continue the paused process (SIGCONT)."""
        self._is_paused = False
        self._resumed.set()
        if not self.is_crashed:
            for appender in self._appenders():
                appender.process_resumed()

    async def awake(self) -> None:
        """Wait until the process runs; never return once it has crashed."""
        while self._is_paused and not self.is_crashed:
            await self._resumed.wait()
        if self.is_crashed:
            await self._never.wait()

    def _appenders(self) -> list[MemoryAppender]:
        return [appender for appender in self.storage.appenders if appender.fs is self]

    # Calls

    async def call(self, operation: Callable[[], T], *, writes: bool = True) -> T:
        """Send ``operation`` to the NameNode and return its response.  ``writes``: it is refused in safe mode."""
        await self.awake()
        loop = asyncio.get_running_loop()
        response: asyncio.Future[T] = loop.create_future()

        def arrive(*, waited: bool = False) -> None:
            wait_s = self.storage.wait_s(writes=writes)
            if wait_s > 0 and (waited or self.storage.chance(self.storage.faults.waits_for_namenode)):
                loop.call_later(wait_s, lambda: arrive(waited=True))
                return
            outcome: T | Exception
            try:
                if self.is_crashed and self.storage.chance(0.5):
                    raise StorageUnavailable("the request was lost with its sender")
                if wait_s > 0:
                    raise StorageUnavailable(f"the NameNode is down or in safe mode for {wait_s:.1f} s")
                outcome = self.storage.serve(operation)
            except Exception as error:  # noqa: BLE001  # the caller gets it
                outcome = error
            self._later(lambda: _settle(response, outcome))

        self._later(arrive)
        try:
            outcome = await response
        except StorageError:
            await self.awake()
            raise
        await self.awake()
        return outcome

    def _later(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` after one leg of a call; in the next turn of the loop at the earliest."""
        loop = asyncio.get_running_loop()
        delay_s = self.storage.draw(self.storage.faults.call_s)
        if delay_s > 0:
            loop.call_later(delay_s, callback)
        else:
            loop.call_soon(callback)

    async def _hop(self) -> None:
        """Wait for one leg to a datanode."""
        await asyncio.sleep(self.storage.draw(self.storage.faults.call_s))
        await self.awake()

    async def create(self, path: str, options: CreateOptions = _DEFAULT) -> MemoryAppender:
        return self._open(await self.call(lambda: self.storage.create(path, self._holder, options)), path)

    async def append(self, path: str, options: CreateOptions = _DEFAULT) -> MemoryAppender:
        return self._open(await self.call(lambda: self.storage.append(path, self._holder)), path)

    def _open(self, opened: Opened, path: str) -> MemoryAppender:
        if dead := [replica.node.name for replica in opened.replicas if not replica.node.is_up]:
            raise PipelineFailed(f"{path}: {', '.join(dead)} died", dead)  # while the response was under way
        return MemoryAppender(self, opened, path)

    async def fence(self, lease: Lease, *, sync: bool = False) -> int:
        for _ in range(FENCE_ATTEMPTS):
            length = await self._take_over(lease, sync=sync)
            if length is not None:
                return length
        raise StorageUnavailable(f"{lease.paths}: no datanode of it responds, or others fence it too")

    async def _take_over(self, lease: Lease, *, sync: bool) -> int | None:
        """Fence once, and return the final length; None if the writer is not stopped, or another fence came between."""
        storage = self.storage
        fence = await self.call(lambda: storage.begin_fence(lease))
        if fence.length is not None:
            return fence.length
        recovery = storage.chance(storage.faults.lease_recovery) or fence.file.needs_recovery
        if recovery:
            await asyncio.sleep(storage.draw(storage.faults.lease_recovery_s))
            await self.awake()
        for replica in fence.file.replicas.copy():
            await self._hop()
            storage.stop_writer(fence, replica, recovery=recovery)
        return await self.call(lambda: storage.commit_fence(fence, recovery=recovery, sync=sync))

    async def read(self, path: str, position: int, length: int) -> bytes:
        assert min(position, length) >= 0, f"read of {length} from {position}"

        def operation() -> bytes:
            file = self.storage.namespace.file(path)
            if not file.is_open and len(file.data) < file.length:
                raise CorruptData(f"{path}: its replicas are shorter than the NameNode knows")
            end = position + length
            if reachable := file.reachable:
                end = min(end, self.storage.rng.choice(reachable).length)
            elif file.replicas:
                raise StorageUnavailable(f"{path}: no datanode of it responds")
            else:
                end = 0
            with memoryview(file.data) as view:
                return bytes(view[position:end])

        return await self.call(operation, writes=False)

    async def status(self, path: str) -> FileStatus:
        return await self.call(lambda: self.storage.status(path), writes=False)

    async def visible_length(self, path: str) -> int:
        def operation() -> int:
            file = self.storage.namespace.file(path)
            if not file.is_open:
                return file.length
            if file.replicas and not file.reachable:
                raise StorageUnavailable(f"{path}: no datanode of it responds")
            return min((replica.length for replica in file.reachable), default=0)

        return await self.call(operation, writes=False)

    async def list(self, path: str, *, after: str = "") -> AsyncIterator[FileStatus]:
        while page := await self.call(partial(self.storage.list_page, path, after), writes=False):
            for status in page:
                yield status
            after = page[-1].path.rpartition("/")[2]

    async def rename(self, source: str, target: str) -> None:
        await self.call(lambda: self.storage.namespace.move(source, target))

    async def replace(self, source: str, target: str) -> None:
        await self.call(lambda: self.storage.replace(source, target))

    async def delete(self, path: str, *, recursive: bool = False) -> bool:
        return await self.call(lambda: self.storage.delete(path, recursive=recursive))

    async def concat(self, target: str, sources: Sequence[str]) -> None:
        await self.call(lambda: self.storage.concat(target, sources))

    async def probe(self, node: str) -> bool:
        await self._hop()
        return node in self.storage.datanodes and self.storage.datanodes[node].is_up

    async def replicas_max(self) -> int:
        return await self.call(lambda: sum(node.is_up for node in self.storage.datanodes.values()), writes=False)

    async def block_places(self, path: str) -> Sequence[BlockPlace]:
        return await self.call(lambda: self.storage.block_places(path), writes=False)

    async def copies(self, path: str) -> int:
        return await self.call(lambda: self.storage.copies(path), writes=False)

    async def close(self) -> None:
        """Abort the open files, as the end of the process would, without a call to storage."""
        for appender in self._appenders():
            appender.abort()


def _settle(response: asyncio.Future[T], outcome: T | Exception) -> None:
    if response.done():
        return  # its caller was cancelled
    if isinstance(outcome, Exception):
        response.set_exception(outcome)
    else:
        response.set_result(outcome)

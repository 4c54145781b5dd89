"""The memory HDFS's client: a ``FileSystem`` whose process can crash and pause."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial

from bmq.core.file_access import NO_ACCESS, Access
from bmq.storage.filesystem import (
    BlockPlace,
    CorruptData,
    CreateOptions,
    FileStatus,
    Lease,
    PipelineFailed,
    StorageUnavailable,
)
from bmq.storage.memory.appender import MemoryAppender
from bmq.storage.memory.process import MemoryProcess
from bmq.storage.memory.storage import Opened

FENCE_ATTEMPTS = 4
_DEFAULT = CreateOptions()


class MemoryFileSystem(MemoryProcess):
    """The ``FileSystem`` of the memory HDFS (``bmq.storage.filesystem``), in one process."""

    @property
    def url(self) -> str:
        return "memory:"

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
            await self.hop()
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

    async def make_folder(self, path: str, access: Access = NO_ACCESS) -> None:
        await self.call(lambda: self.storage.make_folder(path, access))

    async def set_access(self, path: str, access: Access) -> bool:
        return await self.call(lambda: self.storage.set_access(path, access))

    async def concat(self, target: str, sources: Sequence[str], target_bytes: int | None = None) -> None:
        await self.call(lambda: self.storage.concat(target, sources, target_bytes))

    async def probe(self, node: str) -> bool:
        await self.hop()
        return node in self.storage.datanodes and self.storage.datanodes[node].is_up

    async def replicas_max(self) -> int:
        return await self.call(lambda: sum(node.is_up for node in self.storage.datanodes.values()), writes=False)

    async def block_places(self, path: str) -> Sequence[BlockPlace]:
        return await self.call(lambda: self.storage.block_places(path), writes=False)

    async def copies(self, path: str) -> int:
        return await self.call(lambda: self.storage.copies(path), writes=False)

    async def close(self) -> None:
        """Abort the open files, as the end of the process would, without a call to storage."""
        for appender in self.appenders():
            appender.abort()

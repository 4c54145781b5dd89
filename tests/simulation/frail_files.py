"""Storage as one process of a history reaches it: the process may die at a step, and may have no descriptor left."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from bmq.storage.filesystem import CreateOptions, OutOfSpace, StorageUnavailable
from bmq.storage.memory import MemoryFileSystem, MemoryStorage
from bmq.storage.memory.appender import MemoryAppender

T = TypeVar("T")

STEPS = ("concat", "concat", "concat", "replace", "delete", "rename")
"""Changes of names, each of which may be a process's last one.  A concat is rare, and what it leaves behind odd."""
ROUND_STEPS = (
    "create .clean", "create .cleanidx", "swap", "replace .cleanidx", "rename .clean", "no swap",
    "delete idx", "delete log",
)  # fmt: skip
"""The steps of a round that compacts a log, with the file's kind; ``swap`` and ``no swap``: the record was stored."""
_TOO_MANY = os.strerror(errno.EMFILE)
_DEFAULT = CreateOptions()


class FrailFileSystem(MemoryFileSystem):
    """A file system that crashes at a step: ``on_last_step`` is called when ``last_step`` was done, or may have been.

    ``lacks_descriptors``: the process has none left, and errors are those of the adapters.  A file to be written has no
    room; half of the other calls need a connection, or a file, that cannot be opened.
    """

    def __init__(self, storage: MemoryStorage, holder: str, on_last_step: Callable[[], None]) -> None:
        super().__init__(storage, holder)
        self.last_step = ""
        self.lacks_descriptors = False
        self.pipelines: dict[int, int] = {}
        """Datanodes of each pipeline that it got, by file id: as many as acknowledge a flush."""
        self._on_last_step = on_last_step

    async def call(self, operation: Callable[[], T], *, writes: bool = True) -> T:
        if self.lacks_descriptors and self.storage.chance(0.5):
            await self.awake()
            raise StorageUnavailable(_TOO_MANY)
        return await super().call(operation, writes=writes)

    async def create(self, path: str, options: CreateOptions = _DEFAULT) -> MemoryAppender:
        if not self.lacks_descriptors:
            appender = await super().create(path, options)
            self.pipelines[appender.lease.file_id] = len(appender.nodes)
            if self.last_step and self.last_step == f"create {_kind(path)}":
                await self.end()
            return appender
        if self.storage.chance(0.5):  # the NameNode has made it; the socket to its first datanode is missing
            await self.call(lambda: self.storage.create(path, self.holder, options))
        raise OutOfSpace(f"{path}: {_TOO_MANY}")

    async def rename(self, source: str, target: str) -> None:
        await self._step("rename", source, super().rename(source, target))

    async def replace(self, source: str, target: str) -> None:
        await self._step("replace", source, super().replace(source, target))

    async def delete(self, path: str, *, recursive: bool = False) -> bool:
        return await self._step("delete", path, super().delete(path, recursive=recursive))

    async def concat(self, target: str, sources: Sequence[str], target_bytes: int | None = None) -> None:
        await self._step("concat", target, super().concat(target, sources, target_bytes))

    async def _step(self, name: str, path: str, step: Coroutine[Any, Any, T]) -> T:
        try:
            return await step
        finally:
            if self.last_step in (name, f"{name} {_kind(path)}"):
                await self.end()

    async def end(self) -> None:
        """Do what the history chose, now that the step is done; a process that died never goes on."""
        self.last_step = ""
        self._on_last_step()
        await self.awake()


def _kind(path: str) -> str:
    """Return the kind of a file: a draft of a cleaned segment, its index, a log, an index."""
    name = path.rpartition("/")[2]
    return next((kind for kind in (".cleanidx", ".clean") if name.startswith(kind + "-")), name.rpartition(".")[2])

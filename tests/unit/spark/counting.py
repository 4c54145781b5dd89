"""A file system that counts what is read and listed."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

from bmq.storage.filesystem import FileStatus, FileSystem


class Counting:
    """Counts reads and their bytes by the end of the name, and names listed."""

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs
        self.reads: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self.names = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fs, name)

    async def read(self, path: str, position: int, length: int) -> bytes:
        data = await self._fs.read(path, position, length)
        self.reads[path.rsplit(".", 1)[-1]] += 1
        self.bytes[path.rsplit(".", 1)[-1]] += len(data)
        return data

    async def list(self, path: str, *, after: str = "") -> AsyncIterator[FileStatus]:
        async for status in self._fs.list(path, after=after):
            self.names += 1
            yield status

    def count(self, kind: str) -> int:
        return self.reads[kind]

    def reset(self) -> None:
        self.reads.clear()
        self.bytes.clear()
        self.names = 0

"""Long reads into memory of the caller's: what a reader of whole topics uses over and over.

Fresh memory for megabytes is dear, since the kernel clears each page of it when it is first touched.  Adapters that
can put bytes straight where they shall lie have ``read_into``; of the others, ``read``'s bytes are copied.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from bmq.storage.filesystem import FileSystem


@runtime_checkable
class ReadsInto(Protocol):
    """An adapter with ``read_into``."""

    async def read_into(self, path: str, position: int, out: memoryview) -> int:
        """As ``read_into`` below."""


async def read_into(fs: FileSystem, path: str, position: int, out: memoryview) -> int:
    """Fill ``out`` from ``position`` on: how many bytes, fewer only at the end of what is visible.  As ``fs.read``.

    After a failure, or when it is cancelled, ``out`` may be written to for a while yet: do not use it again.
    """
    if isinstance(fs, ReadsInto):
        return await fs.read_into(path, position, out)
    data = await fs.read(path, position, len(out))
    out[: len(data)] = data
    return len(data)

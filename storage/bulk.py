"""Long reads into a buffer of the caller, which readers of whole topics use again for each read.

Fresh memory for megabytes is expensive, since the kernel clears each page of it when it is first touched.  Adapters
that can put bytes straight into the buffer have ``read_into``; with the others, ``read``'s bytes are copied.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from bmq.storage.filesystem import FileSystem


@runtime_checkable
class ReadsInto(Protocol):
    """An adapter with ``read_into``."""

    async def read_into(self, path: str, position: int, out: memoryview) -> int:
        """Do what the function ``read_into`` does."""


async def read_into(fs: FileSystem, path: str, position: int, out: memoryview) -> int:
    """Fill ``out`` with the file's bytes from ``position`` on, and return how many were read.

    They are fewer than ``len(out)`` only at the end of what is visible.  Raises what ``fs.read`` raises.  After a
    failure or a cancellation ``out`` may still be written to for a while: do not use it again.
    """
    if isinstance(fs, ReadsInto):
        return await fs.read_into(path, position, out)
    data = await fs.read(path, position, len(out))
    out[: len(data)] = data
    return len(data)

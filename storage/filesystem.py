"""The seam between the log and whatever keeps its files.

Three adapters stand behind it: ``memory`` (HDFS's semantics with seeded faults, for simulation), ``local``
(a folder) and ``hdfs``.  What the log relies on, and each adapter must give:

* A file has **one writer**, named by a lease holder that is unique per process start.  Nobody else can append
  until the file is closed or fenced.
* ``create`` never overwrites.  Nothing is ever truncated.
* Bytes become *durable* when a flush is acknowledged.  A reader may see bytes that were never acknowledged,
  and the namespace may not know an open file's length: readers bound themselves by what the log tells them.
* ``fence`` ends every writer of a file, whoever it is, and returns the file's final length.  Every acknowledged
  byte is inside that length, and no byte past it is ever acknowledged.  The rename of a file being
  written does not save its writer: fencing follows the file, not the name.

All calls may raise the errors below and nothing else; adapters translate foreign exceptions once, here.
Paths are absolute within the adapter's root and begin with ``/``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

Buffer = bytes | bytearray | memoryview


class StorageError(Exception):
    """Root of everything that a ``FileSystem`` raises."""


class NoSuchFile(StorageError):
    """The path does not exist."""


class AlreadyExists(StorageError):
    """``create`` or ``rename`` found the name taken; nothing was changed."""


class LeaseLost(StorageError):
    """The file was fenced, closed or deleted under its writer: whoever hears this no longer owns the file."""


class PipelineFailed(StorageError):
    """The open file's write path broke; what was not acknowledged may or may not be in it.

    ``suspects`` names the nodes held responsible, as ``CreateOptions.exclude`` takes them; empty when unknown.
    """

    def __init__(self, message: str, suspects: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.suspects = tuple(suspects)


class StorageUnavailable(StorageError):
    """Storage does not answer, or answers "later" (safe mode, fail-over): try again."""


class OutOfSpace(StorageError):
    """No room for more: the disk or a quota is full, or no descriptor is left for a file to be written.  Retriable."""


class CorruptData(StorageError):
    """No replica could give these bytes with a right checksum."""


class Unsupported(StorageError):
    """The root cannot do this (read-only root, encryption zone, erasure-coded folder, SASL): says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileStatus:
    """What the namespace says of a name.  ``length`` is a lower bound while the file is open.

    ``block_bytes`` is what the file was created with, 0 where storage does not tell.
    """

    path: str
    length: int
    is_dir: bool
    modified_ms: int
    file_id: int = 0
    block_bytes: int = 0


@dataclass(frozen=True, slots=True)
class BlockPlace:
    """A block of a file: where in the file it begins, its bytes, and the nodes that hold it.

    ``nodes`` are as ``Appender.nodes`` names them; the length of a block being written is a lower bound.
    """

    position: int
    length: int
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateOptions:
    """How a new file is to be written.

    ``block_bytes`` bounds the file: one block a file, files are rolled, not blocks.  ``chunk_bytes`` is the
    checksum chunk (a small flush resends the partial chunk).  ``exclude`` names nodes to avoid; the list is
    advice, dropped rather than fail when too few nodes remain.  ``all_copies`` demands ``replication`` nodes while as
    many live: OutOfSpace if some of them have no room, for as long as closing other files may help.  Without it, and
    where fewer live, the file is on as many as take it.  ``sync``: the file's name survives a loss of power once it is
    made, as it always does on HDFS, whose NameNode syncs its edits.
    """

    block_bytes: int = 128 << 20
    chunk_bytes: int = 512
    replication: int = 3
    exclude: tuple[str, ...] = ()
    all_copies: bool = False
    sync: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """Enough to find and fence an open file later, by anyone: kept in the ``KeyValue`` store.

    ``paths`` are the names it may have (spare and final); ``file_id`` follows it through a rename where the
    adapter has such an id (0 otherwise).
    """

    paths: tuple[str, ...]
    holder: str
    file_id: int


class Appender(Protocol):
    """An open file and its write path.  One task uses it; nothing here blocks the loop.

    ``write`` hands over bytes (the buffer must not change until the flush that covers it is done) and returns
    the position after them.  ``flush`` returns a future of the position up to which bytes are acknowledged; many
    may be outstanding, they complete in order, and fail all together (PipelineFailed, LeaseLost).  After the first
    failure every call fails the same way: the file is to be fenced and left.
    """

    @property
    def lease(self) -> Lease: ...

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes written to, in pipeline order; empty where the word has no meaning."""

    @property
    def position(self) -> int:
        """Bytes handed over, from the file's beginning (an append starts at the old length)."""

    @property
    def flushed(self) -> int:
        """Bytes acknowledged, from the file's beginning."""

    @property
    def pending(self) -> int:
        """Flushes not yet acknowledged."""

    @property
    def failure(self) -> StorageError | None:
        """Why every call fails from here on; None while the file can be written.

        Known without a call where a connection tells it: a datanode that restarts breaks the write paths of idle files
        too, and on HDFS nobody can read such a file once all of its datanodes have restarted, until it is fenced.  Set
        by ``close`` and ``abort`` as well.
        """

    def write(self, data: Buffer) -> int: ...

    def flush(self, *, sync: bool = False) -> asyncio.Future[int]: ...

    async def close(self) -> int:
        """Flush, close for ever (until an ``append``) and return the length.  Fails like a flush."""

    def abort(self) -> None:
        """Drop the connection and forget the file, telling the namespace nothing (rule 6: it may not be ours)."""


class FileSystem(Protocol):
    """One root.  ``holder`` is this process's lease name."""

    @property
    def url(self) -> str: ...

    @property
    def holder(self) -> str: ...

    async def create(self, path: str, options: CreateOptions = ...) -> Appender:
        """A new file with its lease taken and its write path open, parents made.  AlreadyExists, OutOfSpace, ..."""

    async def append(self, path: str, options: CreateOptions = ...) -> Appender:
        """Reopen a closed file at its end.  LeaseLost when somebody holds it."""

    async def fence(self, lease: Lease, *, sync: bool = False) -> int:
        """Stop the file's writer and close it; return the final length.  Idempotent.

        ``sync``: all of that length, and the file's name, are on disk then, as after a sync flush.  Without it, what
        the writer never synced may be lost with the power.  Raises NoSuchFile when no name has it.
        """

    async def read(self, path: str, position: int, length: int) -> bytes:
        """Up to ``length`` bytes from ``position``; fewer only at the end of what is visible.  Works on open files."""

    async def status(self, path: str) -> FileStatus: ...

    async def visible_length(self, path: str) -> int:
        """The smallest length that all reachable replicas show; the exact length of a closed file."""

    def list(self, path: str, *, after: str = "") -> AsyncIterator[FileStatus]:
        """Children with a name greater than ``after``, in byte order of (ASCII) names, in pages.  Empty if missing.

        HDFS compares signed bytes, so it puts other names first: ours are ASCII.
        """

    async def rename(self, source: str, target: str) -> None:
        """Atomic, never overwrites; an open file keeps its writer."""

    async def replace(self, source: str, target: str) -> None:
        """Atomic rename that overwrites a closed ``target``."""

    async def delete(self, path: str, *, recursive: bool = False) -> bool:
        """False when it was not there."""

    async def concat(self, target: str, sources: Sequence[str]) -> None:
        """Append the closed ``sources`` (same folder) to the closed ``target`` and remove them, atomically, no copy.

        HDFS refuses sources whose ``block_bytes`` are more than the target's.
        """

    async def probe(self, node: str) -> bool:
        """Whether a node (as ``Appender.nodes`` names it) answers in a short time; True where there are no nodes."""

    async def replicas_max(self) -> int:
        """How many copies of a block storage can hold now: live datanodes; 1 for a local folder.

        Unsupported where the root does not tell: HDFS tells its superusers only, and WebHDFS nobody.
        """

    async def block_places(self, path: str) -> Sequence[BlockPlace]:
        """The file's blocks in order; empty where storage has no nodes, or the file has no bytes.

        Unsupported where the root does not tell.
        """

    async def copies(self, path: str) -> int:
        """Count the copies, on nodes that answer, of that block of a file which has the fewest; 1 for a local folder.

        Storage may make more of a closed file by itself.  Raises NoSuchFile, and Unsupported where ``replicas_max``
        does for want of a protocol (WebHDFS).
        """

    async def close(self) -> None: ...


WRITE_ONCE_S = 20.0
"""A file of this kind is small: a pipeline that takes longer hangs (nobody else watches it)."""


async def write_once(
    fs: FileSystem, path: str, data: Buffer, options: CreateOptions | None = None, *, sync: bool = True
) -> None:
    """Create ``path`` holding exactly ``data``, closed and (``sync``) on disk.  AlreadyExists if it is there."""
    appender = await fs.create(path, options or CreateOptions(block_bytes=1 << 20))
    try:
        async with asyncio.timeout(WRITE_ONCE_S):
            appender.write(data)
            await appender.flush(sync=sync)
            await appender.close()
    except TimeoutError:
        appender.abort()
        raise PipelineFailed(f"{path}: nothing acknowledged in {WRITE_ONCE_S:g} s", appender.nodes) from None
    except BaseException:
        appender.abort()
        raise

"""The interface between the log and the storage that keeps its files.

There are three adapters: ``memory`` (HDFS's semantics with seeded faults, for simulation), ``local`` (a folder) and
``hdfs``.  The log relies on these properties, and each adapter must give them:

* A file has **one writer**, named by a lease holder that is unique per process start.  No other process can append
  until the file is closed or fenced.
* ``create`` never overwrites.  Nothing is ever truncated.
* Bytes become *durable* when a flush is acknowledged.  A reader may see bytes that were never acknowledged, and the
  namespace may not have an open file's length: readers bound themselves by the offsets of the log.
* ``fence`` ends every writer of a file, in whatever process, and returns the file's final length.  Every acknowledged
  byte is inside that length, and no byte past it is ever acknowledged.  The rename of a file being written does not
  save its writer: fencing follows the file, not the name.

All calls may raise the errors below and no others: each adapter translates foreign exceptions once, at this interface.
Paths are absolute within the adapter's root and begin with ``/``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, runtime_checkable

from bmq.core.file_access import NO_ACCESS, Access

Buffer = bytes | bytearray | memoryview


class StorageError(Exception):
    """The base of all errors that a ``FileSystem`` raises."""


class NoSuchFile(StorageError):
    """The path does not exist."""


class AlreadyExists(StorageError):
    """``create`` or ``rename`` found the name taken; nothing was changed."""


class LeaseLost(StorageError):
    """The file was fenced, closed or deleted under its writer: the caller no longer owns the file."""


class PipelineFailed(StorageError):
    """The open file's write path broke; what was not acknowledged may or may not be in it.

    ``suspects`` names the nodes held responsible, as ``CreateOptions.exclude`` takes them; empty when unknown.
    """

    def __init__(self, message: str, suspects: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.suspects = tuple(suspects)


class StorageUnavailable(StorageError):
    """Storage does not respond, or asks to be tried later (safe mode, fail-over).  Retriable."""


class CannotLogIn(StorageUnavailable):
    """The lack of valid credentials for storage: no keytab, no ticket, no KDC.  Retriable: an operator may mend it.

    The message names the principal and the file, and says what to do.
    """


class OutOfSpace(StorageError):
    """No room for more: the disk or a quota is full, or no descriptor is left for a file to be written.  Retriable."""


class Unjoinable(StorageError):
    """Files that storage never joins, whenever asked: their block sizes or their codings do not fit."""


class CorruptData(StorageError):
    """No replica returned these bytes with a correct checksum."""


class Unsupported(StorageError):
    """The root cannot do this (read-only root, encryption zone, erasure-coded file, SASL).

    The message says what to do.
    """


class NotAllowed(Unsupported):
    """A call for which this user has not the right, by the entry's owner, group and mode or a policy of storage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileStatus:
    """The namespace's entry for a name.  ``length`` is in bytes, a lower bound while the file is open.

    ``block_bytes`` is the block size that the file was created with, 0 where storage does not report it.  ``mode`` has
    the nine bits of owner, group and others.  ``coding`` names the erasure-coding policy, empty for a replicated file.
    """

    path: str
    length: int
    is_dir: bool
    modified_ms: int
    file_id: int = 0
    block_bytes: int = 0
    owner: str = ""
    group: str = ""
    mode: int = 0
    coding: str = ""


@dataclass(frozen=True, slots=True)
class BlockPlace:
    """A block of a file: its position and length in bytes, and the nodes that hold it.

    ``nodes`` have the names of ``Appender.nodes``.  The length of a block being written is a lower bound.
    """

    position: int
    length: int
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateOptions:
    """Settings of a file to be created.

    ``block_bytes`` bounds the file: it has one block, and files are rolled, not blocks.  ``chunk_bytes`` is the
    checksum chunk (a small flush sends the partial chunk again).  ``exclude`` names nodes to avoid; the list is advice:
    when too few nodes remain it is dropped, and the call does not fail.  ``all_copies`` demands ``replication`` nodes
    while as many live: OutOfSpace is raised if some of them have no room, for as long as closing other files may help.
    Without it, and where fewer live, the file is on as many nodes as accept it.  ``sync``: the name of the created file
    survives a loss of power, as it always does on HDFS, whose NameNode syncs its edits.  ``access``: of the file, and
    of folders that are made for it, but not of the root's own children.  If storage refuses owner or group, the file
    is there without them (``storage.access.REFUSALS``).
    """

    block_bytes: int = 128 << 20
    chunk_bytes: int = 512
    replication: int = 3
    exclude: tuple[str, ...] = ()
    all_copies: bool = False
    sync: bool = False
    access: Access = NO_ACCESS


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The facts with which any process can find and fence an open file later.  They are kept in the ``KeyValue`` store.

    ``paths`` are the names that the file may have (spare and final).  ``file_id`` identifies it through a rename where
    the adapter has such an id (0 otherwise).
    """

    paths: tuple[str, ...]
    holder: str
    file_id: int


class RootLock(Enum):
    """The way in which a process locks a local root (``bmq.storage.local.root_lock``)."""

    NONE = "none: it only reads"
    SHARED = "shared: other processes on the same etcd may write as well"
    EXCLUSIVE = "exclusive: no other process may write"


class Appender(Protocol):
    """An open file and its write path.  A single task uses it; no method blocks the loop.

    ``write`` takes bytes (the buffer must not change until the flush that covers it is done) and returns the position
    after them.  ``flush`` returns a future of the position up to which bytes are acknowledged.  Many flushes may be
    outstanding; they complete in order, and all fail together (PipelineFailed, LeaseLost).  After the first failure
    every call fails the same way: the file must be fenced and left.
    """

    @property
    def lease(self) -> Lease:
        """The lease with which another process can fence the file."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes written to, in pipeline order; empty where storage has no nodes."""

    @property
    def position(self) -> int:
        """Bytes written, from the file's beginning (an append starts at the old length)."""

    @property
    def flushed(self) -> int:
        """Bytes acknowledged, from the file's beginning."""

    @property
    def pending(self) -> int:
        """Flushes not yet acknowledged."""

    @property
    def failure(self) -> StorageError | None:
        """The reason why every call fails from now on; None while the file can be written.

        It is set without a call where a connection breaks: a datanode that restarts breaks the write paths of idle
        files too.  On HDFS such a file cannot be read once all of its datanodes have restarted, until it is fenced.
        ``close`` and ``abort`` set it as well.
        """

    def write(self, data: Buffer) -> int: ...

    def flush(self, *, sync: bool = False) -> asyncio.Future[int]: ...

    async def close(self) -> int:
        """Flush, close the file (until an ``append``) and return its length.  Raises what a flush raises."""

    def abort(self) -> None:
        """Drop the connection and forget the file without a call to the namespace.

        The file may belong to another process by now (rule 6).
        """


class FileSystem(Protocol):
    """One root's files.  ``holder`` is this process's lease name, ``url`` the root's address."""

    @property
    def url(self) -> str: ...

    @property
    def holder(self) -> str: ...

    async def create(self, path: str, options: CreateOptions = ...) -> Appender:
        """Create a file, take its lease, open its write path, and return that; missing parents are made.

        Raises AlreadyExists if the name is taken, and OutOfSpace if there is no room.
        """

    async def append(self, path: str, options: CreateOptions = ...) -> Appender:
        """Open a closed file again, at its end.  Raises LeaseLost if a writer holds it."""

    async def fence(self, lease: Lease, *, sync: bool = False) -> int:
        """Stop the file's writer, close the file, and return its final length.  Idempotent.

        ``sync``: all of that length, and the file's name, are on disk then, as after a sync flush.  Without it, bytes
        that the writer never synced may be lost with the power.  Raises NoSuchFile if the file has none of the lease's
        names.
        """

    async def read(self, path: str, position: int, length: int) -> bytes:
        """Return up to ``length`` bytes from ``position``, fewer only at the end of what is visible.

        Works on open files.
        """

    async def status(self, path: str) -> FileStatus:
        """Return the namespace's entry for ``path``.  Raises NoSuchFile if there is none."""

    async def visible_length(self, path: str) -> int:
        """Return the smallest length that all reachable replicas show; the exact length of a closed file."""

    def list(self, path: str, *, after: str = "") -> AsyncIterator[FileStatus]:
        """Give the children with a name greater than ``after``, in byte order of (ASCII) names, page by page.

        A missing folder has none.  HDFS compares signed bytes, so it puts names beyond ASCII first: the log's names are
        ASCII.
        """

    async def rename(self, source: str, target: str) -> None:
        """Rename atomically, never overwriting; an open file keeps its writer."""

    async def replace(self, source: str, target: str) -> None:
        """Rename atomically, overwriting a closed ``target``."""

    async def delete(self, path: str, *, recursive: bool = False) -> bool:
        """Delete a file or folder, and return False if it was not there."""

    async def make_folder(self, path: str, access: Access = ...) -> None:
        """Make a folder, and its parents, unless it is there; those that are made have ``access``'s mode."""

    async def set_access(self, path: str, access: Access) -> bool:
        """Give a file or folder the owner, the group and exactly the mode of ``access``, as far as they are given.

        Return False if that must wait until the file is closed: on a local root its mode shows that it is open.  Raises
        NotAllowed if storage refuses, Unsupported if it does not know the user or group, and NoSuchFile.
        """

    async def concat(self, target: str, sources: Sequence[str], target_bytes: int | None = None) -> None:
        """Append the closed ``sources`` (same folder) to the closed ``target`` and remove them, atomically, no copy.

        On a local root it is atomic for readers only: sources may be left, each a copy of a part of the target.  After
        a StorageUnavailable the files may be joined, on any root.  Raises LeaseLost if a writer or another call holds a
        file, or has replaced or deleted it meanwhile.  Raises LeaseLost, too, if the target is not ``target_bytes``
        long: another call has joined files to it since, perhaps these.  None allows any length.  HDFS ignores it, since
        a call leaves no source there.  Raises Unjoinable if storage never joins these files: HDFS refuses sources whose
        ``block_bytes`` are more than the target's, and sources of another coding.  Any other refusal may pass.
        """

    async def probe(self, node: str) -> bool:
        """Return whether a node (a name of ``Appender.nodes``) responds in a short time; True without nodes."""

    async def replicas_max(self) -> int:
        """Return how many copies of a block storage can hold now: its live datanodes; 1 for a local folder.

        Raises Unsupported where the root does not report it: HDFS does to its superusers only, WebHDFS never.
        """

    async def block_places(self, path: str) -> Sequence[BlockPlace]:
        """Return the file's blocks in order; empty where storage has no nodes, or the file has no bytes.

        Raises Unsupported where the root does not report them.
        """

    async def copies(self, path: str) -> int:
        """Count the copies, on nodes that respond, of the block with the fewest copies; 1 for a local folder.

        Storage may make more of a closed file by itself.  Raises NoSuchFile, and Unsupported where ``replicas_max``
        does for want of a protocol (WebHDFS).
        """

    async def close(self) -> None:
        """End the tasks, threads and connections.  Files still open are not closed in the namespace: fence them."""


WRITE_ONCE_S = 20.0
"""A file of this kind is small: a pipeline that takes longer hangs, and nothing else watches it."""


@asynccontextmanager
async def in_time(appender: Appender, what: str) -> AsyncIterator[None]:
    """Give a step of ``appender`` ``WRITE_ONCE_S``; ``what`` is the beginning of the error's text.

    Raises PipelineFailed, which names the appender's nodes, if the step takes longer; the appender is not aborted.
    """
    try:
        async with asyncio.timeout(WRITE_ONCE_S):
            yield
    except TimeoutError:
        raise PipelineFailed(f"{what} in {WRITE_ONCE_S:g} s", appender.nodes) from None


async def write_once(
    fs: FileSystem, path: str, data: Buffer, options: CreateOptions | None = None, *, sync: bool = True
) -> None:
    """Create ``path`` holding exactly ``data``, closed and (``sync``) on disk.

    Raises AlreadyExists if the name is taken, PipelineFailed if storage does not acknowledge it in ``WRITE_ONCE_S``,
    and other StorageErrors as ``create`` and a flush do.  A failed call may leave the file, open, with some of the
    bytes.
    """
    appender = await fs.create(path, options or CreateOptions(block_bytes=1 << 20))
    try:
        async with in_time(appender, f"{path}: nothing acknowledged"):
            appender.write(data)
            await appender.flush(sync=sync)
            await appender.close()
    except BaseException:
        appender.abort()
        raise


@runtime_checkable
class ReadsInto(Protocol):
    """An adapter that puts bytes straight into a buffer of its caller."""

    async def read_into(self, path: str, position: int, out: memoryview) -> int:
        """Do what the function ``read_into`` does."""


async def read_into(fs: FileSystem, path: str, position: int, out: memoryview) -> int:
    """Fill ``out`` with the file's bytes from ``position`` on, and return how many were read.

    Readers of whole topics use the same buffer for all reads.  Fresh memory for megabytes is expensive, since the
    kernel clears a page at its first touch.  With an adapter that is not a ``ReadsInto``, bytes are copied.

    They are fewer than ``len(out)`` only at the end of what is visible.  Raises what ``fs.read`` raises.  After a
    failure or a cancellation ``out`` may still be written to for a while: do not use it again.
    """
    if isinstance(fs, ReadsInto):
        return await fs.read_into(path, position, out)
    data = await fs.read(path, position, len(out))
    out[: len(data)] = data
    return len(data)


@runtime_checkable
class ReadsParts(Protocol):
    """An adapter that puts the bytes of one read into several pieces of memory."""

    async def read_parts(self, path: str, position: int, lengths: Sequence[int]) -> Sequence[Buffer]:
        """Do what the function ``read_parts`` does."""


async def read_parts(fs: FileSystem, path: str, position: int, lengths: Sequence[int]) -> Sequence[Buffer]:
    """Read consecutive parts of ``lengths`` from ``position`` on by one read, each into memory of its own.

    A part is shorter, or empty, only behind the end of what is visible.  Raises what ``fs.read`` raises.
    """
    if isinstance(fs, ReadsParts):
        return await fs.read_parts(path, position, lengths)
    data = await fs.read(path, position, sum(lengths))
    if len(lengths) == 1:
        return [data]
    parts = []
    at = 0
    for length in lengths:
        parts.append(data[at : at + length])
        at += length
    return parts


@runtime_checkable
class DeletesJoined(Protocol):
    """An adapter whose ``concat`` takes several steps, and locks its files meanwhile."""

    async def delete_joined(self, target: str, sources: Sequence[str], joined_bytes: int) -> None:
        """Do what the function ``delete_joined`` does."""


async def delete_joined(fs: FileSystem, target: str, sources: Sequence[str], joined_bytes: int) -> None:
    """Delete ``sources`` whose bytes the target has, first to last, as a ``concat`` that did not end was about to.

    The target's contents are on disk before a source is deleted.  With an adapter that is a ``DeletesJoined``, no
    ``concat`` of these files is under way meanwhile: raises LeaseLost, and deletes nothing, if another call holds one
    of them.  Raises LeaseLost, too, if the target is not ``joined_bytes`` long any more: the caller has judged another
    file.  Raises NoSuchFile if a file is gone.
    """
    if isinstance(fs, DeletesJoined):
        await fs.delete_joined(target, sources, joined_bytes)
        return
    length = await fs.fence(Lease(paths=(target,), holder="", file_id=0), sync=True)
    if length != joined_bytes:
        raise LeaseLost(f"{target} is {length} bytes long, not {joined_bytes}")
    for source in sources:
        await fs.delete(source)

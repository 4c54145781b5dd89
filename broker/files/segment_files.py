"""One partition's segment files on storage: the spare, its final name, its index."""

from __future__ import annotations

import asyncio

from bmq.broker import events as ev
from bmq.broker.files.chunk_sizes import FIRST_FLUSH_BYTES_MAX, chunk_for
from bmq.broker.files.context import FileContext
from bmq.broker.files.precreated import SERIAL
from bmq.broker.files.unused_files import remove_unused
from bmq.core.aio.steps import run_in_steps
from bmq.core.errors import FormatError
from bmq.core.file_access import NO_ACCESS, Access
from bmq.core.model import SegmentName
from bmq.meta.ownership import SegmentEntry
from bmq.storage.checkpoint import Checkpoint
from bmq.storage.filesystem import (
    AlreadyExists,
    Appender,
    CorruptData,
    CreateOptions,
    Lease,
    NoSuchFile,
    PipelineFailed,
    StorageUnavailable,
    write_once,
)
from bmq.storage.layout import PartitionPath
from bmq.storage.segment import decode_idx_steps, encode_idx_steps


class TooFewNodes(StorageUnavailable):
    """Storage gave a new file fewer datanodes than the waiting batch needs copies."""


def copies_of(appender: Appender) -> int:
    """Return the number of datanodes that an open file is written to; 1 where storage has none, as a local folder."""
    return max(1, len(appender.nodes))


class SegmentFiles:
    """The calls to storage for the segment files of one partition."""

    __slots__ = ("_context", "_replication", "access", "is_synced", "path")

    def __init__(
        self,
        context: FileContext,
        path: PartitionPath,
        *,
        is_synced: bool,
        replication: int,
        access: Access = NO_ACCESS,
    ) -> None:
        self._context = context
        self.is_synced = is_synced
        self.access = access
        self._replication = replication
        self.path = path

    def lease(self, entry: SegmentEntry) -> Lease:
        """Return the segment's lease, under its final name or its spare name: the file has one of the two."""
        return Lease(paths=(self.path.log(entry.name), entry.spare), holder=entry.holder, file_id=entry.file_id)

    async def fence(self, entry: SegmentEntry) -> int:
        """Stop the segment's writer and close the file; return its final length in bytes.

        Whole batches behind the last acknowledged one are kept. From here on they are visible, and acknowledged to a
        producer that repeats them, so they become as durable as the topic asks for. Raises StorageError.
        """
        return await self._context.fs.fence(self.lease(entry), sync=self.is_synced)

    async def fence_copy(self, entry: SegmentEntry) -> int:
        """Close a file that has the segment's final name and another file id; return its length in bytes.

        No name is given twice in a log. So an operator has put the file there, from a snapshot say, because the
        segment's own file is gone. Raises NoSuchFile if there is none, or StorageError.
        """
        lease = Lease(paths=(self.path.log(entry.name),), holder=entry.holder, file_id=0)
        return await self._context.fs.fence(lease, sync=self.is_synced)

    def make_first(self, epoch: int) -> None:
        """Begin to create a file for the partition's first batch under ``epoch``, which is not claimed yet.

        Does nothing unless a place for one more file is free (``broker.files.precreated``).
        """
        context, block_bytes = self._context, self._context.config.block_bytes
        if context.block_ceiling.fit(block_bytes, 0, context.now_ms()) < block_bytes:
            return  # storage has no room for a whole block, and a smaller one might have to be made again
        effect = ev.CreateSpare(epoch, SERIAL, block_bytes, chunk_for(FIRST_FLUSH_BYTES_MAX))
        context.precreated.make(self.path, effect, self.create)

    async def take_first(self, effect: ev.CreateSpare) -> Appender | None:
        """Return the file that was made before the partition was claimed, with its place; None if there is none."""
        return await self._context.precreated.take(self.path, effect)

    async def drop(self, appender: Appender) -> None:
        """Close an open file that is not wanted, and delete it."""
        await remove_unused(self._context.fs, appender, self._context.config.close_timeout_ms / 1000)

    async def create(self, effect: ev.CreateSpare) -> Appender:
        """Return a new open file under a spare name, on datanodes that are not excluded. Raises StorageError."""
        context = self._context
        path = self.path.spare(effect.epoch, effect.serial, context.incarnation)
        options = CreateOptions(
            block_bytes=effect.block_bytes,
            chunk_bytes=effect.chunk_bytes,
            replication=self._replication,
            exclude=context.health.excluded(context.now_ms()),
            all_copies=True,
            sync=self.is_synced,  # a loss of power must not undo the creation: the record may list the file unwritten
            access=self.access,
        )
        try:
            return await context.fs.create(path, options)
        except PipelineFailed as error:
            context.health.failed(error.suspects, context.now_ms())
            raise

    async def is_in_place(self, entry: SegmentEntry) -> bool:
        """Return whether the segment's own file has its final name. Raises StorageError."""
        try:
            status = await self._context.fs.status(self.path.log(entry.name))
        except NoSuchFile:
            return False
        return status.file_id == entry.file_id

    async def rename(self, entry: SegmentEntry, final: str) -> None:
        """Give the spare its final name; do nothing if an earlier attempt did so without its response arriving.

        Raises StorageError.
        """
        try:
            await self._context.fs.rename(entry.spare, final)
        except (NoSuchFile, AlreadyExists):
            status = await self._context.fs.status(final)
            if status.file_id != entry.file_id:
                raise

    async def write_idx(self, name: SegmentName, checkpoint: Checkpoint) -> None:
        """Write the segment's index, unless there is a sound one that covers as much.

        The index gets its name once it is whole, since a torn one would stand in the way of a sound one. It is as
        durable as its segment's records: after a loss of power a damaged index counts as none, and the segment is
        scanned.
        """
        await self.write_encoded_idx(name, await run_in_steps(encode_idx_steps(checkpoint)))

    async def write_encoded_idx(self, name: SegmentName, data: bytes) -> None:
        """Write the bytes that ``encode_idx`` returned as the segment's index, as ``write_idx`` does."""
        async with self.idx_turn(name):
            await self._draft_idx(name, data)
            await self.publish_idx(name)

    async def lacks_idx(self, name: SegmentName, length: int) -> bool:
        """Return whether the closed segment is still ``length`` bytes long and has no index.

        Reports a segment that has become shorter. Raises NoSuchFile if the segment is gone, or StorageError.
        """
        fs = self._context.fs
        found = (await fs.status(self.path.log(name))).length
        if found < length:
            text = "storage lost %d of the %d bytes of a segment"
            self._context.report(text, length - found, length, **self.path.log_fields, path=self.path.log(name))
        if found != length:
            return False  # merged with its neighbour: the merge wrote an index
        try:
            await fs.status(self.path.idx(name))
        except NoSuchFile:
            return True
        return False

    def idx_turn(self, name: SegmentName) -> asyncio.Lock:
        """Return the lock of this process's writers of the segment's index: all drafts of the index have one path.

        A process may own a partition again before it has written the index that its former ownership deferred.
        """
        return self._context.index_turns.setdefault(self._draft(name), asyncio.Lock())

    async def draft_idx(self, name: SegmentName, checkpoint: Checkpoint) -> None:
        """Write the index under a name that no reader looks for; the caller has the ``idx_turn``.

        So this may begin while the segment is being closed.
        """
        await self._draft_idx(name, await run_in_steps(encode_idx_steps(checkpoint)))

    async def _draft_idx(self, name: SegmentName, data: bytes) -> None:
        fs, draft = self._context.fs, self._draft(name)
        options = CreateOptions(block_bytes=1 << 20, access=self.access)
        try:
            await write_once(fs, draft, data, options, sync=self.is_synced)
        except AlreadyExists:  # left by an attempt that was given up
            await fs.delete(draft)
            await write_once(fs, draft, data, options, sync=self.is_synced)

    async def publish_idx(self, name: SegmentName) -> None:
        """Give the draft its final name, once the segment is closed, unless an index there covers as much.

        An index that is damaged, or ends earlier, gives place. An owner whose segment broke indexes the acknowledged
        batches. If it dies before it registers the next segment, its successor keeps whole batches behind them.

        The caller has the ``idx_turn``. Raises StorageError: StorageUnavailable if the draft is gone, and not
        NoSuchFile, since the segment is still there.
        """
        fs, draft, final = self._context.fs, self._draft(name), self.path.idx(name)
        try:
            try:
                await fs.rename(draft, final)
            except AlreadyExists:
                if await self._idx_end(final) < await self._idx_end(draft):
                    await fs.replace(draft, final)
                else:
                    await fs.delete(draft)
        except NoSuchFile as error:
            raise StorageUnavailable(f"the draft of an index is gone: {error}") from error

    async def idx_end(self, name: SegmentName) -> int:
        """Return the end offset of the segment's index, -1 if it is missing or damaged. Raises StorageError."""
        return await self._idx_end(self.path.idx(name))

    async def _idx_end(self, path: str) -> int:
        fs = self._context.fs
        try:
            data = await fs.read(path, 0, (await fs.status(path)).length)
            return (await run_in_steps(decode_idx_steps(data, with_producers=False))).end_offset
        except (NoSuchFile, CorruptData, FormatError):
            return -1

    def _draft(self, name: SegmentName) -> str:
        return f"{self.path.folder}/.idx-{name}-{self._context.incarnation}"

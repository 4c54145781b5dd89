"""A segment's files on storage: the spare, its final name, its index."""

from __future__ import annotations

from bmq.broker.context import BrokerContext
from bmq.broker.files.precreated import SERIAL
from bmq.broker.files.unused_files import remove_unused
from bmq.broker.partition import events as ev
from bmq.broker.partition.segment_roll import FIRST_FLUSH_BYTES_MAX, chunk_for
from bmq.core.aio.steps import run_in_steps
from bmq.core.model import SegmentName
from bmq.meta.ownership import SegmentEntry
from bmq.storage.checkpoint import Checkpoint
from bmq.storage.filesystem import (
    AlreadyExists,
    Appender,
    CreateOptions,
    Lease,
    NoSuchFile,
    PipelineFailed,
    StorageUnavailable,
    write_once,
)
from bmq.storage.layout import PartitionPath
from bmq.storage.segment import encode_idx_steps


class TooFewNodes(StorageUnavailable):
    """Storage gives a new file fewer nodes than it is to have."""


def copies_of(appender: Appender) -> int:
    """Nodes that an open file is written to; 1 where storage has no such thing, as a local folder."""
    return max(1, len(appender.nodes))


class SegmentFiles:
    """One partition's."""

    __slots__ = ("_replication", "_shared", "is_synced", "path")

    def __init__(self, shared: BrokerContext, path: PartitionPath, *, is_synced: bool, replication: int) -> None:
        self._shared = shared
        self.is_synced = is_synced
        self._replication = replication
        self.path = path

    def lease(self, entry: SegmentEntry) -> Lease:
        """Under its final name or still under its spare one."""
        return Lease(paths=(self.path.log(entry.name), entry.spare), holder=entry.holder, file_id=entry.file_id)

    async def fence(self, entry: SegmentEntry) -> int:
        """Stop the segment's writer and close it; return its final length.

        Whole batches behind the last acknowledged one are kept: they are shown and acknowledged (to who sends them
        again) from here on, so they become as durable as the topic asks for.  Raises StorageError.
        """
        return await self._shared.fs.fence(self.lease(entry), sync=self.is_synced)

    async def fence_copy(self, entry: SegmentEntry) -> int:
        """Close a file that has the segment's final name and another id; return its length.

        The log gives no name twice: an operator has put it there, from a snapshot say, since the segment's own file is
        gone.  Raises NoSuchFile if there is none, and StorageError.
        """
        lease = Lease(paths=(self.path.log(entry.name),), holder=entry.holder, file_id=0)
        return await self._shared.fs.fence(lease, sync=self.is_synced)

    def make_first(self, epoch: int) -> None:
        """Make a file for the first batch under an epoch that is not ours yet, if there is a place for more than those
        that are written."""
        effect = ev.CreateSpare(epoch, SERIAL, self._shared.config.block_bytes, chunk_for(FIRST_FLUSH_BYTES_MAX))
        self._shared.first_files.make(self.path, effect, self.create)

    async def take_first(self, effect: ev.CreateSpare) -> Appender | None:
        """Return the file that was made for the partition on its way here, which has its place, if there is one."""
        return await self._shared.first_files.take(self.path, effect)

    async def drop(self, appender: Appender) -> None:
        """Close an open file that is not wanted, and delete it."""
        await remove_unused(self._shared.fs, appender, self._shared.config.close_timeout_ms / 1000)

    async def create(self, effect: ev.CreateSpare) -> Appender:
        """Return a new open file under a spare name, on nodes that are not known to be bad.  Raises StorageError."""
        shared = self._shared
        path = self.path.spare(effect.epoch, effect.serial, shared.incarnation)
        options = CreateOptions(
            block_bytes=effect.block_bytes,
            chunk_bytes=effect.chunk_bytes,
            replication=self._replication,
            exclude=shared.health.excluded(shared.now_ms()),
            all_copies=True,
            sync=self.is_synced,  # one that the record lists and that was never written is found so after it, too
        )
        try:
            return await shared.fs.create(path, options)
        except PipelineFailed as error:
            shared.health.failed(error.suspects, shared.now_ms())
            raise

    async def is_in_place(self, entry: SegmentEntry) -> bool:
        """Whether the segment's file stands under its final name."""
        try:
            status = await self._shared.fs.status(self.path.log(entry.name))
        except NoSuchFile:
            return False
        return status.file_id == entry.file_id

    async def rename(self, entry: SegmentEntry, final: str) -> None:
        """Give the spare its final name; an earlier attempt of ours may have done so unheard."""
        try:
            await self._shared.fs.rename(entry.spare, final)
        except (NoSuchFile, AlreadyExists):
            status = await self._shared.fs.status(final)
            if status.file_id != entry.file_id:
                raise

    async def write_idx(self, name: SegmentName, checkpoint: Checkpoint) -> None:
        """Once; one that is there already says the same of the bytes it covers.

        It gets its name when it is whole: a torn index would stand in the way of a right one.  It is as durable as
        its segment's records: one that a loss of power damages is no index, and the segment is scanned.
        """
        await self.write_encoded_idx(name, await run_in_steps(encode_idx_steps(checkpoint)))

    async def write_encoded_idx(self, name: SegmentName, data: bytes) -> None:
        """The same with what ``encode_idx`` has made."""
        await self._draft_idx(name, data)
        await self.publish_idx(name)

    async def lacks_idx(self, name: SegmentName, length: int) -> bool:
        """Whether the closed segment is still as long as that, and has no index.  NoSuchFile: it is gone."""
        fs = self._shared.fs
        found = (await fs.status(self.path.log(name))).length
        if found < length:
            text = "storage lost %d of the %d bytes of a segment"
            self._shared.report(text, length - found, length, **self.path.log_fields, path=self.path.log(name))
        if found != length:
            return False  # joined with its neighbour, under an index of its own
        try:
            await fs.status(self.path.idx(name))
        except NoSuchFile:
            return True
        return False

    async def draft_idx(self, name: SegmentName, checkpoint: Checkpoint) -> None:
        """The index under a name that nobody reads; it may be written while its segment is being closed."""
        await self._draft_idx(name, await run_in_steps(encode_idx_steps(checkpoint)))

    async def _draft_idx(self, name: SegmentName, data: bytes) -> None:
        fs, draft = self._shared.fs, self._draft(name)
        try:
            await write_once(fs, draft, data, sync=self.is_synced)
        except AlreadyExists:  # from an attempt that was given up
            await fs.delete(draft)
            await write_once(fs, draft, data, sync=self.is_synced)

    async def publish_idx(self, name: SegmentName) -> None:
        """Give the draft its final name: its segment is closed."""
        try:
            await self._shared.fs.rename(self._draft(name), self.path.idx(name))
        except AlreadyExists:
            await self._shared.fs.delete(self._draft(name))

    def _draft(self, name: SegmentName) -> str:
        return f"{self.path.folder}/.idx-{name}-{self._shared.incarnation}"

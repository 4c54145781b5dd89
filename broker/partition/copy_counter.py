"""Counts of a segment's copies on storage."""

from __future__ import annotations

from bmq.broker import events as ev
from bmq.storage.filesystem import FileSystem, NoSuchFile, StorageError
from bmq.storage.layout import PartitionPath
from bmq.storage.log_segments import LogSegments


class CopyCounter:
    """The counter of the copies of one partition's files. Lists the folder when it is first used."""

    __slots__ = ("_fs", "_segments")

    def __init__(self, fs: FileSystem, path: PartitionPath) -> None:
        self._fs = fs
        self._segments = LogSegments(fs, path)

    async def count(self, effect: ev.CountCopies) -> ev.CopiesCounted:
        """Count the copies of the file that holds the effect's offset: 0, with the reason, if storage cannot say."""
        try:
            return await self._count(effect)
        except StorageError as error:
            return ev.CopiesCounted(effect.offset, effect.offset + 1, 0, f"they cannot be counted: {error}")

    async def _count(self, effect: ev.CountCopies) -> ev.CopiesCounted:
        segments = self._segments
        await segments.cover(effect.end)
        found = segments.find(effect.offset)
        if found is None:
            raise NoSuchFile(f"{segments.path}: no segment holds offset {effect.offset}")
        try:
            copies = await self._fs.copies(segments.path.log(found.name))
        except NoSuchFile:
            await segments.refresh(found.name)  # merged or deleted: the next count finds the present file
            raise
        end = effect.end if found.end is None else min(found.end, effect.end)
        return ev.CopiesCounted(found.name.base, end, copies)

"""The swap of closed segments for the cleaned segment that replaces them.

``docs/design/retention.md`` shows how the log reads after a crash at each step::

    the drafts of file and index are complete
    the record lists the swap           by the owner's compare: its successor knows of the drafts from here on
    the index has its name              an index without a log is nothing
    the draft has its name              the cleaned segment hides its sources
    the record lists no swap
    file.delete.delay.ms later          the sources are deleted

A job's drafts get names of the owner first (``TAKEN``).  The record may lose a swap, with the store; storage shows
which drafts may still get the name of a segment.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing, suppress

from bmq.broker.context import BrokerContext
from bmq.broker.partition.driver import PartitionDriver
from bmq.core.model import SegmentName
from bmq.meta.ownership import Swap
from bmq.storage.filesystem import AlreadyExists, FileSystem, NoSuchFile
from bmq.storage.layout import base_name
from bmq.storage.log_segments import ListedSegment, walk

DRAFT, DRAFT_INDEX = ".clean", ".cleanidx"
"""The beginnings of the drafts' names; the segment's name and the writer's incarnation follow."""
TAKEN = ".taken-"
"""The beginning of the name of a job's draft that an owner has taken for a swap; the owner's incarnation, "@" and the
job's name of the draft follow."""


class SegmentSwapper:
    """Swaps in one broker's partitions.

    ``names_per_job`` and ``deletes_per_job`` bound one call of ``delete_hidden``.
    """

    def __init__(self, context: BrokerContext, *, names_per_job: int, deletes_per_job: int) -> None:
        self._fs: FileSystem = context.fs
        self._incarnation = context.incarnation
        self._names_per_job = names_per_job
        self._deletes_per_job = deletes_per_job
        self.swaps_done = 0
        """Swaps that were completed: by this process, or for an owner before it."""
        self.files_deleted = 0
        """Sources that were deleted."""

    def drafts(self, driver: PartitionDriver, name: SegmentName) -> Swap:
        """Return the swap for a cleaned segment of this name, with the paths of this process's drafts."""
        folder = driver.path.folder
        return Swap(
            name=name,
            draft=f"{folder}/{DRAFT}-{name}-{self._incarnation}",
            draft_index=f"{folder}/{DRAFT_INDEX}-{name}-{self._incarnation}",
        )

    async def take(self, swap: Swap) -> Swap:
        """Give the drafts of a job names of this process, in the job's folder; return the swap with these names.

        Raises NoSuchFile if a draft is gone, and StorageError.
        """
        taken = Swap(name=swap.name, draft=self._taken_path(swap.draft), draft_index=self._taken_path(swap.draft_index))
        for draft, path in zip(swap.drafts, taken.drafts, strict=True):
            await self._fs.rename(draft, path)
        return taken

    def _taken_path(self, draft: str) -> str:
        return f"{draft.removesuffix(base_name(draft))}{TAKEN}{self._incarnation}@{base_name(draft)}"

    async def swap(self, driver: PartitionDriver, swap: Swap) -> bool:
        """Register the swap and complete it; both drafts are complete and closed.

        Return False if a draft is gone: the log is as it was. Raises RequestError if this broker is not the owner any
        more, and StorageError. The partition's next owner completes a swap that is registered.
        """
        await driver.store_swap(swap)
        return await self.complete(driver)

    async def complete(self, driver: PartitionDriver) -> bool:
        """Complete the swap of the partition's record: do the steps that are left.

        Return False if a draft is gone before the swap was complete: the log is as it was. A draft gets its name only
        beside its index, since a segment without an index would never be cleaned again. Raises RequestError if this
        broker is not the owner any more, StorageError, and KvError.
        """
        swap = driver.machine.record.swap
        if swap is None:
            return False
        log, idx = driver.path.log(swap.name), driver.path.idx(swap.name)
        if await self._exists(swap.draft):
            with suppress(NoSuchFile):  # it has its name, or another process has just given it
                await self._fs.replace(swap.draft_index, idx)
            if await self._exists(idx):
                with suppress(NoSuchFile, AlreadyExists):
                    await self._fs.rename(swap.draft, log)
        is_done = await self._exists(log)
        if not is_done:
            await driver.prove()  # a later owner may have cleaned the same sources: the index is its segment's then
            await self._fs.delete(idx)
        for draft in swap.drafts:
            await self._fs.delete(draft)
        await driver.store_swap(None)
        self.swaps_done += is_done
        return is_done

    async def delete_hidden(self, driver: PartitionDriver, below: int | None = None) -> bool:
        """Delete files that a cleaned segment hides, in order of names; return whether more are left.

        A file that the record names stays, and so do later registrations: they may be open, or a successor needs
        them.  With ``below``, files from this offset on stay too, and do not count.  Raises RequestError or KvError if
        the ownership cannot be proven, and StorageError.
        """
        hidden, is_more = await self._hidden(driver, below)
        if not hidden:
            return False
        await driver.prove()
        for name in hidden:
            # The index first: a log without an index is scanned, an index without a log stays as garbage.
            await self._fs.delete(driver.path.idx(name))
            await self._fs.delete(driver.path.log(name))
            self.files_deleted += 1
        return is_more

    async def _hidden(self, driver: PartitionDriver, below: int | None = None) -> tuple[Sequence[SegmentName], bool]:
        """Return the first files within the ranges of cleaned segments, and whether more may follow."""
        entries = driver.machine.record.segments
        if not entries:
            return [], False
        floor = min(entry.name.order for entry in entries)
        found: list[SegmentName] = []
        hidden = HiddenNames()
        count = 0
        async with aclosing(walk(self._fs, driver.path)) as listing:
            async for listed in listing:
                count += 1
                if listed.name.order >= floor or (below is not None and listed.name.base >= below):
                    break
                found += hidden.take(listed)
                is_long = count >= self._names_per_job and len(found) > 0
                if is_long or len(found) >= self._deletes_per_job:
                    return found[: self._deletes_per_job], True
        return found, False

    async def _exists(self, path: str) -> bool:
        with suppress(NoSuchFile):
            await self._fs.status(path)
            return True
        return False


def given_back(taken: str) -> str:
    """Return the job's path of a draft that an owner has taken."""
    folder, _, name = taken.rpartition("/")
    return f"{folder}/{name.rpartition('@')[2]}"


class HiddenNames:
    """The names that cleaned segments hide, found in a walk over a partition's names.

    Plain files that a takeover superseded are not among them.
    """

    def __init__(self) -> None:
        self._cleaned: SegmentName | None = None
        self._before: list[SegmentName] = []  # at the base of the next live segment, perhaps: it may hide them

    def take(self, listed: ListedSegment) -> list[SegmentName]:
        """Take the walk's next name; return the hidden names that are known by it."""
        name, cleaned = listed.name, self._cleaned
        if listed.is_live:
            self._cleaned = cleaned = name if name.cleaning else None
            found = [each for each in self._before if cleaned is not None and each.base == cleaned.base]
            self._before = []
            return found
        if cleaned is not None and name.order < cleaned.order:
            return [name]
        self._before.append(name)
        return []

"""The checks before a job's drafts replace segments of a log.  A check raises SwapStopped, whose text says what to do.

| what must hold | what would happen without it |
|---|---|
| the plan is not too old | tombstones go earlier than ``delete.retention.ms`` after the swap |
| the sources are the files of the plan | records that the job has not read are gone |
| the drafts are closed, complete, and of this job, round and group | readers get wrong records |
| the owner may rename the drafts | the record has a swap that cannot be completed |
| no draft lacks tombstones behind a group that was passed over | a deleted value comes back |
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import NamedTuple

from bmq.broker.cleanup.index_reads import read_idx
from bmq.broker.cleanup.orphans import files_of
from bmq.broker.cleanup.segment_swap import SegmentSwapper
from bmq.broker.context import BrokerContext
from bmq.broker.partition.driver import PartitionDriver
from bmq.core.file_access import Access
from bmq.core.model import SegmentName, cleaned_name
from bmq.meta.ownership import Swap
from bmq.storage.access import REFUSALS
from bmq.storage.checkpoint import Checkpoint, Cleaned
from bmq.storage.cleaning.job_round import SWAP_WITHIN_MS, draft_folder, sources_digest
from bmq.storage.filesystem import CorruptData, FileSystem, Lease, NoSuchFile, Unsupported
from bmq.storage.log_segments import ListedSegment

INDEX_BYTES_MAX = 256 << 20
"""Most bytes of a draft's index: those of a million producers, and of the index of the largest segment."""
_FILE_NAME = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,200}", re.ASCII)
PLAN_AGAIN = "begin a new round"
_RIGHTS_NEEDED = "the broker's user has to read the drafts, and to rename them out of the job's folder"
_RIGHTS_ADVICE = (
    "Run the job as the brokers' user; or give the topic a storage.group that has both users, and a storage.mode with"
    " write and execute rights for the group, as 770"
)


class DraftGroup(NamedTuple):
    """A group of sources, and the drafts of the cleaned segment that replaces them, as a job sends them.

    ``sources``: their ``sources_digest``.  ``draft`` and ``draft_index``: paths on storage.
    """

    name: SegmentName
    end_offset: int
    sources: str
    draft: str
    draft_index: str


class SwapStopped(Exception):
    """The reason for which a group is not swapped, nor any behind it; ``str`` says what to do."""


@dataclass(slots=True, kw_only=True)
class SwapRequest:
    """A request under way to swap groups of a round.

    ``end`` and ``swap_until_ms`` are the plan's.  ``segments``: live segments that no record names.  ``left_below``:
    below it, sources of a group that was passed over may be left; None until it is known.
    """

    driver: PartitionDriver
    job: str
    end: int
    swap_until_ms: int
    segments: Sequence[ListedSegment]
    left_below: int | None = None
    has_folder: bool = False  # the folder's check is done

    @property
    def folder(self) -> str:
        """The job's folder."""
        return draft_folder(self.driver.path.folder, self.job)

    def is_swapped(self, group: DraftGroup, sources: Sequence[ListedSegment]) -> bool:
        """Return whether the group's cleaned segment has replaced its sources."""
        return [(one.name, one.end) for one in sources] == [(group.name, group.end_offset)]

    def is_passed_over(self, group: DraftGroup, sources: Sequence[ListedSegment]) -> bool:
        """Return whether the log start has passed some of the sources, so that the group is not swapped."""
        return group.name.base < self.driver.machine.log_start and _digest(sources) != group.sources


class SwapChecks:
    """The checks that read storage or the clock.  They raise StorageError too; then the job asks again.

    ``failed`` is called with a text, a path and an error for each damaged or lost index.
    """

    def __init__(self, context: BrokerContext, failed: Callable[[str, str, Exception], None]) -> None:
        self._context = context
        self._fs: FileSystem = context.fs
        self._failed = failed

    def why_late(self, swap_until_ms: int) -> str:
        """Return why drafts of a plan may not be swapped any more; "" if they may.

        Delete horizons of the drafts count from ``swap_until_ms``.  After a later swap, tombstones would be gone before
        a reader of the deleted values has had ``delete.retention.ms`` to read them.
        """
        if self._context.clock.now_ms() <= swap_until_ms:
            return ""
        return (
            f"its plan had to be swapped within {SWAP_WITHIN_MS // 3_600_000} h, and this time is over: tombstones"
            " could go earlier than delete.retention.ms after the swap; run the job again, with more executors or fewer"
            " partitions (--partitions)"
        )

    async def check_done(self, request: SwapRequest, group: DraftGroup) -> None:
        """Check that the present segment of the group's name is of this round, or cleaner.  Raises SwapStopped.

        A local round gives the same name, after a hold that was over: records below the job's end may be left in it.
        """
        index = await self._index(request.driver, group.name)
        if index is None or index.cleaned is None or index.cleaned.clean_to < request.end:
            raise SwapStopped(f"its sources were cleaned by another round; {PLAN_AGAIN}")

    async def check_tombstones(self, request: SwapRequest, group: DraftGroup, sources: Sequence[ListedSegment]) -> None:
        """Check that the group's draft has all tombstones of its sources if older records may be left before it.

        Older records are left in a group that was passed over.  A draft lacks a tombstone whose delete horizon is over,
        and only cleaned sources have horizons.  Raises SwapStopped.
        """
        driver = request.driver
        if request.left_below is None:
            request.left_below = await self._left_below(request, group)
        if request.left_below <= driver.machine.log_start:
            return
        now_ms = self._context.clock.now_ms()
        for source in sources:
            if not source.name.cleaning:
                continue
            index = await self._index(driver, source.name)
            if index is None or index.cleaned is None or _may_lose_tombstones(index.cleaned, now_ms):
                raise SwapStopped(
                    "its draft may lack tombstones whose older records are left: the log start has moved into a group"
                    f" before it; {PLAN_AGAIN}"
                )

    async def _left_below(self, request: SwapRequest, group: DraftGroup) -> int:
        """Return the offset below which sources may be left as they were, judged by the log's first segment.

        The group that was passed over last has the log start, or lies below it.
        """
        driver = request.driver
        first = next((one for one in request.segments if (one.end or 0) > driver.machine.log_start), None)
        if first is None or first.name.base >= group.name.base:
            return 0
        index = await self._index(driver, first.name) if first.name.cleaning else None
        is_of_round = index is not None and index.cleaned is not None and index.cleaned.clean_to >= request.end
        return 0 if is_of_round else group.name.base

    async def check_drafts(self, request: SwapRequest, group: DraftGroup) -> Cleaned:
        """Check that the group's drafts are complete, closed, and the job's; return the facts of the cleaned segment.

        The writers of both files are fenced: the files never change again.  Raises SwapStopped.
        """
        _check_paths(request.folder, group)
        try:
            if not request.has_folder:
                await self.check_folder(request.folder)
                request.has_folder = True
            length = await self._closed(group.draft)
            if await self._closed(group.draft_index) > INDEX_BYTES_MAX:
                raise SwapStopped(f"its index has more than {INDEX_BYTES_MAX} bytes")
            index = await self._read(group.draft_index)
            if length:
                await self._check_readable(group)
        except NoSuchFile as error:
            raise SwapStopped(f"a draft is gone ({error}); {PLAN_AGAIN}") from None
        except Unsupported as error:
            raise SwapStopped(missing_rights(error)) from None
        machine, end = request.driver.machine, request.end
        if index is None:
            raise SwapStopped("the index of its draft is damaged")
        is_right = (
            index.key == machine.key
            and index.segment == group.name
            and index.end_offset == group.end_offset
            and index.position == length
            and index.is_closed
            and index.is_full
        )
        if not is_right or index.cleaned is None or index.cleaned.clean_to != end:
            raise SwapStopped(f"its draft of {length} bytes, or the index of the draft, is not of this group and round")
        bound = min(machine.high_watermark, machine.last_stable_offset)
        if not group.end_offset <= end <= bound:
            raise SwapStopped(
                f"the round's end {end} is not between the group's end and {bound}, up to where it is stable"
            )
        for path in (group.draft, group.draft_index):
            await self._give_access(path, request.driver.segments.access)
        return index.cleaned

    async def take_drafts(self, swapper: SegmentSwapper, group: DraftGroup) -> Swap:
        """Give the group's drafts names of this process; return the swap with these names.  Raises SwapStopped.

        A later owner finds them by the names, whether its record has the swap or not (``former_owners``).
        """
        try:
            return await swapper.take(Swap(name=group.name, draft=group.draft, draft_index=group.draft_index))
        except NoSuchFile as error:
            raise SwapStopped(f"a draft is gone ({error}); {PLAN_AGAIN}") from None
        except Unsupported as error:
            raise SwapStopped(missing_rights(error)) from None

    async def check_folder(self, folder: str) -> None:
        """Check that this process may list the folder, and rename files out of it: a swap must not get stuck.

        Raises NoSuchFile, Unsupported (NotAllowed), and other StorageErrors.
        """
        await self._fs.status(folder)
        async with aclosing(files_of(self._fs, folder)) as files:
            await anext(files, None)
        trial = f"{folder}/.trial-{self._context.incarnation}"
        await self._fs.make_folder(trial)
        await self._fs.delete(trial)

    async def _closed(self, path: str) -> int:
        """Return the length of a file, on disk, after the end of any writer.  Raises StorageError."""
        status = await self._fs.status(path)
        if status.is_dir:
            raise NoSuchFile(f"{path} is a folder")
        return await self._fs.fence(Lease(paths=(path,), holder="", file_id=status.file_id), sync=True)

    async def _give_access(self, path: str, access: Access) -> None:
        """Give a draft the rights of the topic's files, as far as storage lets this process do it."""
        if not access.is_given:
            return
        status = await self._fs.status(path)
        missing = access.of_file().missing(status.owner, status.group, status.mode)
        try:
            if missing.is_given:
                await self._fs.set_access(path, missing)
        except Unsupported as error:
            REFUSALS.note(path, error)

    async def _check_readable(self, group: DraftGroup) -> None:
        """Check that storage has the group's draft.  Raises SwapStopped, and StorageError while no replica responds."""
        try:
            if await self._fs.read(group.draft, 0, 1):
                return
        except CorruptData:
            pass
        raise SwapStopped("its draft cannot be read")

    async def _index(self, driver: PartitionDriver, name: SegmentName) -> Checkpoint | None:
        """Return the index of a segment, as ``_read``."""
        return await self._read(driver.path.idx(name))

    async def _read(self, path: str) -> Checkpoint | None:
        """Return an index; None if it is missing or damaged.

        Raises StorageError while no replica responds, as during a restart of datanodes: drafts are the work of hours,
        and the job asks again for some minutes.
        """
        try:
            return await read_idx(self._fs, path, self._not_used)
        except CorruptData as error:
            self._not_used(path, error)
            return None

    def _not_used(self, path: str, error: Exception) -> None:
        self._failed("an index is damaged, and not used", path, error)


# ------------------------------------------------------------------------------------------------- plain functions


def missing_rights(error: Unsupported) -> str:
    """Return the text for rights on the job's folder that this process lacks."""
    return f"{_RIGHTS_NEEDED}: {error}. {_RIGHTS_ADVICE}"


def _digest(sources: Sequence[ListedSegment]) -> str:
    return sources_digest((one.name, one.length) for one in sources)


def _may_lose_tombstones(cleaned: Cleaned, now_ms: int) -> bool:
    """Return whether a round that began before ``now_ms`` may remove tombstones of a cleaned source."""
    if cleaned.tombstones < 0:
        return True  # unknown, as after a repair
    return cleaned.tombstones > 0 and 0 <= cleaned.horizon <= now_ms


def check_sources(group: DraftGroup, sources: Sequence[ListedSegment]) -> None:
    """Compare the live segments of the group with the files of the job's plan.  Raises SwapStopped."""
    digest = _digest(sources)
    if not sources or sources[-1].end != group.end_offset or digest != group.sources:
        raise SwapStopped(f"its sources are not the files that the job read: the log has changed; {PLAN_AGAIN}")
    try:
        name = cleaned_name([one.name for one in sources])
    except ValueError as error:
        raise SwapStopped(str(error)) from None
    if name != group.name:
        raise SwapStopped(f"the cleaned segment of its sources has the name {name}")


def _check_paths(folder: str, group: DraftGroup) -> None:
    """Check that the drafts are two files in the job's folder, by their paths.  Raises SwapStopped."""
    if group.draft == group.draft_index:
        raise SwapStopped("draft and index are one file")
    for path in (group.draft, group.draft_index):
        parent, _, name = path.rpartition("/")
        if parent != folder or _FILE_NAME.fullmatch(name) is None:
            raise SwapStopped(f"{path[:300]!r} is not a file of the job's folder {folder}")

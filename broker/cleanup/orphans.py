"""Removal of orphans: temporary files of earlier epochs, jobs' folders, and journals that no record names any more.

Each file is *fenced* before it is deleted: datanodes acknowledge an open file's writer even after its name is deleted.
The folder of a job that cleaned a log is not: the owner takes a draft by its name, and none is left.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import aclosing

from bmq.broker.cleanup.merge_drafts import is_merge_draft
from bmq.broker.cleanup.upkeep_queue import UpkeepState
from bmq.broker.context import BrokerContext
from bmq.broker.partition.machine import PartitionMachine
from bmq.core.errors import FormatError
from bmq.core.logging.fields import fields
from bmq.meta import ownership
from bmq.storage import layout
from bmq.storage.cleaning.job_round import DRAFT_FOLDER, draft_folder
from bmq.storage.filesystem import FileStatus, FileSystem, Lease, NoSuchFile, Unsupported

_log = logging.getLogger(__name__)

_DRAFT = re.compile(r"\.(?:idx|join|repair|clean|cleanidx)-\d{20}-\d{8}-\d{4,}(?:-\d{8}(?=-.+-))?-(.+)")
"""A draft's name: the segment's name, then the incarnation, which has a "-" itself."""
_CONCAT = re.compile(r"\..+\.concat")
JOB_GRACE_MS = 86_400_000
"""Age of the newest file in a job's folder from which on the job counts as dead: a job writes, or asks, far more often.
"""
DENIED_PAUSE_MS, DENIED_PAUSE_MAX_MS = 21_600_000, 7 * 86_400_000
"""Pause after storage has refused to delete a job's folder, doubled by each refusal up to a week: only a person can
change the rights."""
FENCED_AT_ONCE = 16
"""Files removed at once: a fence takes seconds while a datanode of the file is dead, and the janitor's other jobs wait
for the sweep."""


class Sweeper:
    """Removal of orphaned files by one broker.  A file younger than its grace period is never touched."""

    def __init__(
        self,
        context: BrokerContext,
        *,
        names_per_job: int,
        grace_ms: int,
        journal_grace_ms: int,
        journals_per_sweep: int,
    ) -> None:
        self._context = context
        self._fs: FileSystem = context.fs
        self._names_per_job = names_per_job
        self._grace_ms = grace_ms
        self._journal_grace_ms = journal_grace_ms
        self._journals_per_sweep = journals_per_sweep
        self.files_swept = 0

    async def sweep(self, state: UpkeepState, now_ms: int, job: str | None = None) -> bool:
        """Delete the files that earlier owners left under temporary names.  Returns whether there were any.

        Files of the present epoch stay, but for spares that this process has given up and could not delete: a spare
        that is left keeps its epoch from being merged.  The draft of a merge stays until it is settled: beside
        a late ``concat``, nothing else shows that this call is to come.  Folders of jobs are deleted ``JOB_GRACE_MS``
        after their last change, but for the folder of ``job``, which holds the partition.  A folder that this process
        may not delete waits for ``DENIED_PAUSE_MS`` and longer, while every look finds it.  ``now_ms`` is wall time.
        Raises RequestError if the partition is not owned any more, StorageError, KvError.
        """
        driver, machine = state.driver, state.driver.machine
        named = {entry.spare for entry in machine.record.segments}
        if machine.record.swap is not None:
            named.update(machine.record.swap.drafts)
        listed = await temporary_files(self._fs, driver.path.folder, self._names_per_job)
        if job is not None:
            named.add(f"{draft_folder(driver.path.folder, job)}/")
        old = [
            (status, holder)
            for status in listed
            if now_ms - status.modified_ms > self._grace_ms
            and status.path not in named
            and not status.is_dir
            and (not is_merge_draft(status.path) or status.path in state.settled_merges)
            and (holder := self._left_by(status, machine)) is not None
        ]
        pauses = state.denied_pauses
        state.denied_pauses = {each.path: pauses[each.path] for each in listed if each.path in pauses}
        folders = [status for status in listed if await self._is_left_by_job(state, status, named, now_ms)]
        if old or folders:
            await driver.prove()
        await self._remove_all(old)
        for folder in folders:
            try:
                self.files_swept += await self._fs.delete(folder.path, recursive=True)
            except Unsupported as error:
                self._deny(state, folder.path, now_ms, error)
        return bool(old)

    @staticmethod
    def _deny(state: UpkeepState, path: str, now_ms: int, error: Unsupported) -> None:
        """Leave a job's folder for a time; warn at the first refusal."""
        pause_ms, _ = state.denied_pauses.get(path, (0, 0))
        if not pause_ms:
            text = (
                "cannot delete the folder of a job that is over, and tries again ever more rarely: delete it, or give"
                " the brokers' user the right to write into it"
            )
            _log.warning(text, extra=fields(path=path, error=error))
        state.denied_pauses[path] = min(max(2 * pause_ms, DENIED_PAUSE_MS), DENIED_PAUSE_MAX_MS), now_ms

    async def _is_left_by_job(
        self, state: UpkeepState, status: FileStatus, named: Collection[str], now_ms: int
    ) -> bool:
        """Return whether this is the folder of a job that is over: all in it is old, and ``named`` has none of it.

        The pause of a folder in use is forgotten.
        """
        if not status.is_dir or not layout.base_name(status.path).startswith(DRAFT_FOLDER):
            return False
        oldest_ms = now_ms - JOB_GRACE_MS
        is_used = status.modified_ms >= oldest_ms or any(path.startswith(f"{status.path}/") for path in named)
        pause_ms, since_ms = state.denied_pauses.get(status.path, (0, 0))
        if not is_used and 0 <= now_ms - since_ms < pause_ms:  # below 0 the wall clock was set back
            return False
        try:
            is_used = is_used or await self._has_file_of(status.path, oldest_ms)
        except Unsupported as error:
            self._deny(state, status.path, now_ms, error)
            return False
        if is_used:
            state.denied_pauses.pop(status.path, None)
        return not is_used

    async def _has_file_of(self, folder: str, oldest_ms: int) -> bool:
        """Return whether a file in the folder was changed at ``oldest_ms`` or later."""
        async with aclosing(files_of(self._fs, folder)) as files:
            async for file in files:
                if file.modified_ms >= oldest_ms:
                    return True
        return False

    def _left_by(self, status: FileStatus, machine: PartitionMachine) -> str | None:
        """Return the lease holder of a file that cannot be of use any more, "" if it has none; None: it must stay."""
        name = layout.base_name(status.path)
        spare = layout.parse_spare(name)
        if spare is not None:
            epoch, serial, holder = spare
            is_own = epoch == machine.epoch and holder == self._context.incarnation
            is_left = epoch < machine.epoch or (is_own and machine.next_segment.has_given_up(status.path, serial))
            return holder if is_left else None
        draft = _DRAFT.fullmatch(name)
        if draft is not None:
            return draft[1] if not name.endswith(f"-{self._context.incarnation}") else None
        return "" if _CONCAT.fullmatch(name) else None

    async def _remove_all(self, files: Sequence[tuple[FileStatus, str]]) -> None:
        """Remove each of ``files`` (with its holder), several at once.  Raises the first error, once all were tried."""
        turns = asyncio.Semaphore(FENCED_AT_ONCE)

        async def remove(status: FileStatus, holder: str) -> None:
            async with turns:
                is_removed = await self._remove(status, holder)
            self.files_swept += is_removed

        for error in await asyncio.gather(*(remove(*file) for file in files), return_exceptions=True):
            if error is not None:
                raise error

    async def _remove(self, status: FileStatus, holder: str) -> bool:
        """Fence the file's writer, then delete the file.  Returns whether there was such a file."""
        if holder:
            try:
                await self._fs.fence(Lease(paths=(status.path,), holder=holder, file_id=status.file_id))
            except NoSuchFile:
                return False
        return await self._fs.delete(status.path)

    async def sweep_journals(self, now_ms: int) -> None:
        """Delete the journals of brokers that are not members and that no partition's record names.

        A broker that was paused for longer than the grace period may still resume and claim a partition.  It is fenced,
        and begins a new journal with a snapshot of its whole state, so nothing in the old journal is needed.
        ``now_ms`` is wall time.  Raises StorageError, KvError, and FormatError if a record cannot be read.
        """
        dead = await self._old_journals(now_ms)
        for incarnation in list(dead):
            if self._context.is_alive(incarnation):
                del dead[incarnation]
        if not dead:
            return
        async for entry in self._context.kv.list(f"/{self._context.cluster}/partitions/"):
            try:
                record = ownership.decode(entry.value)
            except FormatError as error:  # any journal may be one that it names
                raise FormatError(f"key {entry.key}: {error}; no journal is removed meanwhile") from error
            for incarnation in (record.owner, *record.journals):
                dead.pop(incarnation, None)
        await self._remove_all([(status, incarnation) for incarnation, files in dead.items() for status in files])

    async def _old_journals(self, now_ms: int) -> dict[str, list[FileStatus]]:
        """Return, by incarnation, the journals of other brokers all of whose files are older than the grace period."""
        found: dict[str, list[FileStatus]] = {}
        young: set[str] = {self._context.incarnation}
        async for status in self._fs.list(layout.JOURNALS):
            parsed = layout.parse_journal(layout.base_name(status.path))
            if parsed is None or parsed[0] in young:
                continue
            if now_ms - status.modified_ms <= self._journal_grace_ms:
                young.add(parsed[0])
                found.pop(parsed[0], None)
            elif parsed[0] in found or len(found) < self._journals_per_sweep:
                found.setdefault(parsed[0], []).append(status)
        return found


async def files_of(fs: FileSystem, folder: str, *, after: str = "") -> AsyncGenerator[FileStatus, None]:
    """Give the children of a folder with a name greater than ``after``, in order.  Raises StorageError."""
    listing = fs.list(folder, after=after)
    try:
        async for status in listing:
            yield status
    finally:
        if isinstance(listing, AsyncGenerator):
            await listing.aclose()


async def temporary_files(fs: FileSystem, folder: str, count_max: int, *, after: str = "") -> list[FileStatus]:
    """Return up to ``count_max`` entries of the folder whose names begin with a dot: temporary files, jobs' folders.

    All names are greater than ``after``.  They sort before all others, so no segment is listed.  Raises StorageError.
    """
    found: list[FileStatus] = []
    async with aclosing(files_of(fs, folder, after=after)) as listing:
        async for status in listing:
            if not layout.base_name(status.path).startswith(".") or len(found) >= count_max:
                break
            found.append(status)
    return found

"""The drafts of former owners, settled before files of the partition are merged or cleaned.

A former owner that stood still goes on with its next step, however late.  Its drafts show this step:

| draft on storage                  | next step            | settled by                                                |
|-----------------------------------|----------------------|-----------------------------------------------------------|
| cleaned segment, in the record    | give it its name     | the owner, which completes the swap first                 |
| cleaned segment, not in the record| give it its name,    | deleting it.  The segments that it replaces may soon be   |
|                                   | after the loss of    | part of a merged file, which it would hide with all that  |
|                                   | the store            | was appended                                              |
| a job's, taken by an owner, not in| the same             | giving it back its name in the job's folder: the job may  |
| the record                        |                      | ask for its swap again.  Without the right to rename it,  |
|                                   |                      | nothing: neither merge nor clean, since the right may     |
|                                   |                      | come back to a former owner first                         |
| index of a merge, complete        | append files         | appending them now: the late call then finds no sources.  |
|                                   |                      | It could append them to a source of a cleaned segment,    |
|                                   |                      | which hides them                                          |
| the same, and storage refuses     | append files         | nothing: the refusal may end for the late call first.     |
| the append now                    |                      | The log waits.  Only files that can never be joined are   |
|                                   |                      | settled by a refusal                                      |
| the same, and the target has the  | delete the sources   | deleting them now (a local root's append takes steps):    |
| sources' bytes already            |                      | else a cleaned segment may hide the target first          |
| index of a merge, complete, whose | prove the ownership  | nothing: the proof fails, since another owner has merged  |
| files do not fit in two listings  |                      | the files.  One listing proves nothing: a call may have   |
|                                   |                      | changed the target meanwhile, and deleted a source        |
| index of a merge, complete, of a  | append files         | nothing: an owner may delete the target late, with all    |
| target below the log start        |                      | that was appended.  The log waits                         |
| index of a merge, incomplete      | prove the ownership  | nothing: the proof fails                                  |
| index of a merge, lost by storage | append files         | nothing: the sources are not known.  The log waits        |

A log that waits is neither merged nor cleaned.  The wait ends once its log start has passed the files.  Or an
operator ends the process of the former owner, and deletes the draft.

An index of a merge is complete before its writer proves its ownership.  So one
listing shows all these drafts to a successor.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from enum import Enum

from bmq.broker.cleanup.index_reads import IndexReads, Unread
from bmq.broker.cleanup.merge_drafts import PAST_MERGED, draft_name, is_merge_draft, target_of
from bmq.broker.cleanup.orphans import files_of, temporary_files
from bmq.broker.cleanup.retention import RetentionState
from bmq.broker.cleanup.segment_merge import SegmentMerger
from bmq.broker.cleanup.segment_swap import DRAFT, DRAFT_INDEX, TAKEN, given_back
from bmq.broker.cleanup.upkeep_queue import UpkeepState
from bmq.broker.context import BrokerContext
from bmq.core.logging.fields import fields
from bmq.core.model import SegmentName
from bmq.storage.checkpoint import Checkpoint
from bmq.storage.cleaning.job_round import DRAFT_FOLDER
from bmq.storage.filesystem import (
    AlreadyExists,
    FileSystem,
    Lease,
    LeaseLost,
    NoSuchFile,
    StorageError,
    StorageUnavailable,
    Unjoinable,
    Unsupported,
    delete_joined,
)
from bmq.storage.layout import base_name
from bmq.storage.log_segments import ListedSegment, walk
from bmq.storage.segment import EndsEarly

_log = logging.getLogger(__name__)

LOCKED_MS = 600_000
"""Milliseconds after which the log names a merge whose files another call holds.

A local root's call copies for a minute at most.  A process that stands still within its call keeps the locks.
"""
_CLEANED = (f"{DRAFT}-", f"{DRAFT_INDEX}-")
LOST_AGAIN_MS = 600_000
"""Milliseconds until a lost draft is read again: three jobs look at it each minute, and a failing read may take ten
seconds of the janitor's time."""


class Unsettled(Enum):
    """The reason why a log may not be merged and cleaned yet; the text is for jobs."""

    MERGE = "a former owner's merge is not settled yet; try again in a minute"
    MANY = (
        "the partition's folder has too many temporary files; until then nothing is merged or cleaned: the sweep"
        " deletes the broker's own, try again in an hour; delete other files whose names begin with a dot"
    )
    LATE = (
        "an owner's merge may still come, and the present owner cannot settle it; until then nothing is merged or"
        " cleaned: end the process that wrote the draft .join-… which the owner's log names, then delete the draft"
    )
    DRAFT = (
        "a former owner may have taken drafts from a job's folder, and storage does not let the owner give them back;"
        " until then nothing is merged or cleaned: give the brokers' user the rights to read and to write the folders"
        f" {DRAFT_FOLDER}* of the partition, or delete them"
    )


class FormerOwners:
    """Settlement of former owners' drafts, in one broker's partitions."""

    def __init__(self, context: BrokerContext, merger: SegmentMerger, *, names_per_job: int) -> None:
        self._context = context
        self._fs: FileSystem = context.fs
        self._merger = merger
        self._names_per_job = names_per_job
        self.merges_ended = 0
        """Merges of former owners that were carried out here."""

    async def settle(self, state: UpkeepState, *, may_append: bool = True) -> Unsettled | None:
        """Settle the drafts in the partition's folder; return why the log may not be merged and cleaned now, or None.

        To be called while no round of this process writes drafts for the partition.  Without ``may_append`` merges
        wait: a job holds the partition, and has read the files.  Raises StorageError, and
        RequestError or KvError if the ownership cannot be proven.
        """
        driver, machine = state.driver, state.driver.machine
        found = await temporary_files(self._fs, driver.path.folder, self._names_per_job)
        listed = [status.path for status in found]
        named = {path for swap in (machine.record.swap, machine.swap) if swap is not None for path in swap.drafts}
        drafts = [path for path in listed if base_name(path).startswith(_CLEANED) and path not in named]
        merges = [path for path in listed if is_merge_draft(path)]
        folders = [status.path for status in found if status.is_dir and base_name(status.path).startswith(DRAFT_FOLDER)]
        taken, denied = await self._taken(folders)
        taken = [path for path in taken if path not in named]
        if drafts or merges or taken:
            await driver.prove()  # the drafts were listed before: none of them is a later owner's
        for path in drafts:
            await self._fs.delete(path)
        denied |= await self._give_back_all(taken)
        self._warn(state, denied)
        late: dict[str, str] = {}
        locked: dict[str, LeaseLost] = {}
        state.settled_merges = frozenset(
            [path for path in merges if await self._end_merge(state, path, late, locked, may_append)]
        )
        for path in state.settled_merges:
            if self._is_own(path):
                await self._fs.delete(path)  # the sweep leaves it, and retention leaves the target of a draft
        late |= self._long_locked(state, locked)
        if state.drafts is not None:
            state.drafts.keep(merges)
        self._warn_late(state, late)
        if late:
            return Unsettled.LATE
        if len(state.settled_merges) < len(merges):
            return Unsettled.MERGE
        # Behind these names there may be a draft of a merge.
        is_crowded = len(listed) == self._names_per_job and base_name(listed[-1]) < PAST_MERGED
        self._warn_crowded(state, is_crowded=is_crowded)
        if is_crowded:
            return Unsettled.MANY
        return Unsettled.DRAFT if denied else None

    async def _taken(self, folders: Sequence[str]) -> tuple[list[str], dict[str, Unsupported]]:
        """Return the taken drafts in jobs' folders, and the errors of folders without the right to list them.

        Such a folder may have a taken draft: its rights may have changed since.
        """
        found: list[str] = []
        denied: dict[str, Unsupported] = {}
        for folder in folders:
            try:
                async with aclosing(files_of(self._fs, folder, after=TAKEN)) as files:
                    async for status in files:
                        if not base_name(status.path).startswith(TAKEN):
                            break
                        found.append(status.path)
            except Unsupported as error:
                denied[folder] = error
        return found, denied

    async def _give_back_all(self, taken: Sequence[str]) -> dict[str, Unsupported]:
        """Give drafts back to their jobs; return the errors of folders in which storage refuses it.

        A former owner's late call needs the same right, and may get it before this process tries again.
        """
        denied: dict[str, Unsupported] = {}
        for path in taken:
            try:
                await self._give_back(path)
            except Unsupported as error:
                denied[path.rpartition("/")[0]] = error
        return denied

    @staticmethod
    def _warn(state: UpkeepState, denied: Mapping[str, Unsupported]) -> None:
        """Warn once of each folder in ``denied``, and note the folders."""
        for folder in sorted(denied.keys() - state.denied_folders):
            text = (
                "cannot give the drafts in a job's folder back to the job, and neither merges nor cleans the log"
                " until then: give the brokers' user the rights to read and to write the folder, or delete it"
            )
            _log.warning(text, extra=fields(**state.driver.path.log_fields, path=folder, error=denied[folder]))
        state.denied_folders = frozenset(denied)

    async def _give_back(self, taken: str) -> None:
        """Give a draft back to its job: a late call of its owner does not find it."""
        try:
            await self._fs.rename(taken, given_back(taken))
        except NoSuchFile:
            return  # its owner was faster, or the job has deleted its folder
        except AlreadyExists:
            await self._fs.delete(taken)

    def _warn_crowded(self, state: UpkeepState, *, is_crowded: bool) -> None:
        """Warn once of a folder with too many temporary files, and note whether it has them."""
        if is_crowded and not state.is_crowded:
            text = (
                "a partition's folder has %d temporary files or more, and the log waits unmerged and uncleaned: the"
                " sweep deletes old files of the broker and of jobs; delete other files whose names begin with a dot"
            )
            _log.warning(text, self._names_per_job, extra=fields(**state.driver.path.log_fields))
        state.is_crowded = is_crowded

    @staticmethod
    def _warn_late(state: UpkeepState, late: Mapping[str, str]) -> None:
        """Warn once of each draft in ``late``, with the reason why its merge cannot be settled, and note the drafts."""
        for path in sorted(late.keys() - state.late_merges):
            text = (
                "an owner's merge may still come and cannot be settled, and the log waits unmerged and uncleaned: end"
                " the process that wrote the draft, by the incarnation in its name; then delete the draft (hdfs dfs"
                " -rm, rm).  If storage refuses the merge, an end of the refusal ends the wait, too"
            )
            _log.warning(text, extra=fields(**state.driver.path.log_fields, path=path, error=late[path]))
        state.late_merges = frozenset(late)

    def _is_own(self, draft: str) -> bool:
        """Return whether this process has written the draft: nothing of a settled merge is to come, and none runs."""
        target = target_of(draft)
        return target is not None and base_name(draft) == draft_name(target, self._context.incarnation)

    def _long_locked(self, state: UpkeepState, locked: Mapping[str, LeaseLost]) -> dict[str, str]:
        """Note the drafts of merges whose files other calls hold; return the reasons of drafts that wait for long."""
        now_ms = self._context.now_ms()
        state.locked_merges = {path: state.locked_merges.get(path, now_ms) for path in locked}
        return {
            path: f"another call holds the files: {locked[path]!r}"
            for path, since_ms in state.locked_merges.items()
            if now_ms - since_ms >= LOCKED_MS
        }

    async def _end_merge(
        self, state: UpkeepState, draft: str, late: dict[str, str], locked: dict[str, LeaseLost], may_append: bool
    ) -> bool:
        """Carry out the merge whose index is this draft, if it is still to come; return False if it has to wait.

        ``late`` gets the reason of a merge that cannot be carried out.  ``locked`` gets the error of a merge while
        another call holds its files.
        """
        path, machine, target = state.driver.path, state.driver.machine, target_of(draft)
        if target is None or not await self._exists(path.log(target)):
            return True  # no process writes such a file, or the call finds no target
        merged = await self._reads(state).read(target, draft)
        if isinstance(merged, Unread):
            if not isinstance(merged.error, EndsEarly | None):  # else the draft is incomplete, or has gone
                late[draft] = f"the draft is lost or damaged: {merged.error!r}"
            return draft not in late
        members, is_half_done = await self._members(state, merged)
        if len(members) < 2 or merged.end_offset <= machine.log_start:
            return True
        if not may_append or machine.swap is not None or machine.record.swap is not None:
            return False  # the cleaned segment hides all that is appended to its sources
        if _is_named(state, members[-1].name):
            return False
        end = members[0].end
        if end is None or end <= machine.log_start:
            late[draft] = "the segment that the others are appended to is below the log start, and may be deleted late"
            return False
        target, *sources = (one.name for one in members)
        files = [path.log(source) for source in sources]
        try:
            # Complete, and perhaps open: its close may have failed. An index that stays open is replaced by no merge.
            await self._fs.fence(Lease(paths=(draft,), holder="", file_id=0))
            if is_half_done:
                await delete_joined(self._fs, path.log(target), files, members[0].length)
            else:
                await self._fs.concat(path.log(target), files, members[0].length)
        except NoSuchFile:
            return False  # its writer was faster, or is under way: the next look finds the files that are left
        except Unjoinable:
            return True  # refused to its writer, too
        except StorageUnavailable:
            raise  # its writer's call succeeds once storage is back
        except LeaseLost as error:
            locked[draft] = error
            return False
        except StorageError as error:
            late[draft] = f"storage refuses the merge, perhaps not for long: {error!r}"
            return False
        state.forget_count()  # bytes have moved to other names
        self.merges_ended += 1
        await self._merger.finish(state, draft, target, sources)
        return True

    def _reads(self, state: UpkeepState) -> IndexReads:
        if state.drafts is None:
            path, now_ms = state.driver.path, self._context.now_ms
            state.drafts = IndexReads(self._fs, path, now_ms, _keep_quiet, again_ms=LOST_AGAIN_MS)
        return state.drafts

    async def _exists(self, path: str) -> bool:
        try:
            await self._fs.status(path)
        except NoSuchFile:
            return False
        return True

    async def _members(self, state: RetentionState, merged: Checkpoint) -> tuple[list[ListedSegment], bool]:
        """Return the files of the merge, in order, and whether the target has the bytes of the others already.

        No files are returned if they do not fit the index.  On a local root a call that stands still may have joined
        the files and not deleted the sources: it deletes them late.  A listing beside this call may show the target
        before its change, and lack a source that was deleted behind the change.  A second listing shows the change.
        Files that do not fit then either have another reason: the writer of the draft listed them before an owner's
        merge, and could not prove its ownership.
        """
        found = await self._listed(state, merged)
        if not _is_joined(found, merged) and not _is_whole(found, merged):
            found = await self._listed(state, merged)
        is_half_done = _is_joined(found, merged)
        return found if is_half_done or _is_whole(found, merged) else [], is_half_done

    async def _listed(self, state: RetentionState, merged: Checkpoint) -> list[ListedSegment]:
        """Return the files in the range of the merge, in order; none unless the target is first and all are live."""
        found: list[ListedSegment] = []
        async with aclosing(walk(self._fs, state.driver.path)) as listing:
            async for listed in listing:
                if listed.name.base >= merged.end_offset:
                    break
                if listed.has_log and listed.name.base >= merged.segment.base:
                    found.append(listed)
        if not found or found[0].name != merged.segment or not all(one.is_live for one in found):
            return []
        return found


def _is_joined(found: Sequence[ListedSegment], merged: Checkpoint) -> bool:
    """Return whether the target has the bytes of all files: it grows by a merge only, and is as long as its result."""
    return bool(found) and found[0].length >= merged.position


def _is_whole(found: Sequence[ListedSegment], merged: Checkpoint) -> bool:
    """Return whether the files are those of the merge, and none is joined."""
    return bool(found) and found[-1].end == merged.end_offset and sum(one.length for one in found) == merged.position


def _keep_quiet(path: str, error: Exception) -> None:
    """Report nothing: an incomplete draft is no damage, and a lost one has a line of its own."""


def _is_named(state: RetentionState, name: SegmentName) -> bool:
    """Return whether the record names this file or an earlier one: a successor would begin there."""
    floor = min((entry.name.order for entry in state.driver.machine.record.segments), default=None)
    return floor is None or name.order >= floor

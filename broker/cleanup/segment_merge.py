"""Merging of small closed neighbours into one segment, by HDFS's ``concat``.

``docs/design/retention.md`` shows how the log reads after a crash at each step.  ``plan_merges`` decides what to merge,
``merged`` computes the index of the merged file, and ``SegmentMerger`` carries it out.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from bmq.broker.cleanup.index_reads import read_segment_idx
from bmq.broker.cleanup.merge_drafts import draft_name
from bmq.broker.cleanup.orphans import temporary_files
from bmq.broker.cleanup.retention import RetentionState
from bmq.broker.cleanup.segment_swap import HiddenNames
from bmq.broker.context import BrokerContext
from bmq.core.aio.steps import run_in_steps
from bmq.core.errors import RequestError
from bmq.core.model import SegmentName
from bmq.meta.kv import KvError
from bmq.storage import layout
from bmq.storage.checkpoint import Checkpoint
from bmq.storage.filesystem import CreateOptions, FileSystem, LeaseLost, StorageError, StorageUnavailable, write_once
from bmq.storage.index import ENTRY
from bmq.storage.log_segments import ListedSegment, walk
from bmq.storage.segment import encode_idx_steps

SPARE = ".spare-"
"""The beginning of a spare's name."""


class Pass(NamedTuple):
    """The result of one pass over the names of a partition."""

    merge_from: SegmentName | None  # where the next pass begins
    is_more: bool  # steps or names are left for another pass now
    is_blocked: bool  # a spare kept some names from being merged
    has_hidden: bool  # files are left that a cleaned segment hides
    unread_from: SegmentName | None = None  # the pass that reads the unreadable indexes again begins there


class SegmentMerger:
    """Merging of one broker's small segments.

    ``failed`` is called with text, path and error for a refused concat or a damaged index: both leave the log as it is.
    """

    def __init__(
        self,
        context: BrokerContext,
        *,
        names_per_job: int,
        merges_per_job: int,
        merge_sources_max: int,
        failed: Callable[[str, str, Exception], None],
    ) -> None:
        self._context = context
        self._fs: FileSystem = context.fs
        self._names_per_job = names_per_job
        self._merges_per_job = merges_per_job
        self._merge_sources_max = merge_sources_max
        self._failed = failed
        self.files_merged = 0

    async def merge(self, state: RetentionState, merge_from: SegmentName | None) -> Pass:
        """List names from ``merge_from`` on, and do the first ``merges_per_job`` steps that they need.

        Raises StorageError, and RequestError or KvError if the ownership cannot be proven.
        """
        machine, bytes_max = state.driver.machine, state.config.segment_bytes
        listed, is_more, is_blocked = await self._neighbours(state, merge_from)
        hidden = HiddenNames()
        has_hidden = sum(len(hidden.take(one)) for one in listed) > 0
        steps, resume = plan_merges(
            listed,
            bytes_max=bytes_max,
            sources_max=self._merge_sources_max,
            log_start=machine.log_start,
        )
        unread = [one.name for one in listed if not one.has_idx and _is_small(one, bytes_max, machine.log_start)]
        for step in steps[: self._merges_per_job]:
            if isinstance(step, RepairIndex):
                is_read = await self._repair(state, step)
            else:
                is_read = await self._merge_group(state, step.members)
            if not is_read:
                unread.append(step.first)
        left = steps[self._merges_per_job :]
        return Pass(
            left[0].first if left else resume or merge_from,
            bool(left) or is_more,
            is_blocked,
            has_hidden,
            min(unread, default=None),
        )

    async def _neighbours(
        self, state: RetentionState, merge_from: SegmentName | None
    ) -> tuple[list[ListedSegment], bool, bool]:
        """Return the names that may be merged, whether more follow, and whether a spare blocks the rest.

        Not touched are:

        * the segments that the record names, and later ones: they may be open, or a successor needs them to take over;
        * every epoch of which a spare is left: the spare may be registered, and renamed late to a base inside a merged
          file, which would then end there.  Spares are listed first: one that is not listed was renamed before, so its
          new name is listed.
        """
        folder, record = state.driver.path.folder, state.driver.machine.record
        floor = min(entry.name.order for entry in record.segments)
        dotted = await temporary_files(self._fs, folder, self._names_per_job, after=SPARE)
        has_all = len(dotted) < self._names_per_job or layout.base_name(dotted[-1].path) > f"{SPARE}~"
        spares = [layout.parse_spare(layout.base_name(status.path)) for status in dotted]
        epochs = {spare[0] for spare in spares if spare is not None}
        found: list[ListedSegment] = []
        async with aclosing(walk(self._fs, state.driver.path, merge_from)) as listing:
            async for listed in listing:
                if listed.name.order >= floor:
                    break
                if listed.name.epoch in epochs or not has_all:
                    return found, False, True
                if len(found) >= self._names_per_job and listed.is_live:
                    return found, True, False
                found.append(listed)
        return found, False, False

    async def _merge_group(self, state: RetentionState, members: Sequence[ListedSegment]) -> bool:
        """Merge each run of members whose index proves that they are whole; return whether all indexes were read.

        A file that is longer than its index ends with leftovers of a failed write, which must not get into the middle
        of a file.
        """
        run: list[ListedSegment] = []
        parts: list[Checkpoint] = []
        is_read = True
        for member in members:
            checkpoint = await self.read_idx(state, member.name)
            is_read &= checkpoint is not None
            if checkpoint is not None and (checkpoint.position, checkpoint.end_offset) == (member.length, member.end):
                run.append(member)
                parts.append(checkpoint)
                continue
            await self._merge_run(state, [one.name for one in run], parts)
            run, parts = [], []
        await self._merge_run(state, [one.name for one in run], parts)
        return is_read

    async def _merge_run(
        self, state: RetentionState, names: Sequence[SegmentName], parts: Sequence[Checkpoint]
    ) -> None:
        """Join the run, if it has several members.  If storage refuses the concat, all stays as it is."""
        if len(names) < 2:
            return
        refusal = await self._concat(state, names, parts)
        if refusal is not None:
            text = "storage refuses to merge a segment with the next"
            self._failed(text, state.driver.path.log(names[0]), refusal)

    async def _concat(
        self, state: RetentionState, names: Sequence[SegmentName], parts: Sequence[Checkpoint]
    ) -> StorageError | None:
        """Write the new index as a draft, concat, rename the index, delete the old ones: in this order.

        ``names`` are neighbours that are whole, ``parts`` their indexes.  Return the error if storage refuses the
        concat: all stays as it is.  The draft stays if there is no response, and if another call holds the files.  The
        ownership is proven behind the draft: so a successor finds the draft of every concat that may still come
        (``broker.cleanup.former_owners``).  Raises as ``merge``, and LeaseLost if another call holds the files.
        """
        path = state.driver.path
        target, *sources = names
        draft = await self._write_draft(state, target, parts)
        try:
            await state.driver.prove()
        except (RequestError, KvError):
            await self._fs.delete(draft)
            raise
        try:
            await self._fs.concat(path.log(target), [path.log(source) for source in sources], parts[0].position)
        except (StorageUnavailable, LeaseLost):
            raise
        except StorageError as error:
            await self._fs.delete(draft)
            return error
        state.forget_count()  # bytes have moved to other names
        self.files_merged += len(sources)
        await self.finish(state, draft, target, sources)
        return None

    async def _repair(self, state: RetentionState, step: RepairIndex) -> bool:
        """Finish a merge whose janitor died after the concat: indexes without logs follow ``step.head``.

        They describe the bytes that were appended, so nothing has to be scanned.  If they do not fit the head's end
        they stay: the log is read correctly without them.  Return whether all indexes were read.
        """
        head = await self.read_idx(state, step.head.name)
        if head is None:
            return False
        parts, is_read = [head], True
        for name in step.strays:
            stray = await self.read_idx(state, name)
            is_read &= stray is not None
            if stray is not None and name.base == parts[-1].end_offset:
                parts.append(stray)
        is_whole = parts[-1].end_offset == step.head.end and sum(part.position for part in parts) <= step.head.length
        if not is_whole:
            return is_read
        await state.driver.prove()
        draft = await self._write_draft(state, step.head.name, parts) if len(parts) > 1 else None
        await self.finish(state, draft, step.head.name, step.strays)
        return is_read

    async def _write_draft(self, state: RetentionState, target: SegmentName, parts: Sequence[Checkpoint]) -> str:
        draft = f"{state.driver.path.folder}/{draft_name(target, self._context.incarnation)}"
        await self._fs.delete(draft)  # of an earlier attempt by this process that failed
        options = CreateOptions(block_bytes=1 << 20, access=state.driver.segments.access)
        await write_once(self._fs, draft, await run_in_steps(encode_idx_steps(merged(parts))), options)
        return draft

    async def finish(
        self, state: RetentionState, draft: str | None, target: SegmentName, sources: Sequence[SegmentName]
    ) -> None:
        """Give the draft the name of the target's index, and delete the sources' indexes.  Raises StorageError."""
        if draft is not None:
            await self._fs.replace(draft, state.driver.path.idx(target))
        for source in sources:
            await self._fs.delete(state.driver.path.idx(source))

    async def read_idx(self, state: RetentionState, name: SegmentName) -> Checkpoint | None:
        """Return the index of a segment; None if it is missing or damaged, or storage has lost it."""
        failed = partial(self._failed, "an index is damaged, and not used")
        return await read_segment_idx(self._fs, state.driver.path, name, failed)


# ------------------------------------------------------------------------------------------------- plain functions


class Merge(NamedTuple):
    """A step that appends all but the first of ``members`` to the first."""

    members: tuple[ListedSegment, ...]

    @property
    def first(self) -> SegmentName:
        """The segment that the others are appended to."""
        return self.members[0].name


class RepairIndex(NamedTuple):
    """A step that finishes a merge: ``strays`` are indexes without a log, inside the range of ``head``."""

    head: ListedSegment
    strays: tuple[SegmentName, ...]

    @property
    def first(self) -> SegmentName:
        """The segment whose index is repaired."""
        return self.head.name


def plan_merges(
    listed: Sequence[ListedSegment], *, bytes_max: int, sources_max: int, log_start: int
) -> tuple[list[Merge | RepairIndex], SegmentName | None]:
    """Return the steps that a range of names, all closed, needs, and the name where the next pass begins.

    Neighbours are merged while each holds at most half of ``bytes_max`` and all together at most ``bytes_max``.  All
    have the same epoch.  A superseded name between them ends the group: it was registered there, and the merged file
    would end at its base.  A file of larger blocks is not appended to one of smaller blocks: HDFS refuses that.
    An index without a log at the base of a live segment was never part of the segment before.

    A cleaned file is never merged.  The merged file would have the order of its first part, perhaps below the order of
    a source of the cleaned file.  A source that is left would be live again.
    """
    steps: list[Merge | RepairIndex] = []
    group: list[ListedSegment] = []
    head: ListedSegment | None = None
    strays: list[SegmentName] = []

    def close() -> None:
        if len(group) > 1:
            steps.append(Merge(tuple(group)))
        group.clear()

    for one in listed:
        if one.is_live:
            if head is not None and strays:
                steps.append(RepairIndex(head, tuple(strays)))
                strays.clear()
            head = one
            is_small = one.has_idx and _is_small(one, bytes_max, log_start)
            if group and not (is_small and _fits(group, one, bytes_max, sources_max)):
                close()
            if is_small:
                group.append(one)
            continue
        if not one.has_log and head is not None and (head.end is None or one.name.base < head.end):
            strays.append(one.name)
            if group and group[-1] is head:
                group.pop()  # its index is behind its file
        close()
    if head is not None and strays:
        steps.append(RepairIndex(head, tuple(strays)))
    resume = group[0].name if group else head.name if head is not None else None
    close()
    return steps, resume


def _is_small(one: ListedSegment, bytes_max: int, log_start: int) -> bool:
    """Return whether a segment may be merged, if it has an index."""
    is_small = one.is_live and 0 < one.length * 2 <= bytes_max and one.end is not None and one.end > log_start
    return is_small and not one.name.cleaning


def _fits(group: Sequence[ListedSegment], one: ListedSegment, bytes_max: int, sources_max: int) -> bool:
    first = group[0]
    size = sum(member.length for member in group) + one.length
    is_alike = one.name.epoch == first.name.epoch and one.block_bytes <= first.block_bytes
    return is_alike and size <= bytes_max and len(group) <= sources_max


def merged(parts: Sequence[Checkpoint]) -> Checkpoint:
    """Return one index for closed neighbours.

    Their bytes follow one another, and every segment begins at the end offset of the segment before it."""
    index = array("q", parts[0].index)
    epochs, aborted = list(parts[0].epochs), list(parts[0].aborted)
    position, maximum, maximum_at = parts[0].position, parts[0].max_timestamp, parts[0].max_timestamp_offset
    for last, part in itertools.pairwise(parts):
        assert part.segment.base == last.end_offset, f"{part.segment} does not follow {last.end_offset}"
        index.extend((part.segment.base, position, maximum))
        for at in range(0, len(part.index), ENTRY):
            index.extend((part.index[at], part.index[at + 1] + position, max(part.index[at + 2], maximum)))
        if part.max_timestamp > maximum:
            maximum, maximum_at = part.max_timestamp, part.max_timestamp_offset
        epochs += [epoch for epoch in part.epochs if not epochs or epoch[0] != epochs[-1][0]]
        aborted += part.aborted
        position += part.position
    return replace(
        parts[-1],
        segment=parts[0].segment,
        position=position,
        log_start=max(part.log_start for part in parts),
        is_full=True,
        is_closed=True,
        max_timestamp=maximum,
        max_timestamp_offset=maximum_at,
        index=index,
        epochs=tuple(epochs),
        aborted=tuple(aborted),
    )

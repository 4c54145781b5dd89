"""Joining: one file of small closed neighbours, by ``concat``.

``docs/design/retention.md`` says how the log reads after a crash at each step.  ``plan_joins`` says what a stretch of
names calls for, ``joined`` what the index of the joined bytes is; ``SegmentMerger`` carries it out.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from bmq.broker.cleanup.orphans import scaffolding
from bmq.broker.cleanup.retention import Ledger, read_idx
from bmq.broker.context import BrokerContext
from bmq.core.aio.steps import run_in_steps
from bmq.core.model import SegmentName
from bmq.storage import layout
from bmq.storage.checkpoint import Checkpoint
from bmq.storage.filesystem import FileSystem, StorageError, StorageUnavailable, write_once
from bmq.storage.index import ENTRY
from bmq.storage.log_segments import Listed, walk
from bmq.storage.segment import encode_idx_steps


class Pass(NamedTuple):
    """How a look at the names of one partition ended."""

    join_from: SegmentName | None  # where the next one begins
    is_more: bool
    is_blocked: bool  # a spare stands in the way


class SegmentMerger:
    """One broker's.  ``failed`` hears of a refused concat and of a damaged index: both leave the log as it is."""

    def __init__(
        self,
        shared: BrokerContext,
        *,
        names_per_job: int,
        joins_per_job: int,
        join_sources_max: int,
        failed: Callable[[str, str, Exception], None],
    ) -> None:
        self._shared = shared
        self._fs: FileSystem = shared.fs
        self._names_per_job = names_per_job
        self._joins_per_job = joins_per_job
        self._join_sources_max = join_sources_max
        self._failed = failed
        self.files_joined = 0

    async def join(self, ledger: Ledger, join_from: SegmentName | None) -> Pass:
        """Look at the names from ``join_from`` on, and do the first few steps that they call for."""
        partition = ledger.writer.partition
        listed, is_more, is_blocked = await self._neighbours(ledger, join_from)
        steps, resume = plan_joins(
            listed,
            bytes_max=ledger.config.segment_bytes,
            sources_max=self._join_sources_max,
            log_start=partition.log_start,
        )
        for step in steps[: self._joins_per_job]:
            if isinstance(step, RepairIndex):
                await self._mend(ledger, step)
            else:
                await self._join_group(ledger, step.members)
        left = steps[self._joins_per_job :]
        return Pass(left[0].first if left else resume or join_from, bool(left) or is_more, is_blocked)

    async def _neighbours(self, ledger: Ledger, join_from: SegmentName | None) -> tuple[list[Listed], bool, bool]:
        """Names that may be touched; whether more follow; whether a spare stands in the way.

        Off limits is whatever the record names, and what came later: not known closed, or a successor's way in.  And
        every epoch of which a spare is left: it may be registered, and be renamed late to a base inside a joined file,
        which would end there.  The spares are listed first: one not seen was renamed before, so its name is seen.
        """
        folder, record = ledger.writer.path.folder, ledger.writer.partition.record
        floor = min(entry.name.order for entry in record.segments)
        dotted = await scaffolding(self._fs, folder, self._names_per_job)
        spares = [layout.parse_spare(layout.base_name(status.path)) for status in dotted]
        epochs = {spare[0] for spare in spares if spare is not None}
        found: list[Listed] = []
        async with aclosing(walk(self._fs, ledger.writer.path, join_from)) as listing:
            async for listed in listing:
                if listed.name.order >= floor:
                    break
                if listed.name.epoch in epochs or len(dotted) == self._names_per_job:
                    return found, False, True
                if len(found) >= self._names_per_job and listed.is_live:
                    return found, True, False
                found.append(listed)
        return found, False, False

    async def _join_group(self, ledger: Ledger, members: Sequence[Listed]) -> None:
        """Join each run of members that are proven whole and seamless.

        One that is longer than its index has the leftovers of a failed write inside: not to be buried in a file.
        """
        run: list[Listed] = []
        parts: list[Checkpoint] = []
        for member in members:
            checkpoint = await self._read_idx(ledger, member.name)
            if checkpoint is not None and (checkpoint.position, checkpoint.end_offset) == (member.length, member.end):
                run.append(member)
                parts.append(checkpoint)
                continue
            await self._concat(ledger, [one.name for one in run], parts)
            run, parts = [], []
        await self._concat(ledger, [one.name for one in run], parts)

    async def _concat(self, ledger: Ledger, names: Sequence[SegmentName], parts: Sequence[Checkpoint]) -> None:
        """Draft of the index, concat, index, litter: in this order.  A refusal by storage leaves all as it is."""
        if len(names) < 2:
            return
        path = ledger.writer.path
        target, *sources = names
        await ledger.writer.prove()
        draft = await self._write_draft(ledger, target, parts)
        try:
            await self._fs.concat(path.log(target), [path.log(source) for source in sources])
        except StorageUnavailable:
            raise
        except StorageError as error:
            self._failed("storage refuses to join a segment with the next", path.log(target), error)
            await self._fs.delete(draft)
            return
        ledger.forget_count()  # lengths have moved between names
        self.files_joined += len(sources)
        await self._finish_join(ledger, draft, target, sources)

    async def _mend(self, ledger: Ledger, step: RepairIndex) -> None:
        """A concat was done and its janitor died: indexes without logs follow ``step.head``.

        They tell what was appended, so that nothing is scanned.  When they do not fit to the head's end they are left
        alone: the log is read right without them.
        """
        head = await self._read_idx(ledger, step.head.name)
        if head is None:
            return
        parts = [head]
        for name in step.strays:
            stray = await self._read_idx(ledger, name)
            if stray is not None and name.base == parts[-1].end_offset:
                parts.append(stray)
        is_whole = parts[-1].end_offset == step.head.end and sum(part.position for part in parts) <= step.head.length
        if not is_whole:
            return
        await ledger.writer.prove()
        draft = await self._write_draft(ledger, step.head.name, parts) if len(parts) > 1 else None
        await self._finish_join(ledger, draft, step.head.name, step.strays)

    async def _write_draft(self, ledger: Ledger, target: SegmentName, parts: Sequence[Checkpoint]) -> str:
        draft = f"{ledger.writer.path.folder}/.join-{target}-{self._shared.incarnation}"
        await self._fs.delete(draft)  # our own, of an attempt that failed
        await write_once(self._fs, draft, await run_in_steps(encode_idx_steps(joined(parts))))
        return draft

    async def _finish_join(
        self, ledger: Ledger, draft: str | None, target: SegmentName, sources: Sequence[SegmentName]
    ) -> None:
        if draft is not None:
            await self._fs.replace(draft, ledger.writer.path.idx(target))
        for source in sources:
            await self._fs.delete(ledger.writer.path.idx(source))

    async def _read_idx(self, ledger: Ledger, name: SegmentName) -> Checkpoint | None:
        return await read_idx(
            self._fs, ledger.writer.path.idx(name), partial(self._failed, "an index is damaged, and not used")
        )


# ------------------------------------------------------------------------------------------------- plain functions


class Merge(NamedTuple):
    """Append all but the first of ``members`` to the first."""

    members: tuple[Listed, ...]

    @property
    def first(self) -> SegmentName:
        return self.members[0].name


class RepairIndex(NamedTuple):
    """``strays`` are indexes without a log, inside the range of ``head``."""

    head: Listed
    strays: tuple[SegmentName, ...]

    @property
    def first(self) -> SegmentName:
        return self.head.name


def plan_joins(
    listed: Sequence[Listed], *, bytes_max: int, sources_max: int, log_start: int
) -> tuple[list[Merge | RepairIndex], SegmentName | None]:
    """What a stretch of names, all closed, calls for; and where the next pass begins.

    Neighbours are joined while each holds at most half of ``bytes_max`` and all together at most that; same epoch
    only, and never across a superseded name: it was registered in between, and the joined file would end at its base.
    A file of larger blocks is not appended to one of smaller ones: HDFS refuses that.
    """
    steps: list[Merge | RepairIndex] = []
    group: list[Listed] = []
    head: Listed | None = None
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
            is_small = 0 < one.length * 2 <= bytes_max and one.has_idx and one.end is not None and one.end > log_start
            if group and not (is_small and _fits(group, one, bytes_max, sources_max)):
                close()
            if is_small:
                group.append(one)
            continue
        if not one.has_log and head is not None:
            strays.append(one.name)
            if group and group[-1] is head:
                group.pop()  # its index is behind its file
        close()
    if head is not None and strays:
        steps.append(RepairIndex(head, tuple(strays)))
    resume = group[0].name if group else head.name if head is not None else None
    close()
    return steps, resume


def _fits(group: Sequence[Listed], one: Listed, bytes_max: int, sources_max: int) -> bool:
    first = group[0]
    size = sum(member.length for member in group) + one.length
    is_alike = one.name.epoch == first.name.epoch and one.block_bytes <= first.block_bytes
    return is_alike and size <= bytes_max and len(group) <= sources_max


def joined(parts: Sequence[Checkpoint]) -> Checkpoint:
    """One index for closed neighbours whose bytes follow one another, each beginning where the last one ended."""
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

"""A job outside the brokers in tests: it reads a partition's sources, and writes drafts as the contract says."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import pytest

from bmq.broker.cleanup.closed_segments import ClosedSegment, FoundFile
from bmq.broker.cleanup.index_reads import read_idx
from bmq.broker.cleanup.janitor import Janitor
from bmq.broker.cleanup.job_rounds import SwapResult
from bmq.broker.cleanup.job_swap_checks import DraftGroup
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.file_access import NO_ACCESS
from bmq.core.model import PartitionKey, SegmentName, cleaned_name
from bmq.core.records.batch import Batch
from bmq.core.records.cursor import read_batches
from bmq.storage.cleaning.cleaned_file import CleanedFileWriter
from bmq.storage.cleaning.compiled_filter import SECRET_BYTES
from bmq.storage.cleaning.filters import RecordFilters
from bmq.storage.cleaning.job_round import RoundPlan, draft_folder, sources_digest
from bmq.storage.cleaning.plan import group_segments
from bmq.storage.cleaning.round import CleaningRound, Source
from bmq.storage.filesystem import write_once
from bmq.storage.layout import PartitionPath, base_name
from bmq.storage.log_segments import walk
from bmq.storage.memory import MemoryFileSystem, MemoryStorage
from bmq.storage.segment import encode_idx
from tests.unit.broker.cleanup.compacted_logs import COMPACT, Found, compacted, contents, update
from tests.unit.broker.cleanup.upkeep import KEY, PATH, Owner, World

JOB = "job-1"
NEVER_DUE = replace(COMPACT, cleaning=replace(COMPACT.cleaning, min_cleanable_dirty_ratio=1.0, segment_bytes=1_000))
"""No local round begins; about five segments are the sources of one cleaned segment."""
COUNT = 24
"""Updates of a story's log."""


class Owning(Protocol):
    """An owner of the partition: a broker, or one of the tests of upkeep."""

    @property
    def janitor(self) -> Janitor: ...


class Stored(Protocol):
    """A world with a storage."""

    @property
    def storage(self) -> MemoryStorage: ...


class CleaningJob:
    """A job that cleans a partition's log, with a client of storage of its own."""

    def __init__(self, world: Stored, name: str = JOB, path: PartitionPath = PATH, key: PartitionKey = KEY) -> None:
        self.name = name
        self.path = path
        self.key = key
        self.fs = MemoryFileSystem(world.storage, f"{name}-executor")
        self.plan: RoundPlan
        self.groups: list[DraftGroup] = []

    @property
    def folder(self) -> str:
        """The folder of the drafts."""
        return draft_folder(self.path.folder, self.name)

    async def begin(self, owner: Owning) -> RoundPlan:
        """Get the plan from the owner."""
        self.plan = await owner.janitor.job_rounds.begin(self.key, self.name)
        return self.plan

    async def swap(self, owner: Owning, groups: Sequence[DraftGroup] | None = None) -> SwapResult:
        """Have the owner swap these groups, or all."""
        chosen = self.groups if groups is None else groups
        return await owner.janitor.job_rounds.swap(self.key, self.name, self.plan.end, self.plan.swap_until_ms, chosen)

    async def end(self, owner: Owning) -> None:
        """End the round."""
        await owner.janitor.job_rounds.end(self.key, self.name)

    async def write(self) -> None:
        """Read the plan's sources, and write the drafts of all groups."""
        segments = {one.name.base: one for one in await self._sources()}
        groups = group_segments([one.facts for one in segments.values()], self.plan.segment_bytes)
        sources = [
            [Source(each.base, each.end_offset, segments[each.base].name.cleaning > 0) for each in group]
            for group in groups
        ]
        plan = self.plan
        cleaning = CleaningRound(
            plan.bounds(plan.first_dirty),
            [each for group in sources for each in group],
            aborted=plan.aborted,
            producers=plan.producers,
            records=RecordFilters().new(os.urandom(SECRET_BYTES), 1 << 20, plan.end - plan.first_dirty, lambda: None),
        )
        while walked := cleaning.next_walk():
            for source in walked:
                cleaning.pass_keys(await self._batches(segments[source.base]))
        for number, group in enumerate(sources):
            self.groups.append(await self._draft(cleaning, number, group, [segments[each.base] for each in group]))

    async def _draft(
        self, cleaning: CleaningRound, number: int, group: Sequence[Source], segments: Sequence[ClosedSegment]
    ) -> DraftGroup:
        draft, draft_index = f"{self.folder}/part-{number}.log", f"{self.folder}/part-{number}.idx"
        writer = await CleanedFileWriter.create(
            self.fs, draft, sources_bytes=1 << 20, room=1.0, interval_bytes=self.plan.index_interval_bytes,
            access=NO_ACCESS,
        )  # fmt: skip
        cleaning.begin_file(group, writer.put)
        for one in segments:
            cleaning.clean(await self._batches(one))
        facts = cleaning.end_file()
        await writer.close()
        await write_once(
            self.fs,
            draft_index,
            encode_idx(
                writer.index(
                    [one.name for one in segments],
                    [one.index for one in segments],
                    facts,
                    modified_ms=segments[-1].file.modified_ms,
                )
            ),
        )
        return DraftGroup(
            name=cleaned_name([one.name for one in segments]),
            end_offset=group[-1].end_offset,
            sources=sources_digest((one.name, one.file.length) for one in segments),
            draft=draft,
            draft_index=draft_index,
        )

    async def _sources(self) -> list[ClosedSegment]:
        found: list[ClosedSegment] = []
        async for listed in walk(self.fs, self.path):
            if listed.is_live and self.plan.start <= listed.name.base < self.plan.end:
                index = await read_idx(self.fs, self.path.idx(listed.name), _raise)
                assert index is not None
                found.append(ClosedSegment.of(FoundFile.of(listed), index))
        return found

    async def _batches(self, segment: ClosedSegment) -> list[Batch]:
        data = await self.fs.read(self.path.log(segment.name), 0, segment.index.position)
        return list(read_batches(memoryview(data)))


def _raise(path: str, error: Exception) -> None:
    raise error


class Story:
    """A compacted log of ``COUNT`` updates, its owner, and a job."""

    world: World
    owner: Owner
    job: CleaningJob
    last: Found

    @classmethod
    async def of(cls, config: Any = NEVER_DUE) -> Story:
        story = cls()
        story.world = World()
        story.owner = await compacted(story.world, config=config)
        story.last = await update(story.owner, COUNT)
        await asyncio.sleep(1)
        await story.owner.janitor._notice(story.owner.broker.context.now_ms())
        story.job = CleaningJob(story.world)
        return story

    async def drafted(self) -> None:
        await self.job.begin(self.owner)
        await self.job.write()

    async def is_right(self) -> bool:
        return (await contents(self.world, self.owner.log_start, COUNT))[0] == self.last

    async def cleaned(self) -> list[SegmentName]:
        return [one.name async for one in walk(self.world.reading, PATH) if one.is_live and one.name.cleaning]


async def refused(call: Any) -> tuple[ErrorCode, str]:
    with pytest.raises(RequestError) as caught:
        await call
    return caught.value.code, caught.value.message


def replace_cleaning(name: SegmentName) -> SegmentName:
    """Return the name of another cleaning of the same segments."""
    return name._replace(cleaning=name.cleaning + 7)


def is_temporary(path: str) -> bool:
    """Return whether a path is not the name of a segment."""
    return base_name(path).startswith(".")

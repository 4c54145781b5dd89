"""The tasks of `compact` (spark/jobs/cleaning_tasks.py) on a local root, beside an owner's round."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from random import Random

import numpy as np
import pytest

from bmq.core.records.cursor import read_batches
from bmq.spark.jobs import JobError
from bmq.spark.jobs.cleaning_tasks import (
    CompactionWork,
    SourceError,
    SourceGroup,
    WrittenFile,
    hashes_of,
    write_group,
)
from bmq.spark.jobs.compact import find_groups
from bmq.spark.reading.storage_loop import StorageLoop, storage_loop
from bmq.storage.cleaning.compiled_filter import COMPILED_FILTERS
from bmq.storage.cleaning.job_round import RoundPlan, draft_folder
from bmq.storage.cleaning.last_offsets import LastOffsetsFilter
from bmq.storage.cleaning.retention import DELETE_HORIZON
from bmq.storage.layout import PartitionPath
from bmq.storage.segment import decode_idx
from tests.harness.seeds import seeds
from tests.unit.spark.storing import Store, Written
from tests.unit.storage.cleaning.logs import DAY_MS, NOW_MS, Log, producers_of
from tests.unit.storage.cleaning.random_logs import random_log, stable_end

pytestmark = pytest.mark.slow

assert COMPILED_FILTERS.load_compiled()
SECRET = bytes(range(16))


class World:
    """A topic's only partition on a local root: the segments of a log."""

    def __init__(self, folder: Path, log: Log) -> None:
        self.io: StorageLoop = storage_loop()
        self.root = folder.as_uri()
        self.log = log
        self.fs = self.io.filesystem(self.root, must_exist=False)
        self.store: Store = self.io.run(Store(self.fs).create(is_compacted=True))
        self.written: list[Written] = [
            self.io.run(self.store.segment([bytes(batch.data) for batch in batches], n=number))
            for number, batches in enumerate(log.segments)
            if batches
        ]

    @property
    def path(self) -> PartitionPath:
        return self.store.path()

    def plan(self, *, end: int, segment_bytes: int, swap_until_ms: int = NOW_MS) -> RoundPlan:
        """Return a plan; swapped at once, its drafts are those of an owner's round."""
        return RoundPlan(
            start=self.log.base,
            first_dirty=self.log.base,
            end=end,
            now_ms=NOW_MS,
            swap_until_ms=swap_until_ms,
            delete_retention_ms=DAY_MS,
            segment_bytes=segment_bytes,
            index_interval_bytes=100,
            clean_bytes=0,
            dirty_bytes=1,
            aborted=tuple(self.log.aborted),
            producers=producers_of(self.log),
        )

    def work(self, plan: RoundPlan) -> CompactionWork:
        return CompactionWork(
            root=self.root,
            topic=self.store.topic,
            topic_id=str(self.store.topic_id),
            job="a-job",
            plans={0: plan},
            groups=tuple(self.io.run(find_groups(self.fs, self.path, plan))),
            secret=SECRET,
        )

    def run(self, work: CompactionWork) -> list[WrittenFile]:
        """Do what Spark does with the tasks."""
        lasts: dict[tuple[int, int], int] = {}
        for group in work.groups:
            for columns in hashes_of(self.io, work, group):
                for first, second, offset in zip(*(column.tolist() for column in columns), strict=True):
                    lasts[first, second] = max(offset, lasts.get((first, second), -1))
        offsets = np.array(list(lasts.values()), np.int64)
        done = []
        for number, group in enumerate(work.groups):
            records = LastOffsetsFilter(group.base, group.end_offset)
            records.add(offsets[(group.base <= offsets) & (offsets < group.end_offset)])
            done.append(write_group(self.io, work, number, records))
        return done

    def read(self, path: str) -> bytes:
        return bytes(self.io.run(self.fs.read(path, 0, 1 << 24)))


def closed_end(log: Log) -> int:
    """Return the end of the last segment below the last stable offset, but never the log's last: it has no end yet."""
    sources = log.sources(stable_end(log))
    taken = sources[:-1] if sources and sources[-1].end_offset == log.end else sources
    return taken[-1].end_offset if taken else log.base


@pytest.mark.parametrize("seed", seeds(6, 200))
@pytest.mark.parametrize("is_joined", [True, False])
def test_drafts_are_the_files_of_an_owners_round(seed: int, is_joined: bool, tmp_path: Path) -> None:
    rng = Random(seed)
    log = next(log for log in iter(lambda: random_log(rng, 40), None) if closed_end(log) > log.base)
    end = closed_end(log)
    world = World(tmp_path / "root", log)
    work = world.work(world.plan(end=end, segment_bytes=1 << 20 if is_joined else 1))
    sources = log.sources(end)
    assert [source.name.base for group in work.groups for source in group.sources] == [one.base for one in sources]
    assert len(work.groups) == (1 if is_joined else len(sources))
    group_size = len(sources) if is_joined else 1
    local = log.clean(end=end, now_ms=NOW_MS, producers=producers_of(log), group_size=group_size)
    for number, done in enumerate(world.run(work)):
        assert world.read(done.draft) == b"".join(bytes(batch.data) for batch in local.segments[number])
        check_index(world, work.groups[number], done, end)
        assert done.draft.startswith(draft_folder(world.path.folder, "a-job") + "/")


def check_index(world: World, group: SourceGroup, done: WrittenFile, end: int) -> None:
    data = world.read(done.draft)
    index = decode_idx(world.read(done.draft_index))
    assert index.segment == group.name
    assert index.segment.cleaning == 1
    assert (index.position, index.end_offset) == (len(data), group.end_offset)
    assert index.is_closed
    assert index.cleaned is not None
    assert index.cleaned.clean_to == end
    assert (index.cleaned.bytes_before, index.cleaned.bytes_after) == (done.bytes_before, done.bytes_after)
    batches = list(read_batches(memoryview(data)))
    assert (batches[0].base_offset, batches[-1].next_offset) == (group.base, group.end_offset)
    assert sum(batch.count for batch in batches) == done.records_after
    last = next(one.checkpoint for one in world.written if one.name == group.sources[-1].name)
    assert index.first_open_txn == last.first_open_txn
    assert index.producers == last.producers


def small_world(tmp_path: Path) -> tuple[World, CompactionWork]:
    log = Log()
    for number in range(6):
        log.add((b"k%d" % (number % 2), b"v%d" % number))
        log.roll()
    world = World(tmp_path / "root", log)
    return world, world.work(world.plan(end=5, segment_bytes=1))


def test_delete_horizons_count_from_the_latest_time_of_the_swap(tmp_path: Path) -> None:
    log = Log()
    log.add((b"gone", None))
    log.roll()
    log.add((b"k", b"v"))
    world = World(tmp_path / "root", log)
    work = world.work(world.plan(end=1, segment_bytes=1, swap_until_ms=NOW_MS + 2 * DAY_MS))
    (done,) = world.run(work)
    (batch,) = read_batches(memoryview(world.read(done.draft)))
    assert batch.attributes & DELETE_HORIZON
    assert batch.base_timestamp == NOW_MS + 3 * DAY_MS
    cleaned = decode_idx(world.read(done.draft_index)).cleaned
    assert cleaned is not None
    assert cleaned.horizon == NOW_MS + 3 * DAY_MS


def test_a_task_that_runs_twice_writes_under_names_of_its_own(tmp_path: Path) -> None:
    world, work = small_world(tmp_path)
    first, second = world.run(work), world.run(work)
    assert {done.draft for done in first}.isdisjoint(done.draft for done in second)
    assert [world.read(done.draft) for done in first] == [world.read(done.draft) for done in second]


def test_a_source_that_is_gone_ends_the_task_by_name(tmp_path: Path) -> None:
    world, work = small_world(tmp_path)
    lost = work.groups[2].sources[0].name
    world.io.run(world.fs.delete(world.path.log(lost)))
    with pytest.raises(SourceError, match=f"{lost}: it is gone.*run the job again"):
        list(hashes_of(world.io, work, work.groups[2]))
    with pytest.raises(SourceError, match=f"{lost}: it is gone"):
        write_group(world.io, work, 2, LastOffsetsFilter(2, 3))
    assert drafts(world) == []


def test_a_damaged_batch_ends_the_task_by_the_segments_name(tmp_path: Path) -> None:
    world, work = small_world(tmp_path)
    name = work.groups[2].sources[0].name
    file = tmp_path / "root" / world.path.log(name).lstrip("/")
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    with pytest.raises(SourceError, match=f"partition 0, segment {name}: .*--partitions leaves the partition out"):
        list(hashes_of(world.io, work, work.groups[2]))
    with pytest.raises(SourceError, match=f"partition 0, segment {name}: .*--partitions leaves the partition out"):
        write_group(world.io, work, 2, LastOffsetsFilter(2, 3))
    assert drafts(world) == []


def test_hashes_are_handed_over_within_a_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bmq.spark.jobs.cleaning_tasks.HASHES_MAX", 2)
    log = Log()
    for number in range(5):
        log.add((b"k%d" % number, b"v"))
    log.roll()
    log.add((b"k", b"v"))
    world = World(tmp_path / "root", log)
    work = world.work(world.plan(end=5, segment_bytes=1))
    pieces = [offsets.tolist() for _, _, offsets in hashes_of(world.io, work, work.groups[0])]
    assert pieces == [[0, 1], [2, 3], [4]]


def test_an_index_that_is_gone_or_short_ends_the_task(tmp_path: Path) -> None:
    world, work = small_world(tmp_path)
    group = work.groups[1]
    longer = dataclasses.replace(group.sources[0], end_offset=group.end_offset + 1)
    changed = dataclasses.replace(group, sources=(longer,))
    with pytest.raises(SourceError, match="its index does not cover it"):
        list(hashes_of(world.io, work, changed))
    world.io.run(world.fs.delete(world.path.idx(group.sources[0].name)))
    with pytest.raises(SourceError, match="its index is gone"):
        list(hashes_of(world.io, work, group))


def test_a_failed_write_leaves_no_draft(tmp_path: Path) -> None:
    world, work = small_world(tmp_path)
    lost = work.groups[1].sources[0].name  # before the third group: its open producers are not known without it
    world.io.run(world.fs.delete(world.path.idx(lost)))
    with pytest.raises(SourceError, match=f"{lost}: its index is gone"):
        write_group(world.io, work, 2, LastOffsetsFilter(2, 3))
    assert drafts(world) == []


def drafts(world: World) -> list[str]:
    async def names() -> list[str]:
        return [status.path async for status in world.fs.list(draft_folder(world.path.folder, "a-job"))]

    return world.io.run(names())


def test_a_log_that_has_changed_since_the_plan_is_not_grouped(tmp_path: Path) -> None:
    world, _ = small_world(tmp_path)
    with pytest.raises(JobError, match="the log has changed; run the job again"):
        world.work(world.plan(end=7, segment_bytes=1))

"""The last segment of a record whose file is missing: what is known of it, and how a repair lists it."""

from __future__ import annotations

import uuid

import pytest

from bmq.broker.repair.facts import (
    REPLACING,
    Inspector,
    PartitionIdentity,
    RepairFacts,
    vanished_unseen,
    without_data,
)
from bmq.core.model import PartitionKey, SegmentName
from bmq.meta.ownership import PartitionRecord, SegmentEntry
from bmq.storage.checkpoint import Checkpoint
from bmq.storage.filesystem import write_once
from bmq.storage.layout import PartitionPath
from bmq.storage.memory import MemoryFileSystem, MemoryStorage
from bmq.storage.recovery import FencedSegment, Found

FIRST, LAST = (
    SegmentEntry(name=SegmentName(base, 1, n), spare=f"/s{n}", holder="a", file_id=n) for n, base in enumerate((0, 10))
)


def checkpoint(name: SegmentName, position: int) -> Checkpoint:
    return Checkpoint(
        key=PartitionKey(uuid.UUID(int=1), 0), segment=name, position=position, end_offset=12, log_start=0
    )


def facts(*segments: SegmentEntry, found: Found = Found.NOWHERE, base: Checkpoint | None = None) -> RepairFacts:
    """Return facts of which the file of the last segment is ``found``, and those of the others are there."""
    fenced = [FencedSegment(name=each.name, found=Found.FINAL, length=5) for each in segments[:-1]]
    fenced += [FencedSegment(name=each.name, found=found, length=0) for each in segments[-1:]]
    return RepairFacts(PartitionRecord(epoch=1, segments=segments), 7, fenced, base, 0)


@pytest.mark.parametrize("base", [None, checkpoint(LAST.name, 0), checkpoint(FIRST.name, 99)])
def test_a_missing_last_segment_that_no_checkpoint_covers_is_listed_as_empty(base: Checkpoint | None) -> None:
    found = facts(FIRST, LAST, base=base)
    assert vanished_unseen(found) == LAST
    assert without_data(found) == (FIRST, LAST.closed(0, LAST.name.base))


@pytest.mark.parametrize(
    "found",
    [
        facts(FIRST, LAST, base=checkpoint(LAST.name, 1)),
        facts(FIRST, LAST, found=Found.FINAL),
        facts(FIRST, LAST, found=Found.SPARE),
        facts(FIRST, LAST.closed(5, 12)),
        facts(),
    ],
    ids=["its checkpoint shows data", "it is there", "it has its spare name", "it was closed", "no segments"],
)
def test_any_other_segment_stays_as_the_record_lists_it(found: RepairFacts) -> None:
    assert vanished_unseen(found) is None
    assert without_data(found) == found.record.segments


async def test_the_file_that_a_repair_set_aside_is_told_from_the_file_cleaned_from_it() -> None:
    path = PartitionPath("t", str(uuid.UUID(int=1)), 0)
    fs = MemoryFileSystem(MemoryStorage(), "h")
    inspector = Inspector(fs, PartitionIdentity("c", PartitionKey(uuid.UUID(int=1), 0), path, 1))
    names = [SegmentName(0, 1, 0), SegmentName(0, 1, 0, 2), SegmentName(0, 1, 0, 3)]
    for name in (names[2], names[0]):
        await write_once(fs, f"{path.folder}/{REPLACING}{name}-0123456789abcdef", b"x")
    found = [(await inspector.aside(name)).rpartition("/")[2] for name in names]
    wanted = [f"{REPLACING}{name}-0123456789abcdef" for name in names]
    assert found == [wanted[0], "", wanted[2]]

"""The copies of the file that holds an offset: counted, or the reason why not."""

from __future__ import annotations

from random import Random

from bmq.broker import events as ev
from bmq.broker.partition.copy_counter import CopyCounter
from bmq.core.model import SegmentName
from bmq.storage.filesystem import write_once
from bmq.storage.layout import PartitionPath
from bmq.storage.memory import Faults, MemoryFileSystem, MemoryStorage

PATH = PartitionPath("orders", "id", 0)


async def counter() -> tuple[CopyCounter, MemoryFileSystem]:
    """Return the counter of a log whose segments begin at the offsets 0, 10 and 20."""
    fs = MemoryFileSystem(MemoryStorage(Random(1), datanodes=4), "a")
    for n, base in enumerate((0, 10, 20)):
        await write_once(fs, PATH.log(SegmentName(base, 1, n)), b"x")
    return CopyCounter(fs, PATH), fs


async def test_copies_are_those_of_the_segment_that_holds_the_offset_up_to_its_end() -> None:
    copies, _ = await counter()
    assert await copies.count(ev.CountCopies(12, 25)) == ev.CopiesCounted(10, 20, 3)
    assert await copies.count(ev.CountCopies(12, 15)) == ev.CopiesCounted(10, 15, 3)
    assert await copies.count(ev.CountCopies(24, 25)) == ev.CopiesCounted(20, 25, 3)


async def test_copies_that_storage_cannot_count_are_none_with_the_reason() -> None:
    copies, fs = await counter()
    fs.storage.faults = Faults(unavailable=1.0)
    found = await copies.count(ev.CountCopies(12, 25))
    assert (found.base, found.end, found.copies) == (12, 13, 0)
    assert found.reason.startswith("they cannot be counted: ")


async def test_after_a_merge_the_next_count_finds_the_present_file() -> None:
    copies, fs = await counter()
    assert (await copies.count(ev.CountCopies(12, 25))).base == 10
    await fs.concat(PATH.log(SegmentName(0, 1, 0)), [PATH.log(SegmentName(10, 1, 1))])
    assert (await copies.count(ev.CountCopies(12, 25))).copies == 0
    assert await copies.count(ev.CountCopies(12, 25)) == ev.CopiesCounted(0, 20, 3)

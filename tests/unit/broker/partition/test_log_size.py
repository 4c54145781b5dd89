"""The size of a log while its segments are opened and closed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import cast

from bmq.broker.partition.driver import PartitionDriver
from bmq.broker.partition.log_size import LogSize
from bmq.core.model import SegmentName
from bmq.meta.ownership import PartitionRecord, SegmentEntry
from bmq.storage.filesystem import FileStatus
from bmq.storage.memory import MemoryFileSystem
from tests.unit.broker.world import world


async def test_bytes_of_segments_that_are_not_closed_are_counted_again() -> None:
    """The namespace does not know an open file's length (HDFS: until the block ends), also when the next is open."""
    lengths = {0: 0, 5: 0}
    listings = 0

    class Namespace(MemoryFileSystem):
        async def list(self, folder: str, *, after: str = "") -> AsyncIterator[FileStatus]:
            nonlocal listings
            listings += 1
            for base, length in lengths.items():
                name = f"{folder}/{SegmentName(base, 1, base)}.log"
                if name.rpartition("/")[2] > after:
                    yield FileStatus(path=name, length=length, is_dir=False, modified_ms=0)

    def entry(base: int, length: int = -1) -> SegmentEntry:
        return SegmentEntry(name=SegmentName(base, 1, base), spare="", holder="", file_id=1, length=length)

    async with world() as w:
        w.topic()
        fs = Namespace(w.storage, "n")
        partition = SimpleNamespace(
            record=PartitionRecord(segments=(entry(0), entry(5))),
            open_names={SegmentName(0, 1, 0), SegmentName(5, 1, 5)},
            current=SimpleNamespace(flushed=70),
        )
        driver = cast(PartitionDriver, SimpleNamespace(machine=partition, path=w.path(), swaps_stored=0))
        size = LogSize(0)
        assert await size.count(fs, driver) == 70
        lengths[0] = 1000
        partition.record = PartitionRecord(segments=(entry(0, 1000), entry(5)))
        partition.open_names.remove(SegmentName(0, 1, 0))
        assert await size.count(fs, driver) == 1070
        partition.current.flushed = 80
        assert await size.count(fs, driver) == 1080
        assert listings == 2, "nothing was registered or closed"
        partition.current = None
        lengths[5] = 90
        assert await size.count(fs, driver) == 1090

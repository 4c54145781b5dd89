"""The size of an owned log in bytes, for metrics and DescribeLogDirs."""

from __future__ import annotations

from contextlib import aclosing

from bmq.broker.partition.driver import PartitionDriver
from bmq.core.model import SegmentName
from bmq.meta.ownership import PartitionRecord
from bmq.storage.filesystem import FileSystem
from bmq.storage.log_segments import walk


class LogSize:
    """The size of a log in bytes, counted as it grows.

    The folder is listed only if a segment was registered or closed since, and only from the last closed segment on.
    After a swap the whole folder is listed: closed segments have other bytes then.
    """

    __slots__ = ("_closed", "_counted_to", "_last", "_newest_is_closed", "_open", "_record", "_swaps", "log_start")

    def __init__(self, log_start: int, last: int | None = None) -> None:
        """Begin a count from ``log_start``. ``last``: the size known under an earlier log start."""
        self.log_start = log_start
        self._last = last  # result of the last count
        self._record: PartitionRecord | None = None
        self._counted_to: SegmentName | None = None
        self._closed = 0  # bytes up to and including that segment
        self._open = 0  # bytes behind it, by the folder's listing
        self._newest_is_closed = False
        self._swaps = 0

    async def count(self, fs: FileSystem, driver: PartitionDriver) -> int:
        """Return the size, listing what is new. Raises StorageError."""
        if not self._is_counted(driver):
            if driver.swaps_stored != self._swaps:
                self._counted_to, self._closed = None, 0  # a cleaned segment may hide what was counted
                self._swaps = driver.swaps_stored
            await self._list(fs, driver, driver.machine.record)
        self._last = self._sum(driver)
        return self._last

    def is_current(self, driver: PartitionDriver) -> bool:
        """Return whether ``known`` is what ``count`` would return."""
        return self.log_start == driver.machine.log_start and self._is_counted(driver)

    def known(self, driver: PartitionDriver) -> int | None:
        """Return the size without a call to storage; if files came or went since, the size that was counted last."""
        return self._sum(driver) if self.is_current(driver) else self._last

    def _is_counted(self, driver: PartitionDriver) -> bool:
        machine = driver.machine
        return machine.record is self._record and (machine.current is not None or self._newest_is_closed)

    def _sum(self, driver: PartitionDriver) -> int:
        current = driver.machine.current
        return self._closed + max(self._open, current.flushed if current is not None else 0)

    async def _list(self, fs: FileSystem, driver: PartitionDriver, record: PartitionRecord) -> None:
        """Count the listed segments.

        A segment that may still be open is counted again the next time: the namespace may not have its length yet.
        """
        opened_names = driver.machine.open_names
        counted_to, closed, opened, newest_is_closed = self._counted_to, self._closed, 0, True
        async with aclosing(walk(fs, driver.path, counted_to)) as listing:
            async for listed in listing:
                is_below = listed.end is not None and listed.end <= self.log_start
                if not listed.is_live or is_below or listed.name == self._counted_to:
                    continue
                newest_is_closed = listed.has_idx
                if listed.end is None or listed.name in opened_names or opened:
                    opened += listed.length
                else:
                    counted_to, closed = listed.name, closed + listed.length
        self._counted_to, self._closed, self._open = counted_to, closed, opened
        self._record, self._newest_is_closed = record, newest_is_closed

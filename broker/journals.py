"""Other brokers' journals, read once for all the partitions that are taken over from them."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from bmq.core.model import PartitionKey
from bmq.storage import layout
from bmq.storage.checkpoint import Checkpoint
from bmq.storage.filesystem import FileSystem, NoSuchFile
from bmq.storage.journal import read_journals

KEPT = 8


class JournalCache:
    """The last ``KEPT`` brokers' checkpoints, each as good as its journal was long when it was read.

    A takeover must see what its predecessor's journal held when the epoch was raised (a moved log start), so a kept
    reading is used again only while the journals have not grown.
    """

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs
        self._kept: OrderedDict[str, tuple[tuple[tuple[str, int], ...], dict[PartitionKey, Checkpoint]]] = OrderedDict()
        self._locks: dict[str, asyncio.Lock] = {}

    async def find(self, incarnation: str, key: PartitionKey) -> Checkpoint | None:
        """The partition's last checkpoint in the journals of ``incarnation``, None when they hold none."""
        lock = self._locks.setdefault(incarnation, asyncio.Lock())
        sizes = None
        if (
            incarnation in self._kept or lock.locked()
        ):  # a reading that began before this call may have missed something
            sizes = await self._sizes(incarnation)
            if not sizes:
                return None
        async with lock:  # held across the read on purpose: one reading for all who wait for it
            kept = self._kept.get(incarnation)
            if kept is None or sizes is None or not _holds(kept[0], sizes):
                sizes = await self._sizes(incarnation)
                kept = (sizes, await read_journals(self._fs, incarnation))
                self._kept[incarnation] = kept
            self._kept.move_to_end(incarnation)
            while len(self._kept) > KEPT:
                gone, _ = self._kept.popitem(last=False)
                self._locks.pop(gone, None)
        return kept[1].get(key)

    async def _sizes(self, incarnation: str) -> tuple[tuple[str, int], ...]:
        """Each journal file and what is visible of it."""
        found = []
        async for status in self._fs.list(layout.JOURNALS, after=f"{incarnation}-"):
            parsed = layout.parse_journal(layout.base_name(status.path))
            if parsed is None or parsed[0] != incarnation:
                break
            try:
                found.append((status.path, await self._fs.visible_length(status.path)))
            except NoSuchFile:
                continue  # rolled away meanwhile
        return tuple(found)


def _holds(kept: tuple[tuple[str, int], ...], sizes: tuple[tuple[str, int], ...]) -> bool:
    """Whether a reading made at ``kept`` saw everything that ``sizes`` promises."""
    known = dict(kept)
    return all(known.get(path, -1) >= length for path, length in sizes)

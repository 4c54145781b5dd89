"""Other brokers' journals, read once for all the partitions that are taken over from them."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Container

from bmq.core.logging.fields import fields
from bmq.core.model import PartitionKey
from bmq.storage import layout
from bmq.storage.checkpoint import Checkpoint
from bmq.storage.filesystem import FileSystem, Lease, NoSuchFile, StorageError, StorageUnavailable
from bmq.storage.journal import read_journals

_log = logging.getLogger("bmq.broker.files.journal_cache")
KEPT = 8
UNSEALED_MAX = 64
"""Dead brokers whose journals are still to be closed; of more the NameNode closes them (dfs.namenode.lease-hard-limit,
20 minutes)."""
LIVING_PATIENCE_S = 10.0
"""A living broker goes on in a new file, and closes the old one, within seconds of the trouble that others have with
it, unless it is itself cut off from storage."""
FORGOTTEN_S = 60.0
"""What was unreadable before nobody asked for so long is another trouble: its broker has its time again.  Takeovers ask
again within seconds of an answer, which may take as long as storage does to give a dead datanode up."""

_Reading = tuple[tuple[tuple[str, int], ...], dict[PartitionKey, Checkpoint]]


class JournalCache:
    """The last ``KEPT`` brokers' checkpoints, each as good as its journal was long when it was read.

    A takeover must see what its predecessor's journal held when the epoch was raised (a moved log start), so a kept
    reading is used again only while the journals have not grown.

    A journal that cannot be read is not an empty one: StorageUnavailable is raised, and the takeover begins again.  A
    journal whose replicas all wait for recovery would stay unreadable until the NameNode recovers its lease, so it is
    fenced: a dead broker's at once, a living one's after ``LIVING_PATIENCE_S``, since a broker that is cut off from
    storage does not do so itself.  ``is_alive`` tells whether a broker may be alive; ``own`` is this one.
    """

    def __init__(self, fs: FileSystem, own: str, is_alive: Callable[[str], bool]) -> None:
        self._fs = fs
        self._own = own
        self._is_alive = is_alive
        self._kept: OrderedDict[str, _Reading] = OrderedDict()
        self._locks: dict[str, asyncio.Lock] = {}
        self._unsealed: OrderedDict[str, None] = OrderedDict()
        self._unreadable: OrderedDict[str, tuple[float, float]] = OrderedDict()  # of living brokers: first, last time

    async def find(self, incarnation: str, key: PartitionKey, *, passes_damaged: bool = False) -> Checkpoint | None:
        """The partition's last checkpoint in the journals of ``incarnation``, None when they hold none.

        ``passes_damaged``: do without a file that has no sound replica.  Raises StorageError if they cannot be read.
        """
        lock = self._locks.setdefault(incarnation, asyncio.Lock())
        sizes = None
        if (
            incarnation in self._kept or lock.locked()
        ):  # a reading that began before this call may have missed something
            sizes = await self._sizes_or_fence(incarnation)
            if not sizes:
                return None
        async with lock:  # held across the read on purpose: one reading for all who wait for it
            kept = self._kept.get(incarnation)
            if kept is None or sizes is None or not _holds(kept[0], sizes):
                kept = await self._read(incarnation, passes_damaged=passes_damaged)
                self._kept[incarnation] = kept
            self._kept.move_to_end(incarnation)
            while len(self._kept) > KEPT:
                gone, _ = self._kept.popitem(last=False)
                self._locks.pop(gone, None)
        return kept[1].get(key)

    async def seal_dead(self) -> None:
        """Close the journals of dead brokers that were read here; to be called now and then.

        An open file reserves a block on each of its datanodes.  What cannot be closed now is tried again.
        """
        for incarnation in list(self._unsealed):
            if self._is_alive(incarnation):
                continue
            try:
                await self._fence(incarnation)
            except StorageError as error:
                _log.info("journals of a dead broker are not closed yet", extra=fields(member=incarnation, error=error))
                continue
            self._unsealed.pop(incarnation, None)

    async def _read(self, incarnation: str, *, passes_damaged: bool) -> _Reading:
        sizes = await self._sizes_or_fence(incarnation)
        if not sizes and incarnation != self._own:
            _log.warning(
                "a broker has no journal on storage: its partitions' last segments are read whole, and it cannot be"
                " seen whether storage has lost their ends",
                extra=fields(member=incarnation),
            )
        checkpoints = await read_journals(self._fs, incarnation, passes_damaged=passes_damaged)
        if sizes and incarnation != self._own:
            self._unsealed[incarnation] = None
            while len(self._unsealed) > UNSEALED_MAX:
                self._unsealed.popitem(last=False)
        return sizes, checkpoints

    async def _sizes_or_fence(self, incarnation: str) -> tuple[tuple[str, int], ...]:
        sizes, unreadable = await self._sizes(incarnation)
        if not unreadable:
            self._unreadable.pop(incarnation, None)
            return sizes
        error = next(iter(unreadable.values()))
        is_alive = self._is_alive(incarnation)
        if incarnation == self._own or (is_alive and not self._is_patience_over(incarnation)):
            raise error
        _log.warning("journals of a broker cannot be read, fencing them", extra=fields(member=incarnation, error=error))
        # A living broker's others are left to it: it is writing one of them.
        await self._fence(incarnation, only=unreadable if is_alive else None)
        sizes, unreadable = await self._sizes(incarnation)
        if unreadable:
            raise next(iter(unreadable.values()))
        return sizes

    def _is_patience_over(self, incarnation: str) -> bool:
        now = asyncio.get_running_loop().time()
        since, last = self._unreadable.pop(incarnation, (now, now))
        if now - last > FORGOTTEN_S:
            since = now
        self._unreadable[incarnation] = since, now
        while len(self._unreadable) > UNSEALED_MAX:
            self._unreadable.popitem(last=False)
        return now - since >= LIVING_PATIENCE_S

    async def _sizes(self, incarnation: str) -> tuple[tuple[tuple[str, int], ...], dict[str, StorageUnavailable]]:
        """Return each journal file and what is visible of it, and those of which that cannot be told now."""
        found, unreadable = [], {}
        async for path in self._paths(incarnation):
            try:
                found.append((path, await self._fs.visible_length(path)))
            except NoSuchFile:
                continue  # rolled away meanwhile
            except StorageUnavailable as error:
                unreadable[path] = error
        return tuple(found), unreadable

    async def _fence(self, incarnation: str, *, only: Container[str] | None = None) -> None:
        async for path in self._paths(incarnation):
            if only is not None and path not in only:
                continue
            try:
                # On disk, as far as it was before: a closed file that loses its end cannot be read at all.
                await self._fs.fence(Lease(paths=(path,), holder=incarnation, file_id=0), sync=True)
            except NoSuchFile:
                continue  # swept meanwhile

    async def _paths(self, incarnation: str) -> AsyncIterator[str]:
        async for status in self._fs.list(layout.JOURNALS, after=f"{incarnation}-"):
            parsed = layout.parse_journal(layout.base_name(status.path))
            if parsed is None or parsed[0] != incarnation:
                return
            yield status.path


def _holds(kept: tuple[tuple[str, int], ...], sizes: tuple[tuple[str, int], ...]) -> bool:
    """Whether a reading made at ``kept`` saw everything that ``sizes`` promises."""
    known = dict(kept)
    return all(known.get(path, -1) >= length for path, length in sizes)

"""Checkpoints from other brokers' journals, read once for all the partitions that are taken over from them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Container
from weakref import WeakValueDictionary

from bmq.core.aio.lru import LruCache
from bmq.core.logging.fields import fields
from bmq.core.model import PartitionKey
from bmq.storage import layout
from bmq.storage.checkpoint import Checkpoint
from bmq.storage.filesystem import FileSystem, Lease, NoSuchFile, StorageError, StorageUnavailable
from bmq.storage.journal import read_journals

_log = logging.getLogger(__name__)
KEPT = 8
"""Brokers whose checkpoints are kept."""
UNSEALED_MAX = 64
"""Most dead brokers whose journals this process still has to close. The NameNode closes those of any more, after
dfs.namenode.lease-hard-limit (20 minutes).
"""
LIVING_PATIENCE_S = 10.0
"""Time for which a journal of a live broker may be unreadable before it is fenced. Within seconds of noticing the
trouble the live broker goes on in a new file and closes the old file, unless it is itself cut off from storage.
"""
FORGOTTEN_S = 60.0
"""After this time without a request for a broker's journals, an unreadable journal counts as new trouble, so the broker
has ``LIVING_PATIENCE_S`` again. Takeovers ask again within seconds of a failure; one attempt lasts as long as storage
takes to give up a dead datanode.
"""

_Reading = tuple[tuple[tuple[str, int], ...], dict[PartitionKey, Checkpoint]]


class JournalCache:
    """The checkpoints of the last ``KEPT`` brokers' journals, as of the journals' lengths when they were read.

    A takeover must see everything that its predecessor's journal held when the epoch was raised (a moved log start,
    say). So kept checkpoints are used again only while no journal file of that broker has grown.

    A journal that cannot be read is not an empty one: StorageUnavailable is raised, and the takeover begins again. A
    journal whose replicas all wait for recovery would stay unreadable until the NameNode recovers its lease. So it is
    fenced: a dead broker's at once, a live one's after ``LIVING_PATIENCE_S``, since a broker that is cut off from
    storage does not close its journal itself.

    ``is_alive`` says whether a broker may be alive; ``own`` is this broker's incarnation.
    """

    def __init__(self, fs: FileSystem, own: str, is_alive: Callable[[str], bool]) -> None:
        self._fs = fs
        self._own = own
        self._is_alive = is_alive
        self._kept: LruCache[str, _Reading] = LruCache(KEPT)
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # of the calls of `find` under way
        self._unsealed: LruCache[str, None] = LruCache(UNSEALED_MAX)
        self._unreadable: LruCache[str, tuple[float, float]] = LruCache(UNSEALED_MAX)  # live brokers: first, last time

    async def find(self, incarnation: str, key: PartitionKey, *, passes_damaged: bool = False) -> Checkpoint | None:
        """Return the partition's last checkpoint in the journals of ``incarnation``; None if they hold none.

        ``passes_damaged``: skip a file that has no sound replica. Raises StorageError if the journals cannot be read.
        """
        lock = self._locks.setdefault(incarnation, asyncio.Lock())
        sizes = None
        # A read of the journals that began before this call may have missed their last checkpoints: compare lengths.
        if incarnation in self._kept or lock.locked():
            sizes = await self._sizes_or_fence(incarnation)
            if not sizes:
                return None
        async with lock:  # held across the read on purpose: one read for all callers that wait for it
            kept = self._kept.get(incarnation)
            if kept is None or sizes is None or not _holds(kept[0], sizes):
                kept = await self._read(incarnation, passes_damaged=passes_damaged)
                self._kept.put(incarnation, kept)
        return kept[1].get(key)

    async def seal_dead(self) -> None:
        """Close the journals of dead brokers that were read here; to be called from time to time.

        An open file reserves a block on each of its datanodes. A journal that cannot be closed now is tried again by
        the next call.
        """
        for incarnation in list(self._unsealed):
            if self._is_alive(incarnation):
                continue
            try:
                await self._fence(incarnation)
            except StorageError as error:
                _log.info(
                    "could not close the journals of a dead broker, trying again",
                    extra=fields(member=incarnation, error=error),
                )
                continue
            self._unsealed.pop(incarnation)

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
            self._unsealed.put(incarnation, None)
        return sizes, checkpoints

    async def _sizes_or_fence(self, incarnation: str) -> tuple[tuple[str, int], ...]:
        """Return the journal files with their visible lengths; fence unreadable files, if the caller allows it.

        Raises StorageUnavailable if a journal stays unreadable.
        """
        sizes, unreadable = await self._sizes(incarnation)
        if not unreadable:
            self._unreadable.pop(incarnation)
            return sizes
        error = next(iter(unreadable.values()))
        is_alive = self._is_alive(incarnation)
        if incarnation == self._own or (is_alive and not self._is_patience_over(incarnation)):
            raise error
        _log.warning("journals of a broker cannot be read, fencing them", extra=fields(member=incarnation, error=error))
        # A live broker is writing one of its other journals: only the unreadable ones are fenced.
        await self._fence(incarnation, only=unreadable if is_alive else None)
        sizes, unreadable = await self._sizes(incarnation)
        if unreadable:
            raise next(iter(unreadable.values()))
        return sizes

    def _is_patience_over(self, incarnation: str) -> bool:
        now = asyncio.get_running_loop().time()
        since, last = self._unreadable.pop(incarnation) or (now, now)
        if now - last > FORGOTTEN_S:
            since = now
        self._unreadable.put(incarnation, (since, now))
        return now - since >= LIVING_PATIENCE_S

    async def _sizes(self, incarnation: str) -> tuple[tuple[tuple[str, int], ...], dict[str, StorageUnavailable]]:
        """Return each journal file with its visible length, and the error of each whose length is not available now."""
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
                # Synced, since what was on disk must stay so: a closed file that loses its end cannot be read at all.
                await self._fs.fence(Lease(paths=(path,), holder=incarnation, file_id=0), sync=True)
            except NoSuchFile:
                continue  # removed by the janitor meanwhile

    async def _paths(self, incarnation: str) -> AsyncIterator[str]:
        async for status in self._fs.list(layout.JOURNALS, after=f"{incarnation}-"):
            parsed = layout.parse_journal(layout.base_name(status.path))
            if parsed is None or parsed[0] != incarnation:
                return
            yield status.path


def _holds(kept: tuple[tuple[str, int], ...], sizes: tuple[tuple[str, int], ...]) -> bool:
    """Return whether the files that were read with lengths ``kept`` include everything that ``sizes`` lists."""
    known = dict(kept)
    return all(known.get(path, -1) >= length for path, length in sizes)

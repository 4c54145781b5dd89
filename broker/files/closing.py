"""How the files of one partition end: dropped unused, closed and indexed, or taken over from ourselves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from bmq.broker.context import BrokerContext
from bmq.broker.files.open_segments import OpenFiles
from bmq.broker.files.segment_files import SegmentFiles
from bmq.broker.partition.events import CloseSegment
from bmq.broker.partition.release import INDEX_BYTES_MAX
from bmq.core.model import SegmentName
from bmq.meta.kv import KvError
from bmq.meta.ownership import SegmentEntry
from bmq.storage.checkpoint import Checkpoint, encoded_bytes
from bmq.storage.filesystem import NoSuchFile, StorageError
from bmq.storage.segment import IDX_OVERHEAD, encode_idx

OPENINGS_WAIT_S = 20.0
"""Seconds at most for which the takeover of a broken segment waits while files are opened: a broker that rolls many
segments opens files all the time."""
SEAL_TURN_S = 5.0
"""Seconds after which the next one in line has the turn of a takeover that still goes on: it waits for lease recovery,
which takes minutes and costs little.  Who waits does not go on by itself instead: hundreds would at once, each slower
by the others, until all of them time out and begin again."""


class Closing:
    """One partition's.  ``is_ours`` asks the store whether it is the owner still (KvError).

    ``has_successor``: it is being handed over, to somebody who will be told.  Then a segment counts as closed before it
    is indexed, and ``left`` has its index (``broker.files.deferred_indexes``).
    """

    __slots__ = ("_files", "_is_moving", "_is_ours", "_segments", "_shared", "_waits", "has_successor", "left")

    def __init__(
        self, shared: BrokerContext, segments: SegmentFiles, files: OpenFiles, is_ours: Callable[[], Awaitable[bool]]
    ) -> None:
        self._shared = shared
        self._segments = segments
        self._files = files
        self._is_ours = is_ours
        self._is_moving = False
        self._waits: set[asyncio.Timeout] = set()  # of takeovers that stand behind others: one a broken segment
        self.has_successor = False
        self.left: dict[SegmentName, tuple[int, bytes]] = {}  # with the segment's length: one or two of a move

    async def drop(self, spare: SegmentEntry) -> None:
        """Close the unused file, or give it up, and delete it (see ``broker.files.unused_files``)."""
        await self._files.drop(spare)

    async def close(self, effect: CloseSegment) -> SegmentEntry | None:
        """Return the segment as it is when it is closed and indexed; None when it is somebody else's."""
        entry, checkpoint = effect.entry, effect.checkpoint
        try:
            await self._close_and_index(entry, checkpoint, may_wait=effect.index_may_wait)
        except StorageError:
            return await self.seal(entry, checkpoint)
        return _closed(entry, checkpoint)

    async def _close_and_index(self, entry: SegmentEntry, checkpoint: Checkpoint | None, *, may_wait: bool) -> None:
        """Close the file and write its index, or leave the index for the word to the successor.

        The index is written while the file is being closed, since a hand-over waits for both; it has its name only
        once the file is closed."""
        if checkpoint is None:
            await self._files.close(entry)
            return
        index = self._index_to_leave(checkpoint) if may_wait else b""
        if index:
            await self._files.close(entry)
            self.left[entry.name] = (checkpoint.position, index)
            return
        drafting = asyncio.create_task(self._segments.draft_idx(entry.name, checkpoint))
        try:
            await self._files.close(entry)
            await drafting
        finally:  # no draft goes on behind a file that did not close: it is written again when that was taken over
            drafting.cancel()
            await asyncio.gather(drafting, return_exceptions=True)
        await self._segments.publish_idx(entry.name)

    def _index_to_leave(self, checkpoint: Checkpoint) -> bytes:
        """The index, if the successor is to be told it; it is written when the partition is open there."""
        if not self.has_successor or not self._shared.late_indexes.has_room:
            return b""
        if encoded_bytes(checkpoint) > INDEX_BYTES_MAX - IDX_OVERHEAD:
            return b""
        return encode_idx(checkpoint)

    async def seal(self, entry: SegmentEntry, checkpoint: Checkpoint | None) -> SegmentEntry | None:
        """Take our own file over, as a successor would, once the ownership is proven; until it succeeds.

        A takeover costs storage more than a new file, and no produce waits for it: so first the partitions that broke
        with this one get their next files.  A move waits for it, and ends that.
        """
        await asyncio.sleep(0)  # for the partition's own next file to be asked for
        async with self._waiting(OPENINGS_WAIT_S):
            await self._shared.places.until_opened()
        config, attempt, is_missing = self._shared.config, 0, False
        while True:
            try:
                async with self._turn():
                    if not await self._is_ours():
                        return None
                    length = await self._segments.fence(entry)
                    if checkpoint is not None:
                        if length < checkpoint.position:
                            lost = checkpoint.position - length
                            self._report("storage lost %d flushed bytes of a segment", lost, path=self._log(entry))
                        await self._segments.write_idx(entry.name, checkpoint)
            except NoSuchFile:
                if not is_missing:  # a successor may have joined it to its neighbour since we looked whose it is
                    is_missing = True
                    continue
                if checkpoint is not None:
                    self._report("a segment vanished with flushed data in it", path=self._log(entry))
            except (StorageError, KvError):
                attempt += 1
                await asyncio.sleep(min(config.retry_ms << min(attempt, 16), config.retry_max_ms) / 1000)
                continue
            return _closed(entry, checkpoint)

    def hurry(self) -> None:
        """Let no takeover of a broken segment wait for others: the partition moves, and nobody else serves it before
        they are done."""
        self._is_moving = True
        now = asyncio.get_running_loop().time()
        for wait in self._waits:
            if not wait.expired():
                wait.reschedule(now)

    @contextlib.asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Wait for one of the broker's turns, and hold it for `SEAL_TURN_S` at most; go on without one when the
        partition is to move."""
        turn: _Turn | None = None
        async with self._waiting(None):
            await self._shared.seals.acquire()
            turn = _Turn(self._shared.seals)
        try:
            yield
        finally:
            if turn is not None:
                turn.end()

    @contextlib.asynccontextmanager
    async def _waiting(self, limit_s: float | None) -> AsyncIterator[None]:
        """Bound a wait for others, which ends at once when the partition is to move."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0 if self._is_moving else limit_s) as wait:
                self._waits.add(wait)
                try:
                    yield
                finally:
                    self._waits.discard(wait)

    def _report(self, text: str, *arguments: int, path: str) -> None:
        self._shared.report(text, *arguments, **self._segments.path.log_fields, path=path)

    def _log(self, entry: SegmentEntry) -> str:
        return self._segments.path.log(entry.name)


def _closed(entry: SegmentEntry, checkpoint: Checkpoint | None) -> SegmentEntry:
    if checkpoint is None:
        return entry.closed(0, entry.name.base)
    return entry.closed(checkpoint.position, checkpoint.end_offset)


class _Turn:
    """One of the turns of takeovers, held from here on until ``end`` or for `SEAL_TURN_S`."""

    __slots__ = ("_timer", "_turns")

    def __init__(self, turns: asyncio.Semaphore) -> None:
        self._turns = turns
        self._timer = asyncio.get_running_loop().call_later(SEAL_TURN_S, self.end)

    def end(self) -> None:
        """Give it to the next one; more than once does nothing."""
        if not self._timer.cancelled():
            self._timer.cancel()
            self._turns.release()

"""The end of a partition's files: dropped unused, closed and indexed, or sealed by their own writer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from bmq.broker.events import CloseSegment
from bmq.broker.files.context import FileContext
from bmq.broker.files.open_segments import OpenFiles
from bmq.broker.files.segment_files import SegmentFiles
from bmq.core.aio.tasks import cancel_and_wait
from bmq.core.model import SegmentName
from bmq.meta.kv import KvError
from bmq.meta.ownership import SegmentEntry
from bmq.storage.checkpoint import Checkpoint, encoded_bytes
from bmq.storage.filesystem import NoSuchFile, StorageError
from bmq.storage.segment import IDX_OVERHEAD, encode_idx

OPENINGS_WAIT_S = 20.0
"""Longest wait, in seconds, before a broken segment is sealed, for files that are being opened: a broker that rolls
many segments opens files all the time.
"""
SEAL_TURN_S = 5.0
"""Seconds after which the next waiting seal gets the turn of a running seal.  The running seal then waits for lease
recovery, which takes minutes and costs storage little.  If every waiting seal started by itself instead, hundreds would
start at once.  They would slow each other down until all of them time out, and begin again.
"""
INDEX_BYTES_MAX = 128 << 10
"""Longest index in a release note; a longer one is written before the release. The index of a 128 MB segment has 50 KB.
"""


class Closing:
    """The closing of one partition's files.

    ``is_ours`` reads from the metadata store whether this broker still owns the partition, and may raise KvError.

    While ``has_successor`` is set, the partition is being handed over to a broker that gets a release note. A segment
    then counts as closed before its index is on storage, and ``left`` holds the index
    (``broker.files.deferred_indexes``).
    """

    __slots__ = ("_context", "_files", "_is_moving", "_is_ours", "_segments", "_waits", "has_successor", "left")

    def __init__(
        self, context: FileContext, segments: SegmentFiles, files: OpenFiles, is_ours: Callable[[], Awaitable[bool]]
    ) -> None:
        self._context = context
        self._segments = segments
        self._files = files
        self._is_ours = is_ours
        self._is_moving = False
        self._waits: set[asyncio.Timeout] = set()  # one for each seal that waits for others
        self.has_successor = False
        self.left: dict[SegmentName, tuple[int, bytes]] = {}  # segment length and index; one or two of a hand-over

    async def drop(self, spare: SegmentEntry) -> None:
        """Close the unused file, or abort it if it does not close, and delete it (``broker.files.unused_files``)."""
        await self._files.drop(spare)

    async def close(self, effect: CloseSegment) -> SegmentEntry | None:
        """Close and index a segment whose bytes are all acknowledged; return its entry with length and end offset.

        Seals the file if it does not close. Returns None if another broker owns the partition.
        """
        entry, checkpoint = effect.entry, effect.checkpoint
        try:
            await self._close_and_index(entry, checkpoint, may_wait=effect.index_may_wait)
        except StorageError:
            return await self.seal(entry, checkpoint)
        return _closed(entry, checkpoint)

    async def _close_and_index(self, entry: SegmentEntry, checkpoint: Checkpoint | None, *, may_wait: bool) -> None:
        """Close the file and write its index, or leave the index for the release note.

        The index is drafted while the file is being closed, since a hand-over waits for both; the draft gets the
        index's name only once the file is closed.
        """
        if checkpoint is None:
            await self._files.close(entry)
            return
        index = self._index_to_leave(checkpoint) if may_wait else b""
        if index:
            await self._files.close(entry)
            self.left[entry.name] = (checkpoint.position, index)
            return
        async with self._segments.idx_turn(entry.name):
            drafting = asyncio.create_task(self._segments.draft_idx(entry.name, checkpoint))
            try:
                await self._files.close(entry)
                await drafting
            finally:  # if the file did not close, its seal writes the index again: no draft may still be running then
                await cancel_and_wait(drafting)
            await self._segments.publish_idx(entry.name)

    def _index_to_leave(self, checkpoint: Checkpoint) -> bytes:
        """Return the encoded index if it goes into the release note.

        Empty if it does not: then it must be on storage before the release.
        """
        if not self.has_successor or not self._context.deferred_indexes.has_room:
            return b""
        if encoded_bytes(checkpoint) > INDEX_BYTES_MAX - IDX_OVERHEAD:
            return b""
        return encode_idx(checkpoint)

    async def seal(self, entry: SegmentEntry, checkpoint: Checkpoint | None) -> SegmentEntry | None:
        """Take this broker's own broken file over, as a successor would; repeat until that succeeds.

        Each attempt first reads from the metadata store who owns the partition; returns None if another broker does.

        A seal costs storage more than a new file, and no produce waits for it. So the partitions whose files broke
        at the same time get their next files first. A hand-over waits for the seal, and so ends that wait
        (``hurry``).
        """
        await asyncio.sleep(0)  # the partition requests its own next file in this turn of the loop
        async with self._waiting(OPENINGS_WAIT_S):
            await self._context.open_files.until_opened()
        config, attempt, is_missing = self._context.config, 0, False
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
                if not is_missing:  # a successor may have merged it into its neighbour: check the owner once more
                    is_missing = True
                    continue
                if checkpoint is not None:
                    self._report("a segment vanished with flushed data in it", path=self._log(entry))
            except (StorageError, KvError):
                attempt += 1
                await asyncio.sleep(config.retry_ms.pause(attempt) / 1000)
                continue
            return _closed(entry, checkpoint)

    def hurry(self) -> None:
        """End the waits of seals for others: the partition moves, and no broker serves it before they are done."""
        self._is_moving = True
        now = asyncio.get_running_loop().time()
        for wait in self._waits:
            if not wait.expired():
                wait.reschedule(now)

    @contextlib.asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Wait for one of the broker's turns to seal, and hold it for ``SEAL_TURN_S`` at most.

        Goes on without a turn if the partition is to move.
        """
        turn: _Turn | None = None
        async with self._waiting(None):
            await self._context.seals.acquire()
            turn = _Turn(self._context.seals)
        try:
            yield
        finally:
            if turn is not None:
                turn.end()

    @contextlib.asynccontextmanager
    async def _waiting(self, limit_s: float | None) -> AsyncIterator[None]:
        """Bound a wait for others by ``limit_s`` seconds (None: no bound); a hand-over ends it at once."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0 if self._is_moving else limit_s) as wait:
                self._waits.add(wait)
                try:
                    yield
                finally:
                    self._waits.discard(wait)

    def _report(self, text: str, *arguments: int, path: str) -> None:
        self._context.report(text, *arguments, **self._segments.path.log_fields, path=path)

    def _log(self, entry: SegmentEntry) -> str:
        return self._segments.path.log(entry.name)


def _closed(entry: SegmentEntry, checkpoint: Checkpoint | None) -> SegmentEntry:
    if checkpoint is None:
        return entry.closed(0, entry.name.base)
    return entry.closed(checkpoint.position, checkpoint.end_offset)


class _Turn:
    """One of the broker's turns to seal, held until ``end`` is called or ``SEAL_TURN_S`` have passed."""

    __slots__ = ("_timer", "_turns")

    def __init__(self, turns: asyncio.Semaphore) -> None:
        self._turns = turns
        self._timer = asyncio.get_running_loop().call_later(SEAL_TURN_S, self.end)

    def end(self) -> None:
        """Return the turn to the semaphore; repeated calls do nothing."""
        if not self._timer.cancelled():
            self._timer.cancel()
            self._turns.release()

"""The newest batches of every partition, as their owners flushed them.  Pure.

A partition's tail is a run of consecutive batches that ends at its high watermark.  A batch that does not continue the
run (some were missed, or another owner wrote them) begins a new run.  A single bound holds for all tails together; past
it the oldest batch, whichever partition's, is evicted first.  A partition without batches here costs nothing.

The bytes that are kept alive count (rule 8).  A produce request is a single frame with the batches of many partitions,
and a view of one batch keeps the whole frame alive.  Its batches arrive and are evicted together.  So a frame is kept
as it came, counted once, and freed with its last batch.  But a small batch, or a small part of its frame, is copied
out.

A run may end with a million batches in it: its partition moves, or its records are deleted.  No reader finds them from
then on, and they are released in steps (``release``), or first when room is needed.

A tail also has the aborted transactions whose markers it holds, or that began below its end.  So a reader at
read_committed gets its list from here.  There are never more of them than batches were added.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from heapq import heapify, heappop, heappush, heapreplace
from operator import attrgetter
from typing import NamedTuple

from bmq.core.model import PartitionKey
from bmq.core.net.request import Buffer
from bmq.core.records.batch import Batch
from bmq.storage.aborted import AbortedTransactions
from bmq.storage.checkpoint import AbortedTransaction
from bmq.storage.log_reader import HeldRecords

ENTRY_BYTES = 200
"""Bytes of a batch's entry and of its places in the run (measured, CPython 3.11)."""
VIEW_BYTES = 310
"""Bytes that a view of a frame costs beside them (measured, too)."""
JOIN_BYTES = 8 << 10
"""Bytes; batches smaller than this on average are joined when read: a copy costs less than a system call's vector of
them."""
COPY_BYTES = 16 << 10
"""Bytes; a smaller batch is copied out of a frame that is over twice as large."""
TINY_BYTES = 1 << 10
"""Bytes; a smaller batch is copied out of any frame: its view would cost a third of it, or more."""
COPY_SHARE = 16
"""Divisor; a batch smaller than its frame's bytes divided by this is copied, too.  If the frame's other batches never
came, it would keep far more alive than its own bytes."""
MANY_BYTES = 1 << 62
"""Result of ``TailCache.size_between`` for a range of which batches are not kept: more than any reader waits for."""
RELEASED_AT_ONCE = 1_000
"""Most dead batches that a step releases: about a microsecond for a batch."""
_ENDED_MAX = 64  # runs that have ended, beside half of the heap
_COMPACT = 64  # evicted entries at the front of a run, before it is shortened
_END = attrgetter("end")


class TailSlice(NamedTuple):
    """Whole batches, one after another, ``batches`` of them; ``size`` in bytes, ``end`` the offset behind them."""

    buffers: Sequence[Buffer]
    size: int
    end: int
    batches: int


class _Entry:
    """One batch.

    ``end`` is the offset after its last record; ``cost`` the bytes that it keeps alive, without those of a shared
    ``frame``.  ``has_records`` is False for a batch whose records are lost or were removed.
    """

    __slots__ = ("cost", "data", "end", "frame", "has_records", "size")

    def __init__(self, data: Buffer, end: int, cost: int, frame: _Frame | None) -> None:
        self.data = data
        self.size = len(data)
        self.end = end
        self.cost = cost
        self.frame = frame
        self.has_records = True


class _Frame:
    """The bytes of one request, of which several batches are views; ``kept`` is the number of those in the cache."""

    __slots__ = ("id", "kept", "size")

    def __init__(self, frame_id: int, size: int) -> None:
        self.id = frame_id
        self.size = size
        self.kept = 0


class _Tail:
    """One partition's run: offsets [start, end) in ``entries[live:]``; ``entries[first:live]`` are dead.

    ``added`` are the bytes of all batches that were ever added, ``ends`` its value after each of ``entries``, and
    ``popped`` its value at ``start``.  ``numbers`` are the places of ``entries`` in the order of all arrivals.
    """

    __slots__ = ("aborted", "added", "end", "ends", "entries", "first", "key", "live", "numbers", "popped", "start")

    def __init__(self, key: PartitionKey, start: int) -> None:
        self.key = key
        self.entries: list[_Entry] = []
        self.ends = array("q")
        self.numbers = array("q")
        self.first = self.live = 0
        self.start = self.end = start
        self.added = self.popped = 0
        self.aborted: AbortedTransactions | None = None  # none were added

    def __len__(self) -> int:
        return len(self.entries) - self.live

    @property
    def dead(self) -> int:
        """Number of the dead batches."""
        return self.live - self.first

    @property
    def oldest(self) -> int:
        """The number of the oldest live batch; -1 if there is none."""
        live, numbers = self.live, self.numbers
        return numbers[live] if live < len(numbers) else -1

    def append(self, entry: _Entry, number: int) -> None:
        """Add the newest batch."""
        self.entries.append(entry)
        self.numbers.append(number)
        self.added += entry.size
        self.ends.append(self.added)

    def size_until(self, offset: int) -> int | None:
        """Return the bytes of the batches [``start``, ``offset``); None if no batch of the run ends at ``offset``."""
        if offset == self.start:
            return 0
        at = bisect_left(self.entries, offset, self.live, key=_END)
        if at == len(self.entries) or self.entries[at].end != offset:
            return None
        return self.ends[at] - self.popped

    def size_between(self, start: int, end: int) -> int:
        """Return the bytes of the batches from ``start`` to ``end``, both of them ends of batches."""
        after = bisect_right(self.entries, start, self.live, key=_END)
        upto = bisect_right(self.entries, end, after, key=_END)
        if upto == after:
            return 0
        return self.ends[upto - 1] - (self.ends[after - 1] if after > self.live else self.popped)

    def count_until(self, offset: int) -> int:
        """Return the number of batches that end at ``offset`` or before."""
        return bisect_right(self.entries, offset, self.live, key=_END) - self.live

    def bury(self, count: int) -> None:
        """Let the oldest ``count`` batches, one at least, be dead."""
        self.live += count
        self.start, self.popped = self.entries[self.live - 1].end, self.ends[self.live - 1]

    def pop(self) -> _Entry:
        """Remove and return the oldest batch: the oldest of the dead, if there are any."""
        at = self.first
        entry, self.entries[at] = self.entries[at], _GONE  # freed now, not with half of the run
        if at == self.live:
            self.live, self.start, self.popped = at + 1, entry.end, self.ends[at]
        self.first = at + 1
        if self.first >= _COMPACT and 2 * self.first >= len(self.entries):
            del self.entries[: self.first]
            del self.ends[: self.first]
            del self.numbers[: self.first]
            self.live -= self.first
            self.first = 0
        return entry


_GONE = _Entry(b"", 0, 0, None)
"""In the place of an entry that was removed."""


class TailCache:
    """All tails, within ``limit`` bytes."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._tails: dict[PartitionKey, _Tail] = {}
        self._with_dead: dict[_Tail, None] = {}
        self.dead = 0
        """Number of batches that are kept though no reader finds them: ``release`` removes them."""
        # A heap by the number of each tail's oldest batch.  A tail that was shortened is too early in it, until then.
        self._oldest: list[tuple[int, _Tail]] = []
        self._came = 0  # batches that were ever added
        self._kept = 0
        self._frames: dict[int, _Frame] = {}  # by id of the bytes, which are alive as long as one batch is kept

    def __len__(self) -> int:
        """Return the number of batches kept."""
        return self._kept

    def __repr__(self) -> str:
        return f"<TailCache {self._kept} batches of {len(self._tails)} partitions, {self.used}/{self.limit}>"

    def extent(self, key: PartitionKey) -> tuple[int, int] | None:
        """Return the offsets [start, end) kept of a partition; None if there are none."""
        tail = self._tails.get(key)
        return (tail.start, tail.end) if tail is not None else None

    def held(self, key: PartitionKey) -> HeldRecords | None:
        """Return the partition's run, which goes on changing; None if no batch is kept."""
        return self._tails.get(key)

    def add(self, key: PartitionKey, batches: Sequence[Batch], aborted: Sequence[AbortedTransaction] = ()) -> None:
        """Add batches of a partition that were flushed, in this order; evict the oldest of all past ``limit``.

        ``aborted``: the aborted transactions for a reader of exactly these batches.  Some may be known already.
        """
        tail, number = self._tails.get(key), self._came
        for batch in batches:
            if tail is None or batch.base_offset != tail.end:
                self.drop(key)
                tail = self._tails[key] = _Tail(key, batch.base_offset)
                heappush(self._oldest, (number, tail))
            tail.end = batch.next_offset
            entry = self._entry(batch.data, tail.end)
            entry.has_records = batch.count > 0
            tail.append(entry, number)
            number += 1
            self.used += entry.cost
        self._kept += number - self._came
        self._came = number
        if aborted and tail is not None:
            if tail.aborted is None:
                tail.aborted = AbortedTransactions()
            tail.aborted.merge(aborted)
        if self.used > self.limit:
            self.shrink(self.limit)

    def shrink(self, size: int, batches_max: int | None = None) -> None:
        """Evict dead batches, then the oldest, until ``size`` bytes are kept, or ``batches_max`` are evicted."""
        left = self._kept if batches_max is None else min(batches_max, self._kept)
        while self.used > size and left:
            if self._with_dead:
                self.release(1)
            else:
                self._evict_oldest()
            left -= 1

    def release(self, count: int = RELEASED_AT_ONCE) -> None:
        """Remove up to ``count`` dead batches."""
        while count and self._with_dead:
            tail = next(iter(self._with_dead))
            step = min(count, tail.dead)
            for _ in range(step):
                self._forget(tail.pop())
            count -= step
            self.dead -= step
            if not tail.dead:
                del self._with_dead[tail]

    def _entry(self, data: memoryview, end: int) -> _Entry:
        """Return the entry for a batch: a view as it came, or a copy."""
        size, frame_size = len(data), memoryview(data.obj).nbytes
        if TINY_BYTES <= size < COPY_BYTES and 2 * size >= frame_size:
            return _Entry(data, end, frame_size + ENTRY_BYTES + VIEW_BYTES, None)
        if size < COPY_BYTES or COPY_SHARE * size < frame_size:
            return _Entry(bytes(data), end, size + ENTRY_BYTES, None)
        frame_id = id(data.obj)
        frame = self._frames.get(frame_id)
        if frame is None:
            frame = self._frames[frame_id] = _Frame(frame_id, frame_size)
            self.used += frame_size
        frame.kept += 1
        return _Entry(data, end, ENTRY_BYTES + VIEW_BYTES, frame)

    def drop(self, key: PartitionKey) -> None:
        """Hide the partition's batches from readers; ``release`` removes them."""
        tail = self._tails.get(key)
        if tail is not None:
            self._bury(tail, len(tail))

    def trim(self, key: PartitionKey, log_start: int) -> None:
        """Do the same with batches that lie wholly below ``log_start``."""
        tail = self._tails.get(key)
        if tail is not None:
            self._bury(tail, tail.count_until(log_start))

    def read(
        self,
        key: PartitionKey,
        offset: int,
        max_bytes: int,
        end_offset: int,
        *,
        at_least_one: bool,
        batches_max: int = 1 << 30,
    ) -> TailSlice | None:
        """Return the batches from the one that holds ``offset`` on, as many as fit, all below ``end_offset``.

        At most ``batches_max``, and never none: a batch takes half a microsecond.

        If this batch has no records, the first is the next that has some; if no batch below ``end_offset`` has any,
        they are the batches without records.

        ``at_least_one``: the first even if it is larger than ``max_bytes``.  Returns None if ``offset`` is not kept; an
        empty slice if it is, but no batch fits.
        """
        tail = self._tails.get(key)
        if tail is None or not tail.start <= offset < tail.end:
            return None
        entries = tail.entries
        at = bisect_right(entries, offset, tail.live, key=_END)
        if not entries[at].has_records:
            at = _next_with_records(entries, at, end_offset)
        buffers: list[Buffer] = []
        size, first = 0, at
        upto = min(len(entries), at + max(1, batches_max))
        while at < upto:
            entry = entries[at]
            if entry.end > end_offset or (size + entry.size > max_bytes and (size or not at_least_one)):
                break
            buffers.append(entry.data)
            size += entry.size
            at += 1
        end = entries[at - 1].end if size else offset
        if len(buffers) > 1 and size < JOIN_BYTES * len(buffers):
            return TailSlice((b"".join(buffers),), size, end, at - first)
        return TailSlice(buffers, size, end, at - first)

    def aborted(self, key: PartitionKey, start: int, end: int) -> Sequence[AbortedTransaction]:
        """Return the aborted transactions for a reader of [start, end), which ``read`` has found here."""
        tail = self._tails.get(key)
        return () if tail is None or tail.aborted is None else tail.aborted.overlapping(start, end)[0]

    def size_between(self, key: PartitionKey, start: int, end: int) -> int:
        """Return the bytes of the partition's batches in [start, end); MANY_BYTES if not all of them are kept."""
        if end <= start:
            return 0
        tail = self._tails.get(key)
        return MANY_BYTES if tail is None or start < tail.start else tail.size_between(start, end)

    def _evict_oldest(self) -> None:
        """Remove the oldest live batch of all."""
        heap = self._oldest
        while True:
            number, tail = heap[0]
            oldest = tail.oldest
            if oldest < 0:
                heappop(heap)  # it has ended
            elif oldest != number:
                heapreplace(heap, (oldest, tail))  # it was trimmed
            else:
                break
        self._forget(tail.pop())
        if (oldest := tail.oldest) < 0:
            heappop(heap)
        else:
            heapreplace(heap, (oldest, tail))
        if oldest < 0 or tail.aborted is not None:
            self._shorten(tail)

    def _bury(self, tail: _Tail, count: int) -> None:
        """Hide the oldest ``count`` batches of a run; ``release`` removes them."""
        if count:
            tail.bury(count)
            self._with_dead[tail] = None
            self.dead += count
        self._shorten(tail)

    def _shorten(self, tail: _Tail) -> None:
        """Forget the aborted transactions before the run's start, or the run if it is empty."""
        if not tail:
            tail.aborted = None
            del self._tails[tail.key]
            if len(self._oldest) > 2 * len(self._tails) + _ENDED_MAX:
                self._oldest = [(each.oldest, each) for each in self._tails.values()]
                heapify(self._oldest)
        elif tail.aborted is not None:
            tail.aborted.drop_before(tail.start)
            if not tail.aborted:
                tail.aborted = None

    def _forget(self, entry: _Entry) -> None:
        self._kept -= 1
        self.used -= entry.cost
        frame = entry.frame
        if frame is not None:
            frame.kept -= 1
            if not frame.kept:
                del self._frames[frame.id]
                self.used -= frame.size


def _next_with_records(entries: Sequence[_Entry], at: int, end_offset: int) -> int:
    """Return the place of the first batch from ``at`` on with records, below ``end_offset``; ``at`` if none has any."""
    for place in range(at, len(entries)):
        entry = entries[place]
        if entry.end > end_offset:
            break
        if entry.has_records:
            return place
    return at

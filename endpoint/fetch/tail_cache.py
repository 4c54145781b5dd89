"""The newest batches of every partition, as their owners flushed them.  Pure.

A partition's tail is a run of consecutive batches that ends at its high watermark.  A batch that does not continue the
run (some were missed, or another owner wrote them) begins a new run.  A single bound holds for all tails together; past
it the oldest batch, whichever partition's, is evicted first.  A partition without batches here costs nothing.

The bytes that are kept alive count (rule 8).  A produce request is a single frame with the batches of many partitions,
and a view of one batch keeps the whole frame alive.  Its batches arrive and are evicted together.  So a frame is kept
as it came, counted once, and freed with its last batch.  But a small batch, or a small part of its frame, is copied
out.

A tail also has the aborted transactions whose markers it holds, or that began below its end.  So a reader at
read_committed gets its list from here.  There are never more of them than batches were added.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

from bmq.core.model import PartitionKey
from bmq.core.net.request import Buffer
from bmq.core.records.batch import Batch
from bmq.storage.aborted import AbortedTransactions
from bmq.storage.checkpoint import AbortedTransaction
from bmq.storage.log_reader import HeldRecords

ENTRY_BYTES = 550
"""Bytes that one batch costs beside its own: its view, its entry, its places in run and order (measured, CPython
3.11)."""
JOIN_BYTES = 8 << 10
"""Bytes; batches smaller than this on average are joined when read: a copy costs less than a system call's vector of
them."""
COPY_BYTES = 16 << 10
"""Bytes; a smaller batch is copied out of a frame that is over twice as large."""
COPY_SHARE = 16
"""Divisor; a batch smaller than its frame's bytes divided by this is copied, too.  If the frame's other batches never
came, it would keep far more alive than its own bytes."""
MANY_BYTES = 1 << 62
"""Result of ``TailCache.size_between`` for a range of which batches are not kept: more than any reader waits for."""
_COMPACT = 64  # evicted entries at the front of a run, before it is shortened
_END = attrgetter("end")


class TailSlice(NamedTuple):
    """Whole batches, one after another; ``size`` in bytes, ``end`` the offset behind them."""

    buffers: Sequence[Buffer]
    size: int
    end: int


class _Entry:
    """One batch.

    ``end`` is the offset after its last record; ``cost`` the bytes that it keeps alive, without those of a shared
    ``frame``.  ``has_records`` is False for a batch whose records are lost or were removed.
    """

    __slots__ = ("cost", "data", "end", "frame", "has_records", "size", "tail")

    def __init__(self, tail: _Tail, data: Buffer, end: int, cost: int, frame: _Frame | None) -> None:
        self.tail = tail
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
    """One partition's run: offsets [start, end) in ``entries[first:]``.

    ``added`` are the bytes of all batches that were ever added, ``ends`` its value after each of ``entries``, and
    ``popped`` its value at ``start``.
    """

    __slots__ = ("aborted", "added", "end", "ends", "entries", "first", "key", "popped", "start")

    def __init__(self, key: PartitionKey, start: int) -> None:
        self.key = key
        self.entries: list[_Entry] = []
        self.ends = array("q")
        self.first = 0
        self.start = self.end = start
        self.added = self.popped = 0
        self.aborted: AbortedTransactions | None = None  # none were added

    def __len__(self) -> int:
        return len(self.entries) - self.first

    def append(self, entry: _Entry) -> None:
        """Add the newest batch."""
        self.entries.append(entry)
        self.added += entry.size
        self.ends.append(self.added)

    def size_until(self, offset: int) -> int | None:
        """Return the bytes of the batches [``start``, ``offset``); None if no batch of the run ends at ``offset``."""
        if offset == self.start:
            return 0
        at = bisect_left(self.entries, offset, self.first, key=_END)
        if at == len(self.entries) or self.entries[at].end != offset:
            return None
        return self.ends[at] - self.popped

    def size_between(self, start: int, end: int) -> int:
        """Return the bytes of the batches from ``start`` to ``end``, both of them ends of batches."""
        after = bisect_right(self.entries, start, self.first, key=_END)
        upto = bisect_right(self.entries, end, after, key=_END)
        if upto == after:
            return 0
        return self.ends[upto - 1] - (self.ends[after - 1] if after > self.first else self.popped)

    def pop(self) -> _Entry:
        """Remove and return the oldest batch."""
        entry = self.entries[self.first]
        self.popped = self.ends[self.first]
        self.first += 1
        self.start = entry.end
        if self.first >= _COMPACT and 2 * self.first >= len(self.entries):
            del self.entries[: self.first]
            del self.ends[: self.first]
            self.first = 0
        return entry


class TailCache:
    """All tails, within ``limit`` bytes."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._tails: dict[PartitionKey, _Tail] = {}
        self._order: OrderedDict[_Entry, None] = OrderedDict()  # of arrival, over all tails
        self._frames: dict[int, _Frame] = {}  # by id of the bytes, which are alive as long as one batch is kept

    def __len__(self) -> int:
        """Return the number of batches kept."""
        return len(self._order)

    def __repr__(self) -> str:
        return f"<TailCache {len(self._order)} batches of {len(self._tails)} partitions, {self.used}/{self.limit}>"

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
        tail = self._tails.get(key)
        if tail is None:
            tail = self._tails[key] = _Tail(key, batches[0].base_offset)
        order = self._order
        for batch in batches:
            if batch.base_offset != tail.end:
                self._empty(tail)
                tail.start = batch.base_offset
            tail.end = batch.next_offset
            entry = self._entry(tail, batch.data)
            entry.has_records = batch.count > 0
            tail.append(entry)
            order[entry] = None
            self.used += entry.cost
        if aborted:
            if tail.aborted is None:
                tail.aborted = AbortedTransactions()
            tail.aborted.merge(aborted)
        if self.used > self.limit:
            self.shrink(self.limit)

    def shrink(self, size: int, batches_max: int | None = None) -> None:
        """Evict the oldest batches of all until ``size`` bytes are kept at most, or ``batches_max`` are evicted."""
        order = self._order
        left = len(order) if batches_max is None else min(batches_max, len(order))
        while self.used > size and left:
            self._evict(next(iter(order)).tail)
            left -= 1

    def _entry(self, tail: _Tail, data: memoryview) -> _Entry:
        """Return the entry for a batch: a view as it came, or a copy."""
        size, frame_size = len(data), memoryview(data.obj).nbytes
        if size < COPY_BYTES and 2 * size >= frame_size:
            return _Entry(tail, data, tail.end, frame_size + ENTRY_BYTES, None)
        if size < COPY_BYTES or COPY_SHARE * size < frame_size:
            return _Entry(tail, bytes(data), tail.end, size + ENTRY_BYTES, None)
        frame_id = id(data.obj)
        frame = self._frames.get(frame_id)
        if frame is None:
            frame = self._frames[frame_id] = _Frame(frame_id, frame_size)
            self.used += frame_size
        frame.kept += 1
        return _Entry(tail, data, tail.end, ENTRY_BYTES, frame)

    def drop(self, key: PartitionKey) -> None:
        """Remove the partition's batches."""
        tail = self._tails.pop(key, None)
        if tail is not None:
            self._empty(tail)

    def trim(self, key: PartitionKey, log_start: int) -> None:
        """Remove the partition's batches that lie wholly below ``log_start``."""
        tail = self._tails.get(key)
        while tail is not None and tail and tail.entries[tail.first].end <= log_start:
            self._evict(tail)

    def read(
        self, key: PartitionKey, offset: int, max_bytes: int, end_offset: int, *, at_least_one: bool
    ) -> TailSlice | None:
        """Return the batches from the one that holds ``offset`` on, as many as fit, all below ``end_offset``.

        If this batch has no records, the first is the next that has some; if no batch below ``end_offset`` has any,
        they are the batches without records.

        ``at_least_one``: the first even if it is larger than ``max_bytes``.  Returns None if ``offset`` is not kept; an
        empty slice if it is, but no batch fits.
        """
        tail = self._tails.get(key)
        if tail is None or not tail.start <= offset < tail.end:
            return None
        entries = tail.entries
        at = bisect_right(entries, offset, tail.first, key=_END)
        if not entries[at].has_records:
            at = _next_with_records(entries, at, end_offset)
        buffers: list[Buffer] = []
        size = 0
        while at < len(entries):
            entry = entries[at]
            if entry.end > end_offset or (size + entry.size > max_bytes and (size or not at_least_one)):
                break
            buffers.append(entry.data)
            size += entry.size
            at += 1
        end = entries[at - 1].end if size else offset
        if len(buffers) > 1 and size < JOIN_BYTES * len(buffers):
            return TailSlice((b"".join(buffers),), size, end)
        return TailSlice(buffers, size, end)

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

    def _evict(self, tail: _Tail) -> None:
        self._forget(tail.pop())
        if not tail:
            del self._tails[tail.key]
        elif tail.aborted is not None:
            tail.aborted.drop_before(tail.start)
            if not tail.aborted:
                tail.aborted = None

    def _empty(self, tail: _Tail) -> None:
        tail.aborted = None
        while tail:
            self._forget(tail.pop())

    def _forget(self, entry: _Entry) -> None:
        del self._order[entry]
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

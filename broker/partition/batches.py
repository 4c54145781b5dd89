"""Accepted batches on their way to storage, in the order of their offsets: pure.

A batch is first in ``unsent``, then in ``inflight`` on the open segment. On a fail-over those in flight go back to the
front of ``unsent``, with unchanged bytes.
"""

from __future__ import annotations

from collections import deque

from bmq.broker.partition.checkpointer import OpenSegment
from bmq.broker.pending import Pending


class Duplicate:
    """A batch that repeats the one at ``base_offset``, whose largest timestamp is ``timestamp`` (rule 9).

    ``pending`` is the original until it is flushed, then None.
    """

    __slots__ = ("base_offset", "pending", "timestamp")

    def __init__(self, base_offset: int, pending: Pending | None, timestamp: int) -> None:
        self.base_offset = base_offset
        self.pending = pending
        self.timestamp = timestamp


class Batches:
    """One partition's batches between their acceptance and their flush.

    ``buffered_bytes`` is their size, and the size of batches that are held before they are accepted.
    """

    __slots__ = ("_held_bytes", "buffered_bytes", "inflight", "unsent")

    def __init__(self) -> None:
        self.unsent: deque[Pending] = deque()
        self.inflight: deque[Pending] = deque()
        self.buffered_bytes = 0
        self._held_bytes = 0

    def __repr__(self) -> str:
        return f"<Batches unsent={len(self.unsent)} inflight={len(self.inflight)}>"

    @property
    def is_idle(self) -> bool:
        """True while no batch waits or is in flight."""
        return not self.inflight and not self.unsent

    def add(self, pending: Pending) -> None:
        """Queue a numbered batch."""
        self.unsent.append(pending)
        self.buffered_bytes += pending.batch.size

    def hold(self, size: int) -> None:
        """Count a batch of ``size`` bytes that waits until it may be accepted."""
        self._held_bytes += size
        self.buffered_bytes += size

    def let_go(self, size: int) -> None:
        """Count a batch of ``size`` bytes no more: it is accepted now, or refused."""
        self._held_bytes -= size
        self.buffered_bytes -= size

    def find(self, base_offset: int) -> Pending:
        """Return the batch with this base offset, which must be among these."""
        for queue in (self.inflight, self.unsent):
            for pending in queue:
                if pending.batch.base_offset == base_offset:
                    return pending
        raise AssertionError(f"offset {base_offset} is neither flushed nor on its way")

    def send(self, segment: OpenSegment, bytes_max: int, roll_bytes: int, now_ms: int) -> tuple[list[Pending], bool]:
        """Move batches onto the segment, for one flush of at most ``bytes_max`` bytes, or of one batch.

        Returns them, and whether the next batch has no room in the segment or needs more copies than the segment has.
        """
        taken: list[Pending] = []
        size, is_full, unsent = 0, False, self.unsent
        while unsent:
            pending = unsent[0]
            length = pending.batch.size
            if pending.copies > segment.copies or (segment.position > 0 and segment.position + length > roll_bytes):
                is_full = True
                break
            if taken and size + length > bytes_max:
                break
            unsent.popleft()
            pending.start_position = segment.position
            segment.position += length
            pending.end_position = segment.position
            pending.sent_ms = now_ms
            pending.was_sent = True
            taken.append(pending)
            size += length
        segment.last_write_ms = now_ms
        if taken:
            segment.flushes += 1
            self.inflight.extend(taken)
        return taken, is_full

    def flushed(self, position: int) -> list[Pending]:
        """Remove and return the batches that storage has acknowledged: those that end at or before ``position``."""
        done: list[Pending] = []
        inflight = self.inflight
        while inflight and inflight[0].end_position <= position:
            pending = inflight.popleft()
            self.buffered_bytes -= pending.batch.size
            done.append(pending)
        return done

    def put_back(self) -> None:
        """Move the batches in flight back to the front of ``unsent``: their segment was given up."""
        for pending in reversed(self.inflight):
            pending.start_position = pending.end_position = pending.sent_ms = -1
            self.unsent.appendleft(pending)
        self.inflight.clear()

    def split_unsent(self) -> tuple[tuple[Pending, ...], tuple[Pending, ...]]:
        """Return the batches of ``unsent`` that were ever sent to a file, and those behind them.

        The latter certainly are in no file.
        """
        sent = tuple(pending for pending in self.unsent if pending.was_sent)
        return sent, tuple(self.unsent)[len(sent) :]

    def drop_last(self, count: int) -> None:
        """Remove the last ``count`` batches of ``unsent``."""
        for _ in range(count):
            self.buffered_bytes -= self.unsent.pop().batch.size

    def drop(self) -> tuple[tuple[Pending, ...], tuple[Pending, ...]]:
        """Remove all batches; return the batches ever sent to a file, and the batches certainly never sent."""
        sent = (*self.inflight, *(pending for pending in self.unsent if pending.was_sent))
        unsent = tuple(pending for pending in self.unsent if not pending.was_sent)
        self.inflight.clear()
        self.unsent.clear()
        self.buffered_bytes = self._held_bytes
        return sent, unsent

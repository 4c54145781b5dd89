"""Indexes that the segments of a taken over log lack.

| the segment                                     | its index                                                       |
| ----------------------------------------------- | --------------------------------------------------------------- |
| was read from its beginning, or from a whole    | is written at once                                              |
| checkpoint                                      |                                                                 |
| was read in part, or not at all: a checkpoint   | is made from the whole segment after ``LOOK_MS``, unless it is  |
| covers it, and its owner may yet write the      | there by then                                                   |
| index                                           |                                                                 |
| has a damaged index, or one that ends too early | takes the other index's place                                   |

While storage does not take an index, the work goes on, with longer and longer pauses. Without the index, readers of
committed records cannot read transactions of the segment, and compaction ends before the segment. The work ends if
``ATTEMPTS`` rounds have found the segment damaged, or storage has refused the index so often.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, NamedTuple

from bmq.broker.files.context import FileContext
from bmq.broker.files.deferred_indexes import LOOK_MS
from bmq.broker.partition.index_maker import IndexMaker, UnreadSegment
from bmq.core.aio.backoff import Backoff
from bmq.core.errors import FormatError
from bmq.core.model import SegmentName
from bmq.storage.filesystem import CorruptData, NoSuchFile, StorageError, Unsupported
from bmq.storage.recovery import RecoveredSegment

Work = Coroutine[Any, Any, None]
ATTEMPTS = 3
"""Attempts to write an index without a pause; rounds before its failure is reported; rounds with damage before the
index is given up. A replica that cannot be read may be sound: its datanode comes back after an outage."""
PAUSES_MS = Backoff(LOOK_MS, 30 * LOOK_MS)
"""Pauses before the rounds. A round may read a whole segment again, so the later pauses are long."""


class _Due(NamedTuple):
    """A segment whose index is due, and a function that reads everything for the index."""

    segment: UnreadSegment | RecoveredSegment
    read: Callable[[], Awaitable[RecoveredSegment]]


class MissingIndexes:
    """The work on the missing indexes of one takeover.

    ``segments``: segments that may lack an index, unread or read by the recovery. ``ended`` is called with each name
    that needs no more work. ``begin`` starts a task of the partition, unless the partition has ended. Between the
    rounds there is no task: a death leaves work to thousands of partitions.
    """

    __slots__ = ("_begin", "_context", "_damage", "_due", "_ended", "_maker", "_rounds", "_segments")

    def __init__(
        self,
        context: FileContext,
        maker: IndexMaker,
        segments: Sequence[UnreadSegment | RecoveredSegment],
        ended: Callable[[SegmentName], None],
        begin: Callable[[Callable[[], Work]], asyncio.Task[None] | None],
    ) -> None:
        self._context = context
        self._maker = maker
        self._segments = segments
        self._ended = ended
        self._begin = begin
        self._due: list[_Due] = []
        self._rounds = 0
        self._damage = Counter[SegmentName]()  # rounds that found a segment damaged, or its index refused

    async def write(self) -> None:
        """Write the indexes whose content is known; do the other work later, and go on while storage takes no index."""
        self._due = await self._at_once()
        self._go_on_later()

    def _go_on_later(self) -> None:
        if self._due:
            self._rounds += 1
            pause_ms = PAUSES_MS.pause(self._rounds)
            self._context.index_rounds.later(pause_ms, lambda: self._begin(self._round))

    async def _round(self) -> None:
        self._due = [each for each in self._due if not await self._is_done(each, self._rounds)]
        self._maker.forget()
        self._go_on_later()

    async def _at_once(self) -> list[_Due]:
        """Write the indexes whose content is known; return the other work, and keep nothing else."""
        segments, self._segments = self._segments, ()
        due = []
        for segment in segments:
            if isinstance(segment, UnreadSegment):
                due.append(_Due(segment, partial(self._maker.read_whole, segment)))
            elif not segment.has_whole_index:
                due.append(_Due(segment, partial(self._maker.read_again, segment)))
            elif await self._is_written(segment):
                self._ended(segment.name)
            else:
                due.append(_Due(segment, partial(_itself, segment)))
        return due

    async def _is_written(self, segment: RecoveredSegment) -> bool:
        for _ in range(ATTEMPTS):
            try:
                await self._maker.write(segment)
                return True
            except StorageError:
                continue
        return False

    async def _is_done(self, due: _Due, rounds: int) -> bool:
        """Write the index if it is still missing; return whether no more work is due on it."""
        try:
            async with self._context.late_indexes:  # held across the read: it bounds how many run at once
                if not await self._maker.is_indexed_to_end(due.segment):
                    await self._maker.write(await due.read())
        except NoSuchFile:
            pass  # deleted meanwhile
        except (StorageError, FormatError) as error:
            self._damage[due.segment.name] += isinstance(error, FormatError | CorruptData | Unsupported)
            is_given_up = self._damage[due.segment.name] >= ATTEMPTS
            if rounds == ATTEMPTS or is_given_up:
                text = "could not write the index of a segment; readers scan the segment"
                path = self._maker.path
                self._context.report(text, **path.log_fields, path=path.idx(due.segment.name), error=repr(error))
            if not is_given_up:
                return False
        self._ended(due.segment.name)
        return True


async def _itself(segment: RecoveredSegment) -> RecoveredSegment:
    return segment

"""The view of one partition whose owner is in another process: a ``PartitionView``.

The watermark moves with the data: it is the end of the batches that have come, never ahead of them.  So a reader at the
end finds them in memory.  Earlier batches are read from storage.  For such reads the proxy queries the owner's state of
its open segment, with one query for all waiting readers.  The response has only the new index entries.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

from bmq.core.errors import ErrorCode, FormatError, RequestError
from bmq.core.model import PartitionKey, SegmentName
from bmq.core.records.batch import Ends
from bmq.core.rpc.message import InternalRequest, R
from bmq.core.rpc.messages.broker import ActiveSegmentRequest, ActiveSegmentResponse, AskRequest, AskResponse, Question
from bmq.storage.aborted import AbortedTransactions, RecentAborted, StableMove, decode_aborted
from bmq.storage.checkpoint import INDEX_ENTRY_BYTES, AbortedTransaction, from_big_endian
from bmq.storage.index import SegmentIndex
from bmq.storage.log_reader import ActiveSegment

SURE_S = 2.0
"""Time within which a reader must come again to use the end of the log that the owner has confirmed.  Only one reader
uses it: it may be out of date for a later one."""
CONFIRM_EVERY_S = 0.1
"""Least time between two such queries for a partition: a client that gets its response at once may ask again at
once."""
CONFIRM_AGAIN_S = 1.0
"""Pause after such a query without a response, before the waiting readers are notified."""


class OwnerLink(Protocol):
    """The link to a tail's owner: a ``TailFetcher``, whose module imports this module."""

    async def ask(self, key: PartitionKey, request: InternalRequest[R]) -> R:
        """Return the owner's response.  Raises RequestError if there is none in time."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` in a task, until it is done or the link is shut."""

    def wake_readers(self, tail: RemoteTail) -> None:
        """Wake the readers of a tail, so that they check its end again."""


class RemoteTail:
    """One partition's view.  The link calls ``open`` and ``close`` alternately, and ``advance`` in between."""

    __slots__ = (
        "_active_query",
        "_active_upto",
        "_confirmed_at",
        "_is_confirming",
        "_link",
        "_owner_watermark",
        "_sure_end",
        "_sure_until",
        "active_segment",
        "epoch",
        "failures",
        "high_watermark",
        "is_open",
        "key",
        "last_stable_offset",
        "log_start",
        "looked_at",
        "opened_at",
        "recent_aborted",
    )  # fmt: skip

    def __init__(self, key: PartitionKey, now: float) -> None:
        self.key = key
        self.is_open = False
        self.epoch = -1
        self.log_start = self.high_watermark = self.last_stable_offset = -1
        self._owner_watermark = -1  # when it sent ``last_stable_offset``: no later marker has moved that
        self.active_segment: ActiveSegment | None = None
        self.recent_aborted: RecentAborted | None = None
        self.looked_at = now
        self.failures = 0  # to be followed, one after another
        self.opened_at = 0.0
        self._link: OwnerLink | None = None
        self._active_query: asyncio.Future[None] | None = None
        self._active_upto = -1
        self._is_confirming = False
        self._confirmed_at = -math.inf
        self._sure_end, self._sure_until = -1, 0.0

    def __repr__(self) -> str:
        marks = f"{self.log_start}..{self.high_watermark}"
        return f"<Tail {self.key} {f'epoch {self.epoch} {marks}' if self.is_open else 'closed'}>"

    # ----------------------------------------------------------------------------------------------------- for the link

    def open(self, ends: Ends, link: OwnerLink) -> None:
        """Open the view with the owner's epoch and offsets, before the first fetch."""
        if ends.epoch != self.epoch:
            self.active_segment, self.recent_aborted, self._active_upto = None, None, -1
        self.epoch, self.log_start, self.last_stable_offset, self.high_watermark = ends
        self._owner_watermark = self.high_watermark
        self._link = link
        self._sure_until = 0.0
        self.is_open, self.opened_at = True, asyncio.get_running_loop().time()

    def advance(
        self,
        high_watermark: int,
        owner_watermark: int,
        last_stable_offset: int,
        aborted: Sequence[AbortedTransaction] = (),
    ) -> StableMove | None:
        """Handle that batches up to ``high_watermark`` have come; return the move for ``FlushListener.flushed``.

        ``owner_watermark`` and ``last_stable_offset`` are the owner's, which may be past the batches; ``aborted`` are
        the aborted transactions of these batches.  The last stable offset counts only with the list of the same
        response: a marker up to ``owner_watermark`` may have moved it.
        """
        end, before = self.high_watermark, self.last_stable_offset
        self.high_watermark = high_watermark
        self._owner_watermark = max(self._owner_watermark, owner_watermark)
        self.last_stable_offset = stable = max(before, min(last_stable_offset, high_watermark))
        if before == end and stable == high_watermark and not aborted:
            return None
        return StableMove(before, stable, aborted)

    def raise_log_start(self, log_start: int) -> None:
        """Handle that the log begins at ``log_start`` now: no open transaction holds readers back below it."""
        self.log_start = log_start
        self.last_stable_offset = max(self.last_stable_offset, min(log_start, self.high_watermark))

    def close(self) -> None:
        """Close the view, and fail the waiting ``ask_active_segment`` calls.

        Their query may be cancelled before it began, so they must not wait for its end.
        """
        self.is_open = False
        self._link = None
        self._is_confirming = False
        waiting, self._active_query = self._active_query, None
        if waiting is not None:
            self._give_up(waiting, RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"the owner of {self.key} was lost"))

    # ----------------------------------------------------------------------------------------------- the end of the log

    def ask_end(self) -> bool:
        """Return whether the owner has just confirmed the end of the log, to one reader.  See ``PartitionView``.

        Otherwise start a query, unless one is under way.  Two readers past the end at the same time may share its
        response, which the owner sent after the first reader's call.  The owner proves in the store that it is the
        owner.  Such proofs are rare enough, and a consumer that gets OFFSET_OUT_OF_RANGE resets its position.
        """
        now = asyncio.get_running_loop().time()
        if now < self._sure_until and self._sure_end <= self.high_watermark:
            self._sure_until = 0.0
            return True
        if not self._is_confirming and self._link is not None:
            self._is_confirming = True
            self._link.spawn(self._confirm(self._link))
        return False

    async def _confirm(self, link: OwnerLink) -> None:
        loop = asyncio.get_running_loop()
        ends = None
        try:
            await asyncio.sleep(self._confirmed_at + CONFIRM_EVERY_S - loop.time())
            query = AskRequest(self.key.topic_id, self.key.partition, Question.CONFIRM_END)
            ends = ends_of(await link.ask(self.key, query))
        except RequestError:
            await asyncio.sleep(CONFIRM_AGAIN_S)
        finally:
            if self._link is link:
                self._is_confirming = False
                self._confirmed_at = loop.time()
        if self._link is link:
            if ends is not None and ends.epoch == self.epoch:
                self._sure_end = ends.high_watermark
                self._sure_until = loop.time() + SURE_S
            link.wake_readers(self)  # the readers check again, which repeats the query if it failed

    # ---------------------------------------------------------------------------------------------- the active segment

    @property
    def knows_active_segment(self) -> bool:
        """True if ``active_segment`` is flushed up to the watermark at least; otherwise use ``ask_active_segment``."""
        return self._active_upto >= self._owner_watermark

    async def ask_active_segment(self) -> ActiveSegment | None:
        """Return the active segment, flushed at least up to the present watermark; None if there is none.

        Raises RequestError if the owner does not respond in time.
        """
        watermark = self._owner_watermark
        while self._active_upto < watermark:
            link = self._link
            if link is None:
                raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"the owner of {self.key} is not reached")
            if self._active_query is None:
                self._active_query = asyncio.get_running_loop().create_future()
                link.spawn(self._ask_active_segment(link, self._active_query))
            await asyncio.shield(self._active_query)
        return self.active_segment

    async def _ask_active_segment(self, link: OwnerLink, waiting: asyncio.Future[None]) -> None:
        upto, active = self._owner_watermark, self.active_segment
        base, epoch, n, _ = active.name if active is not None else (-1, -1, -1, 0)
        known = len(active.index) if active is not None else 0
        recent = self.recent_aborted
        query = ActiveSegmentRequest(self.key.topic_id, self.key.partition, base, epoch, n, known, _next_marker(recent))
        error = RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"the owner of {self.key} was lost")
        try:
            response = await link.ask(self.key, query)
            if response.epoch != self.epoch:
                raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.key} is in epoch {response.epoch} by now")
            recent = _recent_aborted_of(response, recent)
            self.active_segment, self.recent_aborted = _active_segment_of(response, active), recent
            self._active_upto = max(upto, response.end_offset)
            if not waiting.done():
                waiting.set_result(None)
        except RequestError as refusal:
            error = refusal
        finally:
            if self._active_query is waiting:
                self._active_query = None
            self._give_up(waiting, error)

    @staticmethod
    def _give_up(waiting: asyncio.Future[None], error: RequestError) -> None:
        if not waiting.done():
            waiting.set_exception(error)
            waiting.exception()  # asyncio logs an exception that is not retrieved, and all readers may have gone


def ends_of(response: AskResponse) -> Ends:
    """Return the epoch and offsets in a response.  Raises RequestError if it has another number of values."""
    if len(response.values) != len(Ends._fields):
        raise RequestError(ErrorCode.UNKNOWN_SERVER_ERROR, f"an owner returned {response.values} for its ends")
    return Ends(*response.values)


def _next_marker(recent: RecentAborted | None) -> int:
    """Return the offset behind the last marker that is known; 0 if none is."""
    if recent is None or not recent.lists[0]:
        return 0
    return recent.lists[0].last_marker + 1


def _recent_aborted_of(response: ActiveSegmentResponse, known: RecentAborted | None) -> RecentAborted | None:
    """Return the owner's recent aborted transactions: ``known``, and the transactions in the response.

    None if the owner is of a version without transactions.  Raises RequestError if they are malformed.
    """
    if response.aborted_since < 0:
        return None
    try:
        added = decode_aborted(memoryview(response.aborted))
    except FormatError as error:
        raise RequestError(ErrorCode.UNKNOWN_SERVER_ERROR, f"of an owner: {error}") from error
    if known is None or known.since != response.aborted_since:
        # a new list: a read under way may still use the old one
        kept = () if known is None else (each for each in known.lists[0] if each.last_offset >= response.aborted_since)
        known = RecentAborted(response.aborted_since, (AbortedTransactions(kept),))
    known.lists[0].merge(added)
    return known


def _active_segment_of(response: ActiveSegmentResponse, known: ActiveSegment | None) -> ActiveSegment | None:
    """Return the segment that is active now; None if there is none.

    If it is the segment that is ``known``, its index is extended by the entries in the response.  Raises RequestError
    if the entries are malformed, or do not continue that index.
    """
    if response.base < 0:
        return None
    if len(response.entries) % INDEX_ENTRY_BYTES:
        raise RequestError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{len(response.entries)} bytes are not whole index entries")
    name = SegmentName(response.base, response.segment_epoch, response.n)
    entries = from_big_endian(memoryview(response.entries))
    if not response.first_entry:
        index = SegmentIndex(entries=entries)
    elif known is not None and known.name == name and len(known.index) == response.first_entry:
        index = known.index  # it only grows: a read under way uses the entries that were there before
        index.entries.extend(entries)
    else:
        text = f"the owner sent index entries from {response.first_entry} on, which do not continue the known ones"
        raise RequestError(ErrorCode.UNKNOWN_SERVER_ERROR, text)
    return ActiveSegment(name, response.position, response.end_offset, index)

"""One partition as its owner in another process tells of it: a ``PartitionView``.

The watermark moves with the data: it is the end of the batches that have come, never ahead of them, so that whoever
reads at the end finds them in memory.  What lies before them is read from storage, for which the owner is asked where
its open segment stands: one question for all who wait, answered with the index entries that are new.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from bmq.core.errors import ErrorCode, RequestError
from bmq.core.model import PartitionKey, SegmentName
from bmq.core.records.batch import Ends
from bmq.core.rpc.message_fields import Message
from bmq.core.rpc.messages import (
    AskRequest,
    AskResponse,
    InternalKey,
    LiveSegmentRequest,
    LiveSegmentResponse,
    Question,
)
from bmq.core.rpc.peers import Response
from bmq.storage.checkpoint import INDEX_ENTRY_BYTES, from_big_endian
from bmq.storage.index import SegmentIndex
from bmq.storage.log_reader import LiveSegment

SURE_S = 2.0
"""An owner's word of where the log ends serves one reader, who comes again within this time: what was sent to it
later is not in it."""
CONFIRM_EVERY_S = 0.1
"""The owner is asked no more often for one partition: a client that is told at once may ask again at once."""
CONFIRM_AGAIN_S = 1.0
"""Between a question that was not answered and the next one, while somebody waits for the answer."""

R = TypeVar("R", bound=Response)


class Teller(Protocol):
    """Whom a tail asks: its owner's link."""

    async def ask(self, key: PartitionKey, message: Message, api_key: InternalKey, response: type[R]) -> R:
        """RequestError when there is no answer in time."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run it, until it is done or the link has gone."""

    def told_end(self, tail: Tail) -> None:
        """The owner has said where the log ends: whoever waits for that looks again."""


class Tail:
    """``open`` and ``close`` alternate; ``hear`` is called in between, by the link."""

    __slots__ = ("_asking_live", "_confirmed_at", "_is_confirming", "_live_upto", "_sure_end", "_sure_until", "_teller",
                 "epoch", "failures", "high_watermark", "is_open", "key", "last_stable_offset", "live", "log_start",
                 "looked_at", "opened_at")  # fmt: skip

    def __init__(self, key: PartitionKey, now: float) -> None:
        self.key = key
        self.is_open = False
        self.epoch = -1
        self.log_start = self.high_watermark = self.last_stable_offset = -1
        self.live: LiveSegment | None = None
        self.looked_at = now
        self.failures = 0  # to be followed, one after another
        self.opened_at = 0.0
        self._teller: Teller | None = None
        self._asking_live: asyncio.Future[None] | None = None
        self._live_upto = -1
        self._is_confirming = False
        self._confirmed_at = -math.inf
        self._sure_end, self._sure_until = -1, 0.0

    def __repr__(self) -> str:
        marks = f"{self.log_start}..{self.high_watermark}"
        return f"<Tail {self.key} {f'epoch {self.epoch} {marks}' if self.is_open else 'closed'}>"

    # --------------------------------------------------------------------------------------------------- its link

    def open(self, ends: Ends, teller: Teller) -> None:
        """What the owner says of itself, before the first fetch."""
        if ends.epoch != self.epoch:
            self.live, self._live_upto = None, -1
        self.epoch, self.log_start, self.last_stable_offset, self.high_watermark = ends
        self._teller = teller
        self._sure_until = 0.0
        self.is_open, self.opened_at = True, asyncio.get_running_loop().time()

    def hear(self, high_watermark: int, last_stable_offset: int) -> None:
        """Batches up to ``high_watermark`` have come."""
        self.high_watermark = high_watermark
        self.last_stable_offset = min(last_stable_offset, high_watermark)

    def close(self) -> None:
        """What was asked of the owner is not waited for: its work may end before it began."""
        self.is_open = False
        self._teller = None
        self._is_confirming = False
        waiting, self._asking_live = self._asking_live, None
        if waiting is not None:
            self._give_up(waiting, RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"the owner of {self.key} was lost"))

    # ------------------------------------------------------------------------------------------- the end of the log

    @property
    def has_seen_end(self) -> bool:
        """See ``PartitionView``.  Two readers who look past the end at the same time may share one word; it was given
        after the first of them looked.  The owner proves in the store that it is the owner: this is rare, and a
        consumer that hears "out of range" jumps."""
        now = asyncio.get_running_loop().time()
        if now < self._sure_until and self._sure_end <= self.high_watermark:
            self._sure_until = 0.0
            return True
        if not self._is_confirming and self._teller is not None:
            self._is_confirming = True
            self._teller.spawn(self._confirm(self._teller))
        return False

    async def _confirm(self, teller: Teller) -> None:
        loop = asyncio.get_running_loop()
        ends = None
        try:
            await asyncio.sleep(self._confirmed_at + CONFIRM_EVERY_S - loop.time())
            question = AskRequest(self.key.topic_id, self.key.partition, Question.CONFIRM_END)
            ends = ends_of(await teller.ask(self.key, question, InternalKey.ASK, AskResponse))
        except RequestError:
            await asyncio.sleep(CONFIRM_AGAIN_S)
        finally:
            if self._teller is teller:
                self._is_confirming = False
                self._confirmed_at = loop.time()
        if self._teller is teller:
            if ends is not None and ends.epoch == self.epoch:
                self._sure_end = ends.high_watermark
                self._sure_until = loop.time() + SURE_S
            teller.told_end(self)  # whoever waits looks again, and has it asked again if it failed

    # ---------------------------------------------------------------------------------------------- the open segment

    @property
    def knows_live(self) -> bool:
        return self._live_upto >= self.high_watermark

    async def ask_live(self) -> LiveSegment | None:
        """``live``, flushed at least as far as the watermark is now."""
        watermark = self.high_watermark
        while self._live_upto < watermark:
            teller = self._teller
            if teller is None:
                raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.key} has no owner that we hear")
            if self._asking_live is None:
                self._asking_live = asyncio.get_running_loop().create_future()
                teller.spawn(self._ask_live(teller, self._asking_live))
            await asyncio.shield(self._asking_live)
        return self.live

    async def _ask_live(self, teller: Teller, waiting: asyncio.Future[None]) -> None:
        upto, live = self.high_watermark, self.live
        base, epoch, n = live.name if live is not None else (-1, -1, -1)
        known = len(live.index) if live is not None else 0
        question = LiveSegmentRequest(self.key.topic_id, self.key.partition, base, epoch, n, known)
        error = RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"the owner of {self.key} was lost")
        try:
            answer = await teller.ask(self.key, question, InternalKey.LIVE_SEGMENT, LiveSegmentResponse)
            if answer.epoch != self.epoch:
                raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.key} is in epoch {answer.epoch} by now")
            self.live = _live_of(answer, live)
            self._live_upto = max(upto, answer.end_offset)
            if not waiting.done():
                waiting.set_result(None)
        except RequestError as told:
            error = told
        finally:
            if self._asking_live is waiting:
                self._asking_live = None
            self._give_up(waiting, error)

    @staticmethod
    def _give_up(waiting: asyncio.Future[None], error: RequestError) -> None:
        if not waiting.done():
            waiting.set_exception(error)
            waiting.exception()  # taken notice of: whoever waited may have gone


def ends_of(answer: AskResponse) -> Ends:
    if len(answer.values) != len(Ends._fields):
        raise RequestError(ErrorCode.UNKNOWN_SERVER_ERROR, f"an owner gave {answer.values} for its ends")
    return Ends(*answer.values)


def _live_of(answer: LiveSegmentResponse, known: LiveSegment | None) -> LiveSegment | None:
    """The segment that is open now; its index goes on where ours ended if it is the one that we knew."""
    if answer.base < 0:
        return None
    if len(answer.entries) % INDEX_ENTRY_BYTES:
        raise RequestError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{len(answer.entries)} bytes are no index entries")
    name = SegmentName(answer.base, answer.segment_epoch, answer.n)
    entries = from_big_endian(memoryview(answer.entries))
    if not answer.first_entry:
        index = SegmentIndex(entries=entries)
    elif known is not None and known.name == name and len(known.index) == answer.first_entry:
        index = known.index  # only ever longer: whoever is reading it reads what it had
        index.entries.extend(entries)
    else:
        raise RequestError(ErrorCode.UNKNOWN_SERVER_ERROR, f"index entries from {answer.first_entry} on were not asked")
    return LiveSegment(name, answer.position, answer.end_offset, index)

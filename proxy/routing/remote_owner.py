"""One partition's owner in another process: a route for batches, and queries over the control connection."""

from __future__ import annotations

import asyncio
import math
import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

from bmq.core.aio.timers import Deadlines
from bmq.core.aio.turns import run_in_turns
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.model import PartitionKey
from bmq.core.records.batch import ATTRIBUTES_LOW, HEADER_BYTES, NO_PRODUCER_ID, TRANSACTIONAL, Ends
from bmq.core.records.control import TransactionMarker
from bmq.core.rpc.messages.broker import (
    ENDS_FLUSHED,
    AskRequest,
    AskResponse,
    ProducersRequest,
    Question,
)
from bmq.core.rpc.messages.markers import WriteMarkersRequest, code_of
from bmq.endpoint.partitions import AppendCallback
from bmq.proxy.routing.owner_queries import OwnerQueries
from bmq.proxy.routing.produce_route import ProduceRoute, RouteState
from bmq.proxy.routing.produce_route_events import (
    Assigned,
    Done,
    Event,
    Expired,
    Fail,
    GiveBack,
    RoutedBatch,
    Send,
    Submitted,
    Tick,
)
from bmq.proxy.routing.produce_sender import ProduceSender
from bmq.storage.checkpoint import ProducerState, decode_producers

TO_WATERMARK = -1
"""Offset in Kafka's DeleteRecords that stands for the high watermark."""
MARKER_WAIT_MS = 4_000
"""Milliseconds of the owner's wait for a marker's flush: less than the time for a query with all its tries."""
_PRODUCER_ID = struct.Struct(">q")
_PRODUCER_ID_AT = 43
_NO_BUCKET = -1


class _Late:
    """The deadline of one waiter."""

    __slots__ = ("_waiter",)

    def __init__(self, waiter: asyncio.Future[None]) -> None:
        self._waiter = waiter

    def expire(self) -> None:
        """Wake the waiter."""
        if not self._waiter.done():
            self._waiter.set_result(None)


class RemoteOwner:
    """An ``Owner`` for as long as other processes own the partition; its route follows the assignment."""

    __slots__ = (
        "_bucket",
        "_deadlines",
        "_is_armed_for",
        "_link",
        "_queries",
        "_waiters",
        "key",
        "route",
        "used_at",
    )  # fmt: skip

    def __init__(self, key: PartitionKey, route: ProduceRoute, queries: OwnerQueries, deadlines: Deadlines) -> None:
        """Create the owner, without an assignment.

        ``deadlines`` are those of all routes; their grain must be well below ``produce_route.RETRY_S.least``.
        """
        self.key = key
        self.route = route
        self.used_at = 0.0
        self._queries = queries
        self._link: ProduceSender | None = None
        self._deadlines = deadlines
        self._bucket = _NO_BUCKET  # of `deadlines`, that this object is in
        self._is_armed_for: RouteState | None = None
        self._waiters: list[asyncio.Future[None]] = []  # one for each queue or request that waits

    def __repr__(self) -> str:
        return f"<RemoteOwner {self.key} {self.route!r}>"

    # ------------------------------------------------------------------------------------------------------------ route

    @property
    def is_open(self) -> bool:
        """True if a batch that is appended now is sent at once."""
        return self.route.is_open

    @property
    def is_idle(self) -> bool:
        """True if no part has yet to get its result, and nothing waits for a change."""
        return self.has_all_results and not self._waiters

    @property
    def has_all_results(self) -> bool:
        """True if every part has its result: a batch that is appended elsewhere now comes behind all of them."""
        return self.route.is_idle

    def assign(self, link: ProduceSender | None) -> None:
        """Assign the partition to the broker of ``link``; None: to none, or to this process."""
        if self._link is not None and link is not self._link:
            self._link.leave(self)
        self._link = link
        if link is None:
            self.handle(Assigned("", is_up=False))
            return
        self.handle(Assigned(link.incarnation, is_up=link.is_up))
        link.join(self)

    def handle(self, event: Event) -> None:
        """Handle an event: pass it to the route, and carry out the effects."""
        route, loop = self.route, asyncio.get_running_loop()
        was_open = route.is_open
        for effect in route.handle(event, loop.time()):
            if isinstance(effect, Send):
                assert self._link is not None
                self._link.send(self, effect.parts)
            else:
                _respond(effect)
        if not route.is_open or self._bucket != _NO_BUCKET:
            self._arm()
        if self._waiters and not (was_open and route.is_open and not route.has_room):
            self.wake()

    def _arm(self) -> None:
        """Set the timer of ``Tick``: once in each state, as the cost of ``wake_at`` grows with the returned parts."""
        if self.route.state is self._is_armed_for and self._bucket != _NO_BUCKET:
            return
        self._disarm()
        self._is_armed_for = self.route.state
        wake_at = self.route.wake_at
        if wake_at is not None:
            self._bucket = self._deadlines.add(self, wake_at - asyncio.get_running_loop().time())

    def _disarm(self) -> None:
        if self._bucket != _NO_BUCKET:
            self._deadlines.remove(self, self._bucket)
            self._bucket = _NO_BUCKET

    def expire(self) -> None:
        """Pass ``Tick`` to the route."""
        self._bucket = _NO_BUCKET
        self.handle(Tick())

    def close(self) -> None:
        """Wake all waiters: this process ends, or the route is not used any more."""
        self.assign(None)
        self._disarm()
        self.wake()

    # ---------------------------------------------------------------------------------------------------------- waiting

    def wake(self) -> None:
        """Let all that wait for a change check again."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def changed(self, deadline: float = math.inf) -> None:
        """Wait until the owner may have opened, closed or got room, or until ``deadline`` on the loop's clock."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiters.append(waiter)
        late = _Late(waiter)
        bucket = _NO_BUCKET if deadline == math.inf else self._deadlines.add(late, deadline - loop.time())
        try:
            await waiter
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            if bucket != _NO_BUCKET:
                self._deadlines.remove(late, bucket)

    # ---------------------------------------------------------------------------------------------------------- writing

    @property
    def has_room(self) -> bool:
        """True while the partition has credit for another batch."""
        return self.route.has_room

    async def room(self) -> None:
        """Wait until there is room, or the owner does not accept appends any more."""
        while self.is_open and not self.has_room:
            await self.changed()

    def append(
        self, data: memoryview, callback: AppendCallback, *, acks_all: bool, held_until: float = math.inf
    ) -> Callable[[], None]:
        """Send a batch.  See ``Owner.append``."""
        producer_id, transaction = NO_PRODUCER_ID, None
        if len(data) >= HEADER_BYTES:
            (producer_id,) = _PRODUCER_ID.unpack_from(data, _PRODUCER_ID_AT)
            if data[ATTRIBUTES_LOW] & TRANSACTIONAL:
                transaction = callback.transaction
        part = RoutedBatch(
            data, producer_id, acks_all=acks_all, token=callback, held_until=held_until, transaction=transaction
        )
        self.handle(Submitted(part))
        return partial(self.handle, Expired(part))

    # ---------------------------------------------------------------------------------------------------------- queries

    async def ends(self) -> Ends:
        return Ends(*await self._ask(Question.ENDS, len(Ends._fields)))

    async def flushed_ends(self) -> Ends:
        return Ends(*await self._ask(Question.ENDS, len(Ends._fields), ENDS_FLUSHED))

    async def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        found, end = await self._ask(Question.END_OF_EPOCH, 2, epoch)
        return found, end

    async def offset_of_max_timestamp(self) -> tuple[int, int]:
        offset, timestamp = await self._ask(Question.MAX_TIMESTAMP, 2)
        return offset, timestamp

    async def offset_for_timestamp(self, timestamp: int) -> tuple[int, int] | None:
        found = await self._answer_to(Question.TIMESTAMP, timestamp)
        if not found.values:
            return None
        offset, found_timestamp = _expect(found, 2)
        return offset, found_timestamp

    async def producers(self) -> Sequence[ProducerState]:
        request = ProducersRequest(self.key.topic_id, self.key.partition)
        found = await self._queries.ask(self.key, request)
        return await run_in_turns(decode_producers(memoryview(found.states)))

    async def end_transaction(self, marker: TransactionMarker) -> None:
        """End a producer's transaction.  See ``Owner.end_transaction``; repeated if no response comes."""
        request = WriteMarkersRequest.of([(marker, self.key)], MARKER_WAIT_MS)
        response = await self._queries.ask(self.key, request)
        if len(response.codes) != 1:
            text = f"the owner returned {len(response.codes)} codes where one was expected"
            raise RequestError(ErrorCode.UNKNOWN_SERVER_ERROR, text)
        code = code_of(response.codes[0])
        if code is not ErrorCode.NONE:
            raise RequestError(code, f"the owner of {self.key} refused the end of a transaction")

    async def delete_before(self, offset: int) -> int:
        """Delete the records below ``offset``, and return the new log start.  See ``Owner.delete_before``.

        The query is repeated if no response comes.  So -1 is replaced first, by the high watermark of this moment:
        later records are not deleted.
        """
        if offset == TO_WATERMARK:
            offset = (await self.flushed_ends()).high_watermark
        (log_start,) = await self._ask(Question.DELETE_BEFORE, 1, offset)
        return log_start

    async def log_bytes(self) -> int:
        (size,) = await self._ask(Question.LOG_BYTES, 1)
        return size

    async def _ask(self, question: Question, count: int, argument: int = 0) -> tuple[int, ...]:
        return _expect(await self._answer_to(question, argument), count)

    async def _answer_to(self, question: Question, argument: int) -> AskResponse:
        message = AskRequest(self.key.topic_id, self.key.partition, question, argument)
        return await self._queries.ask(self.key, message)


def _respond(effect: Done | Fail | GiveBack) -> None:
    if isinstance(effect, GiveBack):
        for part in reversed(effect.parts):
            _caller(part).on_given_back(part.records, may_be_appended=part.is_unsure)
    elif isinstance(effect, Done):
        _caller(effect.part).on_appended(effect.appended)
    else:
        _caller(effect.part).on_failed(RequestError(effect.code, effect.message, effect.record_errors))


def _caller(part: RoutedBatch) -> AppendCallback:
    return cast(AppendCallback, part.token)


def _expect(response: AskResponse, count: int) -> tuple[int, ...]:
    if len(response.values) != count:
        text = f"the owner returned {response.values} where {count} values were expected"
        raise RequestError(ErrorCode.UNKNOWN_SERVER_ERROR, text)
    return response.values

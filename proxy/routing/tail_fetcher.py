"""The tail connection to a broker: an incremental fetch session over the partitions that are read here.

A partition joins with a query for the owner's epoch and offsets, and is fetched from the watermark on.  The batches of
a response go to the tail cache as they came.  A request lists only changes since the last one.  The broker parks it
until it has news.  A partition that joins meanwhile does not wait for the parked request: one more request overtakes
it.  The parked request then gets its response at once, with the records that it has or with
INVALID_FETCH_SESSION_EPOCH. Batches that come twice because of that are ignored.

An error of one partition closes it here; it joins again after a while, as does every partition after the connection was
lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any

from bmq.core.aio.backoff import Backoff
from bmq.core.aio.steps import Steps
from bmq.core.aio.tasks import OwnedTasks
from bmq.core.aio.turns import StepQueue, Turns
from bmq.core.errors import ErrorCode, FormatError, RequestError
from bmq.core.model import PartitionKey
from bmq.core.records.cursor import read_batches
from bmq.core.rpc.message import InternalRequest, R
from bmq.core.rpc.messages.broker import AskRequest, Question
from bmq.core.rpc.peers import ConnectionKind, PeerBusy, PeerLost, Peers
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.fetch import FetchedPartition
from bmq.core.wire.fetch_client import (
    FETCH_VERSION,
    FetchResponse,
    fetch_response_steps,
)
from bmq.endpoint.partitions import FlushListener
from bmq.meta.cluster.member import Member
from bmq.proxy.relay.pool import RelayPool
from bmq.proxy.relay.relayed_connection import Connection
from bmq.proxy.routing.batched_queries import BatchedQueries
from bmq.proxy.routing.broker_link import BrokerLink
from bmq.proxy.routing.fetch_session_handler import NO_SESSION, FetchSessionHandler
from bmq.proxy.routing.remote_tail import RemoteTail, ends_of
from bmq.storage.aborted import decode_aborted

QUERIES_MAX = 1_000
"""Queries for the offsets of joining partitions that are under way at once: one or two requests."""
ASK_S = 2.0
"""Time-out of a query to the owner."""
RETRY_S = Backoff(0.05, 1.0)
"""Pause before a partition that cannot be followed is tried again."""
FED_A_TURN = 200
"""Partitions of a response that are handled in a turn of the loop, at 10 to 40 us each."""
RENEWED_A_TURN = 300
"""Partitions that are closed or join in a turn of the loop, after a change of the connection."""
STOOD_S = 2.0
"""Time after which a partition counts as followed, so that its next pause is the shortest again."""
_SESSION_LOST = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
)


class TailFetcher:
    """The tail connection to one broker, and the ``OwnerLink`` of the tails that have ``join``ed."""

    def __init__(
        self,
        peers: Peers,
        member: Member,
        listener: FlushListener,
        queries: BatchedQueries,
        relays: RelayPool | None = None,
    ) -> None:
        self.incarnation = member.incarnation
        self.tails: dict[PartitionKey, RemoteTail] = {}
        self._queries = queries
        self._listener = listener
        self._session = FetchSessionHandler()
        self._joining: dict[PartitionKey, RemoteTail] = {}
        self._querying = 0
        self._is_due = False
        self._tasks = OwnedTasks()
        self._events = StepQueue(RENEWED_A_TURN)
        self._change = 0  # of the connection
        self._timers: dict[PartitionKey, asyncio.TimerHandle] = {}
        self.link = BrokerLink(
            peers, member, ConnectionKind.TAIL, is_wanted=lambda: bool(self.tails), on_up=self._up, on_down=self._down,
            relays=relays,
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"<TailFetcher {self.link!r} {len(self.tails)} partitions {self._session!r}>"

    @property
    def is_up(self) -> bool:
        """True while the connection, direct or relayed, is up."""
        return self.link.peer is not None

    # ------------------------------------------------------------------------------------------------------- partitions

    def join(self, tail: RemoteTail) -> None:
        """Follow a partition, from its watermark on."""
        self.tails[tail.key] = tail
        self.link.want()
        if self.link.peer is not None:
            self._queue_join(tail)

    def leave(self, tail: RemoteTail) -> None:
        """Follow a partition no longer: it has another owner, or it is not read any more."""
        if self.tails.pop(tail.key, None) is None:
            return
        self._joining.pop(tail.key, None)
        timer = self._timers.pop(tail.key, None)
        if timer is not None:
            timer.cancel()
        self._close(tail)
        self._due()

    def shut(self) -> None:
        """Close the connection, and cancel the queries: the broker is not a member any more."""
        self.link.shut()
        self._tasks.cancel()

    async def close(self) -> None:
        """Shut the fetcher, and wait until its work has ended."""
        self.shut()
        await self.link.close()
        await self._events.finish()
        await self._tasks.finish()

    def _close(self, tail: RemoteTail) -> None:
        self._session.remove(tail.key)
        if tail.is_open:
            tail.close()
            self._listener.closed(tail.key)

    def _up(self) -> None:
        self._begin_anew(is_up=True)

    def _down(self) -> None:
        self._joining.clear()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._begin_anew(is_up=False)

    def _begin_anew(self, *, is_up: bool) -> None:
        self._session = FetchSessionHandler()
        self._change += 1
        self._events.run(min(len(self.tails), RENEWED_A_TURN), self._renew_all(self._change, is_up=is_up))

    def _renew_all(self, change: int, *, is_up: bool) -> Steps[None]:
        """Close the partitions that were followed over the connection before, and let them join over the new one."""
        turns = Turns(RENEWED_A_TURN)
        for tail in tuple(self.tails.values()):
            if turns.is_over():
                yield
            if change != self._change:
                return
            if self.tails.get(tail.key) is not tail:
                continue
            if tail.is_open and tail.key not in self._session.members:
                self._close(tail)
            if is_up:
                self._queue_join(tail)

    # ---------------------------------------------------------------------------------------------------------- joining

    def _queue_join(self, tail: RemoteTail) -> None:
        timer = self._timers.pop(tail.key, None)
        if timer is not None:
            timer.cancel()
        if not tail.is_open:
            self._joining[tail.key] = tail
            self._ask_next()

    def _ask_next(self) -> None:
        while self._joining and self._querying < QUERIES_MAX:
            key = next(iter(self._joining))
            self._querying += 1
            self.spawn(self._begin(self._joining.pop(key), self.link.peer))

    async def _begin(self, tail: RemoteTail, peer: Connection | None) -> None:
        key = tail.key
        ends = None
        try:
            query = AskRequest(key.topic_id, key.partition, Question.ENDS)
            ends = ends_of(await self.ask(key, query))
        except RequestError:
            tail.failures += 1
        finally:
            self._querying -= 1
        if self.tails.get(key) is tail and peer is not None and self.link.peer is peer:
            if ends is None:
                self._later(tail)
            elif not tail.is_open:
                tail.open(ends, self)
                self._session.add(tail)
                self._listener.opened(key, ends.epoch, ends.log_start, ends.high_watermark)
                self._due()
        self._ask_next()

    def _later(self, tail: RemoteTail) -> None:
        delay_s = RETRY_S.pause(tail.failures)
        self._timers[tail.key] = asyncio.get_running_loop().call_later(delay_s, self._queue_join, tail)

    def _refused(self, tail: RemoteTail) -> None:
        """Close a partition for which the broker returned an error, and let it join again after a pause."""
        self._close(tail)
        if asyncio.get_running_loop().time() - tail.opened_at > STOOD_S:
            tail.failures = 0
        tail.failures += 1
        self._later(tail)

    # ---------------------------------------------------------------------------------------------------- for the tails

    async def ask(self, key: PartitionKey, request: InternalRequest[R]) -> R:
        """Return the broker's response.  Raises RequestError if there is none within ASK_S."""
        return await self._queries.ask(self.link.member, request, ASK_S)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` in a task, which is cancelled when the fetcher is shut."""
        self._tasks.start(work, f"tails of {self.incarnation}")

    def wake_readers(self, tail: RemoteTail) -> None:
        """Wake the readers of a tail, so that they check its end again."""
        self._listener.changed(tail.key)

    # ---------------------------------------------------------------------------------------------------------- fetches

    def _due(self) -> None:
        """Send a request at the end of this turn of the loop, if one is needed."""
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._send)

    def _send(self) -> None:
        self._is_due = False
        session, peer = self._session, self.link.peer
        if peer is None:
            return
        if not session.members:
            self._session = FetchSessionHandler()
            if session.id == NO_SESSION:
                return
        elif session.under_way and not (session.may_overtake and (session.news or session.left)):
            return
        future = peer.call(ApiKey.FETCH, FETCH_VERSION, session.next_request())
        future.add_done_callback(partial(self._answered, peer, session))

    def _answered(self, peer: Connection, session: FetchSessionHandler, future: asyncio.Future[memoryview]) -> None:
        if not future.cancelled() and isinstance(future.exception(), PeerBusy):
            self._put_off(peer, session)
            return
        if future.cancelled() or isinstance(future.exception(), PeerLost):
            return  # the link notices it, too, and begins again
        session.under_way -= 1
        if session is self._session:
            self._events.run(FED_A_TURN, self._take_body(peer, session, future.result()))

    def _take_body(self, peer: Connection, session: FetchSessionHandler, body: memoryview) -> Steps[None]:
        try:
            response = yield from fetch_response_steps(body)
            yield from self._take(session, response)
        except (FormatError, RequestError):  # the other side does not speak the internal protocol
            if session is self._session and peer is self.link.peer:
                self.link.spoil()
            return
        self._due()

    def _put_off(self, peer: Connection, session: FetchSessionHandler) -> None:
        """Begin a new session after a pause.

        The connection was busy, so the broker did not get a request that the session counts.
        """
        if session is self._session and peer is self.link.peer:
            self._session = session.restarted()
            self._is_due = True
            asyncio.get_running_loop().call_later(RETRY_S.least, self._send)

    def _take(self, session: FetchSessionHandler, response: FetchResponse) -> Steps[None]:
        if session is not self._session:
            return
        if response.error_code:
            if response.error_code not in _SESSION_LOST:
                raise FormatError(f"the response to a fetch has error {response.error_code}")
            if not (response.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH and session.under_way):
                self._session = session.restarted()
            return  # else it was overtaken
        session.begun(response.session_id)
        turns = Turns(FED_A_TURN)
        for topic in response.topics:
            assert topic.topic_id is not None
            for each in topic.partitions:
                if turns.is_over():
                    yield
                    if session is not self._session:
                        return
                tail = session.members.get(PartitionKey(topic.topic_id, each.partition))
                if tail is not None:
                    self._feed(session, tail, each)

    def _feed(self, session: FetchSessionHandler, tail: RemoteTail, fetched: FetchedPartition) -> None:
        """Handle one partition's part of a response.  Raises RequestError if it is not whole batches."""
        if fetched.error_code:
            self._refused(tail)
            return
        batches = []
        for records in fetched.records:
            for batch in read_batches(memoryview(records)):
                if tail.high_watermark <= batch.base_offset and batch.next_offset <= fetched.high_watermark:
                    batches.append(batch)
        if fetched.log_start > tail.log_start:
            tail.raise_log_start(fetched.log_start)
            self._listener.log_start_moved(tail.key, fetched.log_start)
        if batches:
            aborted = decode_aborted(memoryview(fetched.whole_aborted)) if fetched.whole_aborted else ()
            move = tail.advance(batches[-1].next_offset, fetched.high_watermark, fetched.last_stable_offset, aborted)
            session.news[tail.key] = tail
            self._listener.flushed(tail.key, batches, tail.high_watermark, move)
        # Without batches the owner's last stable offset does not count: the list of aborted transactions is missing
        # that belongs to it.  It moves by a marker, which is a batch, or with the log start.

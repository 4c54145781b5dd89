"""The produce connection to a broker: the parts of a turn of the loop go out as one request.

Any number of requests may be under way; each partition's credit bounds them.  Kafka's acks belongs to a request, so a
turn makes two requests at most, unless a partition has parts for both acks.  Then the parts are sent in the order in
which they came. acks=0 is sent as 1, since this process needs the broker's response either way.

Records are neither copied nor decoded.  A part keeps the frame in which it came until it has its result.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Protocol
from uuid import UUID

from bmq.core.aio.steps import Steps
from bmq.core.aio.turns import StepQueue, Turns
from bmq.core.errors import ErrorCode, FormatError
from bmq.core.metrics.counters import Histogram
from bmq.core.model import PartitionKey
from bmq.core.records.batch import Appended
from bmq.core.rpc.peers import ConnectionKind, PeerBusy, PeerLost, Peers
from bmq.core.tracing import SampledRecords
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.produce import ACKS_ALL, ACKS_BUFFERED, PartitionAnswer, Transaction
from bmq.core.wire.produce_client import PRODUCE_VERSION, decode_produce_response, encode_produce_request
from bmq.meta.cluster.member import Member
from bmq.proxy.relay.pool import RelayPool
from bmq.proxy.relay.relayed_connection import Connection
from bmq.proxy.routing.broker_link import BrokerLink
from bmq.proxy.routing.produce_route_events import Answered, ConnectionLost, ConnectionUp, Event, Lost, RoutedBatch

TIMEOUT_MS = 60_000
"""Time-out of a request in the broker.  A client's wait ends by its own time-out, in this process; this one frees the
credit of parts that hang."""
REQUEST_BYTES = 8 << 20
"""Bytes from which a request is sent before the turn of the loop ends."""
PARTS_MAX = 1_000
"""Parts from which a request is sent before the turn ends: at some 5 us each to encode them and decode the response."""
NOTIFIED_A_TURN = 300
"""Partitions that get an event in a turn of the loop, at up to 20 us each."""
FEW_PARTS = 20
"""Most parts of a request whose response goes past the queue of events, if the queue is empty: a turn has few such
requests."""
_CODES: Mapping[int, ErrorCode] = {int(code): code for code in ErrorCode}


class Sender(Protocol):
    """One partition's sender of parts: a ``RemoteOwner``."""

    key: PartitionKey

    def handle(self, event: Event) -> None:
        """Handle an event of the connection or of a part."""


class _Request:
    """The parts of one request, in the order of its response: by topic."""

    __slots__ = ("count", "held_until", "parts", "restarts", "senders", "size", "topics", "transactions")

    def __init__(self) -> None:
        self.topics: dict[UUID, list[tuple[int, memoryview]]] = {}
        self.parts: dict[UUID, list[tuple[Sender, RoutedBatch]]] = {}
        self.senders: set[Sender] = set()
        self.restarts: list[tuple[UUID, int]] = []
        self.transactions: dict[int, Transaction] = {}  # by id of the records' object
        self.held_until = math.inf
        self.size = 0
        self.count = 0

    def add(self, sender: Sender, part: RoutedBatch) -> None:
        topic_id, partition = sender.key.topic_id, sender.key.partition
        records = self.topics.get(topic_id)
        if records is None:
            records = self.topics[topic_id] = []
            self.parts[topic_id] = []
        records.append((partition, part.records))
        if part.restarts_order:
            self.restarts.append((topic_id, partition))
        if part.transaction is not None:
            self.transactions[id(part.records)] = part.transaction
        self.parts[topic_id].append((sender, part))
        self.senders.add(sender)
        if part.held_until < self.held_until:
            self.held_until = part.held_until
        self.size += part.size
        self.count += 1

    def held_ms(self, now: float) -> int:
        """Return the milliseconds for which the broker may hold the request's parts for an owner; -1: no bound.

        No part may be held longer than its own bound, so the least of them counts; a part that is refused comes back.
        """
        return -1 if self.held_until == math.inf else max(0, int((self.held_until - now) * 1000))

    def in_order(self) -> list[tuple[Sender, RoutedBatch]]:
        """Return the parts in the order of the response."""
        return [each for parts in self.parts.values() for each in parts]


class ProduceSender:
    """The produce connection to one broker, which is kept up while a partition has ``join``ed.

    Each change of the connection has a number; it is even while the connection is down.  Many partitions get the change
    in turns of the loop.  A part of a partition that did not get it yet is not sent: the partition may have parts under
    way on an earlier connection, whose results must come first.
    """

    def __init__(
        self,
        peers: Peers,
        member: Member,
        relays: RelayPool | None = None,
        answered_ms: Histogram | None = None,
        sampled: SampledRecords | None = None,
    ) -> None:
        """Create the sender, not connected.

        ``answered_ms`` counts the milliseconds that requests are under way; ``sampled`` has the batches whose traces
        they carry.
        """
        self._sampled = sampled
        self._answered_ms = answered_ms if answered_ms is not None else Histogram()
        self.incarnation = member.incarnation
        self.senders: dict[Sender, int] = {}  # with the last change that each was notified of
        self._change = 0
        self._events = StepQueue(NOTIFIED_A_TURN)
        self._early: list[tuple[Sender, RoutedBatch]] = []  # of senders not notified of the last change yet
        self._waiting: dict[bool, _Request] = {}  # by acks_all
        self._refused: list[_Request] = []  # as the connection is busy; their senders are not notified yet
        self.link = BrokerLink(
            peers, member, ConnectionKind.PRODUCE, is_wanted=lambda: bool(self.senders), on_up=self._up,
            on_down=self._down, relays=relays,
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"<ProduceSender {self.link!r} {len(self.senders)} partitions>"

    @property
    def is_up(self) -> bool:
        """True while the connection, direct or relayed, is up."""
        return self._change % 2 == 1

    def join(self, sender: Sender) -> None:
        """Notify ``sender`` of each later change; it must have read ``is_up`` itself.

        A sender may have joined already, as when its partition is assigned to the same broker again. It still gets the
        earlier changes that it was not notified of: it may have parts under way on an earlier connection.
        """
        self.senders.setdefault(sender, self._change)
        self.link.want()

    def leave(self, sender: Sender) -> None:
        """Notify ``sender`` of no further change.  It still gets the results of its parts."""
        self.senders.pop(sender, None)

    def shut(self) -> None:
        """Close the connection, and send nothing more: the broker is not a member any more."""
        for request in self._take_waiting():
            _lose(request.in_order(), was_sent=False)
        self.link.shut()

    async def close(self) -> None:
        """Shut the sender, and wait until all senders were notified."""
        self.shut()
        await self.link.close()
        await self._events.finish()

    def _up(self) -> None:
        self._change += 1
        self._events.run(min(len(self.senders), NOTIFIED_A_TURN), self._notify_all(self._change))

    def _down(self) -> None:
        """Send the parts that wait over the connection that ends, even if they are lost.

        Another one may be up by the end of this turn; over it they would overtake parts that are under way here.
        """
        self._flush()
        self._change += 1
        self._events.run(min(len(self.senders), NOTIFIED_A_TURN), self._notify_all(self._change))

    def _notify_all(self, change: int) -> Steps[None]:
        """Notify all senders of a change; stop if another one comes meanwhile, which notifies them itself."""
        turns = Turns(NOTIFIED_A_TURN)
        for sender in tuple(self.senders):
            if turns.is_over():
                yield
            if change != self._change:
                return
            known = self.senders.get(sender, change)  # it may have left
            if known == change:
                continue
            self.senders[sender] = change
            if known % 2:
                sender.handle(ConnectionLost(self.incarnation))
            if change % 2:
                sender.handle(ConnectionUp(self.incarnation))

    # --------------------------------------------------------------------------------------------------------- requests

    def send(self, sender: Sender, parts: Sequence[RoutedBatch]) -> None:
        """Send these parts at the end of this turn of the loop, in the order of the calls."""
        if not self._waiting and not self._early:
            asyncio.get_running_loop().call_soon(self._flush)
        if self.senders.get(sender, self._change) != self._change:
            self._early += [(sender, part) for part in parts]
            return
        for part in parts:
            other = self._waiting.get(not part.acks_all)
            if other is not None and sender in other.senders:
                self._flush()
            request = self._waiting.get(part.acks_all)
            if request is None:
                request = self._waiting[part.acks_all] = _Request()
            request.add(sender, part)
            if request.size >= REQUEST_BYTES or request.count >= PARTS_MAX:
                self._flush()

    def _take_waiting(self) -> Sequence[_Request]:
        waiting, self._waiting = self._waiting, {}
        return tuple(waiting.values())

    def _flush(self) -> None:
        peer = self.link.peer
        now = asyncio.get_running_loop().time()
        early, self._early = self._early, []
        _lose(early, was_sent=False)
        waiting, self._waiting = self._waiting, {}
        for acks_all, request in waiting.items():
            if peer is None:
                _lose(request.in_order(), was_sent=False)
            elif self._refused:
                self._refused.append(request)
            else:
                acks = ACKS_ALL if acks_all else ACKS_BUFFERED
                topics = list(request.topics.items())
                body = encode_produce_request(
                    acks, TIMEOUT_MS, topics, request.restarts, request.held_ms(now), request.transactions
                )
                if self._sampled is not None and (tags := self._sampled.header(topics)):
                    future = peer.call(ApiKey.PRODUCE, PRODUCE_VERSION, body, tags)
                else:
                    future = peer.call(ApiKey.PRODUCE, PRODUCE_VERSION, body)
                if future.done() and isinstance(future.exception(), PeerBusy):
                    self._refused.append(request)
                    asyncio.get_running_loop().call_soon(self._notify_refused, str(future.exception()))
                else:
                    future.add_done_callback(partial(self._answered, peer, request.in_order(), now))

    def _notify_refused(self, why: str) -> None:
        """Refuse the requests that found the connection busy, and all parts behind them.

        Nothing of them was sent.  The parts behind must not be sent either: there may be room again by then, and they
        would overtake.
        """
        self._refused += self._take_waiting()
        self._events.run(NOTIFIED_A_TURN, self._refuse_all(why))

    def _refuse_all(self, why: str) -> Steps[None]:
        turns = Turns(NOTIFIED_A_TURN)
        while self._refused:
            for sender, part in self._refused[0].in_order():
                if turns.is_over():
                    yield
                sender.handle(Answered(part, ErrorCode.NOT_LEADER_OR_FOLLOWER, why))
            del self._refused[0]

    def _answered(
        self,
        peer: Connection,
        sent: Sequence[tuple[Sender, RoutedBatch]],
        sent_at: float,
        future: asyncio.Future[memoryview],
    ) -> None:
        self._answered_ms.observe((asyncio.get_running_loop().time() - sent_at) * 1000)
        if len(sent) <= FEW_PARTS and self._events.is_idle:
            for (sender, _), event in zip(sent, self._events_of(peer, sent, future), strict=True):
                sender.handle(event)
        else:
            self._events.run(min(len(sent), NOTIFIED_A_TURN), self._notify_results(peer, sent, future))

    def _notify_results(
        self, peer: Connection, sent: Sequence[tuple[Sender, RoutedBatch]], future: asyncio.Future[memoryview]
    ) -> Steps[None]:
        """Notify the senders of one request of the results of their parts."""
        events = self._events_of(peer, sent, future)
        for start in range(0, len(sent), NOTIFIED_A_TURN):
            if start:
                yield
            stop = start + NOTIFIED_A_TURN
            for (sender, _), event in zip(sent[start:stop], events[start:stop], strict=True):
                sender.handle(event)

    def _events_of(
        self, peer: Connection, sent: Sequence[tuple[Sender, RoutedBatch]], future: asyncio.Future[memoryview]
    ) -> list[Event]:
        if future.cancelled():
            return _losses(sent, was_sent=True)
        error = future.exception()
        if isinstance(error, PeerLost):
            return _losses(sent, was_sent=error.was_sent)
        if error is not None:
            raise error
        try:
            answers = _answers_of(future.result(), sent)
        except FormatError:  # the other side does not speak the internal protocol
            if peer is self.link.peer:
                self.link.spoil()
            else:
                peer.close()
            return _losses(sent, was_sent=True)
        return [_event_of(part, response) for (_, part), response in zip(sent, answers, strict=True)]


def _answers_of(body: memoryview, sent: Sequence[tuple[Sender, RoutedBatch]]) -> Sequence[PartitionAnswer]:
    """Return the answer to each part, in their order.

    Raises FormatError if the response is malformed, or does not match the request.
    """
    answers = [each for topic in decode_produce_response(body) for each in topic.partitions]
    if [each.partition for each in answers] != [sender.key.partition for sender, _ in sent]:
        raise FormatError(f"a response with {len(answers)} partitions does not match a request with {len(sent)}")
    return answers


def _event_of(part: RoutedBatch, response: PartitionAnswer) -> Answered:
    if not response.error_code:
        return Answered(part, appended=Appended(response.base_offset, response.append_time, response.log_start))
    code = _CODES.get(response.error_code, ErrorCode.UNKNOWN_SERVER_ERROR)
    return Answered(part, code, response.error_message or "", record_errors=response.batch_index_errors)


def _losses(sent: Sequence[tuple[Sender, RoutedBatch]], *, was_sent: bool) -> list[Event]:
    return [Lost(part, was_sent=was_sent) for _, part in sent]


def _lose(sent: Sequence[tuple[Sender, RoutedBatch]], *, was_sent: bool) -> None:
    for sender, part in sent:
        sender.handle(Lost(part, was_sent=was_sent))

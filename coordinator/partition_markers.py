"""Transactions' ends on their way to partition owners: from a coordinator, one request a broker for many markers.

::

    write_markers = PartitionMarkers(view, catalog, peers, GoneTopics(kv, cluster))
    codes = await write_markers(marker, keys)

All markers of one turn of the loop for one broker share a request (``core.rpc.messages.markers``), up to its bound.
A broker in this process is called without the network (``Peers.ask``). Nothing is repeated here: the caller sends a
marker again after every code that is not an end.

| code | the partition |
|---|---|
| NONE | has the marker, flushed |
| UNKNOWN_TOPIC_ID | is gone: the store has no topic of its id |
| TRANSACTION_COORDINATOR_FENCED, INVALID_PRODUCER_EPOCH | refuses it after a later coordinator or a later epoch |
| NOT_LEADER_OR_FOLLOWER | has no owner, or the view is behind, or the connection broke |
| REQUEST_TIMED_OUT | did not flush it in time, or too many markers wait for its broker |
| any other | cannot take it now: NOT_ENOUGH_REPLICAS, KAFKA_STORAGE_ERROR (OFFLINE), an earlier version |
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol
from uuid import UUID

from bmq.core.aio.lru import LruCache
from bmq.core.aio.tasks import cancel_and_wait
from bmq.core.aio.turns import Turns, next_turn
from bmq.core.errors import ErrorCode, FormatError, RequestError
from bmq.core.model import PartitionKey
from bmq.core.records.control import TransactionMarker
from bmq.core.rpc.message import InternalRequest, R
from bmq.core.rpc.messages.markers import MARKERS_MAX, WriteMarkersRequest, code_of
from bmq.core.rpc.peers import PeerLost
from bmq.meta.catalog import Catalog, decode_topic, topic_key
from bmq.meta.cluster.member import Member
from bmq.meta.cluster.view import ClusterView
from bmq.meta.kv import KeyValue, KvError

WAIT_MS = 5_000
"""Milliseconds of a broker's wait for the flush of a request's markers."""
TIMEOUT_S = 10.0
"""Seconds until a request without a response is given up."""
REQUESTS_MAX = 4
"""Requests under way to one broker: a partition that flushes slowly delays the other markers of its request alone."""
WAITING_MAX = 100_000
"""Partitions whose markers wait for one broker: some 20 MB."""
GONE_MAX = 10_000
"""Ids of deleted topics that are remembered."""
_GONE = frozenset({ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
FindGone = Callable[[set[UUID]], Awaitable[set[UUID]]]


class Asker(Protocol):
    """The part of ``core.rpc.peers.Peers`` that markers need."""

    async def ask(self, member: Member, request: InternalRequest[R], timeout_s: float) -> R:
        """Return the response.  Raises RequestError with the member's error, PeerLost or TimeoutError."""
        ...


class _Call:
    """One call: a marker, and the codes of its partitions so far."""

    __slots__ = ("codes", "is_done", "left", "marker")

    def __init__(self, marker: TransactionMarker, left: int) -> None:
        self.marker = marker
        self.left = left
        self.codes: dict[PartitionKey, ErrorCode] = {}
        self.is_done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def set(self, key: PartitionKey, code: ErrorCode) -> None:
        self.codes[key] = code
        self.left -= 1
        if not self.left and not self.is_done.done():
            self.is_done.set_result(None)


class _Broker:
    """The markers for one broker."""

    __slots__ = ("is_due", "member", "under_way", "waiting")

    def __init__(self, member: Member) -> None:
        self.member = member
        self.waiting: deque[tuple[_Call, PartitionKey]] = deque()
        self.under_way = 0
        self.is_due = False


class PartitionMarkers:
    """The way of markers from a coordinator to the owners of partitions; see the module's docstring."""

    def __init__(self, view: ClusterView, catalog: Catalog, asker: Asker, find_gone: FindGone) -> None:
        self._view = view
        self._catalog = catalog
        self._asker = asker
        self._find_gone = find_gone
        self._brokers: dict[str, _Broker] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        waiting = sum(len(broker.waiting) for broker in self._brokers.values())
        return f"<PartitionMarkers brokers={len(self._brokers)} waiting={waiting} requests={len(self._tasks)}>"

    async def __call__(
        self, marker: TransactionMarker, keys: Sequence[PartitionKey]
    ) -> Mapping[PartitionKey, ErrorCode]:
        """Send a marker to the owners of ``keys``; return the code of each."""
        wanted = dict.fromkeys(keys)
        hidden = {key.topic_id for key in wanted if self._catalog.by_id(key.topic_id) is None}
        gone = await self._find_gone(hidden) if hidden else hidden
        call, turns = _Call(marker, len(wanted)), Turns()
        for key in wanted:
            if turns.is_over():
                await next_turn()
            if key.topic_id in gone:
                call.set(key, ErrorCode.UNKNOWN_TOPIC_ID)
            else:
                self._put(call, key)
        if wanted:
            await call.is_done
        return call.codes

    async def close(self) -> None:
        """Cancel the requests under way; what waits has NOT_LEADER_OR_FOLLOWER."""
        for broker in list(self._brokers.values()):
            waiting, broker.waiting = broker.waiting, deque()
            for call, key in waiting:
                call.set(key, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        await cancel_and_wait(*self._tasks)

    def _put(self, call: _Call, key: PartitionKey) -> None:
        member = self._view.members.get(self._view.owner_of(key))
        if member is None:
            call.set(key, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        broker = self._brokers.get(member.incarnation)
        if broker is None:
            broker = self._brokers[member.incarnation] = _Broker(member)
        if len(broker.waiting) >= WAITING_MAX:
            call.set(key, ErrorCode.REQUEST_TIMED_OUT)
            return
        broker.waiting.append((call, key))
        if not broker.is_due and broker.under_way < REQUESTS_MAX:
            broker.is_due = True
            asyncio.get_running_loop().call_soon(self._send, broker)

    def _send(self, broker: _Broker) -> None:
        """Send what waits, in as many requests as may be under way."""
        broker.is_due = False
        while broker.waiting and broker.under_way < REQUESTS_MAX:
            taken: list[tuple[_Call, PartitionKey]] = []
            while broker.waiting and len(taken) < MARKERS_MAX:
                one = broker.waiting.popleft()
                if not one[0].is_done.done():  # else its caller has gone
                    taken.append(one)
            if taken:
                broker.under_way += 1
                task = asyncio.get_running_loop().create_task(self._write(broker, taken))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        if not broker.waiting and not broker.under_way:
            self._brokers.pop(broker.member.incarnation, None)

    async def _write(self, broker: _Broker, taken: list[tuple[_Call, PartitionKey]]) -> None:
        codes = [ErrorCode.NOT_LEADER_OR_FOLLOWER] * len(taken)
        try:
            codes = await self._ask(broker.member, taken)
        finally:
            broker.under_way -= 1
            for (call, key), code in zip(taken, codes, strict=True):
                call.set(key, code)
            self._send(broker)

    async def _ask(self, member: Member, taken: list[tuple[_Call, PartitionKey]]) -> list[ErrorCode]:
        """Send one request; return a code for each partition.

        A broker's word that a topic does not exist is not believed: its view of the catalog may be behind.
        """
        request = WriteMarkersRequest.of([(call.marker, key) for call, key in taken], WAIT_MS)
        try:
            response = await self._asker.ask(member, request, TIMEOUT_S)
        except RequestError as error:
            codes = [error.code] * len(taken)
        except PeerLost:
            codes = [ErrorCode.NOT_LEADER_OR_FOLLOWER] * len(taken)
        except TimeoutError:
            codes = [ErrorCode.REQUEST_TIMED_OUT] * len(taken)
        else:
            codes = [code_of(number) for number in response.codes]
            if len(codes) != len(taken):
                codes = [ErrorCode.UNKNOWN_SERVER_ERROR] * len(taken)
        return [ErrorCode.NOT_LEADER_OR_FOLLOWER if code in _GONE else code for code in codes]


class GoneTopics:
    """The search for topics that are deleted: by id, in the store, since the catalog may be behind.

    The id of a deleted topic is never used again. A topic that exists is in the store before a transaction names it.
    """

    def __init__(self, kv: KeyValue, cluster: str) -> None:
        self._kv = kv
        self._topics = topic_key(cluster, "")
        self._gone: LruCache[UUID, None] = LruCache(GONE_MAX)
        self._lock = asyncio.Lock()

    async def __call__(self, topic_ids: set[UUID]) -> set[UUID]:
        """Return the ids without a topic; only ids found earlier if the store or a topic cannot be read."""
        async with self._lock:
            unknown = {topic_id for topic_id in topic_ids if topic_id not in self._gone}
            if unknown:
                for topic_id in await self._missing(unknown):
                    self._gone.put(topic_id, None)
            return {topic_id for topic_id in topic_ids if topic_id in self._gone}

    async def _missing(self, topic_ids: set[UUID]) -> set[UUID]:
        """Return the ids without a topic in the store; none if a topic cannot be read. Reads all topics, in pages."""
        left = set(topic_ids)
        try:
            async for entry in self._kv.list(self._topics):
                left.discard(decode_topic(entry.key.removeprefix(self._topics), entry).topic_id)
        except (KvError, FormatError):
            return set()
        return left

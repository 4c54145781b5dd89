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
from collections.abc import Awaitable, Callable, Mapping, Sequence
from uuid import UUID

from bmq.coordinator.joined_requests import Asker, JoinBounds, JoinedRequests
from bmq.coordinator.marker_calls import MarkerAt, MarkerCall, set_codes
from bmq.core.aio.lru import LruCache
from bmq.core.aio.turns import Turns, next_turn
from bmq.core.errors import ErrorCode, FormatError
from bmq.core.model import PartitionKey
from bmq.core.records.control import TransactionMarker
from bmq.core.rpc.messages.markers import MARKERS_MAX, WriteMarkersRequest, WriteMarkersResponse
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
_LOST = ErrorCode.NOT_LEADER_OR_FOLLOWER
FindGone = Callable[[set[UUID]], Awaitable[set[UUID]]]


class PartitionMarkers:
    """The way of markers from a coordinator to the owners of partitions; see the module's docstring."""

    def __init__(self, view: ClusterView, catalog: Catalog, asker: Asker, find_gone: FindGone) -> None:
        self._view = view
        self._catalog = catalog
        self._find_gone = find_gone
        self._requests = JoinedRequests(
            asker, _request, _read, JoinBounds(REQUESTS_MAX, MARKERS_MAX, WAITING_MAX, TIMEOUT_S), lost=_LOST,
            full=ErrorCode.REQUEST_TIMED_OUT,
        )  # fmt: skip

    def __repr__(self) -> str:
        found = self._requests
        return f"<PartitionMarkers brokers={found.processes} waiting={found.waiting} requests={found.under_way}>"

    async def __call__(
        self, marker: TransactionMarker, keys: Sequence[PartitionKey]
    ) -> Mapping[PartitionKey, ErrorCode]:
        """Send a marker to the owners of ``keys``; return the code of each."""
        wanted = dict.fromkeys(keys)
        hidden = {key.topic_id for key in wanted if self._catalog.by_id(key.topic_id) is None}
        gone = await self._find_gone(hidden) if hidden else hidden
        call: MarkerCall[PartitionKey] = MarkerCall(marker, len(wanted), _LOST)
        turns = Turns()
        for key in wanted:
            if turns.is_over():
                await next_turn()
            member = self._view.members.get(self._view.owner_of(key))
            if key.topic_id in gone:
                call.set(key, ErrorCode.UNKNOWN_TOPIC_ID)
            elif member is None:
                call.set(key, _LOST)
            else:
                self._requests.put(member, MarkerAt(call, key))
        if wanted:
            await call.is_done
        return call.codes

    async def close(self) -> None:
        """Cancel the requests under way.  Now and later, markers get NOT_LEADER_OR_FOLLOWER."""
        await self._requests.close()


def _request(member: Member, taken: Sequence[MarkerAt[PartitionKey]]) -> WriteMarkersRequest:
    return WriteMarkersRequest.of([(call.marker, key) for call, key in taken], WAIT_MS)


def _read(taken: Sequence[MarkerAt[PartitionKey]], response: WriteMarkersResponse) -> None:
    set_codes(taken, response.codes)


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

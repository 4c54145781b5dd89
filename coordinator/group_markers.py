"""Transactions' ends on their way to groups' shards: from a coordinator, one request a process for many markers.

::

    group_markers = GroupMarkers(view, peers)
    codes = await group_markers(marker, partitions)   # partitions of ``__consumer_offsets``

All markers of one turn of the loop for one process share a request, up to its bound.  A coordinator in this process is
called without the network (``Peers.ask``).  The request has the ownership number of each shard, and the coordinator
checks it (``coordinator.server``).  Nothing is repeated here: the caller sends a marker again after every code that is
not an end.

| code | the partition |
|---|---|
| NONE | has the marker, durably |
| TRANSACTION_COORDINATOR_FENCED, INVALID_PRODUCER_EPOCH | refuses it after a later coordinator or a later epoch |
| NOT_COORDINATOR | has no coordinator, or a view is behind, or the connection broke |
| COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE | is loading, or did not make the marker durable in time |
| REQUEST_TIMED_OUT | has a coordinator that does not respond, or too many markers wait for its process |
| any other | cannot take it now, for instance at a coordinator of an earlier version |
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from bmq.coordinator.joined_requests import Asker, JoinBounds, JoinedRequests
from bmq.coordinator.marker_calls import MarkerAt, MarkerCall, set_codes
from bmq.core.errors import ErrorCode
from bmq.core.records.control import TransactionMarker
from bmq.core.rpc.messages.markers import MARKERS_MAX, EndGroupTransactionsRequest, EndGroupTransactionsResponse
from bmq.meta.cluster.member import Member
from bmq.meta.cluster.view import ClusterView
from bmq.meta.shard_kinds import GROUPS, ShardId

TIMEOUT_S = 15.0
"""Seconds until a request without a response is given up: longer than a coordinator waits for load and write."""
REQUESTS_MAX = 16
"""Requests under way to one process.  A shard that loads delays the other shards' markers of its request alone."""
WAITING_MAX = 100_000
"""Markers that wait for one process: some 20 MB."""
ShardNumber = tuple[int, int]
"""A shard's partition, and the number of its ownership."""
_LOST = ErrorCode.NOT_COORDINATOR


class GroupMarkers:
    """The way of markers to the coordinators of groups; see the module's docstring."""

    def __init__(self, view: ClusterView, asker: Asker) -> None:
        self._view = view
        self._requests = JoinedRequests(
            asker, _request, _read, JoinBounds(REQUESTS_MAX, MARKERS_MAX, WAITING_MAX, TIMEOUT_S), lost=_LOST,
            full=ErrorCode.REQUEST_TIMED_OUT,
        )  # fmt: skip

    def __repr__(self) -> str:
        found = self._requests
        return f"<GroupMarkers processes={found.processes} waiting={found.waiting} requests={found.under_way}>"

    async def __call__(self, marker: TransactionMarker, partitions: Collection[int]) -> Mapping[int, ErrorCode]:
        """Send a marker to these partitions of ``__consumer_offsets``; return the code of each."""
        codes = dict.fromkeys(partitions, _LOST)
        found: list[tuple[Member, ShardNumber]] = []
        for partition in codes:
            owner = self._view.shard(ShardId(GROUPS, partition))
            member = self._view.members.get(owner.incarnation) if owner is not None else None
            if owner is not None and member is not None:
                found.append((member, (partition, owner.number)))
        call: MarkerCall[ShardNumber] = MarkerCall(marker, len(found), _LOST)
        for member, place in found:
            self._requests.put(member, MarkerAt(call, place))
        if found:
            await call.is_done
        codes.update((partition, code) for (partition, _), code in call.codes.items())
        return codes

    async def end(self, partition: int, marker: TransactionMarker) -> ErrorCode:
        """Send a marker to one partition of ``__consumer_offsets``; return its code."""
        return (await self(marker, (partition,)))[partition]

    async def close(self) -> None:
        """Cancel the requests under way.  Now and later, markers get NOT_COORDINATOR."""
        await self._requests.close()


def _request(member: Member, taken: Sequence[MarkerAt[ShardNumber]]) -> EndGroupTransactionsRequest:
    return EndGroupTransactionsRequest.of(
        [(call.marker, (ShardId(GROUPS, partition).code, number)) for call, (partition, number) in taken]
    )


def _read(taken: Sequence[MarkerAt[ShardNumber]], response: EndGroupTransactionsResponse) -> None:
    set_codes(taken, response.codes)

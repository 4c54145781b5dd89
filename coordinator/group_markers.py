"""Transactions' ends on their way to groups' shards: one request a coordinator for each marker.

::

    group_markers = GroupMarkers(view, peers)
    codes = await group_markers(marker, partitions)   # partitions of ``__consumer_offsets``

A coordinator in this process is called without the network (``Peers.ask``). The request has the ownership number of
each shard, and the coordinator checks it (``coordinator.server``). Nothing is repeated here: the caller sends a marker
again after every code that is not an end.

| code | the partition |
|---|---|
| NONE | has the marker, durably |
| TRANSACTION_COORDINATOR_FENCED, INVALID_PRODUCER_EPOCH | refuses it after a later coordinator or a later epoch |
| NOT_COORDINATOR | has no coordinator, or a view is behind, or the connection broke |
| COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE | is loading, or did not make the marker durable in time |
| REQUEST_TIMED_OUT | has a coordinator that does not respond |
| any other | cannot take it now, for instance at a coordinator of an earlier version |
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

from bmq.coordinator.partition_markers import Asker
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.records.control import TransactionMarker
from bmq.core.rpc.messages.markers import MARKERS_MAX, EndGroupTransactionsRequest, code_of
from bmq.core.rpc.peers import PeerLost
from bmq.meta.cluster.view import ClusterView
from bmq.meta.shard_kinds import GROUPS, ShardId

TIMEOUT_S = 15.0
"""Seconds until a request without a response is given up: longer than a coordinator waits for load and write."""
ShardNumber = tuple[int, int]
"""A shard's partition, and the number of its ownership."""
_GONE = frozenset({ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})


class GroupMarkers:
    """The way of markers to the coordinators of groups; see the module's docstring."""

    def __init__(self, view: ClusterView, asker: Asker) -> None:
        self._view = view
        self._asker = asker

    async def __call__(self, marker: TransactionMarker, partitions: Collection[int]) -> Mapping[int, ErrorCode]:
        """Send a marker to these partitions of ``__consumer_offsets``; return the code of each."""
        codes = dict.fromkeys(partitions, ErrorCode.NOT_COORDINATOR)
        by_owner: dict[str, list[ShardNumber]] = {}
        for partition in codes:
            owner = self._view.shard(ShardId(GROUPS, partition))
            if owner is not None:
                by_owner.setdefault(owner.incarnation, []).append((partition, owner.number))
        requests = [
            (incarnation, shards[at : at + MARKERS_MAX])
            for incarnation, shards in by_owner.items()
            for at in range(0, len(shards), MARKERS_MAX)
        ]
        for found in await asyncio.gather(*(self._ask(*each, marker) for each in requests)):
            codes.update(found)
        return codes

    async def end(self, partition: int, marker: TransactionMarker) -> ErrorCode:
        """Send a marker to one partition of ``__consumer_offsets``; return its code."""
        return (await self(marker, (partition,)))[partition]

    async def _ask(
        self, incarnation: str, shards: list[ShardNumber], marker: TransactionMarker
    ) -> dict[int, ErrorCode]:
        """Send one request; return a code for each partition.

        The word that the topic does not exist is not believed: it would count as the end of the transaction.
        """
        member = self._view.members.get(incarnation)
        if member is None:
            return {}
        request = EndGroupTransactionsRequest.of(
            [(marker, (ShardId(GROUPS, partition).code, number)) for partition, number in shards]
        )
        try:
            response = await self._asker.ask(member, request, TIMEOUT_S)
        except RequestError as error:
            codes = [error.code] * len(shards)
        except PeerLost:
            codes = [ErrorCode.NOT_COORDINATOR] * len(shards)
        except TimeoutError:
            codes = [ErrorCode.REQUEST_TIMED_OUT] * len(shards)
        else:
            codes = [code_of(number) for number in response.codes]
            if len(codes) != len(shards):
                codes = [ErrorCode.UNKNOWN_SERVER_ERROR] * len(shards)
        return {
            partition: ErrorCode.NOT_COORDINATOR if code in _GONE else code
            for (partition, _), code in zip(shards, codes, strict=True)
        }

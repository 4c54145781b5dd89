"""Hints that send a client to a partition's new owner at once after a move (KIP-951).

A request is misdirected if three things hold: this process owned the partition; another process owns it now; Metadata
of the client's listener names the new owner as leader.  Before the move Metadata named this process.  Every other
request is at the right place, or gains nothing elsewhere: an owner without a proxy has another process as its leader.

The new owner's epoch is asked for when the first such request comes: until the epoch is known, requests are forwarded
as always.  A connection gets one hint a partition and epoch.  A client that does not follow is served here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from bmq.core.aio.subscribers import no_op
from bmq.core.aio.tasks import OwnedTasks
from bmq.core.errors import RequestError
from bmq.core.model import PartitionKey
from bmq.core.net.request import Client, Request
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.primitives import NodeEndpoint
from bmq.endpoint.leader_hints import NO_EPOCH, LeaderHint
from bmq.meta.cluster.view import ClusterView, ViewChange
from bmq.meta.proxy_addresses import Proxies
from bmq.proxy.routing.moved_partitions import UNKNOWN, MovedPartitions, ToldConnections

HINTS_SINCE: Final = {ApiKey.PRODUCE: 10, ApiKey.FETCH: 16}
"""First versions whose responses have the fields for a hint."""
FOLLOWING: Final = frozenset({"apache-kafka-java"})
"""Names, in ApiVersions, of the software that takes a hint's epoch and after it Metadata without epochs.

franz-go and librdkafka (2.5 to 2.6.1) take the hint, too.  After it they ignore all Metadata without an epoch, and
would keep a dead leader (docs/design/decisions.md, (ac)).
"""


class NewLeaders:
    """The hints of one process, for the clients of all its listeners.

    ``ask_epoch`` returns the epoch of a partition's present owner, or raises RequestError.  ``on_known`` is called when
    a partition's new leader has become known, so that parked fetches respond with the hint.
    """

    def __init__(
        self,
        view: ClusterView,
        ask_epoch: Callable[[PartitionKey], Awaitable[int]],
        on_known: Callable[[PartitionKey], None] = no_op,
    ) -> None:
        self._view = view
        self._ask_epoch = ask_epoch
        self._on_known = on_known
        self._moved = MovedPartitions()
        self._told = ToldConnections()
        self._queries = OwnedTasks()
        self._is_away = False
        self.sent = 0
        """Number of hints in responses."""
        self._unsubscribe = view.subscribe(self._changed)

    def __repr__(self) -> str:
        return f"<NewLeaders {len(self._moved)} moved, {len(self._told)} connections know, {self.sent} sent>"

    async def close(self) -> None:
        """Follow the view no longer, and cancel the queries."""
        self._unsubscribe()
        await self._queries.close()

    def send_away(self, sends_away: bool) -> None:
        """Give no hints from now on, or give hints again.

        A process outside the cluster may have an old view.
        """
        self._is_away = sends_away

    def of_request(self, request: Request, proxies: Proxies, rack: str = "") -> RequestHints | None:
        """Return the hints for a request; None if no partition has moved lately, or the client would not follow.

        ``proxies`` are as the client's Metadata lists them; ``rack`` is the client's.
        """
        if not self._moved or self._is_away:
            return None
        if request.client.client_software[0] not in FOLLOWING:
            return None
        if request.api_version < HINTS_SINCE[ApiKey(request.api_key)]:
            return None
        self._expire(asyncio.get_running_loop().time())
        if not self._moved:
            return None
        return RequestHints(self, request.client, proxies, rack)

    def find(self, key: PartitionKey, proxies: Proxies) -> tuple[int, int] | None:
        """Return node id and epoch of the present leader of a partition that has left this process; None if unknown."""
        if key not in self._moved:
            return None
        owner = self._view.owner_of(key)
        member = self._view.members.get(owner)
        if member is None or owner == self._view.own:
            return None
        node_id = proxies.leader_of(key)
        if node_id != member.node_id or node_id == proxies.own.node_id:
            return None
        epoch = self._moved.epoch(key, owner)
        if epoch == UNKNOWN:
            if self._moved.begin_query(key, owner, asyncio.get_running_loop().time()):
                self._queries.start(self._query(key, owner), "epoch of a new leader")
            return None
        return node_id, epoch

    def may_tell(self, client: Client, key: PartitionKey, epoch: int) -> bool:
        """Return whether the connection has not had a hint of this epoch."""
        return self._told.may_tell(client, key, epoch, self._moved)

    def tell(self, client: Client, key: PartitionKey, epoch: int) -> None:
        """Note that the connection gets a hint of this epoch."""
        self.sent += 1
        self._told.tell(client, key, epoch)

    async def _query(self, key: PartitionKey, owner: str) -> None:
        epoch = UNKNOWN
        try:
            epoch = await self._ask_epoch(key)
        except RequestError:
            pass  # a later request asks again; until then the requests are forwarded
        finally:
            is_same = self._view.owner_of(key) == owner
            now = asyncio.get_running_loop().time()
            is_known = self._moved.end_query(key, owner, epoch if is_same else UNKNOWN, now)
        if is_known:
            self._on_known(key)

    def _changed(self, change: ViewChange) -> None:
        if self._moved:
            for key in change.partitions:
                if key in self._moved and self._view.owner_of(key) == self._view.own:
                    self._moved.remove(key)
        if change.left:
            now = asyncio.get_running_loop().time()
            self._expire(now)  # requests do so only if their clients follow hints: perhaps none does
            for key in change.left:
                self._moved.left(key, now)

    def _expire(self, now: float) -> None:
        """Forget the moves of long ago, and with the last move the hints sent."""
        self._moved.expire(now)
        if not self._moved:
            self._told.clear()


class RequestHints:
    """The hints for one request (``endpoint.leader_hints.LeaderHints``)."""

    __slots__ = ("_client", "_leaders", "_proxies", "_rack", "endpoints")

    def __init__(self, leaders: NewLeaders, client: Client, proxies: Proxies, rack: str) -> None:
        self._leaders = leaders
        self._client = client
        self._proxies = proxies
        self._rack = rack
        self.endpoints: Sequence[NodeEndpoint] = ()

    def find(self, key: PartitionKey, known_epoch: int = NO_EPOCH) -> LeaderHint | None:
        """Return the leader to which the client is to go; see ``LeaderHints.find``.

        A consumer in this process's zone stays here if the leader is in another zone (KIP-392): the leader would send
        it back into its zone.
        """
        found = self._leaders.find(key, self._proxies)
        if found is None:
            return None
        node_id, epoch = found
        if epoch <= known_epoch or not self._leaders.may_tell(self._client, key, epoch):
            return None
        endpoint = _endpoint(node_id, self._proxies)
        if endpoint is None or (self._rack and self._rack == self._proxies.own.zone != endpoint.rack):
            return None
        return LeaderHint(epoch, endpoint)

    def sent(self, key: PartitionKey, hint: LeaderHint) -> None:
        """Note that the response carries this hint."""
        self._leaders.tell(self._client, key, hint.epoch)
        if hint.endpoint not in self.endpoints:
            self.endpoints = (*self.endpoints, hint.endpoint)


def _endpoint(node_id: int, proxies: Proxies) -> NodeEndpoint | None:
    """Return the address of a proxy for the client; None if Metadata does not list the proxy."""
    for proxy in proxies.addresses:
        if proxy.node_id == node_id:
            return NodeEndpoint(node_id, proxy.host, proxy.port, proxy.zone or None)
    return None

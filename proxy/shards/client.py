"""Requests to the process that serves a shard: by a call within this process, or by a ``ForwardRequest``."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Sequence
from enum import Enum
from typing import Any

from bmq.coordinator.api import ClientInfo
from bmq.coordinator.routed_api import RoutedApi, ShardListing
from bmq.core.errors import ErrorCode, FormatError
from bmq.core.net.request import Buffer
from bmq.core.rpc.api_keys import InternalKey
from bmq.core.rpc.message_fields import encoded
from bmq.core.rpc.messages.coordinator import ForwardRequest, ForwardResponse
from bmq.core.rpc.peers import ConnectionKind, PeerLost, Peers
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.codec_client import decode_response, encode_request
from bmq.core.wire.large import is_large
from bmq.meta.cluster.view import ClusterView, ShardOwner
from bmq.meta.shard_kinds import ShardId

REACH_S = 0.3
"""Time to wait for a connection to the coordinator, before the view is checked again."""
CALL_TIMEOUT_S = 10.0
"""Time-out of a request that does not park.  Coordinators bound their work themselves; this is for one that hangs."""
LARGE_BYTES = 100_000
"""Bytes from which a response is decoded in a thread."""

Ownerships = tuple[tuple[int, int], ...]
"""Pairs of a shard's code (``meta.shard_kinds``) and its ownership number."""


class EntryRefused(Enum):
    """The reason why an entry has no response.  The client gets NOT_COORDINATOR in the end."""

    ELSEWHERE = "not done: send it to the process that serves the shard now"
    UNKNOWN = "done or not: its client must find out"


class NoResponse(Exception):
    """A coordinator's failure to respond to a request: none of its entries has a response."""

    def __init__(self, refused: EntryRefused, why: str) -> None:
        super().__init__(why)
        self.refused = refused


class Forwards:
    """Requests to the coordinators of one kind in all processes; ``local`` is this process's own, if it has one."""

    def __init__(self, view: ClusterView, peers: Peers, local: Any) -> None:
        self.is_draining = False
        self._view = view
        self._peers = peers
        self._local = local
        self._drained: asyncio.Future[None] | None = None

    def drain(self) -> None:
        """End all waits for requests that park, and refuse further ones: this process is about to end."""
        self.is_draining = True
        self.end_waits()

    def end_waits(self) -> None:
        """End all waits for requests that park now."""
        drained, self._drained = self._drained, None
        if drained is not None:
            drained.set_result(None)

    async def ask(
        self, api: RoutedApi, request: Any, client: ClientInfo, owner: ShardOwner, shards: Sequence[ShardId]
    ) -> Any:
        """Send a request about these shards to ``owner``, and return its response.

        Raises NoResponse if there is none.
        """
        if api.may_park and self.is_draining:
            raise NoResponse(EntryRefused.UNKNOWN, "this proxy is shutting down")
        if self._local is not None and owner.incarnation == self._view.own:
            work = api.call(self._local, request, client)
            if not inspect.isawaitable(work):
                return work
        else:
            timeout_s = None if api.may_park else CALL_TIMEOUT_S
            work = self._forward(api.key, request, client, owner, shards, timeout_s, api.is_repeatable)
        return await (self._until_drained(work) if api.may_park else work)

    async def list_shards(
        self, listing: ShardListing, request: Any, client: ClientInfo, owner: ShardOwner, shards: Sequence[ShardId]
    ) -> Any:
        """Return what these shards have, from ``owner``.  Raises NoResponse if there is no response."""
        if self._local is not None and owner.incarnation == self._view.own:
            return await listing.call(self._local, request, client, {shard.number for shard in shards})
        return await self._forward(listing.key, request, client, owner, shards, CALL_TIMEOUT_S, True)

    async def _forward(
        self,
        key: ApiKey,
        request: Any,
        client: ClientInfo,
        owner: ShardOwner,
        shards: Sequence[ShardId],
        timeout_s: float | None,
        is_repeatable: bool,
    ) -> Any:
        member = self._view.members.get(owner.incarnation)
        if member is None:
            raise NoResponse(EntryRefused.ELSEWHERE, f"{owner.incarnation} is not a member")
        version: int = request.API_VERSION
        body = await _encode(key, version, request)
        forward = ForwardRequest(
            client.host, client.client_id, key, version, self._expected(shards), body, client.principal
        )
        try:
            peer = self._peers.get(member, ConnectionKind.CONTROL) or await self._peers.reach(
                member, ConnectionKind.CONTROL, REACH_S
            )
            async with asyncio.timeout(timeout_s):
                response = ForwardResponse.decode(await peer.call(InternalKey.FORWARD, 0, forward.encode()))
            if response.error is ErrorCode.NONE:
                return await _decode(key, version, memoryview(encoded(response.body)))
        except PeerLost as error:
            is_certain = not error.was_sent or is_repeatable
            raise NoResponse(EntryRefused.ELSEWHERE if is_certain else EntryRefused.UNKNOWN, str(error)) from error
        except (TimeoutError, FormatError) as error:
            raise NoResponse(EntryRefused.UNKNOWN, f"{member.incarnation}: {error!r}") from error
        is_elsewhere = response.error is ErrorCode.NOT_COORDINATOR
        raise NoResponse(EntryRefused.ELSEWHERE if is_elsewhere else EntryRefused.UNKNOWN, response.message)

    def _expected(self, shards: Sequence[ShardId]) -> Ownerships:
        """Return the shards' ownership numbers in this process's view."""
        known = ((shard, self._view.shard(shard)) for shard in dict.fromkeys(shards))
        return tuple((shard.code, owner.number) for shard, owner in known if owner is not None)

    async def _until_drained(self, work: Awaitable[Any]) -> Any:
        """Return the result of ``work``, which runs in the caller's task.

        After a standstill the requests of clients that have gone are cancelled (``core.aio.standstill``).  In a task of
        its own, ``work`` would begin before its caller's cancellation, and send such a request.
        """
        drained = self._drained = self._drained or asyncio.get_running_loop().create_future()
        scope, is_over = asyncio.timeout(None), False

        def end(_: asyncio.Future[None]) -> None:
            if not is_over:  # the loop may have scheduled this call before it was removed
                scope.reschedule(asyncio.get_running_loop().time())

        try:
            async with scope:
                drained.add_done_callback(end)
                try:
                    return await work
                finally:
                    is_over = True
                    drained.remove_done_callback(end)
        except TimeoutError:
            if not scope.expired():
                raise
        raise NoResponse(EntryRefused.UNKNOWN, "this proxy is shutting down, or is not a member of the cluster")


async def _encode(key: ApiKey, version: int, request: Any) -> Buffer:
    if not is_large(request):
        return encode_request(key, version, request)
    return await asyncio.get_running_loop().run_in_executor(None, encode_request, key, version, request)


async def _decode(key: ApiKey, version: int, body: memoryview) -> Any:
    if len(body) < LARGE_BYTES:
        return decode_response(key, version, body)
    return await asyncio.get_running_loop().run_in_executor(None, decode_response, key, version, body)

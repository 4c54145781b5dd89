"""Internal requests to a coordinator: requests that proxies forward, markers, and the list of shards not loaded.

The caller sends the ownership number that its view has for each shard of the request:

==========================  ======================================================================================
the coordinator's number    what the coordinator does
==========================  ======================================================================================
lower                       its view is behind: it waits ``NEWS_WAIT_S`` for the change, then refuses.  It never serves
                            before, since the shard may belong to another process by now
equal or higher, own shard  it serves (if higher, the caller's view is behind)
equal or higher, another's  it refuses with NOT_COORDINATOR
==========================  ======================================================================================
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from functools import partial
from typing import Any

from bmq.coordinator.api import ClientInfo
from bmq.coordinator.routed_api import KindApis
from bmq.coordinator.routing import GROUP_APIS
from bmq.coordinator.shard.kind_coordinator import KindCoordinator
from bmq.coordinator.transaction_routing import TRANSACTION_APIS
from bmq.core.aio.tasks import gathered
from bmq.core.aio.waiters import Waiters
from bmq.core.errors import ErrorCode, FormatError, RequestError
from bmq.core.net.request import Buffer
from bmq.core.records.control import TransactionMarker
from bmq.core.rpc.message_fields import Unencoded
from bmq.core.rpc.messages.coordinator import (
    ForwardRequest,
    ForwardResponse,
    ShardsNotLoadedRequest,
    ShardsNotLoadedResponse,
)
from bmq.core.rpc.messages.markers import EndGroupTransactionsRequest, EndGroupTransactionsResponse
from bmq.core.rpc.server import InternalCall, InternalEndpoint
from bmq.core.wire.codec import decode_request
from bmq.core.wire.codec_client import encode_response_body
from bmq.core.wire.large import is_large
from bmq.meta.cluster.view import ClusterView, ShardOwner, ViewChange
from bmq.meta.shard_kinds import GROUPS, TRANSACTIONS, ShardId, ShardKind, shard_of_code

APIS: Mapping[ShardKind, KindApis] = {GROUPS: GROUP_APIS, TRANSACTIONS: TRANSACTION_APIS}
"""The forwarded APIs of each kind: they call methods of its coordinator."""
NEWS_WAIT_S = 0.5
"""Wait for the view to show the ownership that a request expects; after it the proxy must find the owner again."""
REASON_MAX = 1_000
"""Most characters of the reason why a shard is not loaded."""
LARGE_BYTES = 100_000
"""A request of so many bytes or more is decoded in a thread, not on the event loop."""


class ForwardVerdict(Enum):
    """Handling of a forwarded request; the values are for a reader."""

    SERVE = "this process owns the shards, by the ownership that the request expects or a newer one"
    WAIT = "the view is older than the ownership that the request expects"
    REFUSE = "another process owns a shard, by a view at least as new as the request's"


def judge(expected: int, known: ShardOwner | None, own: str) -> ForwardVerdict:
    """Return how to handle a request for one shard, by the module's table.

    ``expected`` is the ownership number in the request, ``known`` the owner in this process's view, ``own`` this
    process's incarnation.
    """
    if known is None or known.number < expected:
        return ForwardVerdict.WAIT
    return ForwardVerdict.SERVE if known.incarnation == own else ForwardVerdict.REFUSE


class Forwarding:
    """Internal API of a coordinator.

    ``register`` it once the process's internal endpoint exists.
    """

    def __init__(
        self,
        coordinators: Iterable[KindCoordinator[Any]],
        view: ClusterView,
    ) -> None:
        """Serve the kinds of ``coordinators``, and refuse requests about shards of every other kind."""
        self._served = {each.kind: each for each in coordinators}
        self._view = view
        self._changes = Waiters()  # requests that wait for the view to change
        self._unsubscribe: Callable[[], None] = view.subscribe(self._view_changed)

    def register(self, endpoint: InternalEndpoint) -> None:
        """Register the handlers of all three APIs."""
        endpoint.register_messages(ForwardRequest, self.handle)
        endpoint.register_messages(EndGroupTransactionsRequest, self.end_transactions)
        endpoint.register(ShardsNotLoadedRequest, self.list_not_loaded)

    def close(self) -> None:
        """Unsubscribe from the view.  Requests that wait for it end within ``NEWS_WAIT_S``."""
        self._unsubscribe()
        self._changes.wake_all()

    async def handle(self, request: ForwardRequest, call: InternalCall) -> ForwardResponse:
        """Serve a forwarded request.

        Raises RequestError NOT_COORDINATOR if a shard is not this process's, UNSUPPORTED_VERSION if the Kafka request
        in it cannot be decoded or is not about the shards' kind.
        """
        expected = {shard_of_code(code): number for code, number in request.ownerships}
        served = self._served_kind(expected)
        if served is None or not await self._is_ours(expected):
            raise RequestError(
                ErrorCode.NOT_COORDINATOR, f"this process does not own all shards of {request.ownerships} yet"
            )
        apis = APIS[served.kind]
        try:
            message = await _message(request)
        except FormatError as error:
            raise RequestError(ErrorCode.UNSUPPORTED_VERSION, str(error)) from error
        client = ClientInfo(request.client_id, request.client_host, request.principal, dict(request.topic_ids))
        if request.api_key == apis.listing.key:
            shards = {shard.number for shard in expected if shard}
            response = await apis.listing.call(served, message, client, shards)
        elif request.api_key in apis.routed:
            response = apis.routed[request.api_key].call(served, message, client)
            if inspect.isawaitable(response):
                response = await response
        else:
            kinds = ", ".join(sorted({shard.kind.name for shard in expected if shard}))
            raise RequestError(ErrorCode.UNSUPPORTED_VERSION, f"API {request.api_key} is not about {kinds}")
        return ForwardResponse(ErrorCode.NONE, "", await _body(response, request.api_version))

    async def end_transactions(
        self, request: EndGroupTransactionsRequest, call: InternalCall
    ) -> EndGroupTransactionsResponse:
        """End transactions in groups' shards; return a code for each shard.

        The code is NOT_COORDINATOR if a shard is not this process's, else as ``KindCoordinator.end_transaction``
        returns.  Raises FormatError if the request's counts do not fit.
        """
        ends = request.ends()
        codes = await gathered([self._end(marker, *ownership) for marker, ownership in ends])
        return EndGroupTransactionsResponse(codes=tuple(codes))

    async def _end(self, marker: TransactionMarker, code: int, expected: int) -> ErrorCode:
        shard = shard_of_code(code)
        served = self._served.get(shard.kind) if shard is not None else None
        if shard is None or served is None or not await self._is_ours({shard: expected}):
            return ErrorCode.NOT_COORDINATOR
        return await served.end_transaction(shard.number, marker)

    def list_not_loaded(self, body: memoryview, call: InternalCall) -> list[Buffer]:
        """Return the encoded list of this process's shards that are not loaded, each with its reason, cut to
        ``REASON_MAX`` characters.  Raises FormatError if ``body`` is not a ShardsNotLoadedRequest."""
        ShardsNotLoadedRequest.decode(body)
        shards = {shard: why for served in self._served.values() for shard, why in served.shards_not_loaded().items()}
        return ShardsNotLoadedResponse(
            shards=tuple((shard.code, why[:REASON_MAX]) for shard, why in sorted(shards.items()))
        ).encode()

    def _served_kind(self, expected: Mapping[ShardId | None, int]) -> KindCoordinator[Any] | None:
        """Return the coordinator of the kind of all shards; None if it is not served here.

        None among ``expected`` is a shard of a kind that a later version knows.
        """
        kinds = {None if shard is None else shard.kind for shard in expected}
        kind = kinds.pop() if len(kinds) == 1 else None
        return None if kind is None else self._served.get(kind)

    async def _is_ours(self, expected: Mapping[ShardId | None, int]) -> bool:
        """Check that this process may serve all shards; wait for the view if it is behind."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + NEWS_WAIT_S
        while True:
            verdicts = {
                judge(number, self._view.shard(shard), self._view.own) for shard, number in expected.items() if shard
            }
            if ForwardVerdict.REFUSE in verdicts:
                return False
            if ForwardVerdict.WAIT not in verdicts:
                return True
            left_s = deadline - loop.time()
            if left_s <= 0:
                return False
            await self._changes.wait(left_s)

    def _view_changed(self, change: ViewChange) -> None:
        if change.shards:
            self._changes.wake_all()


async def _message(request: ForwardRequest) -> Any:
    """Return the Kafka request.  Raises FormatError."""
    if isinstance(request.body, Unencoded):
        return request.body.message
    api_key, version, body = request.api_key, request.api_version, memoryview(request.body)
    if len(body) < LARGE_BYTES:
        return decode_request(api_key, version, body)
    return await asyncio.get_running_loop().run_in_executor(None, decode_request, api_key, version, body)


async def _body(response: Any, version: int) -> Buffer | Unencoded:
    if not is_large(response):
        return Unencoded(response, partial(encode_response_body, response, version))
    return await asyncio.get_running_loop().run_in_executor(None, encode_response_body, response, version)

"""What other processes ask of a coordinator: group requests that proxies forward, and which shards are not loaded.

A proxy sends the ownership number that it knows of each shard of the request.  A coordinator that knows a lower one has
not heard the news yet: it waits for them a moment, and never serves before, since the shard may be another's by now.
One that knows a higher one serves if the shard is its own: it is the proxy that is behind.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from bmq.coordinator.api import ClientInfo
from bmq.coordinator.coordinator import Coordinator
from bmq.coordinator.routing import ROUTED
from bmq.core.errors import ErrorCode, FormatError, RequestError
from bmq.core.net.request import Buffer
from bmq.core.rpc.messages import ForwardRequest, ForwardResponse, ShardsNotLoadedRequest, ShardsNotLoadedResponse
from bmq.core.rpc.server import InternalCall
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.codec import decode_request
from bmq.core.wire.codec_client import encode_response_body
from bmq.core.wire.large import is_large
from bmq.meta.cluster.view import ClusterView, ShardOwner, ViewChange

NEWS_WAIT_S = 0.5
"""For the view to show the ownership that a request expects; then the proxy is to look itself."""
REASON_MAX = 1_000
"""Characters of why a shard is not loaded."""
LARGE_BYTES = 100_000
"""A request of so many bytes is decoded off the loop."""


class Verdict(Enum):
    SERVE = "the shards are ours, as the request expects or newer"
    WAIT = "we have not heard yet of what the request knows"
    REFUSE = "another process has a shard, for all that both sides know"


def judge(expected: int, known: ShardOwner | None, own: str) -> Verdict:
    """Of one shard."""
    if known is None or known.number < expected:
        return Verdict.WAIT
    return Verdict.SERVE if known.incarnation == own else Verdict.REFUSE


class Forwarding:
    """``handle`` is to be registered for ``InternalKey.FORWARD``, ``tell_not_loaded`` for ``SHARDS_NOT_LOADED``."""

    def __init__(self, coordinator: Coordinator, view: ClusterView) -> None:
        self._coordinator = coordinator
        self._view = view
        self._waiting: set[asyncio.Future[None]] = set()  # as many as requests wait for news
        self._unsubscribe: Callable[[], None] = view.subscribe(self._view_changed)

    def close(self) -> None:
        self._unsubscribe()
        self._wake()

    async def handle(self, body: memoryview, call: InternalCall) -> list[Buffer]:
        """The encoded answer.  FormatError when ``body`` is no such request, RequestError when it is not for us."""
        request = ForwardRequest.decode(body)
        expected = dict(request.ownerships)
        if not await self._is_ours(expected):
            raise RequestError(ErrorCode.NOT_COORDINATOR, f"not, or not yet, the coordinator of {expected}")
        try:
            message = await _decode(request.api_key, request.api_version, memoryview(request.body))
        except FormatError as error:
            raise RequestError(ErrorCode.UNSUPPORTED_VERSION, str(error)) from error
        client = ClientInfo(request.client_id, request.client_host)
        if request.api_key == ApiKey.LIST_GROUPS:
            response = await self._coordinator.list_groups_of(message, client, expected.keys())
        elif request.api_key in ROUTED:
            response = ROUTED[request.api_key].call(self._coordinator, message, client)
            if inspect.isawaitable(response):
                response = await response
        else:
            raise RequestError(ErrorCode.UNSUPPORTED_VERSION, f"API {request.api_key} is not of groups")
        return ForwardResponse(ErrorCode.NONE, "", await _encode(response, request.api_version)).encode()

    def tell_not_loaded(self, body: memoryview, call: InternalCall) -> list[Buffer]:
        ShardsNotLoadedRequest.decode(body)
        shards = self._coordinator.shards_not_loaded()
        return ShardsNotLoadedResponse(
            shards=tuple((n, why[:REASON_MAX]) for n, why in sorted(shards.items()))
        ).encode()

    async def _is_ours(self, expected: Mapping[int, int]) -> bool:
        """Whether all shards may be served, if need be after waiting for the view."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + NEWS_WAIT_S
        while True:
            verdicts = {judge(number, self._view.shard(shard), self._view.own) for shard, number in expected.items()}
            if Verdict.REFUSE in verdicts:
                return False
            if Verdict.WAIT not in verdicts:
                return True
            left_s = deadline - loop.time()
            if left_s <= 0:
                return False
            news = loop.create_future()
            self._waiting.add(news)
            try:
                await asyncio.wait((news,), timeout=left_s)
            finally:
                self._waiting.discard(news)

    def _view_changed(self, change: ViewChange) -> None:
        if change.shards:
            self._wake()

    def _wake(self) -> None:
        for news in self._waiting:
            if not news.done():
                news.set_result(None)


async def _decode(api_key: int, version: int, body: memoryview) -> Any:
    if len(body) < LARGE_BYTES:
        return decode_request(api_key, version, body)
    return await asyncio.get_running_loop().run_in_executor(None, decode_request, api_key, version, body)


async def _encode(response: Any, version: int) -> Buffer:
    if not is_large(response):
        return encode_response_body(response, version)
    return await asyncio.get_running_loop().run_in_executor(None, encode_response_body, response, version)

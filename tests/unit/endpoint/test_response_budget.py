"""Bytes of responses over all connections: taken before they are built, given back when they are sent or dropped."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from bmq.core.net.request import Client, Response
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.header import is_flexible
from bmq.core.wire.messages import request_class
from bmq.endpoint.api import Api
from bmq.endpoint.large_requests import INLINE_BYTES
from bmq.endpoint.response_budget import COUNTED_LEAST, ResponseBudget
from bmq.proxy.apis import ALL_APIS
from tests.harness.fakes import FakeClient
from tests.harness.scopes import make_endpoint, make_scopes

LIMIT = 64 << 20
LARGE = 40 << 20


def named(scopes: Any, message: Any) -> int:
    return int(message.group_id)


class World:
    """An endpoint whose one API responds to a group's name with as many bytes as that says."""

    def __init__(self, estimate: Callable[[Any, Any], int] | None = named) -> None:
        self.built: list[str] = []
        self.error: Exception | None = None
        self.responses = ResponseBudget(LIMIT)
        api = Api(ApiKey.HEARTBEAT, 0, 4, self._handle, response_bytes=estimate)
        self.endpoint = make_endpoint(make_scopes(responses=self.responses), [api])

    async def _handle(self, scopes: Any, request: Any, message: Any) -> Response:
        self.built.append(message.group_id)
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        return Response([bytes(int(message.group_id))])

    def ask(self, size: int, padding: str = "m") -> asyncio.Future[Response]:
        kind = request_class(ApiKey.HEARTBEAT)
        assert kind is not None
        request = kind(group_id=str(size), generation_id=1, member_id=padding)
        request.with_header(correlation_id=1, client_id="t")
        assert is_flexible(ApiKey.HEARTBEAT, 4)
        frame = memoryview(bytearray(request.encode(version=4, header=True, framed=False)))
        response = self.endpoint(frame, cast(Client, FakeClient()))
        return asyncio.ensure_future(cast(Awaitable[Response], response))


def send(response: Response) -> None:
    assert response.release is not None
    response.release()


async def test_a_response_waits_before_it_is_built_until_an_earlier_one_was_sent() -> None:
    w = World()
    first = await w.ask(LARGE)
    second = await w.ask(LARGE)
    third = w.ask(LARGE + 1)
    await asyncio.sleep(1)
    assert w.built == [str(LARGE), str(LARGE)], "one more than the limit is built, and no more"
    assert (w.responses.used, w.responses.waiting) == (2 * LARGE, 1)
    send(first)
    send(first)
    send(await third)
    send(second)
    assert (w.responses.used, w.responses.waiting) == (0, 0)


async def test_small_ones_pass_large_ones_and_very_small_ones_everything() -> None:
    w = World()
    held = [await w.ask(LIMIT - (2 << 20))]
    large = w.ask(LARGE)
    held.append(await w.ask(1 << 20))
    held.append(await w.ask(1 << 20))
    assert w.responses.used == LIMIT
    small = w.ask(1 << 20)
    assert (await w.ask(COUNTED_LEAST - 1)).release is None
    await asyncio.sleep(1)
    assert w.responses.waiting == 2
    for each in held:
        send(each)
    send(await large)
    send(await small)
    assert w.responses.used == 0


async def test_the_estimate_is_corrected_once_the_response_is_there() -> None:
    w = World(lambda scopes, message: 30 << 20)
    response = await w.ask(COUNTED_LEAST)
    assert w.responses.used == response.size == COUNTED_LEAST
    send(response)
    small = await w.ask(10)
    assert (w.responses.used, small.release) == (0, None)


async def test_one_without_an_estimate_counts_once_it_is_there() -> None:
    w = World(None)
    response = await w.ask(LARGE)
    assert w.responses.used == LARGE
    send(response)
    assert w.responses.used == 0


@pytest.mark.parametrize("padding", ["m", "m" * INLINE_BYTES])
async def test_a_response_that_fails_or_is_dropped_returns_its_room(padding: str) -> None:
    w = World()
    w.error = RuntimeError("a bug")
    with pytest.raises(RuntimeError):
        await w.ask(LARGE, padding)
    assert w.responses.used == 0
    w.error = None
    held = await w.ask(LIMIT, padding)
    waiting = w.ask(LARGE, padding)
    for _ in range(1_000):
        await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    send(held)
    assert (w.responses.used, w.responses.waiting) == (0, 0)


def test_apis_with_large_responses_reserve_room_first() -> None:
    takes = {api.key for api in ALL_APIS if api.response_bytes is not None}
    assert takes == {
        ApiKey.METADATA,
        ApiKey.DESCRIBE_ACLS,
        ApiKey.DESCRIBE_CLIENT_QUOTAS,
        ApiKey.DESCRIBE_CONFIGS,
        ApiKey.DESCRIBE_DELEGATION_TOKEN,
        ApiKey.DESCRIBE_LOG_DIRS,
        ApiKey.DESCRIBE_PRODUCERS,
        ApiKey.DESCRIBE_TRANSACTIONS,
        ApiKey.ELECT_LEADERS,
        ApiKey.LIST_TRANSACTIONS,
    }

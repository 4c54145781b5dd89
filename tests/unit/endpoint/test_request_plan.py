"""The plan of a request: every combination of a rule's bounds, and the dispatcher's worker for each plan."""

from __future__ import annotations

import asyncio
import inspect
import threading
from contextlib import AsyncExitStack
from itertools import product
from typing import Any

import pytest

from bmq.core.net.request import CloseConnection, Request, Response
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.primitives import TooManyPartitions
from bmq.endpoint.api import Api
from bmq.endpoint.large_requests import INLINE_BYTES
from bmq.endpoint.request_plan import BY_BODY, Plan, PlanRule, choose_plan
from bmq.endpoint.response_budget import COUNTED_LEAST
from bmq.proxy.apis import ALL_APIS
from tests.harness.scopes import make_scopes, serve
from tests.unit.endpoint.endpoints import Asker

COUNTED = PlanRule(partitions=200, keeps_order=True)


@pytest.mark.parametrize(
    ("rule", "size", "is_many", "is_held", "room"),
    [
        (rule, size, *facts)
        for rule, size in [(BY_BODY, INLINE_BYTES), (BY_BODY, INLINE_BYTES + 1), (COUNTED, 0)]
        for facts in product((False, True), (False, True), (0, COUNTED_LEAST - 1, COUNTED_LEAST))
    ],
)
def test_the_plan_of_each_combination(rule: PlanRule, size: int, is_many: bool, is_held: bool, room: int) -> None:
    """A large request is large whatever else it is, and the order of a connection comes before room."""

    is_large = is_many or size > rule.body_bytes
    expected = {
        (True, True): Plan.IN_THREAD,
        (True, False): Plan.IN_THREAD,
        (False, True): Plan.AFTER_OTHERS,
        (False, False): Plan.IN_ROOM if room == COUNTED_LEAST else Plan.AT_ONCE,
    }[is_large, is_held]
    assert choose_plan(rule, size, is_many, is_held, room) is expected


def test_the_rule_of_each_api() -> None:
    rules = {api.key: api.rule for api in ALL_APIS if api.rule is not BY_BODY}
    assert rules == {ApiKey.PRODUCE: PlanRule(partitions=200, keeps_order=True), ApiKey.FETCH: PlanRule(partitions=500)}
    assert [api.key for api in ALL_APIS if api.parse is not None] == list(rules), "who reads its body counts partitions"
    assert [api.key for api in ALL_APIS if api.begin_large is not None] == list(rules)


class Story:
    """An API whose body is its number of partitions, and the events of its requests in order."""

    def __init__(self, *, keeps_order: bool) -> None:
        self.events: list[str] = []
        self.gate = asyncio.Event()
        self.scopes = make_scopes()
        self.client = Asker()
        self.api: Api[Any] = Api(
            ApiKey.PRODUCE,
            3,
            13,
            self.handle,
            PlanRule(partitions=200, keeps_order=keeps_order),
            self.parse,
            self.begin_large,
        )

    def parse(self, body: memoryview, version: int, partitions_max: int) -> str:
        assert threading.current_thread() is threading.main_thread()
        if int(bytes(body)) > partitions_max:
            raise TooManyPartitions(partitions_max)
        return bytes(body).decode()

    def handle(self, scopes: Any, request: Request, message: str) -> Response:
        self.events.append(f"{message} handled")
        return Response((message.encode(),))

    async def begin_large(self, scopes: Any, request: Request, until_answered: AsyncExitStack) -> Any:
        name = bytes(request.body).decode()
        until_answered.callback(self.events.append, f"{name} released")
        await self.gate.wait()
        self.events.append(f"{name} begun")
        return self._answered(name)

    async def _answered(self, name: str) -> Response:
        await asyncio.sleep(1)
        self.events.append(f"{name} answered")
        return Response((name.encode(),))

    def send(self, partitions: int) -> Any:
        body = memoryview(str(partitions).encode())
        return serve(self.scopes, self.api, Request(ApiKey.PRODUCE, 9, 1, "me", body, self.client, 0.0))


async def test_a_small_request_is_handled_in_the_call_that_brings_it() -> None:
    story = Story(keeps_order=True)
    assert isinstance(story.send(200), Response)
    assert story.events == ["200 handled"]


async def test_a_small_request_behind_a_large_one_is_handled_once_that_has_begun() -> None:
    story = Story(keeps_order=True)
    large = asyncio.ensure_future(story.send(201))
    await asyncio.sleep(0)
    small = story.send(3)
    assert inspect.isawaitable(small)
    small = asyncio.ensure_future(small)
    await asyncio.sleep(10)
    assert story.events == []
    story.gate.set()
    assert bytes((await small).buffers[0]) == b"3"
    assert bytes((await large).buffers[0]) == b"201"
    assert story.events == ["201 begun", "3 handled", "201 answered", "201 released"]
    assert isinstance(story.send(4), Response), "nothing is held any more"


async def test_without_an_order_nothing_waits_for_a_large_request() -> None:
    story = Story(keeps_order=False)
    large = asyncio.ensure_future(story.send(201))
    await asyncio.sleep(0)
    assert isinstance(story.send(3), Response)
    story.gate.set()
    await large
    assert story.events == ["3 handled", "201 begun", "201 answered", "201 released"]


@pytest.mark.parametrize("partitions", [3, 201])
async def test_what_a_large_request_holds_is_released_if_its_connection_ends(partitions: int) -> None:
    story = Story(keeps_order=True)
    large = asyncio.ensure_future(story.send(201))
    await asyncio.sleep(0)
    behind = asyncio.ensure_future(story.send(partitions))
    await asyncio.sleep(0)
    large.cancel()
    behind.cancel()
    await asyncio.gather(large, behind, return_exceptions=True)
    assert story.events == ["201 released"]
    assert isinstance(story.send(4), Response), "nothing is held any more"


async def test_a_body_that_its_reader_refuses_closes_the_connection() -> None:
    story = Story(keeps_order=True)
    produce = next(api for api in ALL_APIS if api.key == ApiKey.PRODUCE)
    with pytest.raises(CloseConnection, match=r"^Produce version 9: "):
        serve(story.scopes, produce, Request(ApiKey.PRODUCE, 9, 1, "me", memoryview(b"\0"), story.client, 0.0))

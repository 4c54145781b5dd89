"""The parts of an admin request: their bounds, their time, and what they leave behind."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from bmq.core.aio.eager import start
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.net.request import CloseConnection, Request
from bmq.core.wire.messages import CreateTopicsRequest, DeleteTopicsRequest
from bmq.proxy.handlers import create_partitions, create_topics, delete_topics
from bmq.proxy.handlers._parallel import (
    ASSIGNED_MAX,
    PARTITIONS_A_REQUEST,
    TOPICS_MAX,
    broker_ids_of,
    check_count,
    check_partitions,
    each,
)
from bmq.proxy.partition_queries import ask_all
from tests.harness.fakes import FakeCatalog, FakeClient
from tests.harness.loop_stops import without_collector
from tests.harness.scopes import make_scopes
from tests.unit.proxy.handlers.admin_requests import CREATE, GROW, codes, create, grow, new
from tests.unit.proxy.handlers.admin_serving import serving


class Item:
    """A part of a request, weakly referable."""


@pytest.mark.parametrize("timeout_ms", [0, -1])
async def test_without_time_nothing_is_begun(timeout_ms: int) -> None:
    """Kafka's controller has no effect then, either: no topic is made that the client holds for refused."""
    begun = []

    async def work(item: int) -> int:
        begun.append(item)
        return item

    results = await each([1, 2], work, timeout_ms)
    assert [result.code for result in results if isinstance(result, RequestError)] == [ErrorCode.REQUEST_TIMED_OUT] * 2
    assert not begun


@pytest.mark.slow
async def test_refused_parts_are_freed_without_the_collector() -> None:
    """A hundred thousand that were left to it stop the loop when it comes."""

    async def refuse(item: Item) -> None:
        try:
            raise ValueError("no such name")
        except ValueError as error:
            raise RequestError(ErrorCode.INVALID_REQUEST, "refused") from error

    async def ask() -> tuple[list[weakref.ref[Item]], list[ErrorCode]]:
        items = [Item() for _ in range(40)]
        results = await each(items, refuse, 10_000)
        found = [result.code for result in results if isinstance(result, RequestError)]
        return [weakref.ref(item) for item in items], found

    with without_collector():
        left, found = await ask()
        assert found == [ErrorCode.INVALID_REQUEST] * 40
        assert [ref for ref in left if ref() is not None] == []
        gc.collect()


async def never(item: Item) -> None:
    await asyncio.Event().wait()


async def until_late(items: Sequence[Item]) -> None:
    results = await each(items, never, 1_000)
    assert {result.code for result in results if isinstance(result, RequestError)} == {ErrorCode.REQUEST_TIMED_OUT}


async def until_cancelled(work: Awaitable[object]) -> None:
    """Run ``work`` as a request whose connection closes after a second."""

    async def request() -> object:
        return await work

    task = start(request())
    assert isinstance(task, asyncio.Task)
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.slow
@pytest.mark.parametrize(
    "act",
    [
        until_late,
        lambda items: until_cancelled(each(items, never, 10_000)),
        lambda items: until_cancelled(ask_all(items, never)),
    ],
    ids=["late", "cancelled", "cancelled while owners are asked"],
)
async def test_parts_that_are_given_up_are_freed_without_the_collector(
    act: Callable[[Sequence[Item]], Awaitable[None]],
) -> None:
    """A client may send a large request, close its connection, and do so again."""

    async def ask() -> list[weakref.ref[Item]]:
        items = [Item() for _ in range(40)]
        await act(items)
        return [weakref.ref(item) for item in items]

    with without_collector():
        assert [ref for ref in await ask() if ref() is not None] == []


async def test_admin_requests_time_out_as_the_client_asks() -> None:
    async with serving() as w:
        loop = asyncio.get_running_loop()
        await w.admin.create_topic("t")
        w.kv.pause()
        began = loop.time()
        late = ErrorCode.REQUEST_TIMED_OUT
        found = await w.ask(CREATE, 7, create(new("u"), new("t"), timeout_ms=700))
        assert codes(found.topics) == [("u", late), ("t", ErrorCode.TOPIC_ALREADY_EXISTS)]
        found = await w.ask(delete_topics.APIS[0], 5, DeleteTopicsRequest(topic_names=["t"], timeout_ms=700))
        assert codes(found.responses) == [("t", late)]
        found = await w.ask(GROW, 3, grow(("t", 3, None), timeout_ms=700))
        assert codes(found.results) == [("t", late)]
        assert loop.time() - began == pytest.approx(2.1, abs=0.1)
        w.kv.resume()


def test_topics_of_a_request_are_bounded() -> None:
    check_count([None] * TOPICS_MAX)
    with pytest.raises(CloseConnection, match="more than"):
        check_count([None] * (TOPICS_MAX + 1))


@pytest.mark.slow
async def test_manual_assignments_of_a_topic_are_bounded() -> None:
    one = CreateTopicsRequest.CreatableTopic.CreatableReplicaAssignment(partition_index=0, broker_ids=[1, 2])
    assert await broker_ids_of([one] * ASSIGNED_MAX) == [[1, 2]] * ASSIGNED_MAX
    with pytest.raises(RequestError) as refused:
        await broker_ids_of([one] * (ASSIGNED_MAX + 1))
    assert refused.value.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_partitions_of_a_request_are_bounded_together() -> None:
    check_partitions([PARTITIONS_A_REQUEST - 1, 1])
    with pytest.raises(RequestError) as refused:
        check_partitions([PARTITIONS_A_REQUEST, 1])
    assert refused.value.code is ErrorCode.POLICY_VIOLATION


class RefusingAdmin:
    """The controller's work, counted."""

    def __init__(self) -> None:
        self.asked = 0

    async def create_topic(self, *arguments: Any, **options: Any) -> None:
        self.asked += 1
        raise RequestError(ErrorCode.TOPIC_ALREADY_EXISTS, "")

    add_partitions = create_topic


@pytest.mark.parametrize("module", [create_topics, create_partitions])
async def test_too_many_partitions_in_all_create_nothing(module: Any) -> None:
    async def ask(count: int) -> tuple[set[int], int]:
        admin = RefusingAdmin()
        request = Request(0, 0, 0, None, memoryview(b""), FakeClient(), 0.0)
        names = [f"t{number}" for number in range(count)]
        if module is create_topics:
            message = create(*(new(name, 100_000) for name in names), timeout_ms=10_000, validate_only=True)
        else:
            message = grow(*((name, 100_000, []) for name in names), timeout_ms=10_000, validate_only=True)
        scopes = make_scopes(admin=admin, catalog=FakeCatalog())
        response = await module.handle(scopes, request, message)
        found = response.topics if module is create_topics else response.results
        return {each.error_code for each in found}, admin.asked

    assert await ask(10) == ({ErrorCode.TOPIC_ALREADY_EXISTS}, 10)
    assert await ask(11) == ({ErrorCode.POLICY_VIOLATION}, 0)

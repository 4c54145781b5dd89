"""The endpoint (endpoint/dispatch.py) and ApiVersions: what gets a response, what closes the connection, what is
counted."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from bmq.core.clock import SystemClock
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.net.request import CloseConnection, Request, Response
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.large import LARGE_ELEMENTS, is_large
from bmq.core.wire.messages import HeartbeatResponse, MetadataResponse, OffsetFetchResponse
from bmq.core.wire.response_errors import error_codes
from bmq.endpoint.api import Api
from bmq.endpoint.api_versions import APIS
from tests.harness.scopes import make_endpoint, make_scopes
from tests.unit.endpoint.endpoints import Asker, beat, beat_raw, counters, decoded, endpoint, heartbeat, joined


async def test_answers_are_encoded_at_the_asked_version() -> None:
    made = endpoint()
    for version in range(1, 5):
        made_response = made(heartbeat(version, correlation_id=version), Asker())
        assert joined(made_response)[:4] == version.to_bytes(4, "big")
        assert decoded(made_response, HeartbeatResponse, version).error_code == 27
    assert counters(made).count == 4
    assert counters(made).errors == {27: 4}


def test_error_codes_are_those_of_the_whole_and_of_every_element() -> None:
    Topic = OffsetFetchResponse.OffsetFetchResponseTopic
    Part = Topic.OffsetFetchResponsePartition
    parts = [Part(partition_index=number, error_code=code) for number, code in enumerate((0, 3, 3))]
    assert list(error_codes(OffsetFetchResponse(error_code=15, topics=[]))) == [15]
    message = OffsetFetchResponse(error_code=0, topics=[Topic(name="t", partitions=parts)])
    assert list(error_codes(message)) == [0, 0, 0, 3, 3], "a topic has no code of its own"
    empty = OffsetFetchResponse(error_code=0, topics=[Topic(name="t", partitions=[])] * 100)
    assert len(list(error_codes(empty))) == 101, "each that is looked at counts for a turn of the loop"
    assert list(error_codes(OffsetFetchResponse(error_code=0, topics=None))) == [0], "an array may be null"


@pytest.mark.slow
@pytest.mark.loops("asyncio")
async def test_errors_of_large_answers_are_counted_too() -> None:
    topics = [MetadataResponse.MetadataResponseTopic(error_code=3) for _ in range(LARGE_ELEMENTS)]

    made = endpoint(lambda scopes, request, asked: MetadataResponse(topics=topics), clock=SystemClock())
    await made(heartbeat(), Asker())  # type: ignore[misc]
    assert counters(made).errors == {3: LARGE_ELEMENTS}


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (heartbeat(0), "HEARTBEAT .12. version 0, which is not supported"),
        (b"\0\x0c\0\x05\0\0\0\x01", "HEARTBEAT .12. version 5, which is not supported"),
        (b"\0\x11\0\0\0\0\0\x01\xff\xff", "SASL_HANDSHAKE"),
        (b"\x27\x0f\0\0\0\0\0\x01", "API 9999 version 0"),
        (bytes(heartbeat())[:-3], "HEARTBEAT version 4: "),
        (b"\0\x0c\0\x04\0\0\0\x01\0\x50abc", "header cannot be read: a text of 80 bytes"),
    ],
)
async def test_a_frame_that_is_not_a_request_closes_the_connection(data: bytes, why: str) -> None:
    with pytest.raises(CloseConnection, match=why):
        endpoint()(memoryview(bytearray(data)), Asker())


def test_only_apis_registered_as_pipelined_are() -> None:
    made = endpoint()
    assert made.is_pipelined(memoryview(b"\0\0\0\x03"))
    assert not made.is_pipelined(heartbeat())


async def test_a_handler_that_needs_the_list_of_apis_is_made_for_its_endpoint() -> None:
    made: list[list[ApiKey]] = []

    def handler_of(apis: Sequence[Api[Any]]) -> Any:
        made.append([api.key for api in apis])
        return beat

    listing = Api(ApiKey.HEARTBEAT, 1, 4, unlisted, handle_of=handler_of)
    endpoints = [
        make_endpoint(make_scopes(), [listing, other]) for other in (Api(ApiKey.PRODUCE, 3, 13, beat_raw), *APIS)
    ]
    assert made == [[ApiKey.HEARTBEAT, ApiKey.PRODUCE], [ApiKey.HEARTBEAT, ApiKey.API_VERSIONS]]
    assert [each.apis[0].handle for each in endpoints] == [beat, beat]


def unlisted(scopes: Any, request: Request, message: Any) -> Any:
    raise AssertionError("a handler without the list of the endpoint's APIs")


async def test_async_handlers_begin_at_once() -> None:
    gate = asyncio.get_running_loop().create_future()
    begun = []

    async def slow(scopes: Any, request: Request, message: Any) -> Any:
        begun.append(message.group_id)
        await gate
        return HeartbeatResponse(error_code=5)

    async def quick(scopes: Any, request: Request, message: Any) -> Any:
        return HeartbeatResponse(error_code=6)

    made = endpoint(slow)
    pending = made(heartbeat(), Asker())
    assert begun == ["g"]
    assert inspect.isawaitable(pending)
    await asyncio.sleep(2)
    gate.set_result(None)
    assert decoded(await pending, HeartbeatResponse, 4).error_code == 5
    assert counters(made).total_ms == pytest.approx(2000)
    assert decoded(endpoint(quick)(heartbeat(), Asker()), HeartbeatResponse, 4).error_code == 6


async def test_a_handler_may_return_a_response_or_a_future_of_it() -> None:
    released: list[int] = []
    ready = Response((b"12345678",), lambda: released.append(1))
    future = asyncio.get_running_loop().create_future()
    made = endpoint(raw=lambda scopes, request, message: future)
    assert endpoint(raw=lambda scopes, request, message: ready)(heartbeat(), Asker()) is ready
    assert endpoint(lambda scopes, request, message: ready)(heartbeat(), Asker()) is ready
    pending = made(heartbeat(), Asker())
    assert inspect.isawaitable(pending)
    future.set_result(ready)
    assert await pending is ready
    assert counters(made).count == 1
    assert released == []


@pytest.mark.parametrize("error", [RequestError(ErrorCode.INVALID_REQUEST, "left a handler"), KeyError("x")])
@pytest.mark.parametrize("is_late", [False, True])
async def test_a_bug_in_a_handler_is_logged_with_its_api(error: Exception, is_late: bool) -> None:
    def fails(scopes: Any, request: Request, message: Any) -> Any:
        raise error

    async def fails_late(scopes: Any, request: Request, message: Any) -> Any:
        await asyncio.sleep(1)
        raise error

    async def ask() -> None:
        made_response = endpoint(fails_late if is_late else fails)(heartbeat(), Asker())
        assert inspect.isawaitable(made_response)
        await made_response

    with pytest.raises(type(error)) as caught:
        await ask()
    assert caught.value.__notes__[-1] == "answering HEARTBEAT version 4 of 10.0.0.1:5 ('tester')"


async def test_an_async_handler_may_close_the_connection() -> None:
    async def refuses(scopes: Any, request: Request, message: Any) -> Any:
        await asyncio.sleep(0)
        raise CloseConnection("why")

    made_response = endpoint(refuses)(heartbeat(), Asker())
    assert inspect.isawaitable(made_response)
    with pytest.raises(CloseConnection, match="why"):
        await made_response


@pytest.mark.loops("asyncio")
@pytest.mark.parametrize("is_late", [False, True])
async def test_large_answers_are_encoded_off_the_loop(is_late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []
    message = MetadataResponse(topics=[MetadataResponse.MetadataResponseTopic() for _ in range(LARGE_ELEMENTS)])

    def encode(api_key: int, version: int, correlation_id: int, encoded: Any) -> list[bytes]:
        assert encoded is message
        threads.append(threading.current_thread())
        return [b"encoded"]

    monkeypatch.setattr("bmq.endpoint.large_requests.encode_response", encode)

    def at_once(scopes: Any, request: Request, asked: Any) -> Any:
        return message

    async def late(scopes: Any, request: Request, asked: Any) -> Any:
        await asyncio.sleep(0)
        return message

    made_response = endpoint(late if is_late else at_once, clock=SystemClock())(heartbeat(), Asker())
    assert inspect.isawaitable(made_response)
    assert joined(await made_response) == b"encoded"
    assert len(threads) == 1
    assert threading.main_thread() not in threads


def test_a_response_with_many_elements_is_large() -> None:
    topic = MetadataResponse.MetadataResponseTopic
    partition = topic.MetadataResponsePartition
    many = [topic(partitions=[partition() for _ in range(100)]) for _ in range(LARGE_ELEMENTS // 100)]
    assert is_large(MetadataResponse(topics=many))
    assert not is_large(MetadataResponse(topics=many[:10]))
    assert not is_large(MetadataResponse(topics=[]))
    assert not is_large(OffsetFetchResponse())
    assert not is_large(HeartbeatResponse())

"""Kafka requests of a process to itself: framed as a client's, and errors of requests and partitions are raised."""

from __future__ import annotations

from collections.abc import Awaitable
from uuid import UUID

import pytest

from bmq.console.kafka import CLIENT_ID, LocalRequests, check
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.net.request import Client, CloseConnection, Response
from bmq.core.wire import messages as m
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.codec import encode_response
from bmq.core.wire.fetch import FetchedPartition, FetchedTopic, encode_fetch, parse_fetch
from bmq.core.wire.fetch_client import FETCH_VERSION, READ_COMMITTED, READ_UNCOMMITTED
from bmq.core.wire.header import parse_header
from bmq.core.wire.produce import PartitionAnswer, TopicAnswer, encode_produce
from bmq.core.wire.produce_client import PRODUCE_VERSION

TOPIC_ID = UUID(int=7)


class FakeDispatch:
    """A dispatch with one response to every frame, at once or after an await; it keeps the frames."""

    def __init__(self, response: Response | Exception, *, is_late: bool = False) -> None:
        self.response = response
        self.is_late = is_late
        self.frames: list[bytes] = []

    def is_pipelined(self, frame: memoryview) -> bool:
        raise AssertionError("only a connection asks")

    def expects_response(self, frame: memoryview) -> bool:
        return True

    def may_park(self, frame: memoryview) -> bool:
        return False

    def __call__(self, frame: memoryview, client: Client) -> Response | Awaitable[Response]:
        self.frames.append(bytes(frame))
        assert client.peer == CLIENT_ID
        return self._later() if self.is_late else self._response()

    async def _later(self) -> Response:
        return self._response()

    def _response(self) -> Response:
        if isinstance(self.response, Exception):
            raise self.response
        return self.response


def deleted(version: int) -> Response:
    result = m.DeleteGroupsResponse.DeletableGroupResult(group_id="billing", error_code=0)
    return Response(encode_response(ApiKey.DELETE_GROUPS, version, 0, m.DeleteGroupsResponse(results=[result])))


@pytest.mark.parametrize("version", [1, 2], ids=["a plain header", "a flexible header"])
@pytest.mark.parametrize("is_late", [False, True])
async def test_a_request_is_framed_and_its_response_is_read(version: int, is_late: bool) -> None:
    dispatch = FakeDispatch(deleted(version), is_late=is_late)
    request = m.DeleteGroupsRequest(groups_names=["billing"])
    response = await LocalRequests(dispatch).send(ApiKey.DELETE_GROUPS, version, request)
    assert [each.group_id for each in response.results] == ["billing"]
    header = parse_header(memoryview(dispatch.frames[0]))
    assert (header.api_key, header.api_version, header.client_id) == (ApiKey.DELETE_GROUPS, version, CLIENT_ID)


@pytest.mark.parametrize("is_late", [False, True])
async def test_a_frame_that_would_close_a_connection_is_an_error(is_late: bool) -> None:
    dispatch = FakeDispatch(CloseConnection("version 99 is not served"), is_late=is_late)
    with pytest.raises(RequestError, match="version 99") as raised:
        await LocalRequests(dispatch).send(ApiKey.DELETE_GROUPS, 2, m.DeleteGroupsRequest(groups_names=[]))
    assert raised.value.code == ErrorCode.INVALID_REQUEST


async def test_the_memory_of_a_response_is_released() -> None:
    released: list[None] = []
    response = encode_fetch(
        FETCH_VERSION, 0, [FetchedTopic(None, TOPIC_ID, [FetchedPartition(0, 0, 9, 9, 5)])],
        release=lambda: released.append(None),
    )  # fmt: skip
    fetched = await LocalRequests(FakeDispatch(response)).fetch(TOPIC_ID, 0, 5, 1 << 20, READ_COMMITTED)
    assert (fetched.high_watermark, released) == (9, [None])


@pytest.mark.parametrize(("level", "aborted"), [(READ_COMMITTED, [(7, 5), (8, 1 << 40)]), (READ_UNCOMMITTED, None)])
async def test_a_fetch_has_its_isolation_level(level: int, aborted: list[tuple[int, int]] | None) -> None:
    part = FetchedPartition(0, 0, 9, 8, 5, [b"abc"], aborted=aborted)
    dispatch = FakeDispatch(encode_fetch(FETCH_VERSION, 0, [FetchedTopic(None, TOPIC_ID, [part])]))
    fetched = await LocalRequests(dispatch).fetch(TOPIC_ID, 0, 5, 1 << 20, level)
    assert (fetched.last_stable_offset, fetched.aborted) == (8, aborted)
    frame = memoryview(dispatch.frames[0])
    asked = parse_fetch(frame[parse_header(frame).body_start :], FETCH_VERSION)
    assert asked.isolation_level == level


@pytest.mark.parametrize(("of_request", "of_partition"), [(0, 6), (71, 0)])
async def test_an_error_of_a_fetch_is_raised(of_request: int, of_partition: int) -> None:
    topics = [] if of_request else [FetchedTopic(None, TOPIC_ID, [FetchedPartition(0, of_partition, -1, -1, -1)])]
    dispatch = FakeDispatch(encode_fetch(FETCH_VERSION, 0, topics, error_code=of_request))
    with pytest.raises(RequestError) as raised:
        await LocalRequests(dispatch).fetch(TOPIC_ID, 0, 5, 1 << 20, READ_COMMITTED)
    assert raised.value.code == of_request + of_partition


async def test_a_produce_returns_its_offset_or_raises_with_the_text() -> None:
    answers = [PartitionAnswer(0, 0, base_offset=7), PartitionAnswer(0, 87, error_message="no such codec")]
    right, wrong = (
        LocalRequests(FakeDispatch(encode_produce(PRODUCE_VERSION, 0, [TopicAnswer(None, TOPIC_ID, [response])])))
        for response in answers
    )
    assert await right.produce(TOPIC_ID, 0, memoryview(b"batch")) == 7
    with pytest.raises(RequestError, match="no such codec") as raised:
        await wrong.produce(TOPIC_ID, 0, memoryview(b"batch"))
    assert raised.value.code == ErrorCode.INVALID_RECORD


async def test_a_refused_record_is_explained_by_its_own_error() -> None:
    """The batch's text counts and lists records, of which the console sends one."""
    response = PartitionAnswer(0, 87, error_message="1 record errors in total", batch_index_errors=[(0, "no key")])
    refusing = LocalRequests(
        FakeDispatch(encode_produce(PRODUCE_VERSION, 0, [TopicAnswer(None, TOPIC_ID, [response])]))
    )
    with pytest.raises(RequestError) as raised:
        await refusing.produce(TOPIC_ID, 0, memoryview(b"batch"))
    assert raised.value.message == "no key"


def test_only_an_error_code_is_raised() -> None:
    check(0, "not an error")
    with pytest.raises(RequestError) as raised:
        check(3, None)
    assert (raised.value.code, raised.value.message) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "")

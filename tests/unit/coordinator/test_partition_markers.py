"""Markers from a coordinator to partition owners: joined by broker, bounded, and a code for each outcome."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any
from uuid import UUID

import pytest

from bmq.coordinator import partition_markers
from bmq.coordinator.partition_markers import REQUESTS_MAX, GoneTopics, PartitionMarkers
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.model import PartitionKey
from bmq.core.records.control import Marker, TransactionMarker
from bmq.core.rpc.messages.markers import MARKERS_MAX, WriteMarkersRequest, WriteMarkersResponse
from bmq.core.rpc.peers import PeerLost
from bmq.meta.catalog import Topic, encode_topic, topic_key
from bmq.meta.kv import Put
from bmq.meta.kv_memory import KvFaults, MemoryKeyValue, MemoryStore
from tests.harness.fakes import FakeCatalog, FakeView, member
from tests.harness.waiting import until

TOPIC, DELETED = UUID(int=1), UUID(int=2)
CLUSTER = "c"


def ends(producer_id: int = 1) -> TransactionMarker:
    return TransactionMarker(producer_id, 3, 5, Marker.COMMIT, 2)


def keys(*numbers: int) -> list[PartitionKey]:
    return [PartitionKey(TOPIC, number) for number in numbers]


class World:
    """A view, a catalog and brokers that answer each marker by ``respond``; ``asked`` has the requests."""

    def __init__(self) -> None:
        self.view = FakeView("own")
        self.catalog = FakeCatalog()
        self.catalog.put("t", Topic(name="t", topic_id=TOPIC, partitions=4))
        for name in ("a", "b"):
            self.view.members[name] = member(name)
        self.asked: list[tuple[str, WriteMarkersRequest]] = []
        self.respond: Callable[[PartitionKey], ErrorCode] = lambda key: ErrorCode.NONE
        self.failure: Exception | None = None
        self.may_respond = asyncio.Event()
        self.may_respond.set()
        self.store = MemoryStore()
        self.kv = MemoryKeyValue(self.store, random=Random(1), faults=KvFaults())
        self.markers = PartitionMarkers(self.view, self.catalog, self, GoneTopics(self.kv, CLUSTER))

    async def ask(self, to: Any, request: Any, timeout_s: float) -> Any:
        self.asked.append((to.incarnation, request))
        await self.may_respond.wait()
        if self.failure is not None:
            raise self.failure
        codes = tuple(self.respond(key) for _, key in request.ends())
        return WriteMarkersResponse(ErrorCode.NONE, "", codes)

    async def write(self, *wanted: PartitionKey, producer_id: int = 1) -> list[str]:
        codes = await self.markers(ends(producer_id), wanted)
        return [codes[key].name for key in wanted]


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    made = World()
    try:
        yield made
    finally:
        await made.markers.close()
        await made.kv.close()


async def test_markers_of_one_turn_share_a_request_by_broker() -> None:
    async with world() as w:
        w.view.assign("a", *keys(0, 1))
        w.view.assign("b", *keys(2))
        found = await asyncio.gather(w.write(*keys(0, 2)), w.write(*keys(0, 1), producer_id=2))
        assert list(found) == [["NONE"] * 2] * 2
        assert [(name, request.ends()) for name, request in w.asked] == [
            ("a", [(ends(1), keys(0)[0]), (ends(2), keys(0)[0]), (ends(2), keys(1)[0])]),
            ("b", [(ends(1), keys(2)[0])]),
        ]
        assert repr(w.markers) == "<PartitionMarkers brokers=0 waiting=0 requests=0>"


async def test_no_partition_needs_no_request() -> None:
    async with world() as w:
        assert await w.write() == []
        assert not w.asked


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (ErrorCode.TRANSACTION_COORDINATOR_FENCED, "TRANSACTION_COORDINATOR_FENCED"),
        (ErrorCode.INVALID_PRODUCER_EPOCH, "INVALID_PRODUCER_EPOCH"),
        (ErrorCode.NOT_ENOUGH_REPLICAS, "NOT_ENOUGH_REPLICAS"),
        (ErrorCode.KAFKA_STORAGE_ERROR, "KAFKA_STORAGE_ERROR"),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "NOT_LEADER_OR_FOLLOWER"),
        (ErrorCode.UNKNOWN_TOPIC_ID, "NOT_LEADER_OR_FOLLOWER"),
    ],
)
async def test_a_partitions_code_is_the_owners_but_its_word_that_a_topic_is_gone(
    code: ErrorCode, expected: str
) -> None:
    async with world() as w:
        w.view.assign("a", *keys(0, 1))
        w.respond = lambda key: code if key.partition else ErrorCode.NONE
        assert await w.write(*keys(0, 1)) == ["NONE", expected]


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (PeerLost("broken", was_sent=True), "NOT_LEADER_OR_FOLLOWER"),
        (TimeoutError(), "REQUEST_TIMED_OUT"),
        (RequestError(ErrorCode.UNSUPPORTED_VERSION, "an earlier version"), "UNSUPPORTED_VERSION"),
        (RequestError(ErrorCode.UNKNOWN_TOPIC_ID, ""), "NOT_LEADER_OR_FOLLOWER"),
    ],
)
async def test_a_request_without_a_response_fails_for_now(failure: Exception, expected: str) -> None:
    async with world() as w:
        w.view.assign("a", *keys(0))
        w.failure = failure
        assert await w.write(*keys(0)) == [expected]


async def test_a_partition_without_owner_fails_for_now() -> None:
    async with world() as w:
        w.view.assign("gone", *keys(1))
        assert await w.write(*keys(0, 1)) == ["NOT_LEADER_OR_FOLLOWER"] * 2
        assert not w.asked


async def test_a_topic_is_gone_only_if_the_store_has_no_topic_of_its_id() -> None:
    """Never count a topic as gone because this process's catalog is behind: its transaction would stay open."""
    async with world() as w:
        wanted = PartitionKey(DELETED, 0)
        w.view.assign("a", wanted)
        late = Topic(name="late", topic_id=DELETED, partitions=1)
        await w.kv.commit([], [Put(topic_key(CLUSTER, "late"), encode_topic(late))])
        assert await w.write(wanted) == ["NONE"], "the catalog is behind, the view has its owner"
        again = Topic(name="late", topic_id=UUID(int=3), partitions=1)
        await w.kv.commit([], [Put(topic_key(CLUSTER, "late"), encode_topic(again))])
        assert await w.write(wanted, *keys()) == ["UNKNOWN_TOPIC_ID"]
        await w.kv.commit([], [Put(topic_key(CLUSTER, "other"), b"not a topic")])
        unsure = PartitionKey(UUID(int=4), 0)
        assert await w.write(unsure) == ["NOT_LEADER_OR_FOLLOWER"], "that may be the unreadable topic"
        assert await w.write(wanted) == ["UNKNOWN_TOPIC_ID"], "an id is never used again"


async def test_requests_to_one_broker_are_bounded_in_number_and_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_markers, "WAITING_MAX", 10)
    async with world() as w:
        w.view.assign("a", *keys(0))
        w.may_respond.clear()
        under_way = []
        for number in range(REQUESTS_MAX + 10):
            under_way.append(asyncio.create_task(w.write(*keys(0), producer_id=number)))
            await asyncio.sleep(0.01)
        assert len(w.asked) == REQUESTS_MAX
        assert await w.write(*keys(0)) == ["REQUEST_TIMED_OUT"]
        under_way[-1].cancel()
        w.may_respond.set()
        found = await asyncio.gather(*under_way, return_exceptions=True)
        assert found[:-1] == [["NONE"]] * (REQUESTS_MAX + 9)
        assert [len(request.partitions) for _, request in w.asked] == [1] * REQUESTS_MAX + [9]


async def test_many_partitions_take_several_requests() -> None:
    async with world() as w:
        many = keys(*range(MARKERS_MAX + 5))
        w.view.assign("a", *many)
        assert set(await w.write(*many)) == {"NONE"}
        assert [len(request.partitions) for _, request in w.asked] == [MARKERS_MAX, 5]


async def test_a_close_ends_all_calls() -> None:
    async with world() as w:
        w.view.assign("a", *keys(0))
        w.may_respond.clear()
        under_way = []
        for number in range(REQUESTS_MAX + 2):
            under_way.append(asyncio.create_task(w.write(*keys(0), producer_id=number)))
            await asyncio.sleep(0.01)
        await until(lambda: len(w.asked) == REQUESTS_MAX)
        await w.markers.close()
        assert await asyncio.gather(*under_way) == [["NOT_LEADER_OR_FOLLOWER"]] * (REQUESTS_MAX + 2)

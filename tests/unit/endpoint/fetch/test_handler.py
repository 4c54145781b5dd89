"""The Fetch handler, on the wire of every version: an independent codec writes the requests and reads the responses."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any, cast

import pytest
from kafka.protocol.consumer import FetchRequest, FetchResponse

from bmq.core.errors import ErrorCode
from bmq.core.net.request import Client, CloseConnection, Request, Response
from bmq.core.records.batch import Ends
from bmq.core.wire.api_keys import ApiKey
from bmq.endpoint.fetch.handler import APIS
from bmq.meta.proxy_addresses import Proxies, ProxyAddress
from bmq.storage.filesystem import StorageUnavailable
from tests.harness.scopes import make_scopes, serve
from tests.unit.endpoint.serving import World, batch_of, serving
from tests.unit.proxy.handlers.admin_serving import Spread

VERSIONS = range(4, 19)


def asked(version: int, body: bytes) -> Request:
    return Request(1, version, 77, "me", memoryview(body), cast(Client, None), 0.0)


def topic_of(world: World, name: str, *partitions: int, topic_id: uuid.UUID | None = None, offset: int = 0) -> Any:
    return FetchRequest.FetchTopic(
        topic=name,
        topic_id=topic_id or world.catalog.topics[name].topic_id,
        partitions=[
            FetchRequest.FetchTopic.FetchPartition(partition=number, fetch_offset=offset, partition_max_bytes=1 << 20)
            for number in partitions
        ],
    )


async def fetch(world: World, version: int, topics: list[Any], *, proxies: Proxies | None = None, **fields: Any) -> Any:
    """Return the decoded response, and release its memory as if it was sent."""
    message = FetchRequest(
        version=version,
        **{
            "max_wait_ms": 0,
            "min_bytes": 1,
            "max_bytes": 2 << 20,
            "isolation_level": 0,
            "session_id": 0,
            "session_epoch": -1,
            "forgotten_topics_data": [],
            "rack_id": "",
            **fields,
        },
        topics=topics,
    )
    scopes = make_scopes(fetch_service=world.fetch_service, proxies=proxies, metrics=world.metrics)
    served = serve(scopes, APIS[0], asked(version, bytes(message.encode(version=version))))
    if not isinstance(served, Response):
        served = await served
    if served.release is not None:
        served.release()
    data = b"".join(served.buffers)
    head = 5 if version >= 12 else 4  # correlation id, and tags
    assert int.from_bytes(data[:4], "big") == 77
    return FetchResponse.decode(data[head:], version=version)


def partitions(response: Any) -> dict[int, Any]:
    return {each.partition_index: each for topic in response.responses for each in topic.partitions}


def test_fetch_is_registered_in_kafkas_versions() -> None:
    assert [(api.key, api.min_version, api.max_version) for api in APIS] == [(ApiKey.FETCH, 4, 18)]


@pytest.mark.parametrize("version", VERSIONS)
async def test_records_and_watermarks_are_returned_in_every_version(version: int) -> None:
    async with serving(has_sessions=True) as world:
        for _ in range(3):
            world.flush("t", 1)
        response = await fetch(world, version, [topic_of(world, "t", 0, 1, offset=0)])
        found = partitions(response)
        assert bytes(found[1].records) == batch_of(0) + batch_of(1) + batch_of(2)
        assert (found[1].high_watermark, found[1].last_stable_offset, found[1].error_code) == (3, 3, 0)
        assert not found[0].records
        assert (found[0].aborted_transactions, found[1].aborted_transactions) == (None, None)
        assert len(response.responses) == 1
        if version >= 13:
            assert response.responses[0].topic_id == world.catalog.topics["t"].topic_id
        else:
            assert response.responses[0].topic == "t"
        if version >= 11:
            assert found[1].preferred_read_replica == -1


@pytest.mark.parametrize("version", VERSIONS)
async def test_read_committed_is_told_that_nothing_was_aborted(version: int) -> None:
    async with serving(has_sessions=True) as world:
        world.flush("t", 1)
        response = await fetch(world, version, [topic_of(world, "t", 1)], isolation_level=1)
        assert partitions(response)[1].aborted_transactions == []


@pytest.mark.parametrize("version", VERSIONS)
async def test_unknown_topics_by_the_versions_word(version: int) -> None:
    async with serving(has_sessions=True) as world:
        unknown = topic_of(world, "x", 0, topic_id=uuid.UUID(int=99))
        response = await fetch(world, version, [unknown])
        expected = ErrorCode.UNKNOWN_TOPIC_ID if version >= 13 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert partitions(response)[0].error_code == expected


@pytest.mark.parametrize("version", VERSIONS)
async def test_an_error_that_a_version_does_not_know_is_told_as_one_that_it_knows(version: int) -> None:
    async with serving(has_sessions=True) as world:
        await world.store("t", 0)
        world.fs.fault = StorageUnavailable("no")
        owner = world.owner("t", 1)
        owner.high_watermark = 5  # and nothing on storage

        async def nothing() -> Ends:
            return Ends(owner.epoch, 0, 0, 0)

        owner.ends = nothing  # type: ignore[method-assign]
        found = partitions(await fetch(world, version, [topic_of(world, "t", 0, 1)]))
        codes = [ErrorCode(found[number].error_code).name for number in (0, 1)]
        older = "NOT_LEADER_OR_FOLLOWER"
        assert codes == [
            "KAFKA_STORAGE_ERROR" if version >= 6 else older,
            "OFFSET_NOT_AVAILABLE" if version >= 11 else older,
        ]


@pytest.mark.parametrize("version", range(7, 19))
async def test_a_session_over_the_wire(version: int) -> None:
    async with serving(has_sessions=True) as world:
        first = await fetch(world, version, [topic_of(world, "t", 0, 1)], session_epoch=0)
        assert (first.error_code, sorted(partitions(first))) == (0, [0, 1])
        session = {"session_id": first.session_id}
        world.flush("t", 1)
        second = await fetch(world, version, [], **session, session_epoch=1)
        assert (second.session_id, list(partitions(second))) == (first.session_id, [1])
        forgotten = FetchRequest.ForgottenTopic(topic="t", topic_id=world.catalog.topics["t"].topic_id, partitions=[1])
        third = await fetch(world, version, [], **session, session_epoch=2, forgotten_topics_data=[forgotten])
        assert partitions(third) == {}
        stale = await fetch(world, version, [], **session, session_epoch=2)
        assert stale.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
        other = await fetch(world, 12 if version >= 13 else 13, [], **session, session_epoch=3)
        assert other.error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_follower_is_refused(version: int) -> None:
    async with serving(has_sessions=True) as world:
        world.flush("t")
        replica: dict[str, Any] = {"replica_id": 2}
        if version >= 15:
            replica = {"replica_state": FetchRequest.ReplicaState(replica_id=2, replica_epoch=1)}
        found = partitions(await fetch(world, version, [topic_of(world, "t", 0)], **replica))
        assert found[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert not found[0].records


async def test_a_malformed_fetch_closes_the_connection() -> None:
    async with serving(has_sessions=True) as world:
        scopes = make_scopes(fetch_service=world.fetch_service)
        with pytest.raises(CloseConnection):
            serve(scopes, APIS[0], asked(12, b"\0\0\0"))


# ---------------------------------------------------------------------------------------------- the client's rack

ZONES = Spread([ProxyAddress(1, "here", 9092, "a"), ProxyAddress(2, "there", 9092, "b")])
"""This process is proxy 1, and leads partition 0 of each topic."""
RACK_VERSIONS = range(11, 19)


@pytest.mark.parametrize("version", RACK_VERSIONS)
async def test_a_client_of_another_zone_is_sent_to_a_proxy_there(version: int) -> None:
    """The leader names the proxy, with the marks and without records, at once, however long the fetch would wait
    (KIP-392)."""

    async with serving(has_sessions=True) as world:
        world.flush("t", 0)
        world.flush("t", 1)
        loop = asyncio.get_running_loop()
        began = loop.time()
        asked_for = [topic_of(world, "t", 0, 1)]
        wait: dict[str, Any] = {"max_wait_ms": 9_000, "min_bytes": 1 << 20}
        found = partitions(await fetch(world, version, asked_for, proxies=ZONES, rack_id="b", **wait))
        assert (found[0].preferred_read_replica, found[0].records or b"") == (2, b"")
        assert (found[0].error_code, found[0].high_watermark) == (0, 1)
        assert (found[1].preferred_read_replica, bytes(found[1].records)) == (-1, bytes(batch_of(0)))
        assert loop.time() == began


@pytest.mark.parametrize("rack", ["", "a", "nobody's"])
async def test_a_client_of_this_zone_of_none_or_of_one_without_a_proxy_reads_here(rack: str) -> None:
    async with serving(has_sessions=True) as world:
        world.flush("t", 0)
        found = partitions(await fetch(world, 18, [topic_of(world, "t", 0)], proxies=ZONES, rack_id=rack))
        assert (found[0].preferred_read_replica, bytes(found[0].records)) == (-1, bytes(batch_of(0)))


async def test_nothing_is_read_from_storage_for_a_client_that_is_sent_elsewhere() -> None:
    async with serving(has_sessions=True) as world:
        await world.store("t", 0)
        world.fs.fault = StorageUnavailable("no")
        found = partitions(await fetch(world, 18, [topic_of(world, "t", 0)], proxies=ZONES, rack_id="b"))
        assert (found[0].error_code, found[0].preferred_read_replica) == (0, 2)


async def test_a_client_of_another_zone_gets_an_error_from_this_proxy() -> None:
    async with serving(has_sessions=True) as world:
        world.flush("t", 0)
        beyond = topic_of(world, "t", 0, offset=99)
        found = partitions(await fetch(world, 18, [beyond], proxies=ZONES, rack_id="b"))
        assert (found[0].error_code, found[0].preferred_read_replica) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)


async def test_a_session_sends_the_client_away_until_it_forgets_the_partition() -> None:
    async with serving(has_sessions=True) as world:
        zoned: dict[str, Any] = {"proxies": ZONES, "rack_id": "b"}
        first = await fetch(world, 18, [topic_of(world, "t", 0, 1)], session_epoch=0, **zoned)
        assert {number: each.preferred_read_replica for number, each in partitions(first).items()} == {0: 2, 1: -1}
        zoned["session_id"] = first.session_id
        again = await fetch(world, 18, [], session_epoch=1, **zoned)
        assert {number: each.preferred_read_replica for number, each in partitions(again).items()} == {0: 2}
        topic_id = world.catalog.topics["t"].topic_id
        forgotten = FetchRequest.ForgottenTopic(topic="t", topic_id=topic_id, partitions=[0])
        gone = await fetch(world, 18, [], session_epoch=2, forgotten_topics_data=[forgotten], **zoned)
        assert partitions(gone) == {}

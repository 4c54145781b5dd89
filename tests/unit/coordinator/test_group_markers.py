"""Markers on their way to the groups' coordinators elsewhere: judged by ownership, and a code for each shard."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from bmq.coordinator import group_markers
from bmq.coordinator.group_markers import GroupMarkers
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.rpc.messages.markers import MARKERS_MAX, EndGroupTransactionsRequest, EndGroupTransactionsResponse
from bmq.core.rpc.peers import PeerLost
from bmq.meta.cluster.member import Member
from bmq.meta.cluster.view import ShardOwner
from bmq.meta.shard_kinds import GROUPS, ShardId
from tests.unit.coordinator.cluster_world import GROUP, SHARDS, ClusterWorld, View, cluster, group_of
from tests.unit.coordinator.fakes import CLIENT
from tests.unit.coordinator.txn_requests import marker_of, txn_request

pytestmark = pytest.mark.slow
NONE = ErrorCode.NONE


def markers(world: ClusterWorld, proxy: int = 0) -> GroupMarkers:
    """Return a proxy's way to groups' shards; a coordinator has the same."""
    process = world.proxies[proxy]
    return GroupMarkers(process.view, process.peers)


async def pend(world: ClusterWorld, group: str, offset: int, producer: int = 1) -> None:
    request = txn_request(group, [("orders", 0, offset)], producer=producer)
    response = await world.proxies[0].coordinator.txn_offset_commit(request, CLIENT)
    assert response.topics[0].partitions[0].error_code == NONE


async def test_a_marker_ends_the_transaction_at_each_shards_coordinator() -> None:
    async with cluster() as world:
        world.give(1, "b")
        world.tell()
        proxy = world.proxies[0]
        for shard in (0, 1):
            await pend(world, group_of(shard), 5)
            assert await proxy.fetch(group_of(shard)) == (0, -1)
        assert await markers(world)(marker_of(), (0, 1)) == {0: NONE, 1: NONE}
        assert [await proxy.fetch(group_of(shard)) for shard in (0, 1)] == [(0, 5)] * 2

        await pend(world, GROUP, 7)
        assert await markers(world).end(0, marker_of(commits=False)) is NONE
        assert await proxy.fetch(GROUP) == (0, 5)


async def test_only_the_latest_owner_takes_a_marker() -> None:
    """The shard moves from a to b while a, and the sender, still believe that it is a's."""
    async with cluster() as world:
        await pend(world, GROUP, 5)
        world.give(0, "b")
        b = world.coordinators["b"]
        world.tell(b.view, world.proxies[1].view)
        await b.coordinator.ready(GROUP)
        assert await markers(world).end(0, marker_of()) is not NONE, "the log has another owner"
        assert await markers(world, 1).end(0, marker_of()) is NONE
        assert await markers(world).end(0, marker_of()) is not NONE
        world.tell()
        assert await markers(world).end(0, marker_of()) is NONE, "repeated"
        assert await world.proxies[0].fetch(GROUP) == (0, 5)


async def test_a_coordinator_whose_view_is_behind_waits_for_the_news() -> None:
    async with cluster() as world:
        world.give(0, "b")
        world.tell(world.proxies[0].view)
        assert await markers(world).end(0, marker_of()) is ErrorCode.NOT_COORDINATOR
        ending = asyncio.create_task(markers(world).end(0, marker_of()))
        await asyncio.sleep(0.1)
        world.tell()
        assert await ending is NONE


async def test_a_shard_without_a_process_fails_for_now() -> None:
    async with cluster() as world:
        world.give(1, "nobody")
        del world.truth.shards[ShardId(GROUPS, 2)]
        world.give(3, "b")
        world.tell()
        world.network.kill("b")
        found = await markers(world)(marker_of(), range(SHARDS))
        assert found == {0: NONE, **dict.fromkeys((1, 2, 3), ErrorCode.NOT_COORDINATOR)}


async def test_no_shard_needs_no_request() -> None:
    assert await GroupMarkers(View("p"), cast(Any, None))(marker_of(), ()) == {}


class FakePeers:
    """Coordinators that respond with ``result``: the code of each shard, or an error."""

    def __init__(self, result: Any) -> None:
        self.result = result
        self.asked: list[EndGroupTransactionsRequest] = []

    async def ask(self, member: Any, request: Any, timeout_s: float) -> Any:
        self.asked.append(request)
        if isinstance(self.result, Exception):
            raise self.result
        return EndGroupTransactionsResponse(codes=tuple(self.result for _ in request.ends()))


def asking(result: Any, count: int = 1) -> tuple[GroupMarkers, FakePeers]:
    view, peers = View("p"), FakePeers(result)
    view.members["a"] = Member(incarnation="a", roles=frozenset())
    for number in range(count):
        view.shards[ShardId(GROUPS, number)] = ShardOwner("a", 3)
    return GroupMarkers(view, cast(Any, peers)), peers


@pytest.mark.parametrize(
    ("result", "code"),
    [
        (ErrorCode.TRANSACTION_COORDINATOR_FENCED, "TRANSACTION_COORDINATOR_FENCED"),
        (ErrorCode.INVALID_PRODUCER_EPOCH, "INVALID_PRODUCER_EPOCH"),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "COORDINATOR_LOAD_IN_PROGRESS"),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "NOT_COORDINATOR"),
        (ErrorCode.UNKNOWN_TOPIC_ID, "NOT_COORDINATOR"),
        (32_000, "UNKNOWN_SERVER_ERROR"),
        (PeerLost("broken", was_sent=True), "NOT_COORDINATOR"),
        (TimeoutError(), "REQUEST_TIMED_OUT"),
        (RequestError(ErrorCode.UNSUPPORTED_VERSION, "an earlier version"), "UNSUPPORTED_VERSION"),
    ],
)
async def test_a_shards_code_is_its_coordinators_but_its_word_that_a_topic_is_gone(result: Any, code: str) -> None:
    assert (await asking(result)[0].end(0, marker_of())).name == code


async def test_many_shards_of_a_process_take_several_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_markers, "MARKERS_MAX", 3)
    sent, peers = asking(NONE, 4)
    assert await sent(marker_of(), range(4)) == dict.fromkeys(range(4), NONE)
    assert [request.ends() for request in peers.asked] == [
        [(marker_of(), (number, 3)) for number in numbers] for numbers in ((0, 1, 2), (3,))
    ]
    assert MARKERS_MAX > 3


async def test_markers_of_one_turn_share_a_request() -> None:
    sent, peers = asking(NONE, 2)
    markers = [marker_of(producer) for producer in (1, 2)]
    found = await asyncio.gather(*(sent(marker, (0, 1)) for marker in markers))
    assert found == [{0: NONE, 1: NONE}] * 2
    assert [request.ends() for request in peers.asked] == [
        [(marker, (number, 3)) for marker in markers for number in (0, 1)]
    ]
    assert repr(sent) == "<GroupMarkers processes=0 waiting=0 requests=0>"


async def test_waiting_markers_are_bounded_and_end_with_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_markers, "WAITING_MAX", 1)
    sent, peers = asking(NONE, 2)
    assert await sent(marker_of(), (0, 1)) == {0: NONE, 1: ErrorCode.REQUEST_TIMED_OUT}
    await sent.close()
    assert await sent.end(0, marker_of()) is ErrorCode.NOT_COORDINATOR
    assert len(peers.asked) == 1

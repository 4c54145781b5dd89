"""Connections that misbehave: wrong responses, busy ones, ones that break at a bad moment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from bmq.broker.partition.owner import PartitionOwner
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.net.request import Buffer
from bmq.core.rpc.api_keys import InternalKey
from bmq.core.rpc.peers import ConnectionKind, PeerBusy
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.produce_client import PRODUCE_VERSION, decode_produce_response, encode_produce_request
from bmq.endpoint.partitions import AppendCallback
from bmq.proxy.routing.remote_tail import RemoteTail
from tests.unit.proxy.cluster import Connection, cluster, idempotent, plain


def answering(body: bytes) -> Callable[[int, int, Sequence[Buffer]], asyncio.Future[memoryview]]:
    """Return a peer's ``call`` that returns ``body`` at once."""

    def call(api_key: int, version: int, asked: Sequence[Buffer]) -> asyncio.Future[memoryview]:
        future: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        future.set_result(memoryview(body))
        return future

    return call


NO_TOPICS = b"\x01\0\0\0\0\0"


@pytest.mark.parametrize("body", [b"", b"garbage", NO_TOPICS])
async def test_what_is_no_answer_to_a_produce_ends_the_connection(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Respond with something else: the batches may have been accepted; with a producer id they are sent again."""

    async with cluster() as world:
        await world.send(plain())
        link = world.network.links["b1", ConnectionKind.PRODUCE]
        monkeypatch.setattr(link, "call", answering(body))
        unsure, kept = world.send(plain()), world.send(idempotent(0))
        assert (await unsure).error_code == ErrorCode.REQUEST_TIMED_OUT
        assert (await kept).error_code == ErrorCode.NONE
        assert not link.is_up
        assert world.network.links["b1", ConnectionKind.PRODUCE] is not link


@pytest.mark.parametrize("body", [b"", b"garbage", b"\0\0\0\0\0\x01\0\0\0\0\x01\0"])
async def test_what_is_no_answer_to_a_fetch_ends_the_connection(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last is a proper one, that the whole request failed."""

    async with cluster() as world:
        await world.fetch(world.want(0))
        link = world.network.links["b1", ConnectionKind.TAIL]
        monkeypatch.setattr(link, "call", answering(body))
        parked = asyncio.ensure_future(world.fetch(world.want(0), max_wait_s=30))
        await asyncio.sleep(2)
        assert not link.is_up
        await world.send(plain())
        assert sum(look.size for look in (await parked).results) > 0


async def test_a_busy_connection_is_no_broken_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Certainly nothing was sent: kept, in order, whether or not there is a producer id."""

    async with cluster() as world:
        await world.send(plain())
        link = world.network.links["b1", ConnectionKind.PRODUCE]
        real, refused = Connection.call, 0

        def call(api_key: int, version: int, body: Sequence[Buffer]) -> asyncio.Future[memoryview]:
            nonlocal refused
            if refused < 3:
                refused += 1
                future: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
                future.set_exception(PeerBusy("too much", was_sent=False))
                return future
            return real(link, api_key, version, body)

        monkeypatch.setattr(link, "call", call)
        sent = [world.send(plain()), world.send(idempotent(0)), world.send(plain())]
        found = [await each for each in sent]
        assert [(each.error_code, each.base_offset) for each in found] == [(0, 1), (0, 2), (0, 3)]
        assert refused == 3
        assert link.is_up


async def test_partitions_are_tried_again_until_their_owner_answers() -> None:
    """Less and less often, and others are followed meanwhile."""

    async with cluster() as world:
        world.broker("b1").assigned.withdraw(world.key(0))
        await world.fetch(world.want(0, 0), world.want(0, 1))
        await asyncio.sleep(20)
        assert world.owners.follow(world.key(0)) is None
        assert world.owners.follow(world.key(1)) is not None
        assert 15 <= world.network.asked[InternalKey.ASK] <= 30
        world.open(0, "b1")
        await asyncio.sleep(1.2)
        assert world.owners.follow(world.key(0)) is not None


async def test_a_broker_that_goes_takes_its_links_along() -> None:
    async with cluster() as world:
        await world.send(plain())
        await world.fetch(world.want(1))
        assert world.remote_owners.is_up("b1")
        world.kill("b1")
        assert not world.remote_owners.is_up("b1")
        world.bury("b1", "b2")
        await world.send(plain())
        await world.fetch(world.want(2))
        assert list(world.remote_owners._produce_links) == ["b2"]
        assert list(world.remote_owners._tail_links) == ["b2"]
        await asyncio.sleep(1)
        assert not world.remote_owners._closing


async def test_nothing_is_left_when_it_ends() -> None:
    """While produces are kept, fetches are parked and questions are under way."""

    async with cluster() as world:
        await world.send(plain())
        await world.fetch(world.want(1))
        world.broker("b1").stopped = []
        kept = [world.send(idempotent(number)) for number in range(3)]
        parked = asyncio.ensure_future(world.fetch(world.want(9), max_wait_s=30))
        await asyncio.sleep(0.1)
        world.network.cut("b1")
        await world.remote_owners.close()
        assert {(await each).error_code for each in kept} == {ErrorCode.REQUEST_TIMED_OUT}
        parked.cancel()
        ours = {"Link.", "RemoteOwners.", "TailLink.", "Tail."}
        left = [task for task in asyncio.all_tasks() if any(each in repr(task.get_coro()) for each in ours)]
        assert left == []
        assert world.network.links["b1", ConnectionKind.TAIL].requests[ApiKey.FETCH] > 0


def refusing(link: Connection, keys: set[int], refused: list[int], room: Callable[[], bool]) -> Callable[..., Any]:
    """Return a peer's ``call`` that is too busy for these APIs until there is ``room``."""
    real = Connection.call

    def call(api_key: int, version: int, body: Sequence[Buffer]) -> asyncio.Future[memoryview]:
        if api_key in keys and not room():
            refused.append(api_key)
            future: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
            future.set_exception(PeerBusy("too much", was_sent=False))
            return future
        return real(link, api_key, version, body)

    return call


async def test_nothing_overtakes_what_a_busy_connection_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make room again when the next batch is sent, before any process sees the refusal: an owner that does not know the
    producer would take that batch for its first."""

    async with cluster() as world:
        await world.send(plain())
        link = world.network.links["b1", ConnectionKind.PRODUCE]
        refused: list[int] = []
        sent = [world.send(idempotent(0))]

        def there_is_room() -> bool:
            if not refused:  # and another batch comes in the same turn, behind the refused one
                sent.append(world.send(idempotent(1)))
                return False
            return True

        monkeypatch.setattr(link, "call", refusing(link, {ApiKey.PRODUCE}, refused, there_is_room))
        await asyncio.sleep(0.001)
        found = [await each for each in sent]
        assert [(each.error_code, each.base_offset) for each in found] == [(0, 1), (0, 2)]
        assert refused == [ApiKey.PRODUCE]


async def test_a_tail_goes_on_after_its_connection_was_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse a tail's fetches before they are sent: the session begins again, and the connection stays."""

    async with cluster() as world:
        await world.send(plain())
        await world.fetch(world.want(1))
        link = world.network.links["b1", ConnectionKind.TAIL]
        refused: list[int] = []
        monkeypatch.setattr(link, "call", refusing(link, {ApiKey.FETCH}, refused, lambda: len(refused) >= 3))
        parked = asyncio.ensure_future(world.fetch(world.want(1), max_wait_s=30))
        await asyncio.sleep(2)
        assert len(refused) == 3
        await world.send(plain())
        assert sum(look.size for look in (await parked).results) > 0
        assert link.is_up


async def test_a_broker_that_never_speaks_our_protocol_is_connected_to_less_and_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with cluster() as world:
        await world.send(plain())
        made: list[Connection] = []
        real = Connection.call

        def call(self: Connection, key: int, version: int, body: Sequence[Buffer]) -> asyncio.Future[memoryview]:
            if self.kind is ConnectionKind.CONTROL:
                return real(self, key, version, body)
            made.append(self)
            return answering(b"garbage")(key, version, body)

        monkeypatch.setattr(Connection, "call", call)
        await world.fetch(world.want(1), max_wait_s=0)
        await asyncio.sleep(60)
        assert 10 <= len(set(made)) <= 25


async def test_a_partition_whose_fetches_fail_is_asked_for_less_and_less_often() -> None:
    """Fail fetches again and again, while the owner responds to other requests."""

    async with cluster() as world:
        await world.send(plain())
        await world.fetch(world.want(1))
        (link,) = world.remote_owners._tail_links.values()
        (tail,) = link.tails.values()
        asked = world.network.asked[InternalKey.ASK]
        for _ in range(10):
            await world.fetch(world.want(1), max_wait_s=5)  # until it is followed again
            link._refused(tail)
            assert not tail.is_open
        assert world.network.asked[InternalKey.ASK] - asked <= 10
        assert asyncio.get_running_loop().time() > 4
        await world.fetch(world.want(1), max_wait_s=5)
        link._refused(tail)
        assert tail.failures == 1, "it was followed for a while"


async def test_questions_that_never_began_are_not_waited_for() -> None:
    """Their owner goes in the very turn in which they were asked."""

    async with cluster() as world:
        for _ in range(3):
            await world.send(plain())
        await world.fetch(world.want(3))
        tail = world.remote_owners.follow(world.key())
        assert isinstance(tail, RemoteTail)
        (link,) = world.remote_owners._tail_links.values()
        assert not tail.has_seen_end
        tail._active_upto = -1
        asking = asyncio.ensure_future(tail.ask_active_segment())
        await asyncio.sleep(0)
        link.shut()
        with pytest.raises(RequestError) as error:
            await asking
        assert error.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert not tail._is_confirming


async def test_what_follows_a_refused_batch_in_the_same_request_is_refused_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse the first batch of a request: its mark that all before it have responses holds for it alone."""

    async with cluster() as world:
        await world.send(plain())
        real, refused = PartitionOwner.append, 0

        def append(self: PartitionOwner, data: memoryview, callback: AppendCallback, **options: Any) -> None:
            nonlocal refused
            refused += 1
            if refused == 1:
                callback.on_failed(RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "not yet"))
            else:
                real(self, data, callback, **options)

        monkeypatch.setattr(PartitionOwner, "append", append)
        parts = [(0, memoryview(idempotent(number))) for number in range(2)]
        topics = [(world.topic.topic_id, parts)]
        body = encode_produce_request(-1, 1000, topics, [(world.topic.topic_id, 0)])
        answer = await world.network.links["b1", ConnectionKind.PRODUCE].call(ApiKey.PRODUCE, PRODUCE_VERSION, body)
        ((first, second),) = [topic.partitions for topic in decode_produce_response(answer)]
        assert first.error_code == second.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert refused == 1

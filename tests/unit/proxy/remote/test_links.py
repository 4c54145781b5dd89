"""Connections that misbehave: what is no answer, what is busy, what breaks at a bad moment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from bmq.core.call import Buffer
from bmq.core.errors import ErrorCode
from bmq.core.rpc import Kind, PeerBusy
from bmq.core.wire.api import ApiKey
from bmq.core.wire.internal import InternalKey
from tests.simulation.loop import run
from tests.unit.proxy.remote.cluster import Cluster, Connection, cluster, idempotent, plain


def play(story: Callable[[Cluster], Awaitable[None]]) -> None:
    async def main() -> None:
        async with cluster() as world:
            await story(world)

    run(main())


def answering(body: bytes) -> Callable[[int, int, Sequence[Buffer]], asyncio.Future[memoryview]]:
    """A peer's ``call`` that gives ``body`` at once."""

    def call(api_key: int, version: int, asked: Sequence[Buffer]) -> asyncio.Future[memoryview]:
        future: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        future.set_result(memoryview(body))
        return future

    return call


NO_TOPICS = b"\x01\0\0\0\0\0"


@pytest.mark.parametrize("body", [b"", b"garbage", NO_TOPICS])
def test_what_is_no_answer_to_a_produce_ends_the_connection(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was sent may have been accepted: with a producer id it is sent again, over the next one."""

    async def story(world: Cluster) -> None:
        await world.send(plain())
        link = world.network.links["b1", Kind.PRODUCE]
        monkeypatch.setattr(link, "call", answering(body))
        unsure, kept = world.send(plain()), world.send(idempotent(0))
        assert (await unsure).error_code == ErrorCode.REQUEST_TIMED_OUT
        assert (await kept).error_code == ErrorCode.NONE
        assert not link.is_up
        assert world.network.links["b1", Kind.PRODUCE] is not link

    play(story)


@pytest.mark.parametrize("body", [b"", b"garbage", b"\0\0\0\0\0\x01\0\0\0\0\x01\0"])
def test_what_is_no_answer_to_a_fetch_ends_the_connection(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last is a proper one, that the whole request failed."""

    async def story(world: Cluster) -> None:
        await world.fetch(world.want(0))
        link = world.network.links["b1", Kind.TAIL]
        monkeypatch.setattr(link, "call", answering(body))
        parked = asyncio.ensure_future(world.fetch(world.want(0), max_wait_s=30))
        await asyncio.sleep(2)
        assert not link.is_up
        await world.send(plain())
        assert sum(look.size for look in (await parked).looks) > 0

    play(story)


def test_a_busy_connection_is_no_broken_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Certainly nothing was sent: kept, in order, whether or not there is a producer id."""

    async def story(world: Cluster) -> None:
        await world.send(plain())
        link = world.network.links["b1", Kind.PRODUCE]
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

    play(story)


def test_partitions_are_tried_again_until_their_owner_answers() -> None:
    """Less and less often, and others are followed meanwhile."""

    async def story(world: Cluster) -> None:
        world.network.brokers["b1"].assigned.withdraw(world.key(0))
        await world.fetch(world.want(0, 0), world.want(0, 1))
        await asyncio.sleep(20)
        assert world.owners.follow(world.key(0)) is None
        assert world.owners.follow(world.key(1)) is not None
        assert 15 <= world.network.asked[InternalKey.ASK] <= 30
        world.open(0, "b1")
        await asyncio.sleep(1.2)
        assert world.owners.follow(world.key(0)) is not None

    play(story)


def test_a_broker_that_goes_takes_its_links_along() -> None:
    async def story(world: Cluster) -> None:
        await world.send(plain())
        await world.fetch(world.want(1))
        assert world.remote.is_up("b1")
        world.kill("b1")
        assert not world.remote.is_up("b1")
        world.bury("b1", "b2")
        await world.send(plain())
        await world.fetch(world.want(2))
        assert list(world.remote._produce_links) == ["b2"]
        assert list(world.remote._tail_links) == ["b2"]
        await asyncio.sleep(1)
        assert not world.remote._closing

    play(story)


def test_nothing_is_left_when_it_ends() -> None:
    """While produces are kept, fetches are parked and questions are under way."""

    async def story(world: Cluster) -> None:
        await world.send(plain())
        await world.fetch(world.want(1))
        world.network.brokers["b1"].stopped = []
        kept = [world.send(idempotent(number)) for number in range(3)]
        parked = asyncio.ensure_future(world.fetch(world.want(9), max_wait_s=30))
        await asyncio.sleep(0.1)
        world.network.cut("b1")
        await world.remote.close()
        assert {(await each).error_code for each in kept} == {ErrorCode.REQUEST_TIMED_OUT}
        parked.cancel()
        ours = {"Link.", "RemoteOwners.", "TailLink.", "Tail."}
        left = [task for task in asyncio.all_tasks() if any(each in repr(task.get_coro()) for each in ours)]
        assert left == []
        assert world.network.links["b1", Kind.TAIL].requests[ApiKey.FETCH] > 0

    play(story)

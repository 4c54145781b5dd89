"""The keys of a principal in a process: when their number is known, and when it is proven."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bmq.coordinator.shard.owned_keys import OwnedKeys
from bmq.core.errors import ErrorCode, RequestError
from bmq.meta.shard_kinds import GROUPS, ShardId


class Loaded:
    """A loaded shard with so many keys of each principal, and what a question for its owner raises."""

    def __init__(self, keys: int, error: Exception | None = None) -> None:
        self.state: Any = self
        self.freshness: Any = self
        self.is_closed = False
        self.asked = 0
        self._keys = keys
        self._error = error

    def owned_by(self, principal: str) -> int:
        return self._keys

    async def prove_again(self) -> None:
        self.asked += 1
        if self._error is not None:
            raise self._error


class Coming:
    """A shard that is being loaded."""

    id = ShardId(GROUPS, 7)

    def __init__(self) -> None:
        self.ended: asyncio.Future[None] = asyncio.Future()

    def load(self) -> asyncio.Future[None] | None:
        return None if self.ended.done() else self.ended


WAIT_S = 5.0
LOST = RequestError(ErrorCode.NOT_COORDINATOR, "another process has it")


async def test_room_is_known_once_all_shards_are_loaded() -> None:
    coming = [Coming()]
    keys = OwnedKeys(lambda: [Loaded(1), Loaded(2)], lambda: coming, WAIT_S)
    assert not keys.has_room("User:alice", 3), "further keys change nothing"
    with pytest.raises(RequestError, match="shard 7 of __consumer_offsets is being loaded") as refused:
        keys.has_room("User:alice", 4)
    assert refused.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    coming.clear()
    assert keys.has_room("User:alice", 4)


class World:
    """Keys whose shards are coming until they ``end``."""

    def __init__(self, shards: int) -> None:
        self.coming = [Coming() for _ in range(shards)]
        self.keys = OwnedKeys(list, lambda: self.coming, WAIT_S)

    def end(self, shard: Coming) -> None:
        self.coming.remove(shard)
        shard.ended.set_result(None)

    async def waiting(self) -> asyncio.Task[float]:
        """Return the task of a request that waits by now; its result is how long it waited."""

        async def wait() -> float:
            began = asyncio.get_running_loop().time()
            await self.keys.wait_known()
            return asyncio.get_running_loop().time() - began

        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        return task


async def test_a_creation_waits_for_all_shards_that_load() -> None:
    world = World(2)
    first, second = world.coming
    waiting = await world.waiting()
    world.end(first)
    await asyncio.sleep(0.1)
    assert not waiting.done()
    later = await world.waiting()
    world.end(second)
    assert (await waiting, await later) == (0.1, 0.0)


async def test_each_request_waits_for_the_time_of_a_request() -> None:
    world = World(1)
    waiting = await world.waiting()
    await asyncio.sleep(1)
    later = await world.waiting()
    assert (await waiting, await later) == (WAIT_S, WAIT_S)
    again = await world.waiting()
    world.end(*world.coming)
    assert await again == 0, "requests that have given up are no hindrance"
    assert await (await world.waiting()) == 0


async def test_shards_that_the_view_shows_meanwhile_are_waited_for() -> None:
    world = World(1)
    (first,), later = world.coming, Coming()
    waiting = await world.waiting()
    world.coming.append(later)
    world.end(first)
    await asyncio.sleep(1)
    assert not waiting.done()
    world.end(later)
    assert await waiting == 1


async def test_a_shard_that_is_no_longer_coming_is_not_waited_for() -> None:
    """Leave out a shard whose load has failed for longer than requests wait, though the load goes on."""
    world = World(2)
    broken, other = world.coming
    waiting = await world.waiting()
    world.coming.remove(broken)
    await asyncio.sleep(1)
    world.end(other)
    assert await waiting == 1
    assert await (await world.waiting()) == 0
    broken.ended.set_result(None)


async def test_a_shard_without_a_load_is_not_waited_for() -> None:
    """Give the request its error at once: a bug has ended the load."""
    world = World(1)
    world.coming[0].ended.set_result(None)
    assert await (await world.waiting()) == 0


async def test_a_cancelled_request_leaves_the_others_waiting() -> None:
    world = World(1)
    cancelled, waiting = await world.waiting(), await world.waiting()
    cancelled.cancel()
    await asyncio.sleep(1)
    assert cancelled.cancelled()
    assert not waiting.done()
    world.end(*world.coming)
    assert await waiting == 1


async def test_each_load_is_followed_once() -> None:
    world = World(30)
    waiting = [await world.waiting() for _ in range(20)]
    assert sum(len(each.ended._callbacks or ()) for each in world.coming) == 30
    for shard in list(world.coming):
        world.end(shard)
    assert await asyncio.gather(*waiting) == [0] * 20
    assert not world.keys._followed


@pytest.mark.parametrize("bound", [0, 2, 3])
async def test_shards_with_fewer_keys_than_the_bound_prove_nothing(bound: int) -> None:
    proven, lost, empty = Loaded(2), Loaded(1, LOST), Loaded(0)
    keys = OwnedKeys(lambda: [proven, lost, empty], list, WAIT_S)
    if bound <= 2:
        await keys.prove("User:alice", bound)
    else:
        with pytest.raises(RequestError, match="shards with 2 keys") as refused:
            await keys.prove("User:alice", bound)
        assert refused.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert (proven.asked, lost.asked, empty.asked) == (1, 1, 0)


async def test_keys_of_a_shard_that_is_closed_meanwhile_do_not_count() -> None:
    closed = Loaded(2)
    closed.is_closed = True
    with pytest.raises(RequestError, match="shards with 0 keys"):
        await OwnedKeys(lambda: [closed], list, WAIT_S).prove("User:alice", 1)


async def test_an_unexpected_error_of_a_proof_is_raised() -> None:
    keys = OwnedKeys(lambda: [Loaded(2), Loaded(2, ValueError("a bug"))], list, WAIT_S)
    with pytest.raises(ValueError, match="a bug"):
        await keys.prove("User:alice", 1)

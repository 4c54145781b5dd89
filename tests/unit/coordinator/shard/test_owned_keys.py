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
        self.loaded = asyncio.Event()

    async def wait_loaded(self) -> None:
        await self.loaded.wait()


LOST = RequestError(ErrorCode.NOT_COORDINATOR, "another process has it")


def test_room_is_known_once_all_shards_are_loaded() -> None:
    coming = [Coming()]
    keys = OwnedKeys(lambda: [Loaded(1), Loaded(2)], lambda: coming)
    assert not keys.has_room("User:alice", 3), "further keys change nothing"
    with pytest.raises(RequestError, match="shard 7 of __consumer_offsets is being loaded") as refused:
        keys.has_room("User:alice", 4)
    assert refused.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    coming.clear()
    assert keys.has_room("User:alice", 4)


async def test_a_creation_waits_for_all_shards_that_load() -> None:
    coming = [Coming(), Coming()]
    waiting = asyncio.create_task(OwnedKeys(list, lambda: coming).wait_known())
    coming[0].loaded.set()
    await asyncio.sleep(0.1)
    assert not waiting.done()
    coming[1].loaded.set()
    await waiting


@pytest.mark.parametrize("bound", [0, 2, 3])
async def test_shards_with_fewer_keys_than_the_bound_prove_nothing(bound: int) -> None:
    proven, lost, empty = Loaded(2), Loaded(1, LOST), Loaded(0)
    keys = OwnedKeys(lambda: [proven, lost, empty], list)
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
        await OwnedKeys(lambda: [closed], list).prove("User:alice", 1)


async def test_an_unexpected_error_of_a_proof_is_raised() -> None:
    with pytest.raises(ValueError, match="a bug"):
        await OwnedKeys(lambda: [Loaded(2), Loaded(2, ValueError("a bug"))], list).prove("User:alice", 1)

"""Lines of produces that wait for their partition: order, errors, what is passed over."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import cast

import pytest

from bmq.core.config import NodeConfig
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.model import PartitionKey
from bmq.endpoint.partitions import Owner, PartitionView
from bmq.endpoint.produce.queue import ProduceQueue

KEY = PartitionKey(uuid.UUID(int=1), 0)
CONFIG = NodeConfig(held_produce_ms=1000)


class FakeOwner:
    """Room for ``room_for`` parts; more when it is given."""

    def __init__(self, room_for: int = 1 << 30) -> None:
        self.room_for = room_for
        self.taken: list[int] = []
        self._given = asyncio.Event()

    @property
    def has_room(self) -> bool:
        return self.room_for > 0

    async def room(self) -> None:
        while not self.has_room:
            self._given.clear()
            await self._given.wait()

    def give(self, count: int) -> None:
        self.room_for += count
        self._given.set()


class FakeOwners:
    def __init__(self) -> None:
        self.owner: FakeOwner | None = None
        self.error: RequestError | None = None
        self._opened = asyncio.Event()

    def get(self, key: PartitionKey) -> Owner | None:
        return cast(Owner, self.owner) if self.owner else None

    def follow(self, key: PartitionKey) -> PartitionView | None:
        raise NotImplementedError

    async def wait(self, key: PartitionKey, timeout_s: float) -> Owner:
        if self.error is not None:
            raise self.error
        try:
            async with asyncio.timeout(timeout_s):
                await self._opened.wait()
        except TimeoutError:
            raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "late") from None
        return cast(Owner, self.owner)

    def open(self, owner: FakeOwner) -> None:
        self.owner = owner
        self._opened.set()


class Part:
    def __init__(self, number: int, size: int = 10) -> None:
        self.number = number
        self.size = size
        self.is_over = False
        self.on_over: Callable[[], None] = lambda: None
        self.error: RequestError | None = None
        self.ended_at = -1.0
        self.held_until = asyncio.get_running_loop().time() + CONFIG.held_produce_ms / 1000

    def append(self, owner: Owner) -> None:
        fake = cast(FakeOwner, owner)
        fake.room_for -= 1
        fake.taken.append(self.number)
        self._end()

    def fail(self, error: RequestError) -> None:
        self.error = error
        self._end()

    def _end(self) -> None:
        assert not self.is_over
        self.is_over = True
        self.ended_at = asyncio.get_running_loop().time()

    def leave(self) -> None:
        """Leave the queue, as a batch does that timed out or whose client has gone."""
        self.is_over = True
        self.on_over()


async def test_a_queue_is_served_in_order_in_one_step() -> None:
    """Nothing runs between the first and the last of a queue for which there is room: no batch can overtake."""

    holding, owners, owner = ProduceQueue(), FakeOwners(), FakeOwner()
    for number in range(10):
        holding.hold(KEY, Part(number), owners, CONFIG)
    assert holding.is_held(KEY)
    assert holding.held_bytes == 100
    steps: list[int] = []
    asyncio.get_running_loop().call_later(0.1, owners.open, owner)
    while holding.is_held(KEY):
        await asyncio.sleep(0.01)
        steps.append(len(owner.taken))
    assert owner.taken == list(range(10))
    assert set(steps) == {0, 10}
    assert holding.held_bytes == 0


async def test_a_partitions_queue_is_gone_with_its_last_batch() -> None:
    """A batch that comes in the turn after the queue's last one left goes straight to the owner, not into a queue that
    is served no longer."""

    holding, owners = ProduceQueue(), FakeOwners()
    held: list[bool] = []

    class Last(Part):
        def append(self, owner: Owner) -> None:
            super().append(owner)
            asyncio.get_running_loop().call_soon(lambda: held.append(holding.is_held(KEY)))

    holding.hold(KEY, Last(0), owners, CONFIG)
    owners.open(FakeOwner())
    await asyncio.sleep(0.01)
    assert held == [False]


async def test_without_room_batches_are_served_one_after_another() -> None:
    holding, owners, owner = ProduceQueue(), FakeOwners(), FakeOwner(room_for=0)
    owners.open(owner)
    for number in range(6):
        holding.hold(KEY, Part(number), owners, CONFIG)
    for count in (1, 2, 3):
        await asyncio.sleep(10)
        owner.give(count)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert owner.taken == list(range(6))
    assert len(holding) == 0


async def test_rule_9_each_batch_is_held_for_its_time_from_its_arrival() -> None:
    holding, owners = ProduceQueue(), FakeOwners()
    early = Part(0)
    holding.hold(KEY, early, owners, CONFIG)
    await asyncio.sleep(0.7)
    late = Part(1)
    holding.hold(KEY, late, owners, CONFIG)
    await asyncio.sleep(5)
    assert (early.ended_at, late.ended_at) == (1.0, 1.7)
    for part in (early, late):
        assert part.error is not None
        assert part.error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_an_error_of_the_search_for_an_owner_fails_all_waiting_batches() -> None:
    """Fail the wait for an owner, as for an OFFLINE partition: each held batch gets the error."""

    holding, owners = ProduceQueue(), FakeOwners()
    owners.error = RequestError(ErrorCode.KAFKA_STORAGE_ERROR, "offline")
    parts = [Part(number) for number in range(3)]
    for part in parts:
        holding.hold(KEY, part, owners, CONFIG)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert [part.error for part in parts] == [owners.error] * 3
    assert [part.ended_at for part in parts] == [0.0] * 3


async def test_a_batch_that_is_over_is_skipped() -> None:
    holding, owners, owner = ProduceQueue(), FakeOwners(), FakeOwner()
    parts = [Part(number) for number in range(5)]
    for part in parts:
        holding.hold(KEY, part, owners, CONFIG)
    for number in (0, 2, 4):
        parts[number].leave()
    owners.open(owner)
    await asyncio.sleep(0.01)
    assert owner.taken == [1, 3]
    assert (len(holding), holding.held_bytes) == (0, 0)


@pytest.mark.leaves_tasks  # a queue whose owner never has room
async def test_the_bytes_of_a_batch_that_is_over_are_returned_at_once() -> None:
    """An owner without room keeps its line waiting; what timed out there must not refuse other partitions' produces."""

    holding, owners = ProduceQueue(), FakeOwners()
    config = NodeConfig(queued_max_request_bytes=400, socket_request_max_bytes=400)
    owners.open(FakeOwner(room_for=0))
    for _ in range(20):
        retried = [Part(number, size=50) for number in range(5)]
        for part in retried:
            holding.hold(KEY, part, owners, config)
        await asyncio.sleep(0.1)
        for part in retried:
            part.leave()
        assert holding.held_bytes == 0
    other = PartitionKey(KEY.topic_id, 1)
    moving = FakeOwners()
    part = Part(0, size=50)
    holding.hold(other, part, moving, config)
    assert part.error is None, "held, as rule 9 has it"
    moving.open(FakeOwner())
    await asyncio.sleep(0.1)
    assert part.is_over
    assert part.error is None


async def test_a_batch_that_comes_when_all_others_have_left_is_held_for_its_time() -> None:
    holding, owners = ProduceQueue(), FakeOwners()
    early = Part(0)
    holding.hold(KEY, early, owners, CONFIG)
    await asyncio.sleep(0.5)
    early.leave()
    late = Part(1)
    holding.hold(KEY, late, owners, CONFIG)
    await asyncio.sleep(0.7)  # the time of the first is up
    assert not late.is_over
    await asyncio.sleep(1)
    assert late.error is not None
    assert late.ended_at == 1.5
    assert len(holding) == 0


@pytest.mark.leaves_tasks  # a queue whose owner never has room
async def test_full_buffers_do_not_refuse_a_batch() -> None:
    """The bound on what waits for moving partitions is not for those that are here and slow."""

    holding, owners = ProduceQueue(), FakeOwners()
    config = NodeConfig(queued_max_request_bytes=400, socket_request_max_bytes=400)
    parts = [Part(number, size=60) for number in range(4)]
    for part in parts[:3]:
        holding.hold(KEY, part, owners, config)
    assert [part.error is None for part in parts[:3]] == [True, False, False]
    owners.open(FakeOwner(room_for=0))
    holding.hold(KEY, parts[3], owners, config)
    assert parts[3].error is None


async def test_a_batch_that_is_given_back_goes_to_the_front() -> None:
    """Newest first, as owners give it back; the parts that came meanwhile stay behind it."""

    holding, owners, owner = ProduceQueue(), FakeOwners(), FakeOwner()
    for number in (3, 4):
        holding.hold(KEY, Part(number), owners, CONFIG)
    await asyncio.sleep(0.1)
    for number in (2, 1, 0):
        holding.hold_first(KEY, Part(number), owners)
    holding.hold(KEY, Part(5), owners, CONFIG)
    assert (holding.parts, holding.held_bytes) == (6, 60)
    owners.open(owner)
    await asyncio.sleep(0.01)
    assert owner.taken == list(range(6))
    assert (len(holding), holding.held_bytes) == (0, 0)


async def test_rule_9_a_batch_that_is_given_back_keeps_its_time_limit() -> None:
    """The queue waits for an owner until the time of the part that was first before."""

    holding, owners = ProduceQueue(), FakeOwners()
    early = Part(0)
    await asyncio.sleep(0.7)
    late = Part(1)
    holding.hold(KEY, late, owners, CONFIG)
    await asyncio.sleep(0.1)
    holding.hold_first(KEY, early, owners)
    await asyncio.sleep(5)
    assert (early.ended_at, late.ended_at) == (1.0, 1.7)
    assert len(holding) == 0


async def test_a_batch_given_back_while_the_queue_is_served_is_next() -> None:
    holding, owners, owner = ProduceQueue(), FakeOwners(), FakeOwner()

    class Returned(Part):
        is_new = True

        def append(self, owner: Owner) -> None:
            if not self.is_new:
                super().append(owner)
                return
            self.is_new = False
            holding.hold_first(KEY, self, owners)

    holding.hold(KEY, Returned(0), owners, CONFIG)
    holding.hold(KEY, Part(1), owners, CONFIG)
    owners.open(owner)
    await asyncio.sleep(0.01)
    assert owner.taken == [0, 1]
    assert (len(holding), holding.held_bytes) == (0, 0)
    holding.hold(KEY, Part(2), owners, CONFIG)
    await asyncio.sleep(0.01)
    assert owner.taken == [0, 1, 2]

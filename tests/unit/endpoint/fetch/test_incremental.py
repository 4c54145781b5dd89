"""Fetches of a session: only news is returned, only what has changed is checked, and no partition starves."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from bmq.core.errors import ErrorCode
from bmq.endpoint.fetch.fetch_time import OWNER_PATIENCE_S
from bmq.endpoint.fetch.purgatory import SessionPartition
from bmq.endpoint.fetch.result import FetchResult
from tests.harness.seeds import seeds
from tests.harness.waiting import now
from tests.unit.endpoint.serving import World, errors, offsets, quiesce, release, serving, want

pytestmark = pytest.mark.slow


class Client:
    """A consumer with a session, as Kafka's FetchSessionHandler does it."""

    def __init__(self, world: World, partitions: Iterable[int], **options: Any) -> None:
        self.world = world
        self.options = options
        self.positions = dict.fromkeys(partitions, 0)
        self.session_id, self.epoch = 0, 0
        self.got: dict[int, list[int]] = {partition: [] for partition in self.positions}
        self.moved = list(self.positions)

    async def poll(self, **options: Any) -> FetchResult:
        """Fetch once, release the response as after it was sent, and move the positions on."""
        listed = [self.wanted(partition) for partition in self.moved]
        session = (self.session_id, self.epoch)
        fetched = await self.world.fetch(listed, session=session, **{**self.options, **options})
        assert fetched.error == ErrorCode.NONE
        self.session_id, self.epoch = fetched.session_id, self.epoch + 1
        self.moved = []
        for (_, partition), bases in offsets(fetched).items():
            if bases:
                self.got[partition] += bases
                self.positions[partition] = bases[-1] + 1
                self.moved.append(partition)
        release(fetched)
        return fetched

    def wanted(self, partition: int) -> SessionPartition:
        return want("t", partition, self.positions[partition])


# ------------------------------------------------------------------------------------------------------- what is told


async def test_the_first_answer_tells_of_all_and_later_ones_of_news() -> None:
    async with serving(3, has_sessions=True) as world:
        client = Client(world, range(3))
        assert sorted(offsets(await client.poll())) == [("t", 0), ("t", 1), ("t", 2)]
        assert client.session_id != 0
        assert len(world.fetch_service.sessions) == 1
        assert offsets(await client.poll()) == {}
        world.flush("t", 1)
        assert offsets(await client.poll()) == {("t", 1): [0]}
        assert offsets(await client.poll()) == {}
        owner = world.owner("t", 1)
        owner.log_start = 1
        world.fetch_service.context.log_start_moved(owner.key, 1)
        (look,) = (await client.poll()).results
        assert (look.wanted.partition, look.marks, look.size) == (1, (1, 1, 1), 0)
        assert offsets(await client.poll()) == {}


async def test_news_without_records_do_not_end_the_wait() -> None:
    async with serving(3, has_sessions=True) as world:
        client = Client(world, range(3))
        await client.poll(max_wait_s=0)
        parked = asyncio.create_task(client.poll(max_wait_s=100))
        await asyncio.sleep(1)
        world.fetch_service.context.log_start_moved(world.key("t"), 0)
        world.owner("t", 1).stable = 0
        world.fetch_service.context.log_start_moved(world.key("t", 1), 0)
        await asyncio.sleep(1)
        assert not parked.done()
        world.flush("t", 2)
        assert offsets(await parked) == {("t", 2): [0]}


async def test_records_that_the_client_does_not_take_are_given_again() -> None:
    """Poll again without moving the position, as a client may: the same records come, though nothing new was flushed
    there."""

    async with serving(3, has_sessions=True) as world:
        client = Client(world, range(3))
        await client.poll(max_wait_s=0)
        world.flush("t", 1)
        for _ in range(3):
            fetched = await client.poll()
            client.moved = []
            assert offsets(fetched) == {("t", 1): [0]}


async def test_a_partition_without_an_owner_is_reported_when_the_time_is_up() -> None:
    async with serving(3, has_sessions=True) as world:
        client = Client(world, range(2))
        await client.poll(max_wait_s=0)
        world.close("t", 1)
        world.flush("t", 0)
        assert errors(await client.poll()) == {}
        assert errors(await client.poll(max_wait_s=0)) == {("t", 1): "NOT_LEADER_OR_FOLLOWER"}


async def test_a_session_that_wants_no_wait_and_gets_other_records_is_not_told_of_a_move() -> None:
    async with serving(3, has_sessions=True) as world:
        client = Client(world, range(2))
        await client.poll(max_wait_s=0)
        world.flush("t", 0)
        world.close("t", 1)
        fetched = await client.poll(max_wait_s=0)
        assert (errors(fetched), offsets(fetched)) == ({}, {("t", 0): [0]})
        world.reopen("t", 1)
        world.flush("t", 1)
        assert offsets(await client.poll()) == {("t", 1): [0]}


async def test_a_partition_that_moved_when_its_session_began_is_read_once_it_is_open() -> None:
    async with serving(3, has_sessions=True) as world:
        world.close("t", 1)
        world.flush("t", 0)
        client = Client(world, range(2))
        fetched = await client.poll(max_wait_s=0)
        assert (errors(fetched), offsets(fetched)) == ({}, {("t", 0): [0], ("t", 1): []})
        parked = asyncio.create_task(client.poll(max_wait_s=100))
        await asyncio.sleep(0.1)
        world.reopen("t", 1)
        world.flush("t", 1)
        assert offsets(await parked) == {("t", 1): [0]}


async def test_a_session_that_gets_other_records_is_not_told_of_a_move() -> None:
    """Neither while it waits for more of them, nor when its time is up."""

    async with serving(3, has_sessions=True) as world:
        client = Client(world, range(2))
        await client.poll(max_wait_s=0)
        poll = asyncio.create_task(client.poll(max_wait_s=0.5, min_bytes=1 << 20))
        await asyncio.sleep(0.4)
        world.flush("t", 0)
        world.close("t", 1)
        fetched = await poll
        assert now() == pytest.approx(0.5)
        assert (errors(fetched), offsets(fetched)) == ({}, {("t", 0): [0]})
        world.reopen("t", 1)
        world.flush("t", 1)
        assert offsets(await client.poll()) == {("t", 1): [0]}


async def test_a_fetch_of_no_bytes_still_gets_one_batch() -> None:
    async with serving(3, has_sessions=True) as world:
        client = Client(world, range(2), max_bytes=0)
        world.flush("t", 0)
        world.flush("t", 1)
        for _ in range(2):
            await client.poll()
        assert client.got == {0: [0], 1: [0]}


async def test_a_topic_recreated_between_two_polls_is_read_from_its_new_log() -> None:
    async with serving(3, has_sessions=True) as world:
        world.topic("u", number=40)
        first = await world.fetch([want("u")], session=(0, 0), max_wait_s=0)
        world.topic("u", number=41)
        await world.fetch(session=(first.session_id, 1), max_wait_s=0)
        parked = asyncio.create_task(world.fetch(session=(first.session_id, 2), max_wait_s=100))
        await quiesce()
        world.flush("u")
        assert offsets(await parked) == {("u", 0): [0]}
        assert now() == 0
        release(await parked)


async def test_an_error_is_reported_until_it_is_gone_and_then_the_watermarks_again() -> None:
    async with serving(3, has_sessions=True) as world:
        client = Client(world, range(2))
        await client.poll(max_wait_s=0)
        world.close("t", 1)
        for _ in range(2):
            assert errors(await client.poll()) == {("t", 1): "NOT_LEADER_OR_FOLLOWER"}
        assert now() == pytest.approx(2 * OWNER_PATIENCE_S)
        world.open("t", 1)
        (look,) = (await client.poll()).results
        assert (look.wanted.partition, look.error, look.marks) == (1, ErrorCode.NONE, (0, 0, 0))
        client.positions[0] = -1
        client.moved = [0]
        for _ in range(2):
            at = now()
            assert errors(await client.poll()) == {("t", 0): "OFFSET_OUT_OF_RANGE"}
            assert now() == at


async def test_a_topic_that_goes_and_comes_again() -> None:
    async with serving(3, has_sessions=True) as world:
        world.topic("u", number=40)
        listed = [want("t"), want("u")]
        first = await world.fetch(listed, session=(0, 0), max_wait_s=0)
        parked = asyncio.create_task(world.fetch(session=(first.session_id, 1), max_wait_s=100))
        await quiesce()
        world.catalog.put("u", None)
        assert errors(await parked) == {("u", 0): "UNKNOWN_TOPIC_OR_PARTITION"}
        assert now() == 0
        again = await world.fetch(session=(first.session_id, 2))
        assert errors(again) == {("u", 0): "UNKNOWN_TOPIC_OR_PARTITION"}
        assert now() == pytest.approx(0.5)  # the other partition is waited for, as in Kafka
        world.topic("u", number=41)
        world.flush("u")
        found = await world.fetch(session=(first.session_id, 3))
        assert offsets(found) == {("u", 0): [0]}
        release(found)


async def test_a_session_of_unknown_topics_only_is_answered_at_once() -> None:
    async with serving(3, has_sessions=True) as world:
        first = await world.fetch([want("x"), want("y")], session=(0, 0))
        again = await world.fetch(session=(first.session_id, 1))
        for fetched in (first, again):
            assert sorted(errors(fetched)) == [("x", 0), ("y", 0)]
        assert now() == 0


async def test_session_errors_are_answered_without_partitions() -> None:
    async with serving(3, has_sessions=True) as world:
        fetched = await world.fetch([want("t")], session=(5, 3))
        assert (fetched.error, fetched.session_id, fetched.results) == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0, ())


# ------------------------------------------------------------------------------------------------ ends and overtaking


async def test_a_later_request_of_the_session_overtakes_a_parked_one() -> None:
    async with serving(3, has_sessions=True) as world:
        first = await world.fetch([want("t")], session=(0, 0), max_wait_s=0)
        parked = asyncio.create_task(world.fetch(session=(first.session_id, 1), max_wait_s=100))
        await quiesce()
        later = asyncio.create_task(world.fetch(session=(first.session_id, 2), max_wait_s=100))
        overtaken = await parked
        assert (overtaken.error, overtaken.results) == (ErrorCode.INVALID_FETCH_SESSION_EPOCH, ())
        assert overtaken.session_id == first.session_id
        await quiesce()
        world.flush("t")
        assert offsets(await later) == {("t", 0): [0]}
        assert now() == 0
        release(await later)


async def test_an_event_after_a_request_was_overtaken_is_not_lost_to_the_later_one() -> None:
    """The earlier request wakes first: it must not check the partition, whose deletion ends the later one's wait."""
    async with serving(1, has_sessions=True) as world:
        world.topic("u")
        first = await world.fetch([want("t"), want("u")], session=(0, 0), max_wait_s=0)
        earlier = asyncio.create_task(world.fetch(session=(first.session_id, 1), max_wait_s=60))
        await quiesce()
        later = asyncio.create_task(world.fetch(session=(first.session_id, 2), max_wait_s=60))
        await asyncio.sleep(0)
        assert not earlier.done()
        world.catalog.put("u", None)
        began = now()
        assert (await earlier).error == ErrorCode.INVALID_FETCH_SESSION_EPOCH
        assert errors(await later) == {("u", 0): "UNKNOWN_TOPIC_OR_PARTITION"}
        assert now() - began < 1


async def test_a_parked_fetch_whose_session_is_closed_is_answered_and_followed_no_more() -> None:
    async with serving(3, has_sessions=True) as world:
        first = await world.fetch([want("t"), want("t", 1)], session=(0, 0), max_wait_s=0)
        assert len(world.fetch_service.poll) == 2
        parked = asyncio.create_task(world.fetch(session=(first.session_id, 1), max_wait_s=100))
        await quiesce()
        await world.fetch([want("t")], session=(first.session_id, -1), max_wait_s=0)
        assert (await parked).error == ErrorCode.NONE
        assert now() == 0
        assert (len(world.fetch_service.poll), len(world.fetch_service.sessions)) == (0, 0)


async def test_a_session_closed_while_its_fetch_reads_storage_is_answered_after_the_read() -> None:
    async with serving(3, has_sessions=True) as world:
        first = await world.fetch([want("t")], session=(0, 0), max_wait_s=0)
        await world.store("t", count=3)
        world.owner("t").stable = 2  # inside the batch: storage has nothing to give
        world.fetch_service.context.changed(world.key("t"))
        world.fs.gate.clear()
        reading = asyncio.create_task(world.fetch(session=(first.session_id, 1), committed=True, max_wait_s=100))
        await quiesce()
        assert world.fs.running == 1
        await world.fetch([], session=(first.session_id, -1))
        world.fs.gate.set()
        assert (await reading).error == ErrorCode.NONE
        assert now() == 0


async def test_a_session_whose_first_answer_never_went_out_is_ended() -> None:
    async with serving(3, has_sessions=True) as world:
        parked = asyncio.create_task(world.fetch([want("t")], session=(0, 0), max_wait_s=100))
        await quiesce()
        assert len(world.fetch_service.sessions) == 1
        parked.cancel()
        await asyncio.gather(parked, return_exceptions=True)
        assert (len(world.fetch_service.poll), len(world.fetch_service.sessions)) == (0, 0)


async def test_an_established_session_survives_a_client_that_goes() -> None:
    async with serving(3, has_sessions=True) as world:
        client = Client(world, range(2))
        await client.poll(max_wait_s=0)
        parked = asyncio.create_task(world.fetch(session=(client.session_id, 1), max_wait_s=100))
        await quiesce()
        parked.cancel()
        await asyncio.gather(parked, return_exceptions=True)
        client.epoch = 2
        world.flush("t")
        assert offsets(await client.poll()) == {("t", 0): [0]}


async def test_forgotten_partitions_are_followed_no_more() -> None:
    async with serving(3, has_sessions=True) as world:
        client = Client(world, range(3))
        await client.poll(max_wait_s=0)
        await client.poll(max_wait_s=0, forgotten=[("t", 0), ("t", 2)])
        assert len(world.fetch_service.poll) == 1
        world.flush("t", 0)
        assert offsets(await client.poll()) == {}
        assert offsets(await client.poll(forgotten=[("t", 1)])) == {}
        assert (len(world.fetch_service.poll), len(world.fetch_service.sessions), client.session_id) == (0, 0, 0)


# -------------------------------------------------------------------------------------------------- cost and fairness


async def test_a_poll_of_ten_thousand_partitions_looks_at_the_three_that_have_changed() -> None:
    async with serving(10_000, has_sessions=True) as world:
        client = Client(world, range(10_000))
        await client.poll(max_wait_s=0)
        asked = world.owners.asked
        asked.clear()
        await client.poll(max_wait_s=0)
        assert asked == []
        for partition in (17, 4_000, 9_999):
            world.flush("t", partition)
        assert len(offsets(await client.poll(max_wait_s=0))) == 3
        assert len(asked) == 3
        await client.poll(max_wait_s=0)  # the three were listed: their positions have moved
        assert len(asked) == 6
        parked = asyncio.create_task(client.poll(max_wait_s=100))
        await quiesce()
        world.flush("t", 5)
        await parked
        assert len(asked) <= 8


async def test_ten_thousand_owners_that_come_one_by_one_cost_one_look_each() -> None:
    async with serving(1_000, has_sessions=True) as world:
        client = Client(world, range(1_000))
        for partition in range(1_000):
            world.close("t", partition)
        await client.poll(max_wait_s=0)
        parked = asyncio.create_task(client.poll(max_wait_s=100))
        await quiesce()
        world.owners.asked.clear()
        for partition in range(1_000):
            world.open("t", partition)
            await quiesce()
        world.flush("t", 3)
        assert len((await parked).results) == 1_000
        assert len(world.owners.asked) < 2_100


async def test_partitions_take_turns_when_an_answer_cannot_hold_all() -> None:
    async with serving(10, has_sessions=True) as world:
        for _ in range(20):
            for partition in range(10):
                size = world.flush("t", partition)
        client = Client(world, range(10), max_bytes=3 * size)
        for _ in range(20):
            world.owners.asked.clear()
            before = {partition: len(bases) for partition, bases in client.got.items()}
            await client.poll()
            served = [len(bases) - before[partition] for partition, bases in client.got.items()]
            assert sum(served) == 3
            assert client.epoch == 1 or len(world.owners.asked) <= 3  # and not all that have something
        counts = [len(bases) for bases in client.got.values()]
        assert sum(counts) == 60
        assert max(counts) - min(counts) <= 3


async def test_lagging_partitions_are_not_starved_by_busy_ones() -> None:
    """Inkless #750."""

    async with serving(10, has_sessions=True) as world:
        await world.store("t", 9, batches=40)
        client = Client(world, range(10))
        for _ in range(60):
            for partition in range(9):
                for _ in range(3):
                    size = world.flush("t", partition)
            await client.poll(max_bytes=5 * size)
        assert len(client.got[9]) >= 25  # its share is a tenth of 300


# ------------------------------------------------------------------------------------------------------------ all of it


@pytest.mark.parametrize("seed", seeds(12, 100))
async def test_whatever_happens_every_record_comes_once_and_in_order(seed: int) -> None:
    """Random flushes to tail or storage, owners that go and come, log starts that move, clients that poll."""
    random_ = random.Random(seed)
    partitions = 4

    async with serving(partitions, has_sessions=True, block_bytes=512) as world:
        clients = [Client(world, range(partitions), min_bytes=random_.choice([1, 500, 5_000]),
                          max_bytes=random_.choice([1, 800, 1 << 20])) for _ in range(3)]  # fmt: skip
        polling = [asyncio.create_task(poll_for_ever(client)) for client in clients]
        for _ in range(150):
            await act(world, random_.randrange(partitions), random_)
            await asyncio.sleep(random_.choice([0, 0, 0.01, 0.3]))
        for partition in range(partitions):
            if world.key("t", partition) not in world.owners.by_key:
                world.reopen("t", partition)
        await asyncio.sleep(300)
        for task in polling:
            task.cancel()
        ended = await asyncio.gather(*polling, return_exceptions=True)
        assert all(isinstance(each, asyncio.CancelledError) for each in ended), ended
        for client in clients:
            for partition, bases in client.got.items():
                assert bases == list(range(world.owner("t", partition).high_watermark)), (seed, partition)


async def poll_for_ever(client: Client) -> None:
    while True:
        fetched = await client.poll()
        assert set(errors(fetched).values()) <= {"NOT_LEADER_OR_FOLLOWER"}
        if errors(fetched):
            await asyncio.sleep(0.05)


async def act(world: World, partition: int, random_: random.Random) -> None:
    if world.key("t", partition) not in world.owners.by_key:
        if random_.random() < 0.5:
            world.reopen("t", partition)
        return
    kind: str = random_.choice(ACTIONS)
    if kind == "close":
        world.close("t", partition)
    elif kind == "evict":
        world.fetch_service.tails.drop(world.key("t", partition))
    else:
        for _ in range(random_.randrange(1, 4)):
            await world.produce("t", partition)


ACTIONS: Sequence[str] = ("produce", "produce", "produce", "evict", "close")


@pytest.mark.parametrize("has_busy_one", [False, True])
async def test_a_process_that_is_not_a_member_sends_its_clients_away(has_busy_one: bool) -> None:
    """Refuse each partition soon, also beside one that always has records; afterwards all continue."""

    async with serving(3, has_sessions=True) as world:
        client = Client(world, range(3))
        world.flush("t", 0)
        await client.poll(max_wait_s=0.0)
        await client.poll(max_wait_s=0.0)
        parked = None
        if not has_busy_one:
            parked = asyncio.ensure_future(client.poll(max_wait_s=60.0))
            await quiesce()
            assert not parked.done()
        world.fetch_service.send_away(True)
        began = now()
        if has_busy_one:
            world.flush("t", 0)
        fetched = await (parked or client.poll(max_wait_s=60.0))
        refused, polls = errors(fetched), 0
        while len(refused) < 3:
            await quiesce()
            refused.update(errors(await client.poll(max_wait_s=0.0)))
            assert now() - began < 1
            polls += 1
            assert polls < 10
        assert set(refused.values()) == {"NOT_LEADER_OR_FOLLOWER"}
        world.fetch_service.send_away(True)
        world.fetch_service.send_away(False)
        await quiesce()
        client.moved = list(range(3))
        world.flush("t", 1)
        fetched = await client.poll(max_wait_s=0.0)
        assert errors(fetched) == {}
        assert client.got[1] == [0]

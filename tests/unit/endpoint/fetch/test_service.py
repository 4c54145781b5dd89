"""Fetches without a session: what they find, when they wait, what wakes them, and what they may not show."""

from __future__ import annotations

import asyncio
import logging
import uuid
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from bmq.core.errors import ErrorCode, RequestError
from bmq.core.logging.fields import fields_of
from bmq.core.records.batch import HEADER_BYTES
from bmq.endpoint.fetch.fetch_time import OWNER_PATIENCE_S, READ_AGAIN_S
from bmq.endpoint.fetch.operation import SHORT_PATIENCE_S, FetchResult
from bmq.endpoint.fetch.purgatory import SessionPartition
from bmq.meta.catalog import Topic
from bmq.storage.filesystem import CorruptData, StorageUnavailable
from bmq.storage.layout import PartitionPath
from bmq.storage.log_reader import OffsetNotFound
from tests.harness.loop import run
from tests.harness.loop_stops import without_collector
from tests.harness.waiting import now
from tests.unit.endpoint.serving import World, errors, offsets, release, serving, want

pytestmark = pytest.mark.slow

T0 = ("t", 0)


async def settle() -> None:
    """Wait until all tasks that can continue stand still again."""
    for _ in range(20):
        await asyncio.sleep(0)


# ------------------------------------------------------------------------------------------------------ from memory


async def test_records_in_the_tail_are_answered_at_once() -> None:
    async with serving() as world:
        size = world.flush("t", count=5) + world.flush("t")
        fetched = await world.fetch([want("t", offset=3)])
        assert now() == 0
        assert offsets(fetched) == {T0: [0, 5]}  # the whole batch that holds the offset (nisshi)
        assert fetched.results[0].marks == (6, 6, 0)
        assert world.metrics.tail_hit_bytes == size == world.metrics.topics["t"].bytes_out
        assert (world.metrics.storage_read_bytes, world.fs.log_reads) == (0, 0)
        assert world.metrics.traffic is not None
        world.metrics.traffic.roll(1.0)
        assert world.metrics.traffic.last.topics["t"][0].bytes_out == size
        assert world.fetch_service.budget.memory.used == size
        release(fetched)


async def test_limits_of_the_partition_and_of_the_whole() -> None:
    async with serving() as world:
        size = world.flush("t", 0)
        for partition in (0, 0, 1, 1):
            world.flush("t", partition)
        both = [want("t", 0, max_bytes=2 * size), want("t", 1, max_bytes=2 * size)]
        for max_bytes, expected in ((10 * size, ([0, 1], [0, 1])), (3 * size, ([0, 1], [0])), (1, ([0], []))):
            fetched = await world.fetch(both, max_bytes=max_bytes)
            assert tuple(offsets(fetched).values()) == expected
            release(fetched)


async def test_only_the_first_partition_with_records_may_pass_the_limits() -> None:
    async with serving() as world:
        world.topic("u", 3)
        for partition in (1, 2):
            world.flush("u", partition)
        fetched = await world.fetch([want("u", partition, max_bytes=10) for partition in range(3)])
        assert offsets(fetched) == {("u", 0): [], ("u", 1): [0], ("u", 2): []}
        release(fetched)


async def test_the_servers_fetch_max_bytes_counts_too() -> None:
    async with serving(fetch_max_bytes=1024) as world:
        for _ in range(30):
            size = world.flush("t")
        fetched = await world.fetch([want("t")])
        assert len(offsets(fetched)[T0]) == 1024 // size
        release(fetched)


async def test_a_reader_that_wants_no_wait_is_answered_with_nothing() -> None:
    async with serving() as world:
        fetched = await world.fetch([want("t")], max_wait_s=0)
        assert (offsets(fetched), errors(fetched), now()) == ({T0: []}, {}, 0)
        assert await world.fetch([]) is not None
        assert now() == 0
        await world.fetch([want("t")], min_bytes=0)
        assert now() == 0


# ---------------------------------------------------------------------------------------------------------- parked


async def test_a_fetch_at_the_watermark_is_answered_when_its_time_is_up() -> None:
    async with serving() as world:
        fetched = await world.fetch([want("t"), want("t", 1)], max_wait_s=0.5)
        assert now() == pytest.approx(0.5)
        assert offsets(fetched) == {T0: [], ("t", 1): []}
        assert fetched.results[0].marks == (0, 0, 0)


async def test_a_flush_wakes_it_and_polls_are_not_needed() -> None:
    async with serving() as world:
        parked = asyncio.create_task(world.fetch([want("t"), want("t", 1)], max_wait_s=100))
        await settle()
        assert world.metrics.parked_fetches == 1
        asked = len(world.owners.asked)
        await asyncio.sleep(50)
        assert len(world.owners.asked) == asked
        world.flush("t", 1)
        fetched = await parked
        assert now() == pytest.approx(50)
        assert offsets(fetched) == {("t", 1): [0], T0: []}
        release(fetched)


async def test_min_bytes_are_counted_without_looking() -> None:
    async with serving() as world:
        size = world.flush("t")
        parked = asyncio.create_task(world.fetch([want("t", 0, 1), want("t", 1)], min_bytes=3 * size, max_wait_s=100))
        await settle()
        asked = len(world.owners.asked)
        world.flush("t", 0)
        await settle()
        world.flush("t", 1)
        await settle()
        assert len(world.owners.asked) == asked
        assert not parked.done()
        world.flush("t", 1)
        fetched = await parked
        assert offsets(fetched) == {T0: [1], ("t", 1): [0, 1]}
        release(fetched)


async def test_what_is_there_already_counts_for_min_bytes() -> None:
    async with serving() as world:
        size = world.flush("t", 0)
        parked = asyncio.create_task(world.fetch([want("t"), want("t", 1)], min_bytes=2 * size, max_wait_s=100))
        await settle()
        world.flush("t", 1)
        fetched = await parked
        assert offsets(fetched) == {T0: [0], ("t", 1): [0]}
        release(fetched)
        late = await world.fetch([want("t"), want("t", 1)], min_bytes=1000 * size)
        assert offsets(late) == {T0: [0], ("t", 1): [0]}
        release(late)


async def test_a_flush_between_the_look_and_the_park_is_not_lost() -> None:
    """The response's coroutine may start later than the check that found nothing."""

    async with serving() as world:
        parked = asyncio.create_task(world.fetch([want("t")], max_wait_s=100))
        world.flush("t")
        fetched = await parked
        assert (offsets(fetched), now()) == ({T0: [0]}, 0)
        release(fetched)
        for turns in range(6):  # and in every turn of the loop around the park
            task = asyncio.create_task(world.fetch([want("t", 1, turns)], max_wait_s=100))
            for _ in range(turns):
                await asyncio.sleep(0)
            world.flush("t", 1)
            fetched = await task
            assert (offsets(fetched), now()) == ({("t", 1): [turns]}, 0)
            release(fetched)


async def test_a_client_that_goes_leaves_nothing_behind() -> None:
    async with serving() as world:
        parked = asyncio.create_task(world.fetch([want("t"), want("t", 1)], max_wait_s=100))
        await settle()
        assert len(world.fetch_service.poll) == 2
        parked.cancel()
        await asyncio.gather(parked, return_exceptions=True)


class Followed(SessionPartition):
    """A partition of a fetch, weakly referable."""


@pytest.mark.parametrize("end", ["at once", "late", "cancelled"])
def test_a_fetch_that_is_over_leaves_nothing_to_the_collector(end: str) -> None:
    """While a fetch waits, its watch and its partitions refer to each other."""
    left: list[weakref.ref[Followed]] = []

    async def main() -> None:
        async with serving() as world:
            if end == "at once":
                world.flush("t")
            wanted = [Followed("t", partition, 0, 1 << 20) for partition in range(2)]
            left.extend(map(weakref.ref, wanted))
            fetch = asyncio.create_task(world.fetch(wanted, max_wait_s=100))
            await settle()
            if end == "cancelled":
                fetch.cancel()
            await asyncio.wait([fetch])
            if end != "cancelled":
                assert (now() == 0) is (end == "at once")
                release(await fetch)

    with without_collector():
        run(main())
        assert [each() for each in left] == [None, None]


# ---------------------------------------------------------------------------------------------- owners and offsets


async def test_rule2_out_of_range_only_from_an_open_owner_and_past_the_watermark_once_it_is_sure() -> None:
    async with serving() as world:
        owner = world.owner("t")
        for _ in range(10):
            world.flush("t")
        owner.log_start = 5
        world.fetch_service.log_start_moved(owner.key, 5)
        below = await world.fetch([want("t", offset=4)])
        assert (errors(below), now()) == ({T0: "OFFSET_OUT_OF_RANGE"}, 0)
        assert below.results[0].marks == (-1, -1, -1)
        owner.has_seen_end = False
        past = asyncio.create_task(world.fetch([want("t", offset=11)], max_wait_s=100))
        await asyncio.sleep(50)
        world.flush("t")
        world.flush("t")  # offset 11: answered with acks=1, flushed a moment later
        assert offsets(await past) == {T0: [11]}
        release(await past)
        unsure = await world.fetch([want("t", offset=99)], max_wait_s=0.5)
        assert errors(unsure) == {T0: "OFFSET_NOT_AVAILABLE"}
        assert now() == pytest.approx(50.5)
        waiting = asyncio.create_task(world.fetch([want("t", offset=99)], max_wait_s=3600))
        await asyncio.sleep(10)
        owner.has_seen_end = True
        world.fetch_service.log_start_moved(owner.key, 5)
        assert errors(await waiting) == {T0: "OFFSET_OUT_OF_RANGE"}
        far = await world.fetch([want("t", offset=99)], max_wait_s=3600)
        assert errors(far) == {T0: "OFFSET_OUT_OF_RANGE"}
        assert now() == pytest.approx(60.5), "whoever asks with an endless wait is not left waiting"


async def test_without_an_owner_a_fetch_waits_for_it() -> None:
    async with serving() as world:
        world.flush("t")
        owner = world.close("t")
        with_data = asyncio.create_task(world.fetch([want("t", offset=7)], max_wait_s=100))
        timed_out = await world.fetch([want("t", offset=7)], max_wait_s=0.5)
        assert errors(timed_out) == {T0: "NOT_LEADER_OR_FOLLOWER"}
        await asyncio.sleep(10)
        world.open("t", watermark=7)
        await settle()
        assert not with_data.done()  # open, and at the watermark: parked as any other
        owner = world.owner("t")
        assert owner.high_watermark == 7
        world.flush("t")
        assert offsets(await with_data) == {T0: [7]}
        release(await with_data)


async def test_an_owner_that_goes_wakes_whoever_waits_and_nothing_is_shown_from_its_tail() -> None:
    async with serving() as world:
        world.flush("t")
        parked = asyncio.create_task(world.fetch([want("t", offset=1)], max_wait_s=1))
        await settle()
        world.close("t")
        assert world.fetch_service.tails.extent(world.key("t")) is None
        assert errors(await parked) == {T0: "NOT_LEADER_OR_FOLLOWER"}
        assert now() == pytest.approx(1)


@pytest.mark.parametrize("max_wait_s", [0, 0.5])
async def test_a_fetch_whose_time_ends_while_a_partition_moves_waits_for_the_next_owner(max_wait_s: float) -> None:
    async with serving() as world:
        world.flush("t")
        if not max_wait_s:
            world.close("t")
        fetch = asyncio.create_task(world.fetch([want("t", offset=1)], max_wait_s=max_wait_s))
        if max_wait_s:
            await asyncio.sleep(max_wait_s - 0.01)
            world.close("t")
        await asyncio.sleep(0.06)
        assert not fetch.done()
        world.reopen("t")
        fetched = await fetch
        assert (errors(fetched), offsets(fetched)) == ({}, {T0: []})
        assert fetched.results[0].marks == (1, 1, 0)
        assert now() < OWNER_PATIENCE_S


@pytest.mark.parametrize(("max_wait_s", "told_at"), [(0, OWNER_PATIENCE_S), (0.5, OWNER_PATIENCE_S), (3, 3)])
async def test_an_owner_that_does_not_come_is_told_of_in_the_end(max_wait_s: float, told_at: float) -> None:
    async with serving() as world:
        world.close("t")
        assert errors(await world.fetch([want("t")], max_wait_s=max_wait_s)) == {T0: "NOT_LEADER_OR_FOLLOWER"}
        assert now() == pytest.approx(told_at)


async def test_brokers_tell_proxies_at_once_that_a_partition_is_not_theirs() -> None:
    async with serving() as world:
        world.fetch_service.owner_patience_s = 0.0
        world.close("t")
        for max_wait_s in (0.0, 0.5):
            fetched = await world.fetch([want("t")], max_wait_s=max_wait_s)
            assert errors(fetched) == {T0: "NOT_LEADER_OR_FOLLOWER"}
            assert now() == pytest.approx(max_wait_s)


@pytest.mark.parametrize("max_wait_s", [0, 0.5, 100])
@pytest.mark.parametrize("hears_first", [False, True])
async def test_a_read_whose_owner_goes_is_repeated_with_the_next_owner(max_wait_s: float, hears_first: bool) -> None:
    """The proxy asks the owner where its open segment ends, and the owner gives the partition away."""

    async with serving() as world:
        await world.store("t")
        owner = world.owner("t")
        asked: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        async def ask() -> Any:
            return await asked

        owner.knows_active_segment = False
        owner.ask_active_segment = ask  # type: ignore[method-assign]
        fetch = asyncio.create_task(world.fetch([want("t")], max_wait_s=max_wait_s))
        await settle()
        if hears_first:
            world.close("t")
        asked.set_exception(RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the owner was lost"))
        await asyncio.sleep(0.02)
        if not hears_first:
            world.close("t")
        await asyncio.sleep(0.04)
        assert not fetch.done()
        world.reopen("t")
        fetched = await fetch
        assert (errors(fetched), offsets(fetched)) == ({}, {T0: [0]})
        assert now() == pytest.approx(0.06)
        release(fetched)


async def test_an_owner_that_cannot_be_asked_is_asked_a_few_times_then_told_of() -> None:
    async with serving() as world:
        await world.store("t")
        owner, asked = world.owner("t"), []

        async def refuse() -> Any:
            asked.append(now())
            raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "not mine")

        owner.knows_active_segment = False
        owner.ask_active_segment = refuse  # type: ignore[method-assign]
        assert errors(await world.fetch([want("t")])) == {T0: "NOT_LEADER_OR_FOLLOWER"}
        assert now() == pytest.approx(OWNER_PATIENCE_S)
        assert 2 < len(asked) <= OWNER_PATIENCE_S / READ_AGAIN_S + 2


async def test_records_that_come_while_an_owner_is_waited_for_past_the_clients_time_are_sent_at_once() -> None:
    """However few: min_bytes hold for the client's own time."""

    async with serving() as world:
        world.close("t")
        fetch = asyncio.create_task(world.fetch([want("t"), want("t", 1)], min_bytes=10_000, max_wait_s=0.5))
        await asyncio.sleep(0.6)
        assert not fetch.done()
        world.flush("t", 1)
        fetched = await fetch
        assert offsets(fetched) == {("t", 1): [0], T0: []}
        assert now() == pytest.approx(0.6)
        release(fetched)


async def test_one_read_whose_owner_goes_holds_up_no_records_of_others() -> None:
    async with serving() as world:
        await world.store("t", 0)
        world.flush("t", 1)

        async def refuse() -> Any:
            raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "not mine")

        world.owner("t").knows_active_segment = False
        world.owner("t").ask_active_segment = refuse  # type: ignore[method-assign]
        fetched = await world.fetch([want("t", 0), want("t", 1)], max_wait_s=100)
        assert (now(), offsets(fetched)) == (0, {T0: [], ("t", 1): [0]})
        assert errors(fetched) == {}
        release(fetched)


async def test_an_offset_past_the_watermark_is_not_out_of_range_because_others_have_records() -> None:
    async with serving() as world:
        world.flush("t", 1)
        world.owner("t").has_seen_end = False
        fetched = await world.fetch([want("t", offset=1), want("t", 1)], max_wait_s=100)
        assert (offsets(fetched), errors(fetched), now()) == ({T0: [], ("t", 1): [0]}, {}, 0)
        release(fetched)


async def test_an_owner_that_is_not_in_write_is_none() -> None:
    async with serving() as world:
        world.flush("t")
        world.owner("t").is_open = False
        assert errors(await world.fetch([want("t")])) == {T0: "NOT_LEADER_OR_FOLLOWER"}


async def test_the_tail_follows_the_log_start_and_the_block_cache_the_tail() -> None:
    async with serving() as world:
        for _ in range(5):
            world.flush("t", size=5_000)
        pool, tails = world.pool, world.fetch_service.tails
        full = pool.cache_bytes
        assert full == world.config.cache_bytes - tails.used < world.config.cache_bytes
        world.owner("t").log_start = 3
        world.fetch_service.log_start_moved(world.key("t"), 3)
        assert tails.extent(world.key("t")) == (3, 5)
        assert full < pool.cache_bytes == world.config.cache_bytes - tails.used
        world.close("t")
        assert pool.cache_bytes == world.config.cache_bytes


@pytest.mark.parametrize("session", [(0, -1), (0, 0)], ids=["without a session", "first of a session"])
@pytest.mark.parametrize("max_wait_s", [0, 100])
async def test_a_response_with_records_says_nothing_of_a_partition_that_moves(
    max_wait_s: float, session: tuple[int, int]
) -> None:
    """The response must list each partition: this one without an error, and without a watermark, as none is certain."""

    async with serving() as world:
        world.close("t", 0)
        world.flush("t", 1)
        listed = [want("t", 0), want("t", 1)]
        fetched = await world.fetch(listed, max_wait_s=max_wait_s, session=session)
        assert now() == 0
        assert (offsets(fetched), errors(fetched)) == ({T0: [], ("t", 1): [0]}, {})
        assert {look.wanted.partition: look.marks for look in fetched.results} == {0: (-1, -1, -1), 1: (1, 1, 0)}
        release(fetched)
        await world.fetch(session=(fetched.session_id, -1), max_wait_s=0)


async def test_records_that_are_too_few_say_nothing_of_a_partition_that_moves_when_time_is_up() -> None:
    async with serving() as world:
        world.flush("t", 1)
        fetch = asyncio.create_task(world.fetch([want("t", 0), want("t", 1)], min_bytes=1 << 19))
        await asyncio.sleep(0.4)
        world.close("t", 0)
        fetched = await fetch
        assert now() == pytest.approx(0.5)
        assert (offsets(fetched), errors(fetched)) == ({T0: [], ("t", 1): [0]}, {})
        release(fetched)


async def test_an_owner_that_is_missing_for_long_is_told_of_beside_records() -> None:
    async with serving() as world:
        world.close("t", 0)
        world.flush("t", 1)
        waits_s = OWNER_PATIENCE_S + 1
        fetched = await world.fetch([want("t", 0), want("t", 1)], min_bytes=1 << 19, max_wait_s=waits_s)
        assert now() == pytest.approx(waits_s)
        assert (offsets(fetched), errors(fetched)) == ({T0: [], ("t", 1): [0]}, {T0: "NOT_LEADER_OR_FOLLOWER"})
        release(fetched)


@pytest.mark.parametrize("max_wait_s", [0, 100])
async def test_brokers_tell_proxies_at_once_beside_records_of_others(max_wait_s: float) -> None:
    async with serving() as world:
        world.fetch_service.owner_patience_s = 0.0
        world.close("t", 0)
        world.flush("t", 1)
        fetched = await world.fetch([want("t", 0), want("t", 1)], max_wait_s=max_wait_s)
        assert (now(), errors(fetched)) == (0, {T0: "NOT_LEADER_OR_FOLLOWER"})
        release(fetched)


@pytest.mark.parametrize(
    ("epoch", "error"), [(-1, None), (0, None), (3, None), (2, "FENCED_LEADER_EPOCH"), (4, "UNKNOWN_LEADER_EPOCH")]
)
async def test_the_clients_leader_epoch_is_checked(epoch: int, error: str | None) -> None:
    async with serving() as world:
        world.flush("t")
        fetched = await world.fetch([want("t", epoch=epoch)])
        assert (errors(fetched).get(T0), now()) == (error, 0)
        release(fetched)


async def test_read_committed_ends_at_the_last_stable_offset() -> None:
    async with serving() as world:
        for _ in range(3):
            world.flush("t")
        world.owner("t").stable = 2
        committed = await world.fetch([want("t")], committed=True)
        uncommitted = await world.fetch([want("t")])
        assert (offsets(committed), offsets(uncommitted)) == ({T0: [0, 1]}, {T0: [0, 1, 2]})
        assert committed.results[0].marks == (3, 2, 0)
        at_end = await world.fetch([want("t", offset=2)], committed=True)
        assert offsets(at_end) == {T0: []}
        assert now() == pytest.approx(0.5)
        for fetched in (committed, uncommitted):
            release(fetched)


# ---------------------------------------------------------------------------------------------------- topics


async def test_what_the_catalog_does_not_know_is_told_by_name_or_id() -> None:
    async with serving() as world:
        other = uuid.UUID(int=99)
        by_name = await world.fetch([want("x"), want("t", 2), want("t", -1)])
        assert errors(by_name) == dict.fromkeys([("x", 0), ("t", 2), ("t", -1)], "UNKNOWN_TOPIC_OR_PARTITION")
        known = world.catalog.topics["t"].topic_id
        by_id = await world.fetch([want(other), want(known, 2)], by_id=True)
        assert list(errors(by_id).values()) == ["UNKNOWN_TOPIC_ID", "UNKNOWN_TOPIC_OR_PARTITION"]
        assert now() == 0
        assert list(world.metrics.topics) == []


async def test_an_unknown_topic_beside_a_known_one_does_not_make_a_client_spin() -> None:
    """Wait, as Kafka does: only a fetch of which no topic is known returns at once."""

    async with serving() as world:
        fetched = await world.fetch([want("x"), want("t")], max_wait_s=0.5)
        assert now() == pytest.approx(0.5)
        assert errors(fetched) == {("x", 0): "UNKNOWN_TOPIC_OR_PARTITION"}


async def test_a_topic_deleted_under_a_parked_fetch_is_told_at_once() -> None:
    async with serving() as world:
        topic = world.topic("u")
        parked = asyncio.create_task(world.fetch([want(topic.topic_id), want(world.catalog.topics["t"].topic_id)],
                                                 max_wait_s=100, by_id=True))  # fmt: skip
        await settle()
        world.flush("u")
        fetched = await parked
        release(fetched)
        parked = asyncio.create_task(
            world.fetch([want(topic.topic_id, offset=1), want(world.catalog.topics["t"].topic_id)],
                        max_wait_s=100, by_id=True)
        )  # fmt: skip
        await settle()
        world.catalog.put("u", None)
        assert list(errors(await parked).values()) == ["UNKNOWN_TOPIC_ID"]
        assert now() == 0
        assert len(world.fetch_service.tails) == 0
        assert "u" not in world.metrics.topics


async def test_a_topic_made_anew_under_its_name_is_another_log() -> None:
    async with serving() as world:
        world.flush("t")
        world.catalog.put("t", Topic(name="t", topic_id=uuid.UUID(int=50), partitions=1))
        assert len(world.fetch_service.tails) == 0
        world.open("t")
        fetched = await world.fetch([want("t")], max_wait_s=0)
        assert (offsets(fetched), fetched.results[0].marks) == ({T0: []}, (0, 0, 0))


# ------------------------------------------------------------------------------------------------------ storage


async def test_what_the_tail_has_not_is_read_from_storage() -> None:
    async with serving() as world:
        size = await world.store("t", batches=20)
        await world.produce("t")
        fetched = await world.fetch([want("t", offset=7)])
        assert offsets(fetched) == {T0: list(range(7, 20))}
        assert world.metrics.storage_read_bytes == size * 13 // 20 == world.fetch_service.budget.storage.used
        release(fetched)
        tail = await world.fetch([want("t", offset=20)])
        assert offsets(tail) == {T0: [20]}
        release(tail)


async def test_several_partitions_are_read_at_once_and_limits_hold() -> None:
    async with serving() as world:
        size = 0
        for partition in (0, 1):
            size = await world.store("t", partition, batches=10)
        started = asyncio.create_task(world.fetch([want("t", 0, 0, size), want("t", 1)], max_bytes=size * 3 // 2))
        world.fs.gate.clear()
        await settle()
        assert world.fs.running == 2
        world.fs.gate.set()
        fetched = await started
        assert offsets(fetched) == {T0: list(range(10)), ("t", 1): list(range(5))}
        release(fetched)


async def test_only_the_first_partition_from_storage_may_pass_the_limits() -> None:
    async with serving() as world:
        for partition in (0, 1):
            await world.store("t", partition, size=500)
        small = HEADER_BYTES + 10
        fetched = await world.fetch([want("t", max_bytes=small), want("t", 1, max_bytes=small)])
        assert offsets(fetched) == {T0: [0], ("t", 1): []}
        release(fetched)


async def test_what_cannot_fit_is_not_read() -> None:
    async with serving() as world:
        for partition in (0, 1):
            await world.store("t", partition)
        tiny = HEADER_BYTES - 1
        fetched = await world.fetch([want("t", 0, max_bytes=tiny), want("t", 1, max_bytes=tiny)])
        assert offsets(fetched) == {T0: [0], ("t", 1): []}
        assert world.fs.log_reads == 1
        release(fetched)


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (ErrorCode.REQUEST_TIMED_OUT, "NOT_LEADER_OR_FOLLOWER"),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, "NOT_LEADER_OR_FOLLOWER"),
        (ErrorCode.KAFKA_STORAGE_ERROR, "KAFKA_STORAGE_ERROR"),
    ],
)
@pytest.mark.parametrize("is_gone", [False, True])
async def test_an_owner_that_cannot_be_asked_is_a_code_that_consumers_know(
    code: ErrorCode, told: str, is_gone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that stands still: how far its open file goes, or whether an offset is there, is not known."""

    async with serving() as world:
        await world.store("t", 0)

        async def silent(*_: Any) -> Any:
            raise RequestError(code, "no answer")

        async def gone(*_: Any) -> Any:
            raise OffsetNotFound(PartitionPath("t", "id", 0), 0, None)

        monkeypatch.setattr(world.fetch_service, "_read_from", gone if is_gone else silent)
        monkeypatch.setattr(type(world.owner("t")), "ends", silent)
        fetched = await world.fetch([want("t")], max_wait_s=1)
        assert errors(fetched) == {T0: told}


@pytest.mark.parametrize("fault", [StorageUnavailable("no"), CorruptData("bad")])
async def test_a_fault_of_storage_is_its_partitions_alone_and_retriable(
    fault: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """The response does not give the reason: the log names it, with the partition."""

    with caplog.at_level(logging.WARNING):
        async with serving() as world:
            await world.store("t", 0)
            await world.store("t", 1)
            world.fs.fault, world.fs.faulty = fault, "/1/"
            fetched = await world.fetch([want("t"), want("t", 1)], max_wait_s=100)
            assert offsets(fetched) == {T0: [0], ("t", 1): []}
            assert errors(fetched) == {("t", 1): "KAFKA_STORAGE_ERROR"}
            assert world.metrics.topics["t"].failed_fetches == 1
            release(fetched)
    (line,) = caplog.records
    assert "cannot be read from storage" in line.getMessage()
    assert fields_of(line) == {"topic": "t", "partition": 1, "error": str(fault)}


@pytest.mark.parametrize(
    ("then", "error"),
    [
        (lambda world: setattr(world.owner("t"), "log_start", 5), "OFFSET_OUT_OF_RANGE"),
        (lambda world: world.close("t"), "NOT_LEADER_OR_FOLLOWER"),
        (lambda world: setattr(world.owner("t"), "high_watermark", 3), "OFFSET_NOT_AVAILABLE"),
        (lambda world: None, "CORRUPT_MESSAGE"),
    ],
)
async def test_rule2_what_storage_misses_is_out_of_range_only_if_the_owner_says_so(
    then: Callable[[World], object], error: str
) -> None:
    async with serving() as world:
        world.owner("t").high_watermark = 10  # and no file at all
        started = asyncio.create_task(world.fetch([want("t", offset=3)]))
        await asyncio.sleep(0)
        then(world)
        assert errors(await started) == {T0: error}


@pytest.mark.parametrize("lost", ["first", "middle", "last"])
async def test_bytes_that_are_gone_are_told_to_who_reads_them(lost: str, caplog: pytest.LogCaptureFixture) -> None:
    """A segment's file was removed from outside: a consumer must get an error instead of waiting in silence."""

    with caplog.at_level(logging.ERROR):
        async with serving() as world:
            for _ in range(3):
                await world.store("t", batches=2)
            (folder,) = {f"/topics/t/{world.catalog.topics['t'].topic_id}/0"}
            names = [status.path async for status in world.fs.list(folder)]
            gone = {"first": 0, "middle": 1, "last": 2}[lost]
            await world.fs.delete(names[gone])
            for offset in (2 * gone, 2 * gone + 1):
                assert errors(await world.fetch([want("t", offset=offset)])) == {T0: "CORRUPT_MESSAGE"}
            for number in {0, 1, 2} - {gone}:
                fetched = await world.fetch([want("t", offset=2 * number)])
                assert offsets(fetched) == {T0: [2 * number, 2 * number + 1]}
                release(fetched)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    assert all("records are gone from storage" in line for line in told)


async def test_a_fetch_with_records_in_memory_waits_for_slow_storage_only_shortly() -> None:
    async with serving() as world:
        await world.store("t", 0)
        world.flush("t", 1)
        world.fs.gate.clear()
        fetched = await world.fetch([want("t", 0), want("t", 1)], max_wait_s=100)
        assert now() == pytest.approx(SHORT_PATIENCE_S)
        assert offsets(fetched) == {T0: [], ("t", 1): [0]}
        release(fetched)
        assert world.fetch_service.budget.storage.used > 0  # the read goes on, and is counted
        world.fs.gate.set()
        await settle()
        assert world.fetch_service.budget.storage.used == 0
        reads = world.fs.log_reads
        fetched = await world.fetch([want("t", 0), want("t", 1)])
        assert offsets(fetched)[T0] == [0]
        assert world.fs.log_reads == reads  # found in the block cache
        release(fetched)


async def test_a_fetch_is_answered_even_if_storage_never_does() -> None:
    async with serving() as world:
        await world.store("t", 0)
        world.fs.gate.clear()
        fetched = await world.fetch([want("t", 0)])
        assert offsets(fetched) == {T0: []}
        assert 5 < now() < 30
        await world.fetch_service.close()


async def test_what_is_flushed_while_storage_is_read_is_not_lost() -> None:
    async with serving() as world:
        await world.store("t", 0, count=3)
        world.owner("t").stable = 2  # inside the batch: storage has nothing to give
        world.fs.gate.clear()
        started = asyncio.create_task(world.fetch([want("t"), want("t", 1)], committed=True, max_wait_s=100))
        await settle()
        world.flush("t", 1)
        world.fs.gate.set()
        fetched = await started
        assert (offsets(fetched), now()) == ({T0: [], ("t", 1): [0]}, 0)
        release(fetched)
        world.fs.gate.set()
        again = await world.fetch([want("t")], committed=True)  # and without it nothing spins
        assert offsets(again) == {T0: []}
        assert now() == pytest.approx(0.5)
        assert world.fs.log_reads <= 4


async def test_a_client_that_goes_ends_its_reads() -> None:
    async with serving() as world:
        await world.store("t", 0)
        world.fs.gate.clear()
        started = asyncio.create_task(world.fetch([want("t")]))
        await settle()
        assert world.fs.running == 1
        started.cancel()
        await asyncio.gather(started, return_exceptions=True)
        await settle()
        assert world.fs.running == 0


# ------------------------------------------------------------------------------------------------------ the budget


async def test_two_hundred_lagging_readers_stay_within_the_budget_and_leave_the_tail_alone() -> None:
    """AutoMQ #201: catch-up reads ran out of memory on defaults."""

    async with serving(cache_bytes=24 << 20, block_bytes=64 << 10) as world:
        budget, limit = world.fetch_service.budget, world.config.cache_bytes
        world.topic("lag", 8)
        for partition in range(8):
            await world.store("lag", partition, batches=40, size=50_000)
        for _ in range(20):
            world.flush("t", size=50_000)
        kept = world.fetch_service.tails.extent(world.key("t"))
        peak = [0]

        def used() -> int:
            pool = world.pool
            blocks = pool.cached_bytes + pool.reading_bytes
            return world.fetch_service.tails.used + budget.memory.used + budget.storage.used + blocks

        async def reader(number: int) -> int:
            offset = 0
            while offset < 40:
                fetched = await world.fetch([want("lag", number % 8, offset)], max_wait_s=5)
                peak[0] = max(peak[0], used())
                await asyncio.sleep(0.01)  # the client is slow to take it
                found = offsets(fetched)["lag", number % 8]
                offset = found[-1] + 1 if found else offset
                release(fetched)
            return offset

        assert await asyncio.gather(*map(reader, range(200))) == [40] * 200
        assert limit // 4 < peak[0] <= limit
        assert world.fetch_service.tails.extent(world.key("t")) == kept
        tail = await world.fetch([want("t", offset=19)])
        assert world.metrics.tail_hit_bytes == tail.results[0].size
        release(tail)


async def test_fetches_wait_for_bytes_in_turn_and_are_answered_without_records_in_the_end() -> None:
    async with serving() as world:
        memory = world.fetch_service.budget.memory
        held = memory.try_take(memory.limit)
        assert held is not None
        held.resize(memory.limit)
        world.flush("t")
        first, second = (asyncio.create_task(world.fetch([want("t")])) for _ in range(2))
        await asyncio.sleep(1)
        assert memory.waiting == 2
        held.release()
        for task in (first, second):
            fetched: FetchResult = await task
            assert offsets(fetched) == {T0: [0]}
            assert now() == pytest.approx(1)
            release(fetched)
        held = memory.try_take(memory.limit)
        assert held is not None
        held.resize(memory.limit)
        starved_too = asyncio.create_task(world.fetch([want("t")]))
        await settle()
        assert errors(await world.fetch([want("t", epoch=2)])) == {T0: "FENCED_LEADER_EPOCH"}
        assert now() == pytest.approx(1)  # a partition without records waits behind no other
        starved = await starved_too
        assert (offsets(starved), starved.results[0].marks) == ({T0: []}, (1, 1, 0))
        assert 5 < now() < 30
        held.release()


async def test_readers_that_never_read_leave_room_for_others() -> None:
    """Ten readers ask for all that there is; four of them never take their responses, and small fetches continue all
    the while."""

    async with serving(cache_bytes=16 << 20) as world:
        world.topic("large", 1)
        for _ in range(60):
            world.flush("large", size=100_000)
        world.flush("t")
        idle = [await world.fetch([want("large", max_bytes=50 << 20)]) for _ in range(4)]
        assert all(fetched.results[0].size for fetched in idle)
        others = [asyncio.create_task(world.fetch([want("large", max_bytes=50 << 20)])) for _ in range(6)]
        for _ in range(100):
            began = now()
            fetched = await world.fetch([want("t")])
            assert offsets(fetched) == {T0: [0]}
            assert now() == began
            release(fetched)
            await asyncio.sleep(0.1)
        for other in others:
            fetched = await other
            assert fetched.results[0].size or fetched.results[0].marks
            release(fetched)
        for fetched in idle:
            release(fetched)


async def test_a_reader_of_a_partition_is_kept_and_the_oldest_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bmq.endpoint.fetch.service.READERS_MAX", 2)

    async with serving() as world:
        world.topic("u", 3)
        for partition in (0, 1, 0, 2):
            await world.store("u", partition)
            release(await world.fetch([want("u", partition)]))
        assert [key.partition for key in world.fetch_service._readers] == [0, 2]

"""One partition's part of a fetch: its limits, its errors, and what it may not show."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from tests.harness.waiting import now
from tests.unit.endpoint.serving import errors, offsets, release, serving, want

pytestmark = pytest.mark.slow


T0 = ("t", 0)


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


async def test_a_partitions_limit_and_the_fetchs_limit_hold() -> None:
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


async def test_rule2_out_of_range_only_from_an_open_owner_and_past_the_watermark_once_it_is_sure() -> None:
    async with serving() as world:
        owner = world.owner("t")
        for _ in range(10):
            world.flush("t")
        owner.log_start = 5
        world.fetch_service.context.log_start_moved(owner.key, 5)
        below = await world.fetch([want("t", offset=4)])
        assert (errors(below), now()) == ({T0: "OFFSET_OUT_OF_RANGE"}, 0)
        assert below.results[0].marks == (-1, -1, -1)
        owner.is_at_end = False
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
        owner.is_at_end = True
        world.fetch_service.context.changed(owner.key)
        assert errors(await waiting) == {T0: "OFFSET_OUT_OF_RANGE"}
        far = await world.fetch([want("t", offset=99)], max_wait_s=3600)
        assert errors(far) == {T0: "OFFSET_OUT_OF_RANGE"}
        assert now() == pytest.approx(60.5), "whoever asks with an endless wait is not left waiting"


async def test_an_offset_past_the_watermark_is_not_out_of_range_because_others_have_records() -> None:
    async with serving() as world:
        world.flush("t", 1)
        world.owner("t").is_at_end = False
        fetched = await world.fetch([want("t", offset=1), want("t", 1)], max_wait_s=100)
        assert (offsets(fetched), errors(fetched), now()) == ({T0: [], ("t", 1): [0]}, {}, 0)
        release(fetched)


async def test_an_owner_that_does_not_accept_records_is_no_owner() -> None:
    async with serving() as world:
        world.flush("t")
        world.owner("t").is_open = False
        assert errors(await world.fetch([want("t")])) == {T0: "NOT_LEADER_OR_FOLLOWER"}


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


async def test_an_unknown_topic_is_an_error_by_name_or_by_id() -> None:
    async with serving() as world:
        other = uuid.UUID(int=99)
        by_name = await world.fetch([want("x"), want("t", 2), want("t", -1)])
        assert errors(by_name) == dict.fromkeys([("x", 0), ("t", 2), ("t", -1)], "UNKNOWN_TOPIC_OR_PARTITION")
        known = world.catalog.topics["t"].topic_id
        by_id = await world.fetch([want(other), want(known, 2)], by_id=True)
        assert list(errors(by_id).values()) == ["UNKNOWN_TOPIC_ID", "UNKNOWN_TOPIC_OR_PARTITION"]
        assert now() == 0
        assert list(world.metrics.topics) == []

"""One fetch from its arrival to its response: when it waits, what wakes it, and how long an owner is waited for."""

from __future__ import annotations

import asyncio
import uuid
import weakref
from typing import Any

import pytest

from bmq.core.errors import ErrorCode, RequestError
from bmq.endpoint.fetch.fetch_time import OWNER_PATIENCE_S, READ_AGAIN_S
from bmq.endpoint.fetch.purgatory import SessionPartition
from bmq.endpoint.fetch.result import FetchResult
from bmq.endpoint.fetch.service import SHORT_PATIENCE_S
from bmq.meta.catalog import Topic
from tests.harness.loop import run
from tests.harness.loop_stops import without_collector
from tests.harness.waiting import now
from tests.unit.endpoint.serving import errors, offsets, quiesce, release, serving, want

pytestmark = pytest.mark.slow


T0 = ("t", 0)


async def test_a_fetch_without_a_wait_is_answered_without_records() -> None:
    async with serving() as world:
        fetched = await world.fetch([want("t")], max_wait_s=0)
        assert (offsets(fetched), errors(fetched), now()) == ({T0: []}, {}, 0)
        assert await world.fetch([]) is not None
        assert now() == 0
        await world.fetch([want("t")], min_bytes=0)
        assert now() == 0


async def test_a_fetch_at_the_watermark_is_answered_when_its_time_is_up() -> None:
    async with serving() as world:
        fetched = await world.fetch([want("t"), want("t", 1)], max_wait_s=0.5)
        assert now() == pytest.approx(0.5)
        assert offsets(fetched) == {T0: [], ("t", 1): []}
        assert fetched.results[0].marks == (0, 0, 0)


async def test_a_flush_wakes_a_parked_fetch() -> None:
    async with serving() as world:
        parked = asyncio.create_task(world.fetch([want("t"), want("t", 1)], max_wait_s=100))
        await quiesce()
        assert len(world.fetch_service.parked) == 1
        asked = len(world.owners.asked)
        await asyncio.sleep(50)
        assert len(world.owners.asked) == asked
        world.flush("t", 1)
        fetched = await parked
        assert now() == pytest.approx(50)
        assert offsets(fetched) == {("t", 1): [0], T0: []}
        release(fetched)


async def test_min_bytes_are_counted_without_reading() -> None:
    async with serving() as world:
        size = world.flush("t")
        parked = asyncio.create_task(world.fetch([want("t", 0, 1), want("t", 1)], min_bytes=3 * size, max_wait_s=100))
        await quiesce()
        asked = len(world.owners.asked)
        world.flush("t", 0)
        await quiesce()
        world.flush("t", 1)
        await quiesce()
        assert len(world.owners.asked) == asked
        assert not parked.done()
        world.flush("t", 1)
        fetched = await parked
        assert offsets(fetched) == {T0: [1], ("t", 1): [0, 1]}
        release(fetched)


async def test_records_from_before_the_fetch_count_for_min_bytes() -> None:
    async with serving() as world:
        size = world.flush("t", 0)
        parked = asyncio.create_task(world.fetch([want("t"), want("t", 1)], min_bytes=2 * size, max_wait_s=100))
        await quiesce()
        world.flush("t", 1)
        fetched = await parked
        assert offsets(fetched) == {T0: [0], ("t", 1): [0]}
        release(fetched)
        late = await world.fetch([want("t"), want("t", 1)], min_bytes=1000 * size)
        assert offsets(late) == {T0: [0], ("t", 1): [0]}
        release(late)


async def test_a_flush_between_the_read_and_the_park_is_not_lost() -> None:
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


async def test_a_fetch_whose_client_has_gone_leaves_nothing_behind() -> None:
    async with serving() as world:
        parked = asyncio.create_task(world.fetch([want("t"), want("t", 1)], max_wait_s=100))
        await quiesce()
        assert len(world.fetch_service.poll) == 2
        parked.cancel()
        await asyncio.gather(parked, return_exceptions=True)


class Followed(SessionPartition):
    """A partition of a fetch, weakly referable."""


@pytest.mark.parametrize("end", ["at once", "late", "cancelled"])
def test_a_fetch_that_is_over_leaves_nothing_to_the_collector(end: str) -> None:
    """The watch of a fetch and its partitions refer to each other while the fetch waits."""
    left: list[weakref.ref[Followed]] = []

    async def main() -> None:
        async with serving() as world:
            if end == "at once":
                world.flush("t")
            wanted = [Followed("t", partition, 0, 1 << 20) for partition in range(2)]
            left.extend(map(weakref.ref, wanted))
            fetch = asyncio.create_task(world.fetch(wanted, max_wait_s=100))
            await quiesce()
            if end == "cancelled":
                fetch.cancel()
            await asyncio.wait([fetch])
            if end != "cancelled":
                assert (now() == 0) is (end == "at once")
                release(await fetch)

    with without_collector():
        run(main())
        assert [each() for each in left] == [None, None]


async def test_without_an_owner_a_fetch_waits_for_it() -> None:
    async with serving() as world:
        world.flush("t")
        owner = world.close("t")
        with_data = asyncio.create_task(world.fetch([want("t", offset=7)], max_wait_s=100))
        timed_out = await world.fetch([want("t", offset=7)], max_wait_s=0.5)
        assert errors(timed_out) == {T0: "NOT_LEADER_OR_FOLLOWER"}
        await asyncio.sleep(10)
        world.open("t", watermark=7)
        await quiesce()
        assert not with_data.done()  # open, and at the watermark: parked as any other
        owner = world.owner("t")
        assert owner.high_watermark == 7
        world.flush("t")
        assert offsets(await with_data) == {T0: [7]}
        release(await with_data)


async def test_a_lost_owner_wakes_parked_fetches_and_its_tail_is_not_shown() -> None:
    async with serving() as world:
        world.flush("t")
        parked = asyncio.create_task(world.fetch([want("t", offset=1)], max_wait_s=1))
        await quiesce()
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
async def test_an_owner_that_does_not_come_is_an_error_in_the_end(max_wait_s: float, told_at: float) -> None:
    async with serving() as world:
        world.close("t")
        assert errors(await world.fetch([want("t")], max_wait_s=max_wait_s)) == {T0: "NOT_LEADER_OR_FOLLOWER"}
        assert now() == pytest.approx(told_at)


async def test_a_broker_refuses_at_once_a_partition_that_it_does_not_own() -> None:
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
        await quiesce()
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


async def test_an_owner_that_does_not_respond_is_asked_a_few_times_and_is_an_error_then() -> None:
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


async def test_a_read_whose_owner_is_lost_does_not_hold_up_other_partitions() -> None:
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


@pytest.mark.parametrize("session", [(0, -1), (0, 0)], ids=["without a session", "first of a session"])
@pytest.mark.parametrize("max_wait_s", [0, 100])
async def test_a_response_with_records_does_not_report_a_partition_that_moves(
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


async def test_too_few_records_do_not_report_a_partition_that_moves_when_time_is_up() -> None:
    async with serving() as world:
        world.flush("t", 1)
        fetch = asyncio.create_task(world.fetch([want("t", 0), want("t", 1)], min_bytes=1 << 19))
        await asyncio.sleep(0.4)
        world.close("t", 0)
        fetched = await fetch
        assert now() == pytest.approx(0.5)
        assert (offsets(fetched), errors(fetched)) == ({T0: [], ("t", 1): [0]}, {})
        release(fetched)


async def test_an_owner_that_is_missing_for_long_is_an_error_beside_records() -> None:
    async with serving() as world:
        world.close("t", 0)
        world.flush("t", 1)
        waits_s = OWNER_PATIENCE_S + 1
        fetched = await world.fetch([want("t", 0), want("t", 1)], min_bytes=1 << 19, max_wait_s=waits_s)
        assert now() == pytest.approx(waits_s)
        assert (offsets(fetched), errors(fetched)) == ({T0: [], ("t", 1): [0]}, {T0: "NOT_LEADER_OR_FOLLOWER"})
        release(fetched)


@pytest.mark.parametrize("max_wait_s", [0, 100])
async def test_a_broker_refuses_a_partition_at_once_beside_records_of_others(max_wait_s: float) -> None:
    async with serving() as world:
        world.fetch_service.owner_patience_s = 0.0
        world.close("t", 0)
        world.flush("t", 1)
        fetched = await world.fetch([want("t", 0), want("t", 1)], max_wait_s=max_wait_s)
        assert (now(), errors(fetched)) == (0, {T0: "NOT_LEADER_OR_FOLLOWER"})
        release(fetched)


async def test_an_unknown_topic_beside_a_known_one_does_not_make_a_client_spin() -> None:
    """Wait, as Kafka does: only a fetch of which no topic is known returns at once."""

    async with serving() as world:
        fetched = await world.fetch([want("x"), want("t")], max_wait_s=0.5)
        assert now() == pytest.approx(0.5)
        assert errors(fetched) == {("x", 0): "UNKNOWN_TOPIC_OR_PARTITION"}


async def test_a_topic_deleted_under_a_parked_fetch_is_an_error_at_once() -> None:
    async with serving() as world:
        topic = world.topic("u")
        parked = asyncio.create_task(world.fetch([want(topic.topic_id), want(world.catalog.topics["t"].topic_id)],
                                                 max_wait_s=100, by_id=True))  # fmt: skip
        await quiesce()
        world.flush("u")
        fetched = await parked
        release(fetched)
        parked = asyncio.create_task(
            world.fetch([want(topic.topic_id, offset=1), want(world.catalog.topics["t"].topic_id)],
                        max_wait_s=100, by_id=True)
        )  # fmt: skip
        await quiesce()
        world.catalog.put("u", None)
        assert list(errors(await parked).values()) == ["UNKNOWN_TOPIC_ID"]
        assert now() == 0
        assert len(world.fetch_service.tails) == 0
        assert "u" not in world.metrics.topics


async def test_a_topic_made_anew_under_its_name_is_another_log() -> None:
    async with serving() as world:
        world.flush("t")
        world.catalog.put("t", Topic(name="t", topic_id=uuid.UUID(int=50), partitions=1))
        await quiesce()
        assert len(world.fetch_service.tails) == 0
        world.open("t")
        fetched = await world.fetch([want("t")], max_wait_s=0)
        assert (offsets(fetched), fetched.results[0].marks) == ({T0: []}, (0, 0, 0))


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
        await quiesce()
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


async def test_records_flushed_while_storage_is_read_are_not_lost() -> None:
    async with serving() as world:
        await world.store("t", 0, count=3)
        world.owner("t").stable = 2  # inside the batch: storage has nothing to give
        world.fs.gate.clear()
        started = asyncio.create_task(world.fetch([want("t"), want("t", 1)], committed=True, max_wait_s=100))
        await quiesce()
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


async def test_reads_of_a_client_that_has_gone_are_cancelled() -> None:
    async with serving() as world:
        await world.store("t", 0)
        world.fs.gate.clear()
        started = asyncio.create_task(world.fetch([want("t")]))
        await quiesce()
        assert world.fs.running == 1
        started.cancel()
        await asyncio.gather(started, return_exceptions=True)
        await quiesce()
        assert world.fs.running == 0


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
        await quiesce()
        assert errors(await world.fetch([want("t", epoch=2)])) == {T0: "FENCED_LEADER_EPOCH"}
        assert now() == pytest.approx(1)  # a partition without records waits behind no other
        starved = await starved_too
        assert (offsets(starved), starved.results[0].marks) == ({T0: []}, (1, 1, 0))
        assert 5 < now() < 30
        held.release()


async def test_a_fetch_has_a_bounded_number_of_batches_from_memory_and_the_next_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """50 MB of small batches would stop the loop for 130 ms.  Not even a high fetch.min.bytes waits for more."""
    monkeypatch.setattr("bmq.endpoint.fetch.operation.BATCHES_MAX", 10)
    async with serving() as world:
        for partition in (0, 1):
            for _ in range(8):
                world.flush("t", partition)
        found = list[int]()
        at = {0: 0, 1: 0}
        for _ in range(2):
            asked = [want("t", partition, offset=offset) for partition, offset in at.items()]
            fetched = await world.fetch(asked, min_bytes=1 << 20, max_wait_s=100)
            for result in fetched.results:
                at[result.wanted.partition] += result.batches
            found.append(sum(result.batches for result in fetched.results))
            release(fetched)
            if found == [10]:
                assert now() == 0, "it is full"
        assert found == [10, 6]
        assert at == {0: 8, 1: 8}
        assert now() == pytest.approx(100)

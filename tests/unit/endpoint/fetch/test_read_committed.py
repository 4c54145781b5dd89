"""Fetches at read_committed: what they may show, what they list, and which flush wakes them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from bmq.core.records.batch import Batch
from bmq.core.records.control import Marker
from bmq.endpoint.fetch.result import FetchResult
from bmq.storage.aborted import AbortedTransactions, RecentAborted, StableMove
from bmq.storage.checkpoint import AbortedTransaction
from tests.harness.waiting import now
from tests.unit.broker.partition.transactional import PID, data, marker
from tests.unit.endpoint.serving import EPOCH, World, offsets, release, serving, want

T0 = ("t", 0)


def flush(world: World, batch: Batch, stable: int, aborted: Sequence[AbortedTransaction] = ()) -> int:
    """Flush a batch that moves the last stable offset to ``stable``; return its size."""
    owner = world.owner("t")
    before = owner.last_stable_offset
    batch.assign(owner.high_watermark, EPOCH)
    owner.high_watermark, owner.stable = batch.next_offset, stable
    move = StableMove(before, stable, aborted)
    world.fetch_service.context.flushed(owner.key, [batch], owner.high_watermark, move)
    return len(batch.data)


def aborts(fetched: FetchResult) -> list[tuple[int, int]]:
    (read,) = fetched.results
    return [(each.producer_id, each.first_offset) for each in read.aborted]


async def test_undecided_records_are_shown_at_read_uncommitted_alone() -> None:
    async with serving() as world:
        world.flush("t")
        flush(world, data(0, count=2), 1)
        committed = await world.fetch([want("t")], committed=True)
        assert offsets(committed) == {T0: [0]}
        assert committed.results[0].marks == (3, 1, 0)
        both = await world.fetch([want("t")])
        assert offsets(both) == {T0: [0, 1]}
        nothing = await world.fetch([want("t", offset=1)], committed=True, max_wait_s=0)
        assert (offsets(nothing), nothing.results[0].error) == ({T0: []}, 0)
        for each in (committed, both):
            release(each)


async def test_undecided_bytes_wake_no_reader_and_the_marker_that_frees_them_does() -> None:
    async with serving() as world:
        small = flush(world, data(0), 0)
        reader = asyncio.create_task(world.fetch([want("t")], min_bytes=4 * small, max_wait_s=100, committed=True))
        other = asyncio.create_task(world.fetch([want("t")], min_bytes=4 * small, max_wait_s=100))
        await asyncio.sleep(1)
        for sequence in range(1, 9):
            flush(world, data(sequence), 0)
        await asyncio.sleep(1)
        assert (reader.done(), other.done()) == (False, True)
        last = flush(world, marker(), 10)
        fetched = await reader
        assert (now(), fetched.results[0].size) == (2, 9 * small + last)
        for each in (fetched, await other):
            release(each)


async def test_what_one_marker_frees_counts_and_not_what_stays_undecided() -> None:
    """Free 2 of 5 batches: the transaction of another producer goes on."""
    async with serving() as world:
        small = flush(world, data(0), 0)
        flush(world, data(1), 0)
        for sequence in range(3):
            flush(world, data(sequence, pid=9), 0)
        reader = asyncio.create_task(world.fetch([want("t")], min_bytes=3 * small, max_wait_s=100, committed=True))
        await asyncio.sleep(1)
        flush(world, marker(), 2)
        await asyncio.sleep(1)
        assert not reader.done()
        flush(world, marker(pid=9), 7)
        assert offsets(await reader) == {T0: [0, 1, 2, 3, 4, 5, 6]}
        release(await reader)


async def test_a_marker_that_frees_what_the_tail_has_lost_wakes_its_readers() -> None:
    async with serving() as world:
        flush(world, data(0), 0)
        reader = asyncio.create_task(
            world.fetch([want("t", max_bytes=1 << 20)], min_bytes=1 << 20, max_wait_s=9, committed=True)
        )
        await asyncio.sleep(1)
        world.fetch_service.tails.drop(world.key("t"))
        flush(world, marker(), 2)
        await reader
        assert now() == 1


async def test_the_list_from_the_tail_has_what_overlaps_the_records() -> None:
    async with serving() as world:
        flush(world, data(0), 0)
        flush(world, marker(Marker.ABORT), 2, [AbortedTransaction(PID, 0, 1, 2)])
        flush(world, data(-1, is_transactional=False), 3)
        flush(world, data(0), 3)
        flush(world, marker(Marker.ABORT), 5, [AbortedTransaction(PID, 3, 4, 5)])
        for offset, max_bytes, expected in (
            (0, 1 << 20, [(PID, 0), (PID, 3)]),
            (1, 1, [(PID, 0)]),
            (2, 1, []),
            (2, 1 << 20, [(PID, 3)]),
            (4, 1, [(PID, 3)]),
        ):
            fetched = await world.fetch([want("t", offset=offset, max_bytes=max_bytes)], committed=True)
            assert aborts(fetched) == expected, offset
            release(fetched)
            fetched = await world.fetch([want("t", offset=offset)])
            assert aborts(fetched) == []
            release(fetched)
        world.fetch_service.tails.trim(world.key("t"), 2)
        assert not world.fetch_service.tails.aborted(world.key("t"), 0, 2)


async def test_the_list_for_records_on_storage_has_what_the_owner_remembers() -> None:
    async with serving() as world:
        await world.store("t", batches=3)
        owner = world.owner("t")
        owner.recent_aborted = RecentAborted(0, [AbortedTransactions([AbortedTransaction(PID, 1, 2, 3)])])
        for offset, expected in ((0, [(PID, 1)]), (2, [(PID, 1)])):
            fetched = await world.fetch([want("t", offset=offset)], committed=True)
            assert (aborts(fetched), fetched.results[0].is_stored) == (expected, True)
            release(fetched)
        fetched = await world.fetch([want("t", max_bytes=1)], committed=True)
        assert (offsets(fetched), aborts(fetched)) == ({T0: [0]}, [])
        release(fetched)


async def test_a_move_of_the_last_stable_offset_alone_is_news_for_a_session() -> None:
    async with serving(has_sessions=True) as world:
        flush(world, data(0), 0)
        first = await world.fetch([want("t", offset=1)], session=(0, 0), max_wait_s=0)
        assert first.results[0].marks == (1, 0, 0)
        nothing = await world.fetch(session=(first.session_id, 1), max_wait_s=0)
        assert not nothing.results
        world.owner("t").stable = 1
        world.fetch_service.context.changed(world.key("t"))
        moved = await world.fetch(session=(first.session_id, 2), max_wait_s=0)
        assert [result.marks for result in moved.results] == [(1, 1, 0)]


@pytest.mark.parametrize("committed", [True, False])
async def test_a_session_waits_at_the_isolation_level_of_its_last_request(committed: bool) -> None:
    async with serving(has_sessions=True) as world:
        first = await world.fetch([want("t")], session=(0, 0), max_wait_s=0, committed=not committed)
        parked = asyncio.create_task(world.fetch(session=(first.session_id, 1), max_wait_s=50, committed=committed))
        await asyncio.sleep(1)
        flush(world, data(0), 0)
        await asyncio.sleep(1)
        assert parked.done() is not committed
        flush(world, marker(), 2)
        release(await parked)
        assert now() == 2

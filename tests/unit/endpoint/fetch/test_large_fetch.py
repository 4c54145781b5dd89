"""Fetches of so many partitions that they are worked on in turns of the loop: the same responses, and nothing left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from bmq.core.errors import ErrorCode
from bmq.endpoint.fetch import operation, service
from bmq.endpoint.fetch.fetch_params import FetchParams
from bmq.endpoint.fetch.operation import PARTITIONS_A_TURN
from bmq.endpoint.fetch.purgatory import SessionPartition
from bmq.endpoint.fetch.result import FetchResult
from tests.unit.endpoint.serving import World, errors, offsets, release, want

MANY = 2 * PARTITIONS_A_TURN + 10


@asynccontextmanager
async def fetching() -> AsyncIterator[World]:
    w = World(max_incremental_fetch_session_cache_slots=100)
    w.topic("orders", MANY)
    yield w
    await w.fetch_service.close()
    assert w.fetch_service.parked_partitions == 0


def listed(count: int = MANY, **options: Any) -> list[SessionPartition]:
    """Return ``count`` partitions, of which the last ten do not exist."""
    return [want("orders", number + 10, **options) for number in range(count)]


async def large(
    w: World, wanted: Sequence[SessionPartition], session: tuple[int, int] = (0, -1), **options: Any
) -> FetchResult:
    params = FetchParams(1, 50 << 20, options.pop("max_wait_s", 0.5), committed=False, metrics=w.metrics)
    on_park = options.pop("on_park", lambda: None)
    return await w.fetch_service.fetch_large(
        *session, wanted, options.pop("forgotten", ()), params, by_id=False, on_park=on_park
    )


@pytest.mark.parametrize("epoch", [-1, 0])
async def test_a_large_fetch_has_the_response_of_a_small_one(epoch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async with fetching() as w:
        for number in range(0, MANY, 7):
            w.flush("orders", number)
        found = await large(w, listed(), (0, epoch))
        monkeypatch.setattr(operation, "PARTITIONS_A_TURN", 10 * MANY)
        expected = await w.fetch(listed(), session=(0, epoch))
        assert offsets(found) == offsets(expected)
        assert errors(found) == errors(expected)
        assert len(errors(found)) == 10
        assert [look.marks for look in found.results] == [look.marks for look in expected.results]
        assert bool(found.session_id) == bool(expected.session_id) == (epoch == 0)
        release(found)
        release(expected)


@pytest.mark.slow
async def test_a_small_request_of_a_large_session_whose_partitions_all_have_news() -> None:
    async with fetching() as w:
        first = await large(w, listed(MANY - 10), (0, 0), max_wait_s=0)
        for number in range(MANY):
            w.flush("orders", number)
        second = await w.fetch(session=(first.session_id, 1))
        assert len(offsets(second)) == MANY - 10
        third = await w.fetch(
            [want("orders", number, 1) for number in range(10, MANY)], session=(first.session_id, 2), max_wait_s=0
        )
        assert third.results == []


async def test_a_flush_wakes_a_large_fetch_which_reports_that_it_parks() -> None:
    async with fetching() as w:
        parked: list[int] = []
        waiting = asyncio.ensure_future(
            large(w, listed(MANY - 10), max_wait_s=60, on_park=lambda: parked.append(w.fetch_service.parked_partitions))
        )
        await asyncio.sleep(1)
        assert parked == [MANY - 10]
        size = w.flush("orders", MANY - 1)
        found = await waiting
        assert sum(look.size for look in found.results) == size
        assert len(found.results) == MANY - 10
        await asyncio.sleep(1)
        assert len(w.fetch_service.poll) == 0


async def test_beyond_the_bound_of_parked_partitions_a_large_fetch_is_answered_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(service, "PARTITIONS_MAX", MANY)

    async with fetching() as w:
        first = asyncio.ensure_future(large(w, listed(MANY - 10), max_wait_s=60))
        await asyncio.sleep(1)
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert len((await large(w, listed(MANY - 10), max_wait_s=60)).results) == MANY - 10
        assert loop.time() - began < 1
        first.cancel()
        await asyncio.wait([first])


async def test_many_partitions_on_storage_are_read_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operation, "READS_MAX", 3)

    async with fetching() as w:
        for number in range(5):
            await w.store("orders", number)
        first = await w.fetch([want("orders", number, 0, 4096) for number in range(5)], session=(0, 0))
        assert set(offsets(first)) >= {("orders", number) for number in range(5)}
        assert [number for (_, number), found in offsets(first).items() if found] == [0, 1, 2]
        read = [want("orders", number, 1, 4096) for number in range(3)]
        second = await w.fetch(read, session=(first.session_id, 1))
        assert [number for (_, number), found in offsets(second).items() if found] == [3, 4]


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 8])
async def test_a_session_that_ends_in_a_pause_refuses_the_request_and_follows_nothing(turns: int) -> None:
    async with fetching() as w:
        first = await large(w, listed(MANY - 10), (0, 0), max_wait_s=0)
        more = [want("orders", number, 0) for number in range(10)] + listed(MANY - 10)
        task = asyncio.ensure_future(
            large(w, more * 3, (first.session_id, 1), forgotten=[("orders", number) for number in range(MANY)])
        )
        for _ in range(turns):
            await asyncio.sleep(0)
        await w.fetch(session=(first.session_id, -1), max_wait_s=0)
        found = await task
        assert found.error in (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.NONE)
        await asyncio.sleep(1)
        assert (len(w.fetch_service.poll), len(w.fetch_service.sessions), w.fetch_service.sessions.partitions) == (
            0,
            0,
            0,
        )


@pytest.mark.parametrize("turns", range(8))
async def test_a_request_that_is_cancelled_in_a_pause_leaves_what_it_has_ended(turns: int) -> None:
    """End the client while its session is closed, or while partitions are forgotten: nobody follows them then."""
    async with fetching() as w:
        first = await large(w, listed(MANY - 10), (0, 0), max_wait_s=0)
        gone = [("orders", number) for number in range(MANY)]
        for session, forgotten in (((first.session_id, 1), gone), ((first.session_id, 0), [])):
            task = asyncio.ensure_future(large(w, listed() * 2, session, forgotten=forgotten, max_wait_s=60))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
        await asyncio.sleep(1)
        for held in list(w.fetch_service.sessions._sessions.values()):
            w.fetch_service.end_session(held)
        await asyncio.sleep(1)
        assert len(w.fetch_service.poll) == 0

"""Admission of large requests: the bodies at work are bounded, and no full collection comes meanwhile."""

from __future__ import annotations

import asyncio
import gc

import pytest

from bmq.endpoint import large_requests
from bmq.endpoint.large_requests import BODIES_MAX, FULL_COLLECTION_AFTER, PARTITIONS_MAX, LargeRequests


async def test_bodies_beyond_the_bound_wait_and_an_early_leave_lets_the_next_one_in() -> None:
    large, order = LargeRequests(), list[str]()

    async def second() -> None:
        async with large.admitted(1):
            order.append("second")

    async with large.admitted(BODIES_MAX) as leave:
        waiting = asyncio.create_task(second())
        await asyncio.sleep(1)
        assert order == []
        leave()
        leave()  # without effect
        await waiting
        order.append("first")
    assert order == ["second", "first"]


async def test_a_body_larger_than_the_bound_is_admitted_alone() -> None:
    large = LargeRequests()
    async with large.admitted(10 * BODIES_MAX), large.produced(10 * PARTITIONS_MAX):
        waiting = asyncio.create_task(asyncio.wait_for(large.admitted(1).__aenter__(), 1))
        with pytest.raises(TimeoutError):
            await waiting


async def test_full_collections_are_off_until_the_last_large_request_has_ended() -> None:
    large, before = LargeRequests(), gc.get_threshold()
    async with large.admitted(1):
        async with large.produced(1):
            assert gc.get_threshold() == (*before[:2], large_requests._NEVER)
        assert gc.get_threshold()[2] == large_requests._NEVER
    assert gc.get_threshold() == before


async def test_large_requests_without_a_pause_allow_a_full_collection_now_and_then() -> None:
    large, before, allowed = LargeRequests(), gc.get_threshold(), 0
    async with large.admitted(1):
        for _ in range(2 * FULL_COLLECTION_AFTER):
            async with large.produced(1):
                allowed += gc.get_threshold() == before
    assert 1 <= allowed <= 4
    assert gc.get_threshold() == before

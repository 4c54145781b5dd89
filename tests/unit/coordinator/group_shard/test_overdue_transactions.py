"""Transactions that hold a shard's log start back: their age, and the log line that names the oldest."""

from __future__ import annotations

import asyncio
import logging

import pytest

from bmq.core.errors import ErrorCode
from tests.unit.coordinator.fakes import World, running
from tests.unit.coordinator.txn_requests import end, txn_commit

LONGEST_MS = 60_000
LINE = "transaction.max.timeout.ms"


def _world() -> World:
    return World(expiry_interval_s=10.0, transaction_timeout_max_ms=LONGEST_MS)


def _lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if LINE in each.getMessage()]


@pytest.mark.parametrize("crashes", [False, True])
async def test_a_transaction_is_as_old_as_its_first_offset_after_a_replay_too(*, crashes: bool) -> None:
    async with running(_world()) as world:
        assert world.coordinator.oldest_pending_s == 0
        assert await txn_commit(world, "g", 1, producer=1) is ErrorCode.NONE
        await asyncio.sleep(30)
        assert await txn_commit(world, "g", 2, producer=1) is ErrorCode.NONE
        assert await txn_commit(world, "h", 3, producer=2) is ErrorCode.NONE
        if crashes:
            await world.crash()
            await world.coordinator.ready("g")
        assert world.coordinator.oldest_pending_s == pytest.approx(30, abs=0.5)
        assert await end(world, 1) is ErrorCode.NONE
        assert world.coordinator.oldest_pending_s < 1
        assert await end(world, 2) is ErrorCode.NONE
        assert world.coordinator.oldest_pending_s == 0


@pytest.mark.parametrize("crashes", [False, True])
async def test_a_transaction_past_the_longest_time_out_is_named_once(
    caplog: pytest.LogCaptureFixture, *, crashes: bool
) -> None:
    caplog.set_level(logging.WARNING)
    async with running(_world()) as world:
        assert await world.commit("g", 1) == 0
        assert await txn_commit(world, "g", 5, producer=7, epoch=3) is ErrorCode.NONE
        first_offset = world.log.next_offset - 1
        await asyncio.sleep(1)
        assert await txn_commit(world, "g", 6, producer=8) is ErrorCode.NONE
        if crashes:
            await world.crash()
        await asyncio.sleep(LONGEST_MS / 1000 - 5)
        assert not _lines(caplog)
        await asyncio.sleep(60)
        (line,) = _lines(caplog)
        for part in ("producer 7", "epoch 3", f"offset {first_offset} ", "like it: 1"):
            assert part in line


async def test_transactions_that_end_in_time_are_not_named(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    async with running(_world()) as world:
        for number in range(5):
            assert await txn_commit(world, "g", number, epoch=number) is ErrorCode.NONE
            await asyncio.sleep(LONGEST_MS / 1000 - 10)
            assert await end(world, epoch=number) is ErrorCode.NONE
        await asyncio.sleep(30)
    assert not _lines(caplog)

"""Ticks of a partition: its machine is asked when a deadline has come, and at no other time."""

from __future__ import annotations

import asyncio

import pytest

from bmq.broker import events as ev
from bmq.broker.events import Effect, Event
from bmq.broker.partition.machine import PartitionMachine
from tests.unit.broker.world import batch, world

WRITES = 100
PAUSE_S = 0.1


@pytest.mark.slow
async def test_a_partition_that_is_written_ticks_for_its_checkpoints_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flush sets a timer, for a pipeline that hangs: once it is acknowledged, the timer costs the machine nothing."""
    ticks = 0
    handle = PartitionMachine.handle

    def counted(machine: PartitionMachine, event: Event, now_ms: int) -> list[Effect]:
        nonlocal ticks
        ticks += type(event) is ev.Tick
        return handle(machine, event, now_ms)

    async with world() as w:
        w.topic()
        assert (await w.produce_one(batch())).error_code == 0
        monkeypatch.setattr(PartitionMachine, "handle", counted)
        for _ in range(WRITES):
            assert (await w.produce_one(batch())).error_code == 0
            await asyncio.sleep(PAUSE_S)
        assert 0 < ticks <= WRITES * PAUSE_S * 1000 / w.broker.config.checkpoint_ms + 1


@pytest.mark.slow
async def test_timers_of_a_partition_do_not_grow_with_its_flushes() -> None:
    """A flush sets a nearer timer than the one that runs; the overtaken one must not set itself again for ever."""
    async with world() as w:
        w.topic()
        assert (await w.produce_one(batch())).error_code == 0
        timers = w.broker.context.timers
        before = len(timers)
        for _ in range(3 * WRITES):
            assert (await w.produce_one(batch())).error_code == 0
            await asyncio.sleep(10 * PAUSE_S)
            assert len(timers) <= before + 4

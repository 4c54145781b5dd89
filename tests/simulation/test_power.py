"""flush.mode=hsync: what was acknowledged or shown survives a loss of power to all machines, through takeovers too."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from bmq.storage.memory import Faults
from bmq.storage.memory.appender import MemoryAppender
from tests.harness.waiting import until
from tests.simulation.stories import HUNG, delete_records, nodes_of, owner, record_of, story, write, writer_of
from tests.simulation.world import SMALL_LOG, Process, Sent, World, make

SYNCED = replace(SMALL_LOG, flush_sync=True)


def _appender(process: Process) -> MemoryAppender:
    segment = writer_of(process).machine.current
    assert segment is not None
    appender = writer_of(process).files[segment.entry.spare]
    assert isinstance(appender, MemoryAppender)
    return appender


async def _leave_unsynced_tail(world: World, process: Process) -> None:
    """Every datanode has the bytes of batch 3 in memory; its sync is not done."""
    world.storage.faults = HUNG
    tail = writer_of(process).append(make(1, 3, pid=1, size=100))
    appender = _appender(process)
    await until(lambda: appender.pending == 1)
    for replica in appender.replicas:
        replica.length = appender.position
    assert not tail.done()


@pytest.mark.parametrize("takeovers", [1, 2])
def test_rule_1_what_a_takeover_adopts_is_synced_before_it_is_acknowledged(takeovers: int) -> None:
    """Keep a whole batch behind the last acknowledged one: a producer that sends it again gets an acknowledgement."""

    async def body(world: World) -> None:
        process = await owner(world)
        await write(process, range(3))
        await _leave_unsynced_tail(world, process)
        process.crash()
        world.storage.faults = Faults()
        for _ in range(takeovers):
            process.crash()
            process = await owner(world)
            assert writer_of(process).machine.high_watermark == 4, "the story needs the tail to be kept"
        offset = await writer_of(process).append(make(1, 3, pid=1, size=100))
        world.judge.acknowledge(Sent(1, 3), offset)
        world.lose_power()

    story(body, log_config=SYNCED)


def test_rule_1_what_a_failed_pipeline_leaves_behind_is_synced_when_it_is_closed() -> None:
    """A closed file is as long as the NameNode says, or it cannot be read at all."""

    async def body(world: World) -> None:
        process = await owner(world)
        await write(process, range(3))
        await _leave_unsynced_tail(world, process)
        world.storage.faults = Faults()
        world.storage.kill_datanode(nodes_of(process)[0])
        await until(lambda: writer_of(process).machine.high_watermark == 4)
        await asyncio.sleep(5)
        assert len(record_of(world).segments) == 2
        world.lose_power()

    story(body, log_config=SYNCED)


def test_rule_10_a_confirmed_log_start_survives_a_loss_of_power() -> None:
    """Confirm a log start, which stands in the journal alone until the next segment is closed, and lose power."""

    async def body(world: World) -> None:
        process = await owner(world)
        await write(process, range(6))
        await asyncio.sleep(10)
        await delete_records(process, 4)
        world.lose_power()
        assert writer_of(await owner(world)).machine.log_start == 4

    story(body, log_config=SYNCED)

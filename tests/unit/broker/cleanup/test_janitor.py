"""The rounds of a broker's upkeep: what they cost, what they give up, and that nothing is lost under faults."""

from __future__ import annotations

import asyncio
import random
import uuid
from dataclasses import replace
from typing import cast

import pytest

from bmq.broker.cleanup.config import JanitorConfig
from bmq.broker.cleanup.janitor import COST_OF_NEW, Janitor
from bmq.broker.config import LogConfig
from bmq.broker.partition.driver import PartitionDriver
from bmq.broker.partition.states import PartitionState
from bmq.core.aio.turns import ELEMENTS_A_TURN
from bmq.core.model import PartitionKey
from bmq.meta import ownership
from bmq.meta.kv import Put
from bmq.storage import layout
from bmq.storage.memory import Faults
from tests.harness.loop_stops import TurnCounter
from tests.harness.seeds import seeds
from tests.unit.broker.cleanup.upkeep import CONFIG, HOUR_MS, KEY, SMALL, World
from tests.unit.broker.cluster import cluster

pytestmark = [pytest.mark.slow, pytest.mark.leaves_tasks]


async def test_an_idle_partition_costs_no_call_at_all() -> None:
    world = World()
    owner = await world.owner("a", replace(SMALL, retention_ms=24 * HOUR_MS))
    await owner.send(7)
    await owner.rounds()
    jobs = 0
    while not owner.driver.machine.is_all_closed:
        jobs += await owner.round(30)
    jobs += await owner.round(30)
    assert jobs == 1, "one look at the segment that was closed"
    calls = 0
    plain = owner.steps.call

    async def counted(*args: object, **kwargs: object) -> object:
        nonlocal calls
        calls += 1
        return await plain(*args, **kwargs)  # type: ignore[arg-type]

    owner.steps.call = counted  # type: ignore[method-assign, assignment]
    for _ in range(15):
        assert await owner.round(30) == 0
    assert calls == 0


async def test_an_undecodable_record_ends_neither_the_round_nor_its_broker() -> None:
    """Damage a partition's record: only that partition is OFFLINE, and no journal is removed, since the record may name
    it."""

    world = World()
    config = JanitorConfig(journal_sweep_ms=60_000, journal_grace_ms=60_000)
    gone = await world.owner("gone", janitor=config)
    gone.die()
    owner = await world.owner("a", replace(SMALL, retention_ms=HOUR_MS, file_delete_delay_ms=0), config)
    await owner.send(6, timestamp=0)
    await asyncio.sleep(HOUR_MS / 1000)
    await owner.kv.commit([], [Put(ownership.partition_key("bmq", KEY), b"what?")])
    for _ in range(5):
        await owner.round(60)
    assert owner.driver.machine.state is PartitionState.OFFLINE
    assert "gone-00000001.jnl" in await world.names(layout.JOURNALS)
    assert owner.janitor.failures > 0


async def test_a_job_that_fails_is_counted_and_tried_again() -> None:
    world = World()
    owner = await world.owner("a", replace(SMALL, retention_ms=HOUR_MS))
    await owner.send(6, timestamp=0)
    world.storage.faults = Faults(unavailable=1.0)
    await owner.round()
    assert owner.janitor.failures == 2  # retention and merging
    assert owner.log_start == 0
    world.storage.faults = Faults()
    await owner.rounds()
    assert owner.log_start == 0
    await owner.rounds(61)
    assert owner.log_start == 3


async def test_a_stuck_partition_is_given_up_in_time() -> None:
    world = World()
    owner = await world.owner("a", replace(SMALL, retention_ms=HOUR_MS), replace(CONFIG, step_timeout_ms=1000))
    await owner.send(6, timestamp=0)
    owner.steps.pause()
    await owner.round()
    assert owner.janitor.failures == 2
    owner.steps.resume()
    await owner.rounds(61)
    assert owner.log_start == 3


async def test_upkeep_runs_until_it_is_cancelled() -> None:
    world = World()
    owner = await world.owner("a", replace(SMALL, retention_ms=HOUR_MS))
    await owner.send(9, timestamp=0)
    task = asyncio.create_task(owner.janitor.run())
    await asyncio.sleep(200)
    assert await world.logs() == [6]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("seed", seeds(3, 100))
async def test_upkeep_under_faults_loses_no_record(seed: int) -> None:
    """Everything at once, storage failing now and then, owners dying: what is kept is what was sent."""

    world = World()
    rng = random.Random(seed)
    config = replace(SMALL, segment_bytes=400, retention_ms=20 * 60_000, file_delete_delay_ms=5_000)
    janitor = JanitorConfig(grace_ms=60_000, merge_after=2, retry_ms=1_000, sweep_ms=120_000)
    for turn in range(4):
        world.storage.faults = Faults()
        owner = await world.owner(f"b{turn}", config, janitor)
        world.storage.faults = Faults(unavailable=0.04, lost_answer=0.03, call_s=(0, 0.01))
        for _ in range(15):
            owner.configure(segment_bytes=400)
            await owner.send(rng.randrange(8))
            owner.configure(segment_bytes=rng.choice((400, 3_000)))
            await owner.round(rng.choice((1, 30, 100)))
        world.storage.faults = Faults()
        await asyncio.sleep(5)
        start, end = owner.log_start, owner.watermark
        assert end == len(world.sent)
        assert await world.records(start, end) == world.sent[start:]
        if turn < 3:
            owner.die()
    await owner.round(1300)
    await owner.round(10)
    assert (start := owner.log_start) > 0
    assert await world.records(start, end) == world.sent[start:end]
    assert (await world.logs())[0] <= start


TOPIC_ID = uuid.UUID(int=1)


class Held:
    """A writer and its partition, as far as a round looks at it.  ``looks`` counts that."""

    def __init__(self, number: int, looks: TurnCounter) -> None:
        self.key = PartitionKey(TOPIC_ID, number)
        self.machine = self
        self.record = ownership.PartitionRecord()
        self.config = LogConfig()
        self.log_start = 0
        self.is_all_closed = True
        self._looks = looks

    @property
    def state(self) -> PartitionState:
        self._looks.count()
        return PartitionState.WRITE


async def test_a_round_checks_many_partitions_in_turns_of_the_loop() -> None:
    """New ones cost more: there are fewer of them in a turn.  Partitions that go meanwhile are forgotten."""

    async with cluster("a") as made:
        looks = TurnCounter()
        held = [Held(number, looks) for number in range(2 * ELEMENTS_A_TURN + 500)]
        janitor = Janitor(made["a"].broker.context, lambda: cast(list[PartitionDriver], held), None, random.Random(1))
        await janitor._notice(0)
        assert looks.take() == [ELEMENTS_A_TURN // COST_OF_NEW] * (len(held) * COST_OF_NEW // ELEMENTS_A_TURN)
        await janitor._notice(1_000)
        assert looks.take() == [ELEMENTS_A_TURN, ELEMENTS_A_TURN, 500]
        task = asyncio.ensure_future(janitor._notice(2_000))
        await asyncio.sleep(0)
        del held[10:]
        await task
        await janitor._notice(3_000)
        assert len(janitor.queue.states) == 10

"""Histories of one compacted log: rounds of cleaning beside all misfortunes of its owners."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random
from typing import Any

from bmq.broker.config import LogConfig
from bmq.meta import ownership
from bmq.meta.ownership import Swap
from bmq.storage.cleaning.plan import NO_MAX_LAG_MS, CleaningConfig, Reason
from bmq.storage.layout import base_name
from tests.harness.waiting import now
from tests.simulation.frail_files import ROUND_STEPS
from tests.simulation.judge import KEY, PATH
from tests.simulation.keyed_clients import KeyedProducer, KeyedReader, trim_rarely
from tests.simulation.keyed_judge import KeyedJudge
from tests.simulation.partition_events import Events
from tests.simulation.world import BUSY, SMALL_LOG, Process, World

CLEANED_S = 400.0
"""Fair weather until a log is cleaned: the janitor tries a job that failed again after its step's time."""
CLEANING = replace(BUSY, interval_ms=700, clean_ms=500, retry_ms=2_000)
_AT_REST = (Reason.OPEN_SEGMENT, Reason.BELOW_RATIO)


class CompactedProcess(Process):
    """A process that may also end right after its record got a swap, or lost it."""

    async def open(self) -> None:
        await super().open()
        driver: Any = self.driver
        if driver is None or "store_swap" in vars(driver):
            return
        store = driver.store_swap

        async def watched(swap: Swap | None) -> None:
            await store(swap)
            if self.fs.last_step == ("no swap" if swap is None else "swap"):
                await self.fs.end()

        driver.store_swap = watched


class CompactedWorld(World):
    """A world of one compacted log, whose judge knows its records by key."""

    judge: KeyedJudge

    def __init__(self, seed: int, *, log_config: LogConfig, **more: Any) -> None:
        super().__init__(seed, log_config=log_config, **more)
        self.judge = KeyedJudge(
            retention_ms=log_config.retention_ms, delete_retention_ms=log_config.cleaning.delete_retention_ms
        )
        self.janitor_config = CLEANING

    def process(self, name: str | None = None) -> Process:
        """Start a process."""
        process = CompactedProcess(self, name or f"p{len(self.processes)}")
        process.start()
        return process

    @property
    def rounds(self) -> int:
        """Rounds that all processes have completed."""
        return sum(process.broker.janitor.cleaning.cleaner.rounds for process in self.processes)

    async def check_cleaned(self) -> None:
        """Wait, in fair weather, until the log is clean and nothing of a round is left."""
        for process in self.processes:
            if process is not self.last:
                process.crash()
        end = now() + CLEANED_S
        while left := await self.left_of(self.last):
            assert now() < end, f"the log is not cleaned: {left}"
            await asyncio.sleep(1.0)

    async def left_of(self, process: Process) -> str:
        """Return what the owner has left of a round, or why there has to be one; "" if the log is at rest."""
        assert process.driver is not None
        machine, janitor = process.driver.machine, process.broker.janitor
        entry = self.store.get(ownership.partition_key("bmq", KEY))
        assert entry is not None
        if machine.record.swap is not None or ownership.decode(entry.value).swap is not None:
            return "the record has a swap"
        drafts = [base_name(status.path) async for status in process.fs.list(PATH.folder)]
        drafts = [name for name in drafts if name.startswith(".clean")]
        if drafts:
            return f"drafts: {drafts}"
        hidden, _ = await janitor.cleaning.swapper._hidden(process.driver)
        if hidden:
            return f"hidden files: {[str(name) for name in hidden]}"
        care = janitor.queue.states.get(KEY)
        outcome = care.cleaning if care is not None else None
        if outcome is None or outcome.plan is None or outcome.plan.reason not in _AT_REST:
            return f"the cleaner's last look: {outcome}"
        if (
            self.log_config.cleaning.max_compaction_lag_ms != NO_MAX_LAG_MS
            and machine.log_start < machine.high_watermark
        ):
            newest = machine.record.segments[-1]
            if not machine.is_all_closed or newest.length > 0 or len(machine.record.segments) > 1:
                return f"the newest segment is not cleaned: {machine.record.segments}"
        return ""


def compacted_config(rng: Random) -> LogConfig:
    """Return a topic with small segments; one in three has the policy compact,delete."""
    segment_bytes = rng.choice((400, 900, 3_000))
    return replace(
        SMALL_LOG,
        segment_bytes=segment_bytes,
        segment_ms=rng.choice((500, 2_000, 10_000)),
        retention_ms=rng.choice((-1, -1, 20_000)),
        file_delete_delay_ms=rng.choice((0, 500, 3_000)),
        cleaning=CleaningConfig(
            is_compacted=True,
            min_cleanable_dirty_ratio=rng.choice((0.0, 0.2, 0.5)),
            min_compaction_lag_ms=rng.choice((0, 0, 1_000)),
            max_compaction_lag_ms=rng.choice(((1 << 63) - 1, 4_000)),
            delete_retention_ms=rng.choice((4_000, 12_000)),
            segment_bytes=segment_bytes * rng.choice((1, 4)),
        ),
    )


class RoundEvents(Events):
    """The events of a partition's owners, and the ends of a round at each of its steps."""

    def __init__(self, world: World, rng: Random) -> None:
        super().__init__(world, rng)
        self._kinds += [self._die_in_a_round] * 8 + [self._hang_in_a_round] * 4

    def _die_in_a_round(self, victim: Process) -> str:
        victim.fs.last_step, victim.hangs_s = self._rng.choice(ROUND_STEPS), 0.0
        self._after(self._rng.uniform(2.0, 5.0), self._world.start_another)
        return f"{victim.name} dies after its next {victim.fs.last_step}"

    def _hang_in_a_round(self, victim: Process) -> str:
        victim.fs.last_step, victim.hangs_s = self._rng.choice(ROUND_STEPS), self._rng.uniform(1.0, 20.0)
        self._after(self._rng.uniform(2.0, 5.0), self._world.start_another)
        return f"{victim.name} hangs for {victim.hangs_s:.1f} s after its next {victim.fs.last_step}"


async def play_compacted(world: CompactedWorld, rng: Random, events: RoundEvents) -> int:
    """Play a history of a compacted log; return how many records were acknowledged."""
    world.process()
    judge = world.judge
    reader = KeyedReader(world, judge)
    writers = [
        asyncio.create_task(KeyedProducer(world, judge, 1).run(rng.randint(10, 40))),
        asyncio.create_task(KeyedProducer(world, judge, 2).run(rng.randint(5, 20))),
        asyncio.create_task(KeyedProducer(world, judge, 3).run_transactions()),
    ]
    clients = [*writers, asyncio.create_task(reader.run())]
    if rng.random() < 0.3:
        clients.append(asyncio.create_task(trim_rarely(world)))
    for _ in range(rng.randint(1, 5)):
        await asyncio.sleep(rng.choice((1.0, 5.0, 8.0)) * rng.random())
        events.befall()
    await asyncio.sleep(rng.uniform(4.0, 10.0))
    await world.settle()
    await asyncio.wait_for(asyncio.gather(*writers), 120.0)
    await reader.look()
    await world.check_cleaned()
    await reader.look()
    await asyncio.gather(*clients)
    return len(judge.known)

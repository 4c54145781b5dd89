"""The times at which compacted logs are cleaned, and the state of a log that is shown."""

from __future__ import annotations

import asyncio
import itertools
import struct
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from bmq.broker.cleanup import log_cleaner
from bmq.broker.cleanup.cleaning_status import LogCleaning, Obstacle
from bmq.broker.cleanup.job_hold import JobHold
from bmq.broker.cleanup.log_cleaner_manager import CleaningState
from bmq.broker.config import log_config
from bmq.core.aio.steps import finish_steps
from bmq.core.logging.fields import fields_of
from bmq.core.model import PartitionKey
from bmq.meta.kv import KvError
from bmq.storage.cleaning.cleaned_file import CleanedFileWriter
from bmq.storage.cleaning.compiled_filter import CompiledFilters
from bmq.storage.cleaning.filters import RecordFilters
from bmq.storage.cleaning.plan import NOT_COMPACTED, Reason
from bmq.storage.cleaning.round import CleaningRound
from bmq.storage.filesystem import FileStatus, OutOfSpace, PipelineFailed, StorageUnavailable
from bmq.storage.layout import PartitionPath
from bmq.storage.log_segments import walk
from tests.unit.broker.cleanup.compacted_logs import (
    BRISK,
    COMPACT,
    KEYS,
    allow,
    cleaned,
    compacted,
    contents,
    hidden,
    settled,
    update,
    work_held,
)
from tests.unit.broker.cleanup.upkeep import KEY, PATH, SECOND_KEY, SECOND_PATH, Owner, World

pytestmark = [pytest.mark.slow, pytest.mark.leaves_tasks]

T = TypeVar("T")


async def test_the_state_of_a_log_outlives_its_owner() -> None:
    """Show the last round also at an owner that has not done it, from the cleaned segment's index and file."""
    world = World()
    owner = await compacted(world)
    await update(owner, 20)
    await owner.rounds()
    state = owner.janitor.cleaning.state_of(KEY)
    assert state is not None
    assert state.last is not None
    assert (state.last.bytes_before, state.last.bytes_after) == (
        owner.janitor.cleaning.cleaner.bytes_before,
        owner.janitor.cleaning.cleaner.bytes_after,
    )
    await owner.rounds(10)
    settled = owner.janitor.cleaning.state_of(KEY)
    assert settled == LogCleaning(reason="open_segment", dirty_percent=0.0, last=state.last)
    never = replace(COMPACT, cleaning=replace(COMPACT.cleaning, min_cleanable_dirty_ratio=1.0))
    second = await compacted(world, "b", never)
    assert second.janitor.cleaning.state_of(KEY) is None, "its janitor has not noticed the partition"
    await second.rounds()
    taken_over = second.janitor.cleaning.state_of(KEY)
    assert taken_over is not None
    assert taken_over.last is not None
    assert (taken_over.last.bytes_before, taken_over.last.bytes_after) == (
        state.last.bytes_before,
        state.last.bytes_after,
    )
    (cleaned,) = [each async for each in walk(world.reading, PATH) if each.is_live and each.name.cleaning]
    assert taken_over.last.ended_ms == cleaned.modified_ms


async def test_a_log_has_no_last_round_before_its_first() -> None:
    world = World()
    owner = await compacted(world)
    await owner.rounds()
    assert owner.janitor.cleaning.state_of(KEY) == LogCleaning(reason="open_segment", dirty_percent=0.0, last=None)


async def test_a_log_that_is_not_compacted_has_no_state() -> None:
    world = World()
    owner = await world.owner("a", replace(COMPACT, cleaning=NOT_COMPACTED), BRISK)
    await owner.rounds()
    assert owner.janitor.cleaning.state_of(KEY) is None


async def test_nothing_is_cleaned_before_the_level_is_in_force() -> None:
    world = World()
    owner = await world.owner("a", COMPACT, BRISK)
    last = await update(owner, 20)
    before = await world.names()
    for _ in range(3):
        await owner.rounds(10)
    assert await world.names() == before
    (care,) = owner.janitor.queue.states.values()
    assert care.cleaning is not None
    assert care.cleaning.obstacle is Obstacle.LEVEL
    allow(owner)
    for _ in range(15):
        await owner.rounds(10)
    assert owner.janitor.cleaning.cleaner.rounds == 1
    assert (await contents(world, 0, 20))[0] == last


async def test_other_jobs_go_on_beside_a_long_round_and_its_end_is_the_end_of_the_owner() -> None:
    world = World()
    owner = await compacted(world)
    last = await update(owner, 20)
    gate = work_held(owner)
    await owner.rounds()
    for _ in range(3):
        await owner.rounds(60)
    assert owner.janitor.cleaning._rounds
    assert (owner.janitor.cleaning.cleaner.rounds, owner.janitor.failures) == (0, 0)
    gate.set()
    await asyncio.sleep(1)
    assert not owner.janitor.cleaning._rounds
    assert owner.janitor.cleaning.cleaner.rounds == 1
    assert (await contents(world, 0, 20))[0] == last


async def test_nothing_is_merged_in_a_log_beside_its_round() -> None:
    """A merged file would have a source's name, and be hidden with what was appended to it."""
    world = World()
    owner = await compacted(world)
    last = await update(owner, 20)
    gate = work_held(owner)
    owner.configure(segment_bytes=2_000)
    owner.janitor.config = replace(owner.janitor.config, merge_after=1)
    await owner.round()
    before = await world.names()
    owner.configure(segment_bytes=100_000)  # all would be merged into one
    await owner.round(60)
    (care,) = owner.janitor.queue.states.values()
    care.merge_from = None
    await owner.janitor._merge(care, 0)
    assert await world.names() == before
    gate.set()
    for _ in range(3):
        await owner.round(60)
    assert owner.janitor.cleaning.cleaner.rounds == 1
    assert (await contents(world, 0, 20))[0] == last


async def test_a_round_ends_with_the_janitor() -> None:
    world = World()
    owner = await compacted(world)
    await update(owner, 20)
    before = await world.names()
    upkeep = asyncio.create_task(owner.janitor.run())
    await asyncio.sleep(0)
    upkeep.cancel()
    await asyncio.gather(upkeep, return_exceptions=True)
    await owner.rounds()
    assert owner.janitor.failures == 0
    assert await world.names() == before


async def test_a_log_below_the_ratio_waits() -> None:
    world = World()
    config = replace(COMPACT, cleaning=replace(COMPACT.cleaning, min_cleanable_dirty_ratio=0.5))
    owner = await compacted(world, config=config)
    await update(owner, 20)
    for _ in range(3):
        await owner.rounds(10)
    assert owner.janitor.cleaning.cleaner.rounds == 1
    await update(owner, 2)
    for _ in range(3):
        await owner.rounds(10)
    assert owner.janitor.cleaning.cleaner.rounds == 1
    (care,) = owner.janitor.queue.states.values()
    assert care.cleaning is not None
    assert care.cleaning.plan is not None
    assert care.cleaning.plan.reason is Reason.BELOW_RATIO


async def test_a_quiet_log_is_cleaned_when_its_transaction_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else changes: no segment is registered or closed, and no config is set."""
    world = World()
    owner = await compacted(world)
    stable = 0
    monkeypatch.setattr(type(owner.driver.machine), "last_stable_offset", property(lambda _: stable))
    await update(owner, 20)
    await owner.rounds()
    assert finish_steps(owner.janitor.cleaning.totals()).not_cleaned["open_transaction"] == 1
    await owner.rounds(10)
    stable = 20
    await owner.rounds()
    assert owner.janitor.cleaning.cleaner.rounds == 1


async def test_a_quiet_log_is_cleaned_when_the_lag_of_its_records_ends() -> None:
    """The first segments are old, and too few for the ratio; the others are old ten seconds later."""
    world = World()
    lag = replace(COMPACT.cleaning, min_cleanable_dirty_ratio=0.5, min_compaction_lag_ms=20_000)
    owner = await compacted(world, config=replace(COMPACT, cleaning=replace(lag, min_compaction_lag_ms=0)))
    await update(owner, 12)
    for _ in range(3):
        await owner.rounds(5)
    assert owner.janitor.cleaning.cleaner.rounds == 1
    owner.configure(cleaning=lag)  # type: ignore[arg-type]
    await owner.rounds(10)
    await update(owner, 20)
    await owner.rounds(5)
    (care,) = owner.janitor.queue.states.values()
    assert care.cleaning is not None
    assert care.cleaning.why_not is not None
    assert owner.janitor.cleaning.cleaner.rounds == 1
    for _ in range(4):
        await owner.rounds(5)
    assert owner.janitor.cleaning.cleaner.rounds == 2


async def test_names_that_a_takeover_left_are_dropped_before_the_last_segment_is_closed() -> None:
    """The last segment of a quiet log closes minutes later, and nothing is cleaned behind a name."""
    world = World()
    owner = await compacted(world)
    await update(owner, 20)
    await owner.rounds(10)
    machine = owner.driver.machine
    assert machine.has_old_names
    assert not machine.is_all_closed
    machine.indexed(machine.record.segments[0].name)
    await owner.round(1)
    await owner.round(1)
    assert not machine.is_all_closed
    assert not machine.has_old_names
    assert not machine.has_indexed_names


async def test_a_quiet_log_is_cleaned_up_to_its_newest_closed_segment() -> None:
    """No segment is registered any more, so the record would name the last ones, which keeps them from a round."""
    world = World()
    owner = await compacted(world)
    last = await update(owner, 20)
    await owner.rounds(10)
    assert owner.driver.machine.has_old_names
    while not owner.driver.machine.is_all_closed:
        await owner.round(30)
    for _ in range(3):
        await owner.rounds(10)
    (newest,) = owner.driver.machine.record.segments
    assert newest.is_closed
    (care,) = owner.janitor.queue.states.values()
    assert care.cleaning is not None
    assert care.cleaning.plan is not None
    assert care.cleaning.plan.end == newest.name.base == 19
    found, count = await contents(world, 0, 20)
    assert found == last
    assert count == KEYS + 1
    owner.die()
    second = await compacted(world, "b")
    assert (second.log_start, second.watermark) == (0, 20)
    assert (await contents(world, 0, 20))[0] == last


async def test_a_full_disk_fails_a_round_which_is_counted_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    owner = await compacted(world)
    last = await update(owner, 20)

    async def refuse(*_: object) -> None:
        raise OutOfSpace("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(log_cleaner, "write_once", refuse)
        await owner.rounds()
    totals = finish_steps(owner.janitor.cleaning.totals())
    assert (totals.uncleanable, totals.not_cleaned["failed"], owner.janitor.cleaning.cleaner.rounds) == (1, 1, 0)
    await owner.round(BRISK.retry_ms / 1000 + 1)
    assert finish_steps(owner.janitor.cleaning.totals()).uncleanable == 0
    assert owner.janitor.cleaning.cleaner.rounds == 1
    assert (await contents(world, 0, 20))[0] == last


async def test_a_change_of_the_settings_ends_the_pause_after_failed_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an operator see at once whether the change was the remedy."""
    world = World()
    owner = await compacted(world)
    last = await update(owner, 20)

    async def refuse(*_: object) -> None:
        raise OutOfSpace("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(log_cleaner, "write_once", refuse)
        for _ in range(8):
            await owner.round(BRISK.retry_ms * 64 / 1000)
    (care,) = owner.janitor.queue.states.values()
    assert care.paused_until - owner.broker.context.now_ms() > 16 * BRISK.retry_ms
    owner.configure(index_interval_bytes=8_192)
    await owner.round(1)
    assert owner.janitor.cleaning.cleaner.rounds == 1
    assert (await contents(world, 0, 20))[0] == last


async def test_an_error_of_the_program_fails_a_round_and_is_not_hidden(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    owner = await compacted(world)
    await update(owner, 20)
    seen: list[BaseException] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.append(context["exception"]))

    def fail(*_: object) -> None:
        raise struct.error("int too large to convert")

    with monkeypatch.context() as patch:
        patch.setattr(CleaningRound, "next_walk", fail)
        await owner.rounds()
        await update(owner, 4)  # its record changes, which is no reason to try again earlier
        for _ in range(3):
            await owner.round(2 * BRISK.clean_ms / 1000)
    assert [str(error) for error in seen] == ["int too large to convert"]
    totals = finish_steps(owner.janitor.cleaning.totals())
    assert (totals.uncleanable, totals.not_cleaned["failed"]) == (1, 1)
    (line,) = [line for line in caplog.records if "bug: a round" in line.message]
    assert line.levelname == "ERROR"
    await owner.rounds(BRISK.retry_ms * 61 / 1000)
    assert finish_steps(owner.janitor.cleaning.totals()).uncleanable == 0


async def test_a_log_that_waits_for_compiled_code_says_so() -> None:
    """Show the reason while numba compiles: half a minute on a new machine."""
    filters = Loading()
    world = World(filters)
    owner = await compacted(world)
    await update(owner, 20)
    gate = asyncio.Event()

    async def slow(call: Callable[[], T]) -> T:
        if not filters.is_loaded:
            await gate.wait()
        return call()

    owner.wiring.offload = slow
    await owner.rounds()
    waiting = LogCleaning(reason="compiling", dirty_percent=None, last=None)
    assert owner.janitor.cleaning.state_of(KEY) == waiting
    assert finish_steps(owner.janitor.cleaning.totals()).not_cleaned["compiling"] == 1
    gate.set()
    await asyncio.sleep(1)
    state = owner.janitor.cleaning.state_of(KEY)
    assert state is not None
    assert state.reason != "compiling"
    assert finish_steps(owner.janitor.cleaning.totals()).not_cleaned["compiling"] == 0
    await owner.round()
    assert owner.janitor.cleaning.cleaner.rounds == 1


class Loading(RecordFilters):
    """Filters in Python that have to be loaded first."""

    def __init__(self) -> None:
        super().__init__()
        self._is_loaded = False


class Compiling(CompiledFilters):
    """Filters in Python that a thread loads from ``begun`` until ``ends``, as compiled filters."""

    begun, ends = threading.Event(), threading.Event()

    def load_compiled(self) -> bool:
        self.begun.set()
        self.ends.wait()
        self.is_compiled = True
        return True

    def new(self, secret: bytes, buffer_bytes: int, offsets: int, records_bytes_max: int = 0) -> Any:
        return RecordFilters().new(secret, buffer_bytes, offsets, lambda: None)


async def test_a_large_log_is_cleaned_beside_the_round_that_loads_compiled_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No change of its record follows: a look that finds it too large would be its last."""
    filters, gate = RecordFilters(Compiling()), asyncio.Event()
    world = World(filters)
    owner = await settled(world)
    monkeypatch.setattr(log_cleaner, "LOG_BYTES_MAX", 1_000)

    async def offload(call: Callable[[], T]) -> T:
        if call != filters.load:
            return call()
        with ThreadPoolExecutor(1) as pool:
            loaded = pool.submit(call)
            Compiling.begun.wait()
            await gate.wait()
            Compiling.ends.set()
            return loaded.result()

    owner.wiring.offload = offload
    for _ in range(2):
        await owner.round(2)
    gate.set()
    for _ in range(2):
        await owner.rounds(60)
    assert [await cleaned(world, path) for path in (PATH, SECOND_PATH)] == [1, 1]


async def test_a_disabled_cleaner_leaves_the_log_and_completes_the_swap_of_an_earlier_owner() -> None:
    """Kafka's log.cleaner.enable is false."""
    world = World()
    first = await compacted(world)
    last = await update(first, 20)
    await first.round()
    assert await hidden(world) > 0
    first.die()
    second = await world.owner("b", COMPACT, replace(BRISK, clean_enabled=False))
    allow(second)
    last |= await update(second, 20)
    for _ in range(5):
        await second.rounds(10)
    assert second.janitor.cleaning.cleaner.rounds == 0
    assert second.janitor.cleaning.state_of(KEY) == LogCleaning(reason="disabled", dirty_percent=None, last=None)
    assert finish_steps(second.janitor.cleaning.totals()).not_cleaned["disabled"] == 1
    assert await hidden(world) == 0, "the sources of the earlier owner's cleaned segment are deleted"
    assert (await contents(world, 0, 40))[0] == last


@pytest.mark.parametrize("threads", [1, 2])
async def test_as_many_logs_are_cleaned_at_once_as_there_are_threads(threads: int) -> None:
    world = World()
    owner = await world.owner("a", COMPACT, replace(BRISK, clean_threads=threads, clean_wait_ms=1))
    allow(owner)
    first = owner.driver
    await update(owner, 20)
    owner.driver = await owner.broker.open(SECOND_PATH, SECOND_KEY, COMPACT)
    await update(owner, 20)
    cleaning, gate, waiting = owner.janitor.cleaning, asyncio.Event(), 0

    async def slow(call: Callable[[], T]) -> T:
        nonlocal waiting
        waiting += 1
        await gate.wait()
        return call()

    owner.wiring.offload = slow
    for _ in range(3):
        await owner.round(2)
    states = [owner.janitor.queue.states[key] for key in (KEY, SECOND_KEY)]
    assert waiting == sum(cleaning.is_cleaning(state) for state in states) == threads
    gate.set()
    await owner.rounds(2)
    assert cleaning.cleaner.rounds == 2
    assert (await contents(world, first.machine.log_start, 20))[1] < 20
    assert not any(cleaning.is_cleaning(state) for state in states)


async def test_threads_share_the_memory_for_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    world = World()
    owner = await world.owner("a", COMPACT, replace(BRISK, clean_threads=4, clean_buffer_bytes=4 << 20))
    allow(owner)

    def new(secret: bytes, buffer_bytes: int, offsets: int, pace: Callable[[], None]) -> Any:
        sizes.append(buffer_bytes)
        return RecordFilters().new(secret, buffer_bytes, offsets, pace)

    monkeypatch.setattr(world.filters, "new", new)
    await update(owner, 20)
    await owner.rounds()
    assert sizes == [1 << 20]


async def test_a_round_of_an_ownership_before_deletes_no_draft_of_another_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Drafts of the same process and the same sources have the same names."""
    world = World()
    owner = await settled(world)
    last, _ = await contents(world, 0, 20)
    gates: list[asyncio.Event] = []
    status = owner.steps.status

    async def slow(path: str) -> FileStatus:
        number = len(gates)
        if path.startswith(f"{PATH.folder}/0") and path.endswith(".log") and number < 2:
            gates.append(asyncio.Event())
            await gates[number].wait()
            if not number:
                raise StorageUnavailable("no response")
        return await status(path)

    monkeypatch.setattr(owner.steps, "status", slow)
    await owner.round(2)
    await owner.broker.move(KEY)
    owner.driver = await owner.broker.open(PATH, KEY, COMPACT)
    await owner.round(2)
    gates[0].set()
    for _ in range(3):
        await owner.round(2)
    assert len(gates) == 2
    assert [name for name in await world.names() if name.startswith(".clean-")]
    gates[1].set()
    await asyncio.sleep(1)
    assert await cleaned(world) == 1
    assert (await contents(world, 0, 20))[0] == last


async def test_the_next_owner_deletes_hidden_files_also_if_the_log_is_not_compacted_any_more() -> None:
    world = World()
    first = await compacted(world)
    last = await update(first, 20)
    await first.round()
    assert await hidden(world) > 0
    first.die()
    second = await world.owner("b", replace(COMPACT, cleaning=NOT_COMPACTED), BRISK)
    await second.rounds()
    assert await hidden(world) > 0, "readers of the first owner have file.delete.delay.ms to go on"
    await second.rounds(1)
    assert await hidden(world) == 0
    assert (await contents(world, 0, 20))[0] == last


async def test_the_pause_after_a_round_that_fails_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round that fails reads the whole log for nothing; a change of the record does not end the pause."""
    world = World()
    owner = await compacted(world)
    await update(owner, 20)
    close, tried_s = CleanedFileWriter.close, list[int]()

    async def fails(self: CleanedFileWriter) -> None:
        tried_s.append(owner.broker.context.now_ms() // 1_000)
        raise OutOfSpace("no space left on device")

    monkeypatch.setattr(CleanedFileWriter, "close", fails)
    for number in range(500):
        await owner.round(30)
        if number % 50 == 0:
            await update(owner, 4)
    pauses = [(after - before) // 60 for before, after in itertools.pairwise(tried_s)]
    assert pauses[:8] == [1, 2, 4, 8, 16, 32, 60, 60]
    monkeypatch.setattr(CleanedFileWriter, "close", close)
    await owner.rounds(3_700)
    assert owner.janitor.cleaning.cleaner.rounds == 1
    await update(owner, 8)
    monkeypatch.setattr(CleanedFileWriter, "close", fails)
    tried_s.clear()
    for _ in range(8):
        await owner.round(30)
    assert (tried_s[1] - tried_s[0]) // 60 == 1, "a round that succeeds ends the growth"


async def open_logs(owner: Owner, updates: dict[int, int]) -> None:
    """Open a compacted log for each number, with its count of updates."""
    for number, count in updates.items():
        path = PartitionPath("t", str(KEY.topic_id), number)
        owner.driver = await owner.broker.open(path, PartitionKey(KEY.topic_id, number), owner.driver.machine.config)
        await update(owner, count)


async def test_the_dirtiest_of_the_logs_that_are_due_is_cleaned_first(caplog: pytest.LogCaptureFixture) -> None:
    """All three logs have a clean part of the same size; the log looked at first is the cleanest."""
    world = World()
    owner = await compacted(world)
    await update(owner, 20)
    await open_logs(owner, {1: 20, 2: 20})
    for _ in range(3):
        await owner.rounds(5)
    assert owner.janitor.cleaning.cleaner.rounds == 3
    caplog.set_level("INFO")
    for number, count in ((0, 6), (1, 30), (2, 14)):
        driver = owner.broker.get(PartitionKey(KEY.topic_id, number))
        assert driver is not None
        owner.driver = driver
        await update(owner, count)
    for _ in range(3):
        await owner.rounds(5)
    lines = [line for line in caplog.records if "a compacted log was cleaned" in line.message]
    assert [fields_of(line)["partition"] for line in lines] == [1, 2, 0]


def busy(owner: Owner) -> None:
    """Have all threads of the owner work on logs elsewhere."""
    turns: set[Any] = owner.janitor.cleaning._being_cleaned
    turns.update(CleaningState(owner.driver) for _ in range(owner.janitor.cleaning._threads))


async def waiting(owner: Owner, updates: dict[int, int]) -> list[Any]:
    """Return the states of compacted logs that were cleaned once, and are due again after so many updates.

    All threads are taken meanwhile: looks go on, and no round begins.
    """
    await open_logs(owner, dict.fromkeys(updates, 20))
    for _ in range(4):
        await owner.rounds(5)
    manager = owner.janitor.cleaning
    assert manager.cleaner.rounds == len(updates)
    busy(owner)
    for number, count in updates.items():
        driver = owner.broker.get(PartitionKey(KEY.topic_id, number))
        assert driver is not None
        owner.driver = driver
        await update(owner, count)
    for _ in range(3):
        await owner.rounds(5)
    states = [owner.janitor.queue.states[PartitionKey(KEY.topic_id, number)] for number in updates]
    assert all(state in manager._due for state in states)
    return states


async def test_a_log_that_passes_its_lag_while_it_waits_is_cleaned_first(caplog: pytest.LogCaptureFixture) -> None:
    """Let max.compaction.lag.ms hold for a log that was due before, by its ratio: its record does not change."""
    world = World()
    owner = await compacted(world)
    lag_ms = 1_800_000
    await waiting(owner, {1: 40, 2: 4})
    owner.configure(cleaning=replace(COMPACT.cleaning, max_compaction_lag_ms=lag_ms))  # type: ignore[arg-type]
    await owner.round(5)
    await asyncio.sleep(lag_ms / 1000)  # no look follows
    owner.janitor.cleaning._being_cleaned.clear()
    caplog.set_level("INFO")
    await owner.janitor.cleaning.begin_due()
    lines = [line for line in caplog.records if "a compacted log was cleaned" in line.message]
    assert [fields_of(line)["partition"] for line in lines] == [2, 1]


async def test_a_turn_in_which_a_job_holds_the_log_does_not_end_its_wait() -> None:
    """Holds of jobs, pauses and unsettled drafts send a log that is due back to its look."""
    world = World()
    owner = await compacted(world)
    held, other = await waiting(owner, {1: 4, 2: 40})
    manager = owner.janitor.cleaning
    before = manager._due._due[held].since_ms
    manager._being_cleaned.clear()
    manager.forget(other)
    held.hold = JobHold(job="job-1", until_ms=owner.broker.context.now_ms() + 60_000)
    assert await manager.begin_due() == 0
    assert await manager.begin_due() == 0, "a look follows the hold"
    busy(owner)
    await owner.round(61)
    assert manager._due._due[held].since_ms == before
    manager._being_cleaned.clear()
    await owner.round(1)
    assert held not in manager._due


async def test_a_log_that_has_gone_waits_no_more_while_all_threads_are_busy() -> None:
    """A partition that moves to and fro has another state each time."""
    world = World()
    owner = await compacted(world)
    gone, left = await waiting(owner, {1: 4, 2: 4})
    manager = owner.janitor.cleaning
    await owner.broker.move(gone.driver.machine.key)
    await owner.round(1)
    assert gone not in manager._due
    assert left in manager._due
    manager.forget(left)
    assert (manager._due._due, manager._due._valid) == ({}, {})


async def test_the_choice_of_a_log_makes_no_lock_of_a_log_that_waits() -> None:
    world = World()
    owner = await compacted(world)
    states = await waiting(owner, {1: 4, 2: 40})
    owner.janitor.cleaning._being_cleaned.clear()
    for state in states:
        state._names_lock = None
    await owner.janitor.cleaning.begin_due()
    assert owner.janitor.cleaning.cleaner.rounds > 2
    assert [state._names_lock for state in states] == [None, None]


async def test_a_round_costs_no_look_at_logs_that_are_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    listed: dict[int, int] = {}
    for idle in (0, 30):
        world = World()
        owner = await compacted(world)
        await open_logs(owner, dict.fromkeys(range(1, 1 + idle), 0))
        for _ in range(30):
            await owner.rounds(30)
        owner.driver = next(driver for driver in owner.held() if driver.machine.key == KEY)
        list_folder, count = owner.steps.list, 0

        def counted(*given: Any, **named: Any) -> Any:
            nonlocal count
            count += 1
            return list_folder(*given, **named)  # noqa: B023 - called before the next turn

        with monkeypatch.context() as patch:
            patch.setattr(owner.steps, "list", counted)
            await update(owner, 20)
            for _ in range(3):
                await owner.rounds(5)
        assert owner.janitor.cleaning.cleaner.rounds == 1
        listed[idle] = count
    assert listed[30] == listed[0]


async def test_a_quiet_log_is_cleaned_past_max_compaction_lag_whatever_its_ratio() -> None:
    """The lag closes the open segment; an empty segment follows it, which the record names instead."""
    world = World()
    lag_ms = 60_000
    configs = {
        "cleanup.policy": "compact",
        "segment.bytes": "700",
        "min.cleanable.dirty.ratio": "1.0",
        "max.compaction.lag.ms": str(lag_ms),
    }
    owner = await compacted(world, config=log_config(configs, 1))
    last = await update(owner, 20)
    for _ in range(11):
        await owner.round(5)
        assert owner.janitor.cleaning.cleaner.rounds == 0, "no record is past the lag"
    assert not owner.driver.machine.is_all_closed, "the last segment is open until the lag is over"
    for _ in range(4):
        await owner.round(5)
    machine, cleaning = owner.driver.machine, owner.janitor.cleaning
    assert machine.is_all_closed, "after the lag, long before a segment without produces is closed"
    assert machine.broker.idle_close_ms > 75_000
    assert cleaning.cleaner.rounds == 1
    for _ in range(40):  # behind file.delete.delay.ms
        await owner.round(5)
    assert cleaning.cleaner.rounds == 2, "the newest segment is cleaned behind an empty one"
    assert finish_steps(cleaning.totals()).max_delay_s == 0
    assert await contents(world, 0, 20) == (last, KEYS)
    (newest,) = machine.record.segments
    assert (newest.name.base, newest.length, newest.end_offset) == (20, 0, 20)
    for _ in range(50):
        await owner.round(60)
    assert cleaning.cleaner.rounds == 2, "nothing is left to be cleaned"
    assert machine.record.segments == (newest,), "no further segment comes"
    assert await hidden(world) == 0


@pytest.mark.parametrize("how", ["moves", "dies"])
async def test_a_successor_goes_on_behind_an_empty_segment(how: str) -> None:
    """Open a log from the index of its empty segment: the segment before is cleaned, and its first file is deleted."""
    world = World()
    config = replace(COMPACT, segment_bytes=2_000, cleaning=replace(COMPACT.cleaning, max_compaction_lag_ms=60_000))
    owner = await compacted(world, config=config)
    last = await update(owner, 20)
    for _ in range(60):
        await owner.round(10)
    (empty,) = owner.driver.machine.record.segments
    assert empty.length == 0
    assert empty.name.base == 20
    assert await cleaned(world) == 1
    if how == "moves":
        await owner.broker.move(KEY)
    owner.die()
    heir = await compacted(world, "b", config)
    assert heir.watermark == 20
    assert heir.driver.machine.record.segments == (empty,)
    for _ in range(30):
        await heir.round(10)
    assert heir.driver.machine.record.segments == (empty,), "no empty segment follows an empty one"
    last |= await update(heir, 2)
    assert max(offset for offset, _ in last.values()) == 21
    assert heir.driver.machine.record.segments[0] == empty
    for _ in range(60):
        await heir.round(10)
    assert await contents(world, 0, 22) == (last, KEYS)
    (newest,) = heir.driver.machine.record.segments
    assert (newest.length, newest.name.base) == (0, 22)
    assert empty.name not in [one.name async for one in walk(world.reading, PATH)], "the file without records is gone"
    assert await hidden(world) == 0


@pytest.mark.parametrize("lost", ["index", "index and journals", "file"])
async def test_a_successor_names_no_segment_that_was_cleaned_behind_a_lost_index(
    lost: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The journal's last checkpoint is of the segment before, whose file is gone; the record must not get its name."""
    world = World()
    config = replace(COMPACT, segment_bytes=2_000, cleaning=replace(COMPACT.cleaning, max_compaction_lag_ms=60_000))
    owner = await compacted(world, config=config)
    last = await update(owner, 20)
    for _ in range(60):
        await owner.round(10)
    (empty,) = owner.driver.machine.record.segments
    assert empty.length == 0
    owner.die()
    if lost == "file":
        await world.reading.delete(PATH.log(empty.name))
    else:
        await world.reading.delete(PATH.idx(empty.name))
    if lost == "index and journals":
        await world.reading.delete("/journals", recursive=True)
    heir = await compacted(world, "b", config)
    assert heir.watermark == 20
    last |= await update(heir, 1)
    before, after = heir.driver.machine.record.segments
    assert before.name == empty.name
    assert after.name.base == 20
    heir.die()
    third = await compacted(world, "c", config)
    last |= await update(third, 1)
    vanished = [record.message for record in caplog.records if "vanished" in record.message]
    assert bool(vanished) == (lost == "file"), "its own file alone is missed"
    for _ in range(60):
        await third.round(10)
    assert await contents(world, 0, 22) == (last, KEYS)


async def test_a_quiet_log_without_a_lag_registers_no_empty_segment() -> None:
    world = World()
    owner = await compacted(world)
    await update(owner, 20)
    for _ in range(60):
        await owner.round(60)
    (newest,) = owner.driver.machine.record.segments
    assert newest.length > 0


async def test_a_quiet_log_is_cleaned_once_storage_takes_an_empty_segment() -> None:
    world = World()
    config = replace(COMPACT, cleaning=replace(COMPACT.cleaning, max_compaction_lag_ms=600_000))
    owner = await compacted(world, config=config)
    last = await update(owner, 20)
    for _ in range(20):
        await owner.round(20)
    assert owner.driver.machine.is_all_closed
    world.storage.is_full = True
    for _ in range(20):
        await owner.round(60)
    (newest,) = owner.driver.machine.record.segments
    assert newest.length > 0
    world.storage.is_full = False
    for _ in range(20):
        await owner.round(20)
    assert await contents(world, 0, 20) == (last, KEYS)


@pytest.mark.parametrize("error", [StorageUnavailable, PipelineFailed, KvError, TimeoutError])
async def test_the_pause_after_an_outage_does_not_grow(error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    """A log is cleaned a minute after an outage of any length; the failures before it still count."""
    world = World()
    owner = await compacted(world)
    await update(owner, 20)
    close, tried_s = CleanedFileWriter.close, list[int]()
    failure: Exception = OutOfSpace("no space left on device")

    async def fails(self: CleanedFileWriter) -> None:
        tried_s.append(owner.broker.context.now_ms() // 1_000)
        raise failure

    async def pauses(rounds: int) -> list[int]:
        tried_s.clear()
        for _ in range(rounds):
            await owner.round(30)
        return [(after - before) // 60 for before, after in itertools.pairwise(tried_s)]

    monkeypatch.setattr(CleanedFileWriter, "close", fails)
    assert await pauses(8) == [1, 2]
    failure = error("away")
    found = await pauses(60)
    assert len(found) > 20
    assert set(found) == {1}
    failure = OutOfSpace("no space left on device")
    assert await pauses(60) == [8, 16], "three have failed before the outage"
    failure = error("away")
    assert (await pauses(80))[-1] == 1
    monkeypatch.setattr(CleanedFileWriter, "close", close)
    await owner.rounds(61)
    assert owner.janitor.cleaning.cleaner.rounds == 1

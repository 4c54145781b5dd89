"""Every call of a round of cleaning that changes or proves something, in turn: its owner dies, hangs or moves there.

A fixed story writes a compacted log, and has it cleaned in two files.  The owner ends its work right before or right
after one of the round's calls.  Then comes what else may befall the log (``AFTER``), beside the owner that wakes up and
goes on with its next step.  At each stage readers look for every key's last value, from every offset.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from bmq.broker.repair.rebuilt_record import SILENCE
from bmq.broker.repair.rebuilt_record import record as rebuilt
from bmq.broker.repair.scan import newest_index, read_all_journals, read_folder
from bmq.core.records.batch import Batch, build_batch
from bmq.core.records.cursor import read_batches
from bmq.meta import ownership
from bmq.meta.kv import KeyValue
from bmq.meta.kv_memory import MemoryKeyValue
from bmq.meta.ownership import Swap
from bmq.storage import layout
from bmq.storage.block_cache import BlockCache
from bmq.storage.cleaning.plan import CleaningConfig
from bmq.storage.filesystem import FileSystem, NoSuchFile
from bmq.storage.layout import base_name
from bmq.storage.log_reader import LogReader
from bmq.storage.memory import MemoryFileSystem
from tests.harness.loop import run
from tests.harness.waiting import until
from tests.simulation.compacted import CompactedProcess, CompactedWorld
from tests.simulation.histories import seeds_wanted
from tests.simulation.judge import KEY, PATH
from tests.simulation.keyed_clients import KeyedReader
from tests.simulation.keyed_judge import Pass, Update
from tests.simulation.test_crash_points import Point, Watched
from tests.simulation.world import SMALL_LOG, Process

pytestmark = pytest.mark.leaves_tasks

CALLS = {"create", "rename", "replace", "delete", "concat", "status", "get", "commit"}
HOWS = ("dies after", "hangs before", "hangs after", "moves after")
BLOCKS = 4
KEYS = 3
RECORDS = 12
MERGED_BYTES = 100_000
"""Segments of this size: all others are small, and are merged."""
RECORD_KEY = ownership.partition_key("bmq", KEY)
LOG = replace(
    SMALL_LOG,
    segment_bytes=200,
    segment_ms=1 << 40,
    file_delete_delay_ms=500,
    cleaning=CleaningConfig(
        is_compacted=True, min_cleanable_dirty_ratio=0.0, delete_retention_ms=1 << 40, segment_bytes=1_200
    ),
)
"""A segment for each record; about half of them are the sources of one cleaned segment."""


class RoundPoint(Point):
    """The ``at``-th call of a process since its log may be cleaned, until the round is over."""

    is_armed = False
    moving: asyncio.Task[Any] | None = None

    def reached(self, when: str) -> None:
        if not self.is_armed:
            return
        if not self.how.startswith("moves"):
            super().reached(when)
            return
        self.count += when == "before"
        if self.count == self.at and not self.is_reached and self.how.endswith(when):
            assert self.process is not None
            self.is_reached = True
            self.moving = asyncio.get_running_loop().create_task(self.process.broker.move(KEY))


class Story:
    """The log of one story, with its owners and readers."""

    def __init__(self, at: int, how: str, **config: Any) -> None:
        self.world = CompactedWorld(at, log_config=replace(LOG, **config))
        self.point = RoundPoint(at, how)
        self.first = CompactedProcess(self.world, "first", self._wrap)
        self.point.process = self.first
        self.heir: Process
        self.reader = KeyedReader(self.world, self.world.judge)
        self._written = 0

    def _wrap(self, fs: FileSystem, kv: KeyValue) -> tuple[Any, Any]:
        return Watched(fs, self.point, CALLS), Watched(kv, self.point, CALLS)

    async def write(self, process: Process, count: int) -> None:
        """Write so many values, in turn of the keys, each in a batch of its own."""
        judge, driver = self.world.judge, process.driver
        assert driver is not None
        for _ in range(count):
            now_ms = self.world.clock.now_ms()
            update = Update(key=b"k%d" % (self._written % KEYS), value=b"." * 100, timestamp=now_ms)
            data = build_batch([judge.make(1, self._written, update)], base_timestamp=now_ms)
            self._written += 1
            judge.append(await driver.append(memoryview(data)), [update])

    async def begin(self) -> None:
        """Write the log, and have it cleaned until the point is met or the round is over."""
        self.first.wiring.may_clean = lambda: self.point.is_armed
        self.first.start()
        await until(lambda: self.first.is_serving)
        await self.write(self.first, RECORDS // 2)
        await asyncio.sleep(60)  # the first half may expire
        await self.write(self.first, RECORDS // 2)
        await self.look(1)
        self.point.is_armed = True
        await asyncio.wait([asyncio.ensure_future(self._round())], timeout=20)
        await self.look(5)

    async def _round(self) -> None:
        while not self.point.is_reached:
            await asyncio.sleep(0.05)
            if self.first.broker.janitor.cleaning.cleaner.rounds and not await self.world.left_of(self.first):
                return

    async def succeed(self, **config: Any) -> None:
        """Have another process take the log over; it completes a swap that the record lists."""
        if self.point.moving is not None:
            await asyncio.wait([self.point.moving], timeout=10)
        entry = self.world.store.get(RECORD_KEY)
        assert entry is not None
        swap = ownership.decode(entry.value).swap
        is_whole = swap is not None and await self._has_drafts(swap)
        self.world.log_config = replace(self.world.log_config, **config)
        self.heir = self.world.process("heir")
        await until(lambda: self.heir.is_serving)
        machine = self.heir.driver.machine if self.heir.driver is not None else None
        assert machine is not None
        await until(lambda: machine.record.swap is None, 60.0, every_s=0.1)
        if is_whole:
            assert swap is not None
            await self.heir.fs.status(PATH.log(swap.name))
        await self.look()

    async def _has_drafts(self, swap: Swap) -> bool:
        fs = MemoryFileSystem(self.world.storage, "look")
        for path in swap.drafts:
            try:
                await fs.status(path)
            except NoSuchFile:
                return False
        return True

    async def spares_before(self, epoch: int) -> list[str]:
        """Return the spares of owners before this epoch."""
        fs = MemoryFileSystem(self.world.storage, "look")
        names = [base_name(status.path) async for status in fs.list(PATH.folder)]
        spares = [(name, layout.parse_spare(name)) for name in names]
        return [name for name, spare in spares if spare is not None and spare[0] < epoch]

    async def end(self) -> None:
        """Let the former owner go on, write more, and check the log once nothing of a round is left."""
        await self.write(self.heir, 2)
        await self.look()
        self.first.resume()
        await asyncio.sleep(5)
        await self.look(RECORDS)
        with_more = self.world.target()
        if with_more is self.heir:
            await self.write(self.heir, 2)
        self.point.is_armed = False  # the judge may have it take the log over at the end
        for process in self.world.processes:
            process.wiring.may_clean = lambda: True
        await self.world.settle()
        await self.look()
        await self.world.check_cleaned()
        await self.look()

    async def look(self, starts: int = 0) -> None:
        """Read the log as all readers do, and from so many first offsets; again if files are deleted meanwhile."""
        for _ in range(20):
            try:
                await self.reader.look()
                await self._look_from(starts)
                return
            except NoSuchFile:
                await asyncio.sleep(0.05)
        raise AssertionError("files are gone in each of many readings")

    async def _look_from(self, starts: int) -> None:
        judge, fs = self.world.judge, MemoryFileSystem(self.world.storage, "look")
        log = LogReader(BlockCache(fs), PATH)
        end, began_ms = judge.watermark, self.world.clock.now_ms()
        for start in range(judge.start_moved, min(judge.start_moved + starts, end)):
            at, batches = start, list[Batch]()
            while at < end:
                found = list(read_batches(memoryview(await log.read(at, 1 << 20, end))))
                assert found, f"nothing at {at}, the watermark is {end}"
                at, batches = found[-1].next_offset, batches + found
            judge.judge(Pass(start=start, end=end, began_ms=began_ms), batches, began_ms, f"a fetch from {start}")


# ------------------------------------------------------------------------------------------- what comes after


async def is_succeeded(story: Story) -> None:
    await story.succeed()


async def is_trimmed(story: Story) -> None:
    """Move the log start into the middle of the first cleaned segment."""
    await story.succeed()
    await trim(story, 3)


async def is_trimmed_to_the_second_file(story: Story) -> None:
    await story.succeed()
    await trim(story, 8)


async def trim(story: Story, offset: int) -> None:
    driver, judge = story.heir.driver, story.world.judge
    assert driver is not None
    judge.start_asked = offset
    await driver.delete_before(offset)
    story.world.confirm_start(offset)
    await story.look()


async def is_expired(story: Story) -> None:
    """Let the first half of the log expire, as with the policy compact,delete."""
    await story.succeed()
    driver, judge = story.heir.driver, story.world.judge
    assert driver is not None
    judge.retention_ms = 50_000
    driver.reconfigure(replace(story.world.log_config, retention_ms=50_000))
    await until(lambda: judge.start_moved > 0, 20.0, every_s=0.1)
    driver.reconfigure(story.world.log_config)
    await asyncio.sleep(3)
    await story.look()


async def is_merged(story: Story) -> None:
    """Have the successor merge what is left, and clean only later.

    It merges no file of the former owner before it has swept the owner's spare, nor before its record names later
    files: it registers some.
    """
    await story.succeed(segment_bytes=MERGED_BYTES)
    story.heir.wiring.may_clean = lambda: False
    driver, janitor = story.heir.driver, story.heir.broker.janitor
    assert driver is not None
    for _ in range(10):
        is_swept = not await story.spares_before(driver.machine.epoch)
        driver.reconfigure(replace(story.world.log_config, segment_bytes=LOG.segment_bytes))
        await story.write(story.heir, 2)
        driver.reconfigure(story.world.log_config)
        await asyncio.sleep(5)
        if is_swept and janitor.files_merged:
            break
    assert is_swept
    assert janitor.files_merged > 0
    await story.look()


async def is_rebuilt(story: Story) -> None:
    """Lose the store, and rebuild the partition's record from storage; the successor cleans."""
    await rebuild(story)
    await story.succeed()


async def is_rebuilt_and_merged(story: Story) -> None:
    await rebuild(story)
    await is_merged(story)


async def rebuild(story: Story) -> None:
    """Store the record that ``bmq cluster rebuild`` makes."""
    fs = MemoryFileSystem(story.world.storage, "rebuild")
    kv = MemoryKeyValue(story.world.store, random=story.world.rng)
    folder = await read_folder(fs, PATH)
    spoken = (await read_all_journals(fs)).get(KEY, SILENCE)
    made = rebuilt(PATH, folder, spoken, await newest_index(fs, PATH, folder), 1)
    _, revision = await ownership.read(kv, RECORD_KEY)
    assert isinstance(await ownership.store(kv, RECORD_KEY, made, revision), ownership.Stored)


AFTER: tuple[Callable[[Story], Awaitable[None]], ...] = (
    is_succeeded,
    is_trimmed,
    is_trimmed_to_the_second_file,
    is_expired,
    is_merged,
    is_rebuilt,
    is_rebuilt_and_merged,
)


async def play(at: int, how: str, after: Callable[[Story], Awaitable[None]]) -> tuple[int, bool]:
    """Play a story with its fault at call ``at``; return the number of calls, and whether the call was met."""
    story = Story(at, how)
    await story.begin()
    await after(story)
    await story.end()
    return story.point.count, story.point.is_reached


def test_the_story_without_a_fault_has_many_calls() -> None:
    """The loops below would be empty without them."""
    count, is_reached = run(play(0, "dies after", is_succeeded))
    assert count > 60
    assert not is_reached


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("block", range(BLOCKS))
def test_an_owner_ends_at_every_call_of_a_round(how: str, block: int) -> None:
    """No call is a bad moment to die, to hang or to lose the partition.

    A usual run has one of ``HOWS`` at a call, and one of ``AFTER``; a larger run has more.
    """
    last, _ = run(play(0, how, is_succeeded))
    turns = min(len(AFTER), seeds_wanted() // 2_000)
    for at in range(1 + block, last + 1, BLOCKS):
        is_usual = (at // BLOCKS + HOWS.index(how)) % len(HOWS) == 0
        for turn in range(turns or is_usual):
            after = AFTER[(at // BLOCKS + HOWS.index(how) + block + turn) % len(AFTER)]
            try:
                run(play(at, how, after), at)
            except BaseException as error:
                error.add_note(f"the owner {how} call {at}, then the log {after.__name__}")
                raise


@pytest.mark.parametrize("after", [is_succeeded, is_merged])
@pytest.mark.parametrize("step", ["swap", "replace .cleanidx", "rename .clean"])
def test_a_successor_completes_a_swap_before_its_owner_wakes_up(
    step: str, after: Callable[[Story], Awaitable[None]]
) -> None:
    """A late name would hide a file that was merged meanwhile, with all that was appended to it."""

    async def body() -> None:
        story = Story(0, "hangs after")
        story.first.fs.last_step, story.first.hangs_s = step, 120.0
        await story.begin()
        assert story.first.fs.last_step == ""
        await after(story)
        assert story.heir.broker.janitor.cleaning.swapper.swaps_done > 0
        await story.end()

    run(body())

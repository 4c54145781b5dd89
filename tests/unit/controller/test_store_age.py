"""The check of the store's age: which counts prove it, that nothing else does, and what each fault leaves.

A false alarm would end every controller of a healthy cluster, so histories of leaders under faults are played as well.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from random import Random

import pytest

from bmq.controller.kv_commit import Guard
from bmq.controller.store_age import BEGIN_S, END_S, NOTE_S, Age, StoreAge, StoreOlder, check_store_age, judge
from bmq.core.errors import ErrorCode, FormatError, RequestError
from bmq.core.file_access import NO_ACCESS, Access
from bmq.core.store_count import StoreCount
from bmq.meta.kv import Commit, Compare, Entry, Put, Write
from bmq.meta.kv_memory import KvFaults, MemoryKeyValue, MemoryStore
from bmq.meta.store_count import decode_store_count, encode_store_count, store_count_key
from bmq.storage.filesystem import FileStatus, NotAllowed, StorageUnavailable
from bmq.storage.memory import Faults, MemoryFileSystem, MemoryStorage
from bmq.storage.store_counts import newest_store_counts, put_store_count

KEY = store_count_key("c")
SEEDS = 150


def count(rebuild_count: int, number: int, letter: str = "a") -> StoreCount:
    return StoreCount(rebuild_count=rebuild_count, number=number, id=letter * 32)


def test_every_combination_has_its_verdict() -> None:
    counts = [None, *(count(*each) for each in itertools.product((0, 1), (4, 5), ("a", "b")))]
    older = {
        (stored, on_root, rebuild_count)
        for stored, on_root, rebuild_count in itertools.product(counts, counts, (0, 1, 2))
        if judge(stored, on_root, rebuild_count) is Age.OLDER
    }
    expected: set[tuple[StoreCount | None, StoreCount, int]] = set()
    for stored, on_root, rebuild_count in itertools.product(counts, counts, (0, 1, 2)):
        if on_root is None:
            continue
        if stored is None:
            if rebuild_count <= on_root.rebuild_count:
                expected.add((stored, on_root, rebuild_count))
        elif (stored.rebuild_count, stored.number) < (on_root.rebuild_count, on_root.number) or (
            stored.order == on_root.order and stored != on_root
        ):
            expected.add((stored, on_root, rebuild_count))
    assert older == expected
    assert judge(count(1, 0), count(0, 900), 1) is Age.AS_NEW, "a rebuilt store begins again"


class World:
    """One store and one root, and leaders that count."""

    def __init__(self, rng: Random | None = None) -> None:
        self.store = MemoryStore()
        self.storage = MemoryStorage(rng)
        self.kv = MemoryKeyValue(self.store)
        self.fs = MemoryFileSystem(self.storage, "h")
        self.leads = True

    def leader(self, rebuild_count: int = 0, guard: Guard | None = None) -> StoreAge:
        return StoreAge(self.kv, self.fs, "c", rebuild_count, guard=guard or self.guard)

    def guard(self) -> list[Compare]:
        if not self.leads:
            raise RequestError(ErrorCode.NOT_CONTROLLER, "")
        return []

    async def change(self) -> None:
        await self.kv.commit([], [Put("/c/anything", b"x")])

    async def stored(self) -> StoreCount:
        entry = await self.kv.get(KEY)
        assert entry is not None
        return decode_store_count(entry)

    async def on_root(self) -> StoreCount | None:
        newest = await newest_store_counts(self.fs)
        assert len(newest) <= 1
        return newest[0] if newest else None

    def bring_back(self, entries: dict[str, Entry]) -> None:
        self.store._entries = entries
        self.store._keys = sorted(entries)

    def copied(self) -> dict[str, Entry]:
        return copy.copy(self.store._entries)


async def test_a_count_is_in_the_store_before_it_is_on_the_root() -> None:
    world = World()
    await world.leader(rebuild_count=3).note()
    assert await world.stored() == await world.on_root() == replace(await world.stored(), rebuild_count=3, number=1)
    await world.leader(rebuild_count=3).note()
    assert (await world.stored()).number == 2
    assert await world.stored() == await world.on_root()


async def test_a_store_that_has_not_changed_is_not_counted_again() -> None:
    world = World()
    leader = world.leader()
    running = asyncio.create_task(leader.run())
    await asyncio.sleep(5 * NOTE_S)
    assert (await world.stored()).number == 1
    await world.change()
    await asyncio.sleep(5 * NOTE_S)
    assert (await world.stored()).number == 2
    for _ in range(10 * int(NOTE_S)):
        await world.change()
        await asyncio.sleep(1.0)
    assert (await world.stored()).number in (11, 12), "once in NOTE_S, however often it changes"
    await world.change()
    await leader.end()
    assert await world.on_root() == await world.stored()
    assert (await world.stored()).number in (12, 13)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_rule_3_a_store_that_was_brought_back_is_refused_and_not_written() -> None:
    world = World()
    await world.leader().note()
    old = world.copied()
    await world.leader().note()
    world.bring_back(old)
    before = (world.store.revision, await world.on_root())
    for call in (world.leader().begin, world.leader().note, world.leader().run):
        with pytest.raises(StoreOlder, match=r"its count is 0-1, and .* has 0-2 of a later state.*rebuild"):
            await call()
    await world.leader().end()
    assert (world.store.revision, await world.on_root()) == before


async def test_a_copy_from_before_the_first_count_is_refused() -> None:
    world = World()
    await world.change()
    old = world.copied()
    await world.leader().note()
    world.bring_back(old)
    with pytest.raises(StoreOlder, match="it has no count"):
        await world.leader().begin()


async def test_a_store_that_an_earlier_version_has_rebuilt_is_as_new() -> None:
    world = World()
    await world.leader().note()
    world.bring_back({})
    await world.leader(rebuild_count=1).begin()
    await world.leader(rebuild_count=1).note()
    assert await world.stored() == replace(await world.stored(), rebuild_count=1, number=1)
    assert await world.on_root() == await world.stored()


async def test_of_two_stores_copied_from_one_both_are_found() -> None:
    """Both are in use at once: each finds the other's count, as high as its own."""
    world, other = World(), World()
    await world.leader().note()
    other.bring_back(world.copied())
    other.fs = world.fs
    mine, theirs = world.leader(), other.leader()
    await mine.note()
    with pytest.raises(StoreOlder):
        await theirs.note()
    await put_store_count(world.fs, replace(await world.stored(), id="f" * 32))
    with pytest.raises(StoreOlder):
        await world.leader().note()


class RaisedBetween:
    """Another leader raises the count once, right after the first of the two reads, whichever it is."""

    def __init__(self, world: World) -> None:
        self.is_due = True
        self.world = world
        self.other = world.leader()

    async def done(self) -> None:
        if self.is_due:
            self.is_due = False
            await self.other.note()


class RaisedAfterList(MemoryFileSystem):
    def __init__(self, between: RaisedBetween) -> None:
        super().__init__(between.world.storage, "slow")
        self._between = between

    async def list(self, path: str, *, after: str = "") -> AsyncIterator[FileStatus]:
        async for status in super().list(path, after=after):
            yield status
        await self._between.done()


class RaisedAfterGet(MemoryKeyValue):
    def __init__(self, between: RaisedBetween) -> None:
        super().__init__(between.world.store)
        self._between = between

    async def get(self, key: str) -> Entry | None:
        found = await super().get(key)
        await self._between.done()
        return found


async def test_a_raise_between_the_two_reads_is_no_sign_of_an_older_store() -> None:
    world = World()
    await world.leader().note()
    between = RaisedBetween(world)
    await check_store_age(RaisedAfterGet(between), RaisedAfterList(between), "c", 0)
    assert (await world.stored()).number == 2


async def test_a_process_that_does_not_lead_raises_nothing() -> None:
    world = World()
    world.leads = False
    with pytest.raises(RequestError):
        await world.leader().note()
    await world.kv.commit([], [Put("/c/controller", b"another")])
    await world.leader(guard=lambda: [Compare("/c/controller", 0)]).note()
    assert await world.kv.get(KEY) is None
    assert await world.on_root() is None


class LostAnswer(MemoryKeyValue):
    """A store whose next commit is done, and its response lost."""

    loses = False

    async def commit(self, compares: Sequence[Compare], writes: Sequence[Write]) -> Commit:
        self.faults = KvFaults(unknown_applied=1.0) if self.loses else KvFaults()
        self.loses = False
        return await super().commit(compares, writes)


async def test_a_raise_whose_response_is_lost_is_found_and_left_on_the_root() -> None:
    world = World()
    world.kv = kv = LostAnswer(world.store, random=Random(1))
    kv.loses = True
    await world.leader().note()
    assert await world.on_root() == await world.stored()
    assert (await world.stored()).number == 1


async def test_without_storage_a_term_begins_all_the_same_and_nothing_is_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    world.storage.faults = Faults(unavailable=1.0)
    loop = asyncio.get_running_loop()
    leader, began = world.leader(), loop.time()
    with caplog.at_level(logging.INFO):
        await leader.begin()
        assert loop.time() - began <= BEGIN_S
        await leader.end()
        assert loop.time() - began <= BEGIN_S + END_S
        running = asyncio.create_task(leader.run())
        await asyncio.sleep(3 * NOTE_S)
    assert await world.kv.get(KEY) is None
    world.storage.faults = Faults()
    await asyncio.sleep(NOTE_S)
    assert await world.on_root() == await world.stored()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert {record.levelname for record in caplog.records} == {"WARNING", "INFO"}


async def test_a_leader_that_cannot_leave_a_count_warns_once_until_it_can(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.storage.faults = Faults(unavailable=1.0)
    running = asyncio.create_task(world.leader().run())

    def warnings() -> int:
        return sum(record.levelname == "WARNING" for record in caplog.records)

    await asyncio.sleep(3.5 * NOTE_S)
    assert warnings() == 1
    world.storage.faults = Faults()
    await asyncio.sleep(NOTE_S)
    world.storage.faults = Faults(unavailable=1.0)
    await world.change()
    await asyncio.sleep(2 * NOTE_S)
    assert warnings() == 2
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


class ReadOnly(MemoryFileSystem):
    """A root on which nothing can be made, for as long as `is_read_only`."""

    is_read_only = True

    async def make_folder(self, path: str, access: Access = NO_ACCESS) -> None:
        if self.is_read_only:
            raise NotAllowed(f"{path}: Read-only file system")
        await super().make_folder(path, access)


async def test_a_count_that_the_root_refuses_is_raised_once_until_the_store_changes() -> None:
    world = World()
    world.fs = fs = ReadOnly(world.storage, "h")
    running = asyncio.create_task(world.leader().run())
    await asyncio.sleep(10 * NOTE_S)
    assert (await world.stored()).number == 1, "a commit a minute would only fill the store's history"
    await world.change()
    await asyncio.sleep(10 * NOTE_S)
    assert (await world.stored()).number == 2
    fs.is_read_only = False
    await asyncio.sleep(2 * NOTE_S)
    assert await world.on_root() == await world.stored() == replace(await world.stored(), number=2)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_count_of_a_later_format_is_never_overwritten() -> None:
    world = World()
    await world.kv.commit([], [Put(KEY, b'{"format":2}')])
    with pytest.raises(FormatError):
        await check_store_age(world.kv, world.fs, "c", 0)
    await world.leader().begin()
    await world.leader().end()
    entry = await world.kv.get(KEY)
    assert entry is not None
    assert entry.value == b'{"format":2}'


async def test_a_rebuild_is_above_all_counts_of_before() -> None:
    world = World()
    for _ in range(3):
        await world.leader().note()
    old = world.copied()
    rebuilt = StoreCount(rebuild_count=1, number=0, id="b" * 32)
    world.bring_back({})
    await world.kv.commit([], [Put(KEY, encode_store_count(rebuilt))])
    await world.leader(rebuild_count=1).begin()
    await world.leader(rebuild_count=1).note()
    world.bring_back(old)
    with pytest.raises(StoreOlder):
        await world.leader(rebuild_count=1).begin()


@pytest.mark.slow
async def test_histories_of_leaders_under_faults_raise_no_alarm() -> None:
    """Leaders overlap, die at any moment, lose responses, and reach storage late: none finds the store older."""
    counted = 0
    for seed in range(SEEDS):
        counted += await _history(Random(seed))
    assert counted > SEEDS


async def _history(rng: Random) -> int:
    world = World(rng)
    world.storage.faults = Faults(call_s=(0.0, 3.0), unavailable=0.1, lost_answer=0.1)
    faults = KvFaults(latency_s=0.5, unavailable=0.1, unknown_applied=0.1, unknown_lost=0.1, unknown_late=0.1, late_s=9)
    leaders = []
    for number in range(6):
        kv = MemoryKeyValue(world.store, random=rng, faults=faults)
        age = StoreAge(kv, MemoryFileSystem(world.storage, f"p{number}"), "c", 0, guard=list)
        leaders.append(asyncio.create_task(_lead(age)))
        await world.change()
        await asyncio.sleep(rng.random() * 2 * NOTE_S)
        if rng.random() < 0.5:
            leaders[rng.randrange(len(leaders))].cancel()
    for leader in leaders:
        leader.cancel()
    for outcome in await asyncio.gather(*leaders, return_exceptions=True):
        assert isinstance(outcome, asyncio.CancelledError), outcome
    world.storage.faults = Faults()
    await asyncio.sleep(20)
    entry = await check_store_age(world.kv, world.fs, "c", 0)
    return decode_store_count(entry).number if entry is not None else 0


async def _lead(age: StoreAge) -> None:
    await age.begin()
    await age.run()


async def test_storage_that_fails_is_not_taken_for_an_empty_root() -> None:
    world = World()
    world.storage.faults = Faults(unavailable=1.0)
    with pytest.raises(StorageUnavailable):
        await check_store_age(world.kv, world.fs, "c", 0)

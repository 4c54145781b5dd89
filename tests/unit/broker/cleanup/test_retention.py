"""Retention of owned partitions: which segments expire, when files are deleted, and crashes at any step."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest

from bmq.broker.cleanup.config import JanitorConfig
from bmq.broker.cleanup.index_reads import is_outage
from bmq.broker.cleanup.janitor import Janitor
from bmq.broker.config import LogConfig
from bmq.core.model import SegmentName
from bmq.storage.filesystem import CorruptData, StorageError, StorageUnavailable, write_once
from bmq.storage.layout import JOURNALS
from bmq.storage.log_segments import FOR_EVER, walk
from tests.harness.loop import VirtualLoop, run
from tests.unit.broker.cleanup.upkeep import (
    CLOCK,
    CONFIG,
    HOUR_MS,
    MINUTE_MS,
    PATH,
    SMALL,
    Owner,
    S,
    World,
    life,
    moved_log_start,
)

pytestmark = [pytest.mark.slow, pytest.mark.leaves_tasks]
KAFKAS_CHECK_S = 300
"""Kafka's log.retention.check.interval.ms: each check rolls a segment whose records have all expired."""


async def test_rule_10_retention_by_time_moves_the_start_then_deletes_after_the_delay() -> None:
    world = World()
    owner = await world.owner("a", replace(SMALL, retention_ms=HOUR_MS, file_delete_delay_ms=60_000))
    await owner.send(6)
    await asyncio.sleep(1800)
    await owner.send(6)
    await owner.rounds()
    assert (owner.log_start, await world.logs()) == (0, [0, 3, 6, 9])
    await owner.round(1850)  # the first two are an hour old now
    assert owner.log_start == 6
    assert await world.logs() == [0, 3, 6, 9]
    await owner.round(59)
    assert await world.logs() == [0, 3, 6, 9]
    await owner.round(1)
    assert await world.logs() == [6, 9]
    assert await world.records(6, 12) == world.sent[6:]
    assert owner.janitor.files_deleted == 2


@pytest.mark.parametrize("error", [CorruptData, StorageUnavailable])
async def test_an_index_that_storage_has_lost_holds_no_retention_up(
    error: type[StorageError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Take the time of the file, which is younger than its records, after a day; in an outage, wait."""
    world = World()
    owner = await world.owner("a", replace(SMALL, retention_ms=HOUR_MS))
    await owner.send(6)
    lost = PATH.idx(await anext(one.name async for one in walk(world.reading, PATH)))
    read, is_away = owner.steps.read, error is StorageUnavailable

    async def lossy(path: str, position: int, length: int) -> bytes:
        if is_away or path == lost:
            raise error(f"{path}: no replica")
        return await read(path, position, length)

    monkeypatch.setattr(owner.steps, "read", lossy)
    await owner.round(HOUR_MS / 1000 + 10)
    assert owner.log_start == 0
    is_away = False
    for _ in range(3):
        await owner.round(61)
    assert owner.log_start == 0
    await hours(owner, 26)
    assert owner.log_start >= 3
    assert owner.janitor.failures > 0, "it is reported"


@pytest.mark.parametrize("looks", [1, 20])
@pytest.mark.parametrize("error", [CorruptData, StorageUnavailable])
async def test_records_whose_index_was_away_do_not_expire_by_the_time_of_their_file(
    error: type[StorageError], looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keep records that are younger than their file, by their timestamps: a day without their indexes is not over."""
    world = World()
    owner = await world.owner("a", replace(SMALL, segment_bytes=200, retention_ms=HOUR_MS))
    for _ in range(6):
        await owner.send(1, CLOCK.now_ms() + 30 * 24 * HOUR_MS)
    await asyncio.sleep(2 * HOUR_MS / 1000)
    read = owner.steps.read

    async def lossy(path: str, position: int, length: int) -> bytes:
        if path.endswith(".idx"):
            raise error(f"{path}: its datanodes restart")
        return await read(path, position, length)

    with monkeypatch.context() as patch:
        patch.setattr(owner.steps, "read", lossy)
        await hours(owner, looks)
        assert owner.janitor.failures > 0
    await hours(owner, 30)
    assert (owner.log_start, owner.watermark) == (0, 6)
    assert await world.records(0, 6) == world.sent


async def test_an_index_is_away_for_a_day_if_each_look_of_the_day_finds_it_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Begin the day again once the index could be read; looks beside a busy log do not shorten it."""
    world = World()
    owner = await world.owner("a", replace(SMALL, segment_bytes=200, retention_ms=HOUR_MS))
    for _ in range(6):
        await owner.send(1, CLOCK.now_ms() + 5 * 24 * HOUR_MS)
    await asyncio.sleep(2 * HOUR_MS / 1000)
    idx, read = PATH.idx(await anext(one.name async for one in walk(world.reading, PATH))), owner.steps.read
    reads: list[float] = []
    is_away = True

    async def lossy(path: str, position: int, length: int) -> bytes:
        if path == idx:
            reads.append(asyncio.get_running_loop().time())
        if path == idx and is_away:
            raise StorageUnavailable(f"{path}: no replica")
        return await read(path, position, length)

    async def look(hours: float) -> None:
        """Look ten times an hour, as beside a busy log."""
        for _ in range(round(10 * hours)):
            owner.configure(retention_ms=owner.driver.machine.config.retention_ms + 1)
            await owner.round(361)

    monkeypatch.setattr(owner.steps, "read", lossy)
    allow_days(4)
    await look(23)
    assert len(reads) <= 24, "a failing read takes long: one an hour"
    is_away = False
    await look(0.5)  # shorter than the gap that begins the day again by itself
    is_away = True
    await look(23)
    assert owner.log_start == 0
    await look(3)
    assert owner.log_start == 1


async def test_a_day_of_looks_has_no_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks by size alone read no index.  What was away before them may have been back."""
    world = World()
    owner = await world.owner("a", replace(SMALL, segment_bytes=200, retention_ms=HOUR_MS))
    for _ in range(6):
        await owner.send(1, CLOCK.now_ms() + 30 * 24 * HOUR_MS)
    idx, read = PATH.idx(await anext(one.name async for one in walk(world.reading, PATH))), owner.steps.read

    async def lossy(path: str, position: int, length: int) -> bytes:
        if path == idx:
            raise StorageUnavailable(f"{path}: no replica")
        return await read(path, position, length)

    monkeypatch.setattr(owner.steps, "read", lossy)
    allow_days(9)
    await hours(owner, 23)
    owner.configure(retention_ms=FOR_EVER, retention_bytes=1 << 30)
    await hours(owner, 4)
    owner.configure(retention_ms=HOUR_MS)
    await hours(owner, 20)
    assert owner.log_start == 0
    await hours(owner, 8)
    assert owner.log_start == 1


async def hours(owner: Owner, count: int) -> None:
    """Run rounds for some hours."""
    allow_days(3)
    for _ in range(2 * count):
        await owner.round(HOUR_MS / 2000 + 5)


def allow_days(count: int) -> None:
    """Let the test go on for some days."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    loop.clock.go_on_for(24 * count * HOUR_MS / 1000)


@pytest.mark.parametrize("harm", ["unreadable", "missing"])
async def test_an_index_that_was_away_delays_retention_by_an_hour_at_most(
    harm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Look again within an hour: records of a copied log are hours older than their file."""
    world = World()
    owner = await world.owner("a", replace(SMALL, retention_ms=10 * HOUR_MS))
    old_ms = CLOCK.now_ms() - 6 * HOUR_MS
    for _ in range(9):
        await owner.send(1, old_ms)
    await asyncio.sleep(1_000)  # the record changes no more
    idx, read = PATH.idx(await anext(one.name async for one in walk(world.reading, PATH))), owner.steps.read
    sound = await world.reading.read(idx, 0, 1 << 20)

    async def lossy(path: str, position: int, length: int) -> bytes:
        if path == idx:
            raise StorageUnavailable(f"{path}: no replica")
        return await read(path, position, length)

    with monkeypatch.context() as patch:
        if harm == "unreadable":
            patch.setattr(owner.steps, "read", lossy)
        else:
            await owner.fs.delete(idx)
        for _ in range(2):
            await owner.round(30)
    if harm == "missing":
        await write_once(owner.fs, idx, sound)
    await owner.round(2 * HOUR_MS / 1000)
    assert owner.log_start == 0
    for _ in range(4):
        await owner.round(HOUR_MS / 2000)
    assert owner.log_start >= 3


@pytest.mark.parametrize("at", [0, -1])
async def test_a_segment_that_is_lost_with_its_index_holds_no_retention_up(
    at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tell an outage by files of other segments: behind the lost segment, or before the last segment."""
    world = World()
    owner = await world.owner("a", replace(SMALL, retention_ms=HOUR_MS, file_delete_delay_ms=48 * HOUR_MS))
    await owner.send(9)
    await asyncio.sleep(1_000)
    assert owner.driver.machine.is_all_closed
    names = [one.name async for one in walk(world.reading, PATH)]
    lost, read = (PATH.idx(names[at]), PATH.log(names[at]), JOURNALS), owner.steps.read

    async def lossy(path: str, position: int, length: int) -> bytes:
        if path.startswith(lost):
            raise StorageUnavailable(f"{path}: no datanode has the block")
        return await read(path, position, length)

    monkeypatch.setattr(owner.steps, "read", lossy)
    await hours(owner, 30)
    assert owner.log_start == owner.watermark == 9


@pytest.mark.parametrize(("sent", "lost", "has_journals"), [(30, 4, False), (30, 10, True), (2, 1, True)])
async def test_neighbours_that_are_lost_with_their_indexes_hold_no_retention_up(
    sent: int, lost: int, has_journals: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tell an outage by a log far from the lost files, or by a journal if the partition has no other log."""
    world = World()
    owner = await world.owner("a", replace(SMALL, retention_ms=HOUR_MS))
    await owner.send(sent)
    await asyncio.sleep(1_000)
    names = [one.name async for one in walk(world.reading, PATH)]
    away, read = {file(name) for name in names[:lost] for file in (PATH.idx, PATH.log)}, owner.steps.read

    async def lossy(path: str, position: int, length: int) -> bytes:
        if path in away or (path.startswith(JOURNALS) and not has_journals):
            raise StorageUnavailable(f"{path}: no datanode has the block")
        return await read(path, position, length)

    monkeypatch.setattr(owner.steps, "read", lossy)
    await hours(owner, 27)
    assert owner.log_start == owner.watermark == sent, "the day is the same for all of them"


async def test_a_file_without_bytes_does_not_show_that_storage_serves_reads() -> None:
    """A read of an empty file asks no datanode."""
    world = World()
    path, name = PATH.log(S(0, 1, 0)), S(0, 1, 0)
    await write_once(world.reading, path, b"")
    assert await is_outage(world.reading, PATH, name, path)


async def test_retention_by_time_takes_the_largest_timestamp_of_the_records() -> None:
    """Old records written now go at once; records from the future stay; none at all means the file's own time."""

    world = World()
    owner = await world.owner("a", replace(SMALL, retention_ms=HOUR_MS))
    await owner.send(3, timestamp=CLOCK.now_ms() - 2 * HOUR_MS)
    await owner.send(3, timestamp=-1)
    await owner.send(3, timestamp=CLOCK.now_ms() + HOUR_MS // 2)
    await owner.send(1)
    await owner.rounds()
    assert owner.log_start == 3
    await owner.round(3590)
    assert owner.log_start == 3
    await owner.round(60)
    assert owner.log_start == 6
    await owner.round(1800)
    assert owner.log_start == 10  # the last one had been waiting behind it


async def test_a_segment_with_the_log_start_inside_expires_in_time() -> None:
    """Delete records up to an offset inside a segment: its rest is checked when it expires, not a whole retention time
    later."""

    world = World()
    owner = await world.owner("a", replace(SMALL, retention_ms=HOUR_MS))
    await owner.send(6)
    await owner.round()
    await moved_log_start(owner, 1)
    await owner.round(1800)
    await owner.send(3)  # what is registered has retention look again
    await owner.rounds()
    assert owner.log_start == 1
    await owner.round(1810)
    assert owner.log_start >= 3


@pytest.mark.parametrize("hours", [20, -20])
async def test_a_wall_clock_that_was_wrong_for_a_round_delays_nothing(hours: int) -> None:
    """A clock ahead: what it calls expired is deleted, as with Kafka, but no deadline is kept in its time. A clock
    behind (a machine that starts before it has synchronised the time): what expires is not checked hours later."""

    world = World()
    owner = await world.owner("a", replace(SMALL, retention_ms=HOUR_MS, file_delete_delay_ms=60_000))
    await owner.send(6)
    owner.clock.ahead_ms = hours * HOUR_MS
    await owner.round()
    owner.clock.ahead_ms = 0
    assert owner.log_start == (3 if hours > 0 else 0)
    await owner.round(30)
    await owner.round(40)
    assert await world.logs() == ([3] if hours > 0 else [0, 3])
    await owner.send(6)
    await owner.rounds(61)
    await owner.round(HOUR_MS / 1000)
    assert owner.log_start == 12
    await owner.rounds(61)
    assert await world.logs() == [9]


async def test_what_expires_is_computed_again_when_the_clock_is_set() -> None:
    """A machine begins twenty hours behind; nothing is written any more when its clock is put right."""

    world = World()
    owner = await world.owner("a", replace(SMALL, retention_ms=HOUR_MS))
    await owner.send(6)
    owner.clock.ahead_ms = -20 * HOUR_MS
    await owner.rounds()
    owner.clock.ahead_ms = 0
    await owner.rounds(30)
    assert owner.log_start == 0
    await owner.rounds(HOUR_MS / 1000)
    assert owner.log_start == 6


async def test_a_clock_that_is_slewed_costs_no_listing() -> None:
    world = World()
    owner = await world.owner("a", replace(SMALL, retention_ms=24 * HOUR_MS))
    await owner.send(6)
    await owner.rounds()
    while not owner.driver.machine.is_all_closed:
        await owner.round(30)
    await owner.rounds()
    for _ in range(10):
        owner.clock.ahead_ms += 90  # of 30 s: far more than ntpd slews
        assert await owner.round(30) == 0


async def test_retention_by_size_keeps_at_least_what_is_asked_and_follows_the_growth() -> None:
    world = World()
    owner = await world.owner("a", replace(SMALL, retention_bytes=1_100))
    await owner.send(30)
    await owner.rounds()
    size = len(world.sent[0]) + 21
    assert size * 3 <= 600 < size * 4
    kept = (30 - owner.log_start) * size
    assert 1_100 <= kept < 1_100 + 3 * size
    for _ in range(20):
        await owner.send(3)
        await owner.rounds()
        kept = (owner.watermark - owner.log_start) * size
        assert 1_100 <= kept < 1_100 + 6 * size
    await owner.rounds(60)
    assert (await world.logs())[0] == owner.log_start
    assert await world.records(owner.log_start, owner.watermark) == world.sent[owner.log_start :]


async def test_retention_for_ever_deletes_nothing_and_costs_no_listing() -> None:
    world = World()
    owner = await world.owner("a", SMALL)
    await owner.send(12)
    await owner.rounds()
    for _ in range(5):
        assert await owner.round(HOUR_MS / 1000) <= 1  # sweeping
    assert (owner.log_start, await world.logs()) == (0, [0, 3, 6, 9])


async def test_the_open_segment_stays_and_the_newest_closed_one_is_emptied_but_kept_as_a_name() -> None:
    world = World()
    owner = await world.owner("a", replace(SMALL, retention_ms=60_000))
    await owner.send(4)
    await owner.rounds()
    assert owner.driver.machine.current is not None
    await owner.round(200)
    assert owner.log_start == 3  # 3 is in the open one
    await owner.round(400)
    assert owner.driver.machine.current is None  # idle, closed
    await owner.round(30)
    assert (owner.log_start, owner.watermark) == (4, 4)
    await owner.round(61)
    assert await world.logs() == [3]
    await owner.send(1)
    await owner.round()
    await owner.round(61)
    assert await world.logs() == [4]
    assert await world.records(4, 5) == world.sent[4:]


async def test_what_has_expired_goes_once_its_last_segment_is_closed() -> None:
    """Records with old timestamps, and nothing after them: Kafka's next look, within five minutes, moves the start."""
    world = World()
    owner = await world.owner("a", replace(SMALL, retention_ms=7 * 24 * HOUR_MS))
    await owner.send(2, timestamp=1)
    await owner.rounds()
    looks = 0
    while owner.log_start == 0:
        looks += 1
        await owner.round(30)
        assert looks < 12, "nothing is closed, or no one looks"
    assert owner.driver.machine.current is None
    assert (owner.log_start, owner.watermark) == (2, 2)


@pytest.mark.parametrize("seed", range(4))
async def test_by_default_what_has_expired_goes_within_five_minutes_of_the_last_write(seed: int) -> None:
    world = World()
    owner = await world.owner("a", LogConfig(retention_ms=MINUTE_MS))
    janitor = Janitor(owner.broker.context, owner.held, JanitorConfig(), random.Random(seed))
    rounds = asyncio.create_task(janitor.run())
    await asyncio.sleep(10 * seed)  # the last write at several times between two rounds
    await owner.send(2)
    await asyncio.sleep(KAFKAS_CHECK_S)
    assert (owner.log_start, owner.watermark) == (2, 2)
    rounds.cancel()


async def test_a_last_segment_whose_index_comes_late_expires_all_the_same() -> None:
    """A former owner writes its index after the hand-over: the new owner's first look takes the segment for open."""
    world = World()
    owner = await world.owner("a", replace(SMALL, retention_ms=7 * 24 * HOUR_MS))
    await owner.send(2, timestamp=1)
    await asyncio.sleep(310)
    assert owner.driver.machine.is_all_closed
    index, aside = PATH.idx(S(0, 1, 0)), f"{PATH.folder}/.aside"
    await world.reading.replace(index, aside)
    await owner.rounds()
    assert owner.log_start == 0
    await world.reading.replace(aside, index)
    await owner.rounds(150)
    await owner.rounds(160)
    assert owner.log_start == 2


async def test_files_of_deleted_records_are_deleted_after_the_delay() -> None:
    world = World()
    owner = await world.owner("a", replace(SMALL, retention_bytes=100_000))
    await owner.send(12)
    await owner.rounds()
    await moved_log_start(owner, 7)
    await owner.round()
    assert await world.logs() == [0, 3, 6, 9]
    await owner.rounds(61)
    assert await world.logs() == [6, 9]  # 7 and 8 are in the first
    assert await world.records(7, 12) == world.sent[7:]


async def test_a_file_that_may_still_be_open_is_not_deleted_until_it_is_closed() -> None:
    """Then it goes, and all that it held up, though nothing is written any more."""
    world = World()
    owner = await world.owner("a", SMALL)
    publish = hold_index(owner, S(3, 1, 1))
    await owner.send(12)
    await owner.rounds()
    await moved_log_start(owner, 9)
    await owner.round()
    await owner.rounds(61)
    assert await world.logs() == [3, 6, 9]
    revision = owner.driver.machine.revision
    publish.set()
    await owner.round(1)
    await owner.rounds(61)
    assert await world.logs() == [9]
    assert owner.driver.machine.revision == revision, "the record was written"


async def test_a_file_that_a_dead_owner_left_open_holds_no_deletion_up() -> None:
    """The takeover has fenced it, but its index is written only seconds later, and the record names it as open."""
    world = World()
    first = await world.owner("a", SMALL)
    hold_index(first, S(3, 1, 1))
    await first.send(12)
    first.driver.apply(first.driver.machine.checkpoint())  # the successor begins to read here
    await asyncio.sleep(1)
    first.die()
    second = await world.owner("b", replace(SMALL, file_delete_delay_ms=1000))
    machine = second.driver.machine
    revision = machine.revision
    assert next(entry.name for entry in machine.record.segments if not entry.is_closed) == S(3, 1, 1)
    await moved_log_start(second, 9)
    await second.round()
    await second.round(2)
    assert await world.logs() == [9]
    assert machine.revision == revision, "the record was written"
    await second.send(3)
    second.die()
    third = await world.owner("c", SMALL)
    assert (third.log_start, third.watermark) == (9, 15)


def hold_index(owner: Owner, name: SegmentName) -> asyncio.Event:
    """Hold a segment's index back before it gets its name, until the event is set: so long its closing goes on."""
    rename, released = owner.fs.rename, asyncio.Event()

    async def held(source: str, target: str) -> None:
        if target == PATH.idx(name):
            await released.wait()
        await rename(source, target)

    owner.fs.rename = held  # type: ignore[method-assign]
    return released


async def test_deletes_are_bounded_per_job() -> None:
    world = World()
    owner = await world.owner("a", SMALL, replace(CONFIG, deletes_per_job=2, jobs_per_round=1))
    await owner.send(30)
    await owner.rounds()
    await moved_log_start(owner, 27)
    await owner.round()
    await asyncio.sleep(61)
    counts = []
    while await owner.round():
        counts.append(owner.janitor.files_deleted)
    assert counts[0] == 2
    assert max(b - a for a, b in zip([0, *counts], counts, strict=False)) == 2
    assert await world.logs() == [27]


async def test_a_lost_partition_is_left_alone() -> None:
    world = World()
    first = await world.owner("a", replace(SMALL, retention_ms=HOUR_MS))
    await first.send(9, timestamp=0)
    second = await world.owner("b", SMALL)
    await asyncio.sleep(1)  # its indexes are written behind
    before = await world.names()
    await first.round()
    await first.round(100)
    assert (second.log_start, await world.names()) == (0, before)
    assert first.janitor.files_deleted == 0
    assert first.driver.machine.state.name == "FENCED"


async def test_rule_10_files_are_deleted_only_after_a_fresh_proof_of_ownership() -> None:
    """The first owner moved the log start, and was overtaken without noticing before the delay had passed."""

    world = World()
    first = await world.owner("a", SMALL)
    await first.send(12)
    await first.rounds()
    await moved_log_start(first, 6)
    await first.round()
    await asyncio.sleep(60)
    second = await world.owner("b", SMALL)
    assert first.driver.machine.state.name == "WRITE"
    await first.round(1)
    assert first.janitor.files_deleted == 0
    assert first.driver.machine.state.name == "FENCED"
    assert await world.logs() == [0, 3, 6, 9]
    await second.round()
    await second.round(61)
    assert await world.logs() == [6, 9]


async def test_files_below_a_log_start_that_the_owner_left_are_deleted_by_its_successor() -> None:
    world = World()
    first = await world.owner("a", SMALL)
    await first.send(12)
    await moved_log_start(first, 6)
    first.die()
    second = await world.owner("b", SMALL)
    assert second.log_start == 6
    await second.round()
    await second.round(61)
    assert (await world.logs())[0] == 6
    assert await world.records(6, 12) == world.sent[6:]


@pytest.mark.parametrize("dies_before", [True, False])
def test_a_crash_at_any_step_of_retention_loses_nothing_that_is_kept(dies_before: bool) -> None:
    async def story(dies_at: int) -> int:
        world = World()
        first = await world.owner("a", SMALL)
        await first.send(12)
        await first.rounds()
        await moved_log_start(first, 9)
        await first.round()
        await asyncio.sleep(61)
        first.steps.dies_at, first.steps.dies_before = len(first.steps.steps) + dies_at, dies_before
        await life(first.round())
        steps = len(first.steps.steps)
        first.die()
        second = await world.owner("b", SMALL)
        assert second.log_start == 9
        assert await world.records(9, 12) == world.sent[9:]
        await second.send(4)
        await second.round()
        await second.rounds(61)
        assert (await world.logs())[0] == 9
        assert all(int(name[:20]) >= 9 for name in await world.names() if not name.startswith("."))
        assert await world.records(9, 16) == world.sent[9:]
        return steps

    steps = run(story(0))
    assert steps >= 6
    for dies_at in range(1, steps + 1):
        run(story(dies_at))


@pytest.mark.parametrize("dies_before", [True, False])
def test_retention_after_a_crash_at_any_step_of_a_merge_keeps_what_has_not_expired(dies_before: bool) -> None:
    """The old index covers only the oldest part of the merged file; retention comes before the merge is mended."""

    async def story(dies_at: int) -> list[str]:
        world = World()
        first = await world.owner("a", replace(SMALL, segment_bytes=200))
        await first.send(1)
        await asyncio.sleep(4 * MINUTE_MS / 1000)
        for _ in range(13):
            await first.send(1)
        first.configure(segment_bytes=2_000)
        first.steps.dies_at, first.steps.dies_before = dies_at, dies_before
        await life(first.round())
        steps = list(first.steps.steps)
        first.die()
        await asyncio.sleep(2 * MINUTE_MS / 1000)
        config = replace(SMALL, segment_bytes=2_000, retention_ms=5 * MINUTE_MS, file_delete_delay_ms=0)
        second = await world.owner("b", config)
        await second.rounds()
        assert second.log_start <= 1
        assert await world.records(1, 14) == world.sent[1:]
        await second.rounds(5 * MINUTE_MS / 1000)
        assert second.log_start == 14
        return steps

    steps = run(story(0))
    assert "concat" in steps
    for dies_at in range(1, len(steps) + 1):
        run(story(dies_at))

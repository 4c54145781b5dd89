"""The sweep of what earlier owners and dead brokers left: drafts, spares and journals."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest

from bmq.broker.cleanup import orphans
from bmq.broker.cleanup.config import JanitorConfig
from bmq.broker.cleanup.orphans import FENCED_AT_ONCE, Sweeper
from bmq.broker.cleanup.upkeep_queue import UpkeepState
from bmq.core.model import SegmentName
from bmq.meta.ownership import Swap
from bmq.storage import layout
from bmq.storage.filesystem import (
    Lease,
    LeaseLost,
    NotAllowed,
    StorageError,
    StorageUnavailable,
    write_once,
)
from bmq.storage.memory import MemoryFileSystem
from tests.unit.broker.cleanup.upkeep import HOUR_MS, KEY, PATH, SMALL, Owner, S, World

pytestmark = [pytest.mark.slow, pytest.mark.leaves_tasks]

FENCE_S = 10.0
"""As while a datanode of the file is dead."""
LEFT = [PATH.spare(1, 100 + number, "dead") for number in range(3 * FENCED_AT_ONCE)]


async def sweep(unclosable: str = "") -> tuple[list[str], float]:
    """Sweep ``LEFT``, which a dead owner holds open; return the names that are left, and the virtual seconds."""
    world = World()
    owner = await world.owner("a")
    await owner.broker.move(KEY)
    driver = await owner.broker.open(PATH, KEY, SMALL)  # epoch 2
    dead = MemoryFileSystem(world.storage, "dead")
    for path in LEFT:
        await dead.create(path)
    shared, loop = owner.broker.context, asyncio.get_running_loop()
    sweeper = Sweeper(shared, names_per_job=2_000, grace_ms=0, journal_grace_ms=HOUR_MS, journals_per_sweep=1)
    fence = MemoryFileSystem.fence

    async def slow_fence(self: MemoryFileSystem, lease: Lease) -> Any:
        await asyncio.sleep(FENCE_S)
        if unclosable in lease.paths:
            raise StorageUnavailable("no datanode of it answers")
        return await fence(self, lease)

    begun = loop.time()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryFileSystem, "fence", slow_fence)
        if unclosable:
            with pytest.raises(StorageUnavailable):
                await sweeper.sweep(UpkeepState(driver), shared.clock.now_ms() + HOUR_MS)
        else:
            assert await sweeper.sweep(UpkeepState(driver), shared.clock.now_ms() + HOUR_MS)
    assert sweeper.files_swept == len(LEFT) - bool(unclosable)
    return await world.names(), loop.time() - begun


async def test_files_are_fenced_several_at_once() -> None:
    """Retention of the broker's other partitions waits for the sweep: one by one it would wait for minutes."""
    names, took_s = await sweep()
    assert names == []
    assert took_s == pytest.approx(3 * FENCE_S, abs=1.0)


async def test_a_file_that_cannot_be_fenced_delays_no_other() -> None:
    names, _ = await sweep(LEFT[0])
    assert names == [layout.base_name(LEFT[0])]


async def test_the_sweeper_takes_temporary_files_of_earlier_epochs_after_a_grace() -> None:
    world = World()
    owner = await world.owner("a")
    await owner.broker.move(KEY)
    owner.driver = await owner.broker.open(PATH, KEY, SMALL)  # epoch 2
    old, own = PATH.spare(1, 5, "dead"), PATH.spare(2, 90, "other")
    makers = [("idx", "dead"), ("idx", "a"), ("join", "dead"), ("join", "a")]
    drafts = [f"{PATH.folder}/.{kind}-{S(0, 2, 0)}-{holder}" for kind, holder in makers]
    cleaned = [f"{PATH.folder}/.idx-{S(0, 2, 0, 1)}-{holder}" for holder in ("dead", "a")]
    concat = f"{PATH.folder}/.{S(0, 1, 0)}.log.concat"
    unknown = f"{PATH.folder}/.somebody-elses"
    for path in (old, own, *drafts, *cleaned, concat, unknown):
        await write_once(world.reading, path, b"")
    await owner.rounds()
    await owner.rounds(500)
    assert len(await world.names()) == 10
    await owner.rounds(1500)
    left = [own, drafts[1], cleaned[1], unknown]  # the owner's own draft of a merge goes once it is settled
    assert await world.names() == sorted(layout.base_name(path) for path in left)
    young = PATH.spare(1, 6, "dead")
    await write_once(world.reading, young, b"")
    await owner.round(300)
    assert layout.base_name(young) in await world.names()
    await owner.round(7 * 3600)
    assert layout.base_name(young) not in await world.names()


DAY_MS = 24 * HOUR_MS


async def test_the_folder_of_a_job_is_deleted_a_day_after_its_last_change() -> None:
    world = World()
    owner = await world.owner("a")
    now_ms = owner.broker.context.clock.now_ms()
    folder, other = f"{PATH.folder}/.compact-old", f"{PATH.folder}/.compact-busy"
    for path in (f"{folder}/part-0.log", f"{folder}/sub/part-1.log", f"{other}/part-0.log"):
        await write_once(world.reading, path, b"draft")
    await world.reading.make_folder(f"{PATH.folder}/.somebody-elses")
    sweeper, state = owner.janitor._sweeper, UpkeepState(owner.driver)
    await sweeper.sweep(state, now_ms + DAY_MS - HOUR_MS)
    assert await world.names(folder) == ["part-0.log", "sub"]
    await asyncio.sleep(2 * HOUR_MS / 1000)
    await write_once(world.reading, f"{other}/part-1.log", b"draft")
    await sweeper.sweep(state, owner.broker.context.clock.now_ms() + DAY_MS - HOUR_MS)
    assert await world.names() == [".compact-busy", ".somebody-elses"], "a young file keeps the old beside it"
    assert sweeper.files_swept == 1
    await sweeper.sweep(state, owner.broker.context.clock.now_ms() + 10 * DAY_MS, "busy")
    assert await world.names() == [".compact-busy", ".somebody-elses"], "its job holds the partition"
    await sweeper.sweep(state, owner.broker.context.clock.now_ms() + 10 * DAY_MS, "bus")
    assert await world.names() == [".somebody-elses"]


@pytest.mark.parametrize("step", ["delete", "list"])
async def test_a_folder_that_may_not_be_deleted_waits_ever_longer_with_one_warning(
    step: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    owner = await world.owner("a")
    folder, other = f"{PATH.folder}/.compact-denied", f"{PATH.folder}/.compact-old"
    for path in (folder, other):
        await write_once(world.reading, f"{path}/part-0.log", b"draft")
    begun_ms = owner.broker.context.clock.now_ms() + 2 * DAY_MS
    sweeper, state, tried_ms = owner.janitor._sweeper, UpkeepState(owner.driver), list[int]()
    real = getattr(MemoryFileSystem, step)

    def denied(self: MemoryFileSystem, path: str, **options: Any) -> Any:
        if path == folder:
            tried_ms.append(now_ms)
            raise NotAllowed(f"{step} {path}: Permission denied: user=bmq, access=WRITE")
        return real(self, path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(MemoryFileSystem, step, denied)
        for now_ms in range(begun_ms, begun_ms + 40 * DAY_MS, HOUR_MS):
            await sweeper.sweep(state, now_ms)
    pauses = [(after - before) // HOUR_MS for before, after in pairwise(tried_ms)]
    assert pauses == [6, 12, 24, 48, 96, 168, 168, 168, 168]
    warnings = [record for record in caplog.records if "ever more rarely" in record.message]
    assert len(warnings) == 1
    assert folder in (shown := str(vars(warnings[0])))
    assert "user=bmq, access=WRITE" in shown
    assert await world.names() == [".compact-denied"], "the others are deleted"
    await sweeper.sweep(state, begun_ms + 60 * DAY_MS)
    assert await world.names() == []


WARNING = "ever more rarely"


@contextmanager
def no_deletions(*folders: str) -> Iterator[list[str]]:
    """Have storage refuse to delete these folders; yield the folders of the attempts."""
    delete, tried = MemoryFileSystem.delete, list[str]()

    async def denied(self: MemoryFileSystem, path: str, *, recursive: bool = False) -> bool:
        if path in folders:
            tried.append(path)
            raise NotAllowed(f"delete {path}: Permission denied: user=bmq, access=WRITE")
        return await delete(self, path, recursive=recursive)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryFileSystem, "delete", denied)
        yield tried


def warned(caplog: pytest.LogCaptureFixture) -> int:
    return len([record for record in caplog.records if WARNING in record.message])


@pytest.mark.parametrize("end", ["deleted", "in use", "another owner"])
async def test_a_folder_without_rights_is_forgotten_and_then_warned_of_again(
    end: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Keep nothing of a folder that is deleted, or that a job uses again, or of a partition that has left."""
    world = World()
    owner = await world.owner("a")
    folder = f"{PATH.folder}/.compact-denied"
    await write_once(world.reading, f"{folder}/part-0.log", b"draft")
    sweeper, state = owner.janitor._sweeper, UpkeepState(owner.driver)
    with no_deletions(folder) as tried:
        await sweeper.sweep(state, owner.clock.now_ms() + 2 * DAY_MS)
        assert (warned(caplog), len(tried)) == (1, 1)
        match end:
            case "deleted":
                world.storage.delete(folder, recursive=True)
                await sweeper.sweep(state, owner.clock.now_ms() + 2 * DAY_MS + 1)
                await world.reading.make_folder(folder)
            case "in use":
                await sweeper.sweep(state, owner.clock.now_ms())
            case _:
                state = UpkeepState(owner.driver)
        await sweeper.sweep(state, owner.clock.now_ms() + 2 * DAY_MS + 2)
        assert (warned(caplog), len(tried)) == (2, 2)


async def test_each_of_very_many_folders_without_rights_waits_with_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    owner = await world.owner("a")
    folders = [f"{PATH.folder}/.compact-job-{number:05d}" for number in range(1_001)]
    for folder in folders:
        await world.reading.make_folder(folder)
    sweeper, state = owner.janitor._sweeper, UpkeepState(owner.driver)
    with no_deletions(*folders) as tried:
        for hours in (0, 1, 5, 6, 7):
            await sweeper.sweep(state, owner.clock.now_ms() + 2 * DAY_MS + hours * HOUR_MS)
    assert warned(caplog) == 1_001
    assert len(tried) == 2 * 1_001


async def test_a_wall_clock_that_is_set_back_makes_no_pause_longer() -> None:
    world = World()
    owner = await world.owner("a")
    folder = f"{PATH.folder}/.compact-denied"
    await world.reading.make_folder(folder)
    sweeper, state = owner.janitor._sweeper, UpkeepState(owner.driver)
    with no_deletions(folder):
        await sweeper.sweep(state, owner.clock.now_ms() + 10_000 * DAY_MS)
    await sweeper.sweep(state, owner.clock.now_ms() + 2 * DAY_MS)
    assert await world.names() == []


async def test_a_jobs_folder_stays_while_the_record_names_a_draft_of_it() -> None:
    world = World()
    owner = await world.owner("a")
    folder = f"{PATH.folder}/.compact-old"
    drafts = f"{folder}/part-0.log", f"{folder}/part-0.idx"
    for path in drafts:
        await write_once(world.reading, path, b"draft")
    now_ms, state = owner.broker.context.clock.now_ms(), UpkeepState(owner.driver)
    await owner.driver.store_swap(Swap(name=S(0, 1, 0, 1), draft=drafts[0], draft_index=drafts[1]))
    await owner.janitor._sweeper.sweep(state, now_ms + 10 * DAY_MS)
    assert len(await world.names(folder)) == 2
    await owner.driver.store_swap(None)
    await owner.janitor._sweeper.sweep(state, now_ms + 10 * DAY_MS)
    assert await world.names() == []


async def test_an_open_spare_is_fenced_before_it_is_deleted() -> None:
    """A zombie that still holds its spare open must not be acknowledged into a file without a name."""

    world = World()
    first = await world.owner("a")
    await first.broker.move(KEY)
    zombie = MemoryFileSystem(world.storage, "zombie")
    appender = await zombie.create(PATH.spare(0, 1, "zombie"))
    appender.write(b"early")
    await appender.flush()  # the first one asks the NameNode, which does not find a deleted file
    second = await world.owner("b")
    await second.rounds()
    await second.rounds(2000)
    assert await world.names() == []
    appender.write(b"late")
    with pytest.raises(StorageError) as caught:
        await appender.flush()
    assert isinstance(caught.value, LeaseLost)


async def test_a_dead_brokers_journals_are_deleted_once_no_record_names_them() -> None:
    world = World()
    first = await world.owner("a")
    await first.send(3)
    first.die()
    config = JanitorConfig(journal_grace_ms=HOUR_MS, journal_sweep_ms=1000)
    idle = Owner(world, "idle", config)
    await idle.broker.start()
    await asyncio.sleep(2 * 3600)
    await idle.several_rounds()
    # The dead one still owns the partition: its journal is what its successor begins from.
    assert {name.rsplit("-", 1)[0] for name in await world.names(layout.JOURNALS)} == {"a", "idle"}
    second = await world.owner("b", SMALL, config)
    await second.send(4)  # registers: its record no longer names the first one's journals
    await asyncio.sleep(3600)  # closed after it was read, it is as old as that
    await idle.several_rounds()
    assert {name.rsplit("-", 1)[0] for name in await world.names(layout.JOURNALS)} == {"idle", "b"}
    assert await world.records(0, 7) == world.sent


async def test_a_broker_that_was_only_paused_begins_another_journal() -> None:
    """A paused broker wakes up after the sweep: its old journal refuses it, and the next one begins with a snapshot."""

    world = World()
    config = JanitorConfig(journal_grace_ms=HOUR_MS, journal_sweep_ms=1000)
    sleeper = Owner(world, "sleeper", config)
    await sleeper.broker.start()
    await asyncio.sleep(1)
    sleeper.fs.pause()
    sleeper.kv.pause()
    other = Owner(world, "other", config)
    await other.broker.start()
    await asyncio.sleep(2 * 3600)
    await other.several_rounds()
    assert {name.rsplit("-", 1)[0] for name in await world.names(layout.JOURNALS)} == {"other"}
    sleeper.fs.resume()
    sleeper.kv.resume()
    sleeper.driver = await sleeper.broker.open(PATH, KEY, SMALL)
    await sleeper.send(1)
    await asyncio.sleep(5)
    assert "sleeper-00000002.jnl" in await world.names(layout.JOURNALS)


@pytest.mark.parametrize("segment", [S(0, 2, 10_000), S(0, 2, 0, 12_345_678)])
@pytest.mark.parametrize("holder", ["0-0123456789abcdef", "12345678-0123456789abcdef", "repair-0123456789abcdef"])
def test_the_holder_of_a_draft_is_what_follows_the_name_of_its_segment(segment: SegmentName, holder: str) -> None:
    """A cleaned segment's name has one more number, and a process may be named by eight digits."""
    found = orphans._DRAFT.fullmatch(f".idx-{segment}-{holder}")
    assert found is not None
    assert found[1] == holder

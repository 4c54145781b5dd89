"""Journals of other brokers: what cannot be read is not empty, and what a dead broker left open is closed."""

from __future__ import annotations

import asyncio
import gc
import logging
from random import Random

import pytest

from bmq.broker.files.journal_cache import FORGOTTEN_S, LIVING_PATIENCE_S, JournalCache
from bmq.storage import layout
from bmq.storage.filesystem import Appender, CorruptData, Lease, StorageError, StorageUnavailable, write_once
from bmq.storage.journal_writer import JournalWriter
from bmq.storage.memory import Faults, MemoryFileSystem, MemoryStorage
from tests.harness.journals import full, key, snapshot
from tests.harness.log_text import lines
from tests.harness.waiting import until
from tests.unit.broker.cluster import cluster
from tests.unit.broker.world import batch, world

DEAD = "3-0123456789abcdef"


class Journals:
    """A broker that was killed, and the cache of another that takes over from it."""

    def __init__(self) -> None:
        self.storage = MemoryStorage(Random(0), Faults(), datanodes=3)
        self.fs = MemoryFileSystem(self.storage, "4-b")
        self.alive: set[str] = set()
        self.cache = JournalCache(self.fs, "4-b", self.alive.__contains__)

    async def leave_open(self, data: bytes) -> Appender:
        fs = MemoryFileSystem(self.storage, DEAD)
        appender = await fs.create(layout.journal(DEAD, 1))
        appender.write(data)
        await appender.flush()
        fs.crash()
        return appender

    def restart_datanodes(self) -> None:
        for name in self.storage.datanodes:
            self.storage.kill_datanode(name)
        for name in self.storage.datanodes:
            self.storage.start_datanode(name)


async def test_a_dead_brokers_journal_that_waits_for_recovery_is_fenced_and_read() -> None:
    j = Journals()
    await j.leave_open(snapshot(full(10)))
    j.restart_datanodes()
    with pytest.raises(StorageUnavailable):
        await j.fs.visible_length(layout.journal(DEAD, 1))
    assert await j.cache.find(DEAD, key()) == full(10)
    assert not j.storage.open_files()


@pytest.mark.slow
async def test_a_living_brokers_journal_is_left_to_it() -> None:
    j = Journals()
    await j.leave_open(snapshot(full(10)))
    j.alive.add(DEAD)
    j.restart_datanodes()
    with pytest.raises(StorageUnavailable):
        await j.cache.find(DEAD, key())
    assert j.storage.open_files()
    gc.collect()  # the exception and the frames that raised it refer to each other
    assert not j.cache._locks, "nothing is left of brokers whose journals were never read"


async def test_a_living_brokers_journal_is_fenced_when_it_stays_unreadable() -> None:
    """Leave unreadable the journal of a broker that is alive but cut off from storage: no other process would make it
    readable. The file that the broker is writing is not fenced."""

    j = Journals()
    await j.leave_open(snapshot(full(10)))
    j.alive.add(DEAD)
    j.restart_datanodes()
    fs = MemoryFileSystem(j.storage, DEAD)
    current = await fs.create(layout.journal(DEAD, 2))
    current.write(snapshot())
    await current.flush()
    for _ in range(10):
        with pytest.raises(StorageUnavailable):
            await j.cache.find(DEAD, key())
        await asyncio.sleep(1.0)
    assert await j.cache.find(DEAD, key()) == full(10)
    assert list(j.storage.open_files()) == [layout.journal(DEAD, 2)]
    current.write(b"more")
    await current.flush()


async def test_a_living_brokers_journal_has_its_time_again_after_a_trouble_that_nobody_saw_end() -> None:
    j = Journals()
    await j.leave_open(snapshot(full(10)))
    j.alive.add(DEAD)
    j.restart_datanodes()
    with pytest.raises(StorageUnavailable):
        await j.cache.find(DEAD, key())
    await asyncio.sleep(FORGOTTEN_S + LIVING_PATIENCE_S)
    for _ in range(10):
        with pytest.raises(StorageUnavailable):
            await j.cache.find(DEAD, key())
        await asyncio.sleep(LIVING_PATIENCE_S / 10)
    assert await j.cache.find(DEAD, key()) == full(10)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
async def test_a_living_brokers_journal_that_others_fence_loses_nothing(seed: int) -> None:
    """Fence the journal of a broker that is only slow: it notices at its next flush, and its next file repeats what was
    not acknowledged."""

    j = Journals()
    rng, held = Random(seed), {key(): full(0)}
    fs = MemoryFileSystem(j.storage, DEAD)
    journal = JournalWriter(fs, DEAD, lambda: list(held.values()))
    j.storage.faults = Faults(call_s=(0.0, 0.003), ack_s=(0.0, 0.01))
    writing = asyncio.create_task(journal.run())
    acknowledged = 0

    async def append() -> None:
        nonlocal acknowledged
        for end in range(1, 200):
            held[key()] = full(end)
            await journal.append(full(end))
            acknowledged = end
            await asyncio.sleep(rng.random() * 0.01)

    appending, fences = asyncio.create_task(append()), 0
    while not appending.done():
        await asyncio.sleep(rng.random() * 0.2)
        for path in list(j.storage.open_files()):
            await j.fs.fence(Lease(paths=(path,), holder=DEAD, file_id=0), sync=True)
            fences += 1
        before = acknowledged
        found = await j.cache.find(DEAD, key())
        assert found is not None
        assert found.end_offset >= before
        await journal.seal_left_files()
    await appending
    assert fences > 5
    journal.close()
    await writing


async def test_what_cannot_be_read_nor_fenced_is_not_empty() -> None:
    j = Journals()
    await j.leave_open(snapshot(full(10)))
    for name in j.storage.datanodes:
        j.storage.kill_datanode(name)
    with pytest.raises(StorageUnavailable):
        await j.cache.find(DEAD, key())
    j.restart_datanodes()
    assert await j.cache.find(DEAD, key()) == full(10), "tried again"


async def test_a_reading_that_is_kept_is_not_used_while_the_journal_cannot_be_read() -> None:
    j = Journals()
    await j.leave_open(snapshot(full(10)))
    assert await j.cache.find(DEAD, key()) == full(10)
    j.alive.add(DEAD)
    j.restart_datanodes()
    with pytest.raises(StorageUnavailable):
        await j.cache.find(DEAD, key())


async def test_a_journal_that_is_nowhere_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        j = Journals()
        assert await j.cache.find(DEAD, key()) is None
        await write_once(j.fs, layout.journal("4-b", 1), snapshot())
        assert await j.cache.find("4-b", key()) is None
    (logged,) = lines(caplog)
    assert logged.startswith("a broker has no journal on storage")
    assert logged.endswith(f" member={DEAD}")


async def test_journals_of_the_dead_are_closed_once_and_those_of_the_living_when_they_die() -> None:
    j = Journals()
    await j.leave_open(snapshot(full(10)))
    j.alive.add(DEAD)
    await j.cache.find(DEAD, key())
    await j.cache.seal_dead()
    assert j.storage.open_files(), "its broker lives"
    j.alive.clear()
    j.storage.restart_namenode(5.0)
    await j.cache.seal_dead()
    j.storage.restart_namenode(0.0)
    assert j.storage.open_files(), "tried again later"
    await j.cache.seal_dead()
    assert not j.storage.open_files()


@pytest.mark.leaves_tasks
async def test_rule_10_a_log_start_outlives_the_restart_of_all_datanodes() -> None:
    """Broker and datanodes are killed together: the deletion stands in the journal alone."""

    async with world() as w:
        w.topic()
        for _ in range(10):
            await w.produce_one(batch())
        assert await (await w.owner()).delete_before(5) == 5
        w.fs.crash()
        for name in w.storage.datanodes:
            w.storage.kill_datanode(name)
        for name in w.storage.datanodes:
            w.storage.start_datanode(name)
        w.kv.crash()
        await w.start()
        w.assign()
        heir = await w.assigned.wait(w.key(), 300.0)  # leases are recovered: up to 94 s each
        assert (heir.log_start, heir.high_watermark) == (5, 10)
        await until(lambda: not any("/b1-" in path for path in w.storage.open_files()))


async def test_a_snapshot_has_each_partition_that_comes_or_goes_meanwhile_once() -> None:
    """A journal's snapshot is made in turns of the loop: partitions are handed over, opened and closed in between."""

    async with cluster() as c:
        c.topic(partitions=6)
        keys = c.keys()
        c.give("a", *keys[:4])
        for key in keys[:4]:
            await c["a"].assigned.wait(key, 5.0)
            await c.write("a", key, batch())
        c.give("b", keys[0])
        await c["b"].assigned.wait(keys[0], 5.0)
        snapshot = (each for each in c["a"].broker._snapshot() if each is not None)
        seen = [next(snapshot).key]
        c.give("b", keys[3], *seen)
        c.give("a", keys[4])
        for owner, key in (("b", keys[3]), ("a", keys[4])):
            await c[owner].assigned.wait(key, 5.0)
        seen += [each.key for each in snapshot]
        assert sorted(key.partition for key in seen) == [0, 1, 2, 3]


@pytest.mark.parametrize("error", [StorageUnavailable, CorruptData])
async def test_a_takeover_that_waits_for_a_journal_says_so(
    error: type[StorageError], caplog: pytest.LogCaptureFixture
) -> None:
    """The former owner is alive but cut off from storage, and its journal's only datanode is dead: nothing else shows
    why clients wait."""

    with caplog.at_level(logging.WARNING, "bmq.broker.partition.driver"):
        async with cluster() as c:
            c.topic()
            (key,) = c.keys()
            c.give("a", key)
            await c["a"].assigned.wait(key, 5.0)
            await c.write("a", key, batch())
            heir = c["b"]
            visible_length, is_dead = heir.fs.visible_length, True

            async def ask(path: str) -> int:
                if is_dead and path.startswith(layout.journal("a", 1)[:-5]):
                    raise error(f"{path}: no datanode of it answers")
                return await visible_length(path)

            heir.fs.visible_length = ask  # type: ignore[method-assign]
            heir.view.assign("b", key)  # "a" is not notified, and releases nothing
            await asyncio.sleep(20.0)
            assert heir.assigned.get(key) is None
            ((path, why),) = heir.assigned.not_served()
            assert path.partition == key.partition
            assert "no datanode of it answers" in why
            assert heir.assigned.why_not_served(key) == f"being taken over: {why}"
            is_dead = False
            await heir.assigned.wait(key, 10.0)
            assert list(heir.assigned.not_served()) == []
            assert heir.assigned.why_not_served(key) == ""
    logged = [line for line in lines(caplog) if line.startswith("a partition is not taken over yet")]
    assert len(logged) >= 2, "each try; the log bounds how many are written"
    assert "no datanode of it answers" in logged[0]
    assert " partition=0 " in logged[0]


async def test_a_journal_that_had_one_copy_for_a_moment_keeps_no_takeover_waiting() -> None:
    """Open a journal while only one datanode is reachable. Later that datanode dies and the broker is cut off from
    storage: it is alive, and others have to read its journal."""

    async with cluster() as c:
        broker, (only, *others) = c["a"].broker, c.storage.datanodes
        for name in others:
            c.storage.stop_datanode(name)
        await broker.journal.renew()
        for name in others:
            c.storage.resume_datanode(name)
        c.topic(replication_factor=3)
        (key,) = c.keys()
        c.give("a", key)
        await c["a"].assigned.wait(key, 5.0)
        assert await c.write("a", key, batch()) == 0
        await asyncio.sleep(10.0)
        async for journal in c["b"].fs.list(layout.JOURNALS, after="a-"):
            await c["b"].fs.copies(journal.path)  # the NameNode adds some to closed files within seconds
        c.storage.kill_datanode(only)
        c["a"].fs.pause()
        c.give("b", key)
        owner = await c["b"].assigned.wait(key, 30.0)
        assert owner.high_watermark == 1

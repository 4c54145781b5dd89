"""A metadata store that goes back to an older state beside a root that went on, and a root that two clusters serve.

An operator brings back a copy of the store: a SQLite file, a snapshot of etcd, an image of a machine.  What the store
did not see is on storage all the same, so no owner may write below it: its offsets would be given out twice.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator
from dataclasses import replace
from random import Random

import pytest

from bmq.broker.partition.states import PartitionState
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.model import SegmentName
from bmq.meta.kv import Put
from bmq.meta.kv_memory import KvFaults, MemoryKeyValue, MemoryStore
from bmq.meta.ownership import encode
from bmq.storage.filesystem import FileStatus
from bmq.storage.memory import Faults, MemoryFileSystem
from bmq.storage.memory.appender import MemoryAppender
from tests.harness.waiting import until
from tests.simulation.histories import Histories, seeds_wanted
from tests.simulation.partition_clients import produce
from tests.simulation.partition_events import Events
from tests.simulation.stories import RECORD, logs, names, owner, record_of, story, write, writer_of
from tests.simulation.test_partition import small, storage_faults, store_faults
from tests.simulation.world import PATH, SMALL_LOG, Process, World, make

pytestmark = pytest.mark.leaves_tasks

HISTORIES = Histories(module=__name__, seeds=seeds_wanted(80) // 7 or 1, blocks=10, limit_s=3_600)
OLDER = "the metadata store is older than storage"


def copied(store: MemoryStore) -> MemoryStore:
    """Return what a copy of the store's files holds: its entries, without the leases of processes that watch."""
    old = MemoryStore()
    old.revision = old.compacted = store.revision
    old._entries = copy.copy(store._entries)
    old._keys = list(store._keys)
    return old


async def refused(world: World) -> Process:
    """Start a process, and return it once it has found that the store is older than storage."""
    process = world.process()
    await until(lambda: process.driver is not None and process.driver.machine.state is PartitionState.OFFLINE)
    assert OLDER in writer_of(process).machine.offline_reason
    return process


async def brought_back(world: World, old: MemoryStore) -> None:
    """Kill all; bring the old store back, which no owner may write to, however often it tries; then the present one."""
    present = world.store
    for process in world.processes:
        process.crash()
    before = logs(await names(world))
    world.store = old
    for _ in range(3):
        (await refused(world)).crash()
    assert logs(await names(world)) == before
    world.store = present  # as good as a rebuilt one


def test_rule_3_a_store_from_before_the_last_registration_gives_no_offset_again() -> None:
    async def body(world: World) -> None:
        process = await owner(world)
        await write(process, range(3))
        old = copied(world.store)
        await write(process, range(3, 40))
        assert record_of(world).last_registered[1] > 0, "the story needs a segment that the copy does not know"
        await brought_back(world, old)

    story(body)


def test_rule_3_a_store_from_before_the_present_owner_gives_no_offset_again() -> None:
    async def body(world: World) -> None:
        await write(await owner(world), range(3))
        old = copied(world.store)
        for start in (3, 5, 7):
            world.processes[-1].crash()
            await write(await owner(world), range(start, start + 2))
        await brought_back(world, old)

    story(body)


def test_rule_3_a_store_from_before_the_last_registration_is_noticed_when_its_files_are_gone_too() -> None:
    """Delete what the old record lists: the reason names the store, and not a segment that vanished."""

    async def body(world: World) -> None:
        process = await owner(world)
        await write(process, range(3))
        old = copied(world.store)
        await write(process, range(3, 40))
        world.judge.start_asked = 20
        await writer_of(process).delete_before(20)
        world.judge.start_confirmed = 20
        first = logs(await names(world))[0]
        while first in await names(world):  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.5)
        await brought_back(world, old)

    story(body, log_config=replace(SMALL_LOG, file_delete_delay_ms=0))


def test_rule_3_a_store_from_before_the_first_claim_gives_no_offset_again() -> None:
    """The copy has no record of the partition, whose folder nobody lists before its first write."""

    async def body(world: World) -> None:
        old = copied(world.store)
        await write(await owner(world), range(3))
        present = world.store
        world.processes[-1].crash()
        before = logs(await names(world))
        world.store = old
        process = await owner(world)
        with pytest.raises(RequestError, match=OLDER):
            await writer_of(process).append(make(1, 3, pid=1, size=10))
        assert writer_of(process).machine.state is PartitionState.OFFLINE
        with pytest.raises(RequestError, match=OLDER) as error:
            writer_of(process).append(make(1, 3, pid=1, size=10))
        assert error.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert logs(await names(world)) == before
        process.crash()
        world.store = present

    story(body)


def test_a_store_that_is_as_new_as_storage_is_served() -> None:
    """Nothing was registered since the copy: it is as good as the original, and no offset is in danger."""

    async def body(world: World) -> None:
        process = await owner(world)
        await write(process, range(3))
        old = copied(world.store)
        await write(process, range(3, 6))
        process.crash()
        world.store = old
        await write(await owner(world), range(6, 9))

    story(body)


def test_a_segment_that_left_the_record_without_data_is_no_sign_of_an_older_store() -> None:
    """The last segment held a batch that was never acknowledged, and its owner's heir registered none: it was moved."""

    async def body(world: World) -> None:
        process = await owner(world)
        await write(process, range(3))
        world.storage.faults = replace(Faults(), pipeline_fails=1.0)
        lost = writer_of(process).append(make(1, 3, pid=1, size=10))
        await until(lambda: record_of(world).last_registered[1] >= 2)
        process.crash()
        del lost
        world.storage.faults = Faults()
        for _ in range(3):
            heir = await owner(world)
            await writer_of(heir).move()
            heir.crash()
        record = record_of(world)
        assert record.last_registered > max(entry.name.order for entry in record.segments)
        await write(await owner(world), range(3, 6))

    story(body)


async def left_empty(world: World, name: SegmentName) -> MemoryAppender:
    """Leave an open and empty file with this final name, which no record lists; return its writer."""
    return await MemoryFileSystem(world.storage, "gone").create(PATH.log(name))


def test_rule_3_an_empty_file_of_an_earlier_epoch_is_deleted_and_hides_no_record() -> None:
    """A rename that arrived after `bmq cluster rebuild` had listed the folder: the base is in the middle of a log.

    The file is later than the record's, so readers would end the file before it at that base.
    """

    async def body(world: World) -> None:
        first = await owner(world)
        await write(first, range(5))
        first.crash()
        late = SegmentName(2, record_of(world).epoch, 1)
        assert late.order > record_of(world).last_registered
        await left_empty(world, late)
        heir = await owner(world)
        assert f"{late}.log" not in await names(world)
        await write(heir, range(5, 8))

    story(body)


def test_rule_3_an_owner_that_was_followed_leaves_a_file_alone_that_its_record_does_not_know() -> None:
    """The store names another owner once the folder is listed: that owner may have registered the file.

    A fence would seem foreign to it, and end its process; a deletion would take a file that it is about to write.
    """

    async def body(world: World) -> None:
        first = await owner(world)
        await write(first, range(3))
        first.crash()
        late = await left_empty(world, SegmentName(3, record_of(world).epoch, 1))
        second = world.process()
        inner = second.fs.list

        async def overtaken(path: str, *, after: str = "") -> AsyncIterator[FileStatus]:
            async for status in inner(path, after=after):
                if status.path == late.lease.paths[0]:
                    record = record_of(world)
                    claimed = replace(record, epoch=record.epoch + 1, owner="third")
                    await MemoryKeyValue(world.store).commit([], [Put(RECORD, encode(claimed))])
                yield status

        second.fs.list = overtaken  # type: ignore[method-assign]
        await until(lambda: second.driver is not None and second.driver.machine.state is PartitionState.FENCED)
        late.write(b"x")
        await late.flush()
        second.crash()
        await MemoryFileSystem(world.storage, "gone").delete(late.lease.paths[0])

    story(body)


def stops(process: Process) -> list[str]:
    """Crash the process when its broker wants to end, as `bmq serve` does; return the reasons."""
    reasons: list[str] = []

    def stop(why: str) -> None:
        reasons.append(why)
        process.crash()

    process.wiring.on_failed = stop
    return reasons


def test_two_clusters_on_one_root_do_not_both_acknowledge() -> None:
    """The second has a copy of the store: it fences the first one's open file, and the first ends at its next write.

    So every acknowledged batch is in the log of the second; and the first one, started again, finds that its store is
    older than storage.
    """

    async def body(world: World) -> None:
        first = await owner(world)
        reasons = stops(first)
        await write(first, range(3))
        own, world.store = world.store, copied(world.store)
        second = await owner(world)
        with pytest.raises(RequestError):
            await writer_of(first).append(make(1, 3, pid=1, size=10))
        await until(lambda: not first.is_alive)
        assert ["was fenced by a process that the metadata store does not know" in why for why in reasons] == [True]
        await write(second, range(3, 6))
        theirs, world.store = world.store, own
        (await refused(world)).crash()
        second.crash()
        world.store = theirs

    story(body)


def test_a_fence_by_the_next_owner_ends_no_process() -> None:
    async def body(world: World) -> None:
        first = await owner(world)
        reasons = stops(first)
        await write(first, range(3))
        second = await owner(world)
        with pytest.raises(RequestError):
            await writer_of(first).append(make(1, 3, pid=1, size=10))
        assert writer_of(first).machine.state is PartitionState.FENCED
        assert (reasons, first.is_alive) == ([], True)
        await write(second, range(3, 6))

    story(body)


def test_a_fence_is_not_judged_before_the_store_has_answered() -> None:
    """The next owner has claimed the partition, and the store is away: the first one waits, then stops as fenced."""

    async def body(world: World) -> None:
        first = await owner(world)
        reasons = stops(first)
        await write(first, range(3))
        second = await owner(world)
        first.kv.faults = KvFaults(unavailable=1.0)
        response = writer_of(first).append(make(1, 3, pid=1, size=10))
        await asyncio.sleep(5.0)
        assert (writer_of(first).machine.state, response.done()) == (PartitionState.WRITE, False)
        first.kv.faults = KvFaults()
        with pytest.raises(RequestError):
            await response
        assert (reasons, first.is_alive) == ([], True)
        await write(second, range(3, 6))

    story(body)


async def history(seed: int) -> int:
    """Copy the store at some moment of a history, bring it back after it, and see that nothing is given twice."""
    rng = Random(seed)
    world = World(
        seed, faults=storage_faults(rng), kv_faults=store_faults(rng), config=small(rng),
        log_config=replace(SMALL_LOG, segment_bytes=rng.choice((600, 3_000))),
    )  # fmt: skip
    events = Events(world, rng)
    world.process()
    clients = [
        asyncio.create_task(produce(world, producer, rng.randint(10, 60), is_idempotent=True)) for producer in (1, 2)
    ]
    old = copied(world.store)
    copy_at = rng.randint(0, 4)
    for number in range(5):
        if number == copy_at:
            old = copied(world.store)
        await asyncio.sleep(rng.choice((0.05, 0.5, 2.0, 8.0)) * rng.random())
        events.befall()
    for client in clients:
        client.cancel()
    await asyncio.gather(*clients, return_exceptions=True)
    for process in world.processes:
        process.crash()
    await _bring_back(world, old)
    await world.verdict()
    return len(world.judge.acked)


async def _bring_back(world: World, old: MemoryStore) -> None:
    """Serve with the old store; if that owner writes, the log must hold all that was acknowledged before."""
    present, world.store = world.store, old
    weather = world.storage.faults, world.kv_faults
    world.storage.faults, world.kv_faults = Faults(), replace(world.kv_faults, unavailable=0.0)
    for name in world.storage.datanodes:
        world.storage.start_datanode(name)
    process = world.process()
    ended = (PartitionState.WRITE, PartitionState.OFFLINE)
    await until(lambda: process.driver is not None and process.driver.machine.state in ended, every_s=0.1)
    outcome = ""
    try:
        offset = await writer_of(process).append(make(9, 0, pid=9, size=10))
    except RequestError as error:
        outcome = error.message
    if OLDER in outcome:
        process.crash()
        world.store = present
    else:
        assert not outcome, outcome
        assert offset > max((sent.offset or 0 for sent in world.judge.acked), default=-1), (
            f"offset {offset} was acknowledged before"
        )
    world.storage.faults, world.kv_faults = weather


def play(seed: int) -> int:
    return HISTORIES.play(history, seed)


def test_rule_3_a_store_from_before_the_last_registration_is_noticed_if_both_files_are_empty() -> None:
    """Two segments failed before their first batch: the first was deleted, and the copy lists it as the newest."""
    play(198)


@HISTORIES.each_block
def test_histories(block: int) -> None:
    """No offset is given twice, and no acknowledged batch is hidden, whatever state of the store comes back."""
    acked = sum(map(play, HISTORIES.seeds_of(block)))
    HISTORIES.check_acted(block, acked)


def test_a_history_acknowledges_something() -> None:
    HISTORIES.check_one_acts(history)

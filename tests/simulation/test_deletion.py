"""Deletion meets takeovers: a record that lists what is gone, a log start that must stay.

Small stories with names, of what was wrong once; the seeded ones are in ``test_partition``.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import replace

import pytest

from bmq.broker.partition.states import TERMINAL, PartitionState
from bmq.core.model import PartitionKey
from bmq.meta.kv_memory import KvFaults
from bmq.storage import layout
from bmq.storage.checkpoint import Checkpoint
from bmq.storage.filesystem import Lease, StorageUnavailable
from bmq.storage.memory import Faults, MemoryFileSystem
from tests.harness.waiting import until
from tests.simulation.stories import (
    HUNG,
    delete_records,
    logs,
    names,
    nodes_of,
    owner,
    record_of,
    story,
    write,
    writer_of,
)
from tests.simulation.world import KEY, SMALL, SMALL_LOG, Process, World, make

DELETING = replace(SMALL_LOG, file_delete_delay_ms=5_000)


@pytest.mark.parametrize("by", ["delete records", "retention"])
def test_rule_10_a_deleted_segment_that_the_record_still_lists_is_not_missing(by: str) -> None:
    """The record lists a segment as open until its owner registers the next: an idle owner never does.  Its files may
    expire, and be deleted, meanwhile."""

    async def body(world: World) -> None:
        first = await owner(world)
        await write(first, range(4))
        world.storage.faults = HUNG
        world.storage.kill_datanode(nodes_of(first)[0])
        lost = writer_of(first).append(make(2, 0, pid=-1, size=10))
        await until(lambda: len(record_of(world).segments) == 2)
        await until(lambda: writer_of(first).machine.current is not None)
        first.crash()
        world.storage.faults = Faults()
        assert not lost.done()

        heir = await owner(world)
        assert [entry.is_closed for entry in record_of(world).segments] == [False, False]
        if by == "delete records":
            await delete_records(heir, 4)
        await asyncio.sleep(120)
        assert writer_of(heir).machine.log_start == 4
        assert len(logs(await names(world))) == 1, "the story needs the deletion of a file that the record lists"
        heir.crash()
        await write(await owner(world), range(4, 6))

    retention_ms = 30_000 if by == "retention" else -1
    story(body, log_config=replace(SMALL_LOG, retention_ms=retention_ms, file_delete_delay_ms=5_000))


def test_a_takeover_that_hung_does_not_take_a_successors_deletions_for_damage() -> None:
    """Let a takeover fence, lose storage for a while, and go on when a later owner has deleted segments that it reads.

    It is fenced itself by then: an operator would be asked to repair a sound partition.
    """

    async def body(world: World) -> None:
        first = await owner(world)
        await write(first, range(20), size=600)
        first.crash()
        hung = world.process()
        fence = hung.fs.fence

        async def fence_and_hang(lease: Lease, *, sync: bool = False) -> int:
            length = await fence(lease, sync=sync)
            hung.fs.pause()
            return length

        hung.fs.fence = fence_and_hang  # type: ignore[method-assign]
        await until(lambda: not hung.fs.is_running)
        heir = await owner(world)
        await write(heir, range(20, 22))
        await delete_records(heir, 20)
        await asyncio.sleep(30)
        assert len(logs(await names(world))) == 1, "the story needs the deletion of what the first owner wrote"
        hung.fs.fence = fence  # type: ignore[method-assign]
        hung.fs.resume()
        await until(lambda: hung.driver is not None or hung.broker.get(KEY) is None)
        await asyncio.sleep(30)
        assert [report for report in hung.broker.reports if "OFFLINE" in report or "vanished" in report] == []
        assert hung.broker.get(KEY) is None, "fenced, and forgotten"

    story(body, log_config=DELETING)


# ------------------------------------------------------------------------------------------------- the log start stays


async def _roll_journal(process: Process, times: int) -> None:
    """Other partitions' checkpoints fill the journal until its last file is one of ``times`` new ones."""
    journal = process.broker.journal
    journal._machine.roll_bytes = 100
    last = journal._n + times
    other = Checkpoint(
        key=PartitionKey(uuid.UUID(int=0xB5), 0), segment=next(iter(record_of(process.world).segments)).name,
        position=1, end_offset=1, log_start=0,
    )  # fmt: skip
    while journal._n < last:
        await journal.append(other)
        await asyncio.sleep(0.01)
    await asyncio.sleep(1)  # the last but one has been closed, older ones are deleted


async def _returns_under_its_own_name(process: Process) -> None:
    """Declare the process dead in the store; it registers again and takes its partition back."""
    process.broker.fence_all()
    await until(lambda: process.broker.get(KEY) is None)  # upkeep has let it go
    process.moving = asyncio.create_task(process.open())
    await until(lambda: process.broker.get(KEY) is not None)


@pytest.mark.parametrize("is_withdrawn", [False, True])
def test_rule_10_a_journal_rolled_while_its_partition_is_taken_back_keeps_the_log_start(is_withdrawn: bool) -> None:
    """The record leads to this journal, and the last file that held the log start is deleted while a fence hangs."""

    async def body(world: World) -> None:
        process = await owner(world)
        await write(process, range(20), size=600)
        await asyncio.sleep(10)  # the last segment is closed: its index does not hold the log start
        await delete_records(process, 15)
        await asyncio.sleep(30)
        assert len(logs(await names(world))) < 5, "the story needs deleted files"

        async def hangs(lease: Lease, *, sync: bool = False) -> int:
            raise StorageUnavailable("the datanode is down")

        process.fs.fence = hangs  # type: ignore[method-assign]
        await _returns_under_its_own_name(process)
        driver = process.broker.get(KEY)
        assert driver is not None
        await until(lambda: driver.machine.state is PartitionState.FENCE)
        if is_withdrawn:
            await process.broker.move(KEY)
        await _roll_journal(process, 3)
        process.crash()

        heir = await owner(world)
        assert writer_of(heir).machine.log_start == 15

    story(body, log_config=DELETING)


def test_a_partition_taken_back_is_written_to_the_journal_once() -> None:
    """Take a departed partition back: its departure record is dropped once the owner's new checkpoint is durable."""

    async def body(world: World) -> None:
        process = await owner(world)
        await write(process, range(3))
        await _returns_under_its_own_name(process)
        await until(lambda: process.is_serving)
        snapshot = [each for each in process.broker._snapshot() if each is not None]
        assert [(found.key, found.end_offset) for found in snapshot] == [(KEY, 3)]
        assert process.broker._departed == {}

    story(body)


def test_rule_10_a_log_start_that_no_journal_tells_is_that_of_the_first_file() -> None:
    """All files below it are gone, so consumers could never read there: they would wait for ever."""

    async def body(world: World) -> None:
        process = await owner(world)
        await write(process, range(20), size=600)
        await asyncio.sleep(10)  # the last segment is closed: its index does not hold the log start either
        await delete_records(process, 15)
        await asyncio.sleep(30)
        process.crash()
        first = int(logs(await names(world))[0].split("-")[0])
        assert 0 < first <= 15, "the story needs deleted files"
        await _delete_journals(world)
        world.judge.start_confirmed = first  # the rest of what was confirmed is lost with the journal
        heir = await owner(world)
        assert writer_of(heir).machine.log_start == first
        assert any("log start" in report for report in heir.broker.reports)

    story(body, log_config=DELETING)


async def _delete_journals(world: World) -> Sequence[str]:
    fs = MemoryFileSystem(world.storage, "operator")
    found = [status.path async for status in fs.list(layout.JOURNALS)]
    for path in found:
        await fs.delete(path)
    return found


# ------------------------------------------------------------------------------------------------ what has not expired


def test_a_segment_that_is_left_open_is_not_as_old_as_its_file() -> None:
    """Break the pipeline of a segment that storage does not let its owner close yet.

    HDFS dates an open file by its creation, so its last records would expire with its first.
    """

    async def body(world: World) -> None:
        process = await owner(world)
        await write(process, range(2))
        await asyncio.sleep(25)
        await write(process, range(2, 4))

        async def refused(lease: Lease, *, sync: bool = False) -> int:
            raise StorageUnavailable("its datanodes are dead")

        fence = process.fs.fence
        process.fs.fence = refused  # type: ignore[method-assign]
        world.storage.kill_datanode(nodes_of(process)[0])
        await write(process, range(4, 6))
        assert len(record_of(world).segments) == 2
        await asyncio.sleep(15)
        assert writer_of(process).machine.log_start == 0
        process.fs.fence = fence  # type: ignore[method-assign]
        await asyncio.sleep(60)
        assert writer_of(process).machine.log_start >= 4, "expired in the end"

    config = replace(SMALL, idle_close_ms=50_000)
    story(body, config=config, log_config=replace(DELETING, retention_ms=30_000))


def test_rule_10_a_departed_partitions_log_start_survives_its_journals_rolls() -> None:
    """Roll the journal after a departure: the record names it until a successor's own checkpoint is durable."""

    async def body(world: World) -> None:
        process = await owner(world)
        await write(process, range(6), size=600)
        await asyncio.sleep(10)  # the last segment is closed: its index does not hold the log start
        await delete_records(process, 5)
        await process.broker.move(KEY)
        assert not record_of(world).is_settled
        await _roll_journal(process, 3)
        assert writer_of(await owner(world)).machine.log_start == 5

    story(body)


def test_rule_10_a_log_start_survives_journal_rolls_while_its_fenced_owner_takes_the_partition_over_again() -> None:
    """Lose the membership and open the partition again at once: until the log is read again, the journal's last
    checkpoint of it is that of the ended ownership."""

    async def body(world: World) -> None:
        process = await owner(world)
        await write(process, range(6), size=600)
        await asyncio.sleep(10)  # the last segment is closed: its index does not hold the log start
        await delete_records(process, 5)
        process.kv.faults = KvFaults(unavailable=1.0)
        process.broker.fence_all()
        opening = asyncio.create_task(process.open())
        await until(lambda: process.broker.get(KEY) is not process.driver)
        await _roll_journal(process, 3)
        process.crash()
        opening.cancel()
        await asyncio.wait([opening])
        assert writer_of(await owner(world)).machine.log_start == 5

    story(body)


@pytest.mark.parametrize("store", ["answers", "is away at first"])
def test_rule_4_a_takeover_that_was_overtaken_takes_nothing_offline(store: str) -> None:
    """Slow a takeover's fence while its successor deletes expired segments: missing files then mean nothing."""

    async def body(world: World) -> None:
        first = await owner(world)
        await write(first, range(4))
        world.storage.faults = HUNG
        world.storage.kill_datanode(nodes_of(first)[0])
        writer_of(first).append(make(2, 0, pid=-1, size=10))
        await until(lambda: len(record_of(world).segments) == 2)
        await until(lambda: writer_of(first).machine.current is not None)
        first.crash()
        world.storage.faults = Faults(call_s=(0.1, 0.1))

        late = world.process("late")
        await until(lambda: record_of(world).owner == "late")
        overtaken = late.broker.get(KEY)
        assert overtaken is not None
        late.pause()
        world.storage.faults = Faults()
        heir = await owner(world)
        await delete_records(heir, 4)
        deleted = record_of(world).segments[0].file_id
        await until(lambda: deleted not in world.storage.namespace.files)

        late.resume()
        if store == "is away at first":
            late.kv.faults = KvFaults(unavailable=1.0)
            await asyncio.sleep(5.0)
            assert overtaken.machine.state in (PartitionState.FENCE, PartitionState.RECOVER)
            late.kv.faults = KvFaults()
        await until(lambda: overtaken.machine.state in TERMINAL)
        assert overtaken.machine.state is PartitionState.FENCED
        assert [loss for loss in late.broker.reports if "storage has acknowledged nothing" not in loss] == []

    story(body, log_config=DELETING)


def test_a_takeover_that_was_overtaken_reports_no_closed_segment_as_vanished() -> None:
    """Delay a takeover of a log that was handed over, until its successor has deleted the one segment in the record."""

    async def body(world: World) -> None:
        first = await owner(world)
        await write(first, range(4))
        await first.broker.move(KEY)
        assert [entry.is_closed for entry in record_of(world).segments] == [True]
        deleted = record_of(world).segments[0].file_id

        world.storage.faults = Faults(call_s=(0.1, 0.1))
        late = world.process("late")
        await until(lambda: record_of(world).owner == "late")
        late.pause()
        world.storage.faults = Faults()
        heir = await owner(world)
        await delete_records(heir, 4)
        await write(heir, range(4, 5))
        await until(lambda: deleted not in world.storage.namespace.files)

        late.resume()
        await until(lambda: late.driver is not None or late.broker.get(KEY) is None)
        assert [loss for loss in late.broker.reports if "storage has acknowledged nothing" not in loss] == []

    story(body, log_config=DELETING)

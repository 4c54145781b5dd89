"""Damaged hints: what a takeover may do without, it does without.

Small stories with names, of what was wrong once.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from bmq.broker.partition.states import PartitionState
from bmq.storage import layout
from bmq.storage.checkpoint import encode
from bmq.storage.filesystem import CorruptData, Lease, StorageUnavailable, write_once
from bmq.storage.journal import CHECKPOINT, frame
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
from tests.simulation.world import KEY, PATH, SMALL, Process, World, make

pytestmark = pytest.mark.leaves_tasks


@pytest.mark.parametrize("kind", [b"X", b""])
def test_rule_4_an_undecodable_journal_record_is_no_checkpoint(kind: bytes) -> None:
    """Another version's, say.  The checkpoint before it leads to the same log, with the same producers."""

    async def body(world: World) -> None:
        process = await owner(world)
        await write(process, range(6))
        await delete_records(process, 3)
        checkpoint = writer_of(process).machine.full_checkpoint()
        assert checkpoint is not None
        payload = encode(checkpoint)
        await _append_to_journal(process, frame(CHECKPOINT, kind + payload[1:] if kind else payload[:10]))
        process.crash()
        heir = await owner(world)
        assert writer_of(heir).machine.log_start == 3
        await write(heir, range(5, 8))  # the last one again: its producer is known

    story(body)


async def _append_to_journal(process: Process, data: bytes) -> None:
    """Append a record that the process itself, or its next version, might have written."""
    appender = process.broker.journal._appender
    assert appender is not None
    appender.write(data)
    await appender.flush()
    path = layout.journal(process.name, process.broker.journal._n)
    shown = await MemoryFileSystem(process.world.storage, "reader").read(path, 0, 1 << 20)
    assert shown.endswith(data), "the story needs the record in the journal"


@pytest.mark.parametrize("end", ["moved", "crashed"])
@pytest.mark.parametrize("is_gone", [False, True])
@pytest.mark.seed(7)
async def test_damage_to_the_newest_closed_segment_is_told_at_the_takeover(end: str, is_gone: bool) -> None:
    """Nothing of it is scanned, since it was closed and its index is sound; readers would find it first."""

    world = World(7)
    process = await owner(world)
    await write(process, range(5), size=900)
    await process.broker.move(KEY)
    if end == "crashed":
        process = await owner(world)
        await write(process, range(5, 6))
        await asyncio.sleep(1)
        process.crash()
    name = logs(await names(world))[-1 if end == "moved" else -2]
    fs = MemoryFileSystem(world.storage, "thief")
    if is_gone:
        await fs.delete(f"{PATH.folder}/{name}")
    else:
        file = world.storage.namespace.file(f"{PATH.folder}/{name}")
        del file.data[-1:]
        file.length -= 1
    heir = await owner(world)
    assert writer_of(heir).machine.high_watermark == (5 if end == "moved" else 6)
    (report,) = heir.broker.reports
    assert name in report
    assert ("vanished" if is_gone else "lost 1 of the") in report


@pytest.mark.parametrize("is_moved", [False, True])
@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.seed(7)
async def test_an_open_segment_that_is_gone_before_its_first_checkpoint_is_told_at_the_takeover(
    is_moved: bool, is_first: bool
) -> None:
    """Delete an open segment with acked records before its first checkpoint: the record that lists it is enough."""

    world = World(7, config=replace(SMALL, checkpoint_bytes=1 << 30, checkpoint_ms=1 << 30))
    process = await owner(world)
    if not is_first:
        await write(process, range(2))
        await process.broker.move(KEY)
        process = await owner(world)
    await write(process, range(2, 5))
    process.crash()
    path = f"{PATH.folder}/{logs(await names(world))[-1]}"
    fs = MemoryFileSystem(world.storage, "thief")
    data = await fs.read(path, 0, 1 << 20)
    if is_moved:
        await fs.rename(path, "/trash")
    else:
        await fs.delete(path)
    heir = world.process()
    await until(lambda: heir.driver is not None and heir.driver.machine.state is PartitionState.OFFLINE)
    (report,) = heir.broker.reports
    assert path in report
    assert ("renamed or moved" if is_moved else "vanished before its first checkpoint") in report
    if is_moved:  # and put back
        await fs.rename("/trash", path)
    else:  # from a snapshot: a copy, with an id of its own
        await write_once(fs, path, data)
    heir = await owner(world)
    assert writer_of(heir).machine.high_watermark == (3 if is_first else 5)


@pytest.mark.seed(7)
async def test_a_fence_that_fails_leaves_no_other_behind() -> None:
    """Fences of one takeover end together: the next try meets none of the last one, nor does the partition's end."""

    world = World(7)
    process = await owner(world)
    await write(process, range(3))
    world.storage.faults = HUNG
    world.storage.kill_datanode(nodes_of(process)[0])
    writer_of(process).append(make(2, 0, pid=-1, size=10))
    await until(lambda: len(record_of(world).segments) == 2)
    process.crash()
    world.storage.faults = Faults()
    heir = Process(world, "heir")
    fence, under_way, most = heir.fs.fence, 0, 0

    async def slow(lease: Lease, *, sync: bool = False) -> int:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        try:
            if lease.file_id == record_of(world).segments[0].file_id:
                raise StorageUnavailable("no datanode of it answers")
            await asyncio.sleep(5)
            return await fence(lease, sync=sync)
        finally:
            under_way -= 1

    heir.fs.fence = slow  # type: ignore[method-assign]
    heir.start()
    await asyncio.sleep(22)
    assert most == 1, "one failed at once, the other goes on alone"
    assert under_way == 1
    await heir.broker.move(KEY)
    await asyncio.sleep(0)
    assert under_way == 0


@pytest.mark.parametrize("fault", ["short", "corrupt"])
@pytest.mark.parametrize("seconds", [20, 1 << 30])
@pytest.mark.seed(7)
async def test_bytes_that_cannot_be_read_are_asked_for_again_for_a_minute(fault: str, seconds: int) -> None:
    """The datanode with the sound replica restarts, say.  Damage that stays takes the partition OFFLINE."""

    world = World(7)
    process = await owner(world)
    await write(process, range(3))
    process.crash()
    heir = Process(world, "heir")
    read, until_s = heir.fs.read, asyncio.get_running_loop().time() + seconds

    async def unsound(path: str, position: int, length: int) -> bytes:
        data = await read(path, position, length)
        if not path.endswith(".log") or asyncio.get_running_loop().time() > until_s:
            return data
        if fault == "corrupt":
            raise CorruptData(f"{path}: a checksum does not match")
        return data[:-1]

    heir.fs.read = unsound  # type: ignore[method-assign]
    heir.start()
    await until(lambda: heir.driver is not None)
    took_s = asyncio.get_running_loop().time() - until_s + seconds
    partition = writer_of(heir).machine
    if seconds > 60:
        assert partition.state is PartitionState.OFFLINE
        assert 60 <= took_s < 65
        assert ("can be read" if fault == "short" else "checksum") in partition.offline_reason
    else:
        assert heir.is_serving
        assert took_s < 25
        assert (partition.high_watermark, heir.broker.reports) == (3, [])


def test_a_journal_without_a_sound_replica_is_done_without_in_the_end() -> None:
    """Lose all sound replicas of a journal, which is a hint: segments are read from their beginnings instead."""

    async def body(world: World) -> None:
        process = await owner(world)
        await write(process, range(6))
        process.crash()
        heir = Process(world, "heir")
        read = heir.fs.read

        async def unsound(path: str, position: int, length: int) -> bytes:
            if path.startswith(layout.JOURNALS):
                raise CorruptData(f"{path}: no replica has a right checksum")
            return await read(path, position, length)

        heir.fs.read = unsound  # type: ignore[method-assign]
        heir.start()
        await until(lambda: heir.driver is not None)
        assert heir.is_serving
        await write(heir, range(5, 8))  # the last one again: its producer is known

    story(body)

"""The rules of docs/design/rules.md, each by its number, and histories that a review of them found, each by its name.

Small stories on the memory file system and virtual time; the judge of ``world`` closes each of them.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from bmq.broker import events as ev
from bmq.broker.partition.partition_io import TIMER_MS_MAX
from bmq.broker.partition.states import PartitionState
from bmq.core.errors import ErrorCode, RequestError
from bmq.meta import ownership
from bmq.meta.kv import Delete, Put
from bmq.meta.kv_memory import KvFaults
from bmq.storage.filesystem import LeaseLost, StorageError
from bmq.storage.memory import Faults, MemoryFileSystem
from tests.harness.waiting import until
from tests.simulation.stories import HUNG, RECORD, delete_records, logs, names, nodes_of, owner, story, write, writer_of
from tests.simulation.world import KEY, PATH, SMALL, SMALL_LOG, Process, Sent, World, make, read_log, repeated

pytestmark = pytest.mark.leaves_tasks

# ---------------------------------------------------------------------------------------------------------- rule 1


def test_rule_1_acked_means_flushed() -> None:
    """The broker sends no response, and the watermark stands still, until datanodes have acknowledged."""

    async def body(world: World) -> None:
        process = await owner(world)
        await write(process, range(1))
        world.storage.faults = replace(Faults(), ack_s=(0.3, 0.3))
        future = writer_of(process).append(make(1, 1, pid=1, size=10))
        await asyncio.sleep(0.2)
        assert not future.done()
        assert writer_of(process).machine.high_watermark == 1
        assert await future == 1
        assert writer_of(process).machine.high_watermark == 2

    story(body)


def test_rule_1_namenode_restarted_before_the_first_length_was_told() -> None:
    """Restart the NameNode: it may drop a block of unknown length in lease recovery, so the first ack waits for it."""

    async def body(world: World) -> None:
        process = await owner(world)
        await write(process, range(1))
        world.storage.restart_namenode(0.0)
        world.storage.faults = replace(Faults(), lease_recovery=1.0)
        process.crash()
        await owner(world)

    story(body)


def test_rule_1_a_found_batch_is_acknowledged_when_it_has_its_copies() -> None:
    """A take-over finds a batch that was in flight on the one datanode that is left: its repetition waits for two."""

    async def body(world: World) -> None:
        first = await owner(world)
        await write(first, range(1))
        segment = writer_of(first).machine.current
        assert segment is not None
        file = world.storage.namespace.files[segment.entry.file_id]
        world.storage.faults = replace(Faults(), ack_s=(1.0, 1.0))
        response = writer_of(first).append(make(1, 1, pid=1, size=100))
        await until(lambda: min(replica.length for replica in file.replicas) > segment.flushed, every_s=0.001)
        assert not response.done()
        kept, *others = nodes_of(first)
        first.crash()
        world.storage.faults = Faults()
        for name in world.storage.datanodes:
            if name != kept:
                world.storage.kill_datanode(name)
        heir = await owner(world)
        assert writer_of(heir).machine.high_watermark == 2
        for _ in range(5):
            with pytest.raises(RequestError, match=r"offset 1; min\.insync\.replicas asks for 2 copies") as refused:
                writer_of(heir).append(make(1, 1, pid=1, size=100))
            assert refused.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
            await asyncio.sleep(1)
        for name in others:
            world.storage.start_datanode(name)
        assert await repeated(heir, make(1, 1, pid=1, size=100)) == 1
        world.check_repeated(heir, 1, 2)
        await write(heir, range(1, 3))
        assert writer_of(heir).machine.high_watermark == 3

    story(body, datanodes=3, log_config=replace(SMALL_LOG, min_insync=2))


def test_rule_1_found_batches_with_copies_enough_are_acknowledged() -> None:
    """Storage is asked once for all batches of a file, and not at all where one copy is enough."""

    async def body(world: World) -> None:
        counted: list[str] = []
        count = world.storage.copies
        world.storage.copies = lambda path: counted.append(path) or count(path)  # type: ignore[func-returns-value, method-assign]
        is_asked = world.log_config.min_insync > 1
        await write(await owner(world), range(4))
        world.processes[-1].crash()
        heir = await owner(world)
        for number in range(4):
            assert await repeated(heir, make(1, number, pid=1, size=100)) == number
            world.check_repeated(heir, number, world.log_config.min_insync)
        await write(heir, range(4, 6))
        assert await writer_of(heir).append(make(1, 5, pid=1, size=100)) == 5
        assert len(counted) == is_asked

    for copies in (1, 2, 3):
        story(body, log_config=replace(SMALL_LOG, min_insync=copies))


# ---------------------------------------------------------------------------------------------------------- rule 2


def test_rule_2_visible_means_flushed() -> None:
    """Datanodes show bytes that were never acknowledged; the watermark does not reach them."""

    async def body(world: World) -> None:
        process = await owner(world)
        await write(process, range(2))
        world.storage.faults = replace(HUNG, early_bytes=1.0)
        writer_of(process).append(make(1, 2, pid=1, size=900))
        await asyncio.sleep(0.5)
        fs = MemoryFileSystem(world.storage, "reader")
        log = next(name for name in await names(world) if name.endswith(".log"))
        shown = len(await fs.read(f"{PATH.folder}/{log}", 0, 1 << 20))
        segment = writer_of(process).machine.current
        assert segment is not None
        assert shown > segment.flushed, "the story needs bytes that are visible and not acknowledged"
        assert writer_of(process).machine.high_watermark == 2

    story(body)


# ---------------------------------------------------------------------------------------------------------- rule 3


def test_rule_3_registered_before_written() -> None:
    """Watch renames: when a final name appears, the record already lists it with its lease."""

    async def body(world: World) -> None:
        seen: list[str] = []
        rename = MemoryFileSystem.rename

        async def watched(self: MemoryFileSystem, source: str, target: str) -> None:
            if target.endswith(".log"):
                entry = world.store.get(RECORD)
                assert entry is not None
                listed = [PATH.log(segment.name) for segment in ownership.decode(entry.value).segments]
                assert target in listed
                seen.append(target)
            await rename(self, source, target)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(MemoryFileSystem, "rename", watched)
            await write(await owner(world), range(12), size=900)
        assert len(seen) >= 3

    story(body)


@pytest.mark.parametrize("fault", ["unknown_applied", "unknown_lost", "unknown_late"])
def test_rule_3_an_unknown_registration_is_resolved_before_any_ack(fault: str) -> None:
    """etcd's answer is lost, applied or not or later: one segment comes of it, written once."""

    async def body(world: World) -> None:
        process = await owner(world)
        process.kv.faults = KvFaults(**{fault: 1.0})
        future = writer_of(process).append(make(1, 0, pid=1, size=10))
        await asyncio.sleep(1.0)
        if fault != "unknown_applied":  # an applied one is recognised when it is refused the second time
            assert not future.done()
        process.kv.faults = KvFaults()
        world.judge.acknowledge(Sent(1, 0), await future)
        assert len(logs(await names(world))) == 1

    story(body)


CRASH_POINTS = ("before create", "after create", "before register", "after register", "before rename", "after rename")


@pytest.mark.parametrize("point", CRASH_POINTS)
def test_rule_3_owner_dies_around_create_register_rename(point: str) -> None:
    """Wherever the owner dies in opening a segment, the next one finds the whole log and goes on."""

    async def body(world: World) -> None:
        process = await owner(world)
        await write(process, range(3))
        when, operation = point.split()
        _die(process, when, {"create": "create", "register": "commit", "rename": "rename"}[operation])
        world.storage.kill_datanode(nodes_of(process)[0])  # forces the next segment
        writer_of(process).append(make(1, 3, pid=1, size=10))
        await until(lambda: not process.is_alive)
        successor = await owner(world)
        await write(successor, range(3, 6))

    story(body)


def _die(process: Process, when: str, operation: str) -> None:
    """Let the process die right before or right after its next call of ``operation`` takes effect."""
    target: Any = process.kv if operation == "commit" else process.fs
    original = getattr(target, operation)

    async def dying(*args: Any, **kwargs: Any) -> Any:
        if when == "before":
            process.crash()
        response = await original(*args, **kwargs)
        process.crash()
        await asyncio.Event().wait()
        return response

    setattr(target, operation, dying)


def test_rule_3_idle_file_reopened_by_a_zombie() -> None:
    """An idle segment is closed for good.  A zombie may take its lease again; to write, it must register: refused."""

    async def body(world: World) -> None:
        zombie = await owner(world)
        await write(zombie, range(2))
        await asyncio.sleep(SMALL.idle_close_ms / 1000 * 2)
        assert writer_of(zombie).machine.current is None, "the story needs an idle, closed segment"
        closed = logs(await names(world))
        heir = await owner(world)
        await write(heir, range(2, 4))
        with pytest.raises(RequestError) as refused:
            await writer_of(zombie).append(make(1, 2, pid=1, size=10))
        assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert writer_of(zombie).machine.state is PartitionState.FENCED
        # Bytes that the zombie's file system would still add to the closed file lie past the next one's base (rule 5).
        appender = await zombie.fs.append(f"{PATH.folder}/{closed[0]}")
        appender.write(make(1, 2, pid=1, size=10))
        await appender.flush()
        await appender.close()

    story(body)


# ---------------------------------------------------------------------------------------------------------- rule 4


def test_rule_4_fence_before_read_and_no_write_before_the_checkpoint() -> None:
    """The successor's calls come in this order: claim, fence, read, checkpoint; only then are batches accepted."""

    async def body(world: World) -> None:
        first = await owner(world)
        await write(first, range(4))
        calls: list[str] = []
        successor = world.process()
        for name in ("fence", "read"):
            _record(successor.fs, name, calls)
        _record(successor.kv, "commit", calls)
        world.storage.faults = replace(Faults(), ack_s=(0.2, 0.2))
        while not successor.is_serving:
            driver = successor.broker.get(KEY)
            if driver is not None and driver.machine.state is not PartitionState.WRITE:
                with pytest.raises(RequestError):
                    driver.append(make(1, 4, pid=1, size=10))
            await asyncio.sleep(0.01)
        segment_reads = [n for n, call in enumerate(calls) if call.startswith("read") and ".log" in call]
        claim = next(n for n, call in enumerate(calls) if call.startswith("commit") and "partitions" in call)
        fence = next(n for n, call in enumerate(calls) if call.startswith("fence"))
        assert claim < fence < min(segment_reads)
        assert successor.broker.journal.records_written > 0, "accepted before its checkpoint was durable"

    story(body)


JOURNAL_S = 1.0 + Faults().lease_recovery_s[1] + SMALL.retry_ms.most / 1000
"""Until a journal that its own broker left idle can be read: upkeep notices, the lease is recovered, the takeover tries
again."""


def test_rule_4_an_idle_brokers_journal_is_read_after_its_datanodes_have_restarted() -> None:
    """Restart the datanodes of an idle broker's journal, which alone holds the log start.

    No process writes to it, so none closes it while its broker lives.  The broker takes the partition back.
    """

    async def body(world: World) -> None:
        first = await owner(world)
        await write(first, range(4))
        await delete_records(first, 2)
        await asyncio.sleep(10)
        for name in world.storage.datanodes:
            world.storage.kill_datanode(name)
        for name in world.storage.datanodes:
            world.storage.start_datanode(name)
        returning = asyncio.create_task(first.return_under_its_name())
        await asyncio.wait_for(returning, JOURNAL_S)
        assert first.is_serving
        assert writer_of(first).machine.log_start == 2

    story(body)


def _record(target: Any, name: str, calls: list[str]) -> None:
    original = getattr(target, name)

    async def recorded(*args: Any, **kwargs: Any) -> Any:
        calls.append(f"{name} {args}")
        return await original(*args, **kwargs)

    setattr(target, name, recorded)


@pytest.mark.seed(7)
async def test_rule_4_a_file_shorter_than_its_checkpoint_is_offline() -> None:
    """Storage lost flushed bytes: the partition goes OFFLINE with an report; nothing is cut, nothing accepted."""

    world = World(7)
    process = await owner(world)
    await write(process, range(4))
    await asyncio.sleep(1.0)  # a checkpoint covers them
    process.crash()
    name = logs(await names(world))[0]
    file = next(f for f in world.storage.namespace.files.values() if world.storage.namespace.path_of(f).endswith(name))
    del file.data[len(file.data) // 2 :]
    for replica in file.replicas:
        replica.length = min(replica.length, len(file.data))
    heir = world.process()
    await until(lambda: heir.driver is not None)
    assert writer_of(heir).machine.state is PartitionState.OFFLINE
    assert "shorter than its checkpoint" in heir.broker.reports[0]
    with pytest.raises(RequestError) as refused:
        writer_of(heir).append(make(1, 4, pid=1, size=10))
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR


@pytest.mark.seed(7)
async def test_rule_4_a_bad_batch_before_a_good_one_is_offline() -> None:
    """A flipped bit in the middle is damage, not a torn end."""

    world = World(7, config=replace(SMALL, checkpoint_bytes=1 << 20, checkpoint_ms=1 << 20))
    process = await owner(world)
    await write(process, range(4))
    process.crash()
    name = logs(await names(world))[0]
    file = next(f for f in world.storage.namespace.files.values() if world.storage.namespace.path_of(f).endswith(name))
    file.data[70] ^= 1
    heir = world.process()
    await until(lambda: heir.driver is not None)
    assert writer_of(heir).machine.state is PartitionState.OFFLINE
    assert "damaged in the middle" in heir.broker.reports[0]


def test_rule_4_a_torn_last_batch_ends_the_log_logically() -> None:
    """Half of an unacknowledged batch is on storage: the log ends before it, the file keeps its bytes."""

    async def body(world: World) -> None:
        process = await owner(world)
        await write(process, range(3))
        segment = writer_of(process).machine.current
        assert segment is not None
        appender = writer_of(process).files[segment.entry.spare]
        appender.write(make(1, 3, pid=1, size=500)[:300])
        await appender.flush()
        process.crash()
        heir = await owner(world)
        assert writer_of(heir).machine.high_watermark == 3
        await write(heir, range(3, 5))
        fs = MemoryFileSystem(world.storage, "reader")
        assert (await fs.status(PATH.log(segment.entry.name))).length == segment.flushed + 300

    story(body)


# ---------------------------------------------------------------------------------------------------------- rule 5


def test_rule_5_two_segments_open_at_once_and_leftovers_ignored() -> None:
    """The old file holds bytes past the next file's base after a fail-over; both are open when the owner dies."""

    async def body(world: World) -> None:
        process = await owner(world)
        await write(process, range(3))
        world.storage.faults = replace(HUNG, early_bytes=1.0)
        future = writer_of(process).append(make(1, 3, pid=1, size=800))
        await asyncio.sleep(0.1)
        world.storage.faults = Faults()
        _stop_sealing(process)
        world.storage.kill_datanode(nodes_of(process)[0])
        world.judge.acknowledge(Sent(1, 3), await future)
        await write(process, range(4, 6))
        assert len(world.storage.open_files()) >= 3, "two segments and the journal should be open"
        process.crash()
        heir = await owner(world)
        await write(heir, range(6, 8))

    story(body)


def _stop_sealing(process: Process) -> None:
    async def never(lease: object, *, sync: bool = False) -> int:
        await asyncio.Event().wait()
        return 0

    process.fs.fence = never  # type: ignore[method-assign]


# ---------------------------------------------------------------------------------------------------------- rule 6


def test_rule_6_failover_is_a_new_file_and_late_acks_mean_nothing() -> None:
    """A dead datanode: the same bytes at the same offsets in a new file without it; the producer sees only latency."""

    async def body(world: World) -> None:
        process = await owner(world)
        await write(process, range(2))
        nodes = nodes_of(process)
        world.storage.faults = replace(Faults(), ack_s=(0.5, 0.5))
        futures = [writer_of(process).append(make(1, n, pid=1, size=50)) for n in range(2, 6)]
        await asyncio.sleep(0.1)
        world.storage.kill_datanode(nodes[1])
        assert await asyncio.gather(*futures) == [2, 3, 4, 5]
        for n, future in zip(range(2, 6), futures, strict=True):
            world.judge.acknowledge(Sent(1, n), future.result())
        assert len(logs(await names(world))) == 2
        assert nodes[1] not in nodes_of(process)

    story(body)


def test_rule_6_late_ack_after_a_same_epoch_failover() -> None:
    """The old pipeline answers after the next segment was registered: nothing is acknowledged by it."""

    async def body(world: World) -> None:
        process = await owner(world)
        await write(process, range(2))
        partition = writer_of(process).machine
        assert partition.current is not None
        old = partition.current.entry.name
        world.storage.faults = replace(Faults(), ack_s=(1.2, 1.2))
        future = writer_of(process).append(make(1, 2, pid=1, size=50))
        await asyncio.sleep(0.05)
        writer_of(process).post(ev.SegmentFailed(old, "given up as too slow"))
        writer_of(process).post(ev.Flushed(old, 1 << 30))
        assert not future.done()
        assert partition.high_watermark == 2
        world.judge.acknowledge(Sent(1, 2), await future)
        assert partition.current is not None
        assert partition.current.entry.name != old

    story(body)


def test_rule_6_a_hung_pipeline_rolls() -> None:
    """A stopped datanode answers nothing: after a while the segment goes on elsewhere, without it."""

    async def body(world: World) -> None:
        process = await owner(world)
        await write(process, range(2))
        stopped = nodes_of(process)[2]
        world.storage.stop_datanode(stopped)
        await write(process, range(2, 4))
        assert stopped not in nodes_of(process)

    story(body)


def test_rule_6_a_slow_node_is_left() -> None:
    """Slow a datanode by 400 ms: pipelines without it reveal it, a gentle roll leaves it, and it is not taken again."""

    async def body(world: World) -> None:
        process = await owner(world)
        world.storage.slow_datanode("dn2", 0.4)
        health = process.broker.context.health
        number = 0
        while "dn2" not in health.excluded(process.broker.context.now_ms()):
            await write(process, range(number, number + 1), size=900)
            number += 1
            assert number < 200, "the slow node was never found out"
        await asyncio.sleep(3)
        assert health.excluded(process.broker.context.now_ms()) == ("dn2",), "a probe says nothing of slowness"
        await write(process, range(number, number + 4), size=900)
        assert "dn2" not in nodes_of(process)

    story(body)


# ---------------------------------------------------------------------------------------------------------- rule 7


def test_rule_7_the_store_is_not_a_data_path() -> None:
    """A hundred batches in a segment cost no write to the store; with the store away, produce goes on, rolls wait."""

    async def body(world: World) -> None:
        process = await owner(world)
        await write(process, range(1), size=5)
        before = world.store.get(RECORD)
        await write(process, range(1, 20), size=5)
        assert world.store.get(RECORD) == before
        world.store.stop()
        partition = writer_of(process).machine
        assert partition.current is not None
        room = SMALL_ROOM - partition.current.position
        await write(process, range(20, 22), size=5)  # still fits
        assert room > 0
        stuck = writer_of(process).append(make(1, 22, pid=1, size=2900))
        await asyncio.sleep(5)
        assert not stuck.done()
        assert partition.state is PartitionState.WRITE
        world.store.start(asyncio.get_running_loop().time())
        world.judge.acknowledge(Sent(1, 22), await stuck)

    story(body)


SMALL_ROOM = 3000 + 1


def test_rule_7_a_higher_epoch_stops_the_old_owner_at_its_next_segment() -> None:
    """Resume a zombie: it is refused when it registers, before any of its writes could be acknowledged."""

    async def body(world: World) -> None:
        zombie = await owner(world)
        await write(zombie, range(2))
        zombie.pause()
        future = writer_of(zombie).append(make(2, 0, pid=2, size=50))
        heir = await owner(world)
        await write(heir, range(2, 4))
        zombie.resume()
        with pytest.raises(RequestError):
            await future
        assert writer_of(zombie).machine.state is PartitionState.FENCED

    story(body)


# ---------------------------------------------------------------------------------------------------------- rule 8


def test_rule_8_an_idle_partition_has_no_task_and_no_timer() -> None:
    """A partition waits for nothing after its idle close."""

    async def body(world: World) -> None:
        process = await owner(world)
        await write(process, range(2))
        await asyncio.sleep(SMALL.idle_close_ms / 1000 + TIMER_MS_MAX / 1000)
        driver = writer_of(process)
        assert not driver.tasks
        assert driver.machine.deadline_ms() is None
        assert not driver.files
        assert process.broker.context.timers._heap == []

    story(body)


# ---------------------------------------------------------------------------------------------------------- rule 9


def test_rule_9_duplicate_while_its_original_hangs() -> None:
    """The repeated batch is answered with its first offset, and not before the original is flushed."""

    async def body(world: World) -> None:
        process = await owner(world)
        await write(process, range(1))
        world.storage.faults = replace(Faults(), ack_s=(0.4, 0.4))
        original = writer_of(process).append(make(1, 1, pid=1, size=10))
        await asyncio.sleep(0.1)
        repeated = writer_of(process).append(make(1, 1, pid=1, size=10))
        await asyncio.sleep(0.1)
        assert not repeated.done()
        assert await original == await repeated == 1
        world.judge.acknowledge(Sent(1, 1), 1)
        assert await writer_of(process).append(make(1, 1, pid=1, size=10)) == 1
        world.idempotent.add(1)

    story(body)


def test_rule_9_a_backfill_of_old_records_stays_idempotent() -> None:
    """Write records of 1970: producer state expires by the time of its last batch, not by the records' timestamps."""

    async def body(world: World) -> None:
        process = await owner(world)
        await write(process, range(2))
        await asyncio.sleep(5)  # several checkpoints, each of which expires producers
        assert await writer_of(process).append(make(1, 1, pid=1, size=100)) == 1
        world.idempotent.add(1)

    story(body)


def test_rule_9_checkpoints_hold_only_flushed_producer_state() -> None:
    """A checkpoint written while a batch hangs does not speak of it."""

    async def body(world: World) -> None:
        process = await owner(world)
        await write(process, range(2))
        world.storage.faults = HUNG
        writer_of(process).append(make(1, 2, pid=1, size=10))
        checkpoint = writer_of(process).machine.full_checkpoint()
        assert checkpoint is not None
        assert [batch.base_sequence for batch in checkpoint.producers[0].batches] == [0, 1]

    story(body)


# --------------------------------------------------------------------------------------------------------- rule 10


def test_rule_10_the_log_start_moves_in_the_journal_first() -> None:
    """DeleteRecords returns when the new start is durable; the next owner knows it."""

    async def body(world: World) -> None:
        process = await owner(world)
        await write(process, range(6))
        world.storage.faults = replace(Faults(), ack_s=(0.5, 0.5))  # the proof of the ownership is sooner
        world.judge.start_asked = 4
        await writer_of(process).delete_before(4)
        process.crash()
        heir = await owner(world)
        assert writer_of(heir).machine.log_start == 4

    story(body)


def test_rule_10_a_zombie_may_not_move_the_log_start() -> None:
    """Move the log start at a zombie: durable in its journal, but ownership is checked before the caller's response."""

    async def body(world: World) -> None:
        zombie = await owner(world)
        await write(zombie, range(6))
        heir = await owner(world)
        world.judge.start_asked = 4
        with pytest.raises(RequestError):
            await writer_of(zombie).delete_before(4)
        assert writer_of(heir).machine.log_start == 0

    story(body)


# --------------------------------------------------------------------------------------------------------- the ends


def test_a_planned_move_hands_over_everything() -> None:
    """Flushed, closed, released; the successor has nothing to fence or scan, and knows the producers."""

    async def body(world: World) -> None:
        process = await owner(world)
        await write(process, range(5))
        futures = [writer_of(process).append(make(1, n, pid=1, size=50)) for n in range(5, 8)]
        await process.broker.move(KEY)
        for n, future in zip(range(5, 8), futures, strict=True):
            world.judge.acknowledge(Sent(1, n), future.result())
        assert writer_of(process).machine.state is PartitionState.CLOSED
        record = world.store.get(RECORD)
        assert record is not None
        assert ownership.decode(record.value).owner == ""
        assert PATH.folder not in " ".join(world.storage.open_files())
        heir = await owner(world)
        assert await writer_of(heir).append(make(1, 7, pid=1, size=50)) == 7

    story(body)


@pytest.mark.seed(7)
async def test_a_deleted_record_fences_its_owner() -> None:
    """The key is gone (the topic was deleted): the owner's next registration is refused."""

    world = World(7)
    process = await owner(world)
    world.store.commit([], [Delete(RECORD)], asyncio.get_running_loop().time())
    with pytest.raises(RequestError):
        await writer_of(process).append(make(1, 0, pid=1, size=10))
    assert writer_of(process).machine.state is PartitionState.FENCED
    world.store.commit([], [Put("/other", b"")], asyncio.get_running_loop().time())


@pytest.mark.seed(7)
async def test_the_model_itself_a_deleted_open_file_is_still_acknowledged() -> None:
    """Delete an open file: its writer does not notice, which is why no open file is ever deleted."""

    world = World(7)
    fs = MemoryFileSystem(world.storage, "writer")
    appender = await fs.create("/x/file")
    appender.write(b"one")
    await appender.flush()
    await fs.delete("/x/file")
    appender.write(b"two")
    assert await appender.flush() == 6
    with pytest.raises((LeaseLost, StorageError)):
        await appender.close()
    assert await read_log(fs, 0) == []


def test_a_fenced_partition_gives_the_room_of_its_batches_back() -> None:
    """The buffer is the process's: what was refused must not keep others from producing."""

    async def body(world: World) -> None:
        process = await owner(world)
        await write(process, range(1))
        world.storage.faults = HUNG
        driver = writer_of(process)
        futures = [driver.append(make(1, number, pid=1, size=900)) for number in range(1, 20)]
        await asyncio.sleep(0.1)
        budget = process.broker.context.budget
        assert budget.used == driver.machine.batches.buffered_bytes > 19 * 900
        assert driver.machine.batches.inflight
        assert driver.machine.batches.unsent
        driver.post(ev.EpochChanged(driver.machine.epoch + 1))
        assert budget.used == 0
        assert all(isinstance(future.exception(), RequestError) for future in futures)
        world.storage.faults = Faults()

    story(body)


@pytest.mark.parametrize("in_flight", [0, 1])
@pytest.mark.seed(7)
async def test_a_partition_that_is_abandoned_sends_nothing_more(in_flight: int) -> None:
    """A broker that may wait no longer for storage drops files; what is queued then has none to go to."""

    world = World(7)
    process = await owner(world)
    await write(process, range(1))
    world.storage.faults = HUNG
    driver = writer_of(process)
    for number in range(1, 1 + in_flight):
        driver.append(make(1, number, pid=1, size=900))
    if in_flight:
        await asyncio.sleep(0.1)
    for number in range(1 + in_flight, 8 + in_flight):
        driver.append(make(1, number, pid=1, size=900))
    await driver.abandon()
    await asyncio.sleep(1)
    assert not driver.has_files

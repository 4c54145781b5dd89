"""``bmq segment repair`` on storage in memory: every reason for OFFLINE has a way back, and what was readable stays."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from bmq.broker.config import BrokerConfig
from bmq.broker.partition.driver import PartitionDriver
from bmq.broker.partition.states import PartitionState
from bmq.broker.repair.facts import PartitionIdentity
from bmq.broker.repair.log_plan import RepairRequest
from bmq.broker.repair.plan import Choice
from bmq.broker.repair.rebuilt_record import SILENCE
from bmq.broker.repair.rebuilt_record import record as rebuilt
from bmq.broker.repair.repair import NotRepaired, Repair, RepairReport
from bmq.broker.repair.scan import newest_index, read_folder
from bmq.cli.segment.targets import find_targets
from bmq.cli.segment.verify import verify
from bmq.core.clock import SystemClock
from bmq.core.file_access import Access
from bmq.core.model import SegmentName
from bmq.core.records.batch import HEADER_BYTES, Batch
from bmq.meta import ownership
from bmq.meta.kv import Commit, Compare, KvError, KvUnavailable, KvUnknown, Put, Write
from bmq.meta.kv_memory import MemoryKeyValue
from bmq.meta.ownership import PartitionRecord, SegmentEntry
from bmq.storage.block_cache import BlockCache
from bmq.storage.checkpoint import Checkpoint
from bmq.storage.filesystem import StorageUnavailable, write_once
from bmq.storage.log_reader import LogReader
from bmq.storage.memory import MemoryFileSystem
from bmq.storage.segment import decode_idx, encode_idx
from tests.harness.loop import run
from tests.harness.waiting import until
from tests.simulation.world import KEY, PATH, SMALL, Process, World, make, read_log

pytestmark = [pytest.mark.slow, pytest.mark.leaves_tasks, pytest.mark.seed(7)]

COUNT = 6
COVERED = SMALL
UNCOVERED = replace(SMALL, checkpoint_bytes=1 << 30, checkpoint_ms=1 << 30)
SIZE = 40
BATCH_BYTES = len(make(1, 0, pid=1, size=SIZE))
A = SegmentName(0, 1, 0)
PLACE = PartitionIdentity("bmq", KEY, PATH, 1)
RECORD_KEY = ownership.partition_key("bmq", KEY)


class Damaged:
    """A killed owner's partition: six batches of a record each in one open segment."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.fs = MemoryFileSystem(world.storage, "tool")
        self.kv = MemoryKeyValue(world.store, random=world.rng)

    async def record(self) -> PartitionRecord:
        return (await ownership.read(self.kv, RECORD_KEY))[0]

    def flip(self, position: int) -> None:
        self._file(PATH.log(A)).data[position] ^= 1

    def cut(self, size: int) -> None:
        file = self._file(PATH.log(A))
        del file.data[size:]
        for replica in file.replicas:
            replica.length = min(replica.length, size)

    def _file(self, path: str) -> Any:
        namespace = self.world.storage.namespace
        return next(file for file in namespace.files.values() if namespace.path_of(file) == path)

    async def register(self, base: int, numbers: range) -> None:
        """List a second segment behind the first, as its owner would after a fail-over."""
        record, revision = await ownership.read(self.kv, RECORD_KEY)
        name = SegmentName(base, 1, 1)
        entry = SegmentEntry(name=name, spare=PATH.spare(1, 1, "p0"), holder="p0", file_id=0)
        await ownership.store(self.kv, RECORD_KEY, replace(record, segments=(*record.segments, entry)), revision)
        data = bytearray()
        for offset, number in enumerate(numbers, base):
            batch = Batch(make(1, number, pid=1, size=SIZE))
            batch.assign(offset, 1)
            data += batch.data
        await write_once(self.fs, PATH.log(name), data)

    def repair(self, **wanted: Any) -> Awaitable[RepairReport]:
        tool = Repair(self.fs, self.kv, SystemClock(), PLACE)
        return tool.run(RepairRequest(topic="orders", partition=0, **wanted))

    def files(self) -> dict[str, bytes]:
        namespace = self.world.storage.namespace
        return {
            path: bytes(file.data)
            for file in namespace.files.values()
            if (path := namespace.path_of(file)).startswith(PATH.folder)
        }

    async def heir(self) -> Process:
        """Have a new process take it over: OFFLINE or WRITE."""
        process = self.world.process()
        await until(lambda: process.driver is not None)
        return process

    async def stored(self, end: int) -> list[Batch]:
        """Return the batches that an independent reader finds: no offset is missing.

        The product's own reader finds the same batches with records; it passes over batches without records.
        """
        batches = await read_log(self.fs, end)
        reader = LogReader(BlockCache(self.fs), PATH)
        offset, found = 0, list[bytes]()
        while offset < end:
            piece = await reader.read(offset, 1 << 20, end)
            assert piece, f"nothing at {offset}"
            at = 0
            while at < len(piece):
                batch = Batch(memoryview(piece)[at : at + Batch(memoryview(piece)[at:]).size])
                offset, at = batch.next_offset, at + batch.size
                found += [bytes(batch.data)] if batch.count else []
        assert found == [bytes(batch.data) for batch in batches if batch.count]
        return batches


def writer_of(process: Process) -> PartitionDriver:
    assert process.driver is not None
    return process.driver


async def damaged(config: BrokerConfig) -> Damaged:
    """Return the partition of an owner that wrote ``COUNT`` batches and was killed."""
    world = World(7, config=config)
    process = world.process()
    await until(lambda: process.is_serving)
    for number in range(COUNT):
        await writer_of(process).append(make(1, number, pid=1, size=SIZE))
    await asyncio.sleep(1.0)
    process.crash()
    return Damaged(world)


async def shorter(d: Damaged) -> None:
    d.cut(3 * BATCH_BYTES + 7)


async def in_the_middle(d: Damaged) -> None:
    d.flip(2 * BATCH_BYTES + HEADER_BYTES + 5)


async def ends_before(d: Damaged) -> None:
    await d.register(COUNT + 4, range(10, 13))


async def lost_whole(d: Damaged) -> None:
    await d.register(COUNT + 4, range(10, 13))
    await d.fs.delete(PATH.log(A))


async def vanished(d: Damaged) -> None:
    await d.fs.delete(PATH.log(A))


async def renamed_back(d: Damaged) -> None:
    (entry,) = (await d.record()).segments
    await d.fs.rename(PATH.log(A), entry.spare)


async def overtaken(d: Damaged) -> None:
    await d.register(4, range(4, 5))


async def unreadable(d: Damaged) -> None:
    d.flip(BATCH_BYTES + 16)  # the magic
    d.flip(4 * BATCH_BYTES + HEADER_BYTES)


async def wrong_lengths(d: Damaged) -> None:
    d.flip(BATCH_BYTES + 9)
    d.flip(5 * BATCH_BYTES + 11)  # of the last batch


Row = tuple[Callable[[Damaged], Awaitable[None]], BrokerConfig, str, list[tuple[int, int]], int]
ROWS: dict[str, Row] = {  # damage, were there checkpoints, why OFFLINE, what is lost, where the log ends
    "shorter": (shorter, COVERED, "shorter than its checkpoint", [(3, 5)], 6),
    "middle": (in_the_middle, UNCOVERED, "damaged in the middle", [(2, 2)], 6),
    "twice": (unreadable, UNCOVERED, "damaged in the middle", [(1, 1), (4, 4)], 6),
    "wrong lengths": (wrong_lengths, UNCOVERED, "damaged in the middle", [], 6),
    "gap": (ends_before, UNCOVERED, "ends before the next one begins", [(6, 9)], 13),
    "lost whole": (lost_whole, UNCOVERED, "lost whole", [(0, 9)], 13),
    "vanished": (vanished, COVERED, "vanished", [(0, 5)], 6),
    "vanished unseen": (vanished, UNCOVERED, "vanished before its first checkpoint", [], 0),
    "renamed back": (renamed_back, COVERED, "renamed or moved", [], 6),
    "renamed back unseen": (renamed_back, UNCOVERED, "renamed or moved", [], 6),
    "overtaken": (overtaken, COVERED, "overtaken", [(5, 5)], 6),
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
async def test_an_offline_partition_is_opened_again(row: Row) -> None:
    """Report the repair first, with nothing changed, then run it: what is lost is skipped, the rest reads as before."""
    damage, config, label, lost, end = row

    d = await damaged(config)
    await damage(d)
    before, record = d.files(), await d.record()
    shown = await d.repair()
    assert label in shown.reason
    gaps = [(gap.first, gap.end - 1) for plan in shown.plans for gap in plan.gaps]
    assert (gaps, shown.end_offset) == (lost, end)
    assert (d.files(), await d.record()) == (before, record), "it only looked"

    offline = await d.heir()
    assert writer_of(offline).machine.state is PartitionState.OFFLINE
    assert label in writer_of(offline).machine.offline_reason
    done = await d.repair(is_dry=False)
    assert label in done.reason
    heir = await d.heir()
    partition = writer_of(heir).machine
    assert (partition.state, partition.high_watermark) == (PartitionState.WRITE, end)
    assert await writer_of(heir).append(make(2, 0, pid=2, size=SIZE)) == end
    stored = await d.stored(end + 1)
    missing = {offset for first, last in lost for offset in range(first, last + 1)}
    assert [batch.base_offset for batch in stored if batch.count] == [
        offset for offset in range(end + 1) if offset not in missing
    ]
    kept = [bytes for path, bytes in d.files().items() if "/damaged-" in path]
    assert len(kept) == len(done.set_aside)
    assert all(path in before.values() for path in kept), "the old bytes are kept"
    assert (await d.repair()).reason == ""
    arguments = Namespace(paths=[], topic=PATH.topic, partition=None, topic_id=None, json=True, records=True)
    assert await verify(d.fs, await find_targets(d.fs, arguments), arguments) == 0


@pytest.mark.parametrize("damage", [in_the_middle, vanished])
async def test_a_repaired_file_has_the_rights_of_the_file_that_it_replaces(
    damage: Callable[[Damaged], Awaitable[None]],
) -> None:
    """The site's umask may have closed files below an open folder.  A file that has vanished leaves the folder's."""
    d = await damaged(COVERED)
    await d.fs.set_access(PATH.log(A), Access(mode=0o600))
    await damage(d)
    await d.repair(is_dry=False)
    mode = 0o600 if damage is in_the_middle else 0o644
    for path in (PATH.log(A), PATH.idx(A)):
        assert (await d.fs.status(path)).mode == mode, path


async def test_a_repair_to_the_shorter_log_assigns_lost_offsets_again() -> None:
    d = await damaged(COVERED)
    await shorter(d)
    report = await d.repair(is_dry=False, choice=Choice.SHORTER)
    assert (report.end_offset, report.set_aside) == (3, [])
    heir = await d.heir()
    assert writer_of(heir).machine.state is PartitionState.WRITE
    assert await writer_of(heir).append(make(2, 0, pid=2, size=SIZE)) == 3
    assert [batch.count for batch in await d.stored(4)] == [1] * 4


async def test_a_record_that_cannot_be_decoded_is_written_again() -> None:
    d = await damaged(COVERED)
    await d.kv.commit([], [Put(RECORD_KEY, b"what?")])
    offline = writer_of(await d.heir()).machine
    assert offline.state is PartitionState.OFFLINE
    assert offline.offline_reason in (await d.repair()).reason
    await d.repair(is_dry=False)
    heir = writer_of(await d.heir())
    assert await heir.append(make(1, COUNT, pid=1, size=SIZE)) == COUNT
    assert [batch.count for batch in await d.stored(COUNT + 1)] == [1] * (COUNT + 1)


async def test_an_idempotent_producer_goes_on_behind_the_gap() -> None:
    """A checkpoint knew its last batches, also those that are lost: a repeated one is recognised, the next is taken."""

    d = await damaged(COVERED)
    await shorter(d)
    await d.repair(is_dry=False)
    heir = writer_of(await d.heir())
    assert await heir.append(make(1, COUNT - 1, pid=1, size=SIZE)) == COUNT - 1
    assert await heir.append(make(1, COUNT, pid=1, size=SIZE)) == COUNT


class Mortal:
    """A file system or store whose ``fatal``-th call, over all that share ``calls``, is the last."""

    def __init__(self, inner: Any, calls: list[int], fatal: int) -> None:
        self._inner = inner
        self._calls = calls
        self._fatal = fatal

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not asyncio.iscoroutinefunction(found):
            return found

        async def counted(*args: Any, **kwargs: Any) -> Any:
            self._calls[0] += 1
            if self._calls[0] == self._fatal:
                raise SystemError("killed")
            return await found(*args, **kwargs)

        return counted


async def killed_and_again(d: Damaged, fatal: int, **wanted: Any) -> bool:
    """Kill a repair at its ``fatal``-th call, repair once more, and return whether the first run ended."""
    calls = [0]
    fs: Any = Mortal(d.fs, calls, fatal)
    kv: Any = Mortal(d.kv, calls, fatal)
    try:
        await Repair(fs, kv, SystemClock(), PLACE).run(
            RepairRequest(topic="orders", partition=0, is_dry=False, **wanted)
        )
    except SystemError:
        await d.repair(is_dry=False, **wanted)
        return False
    return True


@pytest.mark.parametrize("kind", ["listed", "closed"])
def test_a_repair_that_was_killed_at_any_call_can_be_run_again(kind: str) -> None:
    """Kill the repair at each of its calls of storage and store in turn: the next run ends what this one began."""
    ended = False

    async def listed(d: Damaged, fatal: int) -> None:
        nonlocal ended
        await shorter(d)
        ended = await killed_and_again(d, fatal)
        heir = await d.heir()
        assert (writer_of(heir).machine.state, writer_of(heir).machine.high_watermark) == (PartitionState.WRITE, COUNT)
        assert [batch.count for batch in await d.stored(COUNT)] == [1, 1, 1, 0]

    async def closed(d: Damaged, fatal: int) -> None:
        nonlocal ended
        end = await poisoned(d)
        ended = await killed_and_again(d, fatal, with_records=True, all_segments=True)
        assert [batch.base_offset for batch in await d.stored(end) if not batch.count] == [COUNT]

    async def killed(fatal: int) -> None:
        await (listed if kind == "listed" else closed)(await damaged(COVERED), fatal)

    for fatal in range(1, 60):
        run(killed(fatal), 7)
        if ended:
            assert fatal > 15
            return
    raise AssertionError("it never ended")


async def test_a_write_in_doubt_is_settled_though_the_store_is_away_for_a_moment() -> None:
    """The claim is written and its response lost; the next try is refused for certain, the claim is still in doubt."""
    d = await damaged(COVERED)
    await shorter(d)
    commit = d.kv.commit
    failures: list[KvError] = [KvUnknown("lost"), KvUnavailable("away")]

    async def failing(compares: Sequence[Compare], writes: Sequence[Write]) -> Commit:
        if not failures:
            return await commit(compares, writes)
        failure = failures.pop(0)
        if isinstance(failure, KvUnknown):
            await commit(compares, writes)
        raise failure

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(d.kv, "commit", failing)
        report = await d.repair(is_dry=False, choice=Choice.SHORTER)
    assert (report.end_offset, failures) == (3, [])


async def test_a_repair_ends_if_a_broker_takes_the_partition_meanwhile() -> None:
    """A broker that takes the partition over meanwhile keeps it: nothing that it may have read is replaced."""

    d = await damaged(COVERED)
    await shorter(d)
    before = d.files()
    write = Repair._write_draft

    async def interrupted(self: Repair, plan: Any) -> str:
        draft = await write(self, plan)
        await d.heir()
        return draft

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Repair, "_write_draft", interrupted)
        with pytest.raises(NotRepaired, match="taken"):
            await d.repair(is_dry=False)
    assert {path: data for path, data in d.files().items() if path.endswith(".log")} == before


async def test_unreadable_blocks_are_given_up_only_if_the_operator_says_so() -> None:
    d = await damaged(COVERED)
    read = MemoryFileSystem.read

    async def away(self: MemoryFileSystem, path: str, position: int, length: int) -> bytes:
        if path == PATH.log(A) and position + length > 2 * BATCH_BYTES:
            raise StorageUnavailable("block 7: no datanode answers")
        return await read(self, path, position, length)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryFileSystem, "read", away)
        with pytest.raises(NotRepaired, match="--unreadable-is-lost"):
            await d.repair()
        report = await d.repair(unreadable_is_lost=True)
        assert sum(plan.lost for plan in report.plans) == COUNT


async def poisoned(d: Damaged) -> int:
    """Have an unreadable batch at offset ``COUNT`` in a closed segment of an open partition; the log's end."""
    process = await d.heir()
    driver = writer_of(process)
    poison = Batch(memoryview(bytearray(make(9, 0, pid=-1, size=SIZE))))
    poison.data[HEADER_BYTES] ^= 0x40  # the record's length
    poison.set_max_timestamp(poison.max_timestamp)
    await driver.append(poison.data, is_internal=True)
    for number in range(8):
        await driver.append(make(3, number, pid=3, size=1400))
    await until(lambda: driver.machine.current is not None and driver.machine.current.entry.name.base > COUNT + 4)
    return driver.machine.high_watermark


async def test_an_unreadable_batch_of_a_closed_segment_is_skipped() -> None:
    """Skip a batch in a closed segment while its partition is open: the records are gone, offsets and neighbours
    stay."""

    d = await damaged(COVERED)
    end = await poisoned(d)
    epoch = (await d.record()).epoch
    report = await d.repair(is_dry=False, with_records=True, all_segments=True)
    assert [(gap.first, gap.end) for plan in report.older for gap in plan.gaps] == [(COUNT, COUNT + 1)]
    assert (await d.record()).epoch == epoch, "its owner goes on"
    assert [batch.base_offset for batch in await d.stored(end) if not batch.count] == [COUNT]


async def test_a_closed_segment_that_was_merged_meanwhile_keeps_its_index() -> None:
    """The repair of all segments claims nothing: the owner merges a neighbour into the file that is being replaced."""
    d = await damaged(COVERED)
    end = await poisoned(d)
    write, merged = Repair._write_draft, dict[str, bytes]()

    async def interrupted(self: Repair, plan: Any) -> str:
        draft = await write(self, plan)
        files = d.files()
        log, idx = PATH.log(plan.name), PATH.idx(plan.name)
        neighbour = min(path for path in files if path.endswith(".log") and path > log)
        index = decode_idx(files[idx])
        await d.fs.concat(log, [neighbour])
        merged[log] = files[log] + files[neighbour]
        merged[idx] = encode_idx(replace(index, position=len(merged[log]), index=index.index[:0]))
        await write_once(d.fs, f"{idx}-draft", merged[idx])
        await d.fs.replace(f"{idx}-draft", idx)
        return draft

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Repair, "_write_draft", interrupted)
        with pytest.raises(NotRepaired, match="has changed meanwhile"):
            await d.repair(is_dry=False, with_records=True, all_segments=True)
    files = d.files()
    assert {path: files.get(path) for path in merged} == merged
    report = await d.repair(is_dry=False, with_records=True, all_segments=True)
    assert [(gap.first, gap.end) for plan in report.older for gap in plan.gaps] == [(COUNT, COUNT + 1)]
    assert [batch.base_offset for batch in await d.stored(end) if not batch.count] == [COUNT]


@pytest.mark.parametrize("fault", ["batch", "index"])
async def test_a_cleaned_segment_is_found_that_hides_a_listed_source(fault: str) -> None:
    """A store that was rebuilt inside a swap lists the last source, by its index; readers get the cleaned segment."""
    d = await damaged(COVERED)
    batches = [Batch(make(1, number, pid=1, size=SIZE)) for number in range(COUNT)]
    for offset, batch in enumerate(batches):
        batch.assign(offset, 1)
    half = COUNT // 2
    last, cleaned = SegmentName(half, 1, 1), SegmentName(0, 1, 1, 1)
    await d.fs.delete(PATH.log(A))
    await put(d, A, batches[:half])
    await put(d, last, batches[half:])
    await put(d, cleaned, batches)
    if fault == "batch":
        data = d._file(PATH.log(cleaned)).data
        data[BATCH_BYTES + HEADER_BYTES + 5] ^= 1
    await d.fs.delete(PATH.idx(cleaned))
    folder = await read_folder(d.fs, PATH)
    made = rebuilt(PATH, folder, SILENCE, await newest_index(d.fs, PATH, folder), 1)
    assert [entry.name for entry in made.segments] == [last]
    _, revision = await ownership.read(d.kv, RECORD_KEY)
    await ownership.store(d.kv, RECORD_KEY, made, revision)
    report = await d.repair(is_dry=False, all_segments=True)
    assert [plan.name for plan in report.older] == [cleaned]
    assert report.plans == []
    lost = [(gap.first, gap.end) for plan in report.older for gap in plan.gaps]
    assert lost == ([(1, 2)] if fault == "batch" else [])
    index = decode_idx(await d.fs.read(PATH.idx(cleaned), 0, 1 << 20))
    assert (index.segment, index.end_offset, index.position) == (cleaned, COUNT, len(d.files()[PATH.log(cleaned)]))
    assert [batch.base_offset for batch in await d.stored(COUNT) if not batch.count] == [first for first, _ in lost]
    assert not (await d.repair(all_segments=True)).older[0].lacks_index
    heir = await d.heir()
    assert writer_of(heir).machine.state is PartitionState.WRITE
    assert await writer_of(heir).append(make(1, COUNT, pid=1, size=SIZE)) == COUNT


async def put(d: Damaged, name: SegmentName, batches: Sequence[Batch]) -> None:
    """Write a closed segment of these batches, and its index."""
    data = b"".join(bytes(batch.data) for batch in batches)
    await write_once(d.fs, PATH.log(name), data)
    end = batches[-1].next_offset
    index = Checkpoint(
        key=KEY, segment=name, position=len(data), end_offset=end, log_start=0, is_closed=True, epochs=((1, name.base),)
    )
    await write_once(d.fs, PATH.idx(name), encode_idx(index))


async def test_a_segment_that_the_owner_registers_meanwhile_is_no_sign_of_an_older_store() -> None:
    d = await damaged(COVERED)
    before = await ownership.read(d.kv, RECORD_KEY)
    await d.register(COUNT, range(COUNT, COUNT + 2))

    class Late(Repair):
        async def _read_record(self) -> tuple[PartitionRecord, int]:
            return before

    tool = Late(d.fs, d.kv, SystemClock(), PLACE)
    with pytest.raises(NotRepaired, match="a broker has written to") as raised:
        await tool.run(RepairRequest(topic="orders", partition=0, is_dry=True))
    assert "rebuild" not in str(raised.value)
    record, _ = before
    await ownership.store(d.kv, RECORD_KEY, record, (await ownership.read(d.kv, RECORD_KEY))[1])
    with pytest.raises(NotRepaired, match="the store is older than storage"):
        await d.repair(is_dry=True)

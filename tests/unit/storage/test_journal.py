"""A broker's journal (storage/journal.py, journal_writer.py): framing that reads from either end, what a reader makes
of it, and the writer's promises (durable when answered, group-committed, bounded, short) while storage fails."""

from __future__ import annotations

import asyncio
import math
import random
import struct
import uuid
from array import array
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from bmq.core.errors import FormatError
from bmq.core.model import PartitionKey, SegmentName
from bmq.storage import layout
from bmq.storage.checkpoint import PRODUCERS_A_STEP, Checkpoint, ProducerBatch, ProducerState, encode
from bmq.storage.filesystem import (
    CreateOptions,
    Lease,
    OutOfSpace,
    StorageError,
    StorageUnavailable,
    write_once,
)
from bmq.storage.journal import (
    CHECKPOINT,
    OVERHEAD,
    PROBE,
    SNAPSHOT_BEGIN,
    SNAPSHOT_END,
    JournalView,
    frame,
    read_backwards,
    read_journals,
)
from bmq.storage.journal_writer import SNAPSHOT_A_TURN, JournalWriter
from bmq.storage.memory import Faults, MemoryFileSystem, MemoryStorage
from bmq.storage.memory.appender import MemoryAppender
from tests.harness.loop import run
from tests.harness.loop_stops import STOP_MAX_S, TurnCounter, loop_stops
from tests.harness.waiting import until

pytestmark = pytest.mark.slow

BROKER = "3-0123456789abcdef"
TOPIC = uuid.UUID(int=77)
SEGMENT = SegmentName(0, 1, 0)


HEAD, TAIL = struct.Struct(">4sBI"), struct.Struct(">II4s")


def check(data: memoryview) -> list[str]:
    """Return the faults of a journal's bytes, by a forward reader that shares nothing with the one under test."""
    faults: list[str] = []
    position = 0
    while position < len(data):
        fault, size = record_fault(data, position)
        if fault:
            faults.append(f"at {position}: {fault}")
            following = bytes(data).find(b"JRN1", position + 1)
            size = following - position if following >= 0 else len(data) - position
        position += size
    return faults


def record_fault(data: memoryview, position: int) -> tuple[str, int]:
    left = len(data) - position
    if left < HEAD.size + TAIL.size:
        return f"{left} bytes at the end are no record (a torn write)", 0
    magic, _, length = HEAD.unpack_from(data, position)
    size = HEAD.size + length + TAIL.size
    if magic != b"JRN1":
        return "no record begins here", 0
    if size > left:
        return "the record is cut short (a torn write)", 0
    crc, again, end = TAIL.unpack_from(data, position + size - TAIL.size)
    is_right = crc == crc32c(data[position + 4 : position + size - TAIL.size]) and (again, end) == (length, b"1NRJ")
    return ("" if is_right else "the record's CRC does not match"), size


def key(partition: int = 0) -> PartitionKey:
    return PartitionKey(TOPIC, partition)


def full(end: int, partition: int = 0, segment: SegmentName = SEGMENT) -> Checkpoint:
    return Checkpoint(key=key(partition), segment=segment, position=end * 10, end_offset=end, log_start=0)


def delta(end: int, partition: int = 0, segment: SegmentName = SEGMENT) -> Checkpoint:
    """Return a delta with one index entry, and one producer changed."""
    return replace(
        full(end, partition, segment),
        is_full=False,
        index=array("q", [end - 1, end * 10 - 1, 0]),
        producers=(ProducerState(end, 0, -1, 0, -1, ()),),
    )


def record(checkpoint: Checkpoint) -> bytes:
    return frame(CHECKPOINT, encode(checkpoint))


def snapshot(*checkpoints: Checkpoint) -> bytes:
    return frame(SNAPSHOT_BEGIN, b"") + b"".join(map(record, checkpoints)) + frame(SNAPSHOT_END, b"")


def backwards(data: bytes) -> list[tuple[int, bytes]]:
    return [(kind, bytes(payload)) for kind, payload in read_backwards(memoryview(data))]


def parse(data: bytes) -> dict[PartitionKey, Checkpoint]:
    return JournalView.parse(memoryview(data)).checkpoints


# ---------------------------------------------------------------------------------------------------------- framing


PAYLOADS = st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=60)), max_size=6)


def test_a_record_is_laid_out_as_drawn() -> None:
    inside = struct.pack(">BI", 9, 3) + b"abc"
    assert frame(9, b"abc") == b"JRN1" + inside + struct.pack(">II", crc32c(inside), 3) + b"1NRJ"
    assert len(frame(9, b"")) == OVERHEAD


@given(PAYLOADS)
def test_records_read_from_either_end(records: list[tuple[int, bytes]]) -> None:
    """Last first going backwards; forwards ``check`` finds nothing wrong."""
    data = b"".join(frame(kind, payload) for kind, payload in records)
    assert backwards(data) == records[::-1]
    assert check(memoryview(data)) == []


def test_a_tail_torn_at_every_byte_hides_only_itself() -> None:
    records = [(1, b"first"), (7, b""), (1, b"last one")]
    *whole, last = (frame(kind, payload) for kind, payload in records)
    good = b"".join(whole)
    for keep in range(len(last)):
        assert backwards(good + last[:keep]) == records[1::-1], keep
        faults = check(memoryview(good + last[:keep]))
        assert [fault.split(":")[0] for fault in faults] == ([f"at {len(good)}"] if keep else []), keep
        assert all("torn" in fault for fault in faults)


def test_any_flipped_bit_hides_only_its_own_record() -> None:
    first, second, third = (frame(1, payload) for payload in (b"first", b"second", b"third"))
    for at in range(len(second)):
        bad = bytearray(second)
        bad[at] ^= 1 << at % 8
        assert backwards(first + bytes(bad) + third) == [(1, b"third"), (1, b"first")], at
        assert check(memoryview(first + bytes(bad) + third)), at


@given(PAYLOADS, st.lists(st.binary(max_size=40), min_size=7, max_size=7))
def test_garbage_between_records_is_stepped_over(records: list[tuple[int, bytes]], garbage: list[bytes]) -> None:
    """Put garbage before, between and behind records: no record is lost to it."""
    data = b"".join(junk + frame(*item) for junk, item in zip(garbage, records, strict=False)) + garbage[-1]
    assert backwards(data) == records[::-1]


def test_magics_inside_payloads_and_garbage_mislead_nobody() -> None:
    """Put both markers into payloads and garbage, alone and as parts of records cut short at either end."""
    whole = frame(1, b"x" * 20)
    for junk in (b"1NRJ", b"JRN1", b"1NRJ" * 5, whole[5:], whole[:-5], struct.pack(">II", 0, 1 << 31) + b"1NRJ"):
        records = [(1, b"a" + junk), (2, junk)]
        data = frame(*records[0]) + junk + frame(*records[1]) + junk
        assert backwards(data) == records[::-1], junk


@given(st.binary(max_size=300))
def test_random_bytes_hold_no_record_and_raise_nothing(data: bytes) -> None:
    assert backwards(data) == []
    assert bool(check(memoryview(data))) == bool(data)
    assert parse(data) == {}


# ------------------------------------------------------------------------------------- what a broker's bytes come to


def test_deltas_are_merged_onto_the_full_one_before_them() -> None:
    """Merge deltas in the order in which they were written, each partition by itself."""
    data = b"".join(map(record, (full(10), full(5, 1), delta(12), delta(6, 1), delta(15))))
    found = parse(data)
    assert set(found) == {key(0), key(1)}
    assert (found[key(0)].end_offset, found[key(1)].end_offset) == (15, 6)
    assert found[key(0)].index.tolist() == [11, 119, 0, 14, 149, 0]
    assert [state.producer_id for state in found[key(0)].producers] == [12, 15]
    assert found[key(0)].is_full


def test_only_the_last_full_one_counts() -> None:
    data = b"".join(map(record, (full(10), delta(12), replace(full(20), log_start=4), delta(21))))
    merged = parse(data)[key()]
    assert (merged.end_offset, merged.log_start, merged.index.tolist()) == (21, 4, [20, 209, 0])


def test_a_delta_without_its_full_one_is_nothing() -> None:
    """A hint that cannot stand alone: there is none before it, or only one of another segment."""
    assert parse(record(delta(12))) == {}
    later = SegmentName(12, 1, 1)
    assert parse(record(full(10)) + record(delta(15, segment=later)))[key()] == full(10)


def test_a_new_segments_full_one_replaces_the_old_ones() -> None:
    later = SegmentName(12, 1, 1)
    data = b"".join(map(record, (full(10), delta(12), full(13, segment=later), delta(15, segment=later))))
    assert (parse(data)[key()].segment, parse(data)[key()].end_offset) == (later, 15)


def test_an_old_segments_delta_behind_the_snapshot_is_ignored() -> None:
    """Queue an old segment's delta when the pipeline breaks: it is written again behind the new file's snapshot."""
    later = SegmentName(12, 1, 1)
    data = snapshot(full(13, segment=later)) + record(delta(12))
    assert parse(data)[key()] == full(13, segment=later)
    data += record(delta(15, segment=later))
    assert parse(data)[key()].end_offset == 15


def test_a_delta_that_overlaps_the_snapshot_adds_nothing_twice() -> None:
    state = replace(full(12), index=delta(12).index, producers=delta(12).producers)
    assert parse(snapshot(state) + record(delta(12)))[key()] == state


def test_unknown_types_are_skipped() -> None:
    """A later version may write such records."""
    data = frame(200, b"?") + record(full(1)) + frame(0, b"") + record(delta(2)) + frame(99, encode(full(50)))
    assert parse(data)[key()].end_offset == 2
    assert check(memoryview(data)) == []


def test_a_snapshot_is_whole_once_its_end_is_there() -> None:
    data = snapshot(full(1), full(2, 1))
    assert JournalView.parse(memoryview(data)).has_snapshot
    for cut in range(len(data)):
        assert not JournalView.parse(memoryview(data)[:cut]).has_snapshot


@pytest.mark.parametrize("payload", [b"", b"short", b"X" + encode(full(9))[1:], encode(full(9))[:60]])
def test_a_payload_that_cannot_be_decoded_is_no_checkpoint(payload: bytes) -> None:
    """The payload is of another version, or a bug's. A journal is a hint: the checkpoint before it is used, and other
    partitions'."""
    data = record(full(1)) + record(full(2, 1)) + frame(CHECKPOINT, payload) + record(full(3, 1))
    view = JournalView.parse(memoryview(data))
    assert {found.partition: checkpoint.end_offset for found, checkpoint in view.checkpoints.items()} == {0: 1, 1: 3}
    assert len(view.faults) == 1


@pytest.mark.parametrize("is_full", [True, False])
def test_deltas_behind_one_that_cannot_be_decoded_tell_the_log_start_only(is_full: bool) -> None:
    """Lose a record: what it said of producers and batches is missing from the deltas behind it, so recovery scans that
    again."""
    lost = encode(full(4) if is_full else delta(4))
    data = record(full(1)) + record(delta(2)) + frame(CHECKPOINT, b"X" + lost[1:])
    data += record(replace(delta(6), log_start=5)) + record(delta(7))
    (found,) = parse(data).values()
    assert (found.end_offset, found.position, found.log_start) == (2, 20, 5)
    assert [state.producer_id for state in found.producers] == [2]


def test_journals_with_a_record_that_cannot_be_decoded_are_read(caplog: pytest.LogCaptureFixture) -> None:
    bad = frame(CHECKPOINT, b"X" + encode(full(9))[1:])
    found = journals(snapshot(full(1), full(1, 1)) + bad, bad + record(full(4, 1)))
    assert {k.partition: c.end_offset for k, c in found.items()} == {0: 1, 1: 4}
    assert len(caplog.records) == 2
    assert "cannot be decoded" in caplog.text


# -------------------------------------------------------------------------------------------------- check, for tools


def test_check_reports_each_fault_with_its_place() -> None:
    """Report bytes between records, a bad CRC and the torn end; good records behind a fault are not reported."""
    good, junk = record(full(1)), b"....junk"
    bad = bytearray(good)
    bad[20] ^= 1
    data = good + junk + good + bytes(bad) + good + good[:-1]
    faults = check(memoryview(data))
    at = [len(good), len(good) * 2 + len(junk), len(good) * 4 + len(junk)]
    assert faults == [
        f"at {at[0]}: no record begins here",
        f"at {at[1]}: the record's CRC does not match",
        f"at {at[2]}: the record is cut short (a torn write)",
    ]


def test_check_names_bytes_too_few_for_a_record() -> None:
    assert check(memoryview(b"JRN1")) == ["at 0: 4 bytes at the end are no record (a torn write)"]


# ---------------------------------------------------------------------------------------------------- reading files


async def put(fs: MemoryFileSystem, n: int, data: bytes, broker: str = BROKER) -> None:
    await write_once(fs, layout.journal(broker, n), data)


def journals(*files: bytes, broker: str = BROKER) -> dict[PartitionKey, Checkpoint]:
    """Return what ``read_journals`` makes of files numbered from 1."""

    async def main() -> dict[PartitionKey, Checkpoint]:
        fs = MemoryFileSystem(MemoryStorage(page=2), "reader")
        for n, data in enumerate(files, 1):
            await put(fs, n, data, broker)
        return await read_journals(fs, BROKER)

    return run(main())


def test_no_journal_is_no_checkpoint() -> None:
    assert journals() == {}
    assert journals(b"") == {}


def test_the_latest_checkpoint_across_files_counts() -> None:
    found = journals(
        snapshot(full(1), full(1, 1)) + record(delta(9)), snapshot(full(9), full(1, 1)) + record(delta(4, 1))
    )
    assert {k.partition: c.end_offset for k, c in found.items()} == {0: 9, 1: 4}


def test_an_older_file_with_a_later_checkpoint_counts() -> None:
    """Late acks: the older file went on after the newer one's snapshot was taken."""
    found = journals(snapshot(full(1)) + record(full(20)), snapshot(full(10)))
    assert found[key()].end_offset == 20


def test_a_newer_file_whose_snapshot_is_torn_at_every_byte() -> None:
    """Cut the newer file anywhere: its whole records count, and for all other partitions the file before it."""
    first, second = snapshot(full(1), full(1, 1), full(1, 2)), snapshot(full(5), full(6, 1), full(7, 2))
    bound = [len(frame(SNAPSHOT_BEGIN, b"")) + n * len(record(full(1))) for n in (1, 2, 3)]
    for cut in range(len(second) + 1):
        found = journals(first, second[:cut])
        ends = [found[key(partition)].end_offset for partition in range(3)]
        assert ends == [later if cut >= at else 1 for later, at in zip((5, 6, 7), bound, strict=True)], cut


def test_a_newer_snapshot_without_a_partition_does_not_hide_it() -> None:
    """A broker that was paused, fenced and resumed begins its next file without what it no longer holds, maybe before
    the new owners have read of it: the checkpoint before is still true, and bounds their recovery."""
    found = journals(snapshot(full(10), full(20, 1)), snapshot(full(21, 1)), snapshot())
    assert {k.partition: c.end_offset for k, c in found.items()} == {0: 10, 1: 21}


async def test_only_the_brokers_own_files_are_read() -> None:
    fs = MemoryFileSystem(MemoryStorage(page=2), "reader")
    for other in ("3-0123456789abcdee", "3-0123456789abcdf0", "30-0123456789abcdef", "2-0123456789abcdef"):
        await put(fs, 1, snapshot(full(99)), other)
    for n in range(1, 6):
        await put(fs, n, snapshot(full(n)))
    assert (await read_journals(fs, BROKER))[key()].end_offset == 5


class RollingFileSystem(MemoryFileSystem):
    """Between its first listing and its first read the journal's owner rolls on, twice."""

    has_rolled = False

    async def read(self, path: str, position: int, length: int) -> bytes:
        if not self.has_rolled:
            self.has_rolled = True
            await put(self, 3, snapshot(full(8)))
            await put(self, 4, snapshot(full(9)))
            for n in (1, 2):
                await self.delete(layout.journal(BROKER, n))
        return await super().read(path, position, length)


async def test_a_journal_that_rolls_while_it_is_read_is_listed_once_more() -> None:
    """Roll the journal while it is read: the files that were listed are gone, their content is in newer ones (rule
    10)."""

    fs = RollingFileSystem(MemoryStorage(), "reader")
    await put(fs, 1, snapshot(full(1)))
    await put(fs, 2, snapshot(full(2)))
    assert (await read_journals(fs, BROKER))[key()].end_offset == 9


# --------------------------------------------------------------------------------------------------------- the writer


class World:
    """A journal of one broker on a memory HDFS, and the partitions that it would put into a snapshot."""

    def __init__(self, storage: MemoryStorage | None = None, **options: Any) -> None:
        self.storage = storage or MemoryStorage()
        self.fs = MemoryFileSystem(self.storage, BROKER)
        self.held: dict[PartitionKey, Checkpoint] = {}
        self.journal = JournalWriter(self.fs, BROKER, self._snapshot, **options)

    def _snapshot(self) -> Iterable[Checkpoint]:
        return list(self.held.values())

    def append(self, checkpoint: Checkpoint) -> asyncio.Future[None]:
        """Append as a broker does: what a checkpoint says is true before it is written."""
        self.held[checkpoint.key] = replace(checkpoint, is_full=True)
        return self.journal.append(checkpoint)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[asyncio.Task[None]]:
        task = asyncio.create_task(self.journal.run())
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def read(self) -> dict[PartitionKey, Checkpoint]:
        """Read as another process does, on storage whose faults have ended."""
        self.storage.faults = Faults()
        return await read_journals(MemoryFileSystem(self.storage, "reader"), BROKER)

    async def files(self) -> list[int]:
        found = []
        async for status in MemoryFileSystem(self.storage, "reader").list(layout.JOURNALS):
            parsed = layout.parse_journal(layout.base_name(status.path))
            assert parsed is not None
            found.append(parsed[1])
        return found

    async def data(self, n: int) -> bytes:
        return await MemoryFileSystem(self.storage, "reader").read(layout.journal(BROKER, n), 0, 1 << 30)


@pytest.fixture
def flushes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that collects the positions of all flushes from now on."""
    sent: list[int] = []
    flush = MemoryAppender.flush

    def counted(self: MemoryAppender, *, sync: bool = False) -> asyncio.Future[int]:
        sent.append(self.position)
        return flush(self, sync=sync)

    monkeypatch.setattr(MemoryAppender, "flush", counted)
    return sent


async def test_what_is_answered_can_be_read() -> None:
    """Durable when the future is done, and the file begins with a snapshot."""

    world = World()
    async with world.running():
        await world.append(full(5))
        await world.append(delta(6))
        assert (await world.read())[key()].end_offset == 6
        kinds = [kind for kind, _ in backwards(await world.data(1))][::-1]
        assert kinds[0] == SNAPSHOT_BEGIN
        assert kinds.count(SNAPSHOT_END) == 1
        assert check(memoryview(await world.data(1))) == []


async def test_many_appends_share_a_flush(flushes: list[int]) -> None:
    """Group commit: what gathers while one flush is under way goes out with the next."""

    world = World(MemoryStorage(faults=Faults(ack_s=(0.01, 0.01))))
    async with world.running():
        await world.append(full(1))
        before = len(flushes)
        first = world.append(full(2))
        await asyncio.sleep(0.005)
        rest = [world.append(full(n)) for n in range(3, 503)]
        await asyncio.gather(first, *rest)
        assert len(flushes) - before == 2
        assert world.journal.records_written == 502


async def test_appends_are_answered_in_order() -> None:
    world = World(MemoryStorage(random.Random(1), Faults(ack_s=(0.0, 0.05), pipeline_fails=0.2)))
    done: list[int] = []
    async with world.running():
        futures = []
        for n in range(1, 60):
            future = world.append(full(n))
            future.add_done_callback(lambda _, n=n: done.append(n))  # type: ignore[misc]
            futures.append(future)
            await asyncio.sleep(0.01)
        await asyncio.gather(*futures)
    assert done == list(range(1, 60))


async def test_nothing_is_written_while_nothing_is_said(flushes: list[int]) -> None:
    world = World()
    async with world.running():
        await world.append(full(1))
        before = len(flushes)
        await asyncio.sleep(3600)
        assert len(flushes) == before


async def test_a_full_file_is_rolled_with_a_snapshot_and_old_ones_go() -> None:
    """Every file stays near its bound, each begins with a whole snapshot, and no more than two are kept."""

    world = World(roll_bytes=4000)
    size = len(record(delta(1)))
    async with world.running():
        for partition in range(3):
            await world.append(full(1, partition))
        for n in range(2, 300):
            await world.append(delta(n, n % 3))
            assert len(await world.files()) <= 3  # the third only while it is being deleted
        await asyncio.sleep(1)
        files = await world.files()
        assert len(files) == 2
        assert files[1] > 5
        for n in files:
            data = await world.data(n)
            assert len(data) <= 4000 + 2 * size
            kinds = [kind for kind, _ in backwards(data)][::-1]
            assert kinds[:5] == [SNAPSHOT_BEGIN, CHECKPOINT, CHECKPOINT, CHECKPOINT, SNAPSHOT_END]
        assert {k.partition: c.end_offset for k, c in (await world.read()).items()} == {0: 297, 1: 298, 2: 299}
        assert list(world.storage.open_files()) == [layout.journal(BROKER, files[1])]


async def test_a_large_snapshot_is_not_rolled_at_once() -> None:
    """The bound is also a few times the snapshot: else a broker of many partitions would write snapshots only."""

    world = World(roll_bytes=100)
    for partition in range(50):
        world.held[key(partition)] = full(1, partition)
    async with world.running():
        for n in range(2, 100):
            await world.append(delta(n))
        assert await world.files() == [1]


async def test_after_a_pipeline_failure_the_next_file_holds_everything() -> None:
    """Callers only wait longer: what was queued is durable in the next file, behind its snapshot."""

    world = World(MemoryStorage(faults=Faults(ack_s=(0.01, 0.01))))
    async with world.running():
        await world.append(full(1))
        await world.append(full(1, 1))
        queued = [world.append(delta(2)), world.append(delta(3))]
        await asyncio.sleep(0.001)
        (appender,) = world.storage.appenders
        world.storage.kill_datanode(appender.nodes[0])
        assert not any(future.done() for future in queued)
        await asyncio.gather(*queued)
        assert await world.files() == [1, 2]
        alone = parse(await world.data(2))
        assert {k.partition: c.end_offset for k, c in alone.items()} == {0: 3, 1: 1}
        assert JournalView.parse(memoryview(await world.data(2))).has_snapshot


async def test_a_probe_is_acknowledged_without_a_namenode_and_says_nothing() -> None:
    world = World()
    async with world.running():
        await world.append(full(1))
        world.storage.restart_namenode(30.0)
        await asyncio.wait_for(world.journal.probe(), 1.0)
        await asyncio.sleep(60)
        assert await world.files() == [1]
        data = memoryview(await world.data(1))
        assert [bytes(payload) for kind, payload in read_backwards(data) if kind == PROBE] == [b""]
        assert JournalView.parse(data).checkpoints == {key(): full(1)}
        assert not check(data)


async def test_a_probe_is_done_when_storage_takes_it_and_is_written_once() -> None:
    world = World()
    async with world.running():
        await world.append(full(1))
        world.storage.faults = Faults(hung_ack=1.0, create_fails=1.0)
        probe = world.journal.probe()
        await asyncio.sleep(30)
        assert not probe.done()
        assert world.journal.probe() is probe
        world.storage.faults = Faults()
        await asyncio.wait_for(probe, 10.0)
        (*_, last) = await world.files()
        assert [kind for kind, _ in read_backwards(memoryview(await world.data(last)))].count(PROBE) == 1
        assert world.journal.probe() is not probe
    assert world.journal.probe().cancelled(), "nobody waits for a journal that has ended"


async def test_a_file_is_begun_when_asked_for_once_storage_serves() -> None:
    """Ask for a new file while the NameNode is away: it is begun once storage serves and holds everything; meanwhile
    the open file takes the appends."""

    world = World()
    async with world.running():
        await world.append(full(1))
        world.storage.restart_namenode(30.0)
        renewal = world.journal.renew()
        assert world.journal.renew() is renewal
        await asyncio.wait_for(world.append(delta(2)), 1.0)
        await asyncio.sleep(25.0)
        assert not renewal.done()
        await asyncio.wait_for(renewal, 10.0)
        files = await world.files()
        assert files[-1] > 1
        assert parse(await world.data(files[-1]))[key()].end_offset == 2
        await asyncio.sleep(60.0)
        assert await world.files() == files, "one is enough"
        again = world.journal.renew()
        assert again is not renewal
    assert again.cancelled() or again.done(), "nobody waits for a journal that has ended"
    assert world.journal.renew().cancelled()


async def test_a_pipeline_that_fails_while_the_snapshot_is_written() -> None:
    """Again and again: a number is never used twice, and in the end everything is there."""

    world = World(MemoryStorage(faults=Faults(pipeline_fails=1.0)))
    async with world.running():
        future = world.append(full(1))
        await asyncio.sleep(1.0)
        assert not future.done()
        world.storage.faults = Faults()
        await asyncio.wait_for(future, 1.0)
        files = await world.files()
        assert files == list(range(1, files[-1] + 1))
        assert len(files) > 2
        assert (await world.read())[key()].end_offset == 1


async def test_numbers_in_use_are_stepped_over() -> None:
    """Numbers are in use after a create whose response was lost."""

    world = World()
    for n in (1, 2):
        await put(world.fs, n, b"")
    async with world.running():
        await world.append(full(4))
        assert await world.files() == [1, 2, 3]
        assert (await world.read())[key()].end_offset == 4


async def test_storage_that_is_unavailable_for_a_while_only_delays() -> None:
    """Storage is unavailable from the beginning, before the first file exists."""

    world = World()
    world.storage.restart_namenode(10.0, safe_mode_s=5.0)
    async with world.running():
        future = world.append(full(1))
        await asyncio.sleep(14.0)
        assert not future.done()
        await asyncio.wait_for(future, 2.0)
        assert (await world.read())[key()].end_offset == 1


async def test_a_roll_waits_for_the_namenode_and_the_open_file_goes_on() -> None:
    """Pipelines outlive the NameNode, so checkpoints must too: the file grows past its bound until a roll succeeds."""

    world = World(roll_bytes=1000)
    async with world.running():
        await world.append(full(1))
        world.storage.restart_namenode(60.0)
        for n in range(2, 30):
            await asyncio.wait_for(world.append(delta(n)), 1.0)
        assert asyncio.get_running_loop().time() < 60.0
        await asyncio.sleep(61.0)
        files = await world.files()
        assert (files[0], len(files)) == (1, 2)
        await world.append(delta(30))
        await world.append(delta(31))
        assert (await world.read())[key()].end_offset == 31
        assert list(world.storage.open_files()) == [layout.journal(BROKER, files[1])]


async def test_close_drains_and_closes_the_file() -> None:
    """All appends that were queued are durable, ``run`` ends, no file stays open."""

    world = World(MemoryStorage(faults=Faults(ack_s=(0.01, 0.01))))
    task = asyncio.create_task(world.journal.run())
    futures = [world.append(full(n)) for n in range(1, 20)]
    world.journal.close()
    await asyncio.wait_for(task, 5.0)
    assert all(future.done() and not future.cancelled() for future in futures)
    assert world.storage.open_files() == {}
    assert (await world.read())[key()].end_offset == 19


async def test_close_drains_through_a_failure() -> None:
    world = World(MemoryStorage(faults=Faults(pipeline_fails=1.0)))
    task = asyncio.create_task(world.journal.run())
    future = world.append(full(1))
    world.journal.close()
    await asyncio.sleep(2.0)
    assert not task.done()
    world.storage.faults = Faults()
    await asyncio.wait_for(task, 5.0)
    assert future.done()
    assert not future.cancelled()


async def test_closing_an_unused_journal_ends_it() -> None:
    world = World()
    task = asyncio.create_task(world.journal.run())
    await asyncio.sleep(1.0)
    world.journal.close()
    await asyncio.wait_for(task, 5.0)
    assert world.storage.open_files() == {}


async def test_an_ended_journal_answers_at_once() -> None:
    """Append after the end: the append is cancelled and there is room, so that nothing waits for ever."""

    world = World(queue_bytes_max=10)
    task = asyncio.create_task(world.journal.run())
    world.journal.close()
    await task
    late = world.append(full(1))
    assert late.cancelled()
    await asyncio.wait_for(world.journal.room(), 1.0)


async def test_cancellation_gives_up_what_is_queued() -> None:
    """Futures are cancelled, waiters for room continue, the file is dropped, and the cancellation is passed on."""

    world = World(MemoryStorage(faults=Faults(ack_s=(0.001, 0.001))), queue_bytes_max=200)
    task = asyncio.create_task(world.journal.run())
    await world.append(full(1))
    world.storage.faults = Faults(hung_ack=1.0)
    flying = world.append(full(2))
    await asyncio.sleep(0.1)
    queued = [world.append(full(n)) for n in range(3, 9)]
    room = asyncio.create_task(world.journal.room())
    await asyncio.sleep(0.1)
    assert not room.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert flying.cancelled()
    assert all(future.cancelled() for future in queued)
    await asyncio.wait_for(room, 1.0)
    assert list(world.storage.appenders) == []


async def test_a_second_cancellation_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cancel while the next file is being created, and again while that creation is given up: it takes long to end."""

    world = World()
    create = world.fs.create

    async def create_stubbornly(path: str, options: CreateOptions) -> MemoryAppender:
        try:
            await asyncio.sleep(math.inf)
        except asyncio.CancelledError:
            await asyncio.sleep(60.0)
        return await create(path, options)

    task = asyncio.create_task(world.journal.run())
    await world.append(full(1))
    monkeypatch.setattr(world.fs, "create", create_stubbornly)
    renewed = world.journal.renew()
    await asyncio.sleep(0.1)
    world.storage.faults = Faults(hung_ack=1.0)
    flying = world.append(full(2))
    await asyncio.sleep(0.1)
    queued = world.append(full(3))
    for _ in range(2):
        task.cancel()
        await asyncio.sleep(1.0)
    assert task.cancelled()
    assert (flying.cancelled(), queued.cancelled(), renewed.cancelled()) == (True, True, True)
    await asyncio.wait_for(world.journal.room(), 1.0)
    await until(lambda: list(world.storage.appenders) == [], 100.0)


@pytest.mark.parametrize("is_stuck_in_close", [False, True])
async def test_cancellation_during_a_roll_lets_both_files_go(is_stuck_in_close: bool) -> None:
    """Cancel while the next file is being created or the last one closed: no pipeline and no lease stays alive."""

    world = World(MemoryStorage(faults=Faults(waits_for_namenode=1.0)), roll_bytes=500)
    async with world.running() as task:
        await world.append(full(1))
        if not is_stuck_in_close:
            world.storage.restart_namenode(1000.0)
        else:
            world.fs.create = _then_down(world)  # type: ignore[method-assign, assignment]
        futures = [world.append(full(n)) for n in range(2, 9)]
        await asyncio.sleep(5.0)
        assert all(future.done() for future in futures)
        assert len(world.storage.appenders) == (2 if is_stuck_in_close else 1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert list(world.storage.appenders) == []


def _then_down(world: World) -> Callable[[str, CreateOptions], Coroutine[Any, Any, MemoryAppender]]:
    """Return a ``create`` after which the NameNode is away, so that the close that follows hangs."""
    create = MemoryFileSystem.create

    async def wrapped(path: str, options: CreateOptions) -> MemoryAppender:
        appender = await create(world.fs, path, options)
        appender._has_length = True  # its first flush needs no NameNode
        world.storage.restart_namenode(1000.0)
        return appender

    return wrapped


async def test_a_cancelled_waiter_harms_nobody() -> None:
    world = World(MemoryStorage(faults=Faults(ack_s=(0.1, 0.1))))
    async with world.running():
        first, second = world.append(full(1)), world.append(full(2))
        first.cancel()
        await second
        await world.append(full(3))
        assert (await world.read())[key()].end_offset == 3


async def test_the_queue_has_a_bound() -> None:
    """Past it ``has_room`` is false and ``room`` waits until the queue has been taken."""

    size = len(record(full(1)))
    world = World(queue_bytes_max=3 * size + 1)
    for n in (1, 2, 3):
        world.append(full(n))
        assert world.journal.has_room
    world.append(full(4))
    assert not world.journal.has_room
    waiting = asyncio.create_task(world.journal.room())
    await asyncio.sleep(1.0)
    assert not waiting.done()
    async with world.running():
        await asyncio.wait_for(waiting, 1.0)
        assert world.journal.has_room


async def test_what_comes_back_from_a_failed_flush_counts_again() -> None:
    """The bound holds while storage is away, not only before the first attempt."""

    size = len(record(full(1)))
    world = World(MemoryStorage(faults=Faults(ack_s=(0.1, 0.1))), queue_bytes_max=3 * size)
    async with world.running():
        await world.append(full(1))
        world.storage.faults = Faults(hung_ack=1.0)
        futures = [world.append(full(n)) for n in range(2, 8)]
        await asyncio.sleep(0.01)
        assert world.journal.has_room  # all were taken
        world.storage.restart_namenode(5.0)
        (appender,) = world.storage.appenders
        world.storage.kill_datanode(appender.nodes[0])
        await asyncio.sleep(0.01)
        assert not world.journal.has_room
        world.storage.faults = Faults()
        await asyncio.gather(*futures)
        assert world.journal.has_room


async def test_a_bug_in_the_snapshot_ends_the_task_and_cancels_the_queue() -> None:
    """The task's owner gets the error, and no append waits for a response that will not come."""

    world = World()
    world.held[key(1)] = delta(1, 1)  # no full checkpoint
    task = asyncio.create_task(world.journal.run())
    future = world.append(full(1))
    with pytest.raises(AssertionError):
        await task
    assert future.cancelled()
    assert list(world.storage.appenders) == []


FAULTS = Faults(
    call_s=(0.0, 0.01),
    ack_s=(0.0, 0.02),
    slow_ack=0.05,
    pipeline_fails=0.08,
    early_bytes=0.3,
    create_fails=0.2,
    unavailable=0.1,
    lost_answer=0.1,
    out_of_space=0.1,
)


@pytest.mark.parametrize("seed", range(60))
async def test_every_answered_checkpoint_survives_any_crash(seed: int) -> None:
    """Random partitions, deltas, faults and a crash at a random moment: what another process then reads of each
    partition was appended, and is not older than what was acknowledged."""
    rng = random.Random(seed)

    world = World(MemoryStorage(rng, FAULTS), roll_bytes=rng.choice([300, 2000, 1 << 20]), retry_s=0.05)
    said: dict[PartitionKey, dict[int, Checkpoint]] = {}
    answered: dict[PartitionKey, int] = {}

    def keep(checkpoint: Checkpoint, future: asyncio.Future[None]) -> None:
        if not future.cancelled():
            answered[checkpoint.key] = checkpoint.end_offset

    async def partition(number: int) -> None:
        """Append as a partition does: one checkpoint at a time, the index and producers of a delta are those since
        then."""
        state = full(0, number)
        while True:
            end = state.end_offset + rng.randint(1, 5)
            is_full = state.end_offset == 0 or rng.random() < 0.1
            news = delta(end, number)
            entry, producers = news.index, (*state.producers, *news.producers)
            state = replace(full(end, number), index=state.index + entry, producers=producers)
            said.setdefault(state.key, {})[end] = state
            world.held[state.key] = state
            future = world.journal.append(state if is_full else news)
            future.add_done_callback(lambda done, state=state: keep(state, done))  # type: ignore[misc]
            await asyncio.gather(future, return_exceptions=True)
            await asyncio.sleep(rng.choice([0.0, 0.001, 0.1]))

    async with world.running():
        tasks = [asyncio.create_task(partition(number)) for number in range(rng.randint(1, 5))]
        await asyncio.sleep(rng.uniform(0.0, 5.0))
        world.fs.crash()
        promised = dict(answered)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        found = await world.read()
        for which, end in promised.items():
            assert found[which].end_offset >= end, f"seed {seed}"
        for which, checkpoint in found.items():
            assert checkpoint == said[which][checkpoint.end_offset], f"seed {seed}"


def test_the_journal_hides_no_other_error() -> None:
    """Only storage's own errors count as a broken pipeline."""
    assert not issubclass(FormatError, StorageError)


class FullFileSystem(MemoryFileSystem):
    """A storage where some live datanodes have no room for a block: a file gets fewer copies, if its options allow
    that."""

    is_full = True

    def __init__(self, storage: MemoryStorage) -> None:
        super().__init__(storage, BROKER)
        self.asked: list[tuple[float, bool]] = []
        self.is_always_full = False  # also for fewer copies

    async def create(self, path: str, options: CreateOptions = CreateOptions()) -> MemoryAppender:  # noqa: B008
        now = asyncio.get_running_loop().time()
        self.asked.append((now, options.all_copies))
        if self.is_always_full or (self.is_full and options.all_copies):
            raise OutOfSpace(f"{path}: 1 of 3 datanodes take a block")
        return await super().create(path, replace(options, replication=1) if self.is_full else options)


def full_world(**options: Any) -> tuple[World, FullFileSystem]:
    world = World()
    fs = world.fs = FullFileSystem(world.storage)
    world.journal = JournalWriter(fs, BROKER, world._snapshot, **options)
    return world, fs


async def test_a_file_that_was_asked_for_is_tried_once_a_second_while_there_is_no_room() -> None:
    """Retries continue at that pace also while checkpoints are written to the open file."""

    world, fs = full_world()
    fs.is_full = False
    async with world.running():
        await world.append(full(1))
        fs.is_full = fs.is_always_full = True
        fs.asked.clear()
        renewal = world.journal.renew()
        for number in range(300):
            await asyncio.sleep(0.1)
            await world.append(full(number + 2))
        assert 20 <= len(fs.asked) <= 31
        await asyncio.sleep(30)
        assert 40 <= len(fs.asked) <= 61, "also while nothing is written"
        fs.is_full = fs.is_always_full = False
        await asyncio.wait_for(renewal, 2)


@pytest.mark.parametrize("wanted", [JournalWriter.renew, JournalWriter.probe])
async def test_a_file_is_tried_once_a_second_while_none_is_open_and_no_checkpoint_waits(
    wanted: Callable[[JournalWriter], asyncio.Future[None]],
) -> None:
    world, fs = full_world()
    fs.is_always_full = True
    async with world.running():
        waiting = wanted(world.journal)
        await asyncio.sleep(30)
        assert 20 <= len(fs.asked) <= 32
        fs.is_full = fs.is_always_full = False
        await asyncio.wait_for(waiting, 2)


async def test_the_file_after_a_full_one_is_tried_once_a_second() -> None:
    """Checkpoints go to the full one meanwhile, and do not wait for the tries."""

    world, fs = full_world(roll_bytes=300)
    fs.is_full = False
    async with world.running():
        await world.append(full(1))
        fs.is_always_full = True
        for number in range(300):
            await asyncio.sleep(0.1)
            await world.append(full(number + 2))
        assert 20 <= len(fs.asked) <= 32
        fs.is_full = fs.is_always_full = False
        await asyncio.sleep(2)
        assert await world.files() == [1, world.journal._n]


@pytest.mark.parametrize("after_s", [0.1, 0.5, 1.5])
async def test_a_probe_goes_to_the_open_file_when_that_is_full_and_there_is_no_next_one(after_s: float) -> None:
    world, fs = full_world(roll_bytes=300)
    fs.is_full = False
    async with world.running():
        await world.append(full(1))
        fs.is_always_full = True
        fs.asked.clear()
        while not fs.asked:
            await world.append(full(1))
        await asyncio.sleep(after_s)
        await asyncio.wait_for(world.journal.probe(), 2)
        assert await world.files() == [1]


async def test_a_journal_asks_for_all_its_copies_then_takes_those_that_it_gets() -> None:
    told: list[str] = []
    world, fs = full_world(no_room=told.append)
    async with world.running():
        await world.append(full(5))
        now = asyncio.get_running_loop().time()
        assert now == pytest.approx(5.0, abs=0.5), "takeovers wait no longer"
        assert [all_copies for _, all_copies in fs.asked] == [True] * (len(fs.asked) - 1) + [False]
        assert len(told) == len(fs.asked) - 1, "others are asked to make room"
        assert (await world.read())[key()].end_offset == 5


async def test_a_journal_with_few_copies_is_replaced_once_there_is_room_for_all() -> None:
    """The journal continues with few copies meanwhile, and does not ask to make room for a better file."""

    told: list[str] = []
    world, fs = full_world(no_room=told.append)
    async with world.running():
        await world.append(full(5))
        refusals, tries = len(told), len(fs.asked)
        for number in range(6, 16):
            await asyncio.sleep(20)
            await world.append(full(number))
        assert 5 <= len(fs.asked) - tries <= 7, "after 5 s, then more and more rarely"
        assert len(told) == refusals
        fs.is_full = False
        tries, begun = len(fs.asked), world.journal._n
        for number in range(16, 26):
            await asyncio.sleep(20)
            await world.append(full(number))
        assert (len(fs.asked) - tries, world.journal._n) == (1, begun + 1)
        assert fs.asked[-1][1]
        assert (await world.read())[key()].end_offset == 25


async def test_a_full_journal_goes_on_in_its_file_while_the_next_one_waits_for_room() -> None:
    world, fs = full_world(roll_bytes=200)
    fs.is_full = False
    async with world.running():
        await world.append(full(5))
        fs.is_full = True
        for number in range(6, 60):
            await world.append(full(number))
            await asyncio.sleep(0.2)
        fewer = [at for at, all_copies in fs.asked if not all_copies]
        assert fewer
        assert fewer[0] >= 5.0
        assert (await world.read())[key()].end_offset == 59


async def test_a_file_left_behind_is_closed_in_the_end() -> None:
    """A broker that is alive renews its lease: a file that it left would stay open, and its block reserved, as long as
    it lives."""

    storage = MemoryStorage()
    journal = JournalWriter(MemoryFileSystem(storage, "b"), "b", list)
    task = asyncio.get_running_loop().create_task(journal.run())
    await asyncio.sleep(1)
    (appender,) = storage.appenders
    storage.kill_datanode(appender.nodes[0])
    await asyncio.sleep(0)
    segment = SegmentName(0, 1, 0)
    key = PartitionKey(uuid.UUID(int=1), 0)
    await journal.append(Checkpoint(key=key, segment=segment, position=1, end_offset=1, log_start=0))
    assert len(storage.open_files()) == 2
    await journal.seal_left_files()
    assert list(storage.open_files()) == [layout.journal("b", 2)]
    await journal.seal_left_files()
    journal.close()
    await task


async def test_tries_that_failed_do_not_take_the_open_file_away() -> None:
    """Files of failed tries have higher numbers than the one that the journal continues in."""

    world = World(roll_bytes=300)
    create = world.fs.create

    async def broken(path: str, options: CreateOptions) -> MemoryAppender:
        appender = await create(path, options)
        appender.abort()
        return appender

    async with world.running():
        await world.append(full(1))
        world.fs.create = broken  # type: ignore[assignment]
        for n in range(2, 12):
            await world.append(delta(n))
            await asyncio.sleep(1)
        assert len(await world.files()) > 3
        assert parse(await world.data(1))[key()].end_offset == 11
        world.fs.create = create  # type: ignore[method-assign]
        await world.append(delta(12))
        await asyncio.sleep(2)
        assert len(await world.files()) == 2
        assert (await world.read())[key()].end_offset == 12


def restart_all(storage: MemoryStorage) -> None:
    """Restart all datanodes: every open file loses its pipeline, and cannot be read before it is closed."""
    for name in storage.datanodes:
        storage.kill_datanode(name)
    for name in storage.datanodes:
        storage.start_datanode(name)


async def test_a_pipeline_that_breaks_while_nothing_is_written_is_left() -> None:
    """A partition may be taken over from the journal of a live broker, which might write nothing for days."""

    world = World()
    async with world.running():
        await world.append(full(5))
        restart_all(world.storage)
        with pytest.raises(StorageUnavailable):
            await world.read()
        await asyncio.sleep(60)
        assert await world.files() == [1], "nobody has looked"
        sealing = asyncio.create_task(world.journal.former.wait_left())
        world.journal.check_file()
        await asyncio.wait_for(sealing, 1)
        await world.journal.seal_left_files()
        assert list(world.storage.open_files()) == [layout.journal(BROKER, 2)]
        assert (await world.read())[key()] == full(5)
        assert JournalView.parse(memoryview(await world.data(2))).has_snapshot
        world.journal.check_file()
        await asyncio.sleep(60)
        assert await world.files() == [2], "the new one stands"


async def test_an_idle_journal_tries_once_a_second_while_storage_is_away() -> None:
    """Each try makes a file at the NameNode; a checkpoint that comes meanwhile waits no longer than otherwise."""

    world = World()
    created: list[float] = []
    create = world.fs.create

    async def counted(path: str, options: CreateOptions) -> MemoryAppender:
        created.append(asyncio.get_running_loop().time())
        return await create(path, options)

    async with world.running():
        await world.append(full(1))
        world.fs.create = counted  # type: ignore[assignment]
        for name in world.storage.datanodes:
            world.storage.kill_datanode(name)
        for _ in range(60):
            world.journal.check_file()
            await asyncio.sleep(1)
        assert 30 < len(created) <= 61
        for name in world.storage.datanodes:
            world.storage.start_datanode(name)
        await asyncio.wait_for(world.append(full(2)), 0.5)


async def test_files_that_were_left_go_once_others_hold_what_they_said() -> None:
    """A journal that is hardly written never rolls; datanodes restart all the same."""

    world = World()
    async with world.running():
        for n in range(1, 11):
            await world.append(full(n))
            restart_all(world.storage)
            world.journal.check_file()
            await asyncio.sleep(1)
            await world.journal.seal_left_files()
            assert len(await world.files()) == 1
            assert (await world.read())[key()] == full(n)


@pytest.mark.parametrize("closes", [True, False])
@pytest.mark.parametrize("rolls", [0, 1, 3])
async def test_what_had_to_be_on_disk_is_still_there_after_rolls_and_a_loss_of_power(
    rolls: int, closes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new file's snapshot repeats it, and takes its place, whether or not the old file could be closed."""

    async def left(self: JournalWriter, appender: MemoryAppender) -> None:
        self._leave(appender)

    if not closes:
        monkeypatch.setattr(JournalWriter, "_close_file", left)

    storage = MemoryStorage()
    fs = MemoryFileSystem(storage, "b")
    held = replace(full(5), log_start=3)
    journal = JournalWriter(fs, "b", lambda: [held], roll_bytes=200)
    task = asyncio.get_running_loop().create_task(journal.run())
    await journal.append(held, sync=True)
    last = journal._n + rolls
    while journal._n < last:
        await journal.append(full(1, 1))
        await asyncio.sleep(0.01)
    fs.crash()
    task.cancel()
    storage.lose_power(is_partial=False)
    found = await read_journals(MemoryFileSystem(storage, "r"), "b", passes_damaged=True)
    assert found[key()].log_start == 3


async def test_a_file_that_cannot_be_closed_holds_up_no_other() -> None:
    """Fail one file's close each time, as when its datanodes are dead: it is tried again, and the others are closed
    meanwhile."""

    storage = MemoryStorage()
    fs = MemoryFileSystem(storage, "b")
    journal = JournalWriter(fs, "b", list)
    bad = ""
    for n in range(20):
        appender = await fs.create(f"/journals/b-{n:08d}.jnl")
        bad = bad or appender.lease.paths[0]
        journal._leave(appender)
    fence, tries = fs.fence, 0

    async def failing(lease: Lease, *, sync: bool = False) -> int:
        nonlocal tries
        if bad in lease.paths:
            tries += 1
            raise StorageUnavailable("its datanodes are dead")
        return await fence(lease, sync=sync)

    fs.fence = failing  # type: ignore[method-assign]
    for _ in range(3):
        await journal.seal_left_files()
        assert list(storage.open_files()) == [bad]
    assert tries == 3
    fs.fence = fence  # type: ignore[method-assign]
    await journal.seal_left_files()
    assert storage.open_files() == {}


async def test_a_long_queue_goes_out_in_several_flushes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file has room for its snapshot and some flushes, not for the whole of a queue that an outage left."""
    monkeypatch.setattr("bmq.storage.journal_writer._FLUSH_BYTES_MAX", 500)

    storage = MemoryStorage()
    journal = JournalWriter(MemoryFileSystem(storage, "b"), "b", list)
    key = PartitionKey(uuid.UUID(int=1), 0)
    futures = [
        journal.append(Checkpoint(key=key, segment=SegmentName(0, 1, 0), position=n, end_offset=n, log_start=0))
        for n in range(1, 21)
    ]
    task = asyncio.get_running_loop().create_task(journal.run())
    taken: list[int] = []
    while not futures[-1].done():
        taken.append(sum(future.done() for future in futures))
        await asyncio.sleep(0)
    assert sorted(set(taken)) == [0, 4, 8, 12, 16]
    journal.close()
    await task
    found = await read_journals(MemoryFileSystem(storage, "r"), "b")
    assert found[key].end_offset == 20


# --------------------------------------------------------------------------------------------------------------- turns


def producers(count: int) -> tuple[ProducerState, ...]:
    """Return the states of ``count`` producers, with the five batches that are kept of each."""
    batches = tuple(ProducerBatch(n, n, 0, 1000) for n in range(5))
    return tuple(ProducerState(pid, 0, -1, 1000, -1, batches) for pid in range(count))


async def test_a_checkpoint_of_many_producers_is_written_and_read_in_turns() -> None:
    """Append a checkpoint of 20,000 producers: it is durable when its future is done, and those behind it in the queue
    wait for it."""

    world = World()
    large = replace(full(5), producers=producers(20_000))
    behind = [key(number) for number in range(1, 4)]
    async with world.running():
        await world.append(full(1))
        with loop_stops() as writing:
            done = [world.append(large), *(world.append(replace(full(1), key=each)) for each in behind)]
            finished: list[int] = []
            for number, future in enumerate(done):
                future.add_done_callback(lambda _, number=number: finished.append(number))  # type: ignore[misc]
            await asyncio.gather(*done)
            await asyncio.sleep(0)
        assert finished == [0, 1, 2, 3]
        assert writing.turns > 20_000 / PRODUCERS_A_STEP
        with loop_stops() as reading:
            found = await world.read()
        assert reading.turns > 20_000 / PRODUCERS_A_STEP
    assert found[key()] == large
    assert set(found) == {key(), *behind}
    assert max(writing.longest_s, reading.longest_s) < STOP_MAX_S


async def test_a_checkpoint_of_many_producers_survives_a_pipeline_that_fails_meanwhile() -> None:
    world = World()
    async with world.running():
        await world.append(full(1))
        world.storage.faults = Faults(pipeline_fails=1.0)
        large = replace(full(5), producers=producers(3_000))
        done = world.append(large)
        await asyncio.sleep(1.0)
        assert not done.done()
        world.storage.faults = Faults()
        await done
        assert (await world.read())[key()] == large


async def test_a_snapshot_of_many_partitions_is_made_in_turns() -> None:
    """Append while a snapshot is being made: the record stands behind it."""

    world = World(roll_bytes=1)
    count = 5 * SNAPSHOT_A_TURN
    for number in range(count):
        world.held[key(number)] = replace(full(5), key=key(number))
    turns, taken = TurnCounter(), list[int]()

    def snapshot() -> Iterator[Checkpoint]:
        for number in range(count):
            taken.append(number)
            turns.count()
            yield world.held[key(number)]

    world.journal._snapshot = snapshot
    async with world.running():
        while len(taken) < count // 2:  # noqa: ASYNC110 - a turn of the loop is what is waited for
            await asyncio.sleep(0)
        later = world.append(replace(full(9), key=key(0)))
        assert not later.done()
        await later
        found = await world.read()
    assert 0 < max(turns.take()) <= SNAPSHOT_A_TURN + 1  # the next one is taken before the turn ends
    assert {each.partition: checkpoint.end_offset for each, checkpoint in found.items()} == {
        number: 5 if number else 9 for number in range(count)
    }


async def test_a_journal_with_few_copies_is_replaced_once_more_datanodes_answer() -> None:
    """Soon at first: a broker that was cut off itself for a moment finds one datanode, and then all of them."""

    world = World(MemoryStorage(datanodes=4))
    for name in ("dn1", "dn2", "dn3"):
        world.storage.stop_datanode(name)
    async with world.running():
        await world.append(full(5))
        assert [len(each.nodes) for each in world.storage.appenders] == [1]
        for name in ("dn1", "dn2", "dn3"):
            world.storage.resume_datanode(name)
        await asyncio.sleep(6)
        assert [len(each.nodes) for each in world.storage.appenders] == [3], "also if nothing is written"
        begun = world.journal._n
        await asyncio.sleep(300)
        assert world.journal._n == begun, "one that has them all is left alone"
        assert await world.files() == [begun], "the one with a single copy is gone"
        world.storage.kill_datanode("dn0")
        assert (await world.read())[key()].end_offset == 5


@pytest.mark.parametrize("copies", [1, 2, 3])
async def test_a_file_on_dead_datanodes_goes_once_the_next_one_has_all_its_copies(copies: int) -> None:
    """A file on dead datanodes can be neither read nor sealed, and takeovers would wait for what the next one
    repeats."""

    world = World(MemoryStorage(datanodes=6))
    names = list(world.storage.datanodes)
    for name in names[copies:]:
        world.storage.stop_datanode(name)
    async with world.running():
        await world.append(full(5))
        (first,) = world.storage.appenders
        assert set(first.nodes) == set(names[:copies])
        for name in names[copies:]:
            world.storage.resume_datanode(name)
        for name in names[:copies]:
            world.storage.kill_datanode(name)
        await world.append(full(6))
        await asyncio.sleep(1)
        assert await world.files() == [2]
        assert (await world.read())[key()].end_offset == 6


async def test_a_file_that_was_left_stays_while_the_next_one_has_fewer_copies() -> None:
    """The left file is closed soon after, and may be the only one that a failed datanode leaves readable."""

    world = World(MemoryStorage(datanodes=4))
    async with world.running():
        await world.append(full(5))
        world.storage.kill_datanode("dn0")
        world.storage.stop_datanode("dn3")
        await world.append(full(6))
        await world.journal.seal_left_files()
        await asyncio.sleep(1)
        assert [len(each.nodes) for each in world.storage.appenders] == [2]
        assert await world.files() == [1, 2]
        assert (await world.read())[key()].end_offset == 6
        world.storage.resume_datanode("dn3")
        await asyncio.sleep(6)
        assert [len(each.nodes) for each in world.storage.appenders] == [3]
        assert len(await world.files()) == 1
        assert (await world.read())[key()].end_offset == 6


async def test_a_journal_with_few_copies_goes_on_while_there_are_no_more_datanodes() -> None:
    """A file with as few copies is not better: it is dropped, and the next one is tried after growing pauses."""

    world = World(MemoryStorage(datanodes=2))
    async with world.running():
        await world.append(full(5))
        (first,) = world.storage.appenders
        for number in range(6, 306):
            await asyncio.sleep(1)
            await world.append(full(number))
        assert list(world.storage.appenders) == [first]
        assert await world.files() == [1], "and what was made in vain is gone"
        assert 6 <= world.journal._n <= 10
        assert (await world.read())[key()].end_offset == 305


class SlowNameNode(MemoryFileSystem):
    """A storage whose NameNode is slow, or away: then calls fail after their deadline. Open files continue."""

    DEADLINE_S = 15.0

    def __init__(self, storage: MemoryStorage) -> None:
        super().__init__(storage, BROKER)
        self.is_away = self.is_slow = self.is_readonly = False
        self.creates = self.deletes = 0

    async def create(self, path: str, options: CreateOptions = CreateOptions()) -> MemoryAppender:  # noqa: B008
        self.creates += 1
        if self.is_away:
            await asyncio.sleep(self.DEADLINE_S)
            raise StorageUnavailable("no NameNode responds")
        if self.is_slow:
            await asyncio.sleep(self.DEADLINE_S)
        return await super().create(path, options)

    async def delete(self, path: str, *, recursive: bool = False) -> bool:
        self.deletes += 1
        if self.is_readonly:
            await asyncio.sleep(self.DEADLINE_S)
            raise StorageUnavailable("no NameNode responds")
        return await super().delete(path, recursive=recursive)


def slow_world() -> tuple[World, SlowNameNode]:
    world = World(roll_bytes=300)
    fs = SlowNameNode(world.storage)
    world.journal = JournalWriter(fs, BROKER, world._snapshot, roll_bytes=300)
    return world, fs


async def test_a_full_journal_is_written_while_its_next_file_waits_for_the_namenode() -> None:
    world, fs = slow_world()
    async with world.running():
        await world.append(full(1))
        fs.is_away = True
        began = asyncio.get_running_loop().time()
        number = 1
        while asyncio.get_running_loop().time() < began + 100.0:
            number += 1
            await asyncio.wait_for(world.append(full(number)), 0.1)
            await asyncio.wait_for(world.journal.probe(), 0.1)
            await asyncio.sleep(0.1)
        assert fs.creates <= 2 + 100 / fs.DEADLINE_S
        fs.is_away = False
        await asyncio.sleep(fs.DEADLINE_S + 2)
        await asyncio.wait_for(world.append(full(number + 1)), 0.1)
        files = await world.files()
        assert files[0] == 1
        assert list(world.storage.open_files()) == [layout.journal(BROKER, files[-1])] != [layout.journal(BROKER, 1)]
        assert (await world.read())[key()].end_offset == number + 1


@pytest.mark.parametrize("has_open_file", [False, True])
@pytest.mark.parametrize("cancelled_after_s", [1.0, SlowNameNode.DEADLINE_S, None])
async def test_a_journal_that_ends_while_its_next_file_is_created_leaves_none_open(
    cancelled_after_s: float | None, has_open_file: bool
) -> None:
    world, fs = slow_world()
    fs.is_slow = not has_open_file
    task = asyncio.create_task(world.journal.run())
    if has_open_file:
        await world.append(full(1))
        fs.is_slow = True
        while fs.creates < 2:
            await world.append(full(1))
    else:
        await asyncio.sleep(0)
    if cancelled_after_s is None:
        world.journal.close()
        await task
        assert await world.files() == [1]
    else:
        asyncio.get_running_loop().call_later(cancelled_after_s, task.cancel)
        await asyncio.wait([task])
    assert not world.storage.appenders


async def test_old_files_that_could_not_be_deleted_go_later_and_hold_up_nothing() -> None:
    world, fs = slow_world()
    async with world.running():
        await world.append(full(1))
        fs.is_readonly = True
        number = 1
        while fs.creates < 4:
            number += 1
            await asyncio.wait_for(world.append(full(number)), 0.1)
            await asyncio.sleep(0.1)
        for _ in range(300):
            await asyncio.wait_for(world.journal.probe(), 0.1)
            await asyncio.sleep(0.1)
        assert len(await world.files()) == fs.creates
        assert fs.deletes <= 2 + 40 / fs.DEADLINE_S
        fs.is_readonly = False
        await asyncio.sleep(fs.DEADLINE_S + 2.0)
        assert len(await world.files()) == 2, "the open one, and the one before it"

"""A broker's journal: framing that reads from either end, and the checkpoints that a reader makes of its files."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from bmq.core.model import PartitionKey, SegmentName
from bmq.storage import layout
from bmq.storage.checkpoint import Checkpoint, encode
from bmq.storage.journal import (
    CHECKPOINT,
    OVERHEAD,
    SNAPSHOT_BEGIN,
    SNAPSHOT_END,
    JournalView,
    frame,
    read_backwards,
    read_forwards,
    read_journals,
)
from bmq.storage.memory import MemoryFileSystem, MemoryStorage
from tests.harness.journals import BROKER, backwards, check, delta, full, key, parse, put, record, snapshot

PAYLOADS = st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=60)), max_size=6)


def test_a_record_is_laid_out_as_drawn() -> None:
    inside = struct.pack(">BI", 9, 3) + b"abc"
    assert frame(9, b"abc") == b"JRN1" + inside + struct.pack(">II", crc32c(inside), 3) + b"1NRJ"
    assert len(frame(9, b"")) == OVERHEAD


@pytest.mark.slow
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


@pytest.mark.slow
@given(PAYLOADS, st.lists(st.binary(max_size=40), min_size=7, max_size=7))
def test_garbage_between_records_is_stepped_over(records: list[tuple[int, bytes]], garbage: list[bytes]) -> None:
    """Put garbage before, between and behind records: no record is lost to it."""
    data = b"".join(junk + frame(*item) for junk, item in zip(garbage, records, strict=False)) + garbage[-1]
    assert backwards(data) == records[::-1]


def test_markers_inside_payloads_and_garbage_are_not_taken_for_records() -> None:
    """Put both markers into payloads and garbage, alone and as parts of records cut short at either end."""
    whole = frame(1, b"x" * 20)
    for junk in (b"1NRJ", b"JRN1", b"1NRJ" * 5, whole[5:], whole[:-5], struct.pack(">II", 0, 1 << 31) + b"1NRJ"):
        records = [(1, b"a" + junk), (2, junk)]
        data = frame(*records[0]) + junk + frame(*records[1]) + junk
        assert backwards(data) == records[::-1], junk


@pytest.mark.slow
@given(st.binary(max_size=300))
def test_random_bytes_hold_no_record_and_raise_nothing(data: bytes) -> None:
    assert backwards(data) == []
    assert bool(check(memoryview(data))) == bool(data)
    assert parse(data) == {}


def test_deltas_are_merged_onto_the_full_checkpoint_before_them() -> None:
    """Merge deltas in the order in which they were written, each partition by itself."""
    data = b"".join(map(record, (full(10), full(5, 1), delta(12), delta(6, 1), delta(15))))
    found = parse(data)
    assert set(found) == {key(0), key(1)}
    assert (found[key(0)].end_offset, found[key(1)].end_offset) == (15, 6)
    assert found[key(0)].index.tolist() == [11, 119, 0, 14, 149, 0]
    assert [state.producer_id for state in found[key(0)].producers] == [12, 15]
    assert found[key(0)].is_full


def test_only_the_last_full_checkpoint_of_a_partition_counts() -> None:
    data = b"".join(map(record, (full(10), delta(12), replace(full(20), log_start=4), delta(21))))
    merged = parse(data)[key()]
    assert (merged.end_offset, merged.log_start, merged.index.tolist()) == (21, 4, [20, 209, 0])


def test_a_delta_without_its_full_checkpoint_is_ignored() -> None:
    """A hint that cannot stand alone: there is none before it, or only one of another segment."""
    assert parse(record(delta(12))) == {}
    later = SegmentName(12, 1, 1)
    assert parse(record(full(10)) + record(delta(15, segment=later)))[key()] == full(10)


def test_a_full_checkpoint_of_a_new_segment_replaces_those_of_the_old_one() -> None:
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
def test_a_payload_that_cannot_be_decoded_is_not_a_checkpoint(payload: bytes) -> None:
    """The payload is of another version, or a bug's. A journal is a hint: the checkpoint before it is used, and other
    partitions'."""
    data = record(full(1)) + record(full(2, 1)) + frame(CHECKPOINT, payload) + record(full(3, 1))
    view = JournalView.parse(memoryview(data))
    assert {found.partition: checkpoint.end_offset for found, checkpoint in view.checkpoints.items()} == {0: 1, 1: 3}
    assert len(view.faults) == 1


@pytest.mark.parametrize("is_full", [True, False])
def test_of_deltas_behind_a_record_that_cannot_be_decoded_only_the_log_start_counts(is_full: bool) -> None:
    """Lose a record: what it said of producers and batches is missing from the deltas behind it, so recovery scans that
    again."""
    lost = encode(full(4) if is_full else delta(4))
    data = record(full(1)) + record(delta(2)) + frame(CHECKPOINT, b"X" + lost[1:])
    data += record(replace(delta(6), log_start=5)) + record(delta(7))
    (found,) = parse(data).values()
    assert (found.end_offset, found.position, found.log_start) == (2, 20, 5)
    assert [state.producer_id for state in found.producers] == [2]


async def read_files(*files: bytes) -> dict[PartitionKey, Checkpoint]:
    """Return what ``read_journals`` makes of files numbered from 1."""
    fs = MemoryFileSystem(MemoryStorage(page=2), "reader")
    for n, data in enumerate(files, 1):
        await put(fs, n, data)
    return await read_journals(fs, BROKER)


async def test_journals_with_a_record_that_cannot_be_decoded_are_read(caplog: pytest.LogCaptureFixture) -> None:
    bad = frame(CHECKPOINT, b"X" + encode(full(9))[1:])
    found = await read_files(snapshot(full(1), full(1, 1)) + bad, bad + record(full(4, 1)))
    assert {k.partition: c.end_offset for k, c in found.items()} == {0: 1, 1: 4}
    assert len(caplog.records) == 2
    assert "cannot be decoded" in caplog.text


async def test_no_journal_and_an_empty_one_give_no_checkpoint() -> None:
    assert await read_files() == {}
    assert await read_files(b"") == {}


async def test_the_latest_checkpoint_across_files_counts() -> None:
    found = await read_files(
        snapshot(full(1), full(1, 1)) + record(delta(9)), snapshot(full(9), full(1, 1)) + record(delta(4, 1))
    )
    assert {k.partition: c.end_offset for k, c in found.items()} == {0: 9, 1: 4}


async def test_an_older_file_with_a_later_checkpoint_counts() -> None:
    """Late acks: the older file went on after the newer one's snapshot was taken."""
    found = await read_files(snapshot(full(1)) + record(full(20)), snapshot(full(10)))
    assert found[key()].end_offset == 20


@pytest.mark.slow
async def test_a_newer_file_with_a_torn_snapshot_counts_as_far_as_its_records_are_whole() -> None:
    """Cut the newer file anywhere: its whole records count, and for all other partitions the file before it."""
    first, second = snapshot(full(1), full(1, 1), full(1, 2)), snapshot(full(5), full(6, 1), full(7, 2))
    bound = [len(frame(SNAPSHOT_BEGIN, b"")) + n * len(record(full(1))) for n in (1, 2, 3)]
    for cut in range(len(second) + 1):
        found = await read_files(first, second[:cut])
        ends = [found[key(partition)].end_offset for partition in range(3)]
        assert ends == [later if cut >= at else 1 for later, at in zip((5, 6, 7), bound, strict=True)], cut


async def test_a_newer_snapshot_without_a_partition_does_not_hide_it() -> None:
    """A broker that was paused, fenced and resumed begins its next file without what it no longer holds, maybe before
    the new owners have read of it: the checkpoint before is still true, and bounds their recovery."""
    found = await read_files(snapshot(full(10), full(20, 1)), snapshot(full(21, 1)), snapshot())
    assert {k.partition: c.end_offset for k, c in found.items()} == {0: 10, 1: 21}


async def test_only_the_brokers_own_files_are_read() -> None:
    fs = MemoryFileSystem(MemoryStorage(page=2), "reader")
    for other in ("3-0123456789abcdee", "3-0123456789abcdf0", "30-0123456789abcdef", "2-0123456789abcdef"):
        await put(fs, 1, snapshot(full(99)), other)
    for n in range(1, 6):
        await put(fs, n, snapshot(full(n)))
    assert (await read_journals(fs, BROKER))[key()].end_offset == 5


class RollingFileSystem(MemoryFileSystem):
    """A file system whose journal's owner rolls on twice between the first listing and the first read."""

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


def test_records_read_forwards_are_those_read_backwards() -> None:
    whole = [frame(CHECKPOINT, b"one"), frame(SNAPSHOT_END, b""), frame(CHECKPOINT, b"two")]
    junk = b"JRN1 is not a record, nor is JR"
    data = memoryview(b"".join([junk, whole[0], whole[1], junk, whole[2]]))
    records, used = read_forwards(data)
    assert used == len(data)
    assert [(kind, bytes(payload)) for kind, payload in records] == [
        (kind, bytes(payload)) for kind, payload in reversed(list(read_backwards(data)))
    ]


@pytest.mark.parametrize("beyond", [0, 1, 1000, 100 << 20])
def test_a_damaged_length_hides_no_later_record(beyond: int) -> None:
    """Damage a length to lead to the end of a later record, or past what is written: that record is not waited for."""
    data = bytearray(b"".join(frame(CHECKPOINT, payload) for payload in (b"one", b"two", b"three")))
    data[5:9] = (len(data) - len(frame(CHECKPOINT, b"")) + beyond).to_bytes(4, "big")  # the first one's length
    found, used = read_forwards(memoryview(data))
    assert (used, [bytes(payload) for _, payload in found]) == (len(data), [b"two", b"three"])


def test_the_beginning_of_a_record_is_left_for_later() -> None:
    first, second = frame(CHECKPOINT, b"one"), frame(CHECKPOINT, b"two" * 10)
    for cut in range(len(second)):
        data = first + second[:cut]
        records, used = read_forwards(memoryview(data))
        assert len(records) == 1
        rest, _ = read_forwards(memoryview(data[used:] + second[cut:]))
        assert [bytes(payload) for _, payload in rest] == [b"two" * 10]

"""The tools' reading of damaged files: which parts are right, which are damaged, and what the damage is."""

from __future__ import annotations

from bmq.core.records.batch import HEADER_BYTES, Record, build_batch
from bmq.storage.damage_reader import DamagedPart, FoundBatch, FoundRecord, walk_batches, walk_journal
from bmq.storage.filesystem import write_once
from bmq.storage.journal import HEAD, OVERHEAD, RECORD_BYTES_MAX, frame
from bmq.storage.memory import MemoryFileSystem, MemoryStorage
from tests.harness.journals import full, record

PATH = "/file"
RECORD = record(full(1))


def batch(base: int) -> bytes:
    return bytes(build_batch([Record(value=b"0123456789")], base_offset=base, base_timestamp=0, leader_epoch=1))


SIZE = len(batch(0))


async def records(data: bytes) -> list[tuple[int, int] | tuple[int, int, str, bool]]:
    """Return (position, size) of each record that is found, and of damage also its fault and whether it is the tail."""
    fs = MemoryFileSystem(MemoryStorage(), "reader")
    await write_once(fs, PATH, data)
    found = [each async for each in walk_journal(fs, PATH, len(data))]
    return [
        (each.position, each.size)
        if isinstance(each, FoundRecord)
        else (each.position, each.size, each.fault, each.is_tail)
        for each in found
    ]


async def batches(data: bytes) -> list[FoundBatch | DamagedPart]:
    fs = MemoryFileSystem(MemoryStorage(), "reader")
    await write_once(fs, PATH, data)
    return [each async for each in walk_batches(fs, PATH, 0, len(data), 0)]


async def test_each_fault_of_a_journal_is_found_with_its_place_and_right_records_behind_it() -> None:
    """Put bytes between records, a bad CRC and a torn end into a journal."""
    size, junk = len(RECORD), b"....junk..."
    bad = bytearray(RECORD)
    bad[20] ^= 1
    assert await records(RECORD + junk + RECORD + bytes(bad) + RECORD + RECORD[:-1]) == [
        (0, size),
        (size, len(junk), "no record begins here", False),
        (size + len(junk), size),
        (2 * size + len(junk), size, "the record's CRC does not match", False),
        (3 * size + len(junk), size),
        (4 * size + len(junk), size - 1, f"the file ends in a record: it has {size} bytes, {size - 1} are here", True),
    ]


async def test_a_journal_that_ends_in_a_records_head_has_a_damaged_tail() -> None:
    assert await records(b"JRN1") == [(0, 4, "the file ends in a record's head: 4 bytes", True)]


async def test_a_record_with_an_incredible_length_hides_no_record_behind_it() -> None:
    head = HEAD.pack(b"JRN1", 1, RECORD_BYTES_MAX + 1)
    fault = f"no record begins here: its length field says {RECORD_BYTES_MAX + 1} bytes"
    assert await records(head + RECORD) == [(0, len(head), fault, False), (len(head), len(RECORD))]


async def test_a_journal_without_records_is_empty_and_one_with_an_empty_record_is_not() -> None:
    assert await records(b"") == []
    assert await records(frame(7, b"")) == [(0, OVERHEAD)]


async def test_a_damaged_batch_ends_where_the_next_right_one_begins() -> None:
    bad = bytearray(batch(1))
    bad[HEADER_BYTES + 3] ^= 1
    first, damage, last = await batches(batch(0) + bytes(bad) + batch(2))
    assert isinstance(first, FoundBatch)
    assert isinstance(damage, DamagedPart)
    assert isinstance(last, FoundBatch)
    assert (first.position, first.end) == (0, SIZE)
    assert (damage.position, damage.size, damage.is_tail, damage.mended) == (SIZE, SIZE, False, None)
    assert damage.header is not None
    assert damage.header.base_offset == 1
    assert (last.position, last.batch.base_offset) == (2 * SIZE, 2)


async def test_a_batch_whose_length_field_is_damaged_is_given_as_it_was_written() -> None:
    bad = bytearray(batch(1))
    bad[11] ^= 0x10
    _, damage, last = await batches(batch(0) + bytes(bad) + batch(2))
    assert isinstance(damage, DamagedPart)
    assert damage.mended is not None
    assert bytes(damage.mended.data) == batch(1)
    assert (damage.position, damage.size, damage.is_tail) == (SIZE, SIZE, False)
    assert isinstance(last, FoundBatch)
    assert last.batch.base_offset == 2


async def test_a_torn_batch_is_a_damaged_tail_without_a_credible_header() -> None:
    *_, damage = await batches(batch(0) + batch(1)[:-1])
    assert isinstance(damage, DamagedPart)
    assert (damage.position, damage.size, damage.is_tail, damage.header) == (SIZE, SIZE - 1, True, None)

"""A closed segment's index file, and scanning a log (storage/segment.py): what is clean, torn, or broken."""

from __future__ import annotations

import asyncio
import struct
import uuid
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from bmq.core.aio.steps import finish_steps
from bmq.core.errors import FormatError
from bmq.core.model import CLEANING_MAX, PartitionKey, SegmentName
from bmq.core.records.batch import CRC_START, HEADER_BYTES, LENGTH_OVERHEAD, Batch, Record, build_batch, build_gap
from bmq.storage import batch_search
from bmq.storage.checkpoint import AbortedTransaction, Checkpoint, Cleaned, ProducerState, decode, encode
from bmq.storage.filesystem import write_once
from bmq.storage.memory import MemoryFileSystem, MemoryStorage
from bmq.storage.segment import (
    CLEANED_IDX_MAGIC,
    IDX_MAGIC,
    ScanResult,
    Tail,
    decode_idx,
    decode_idx_steps,
    encode_idx,
    scan,
)

PATH = "/topics/t/x/0/s.log"
BASE = 1000


def batch(base: int, count: int = 1, size: int = 10) -> bytes:
    return bytes(
        build_batch([Record(value=b"v" * size)] * count, base_offset=base, base_timestamp=base, leader_epoch=1)
    )


def log(count: int = 4, size: int = 10) -> list[bytes]:
    """Return dense batches of two records each from ``BASE``."""
    return [batch(BASE + 2 * n, 2, size) for n in range(count)]


def damaged(data: bytes, at: int = HEADER_BYTES + 3) -> bytes:
    return data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :]


class CountingFileSystem(MemoryFileSystem):
    """Notes every range that is read."""

    def __init__(self) -> None:
        super().__init__(MemoryStorage(), "reader")
        self.reads: list[tuple[int, int]] = []

    async def read(self, path: str, position: int, length: int) -> bytes:
        found = await super().read(path, position, length)
        self.reads.append((position, len(found)))
        return found


class Scanned:
    """The result of a scan, the batches heard, and the reads that it took."""

    def __init__(self, result: ScanResult, heard: list[tuple[int, int]], reads: list[tuple[int, int]]) -> None:
        self.result = result
        self.heard = heard
        self.reads = reads

    @property
    def end(self) -> tuple[int, int, Tail]:
        return self.result.position, self.result.next_offset, self.result.tail


async def scanned(
    data: bytes,
    position: int = 0,
    offset: int = BASE,
    *,
    length: int | None = None,
    offset_limit: int | None = None,
) -> Scanned:
    """Scan a file of these bytes from ``position``, where ``offset`` is due."""
    heard: list[tuple[int, int]] = []
    fs = CountingFileSystem()

    def hear(at: int, found: Batch) -> None:
        assert found.has_valid_crc
        heard.append((at, found.base_offset))

    await write_once(fs, PATH, data)
    end = len(data) if length is None else length
    result = await asyncio.wait_for(scan(fs, PATH, position, end, offset, hear, offset_limit=offset_limit), 10)
    return Scanned(result, heard, fs.reads)


def positions(parts: Sequence[bytes]) -> list[tuple[int, int]]:
    """Return position and base offset of each batch."""
    found, at = [], 0
    for part in parts:
        found.append((at, Batch(memoryview(part)).base_offset))
        at += len(part)
    return found


def checkpoint() -> Checkpoint:
    return Checkpoint(
        key=PartitionKey(uuid.UUID(int=5), 1),
        segment=SegmentName(BASE, 2, 0),
        position=4321,
        end_offset=1100,
        log_start=7,
        is_closed=True,
        index=array("q", [1050, 2000, 33]),
        producers=(ProducerState(1, 2, 3, 4, -1, ()),),
    )


def test_an_index_is_laid_out_as_drawn_and_decoded_as_encoded() -> None:
    data = encode_idx(checkpoint())
    assert decode_idx(data) == checkpoint()
    body = data[12:-4]
    assert data[:12] == b"BMQIDX1\n" + struct.pack(">I", len(body))
    assert data[-4:] == struct.pack(">I", crc32c(body))


CLEANED = Cleaned(
    clean_to=1200, horizon=1_700_000_000_000, bytes_before=99_000, bytes_after=4321, tombstones=3, markers=2
)


def cleaned_checkpoint() -> Checkpoint:
    return replace(
        checkpoint(),
        segment=SegmentName(BASE, 4, 7, 9),
        epochs=((2, BASE), (4, 1040)),
        aborted=(AbortedTransaction(8, 1010, 1020, 1000),),
        cleaned=CLEANED,
    )


def test_an_index_of_a_cleaned_segment_is_laid_out_as_drawn_and_decoded_as_encoded() -> None:
    data = encode_idx(cleaned_checkpoint())
    assert decode_idx(data) == cleaned_checkpoint()
    body = data[12:-4]
    assert data[:12] == b"BMQIDX2\n" + struct.pack(">I", len(body))
    assert data[-4:] == struct.pack(">I", crc32c(body))
    assert body[:52] == struct.pack(">Iqqqqqq", 9, 1200, 1_700_000_000_000, 99_000, 4321, 3, 2)
    assert decode(memoryview(body)[52:]).segment == SegmentName(BASE, 4, 7), "the rest is a checkpoint as in format 1"


def test_the_facts_of_a_cleaned_segment_that_are_not_known_make_it_dirty() -> None:
    found = decode_idx(encode_idx(replace(cleaned_checkpoint(), cleaned=None)))
    assert found.cleaned == Cleaned()


def test_the_time_of_records_without_timestamps_is_behind_all_that_earlier_versions_read() -> None:
    dated = replace(cleaned_checkpoint(), cleaned=replace(CLEANED, modified_ms=1_600_000_000_123))
    data, plain = encode_idx(dated), encode_idx(cleaned_checkpoint())
    trailer = struct.pack(">q", 1_600_000_000_123)
    assert data == plain + trailer + struct.pack(">I", crc32c(trailer))
    assert decode_idx(data) == dated
    for at in range(len(plain) + 1, len(data)):
        with pytest.raises(FormatError, match="ends early"):
            decode_idx(data[:at])
    for bit in range(8 * 12):
        damaged = bytearray(data)
        damaged[len(plain) + bit // 8] ^= 1 << bit % 8
        with pytest.raises(FormatError, match="trailer"):
            decode_idx(bytes(damaged))


def test_an_index_of_a_segment_that_was_never_cleaned_stays_as_it_was_byte_for_byte() -> None:
    assert encode_idx(checkpoint()).hex() == (
        "424d51494458310a0000009d4601000000000000000000000000000000050000000100000000000003e8000000020000"
        "000000000000000010e1000000000000044c0000000000000007ffffffffffffffffffffffffffffffffffffffffffff"
        "ffff00000001000000000000000100000000000000000000041a00000000000007d00000000000000021000000000000"
        "00010002000000030000000000000004ffffffffffffffff0028907ce2"
    )


@pytest.mark.parametrize("made", [checkpoint, cleaned_checkpoint])
def test_idx_of_any_damage_is_a_format_error(made: Callable[[], Checkpoint]) -> None:
    """Cut at any byte, with any bit flipped, and with the magic of the other format."""
    data = encode_idx(made())
    for cut in range(len(data)):
        with pytest.raises(FormatError):
            decode_idx(data[:cut])
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(FormatError):
            decode_idx(bytes(flipped))
    other = CLEANED_IDX_MAGIC if made is checkpoint else IDX_MAGIC
    with pytest.raises(FormatError):
        decode_idx(other + data[8:])


@pytest.mark.parametrize("facts", [(0, 1, 1, 1, 1, 1, 1), (1 << 31, 1, 1, 1, 1, 1, 1), (1, 1, -2, 1, 1, 1, 1)])
def test_idx_of_a_cleaning_without_sense_is_a_format_error(facts: tuple[int, ...]) -> None:
    body = struct.pack(">Iqqqqqq", *facts) + encode(checkpoint())
    with pytest.raises(FormatError, match="index of cleaning"):
        decode_idx(CLEANED_IDX_MAGIC + struct.pack(">I", len(body)) + body + struct.pack(">I", crc32c(body)))


@pytest.mark.slow
@given(
    st.integers(1, CLEANING_MAX),
    st.builds(Cleaned, *[st.integers(-1, (1 << 63) - 1)] * 6),
    st.booleans(),
)
def test_idx_of_a_cleaned_segment_both_ways(cleaning: int, facts: Cleaned, with_producers: bool) -> None:
    made = replace(checkpoint(), segment=SegmentName(BASE, 4, 7, cleaning), cleaned=facts)
    wanted = made if with_producers else replace(made, producers=(), knows_producers=False)
    assert finish_steps(decode_idx_steps(encode_idx(made), with_producers=with_producers)) == wanted


@given(st.binary(max_size=200), st.booleans())
def test_idx_of_random_bytes_in_format_2_is_a_format_error(body: bytes, has_facts: bool) -> None:
    """Even under a right CRC."""
    body = struct.pack(">Iqqqqqq", 1, 1, 1, 1, 1, 1, 1) + body if has_facts else body
    with pytest.raises(FormatError):
        decode_idx(CLEANED_IDX_MAGIC + struct.pack(">I", len(body)) + body + struct.pack(">I", crc32c(body)))


@pytest.mark.slow
@given(st.binary(max_size=100))
def test_idx_of_a_wrong_body_is_a_format_error(body: bytes) -> None:
    """Even under a right CRC."""
    with pytest.raises(FormatError):
        decode_idx(IDX_MAGIC + struct.pack(">I", len(body)) + body + struct.pack(">I", crc32c(body)))


async def test_an_empty_log_is_clean() -> None:
    found = await scanned(b"")
    assert found.end == (0, BASE, Tail.CLEAN)
    assert found.reads == []


async def test_whole_batches_are_clean() -> None:
    """Each is heard once, in order, with its position; the bytes are read once."""
    parts = log()
    found = await scanned(b"".join(parts))
    assert found.end == (sum(map(len, parts)), BASE + 8, Tail.CLEAN)
    assert found.heard == positions(parts)
    assert sum(size for _, size in found.reads) == sum(map(len, parts))


@pytest.mark.slow
async def test_a_log_torn_in_its_last_batch_is_torn_at_every_byte() -> None:
    """Good batches reach to where the last one begins, whatever is left of it; nothing left is clean."""
    *parts, last = log(3)
    good = b"".join(parts)
    for keep in range(len(last)):
        found = await scanned(good + last[:keep])
        assert found.end == (len(good), BASE + 4, Tail.TORN if keep else Tail.CLEAN), keep
        assert found.heard == positions(parts)


async def test_a_log_of_one_torn_batch_is_torn() -> None:
    assert (await scanned(log(1)[0][:-1])).end == (0, BASE, Tail.TORN)


@pytest.mark.parametrize("at", [16, 17, 21, 30, HEADER_BYTES, -1])
async def test_a_bad_last_batch_is_torn(at: int) -> None:
    """Magic, CRC, header or records damaged: with nothing good behind it, it was never finished."""
    *parts, last = log(3)
    good = b"".join(parts)
    found = await scanned(good + damaged(last, at % len(last)))
    assert found.end == (len(good), BASE + 4, Tail.TORN)
    assert found.result.fault


@pytest.mark.parametrize("at", [8, 11, 16, 17, 21, 30, HEADER_BYTES, -1])
@pytest.mark.parametrize("bad", [0, 1, 2])
async def test_a_bad_batch_with_a_good_one_behind_is_broken(at: int, bad: int) -> None:
    """Wherever the damage is and however many good ones follow; the fault says where the first of them stands."""
    parts = log(4)
    good = sum(map(len, parts[:bad]))
    follows = good + len(parts[bad])
    parts[bad] = damaged(parts[bad], at % len(parts[bad]))
    found = await scanned(b"".join(parts))
    assert found.end == (good, BASE + 2 * bad, Tail.BROKEN)
    assert found.result.fault.endswith(f"a good batch follows at {follows}")
    assert found.heard == positions(parts)[:bad]


async def test_zeros_behind_the_last_batch_are_torn() -> None:
    """Leave zeros behind the last batch, as a file system may after a loss of power."""
    parts = log(2)
    data = b"".join(parts)
    assert (await scanned(data + bytes(500))).end == (len(data), BASE + 4, Tail.TORN)


@pytest.mark.parametrize("base", [BASE + 5, BASE + 3, BASE + 2, BASE, 0])
async def test_a_right_batch_with_a_wrong_base_offset_is_broken(base: int) -> None:
    """A batch is missing, or stands twice: also when it is the last, since its bytes are whole."""
    parts = log(2)
    data = b"".join(parts)
    found = await scanned(data + batch(base))
    assert found.end == (len(data), BASE + 4, Tail.BROKEN)
    assert found.result.fault == f"a batch at offset {base}, but {BASE + 4} is due"


async def test_the_scan_ends_where_the_next_segment_begins() -> None:
    """Rule 5: leftovers of a failed write at or past the limit are neither heard nor judged, torn or good."""
    parts = log(4)
    good = sum(map(len, parts[:2]))
    for rest in (b"", parts[2], parts[2] + parts[3], parts[2][:20], damaged(parts[2]) + parts[3]):
        found = await scanned(b"".join(parts[:2]) + rest, offset_limit=BASE + 4)
        assert found.end == (good, BASE + 4, Tail.CLEAN)
        assert found.heard == positions(parts[:2])


async def test_a_log_that_ends_before_the_limit_says_so() -> None:
    parts = log(2)
    assert (await scanned(b"".join(parts), offset_limit=BASE + 5)).end == (sum(map(len, parts)), BASE + 4, Tail.CLEAN)


async def test_a_limit_at_the_beginning_reads_nothing() -> None:
    found = await scanned(b"".join(log()), offset_limit=BASE)
    assert found.end == (0, BASE, Tail.CLEAN)
    assert found.reads == []


async def test_starting_at_a_checkpoint_reads_only_what_is_behind_it() -> None:
    """Damage before the checkpoint is not even looked at."""
    parts = log(50)
    start = sum(map(len, parts[:48]))
    data = bytes(start) + b"".join(parts[48:])
    found = await scanned(data, start, BASE + 96)
    assert found.end == (len(data), BASE + 100, Tail.CLEAN)
    assert found.heard == positions(parts)[48:]
    assert found.reads == [(start, len(data) - start)]


async def test_bytes_past_the_length_are_not_read() -> None:
    """The length is what the fence made final, or what a checkpoint allows: the file may show more."""
    parts = log(4)
    good = sum(map(len, parts[:2]))
    found = await scanned(b"".join(parts), length=good)
    assert found.end == (good, BASE + 4, Tail.CLEAN)
    assert max(at + size for at, size in found.reads) == good


@pytest.mark.parametrize("missing", [1, 30, 100, 1000])
async def test_fewer_bytes_than_promised_is_a_format_error(missing: int) -> None:
    """Never an endless loop: wherever in a batch the readable bytes stop, also in front of one, or of all."""
    data = b"".join(log(3))
    missing = min(missing, len(data))
    with pytest.raises(FormatError, match=f"{len(data)} bytes are promised, {len(data) - missing} can be read"):
        await scanned(data[: len(data) - missing], length=len(data))


def with_length(data: bytes, size: int) -> bytes:
    """Return the batch with a length field that claims ``size`` bytes."""
    return data[:8] + struct.pack(">i", size - LENGTH_OVERHEAD) + data[12:]


@pytest.mark.parametrize("bad", [0, 1, 3])
@pytest.mark.parametrize("wrong", [0, 60, 62, 105, 400, 1 << 20, 1 << 30, (1 << 31) - 1])
async def test_a_wrong_length_field_is_damage(bad: int, wrong: int) -> None:
    """Also when it reaches past all good batches, or past the file, and when no batch follows."""
    parts = log(4)
    good, size = sum(map(len, parts[:bad])), len(parts[bad])
    parts[bad] = with_length(parts[bad], wrong)
    found = await scanned(b"".join(parts))
    assert found.end == (good, BASE + 2 * bad, Tail.BROKEN)
    assert "good batch follows" in found.result.fault or f"the batch is right with {size} bytes" in found.result.fault


async def test_a_wrong_length_field_that_ends_within_the_last_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The good batches lie in the length that it claims."""
    for block in (64, 200, 1 << 20):
        monkeypatch.setattr(batch_search, "READ_BYTES", block)
        parts = log(4)
        size = len(parts[0])
        parts[0] = with_length(parts[0], sum(map(len, parts)) - 10)
        found = await scanned(b"".join(parts))
        assert found.end == (0, BASE, Tail.BROKEN)
        assert found.result.fault == f"the batch's CRC does not match; the batch is right with {size} bytes"


@pytest.mark.parametrize("wrong", [10, 4000])
async def test_a_wrong_length_field_of_a_gap_is_damage(wrong: int) -> None:
    (gap,) = build_gap(BASE, BASE + 50, 1)
    assert (await scanned(with_length(bytes(gap), wrong))).end == (0, BASE, Tail.BROKEN)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 60])
async def test_a_torn_batch_that_holds_the_next_ones_is_torn_at_every_byte(size: int) -> None:
    """A mirrored topic holds batches as values: they are not a sign of damage."""
    inner = b"".join(batch(BASE + 1 + n, 1, size) for n in range(3))
    last = bytes(build_batch([Record(value=inner)], base_offset=BASE))
    for keep in range(1, len(last)):
        assert (await scanned(last[:keep])).end == (0, BASE, Tail.TORN), keep


@pytest.mark.parametrize("times", [1, 2, 7])
async def test_a_forged_crc_does_not_make_a_torn_batch_a_whole_one(times: int) -> None:
    """A producer that means harm: what stands in front of each batch in its value has the CRC of the whole."""
    inner, goal = batch(BASE + 1), 0x12345678
    data = build_batch([Record(value=(bytes(4) + inner) * times + bytes(4))], base_offset=BASE)
    struct.pack_into(">I", data, 17, goal)
    ends = [at for at in range(len(data)) if data[at:].startswith(inner)]
    for end in ends:
        forge(data, end - 4, end, goal)
    forge(data, len(data) - 5, len(data), goal)  # the last byte says that the record has no headers
    assert Batch(memoryview(data)).has_valid_crc
    assert len(ends) == times
    assert all(crc32c(data[CRC_START:end]) == goal for end in ends)
    for keep in [*(end + len(inner) + more for end in ends for more in (-1, 0, 1, 4)), len(data) - 1]:
        assert (await scanned(bytes(data[:keep]))).end == (0, BASE, Tail.TORN), keep


def forge(data: bytearray, at: int, end: int, goal: int) -> None:
    """Set the four bytes at ``at`` so that the bytes from CRC_START to ``end`` have this CRC-32C."""

    def before_byte(register: int) -> int:
        for _ in range(8):
            register = ((register ^ 0x82F63B78) << 1 | 1) & 0xFFFFFFFF if register >> 31 else register << 1
        return register

    register = goal ^ 0xFFFFFFFF
    for byte in reversed(data[at + 4 : end]):
        register = before_byte(register) ^ byte
    for _ in range(4):
        register = before_byte(register)
    struct.pack_into("<I", data, at, register ^ crc32c(data[CRC_START:at]) ^ 0xFFFFFFFF)


@pytest.mark.parametrize("block", [HEADER_BYTES, 64, 100, 101, 150, 257, 1000])
async def test_batches_may_be_larger_than_a_read_block(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    """Block edges may fall anywhere: before, in and behind headers, and batches may be many blocks long."""
    monkeypatch.setattr(batch_search, "READ_BYTES", block)
    parts, offset = [], BASE
    for n, size in enumerate((1, 500, 30, 2000, 1, 1, 90, 700)):
        parts.append(batch(offset, n + 1, size))
        offset += n + 1
    found = await scanned(b"".join(parts))
    assert found.end == (sum(map(len, parts)), offset, Tail.CLEAN)
    assert found.heard == positions(parts)
    largest = max(map(len, parts))
    assert max(size for _, size in found.reads) <= max(block, largest)


@pytest.mark.parametrize("block", [64, 101, 200, 1000])
async def test_a_damaged_length_that_fits_the_file_hides_no_good_batch(
    monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    """A length field that is damaged, but fits the file, does not hide the good batches inside it."""
    monkeypatch.setattr(batch_search, "READ_BYTES", block)
    parts = log(6, 50)
    bad = bytearray(parts[1])
    struct.pack_into(">i", bad, 8, sum(map(len, parts[1:4])) - 12)
    found = await scanned(parts[0] + bytes(bad) + b"".join(parts[2:]))
    assert found.end == (len(parts[0]), BASE + 2, Tail.BROKEN)


@pytest.mark.parametrize("block", range(64, 700, 53))
@pytest.mark.parametrize("size", [10, 300, 1500])
async def test_a_good_batch_behind_damage_is_found_across_blocks(
    monkeypatch: pytest.MonkeyPatch, block: int, size: int
) -> None:
    """One good batch, alone behind the damage, longer than a block or across its edge: never silently cut (rule 4)."""
    monkeypatch.setattr(batch_search, "READ_BYTES", block)
    first, second = batch(BASE, 1, 77), batch(BASE + 1, 1, size)
    found = await scanned(damaged(first) + second)
    assert found.end == (0, BASE, Tail.BROKEN)
    assert found.result.fault == f"the batch's CRC does not match; a good batch follows at {len(first)}"


@pytest.mark.parametrize("block", [64, 130, 500])
async def test_a_torn_tail_longer_than_a_block_is_torn(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(batch_search, "READ_BYTES", block)
    good, last = batch(BASE), batch(BASE + 1, 1, 3000)
    found = await scanned(good + last[:-1])
    assert found.end == (len(good), BASE + 1, Tail.TORN)

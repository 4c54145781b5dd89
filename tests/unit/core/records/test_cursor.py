"""The walk over batches (core/records/cursor.py): the same batches however the bytes are cut; damage is named."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmq.core.errors import ErrorCode, RequestError
from bmq.core.records.batch import HEADER_BYTES, LENGTH_OVERHEAD, Record, build_batch, build_gap
from bmq.core.records.cursor import (
    BATCH_BYTES_MAX,
    BatchCheck,
    BatchCursor,
    CursorStep,
    OffsetOrder,
    find_batch,
    read_batches,
)

I64 = st.integers(-(1 << 63), (1 << 63) - 1)
CHECKS = pytest.mark.parametrize("check", list(BatchCheck))


def batch(base: int, count: int = 1, size: int = 10) -> bytes:
    return bytes(
        build_batch([Record(value=b"v" * size)] * count, base_offset=base, base_timestamp=base, leader_epoch=1)
    )


def damaged(data: bytes, at: int = HEADER_BYTES + 3) -> bytes:
    return data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :]


PARTS = [batch(5 + 2 * n, 2, n % 7 * 30) for n in range(9)]
DATA = memoryview(b"".join(PARTS))
PLACES = [(5 + 2 * n, sum(map(len, PARTS[:n])), len(part)) for n, part in enumerate(PARTS)]
"""Base offset, position and size of each batch."""
END = 5 + 2 * len(PARTS)
"""The offset after them."""


def walk(
    cursor: BatchCursor, data: memoryview, windows: Iterator[int] | None = None
) -> tuple[list[tuple[int, int, int]], CursorStep]:
    """Return the batches passed, and the step that ended the walk. Each window is as large as it must be, and a bit
    more."""
    found: list[tuple[int, int, int]] = []
    start = end = 0
    while True:
        step = cursor.step(data[start:end], cursor.position - start)
        if step is CursorStep.MORE:
            assert cursor.wanted > end - cursor.position, "no step asks for what it has"
            if cursor.position + cursor.wanted > len(data):
                return found, step
            start, end = cursor.position, min(cursor.position + cursor.wanted + next(windows or iter([0])), len(data))
        elif step is CursorStep.BATCH:
            assert cursor.position == cursor.start + cursor.size
            found.append((cursor.base_offset, cursor.start, cursor.size))
        else:
            return found, step


# ------------------------------------------------------------------------------------------------- cuts


@pytest.mark.slow
@CHECKS
@given(extra=st.lists(st.integers(0, 700), min_size=40, max_size=40))
def test_any_windows_give_the_same_batches(check: BatchCheck, extra: list[int]) -> None:
    cursor = BatchCursor(0, 5, check=check, length=len(DATA))
    assert walk(cursor, DATA, iter(extra)) == (PLACES, CursorStep.END)
    assert (cursor.position, cursor.next_offset) == (len(DATA), END)


@CHECKS
@pytest.mark.parametrize("offsets", list(OffsetOrder))
def test_one_window_gives_them_all(check: BatchCheck, offsets: OffsetOrder) -> None:
    assert walk(BatchCursor(0, 5, check=check, offsets=offsets, length=len(DATA)), DATA) == (PLACES, CursorStep.END)


@pytest.mark.slow
@CHECKS
def test_bytes_cut_anywhere_end_in_a_torn_batch(check: BatchCheck) -> None:
    """The walk is over at a batch's end; anywhere else the last batch is damage: the error has its present bytes."""
    ends = {0} | {at + size for _, at, size in PLACES}
    for keep in range(len(DATA)):
        cursor = BatchCursor(0, 5, check=check, length=keep)
        found, step = walk(cursor, DATA[:keep])
        whole = [place for place in PLACES if place[1] + place[2] <= keep]
        assert found == whole, keep
        if keep in ends:
            assert step is CursorStep.END, keep
            continue
        left = keep - cursor.position
        assert step is CursorStep.DAMAGED, keep
        size = PLACES[len(whole)][2]
        torn = f"the bytes end in a batch: it has {size} bytes, {left} are here"
        assert cursor.fault == (torn if left >= HEADER_BYTES else f"the bytes end in a batch's header: {left} bytes")
        assert not cursor.is_misplaced


@CHECKS
def test_without_a_length_more_bytes_are_wanted(check: BatchCheck) -> None:
    """The header first, then the batch: never less than is needed, never more."""
    for keep in range(len(PARTS[3])):
        cursor = BatchCursor(100, 11, check=check)
        step = cursor.step(PARTS[3][:keep])
        if keep >= HEADER_BYTES and check is BatchCheck.HEADER:
            assert (step, cursor.position) == (CursorStep.BATCH, 100 + len(PARTS[3]))
        else:
            assert (step, cursor.position, cursor.next_offset) == (CursorStep.MORE, 100, 11)
            assert cursor.wanted == (HEADER_BYTES if keep < HEADER_BYTES else len(PARTS[3]))


def test_a_header_is_enough_to_go_on_behind_the_batch() -> None:
    cursor = BatchCursor(0, 5, check=BatchCheck.HEADER)
    for base, at, size in PLACES:
        assert cursor.step(DATA[at : at + HEADER_BYTES]) is CursorStep.BATCH
        assert (cursor.base_offset, cursor.start, cursor.size) == (base, at, size)
    assert cursor.position == len(DATA)


@pytest.mark.slow
@given(st.binary(max_size=200), st.integers(0, 200), I64, st.sampled_from(BatchCheck), st.sampled_from(OffsetOrder))
def test_any_bytes_have_a_verdict_that_more_bytes_do_not_change(
    data: bytes, keep: int, due: int, check: BatchCheck, offsets: OffsetOrder
) -> None:
    whole = BatchCursor(0, due, check=check, offsets=offsets)
    part = BatchCursor(0, due, check=check, offsets=offsets)
    steps = whole.step(data), part.step(data[:keep])
    if steps[1] is not CursorStep.MORE:
        assert steps[0] is steps[1]
        assert (whole.fault, whole.position) == (part.fault, part.position)


# ------------------------------------------------------------------------------------------------- damage


@pytest.mark.parametrize(
    ("at", "form", "value", "fault"),
    [
        (8, ">i", HEADER_BYTES - LENGTH_OVERHEAD - 1, "no batch begins here: its length field says 60 bytes"),
        (8, ">i", -1, "no batch begins here: its length field says 11 bytes"),
        (8, ">i", 1 << 20, f"the bytes end in a batch: it has 1048588 bytes, {len(PARTS[0])} are here"),
        (8, ">i", (1 << 30) + 1, f"no batch begins here: its length field says {BATCH_BYTES_MAX + 1} bytes"),
        (16, ">b", 1, "no batch begins here: magic 1, not 2"),
        (16, ">b", 0, "no batch begins here: magic 0, not 2"),
        (17, ">I", 0, "the batch's CRC does not match"),
        (35, ">q", 1, "the batch's CRC does not match"),
        (0, ">q", 4, "a batch at offset 4, but 5 is due"),
        (0, ">q", 6, "a batch at offset 6, but 5 is due"),
    ],
)
def test_the_fault_is_named(at: int, form: str, value: int, fault: str) -> None:
    data = bytearray(PARTS[0])
    struct.pack_into(form, data, at, value)
    cursor = BatchCursor(0, 5, check=BatchCheck.CRC, length=len(data))
    assert (cursor.step(data), cursor.fault) == (CursorStep.DAMAGED, fault)
    assert (cursor.position, cursor.next_offset) == (0, 5)
    assert cursor.is_misplaced == (at == 0)


@pytest.mark.parametrize("at", range(len(PARTS[0])))
def test_the_crc_shows_every_flipped_byte_but_those_of_the_epoch(at: int) -> None:
    """The base offset and the length, which it does not cover, show by the offset due and by the CRC's place."""
    data = damaged(PARTS[0], at)
    cursor = BatchCursor(0, 5, check=BatchCheck.CRC, length=len(data))
    assert cursor.step(data) is (CursorStep.BATCH if 12 <= at < 16 else CursorStep.DAMAGED)
    assert cursor.is_misplaced == (at < 8)


@pytest.mark.parametrize("check", [BatchCheck.HEADER, BatchCheck.WHOLE])
@pytest.mark.parametrize("at", range(len(PARTS[0])))
def test_a_walk_by_headers_sees_what_it_goes_by(check: BatchCheck, at: int) -> None:
    """Base offset and magic.  A wrong length leads it to another place, where no batch is due."""
    data = memoryview(damaged(PARTS[0], at) + PARTS[1])
    found, step = walk(BatchCursor(0, 5, check=check, length=len(data)), data)
    if at < 12 or at == 16:
        assert step is CursorStep.DAMAGED
        assert len(found) <= (8 <= at < 12)
    elif not 23 <= at < 27:
        assert (found, step) == (PLACES[:2], CursorStep.END)
    else:
        assert (found, step) == (PLACES[:1], CursorStep.DAMAGED), "the next batch is not at the offset due"


@CHECKS
def test_zeros_behind_the_batches_are_damage(check: BatchCheck) -> None:
    """A file's end that a crash left filled with zeros."""
    data = memoryview(bytes(DATA) + bytes(1000))
    cursor = BatchCursor(0, 5, check=check, length=len(data))
    assert walk(cursor, data) == (PLACES, CursorStep.DAMAGED)
    assert (cursor.position, cursor.fault) == (len(DATA), "no batch begins here: magic 0, not 2")


def test_the_walk_goes_on_where_it_is_told_to() -> None:
    data = memoryview(PARTS[0] + bytes(100) + b"".join(PARTS[2:]))
    cursor = BatchCursor(0, 5, check=BatchCheck.CRC, length=len(data))
    assert walk(cursor, data) == (PLACES[:1], CursorStep.DAMAGED)
    cursor.seek(len(PARTS[0]) + 100, 9)
    shift = 100 - len(PARTS[1])
    assert walk(cursor, data) == ([(base, at + shift, size) for base, at, size in PLACES[2:]], CursorStep.END)


# ------------------------------------------------------------------------------------------------- offsets


@pytest.mark.parametrize(
    ("offsets", "due", "step"),
    [
        (OffsetOrder.DENSE, 4, CursorStep.DAMAGED),
        (OffsetOrder.DENSE, 5, CursorStep.BATCH),
        (OffsetOrder.DENSE, 6, CursorStep.DAMAGED),
        (OffsetOrder.ANY, 4, CursorStep.BATCH),
        (OffsetOrder.ANY, 6, CursorStep.BATCH),
    ],
)
def test_base_offsets(offsets: OffsetOrder, due: int, step: CursorStep) -> None:
    cursor = BatchCursor(0, due, check=BatchCheck.CRC, offsets=offsets)
    assert cursor.step(DATA) is step
    assert cursor.is_misplaced == (step is CursorStep.DAMAGED)
    assert cursor.next_offset == (7 if step is CursorStep.BATCH else due)


def test_a_batch_of_less_than_no_offsets_is_damage() -> None:
    empty = build_batch([], base_offset=5)  # its last offset is 4
    cursor = BatchCursor(0, 5, check=BatchCheck.CRC)
    assert (cursor.step(empty), cursor.fault) == (CursorStep.DAMAGED, "the batch's last offset delta is -1")
    assert BatchCursor(0, 5, check=BatchCheck.CRC, offsets=OffsetOrder.ANY).step(empty) is CursorStep.BATCH


def test_a_gap_is_a_batch_of_its_offsets() -> None:
    (gap,) = build_gap(5, 40, 1)
    cursor = BatchCursor(0, 5, check=BatchCheck.CRC)
    assert cursor.step(gap) is CursorStep.BATCH
    assert cursor.next_offset == 40


@CHECKS
@pytest.mark.parametrize("stop", range(4, END + 2))
def test_the_walk_ends_before_a_batch_past_its_stop(check: BatchCheck, stop: int) -> None:
    found, step = walk(BatchCursor(0, 5, check=check, stop=stop, length=len(DATA)), DATA)
    assert step is CursorStep.END
    assert found == [place for place in PLACES if place[0] < stop]


def test_a_batch_of_any_offset_may_lie_past_the_stop() -> None:
    """The batch past the stop is not passed, and is not asked for."""
    data = PARTS[0] + batch(50, 1, 5000)
    cursor = BatchCursor(0, 5, check=BatchCheck.WHOLE, offsets=OffsetOrder.ANY, stop=20)
    assert cursor.step(data) is CursorStep.BATCH
    assert cursor.step(data[: len(PARTS[0]) + HEADER_BYTES], len(PARTS[0])) is CursorStep.END
    assert cursor.step(b"") is CursorStep.END, "it stays there"


@pytest.mark.parametrize("limit", range(6, 9))
def test_no_batch_may_reach_past_the_limit(limit: int) -> None:
    cursor = BatchCursor(0, 5, check=BatchCheck.WHOLE, limit=limit)
    step = cursor.step(PARTS[0])
    assert step is (CursorStep.BATCH if limit >= 7 else CursorStep.DAMAGED)
    if limit < 7:
        assert cursor.fault == "a batch of offsets 5 to 6, but 6 is due after these bytes"
        assert not cursor.is_misplaced


# ------------------------------------------------------------------------------------------------- in memory


def test_batches_that_fill_the_bytes_are_read() -> None:
    assert [(each.base_offset, bytes(each.data)) for each in read_batches(DATA)] == [
        (place[0], part) for place, part in zip(PLACES, PARTS, strict=True)
    ]
    assert list(read_batches(memoryview(b""))) == []


def test_reading_batches_does_not_copy() -> None:
    """A writer numbers the batch in the buffer that it was found in."""
    data = bytearray(DATA)
    for each in read_batches(memoryview(data)):
        each.assign(77, 0)
    assert {each.base_offset for each in read_batches(memoryview(data))} == {77}


@pytest.mark.parametrize("keep", range(1, len(PARTS[0])))
def test_batches_that_do_not_fill_the_bytes_are_corrupt(keep: int) -> None:
    """The batch is cut at every byte, alone and behind a whole batch."""
    for whole in ([], PARTS[1:2]):
        found = read_batches(memoryview(b"".join(whole) + PARTS[0][:keep]))
        assert [next(found).base_offset for _ in whole] == [7] * len(whole)
        with pytest.raises(RequestError, match="the bytes end in a batch") as error:
            next(found)
        assert error.value.code is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("length", [-(1 << 31), -13, -12, -1, 0, HEADER_BYTES - LENGTH_OVERHEAD - 1, (1 << 31) - 1])
def test_a_length_that_does_not_fit_is_corrupt(length: int) -> None:
    data = bytearray(PARTS[0])
    struct.pack_into(">i", data, 8, length)
    with pytest.raises(RequestError) as error:
        list(read_batches(memoryview(data)))
    assert error.value.code is ErrorCode.CORRUPT_MESSAGE


# ------------------------------------------------------------------------------------------------- finding one


@pytest.mark.slow
@given(st.binary(max_size=50), st.integers(0, 100), st.integers(0, 20))
def test_find_batch_behind_garbage(garbage: bytes, base: int, size: int) -> None:
    """The first whole one; what stands before it does not matter."""
    good = batch(base, 1, size)
    data = garbage + good + batch(base + 1)
    assert find_batch(memoryview(data), 0) == len(garbage)
    assert find_batch(memoryview(data), base) == len(garbage)


def test_find_batch_wants_a_later_offset() -> None:
    """Old bytes (a reused block, a record that holds batches) are not a sign of what follows."""
    data = batch(10) + batch(11) + batch(12)
    assert find_batch(memoryview(data), 11) == len(batch(10))
    assert find_batch(memoryview(data), 13) is None
    assert find_batch(memoryview(batch(1 << 41)), 0) is None


def test_find_batch_wants_all_of_it() -> None:
    whole = batch(5)
    for keep in range(len(whole)):
        assert find_batch(memoryview(whole)[:keep], 0) is None
    for at in range(8, len(whole)):
        if at not in range(12, 16):  # the leader epoch is outside the CRC
            assert find_batch(memoryview(damaged(whole, at)), 0) is None, at


@given(st.binary(max_size=300))
def test_find_batch_never_raises(data: bytes) -> None:
    assert find_batch(memoryview(data), 0) is None


@pytest.mark.parametrize("count", [-1, 4, 1 << 30])
def test_find_batch_wants_no_more_records_than_offsets(count: int) -> None:
    """A cheap sign of bytes that only look like a batch, before their CRC is computed."""
    data = bytearray(batch(5, 3))
    struct.pack_into(">i", data, 57, count)
    batches = build_batch([Record()] * 3, base_offset=5)
    assert find_batch(memoryview(bytes(data)), 5) is None
    assert find_batch(memoryview(batches), 5) == 0

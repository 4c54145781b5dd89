"""Checkpoints (storage/checkpoint.py): the format both ways, damage, and how a full one and later deltas become one."""

from __future__ import annotations

import itertools
import struct
import time
import uuid
from array import array
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmq.core.aio.steps import finish_steps
from bmq.core.errors import FormatError
from bmq.core.model import PartitionKey, SegmentName
from bmq.storage.checkpoint import (
    AbortedTransaction,
    Checkpoint,
    ProducerBatch,
    ProducerState,
    big_endian,
    decode,
    decode_key,
    decode_steps,
    encode,
    encoded_bytes,
    from_big_endian,
    merge,
)
from tests.harness.loop_stops import is_short, without_collector

pytestmark = pytest.mark.slow

KEY = PartitionKey(uuid.UUID(int=0x0123456789ABCDEF0123456789ABCDEF), 7)
SEGMENT = SegmentName(100, 3, 2)

I16 = st.integers(-(1 << 15), (1 << 15) - 1)
I32 = st.integers(-(1 << 31), (1 << 31) - 1)
U32 = st.integers(0, (1 << 32) - 1)
I64 = st.integers(-(1 << 63), (1 << 63) - 1)
BATCHES = st.lists(st.builds(ProducerBatch, I32, I64, I32, I64), max_size=5).map(tuple)
PRODUCERS = st.lists(st.builds(ProducerState, I64, I16, I32, I64, I64, BATCHES), max_size=4).map(tuple)
CHECKPOINTS = st.builds(
    Checkpoint,
    key=st.builds(PartitionKey, st.uuids(), U32),
    segment=st.builds(SegmentName, I64, U32, U32, st.just(0)),
    position=I64,
    end_offset=I64,
    log_start=I64,
    is_full=st.booleans(),
    is_closed=st.booleans(),
    max_timestamp=I64,
    max_timestamp_offset=I64,
    first_open_txn=I64,
    index=st.lists(st.tuples(I64, I64, I64), max_size=4).map(lambda e: array("q", itertools.chain.from_iterable(e))),
    epochs=st.lists(st.tuples(I32, I64), max_size=3).map(tuple),
    producers=PRODUCERS,
    aborted=st.lists(st.builds(AbortedTransaction, I64, I64, I64, I64), max_size=3).map(tuple),
)


@given(CHECKPOINTS)
def test_the_length_is_known_before(checkpoint: Checkpoint) -> None:
    assert encoded_bytes(checkpoint) == len(encode(checkpoint))


@given(CHECKPOINTS)
def test_a_reader_may_leave_the_producers_out(checkpoint: Checkpoint) -> None:
    data = memoryview(encode(checkpoint))
    assert finish_steps(decode_steps(data, with_producers=False)) == replace(
        checkpoint, producers=(), knows_producers=False
    )
    cut = data[: len(data) - 1 - len(checkpoint.aborted) * 32]
    if checkpoint.producers:
        with pytest.raises(FormatError):
            finish_steps(decode_steps(cut, with_producers=False))


def sample() -> Checkpoint:
    """Return a checkpoint with something in every list."""
    return Checkpoint(
        key=KEY,
        segment=SEGMENT,
        position=5000,
        end_offset=150,
        log_start=20,
        max_timestamp=99,
        max_timestamp_offset=120,
        first_open_txn=130,
        index=array("q", [110, 1000, 50, 120, 2000, 60]),
        epochs=((3, 100),),
        producers=(
            ProducerState(9, 1, -1, 77, -1, (ProducerBatch(0, 100, 4, 70), ProducerBatch(5, 105, 0, 77))),
            ProducerState(10, 0, -1, 78, -1, ()),
        ),
        aborted=(AbortedTransaction(9, 101, 103, 104),),
    )


# ------------------------------------------------------------------------------------------------------- the format


@given(CHECKPOINTS)
def test_encode_and_decode_are_inverse(checkpoint: Checkpoint) -> None:
    """Any values that the fields can hold."""
    data = encode(checkpoint)
    assert decode(memoryview(data)) == checkpoint
    assert decode_key(memoryview(data)) == checkpoint.key


def test_the_layout_is_the_one_drawn() -> None:
    """Bytes written by hand from the module's picture, so that a field cannot move unnoticed."""
    head = struct.pack(
        ">BB16sIqIIqqqqqqIIII",
        ord("F"), 0, KEY.topic_id.bytes, 7, 100, 3, 2, 5000, 150, 20, 99, 120, 130, 2, 1, 2, 1,
    )  # fmt: skip
    index = struct.pack(">6q", 110, 1000, 50, 120, 2000, 60)
    producers = struct.pack(">qhiqqB", 9, 1, -1, 77, -1, 2) + struct.pack(">iqiqiqiq", 0, 100, 4, 70, 5, 105, 0, 77)
    producers += struct.pack(">qhiqqB", 10, 0, -1, 78, -1, 0)
    expected = head + index + struct.pack(">iq", 3, 100) + producers + struct.pack(">qqqq", 9, 101, 103, 104)
    assert encode(sample()) == expected
    assert encode(replace(sample(), is_full=False, is_closed=True))[:2] == b"D\x01"


@given(CHECKPOINTS, st.data())
def test_truncated_bytes_are_a_format_error(checkpoint: Checkpoint, data: st.DataObject) -> None:
    """Never struct.error, ValueError or a checkpoint that lacks something."""
    whole = encode(checkpoint)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(FormatError):
        decode(memoryview(whole)[:cut])


def test_truncated_at_every_byte() -> None:
    whole = encode(sample())
    for cut in range(len(whole)):
        with pytest.raises(FormatError):
            decode(memoryview(whole)[:cut])


@given(st.binary(max_size=300))
def test_random_bytes_are_a_format_error_or_a_checkpoint(data: bytes) -> None:
    """Decoding garbage ends: what is not refused encodes to a beginning of the same bytes."""
    try:
        found = decode(memoryview(data))
    except FormatError:
        return
    assert decode(memoryview(encode(found))) == found


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), min_size=1, max_size=4))
def test_damaged_bytes_raise_nothing_but_format_error(edits: list[tuple[int, int]]) -> None:
    """Counts of billions included: they are refused before anything is allocated for them."""
    data = bytearray(encode(sample()))
    for at, value in edits:
        data[at % len(data)] = value
    try:
        found = decode(memoryview(data))
    except FormatError:
        return
    assert len(encode(found)) <= len(data)


@pytest.mark.parametrize("kind", [0, ord("f"), ord("G"), 255])
def test_an_unknown_kind_is_a_format_error(kind: int) -> None:
    data = bytearray(encode(sample()))
    data[0] = kind
    with pytest.raises(FormatError, match=f"kind {kind}"):
        decode(memoryview(data))


def test_decode_key_needs_no_more_than_the_head() -> None:
    """Decode the key from the head alone: none of the lists is read, and what is shorter than a head is refused."""
    whole = encode(sample())
    head = len(encode(replace(sample(), index=array("q"), epochs=(), producers=(), aborted=())))
    assert decode_key(memoryview(whole)[:head]) == KEY
    for cut in range(head):
        with pytest.raises(FormatError):
            decode_key(memoryview(whole)[:cut])


@given(st.lists(I64))
def test_big_endian_numbers_both_ways(values: list[int]) -> None:
    numbers = array("q", values)
    data = big_endian(numbers)
    assert data == struct.pack(f">{len(values)}q", *values)
    assert numbers.tolist() == values  # it swapped a copy
    assert from_big_endian(memoryview(data)) == numbers


# -------------------------------------------------------------------------------------------------------- the order


def test_later_checkpoints_compare_greater() -> None:
    """Epoch counts first, then n within it, then the flushed bytes, then the log start; the base offset does not count,
    since a later segment may begin lower (rule 5)."""
    base = sample()
    ascending = [
        replace(base, segment=SegmentName(500, 1, 9), end_offset=900),
        replace(base, segment=SegmentName(400, 2, 0), end_offset=800),
        replace(base, segment=SegmentName(300, 2, 1), end_offset=300),
        replace(base, segment=SegmentName(300, 2, 1), end_offset=301),
        replace(base, segment=SegmentName(300, 2, 1), end_offset=301, log_start=21),
        replace(base, segment=SegmentName(300, 2, 2), end_offset=300),
        replace(base, segment=SegmentName(0, 3, 0), end_offset=0),
    ]
    for earlier, later in itertools.combinations(ascending, 2):
        assert earlier.order < later.order


# ---------------------------------------------------------------------------------------------------------- merging


def delta(end: int, **fields: object) -> Checkpoint:
    base = Checkpoint(key=KEY, segment=SEGMENT, position=end * 10, end_offset=end, log_start=20, is_full=False)
    return replace(base, **fields)  # type: ignore[arg-type]


def producer(number: int, sequence: int) -> ProducerState:
    return ProducerState(number, 0, -1, sequence, -1, (ProducerBatch(sequence, sequence, 0, sequence),))


def test_a_delta_adds_to_the_full_one() -> None:
    """Flushed end, timestamps and open transaction are the delta's; lists grow; known producers are replaced."""
    full = sample()
    news = delta(
        200,
        max_timestamp=500,
        max_timestamp_offset=190,
        first_open_txn=-1,
        index=array("q", [160, 3000, 99]),
        epochs=((3, 100), (4, 170)),
        producers=(producer(10, 5), producer(11, 0)),
        aborted=(AbortedTransaction(10, 130, 140, 141),),
    )
    both = merge(full, news)
    assert (both.position, both.end_offset, both.max_timestamp, both.max_timestamp_offset) == (2000, 200, 500, 190)
    assert both.first_open_txn == -1
    assert both.index.tolist() == [110, 1000, 50, 120, 2000, 60, 160, 3000, 99]
    assert both.epochs == ((3, 100), (4, 170))
    assert both.producers == (full.producers[0], producer(10, 5), producer(11, 0))
    assert both.aborted == (*full.aborted, AbortedTransaction(10, 130, 140, 141))
    assert (both.is_full, both.is_closed, both.key, both.segment) == (True, False, KEY, SEGMENT)


def test_merging_changes_neither() -> None:
    full, news = sample(), delta(200, index=array("q", [160, 3000, 99]))
    merge(full, news)
    assert full == sample()
    assert news == delta(200, index=array("q", [160, 3000, 99]))


def test_a_delta_cut_before_the_snapshot_takes_nothing_back() -> None:
    """The queue may hold a delta older than the snapshot that is written before it: what is newer stays."""
    full = replace(sample(), producers=(producer(1, 9),), log_start=20)
    old = delta(
        120,
        max_timestamp=50,
        max_timestamp_offset=110,
        first_open_txn=105,
        log_start=10,
        index=full.index[:3],
        epochs=full.epochs,
        producers=(producer(1, 3),),
        aborted=full.aborted,
    )
    assert merge(full, old) == full


def test_the_log_start_only_rises() -> None:
    """Merge a delta that changes nothing else, of the same end (DeleteRecords on a quiet partition): the log start
    rises, too."""
    full = sample()
    raised = delta(full.end_offset, position=full.position, log_start=90)
    assert merge(full, raised).log_start == 90
    assert merge(replace(full, log_start=95), raised).log_start == 95


def test_a_closed_segment_stays_closed() -> None:
    assert merge(sample(), delta(200, is_closed=True)).is_closed
    assert merge(replace(sample(), is_closed=True), delta(200)).is_closed


def test_only_deltas_of_the_same_segment_merge() -> None:
    """Anything else is a bug of the caller."""
    with pytest.raises(AssertionError):
        merge(sample(), sample())
    with pytest.raises(AssertionError):
        merge(sample(), delta(200, segment=SegmentName(150, 3, 3)))


@given(st.data())
def test_overlapping_and_repeated_deltas_are_idempotent(data: st.DataObject) -> None:
    """A segment's history as one full checkpoint and deltas; a snapshot may be taken at any point and any deltas that
    begin before it may follow again.  The result never depends on it."""
    ends = sorted(data.draw(st.sets(st.integers(101, 200), min_size=2, max_size=6)))

    def between(start: int, end: int, *, is_full: bool) -> Checkpoint:
        """Return the checkpoint of a broker that flushed up to ``end``, with all changes since ``start``."""
        index = array("q", itertools.chain.from_iterable((o, o * 10, o) for o in range(start, end) if o % 7 == 0))
        changed = {o % 3: producer(o % 3, o) for o in range(start, end)}
        return delta(
            end,
            is_full=is_full,
            index=index,
            producers=tuple(changed[pid] for pid in sorted(changed)),
            epochs=tuple((o, o) for o in range(start, end) if o % 40 == 0),
            aborted=tuple(AbortedTransaction(1, o, o, o) for o in range(start, end) if o % 30 == 0),
            max_timestamp=end,
            max_timestamp_offset=end - 1,
        )

    def canonical(checkpoint: Checkpoint) -> Checkpoint:
        return replace(checkpoint, producers=tuple(sorted(checkpoint.producers, key=lambda p: p.producer_id)))

    snapshot = data.draw(st.integers(0, len(ends) - 1))
    state = between(100, ends[snapshot], is_full=True)
    first = data.draw(st.integers(0, snapshot))
    deltas = [between(start, end, is_full=False) for start, end in zip([100, *ends], ends, strict=False)]
    for step in deltas[first:]:
        state = merge(state, step)
        if data.draw(st.booleans()):
            state = merge(state, step)
    assert canonical(state) == between(100, ends[-1], is_full=True)


def test_merging_costs_the_same_however_many_transactions_were_aborted() -> None:
    """Merge deltas behind a full checkpoint of 50,000 aborted transactions: none is compared with all of them."""
    many = tuple(AbortedTransaction(1, o, o, o) for o in range(50_000))
    state = replace(sample(), aborted=many, end_offset=50_000)
    later = tuple(AbortedTransaction(1, o, o, o) for o in range(49_000, 52_000))
    with without_collector():
        began = time.thread_time()
        state = merge(state, delta(52_000, aborted=later))
        assert is_short(time.thread_time() - began)
    assert state.aborted == (*many, *later[1_000:])

"""Damage is named with file, position and offset, or skipped and counted; nothing crashes, nothing is made up."""

from __future__ import annotations

import pickle
import random
import struct

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from bmq.core.errors import FormatError
from bmq.core.records.batch import CODECS, HEADER_BYTES, Batch
from bmq.core.records.reader import read_records
from bmq.spark.decoding.decoder import COLUMNS, BatchDecoder, CorruptSegment, DecodeOptions, read_segment
from tests.harness.seeds import example_count
from tests.unit.spark.batches import PARTITION, TOPIC, Item, Row, built, changed, plain, read_by_kafka, rows_of

pytestmark = pytest.mark.slow

START = 1000  # of the bytes in the file
THREE = [plain(0), plain(3), plain(6)]
SIZE = len(THREE[1])
OTHERS = read_by_kafka(THREE[0]) + read_by_kafka(THREE[2])
_LEADER_EPOCH = range(12, 16)  # outside the CRC, and of no meaning here


def decoder(*, permissive: bool = False, columns: tuple[str, ...] = COLUMNS, limit: int = 1 << 20) -> BatchDecoder:
    options = DecodeOptions(columns=columns, permissive=permissive, batch_bytes_max=limit)
    return BatchDecoder(TOPIC, PARTITION, options, where="/x.log")


def strictly(data: bytes) -> tuple[list[Row], CorruptSegment | None]:
    """Return the rows before the error, and the error."""
    found: list[Row] = []
    try:
        for batch in decoder().decode(data, START):
            found += rows_of([batch])
    except CorruptSegment as error:
        return found, error
    return found, None


def permissively(data: bytes) -> tuple[list[Row], int, int]:
    reader = decoder(permissive=True)
    return rows_of(list(reader.decode(data, START))), reader.corrupt.batches, reader.corrupt.bytes


@pytest.mark.parametrize("at", [at for at in range(SIZE) if at not in _LEADER_EPOCH])
def test_one_byte_anywhere_in_a_batch(at: int) -> None:
    for flip in (0xFF, 0x01):
        spoiled = bytearray(THREE[1])
        spoiled[at] ^= flip
        data = THREE[0] + bytes(spoiled) + THREE[2]
        found, error = strictly(data)
        assert found == OTHERS[:3]
        assert error is not None
        assert (error.where, error.position) == ("/x.log", START + SIZE)
        offset = Batch(memoryview(spoiled)).base_offset
        assert error.offset in (3, offset)
        assert str(error) == f"/x.log: at {START + SIZE}, offset {error.offset}: {error.fault}"
        assert permissively(data) == (OTHERS, 1, SIZE)


def test_the_leader_epoch_is_outside_the_crc() -> None:
    spoiled = bytearray(THREE[1])
    spoiled[12:16] = b"\xff" * 4
    data = THREE[0] + bytes(spoiled) + THREE[2]
    assert strictly(data) == (read_by_kafka(data), None)


def test_the_error_survives_the_way_from_an_executor() -> None:
    _, error = strictly(THREE[0][:70])
    assert error is not None
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


@pytest.mark.parametrize("left", [1, 16, 17, HEADER_BYTES - 1, HEADER_BYTES, SIZE - 1])
def test_a_truncated_tail(left: int) -> None:
    data = THREE[0] + THREE[1][:left]
    found, error = strictly(data)
    assert found == OTHERS[:3]
    assert error is not None
    assert (error.position, error.offset, error.fault) == (START + SIZE, 3, "the bytes end in a batch")
    assert permissively(data) == (OTHERS[:3], 1, left)


def test_a_batch_that_stands_twice() -> None:
    data = THREE[0] + THREE[1] + THREE[1] + THREE[2]
    _, error = strictly(data)
    assert error is not None
    assert (error.position, error.offset) == (START + 2 * SIZE, 3)
    assert permissively(data) == (read_by_kafka(b"".join(THREE)), 1, SIZE)


def test_garbage_between_batches() -> None:
    noise = random.Random(1).randbytes(300)
    assert permissively(THREE[0] + noise + THREE[2]) == (OTHERS, 1, 300)
    assert permissively(noise) == ([], 1, 300)


def test_a_batch_inside_a_damaged_batchs_value_is_no_batch() -> None:
    mirrored = bytearray(built([Item(0, None, plain(5))], 3))
    mirrored[62] ^= 0xFF
    assert permissively(THREE[0] + bytes(mirrored) + THREE[2]) == (OTHERS, 1, len(mirrored))


@pytest.mark.parametrize("codec", range(1, 5), ids=CODECS[1:])
def test_a_bomb_is_a_corrupt_batch(codec: int) -> None:
    bomb = built([Item(0, None, bytes(2 << 20))], 3, codec)
    data = THREE[0] + bomb + plain(4)
    with pytest.raises(CorruptSegment, match="limit of 1048576 bytes") as caught:
        list(decoder().decode(data, START))
    assert (caught.value.position, caught.value.offset) == (START + SIZE, 3)
    assert permissively(data) == (OTHERS[:3] + read_by_kafka(plain(4)), 1, len(bomb))


@pytest.mark.parametrize("codec", range(1, 8))
def test_a_body_that_is_not_of_its_codec(codec: int) -> None:
    wrong = changed(THREE[1], attributes=codec)
    data = THREE[0] + wrong + THREE[2]
    found, error = strictly(data)
    assert found == OTHERS[:3]
    assert error is not None
    assert (error.position, error.offset) == (START + SIZE, 3)
    assert permissively(data) == (OTHERS, 1, SIZE)


@pytest.mark.parametrize(
    ("count", "last_delta"), [(-1, 2), (4, 2), (3, -1), (1 << 30, 2), (1 << 30, 1 << 30), (2, 2), (3, 1)]
)
def test_counts_that_do_not_fit(count: int, last_delta: int) -> None:
    wrong = changed(THREE[1], count=count, last_delta=last_delta)
    data = THREE[0] + wrong + THREE[2]
    _, error = strictly(data)
    assert error is not None
    assert (error.position, error.offset) == (START + SIZE, 3)
    assert permissively(data) == (OTHERS, 1, SIZE)


@pytest.mark.parametrize("codec", [0, 1, 4])
@pytest.mark.parametrize("columns", [(), ("offset",), ("value",)])
def test_a_header_that_promises_a_billion_records_costs_no_memory(codec: int, columns: tuple[str, ...]) -> None:
    greedy = changed(plain(3, 100, codec), count=1 << 30, last_delta=(1 << 30) - 1)
    reader = decoder(permissive=True, columns=columns)
    assert sum(batch.num_rows for batch in reader.decode(THREE[0] + greedy, START)) == 3
    assert (reader.corrupt.batches, reader.corrupt.bytes) == (1, len(greedy))


# ------------------------------------------------------------------------------------------------- fuzz


def by_reader(data: bytes) -> list[Row] | None:
    """Return the record reader's rows of one batch, as Spark shows them; None for an error."""
    try:
        records = list(read_records(Batch(memoryview(data)), bytes_max=1 << 20))
    except FormatError:
        return None
    kind = Batch(memoryview(data)).attributes >> 3 & 1
    return [
        Row(r.key, r.value, TOPIC, PARTITION, r.offset, _micros(r.timestamp), kind, r.headers or None) for r in records
    ]


def _micros(time: int) -> int:
    """Return the time in microseconds as 64 bits hold it."""
    wrapped = (time + 2**63) % 2**64 - 2**63
    most = (2**63 - 1) // 1000
    return max(-most, min(wrapped, most)) * 1000


_fuzzed = built(
    [Item(i, b"key" * i or None, b"value" * i or None, [("name", b"x" * i), ("é", None)][: i % 3]) for i in range(6)]
)


@given(
    st.lists(st.tuples(st.integers(HEADER_BYTES, len(_fuzzed) - 1), st.integers(0, 255)), min_size=1, max_size=4),
    st.integers(0, 30),
)
@settings(max_examples=example_count(100, 4_000))
def test_damage_that_its_crc_matches_is_read_as_the_record_reader_reads_it(
    changes: list[tuple[int, int]], cut: int
) -> None:
    spoiled = bytearray(_fuzzed)
    for at, byte in changes:
        spoiled[at] = byte
    data = changed(bytes(spoiled[: len(spoiled) - cut]))
    expected = by_reader(data)
    reader = decoder()
    if expected is None:
        with pytest.raises(CorruptSegment) as caught:
            list(reader.decode(data, START))
        assert (caught.value.position, caught.value.offset) == (START, 0)
    else:
        found = rows_of(list(reader.decode(data, START)))
        assert found == expected or reader.replaced
    for columns in (("offset",), ("value",), ("timestamp", "key"), ("headers",), ()):  # fewer fields are looked at
        some = decoder(permissive=True, columns=columns)
        rows = sum(batch.num_rows for batch in some.decode(data, START))
        assert some.corrupt.batches == (rows == 0)


@given(st.data())
@settings(max_examples=example_count(50, 2_000))
def test_any_damage_costs_at_most_the_batches_it_lies_in(draw: st.DataObject) -> None:
    parts = [plain(base, codec=base % 5) for base in range(0, 18, 3)]
    data = bytearray(b"".join(parts))
    # Base offsets are outside the CRC: what one should be is known from the batch in front of it and the one behind.
    first, last = len(parts[0]) + 8, len(data) - len(parts[-1])
    start = draw.draw(st.integers(first, last - 1))
    noise = draw.draw(st.binary(min_size=1, max_size=120))[: last - start]
    data[start : start + len(noise)] = noise
    whole, at = [], 0
    for part in parts:
        if at + len(part) <= start or at >= start + len(noise):
            whole += read_by_kafka(part)
        at += len(part)
    found, corrupt, size = permissively(bytes(data))
    assert set(whole) <= set(found) <= set(read_by_kafka(b"".join(parts)))
    assert (corrupt == 0) == (size == 0) == (len(found) == 18)


@given(st.binary(max_size=200), st.integers(0, 4), st.integers(1, 50))
@settings(max_examples=example_count(50, 2_000))
def test_bodies_of_garbage(body: bytes, codec: int, count: int) -> None:
    head = bytearray(plain(0)[:HEADER_BYTES])
    struct.pack_into(">i", head, 57, count)
    data = bytearray(changed(bytes(head) + body, attributes=codec, last_delta=count - 1))
    assert struct.unpack_from(">I", data, 17)[0] == crc32c(data[21:])
    expected = by_reader(bytes(data))
    options = DecodeOptions(columns=COLUMNS, batch_bytes_max=1 << 20)
    if expected is None:
        with pytest.raises(CorruptSegment):
            read_segment(bytes(data), options)
    else:
        assert read_segment(bytes(data), options).num_rows == len(expected)

"""Record batches (core/records/batch.py): every rule of ``check_batch`` with Kafka's code, numbering, and two
independent witnesses: kafka-python reads what BMQ builds, and BMQ accepts what kafka-python builds with every codec
that it has."""

from __future__ import annotations

import struct
import warnings
from collections.abc import Callable

import pytest
from crc32c import crc32c
from hypothesis import example, given
from hypothesis import strategies as st

from bmq.core.errors import BmqError, ErrorCode, RequestError
from bmq.core.records.batch import (
    CODECS,
    CONTROL,
    CRC_START,
    DELETE_HORIZON,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    MAX_SEQUENCE,
    TRANSACTIONAL,
    Batch,
    BatchRules,
    Record,
    build_batch,
    check_batch,
    encode_varint,
    header_fault,
    increment_sequence,
    parse_batch,
)
from bmq.core.records.cursor import read_batches

pytestmark = pytest.mark.slow

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of importlib's, while kafka-python loads its schemas
    from kafka import codec
    from kafka.record import MemoryRecords, MemoryRecordsBuilder
    from kafka.record.default_records import DefaultRecord

NOW_MS = 1_700_000_000_000
RULES = BatchRules()

I16 = st.integers(-(1 << 15), (1 << 15) - 1)
I32 = st.integers(-(1 << 31), (1 << 31) - 1)
I64 = st.integers(-(1 << 63), (1 << 63) - 1)


def make(count: int = 1, **fields: int) -> bytearray:
    """Return a valid batch of ``count`` small records; ``fields`` as ``build_batch`` takes them."""
    fields = {"base_timestamp": NOW_MS, **fields}
    return build_batch([Record(value=b"v%d" % n) for n in range(count)], **fields)


def edit(data: bytearray, at: int, form: str, value: int) -> bytearray:
    """Overwrite one header field and correct the CRC."""
    struct.pack_into(form, data, at, value)
    struct.pack_into(">I", data, 17, crc32c(memoryview(data)[CRC_START:]))
    return data


def check(data: bytearray | bytes, rules: BatchRules = RULES) -> None:
    check_batch(Batch(memoryview(data)), rules)


def refused(data: bytearray | bytes, rules: BatchRules = RULES) -> ErrorCode:
    with pytest.raises(RequestError) as caught:
        check(data, rules)
    return caught.value.code


# ------------------------------------------------------------------------------------------------------- the header


def test_header_fields_are_read_back_as_built() -> None:
    """Each header field of the layout drawn in the module comes back under its name."""
    data = build_batch(
        [Record(timestamp_delta=5), Record(timestamp_delta=9), Record()],
        base_offset=7,
        base_timestamp=1000,
        producer_id=11,
        producer_epoch=12,
        base_sequence=13,
        attributes=TRANSACTIONAL,
        leader_epoch=14,
    )
    batch = Batch(memoryview(data))
    assert (batch.base_offset, batch.last_offset_delta, batch.last_offset, batch.next_offset) == (7, 2, 9, 10)
    assert (batch.base_timestamp, batch.max_timestamp) == (1000, 1009)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.last_sequence) == (11, 12, 13, 15)
    assert (batch.magic, batch.leader_epoch, batch.count, batch.size) == (2, 14, 3, len(data))
    assert batch.is_transactional
    assert not batch.is_control
    assert batch.has_valid_crc


@given(I64, I32, I16, I32, I64, I64, I64, I16, I32, I32)
def test_header_is_read_at_kafkas_positions(
    base: int, epoch: int, attributes: int, delta: int, first: int, last: int, pid: int, pepoch: int, seq: int, n: int
) -> None:
    """Fields packed one by one at the positions of Kafka's documentation, any values."""
    data = bytearray(HEADER_BYTES)
    for at, form, value in (
        (0, ">q", base), (8, ">i", HEADER_BYTES - 12), (12, ">i", epoch), (16, ">b", 2), (17, ">I", 99),
        (21, ">h", attributes), (23, ">i", delta), (27, ">q", first), (35, ">q", last), (43, ">q", pid),
        (51, ">h", pepoch), (53, ">i", seq), (57, ">i", n),
    ):  # fmt: skip
        struct.pack_into(form, data, at, value)
    batch = Batch(memoryview(data))
    assert (batch.base_offset, batch.leader_epoch, batch.attributes, batch.last_offset_delta) == (
        base, epoch, attributes, delta,
    )  # fmt: skip
    assert (batch.base_timestamp, batch.max_timestamp, batch.crc, batch.magic) == (first, last, 99, 2)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.count) == (pid, pepoch, seq, n)
    assert batch.size == HEADER_BYTES
    assert "<Batch" in repr(batch)  # whatever the codec bits say


# --------------------------------------------------------------------------------------------- check_batch, by rule


def test_a_right_batch_passes() -> None:
    """The base of all the refusals below: unchanged, it is accepted."""
    check(make(3))
    check(make(3, producer_id=5, producer_epoch=0, base_sequence=0))
    check(make(3, producer_id=5, producer_epoch=0, base_sequence=0, attributes=TRANSACTIONAL))


@pytest.mark.parametrize("magic", [0, 1, 3, -1])
def test_magic_other_than_2_is_invalid(magic: int) -> None:
    data = make()
    struct.pack_into(">b", data, 16, magic)
    assert refused(data) is ErrorCode.INVALID_RECORD


def test_size_over_max_message_bytes_is_too_large() -> None:
    """The bound holds to the byte."""
    data = make()
    check(data, BatchRules(max_message_bytes=len(data)))
    assert refused(data, BatchRules(max_message_bytes=len(data) - 1)) is ErrorCode.MESSAGE_TOO_LARGE


@given(st.data())
def test_any_flipped_bit_behind_the_crc_is_corrupt(data: st.DataObject) -> None:
    """Every byte from the CRC on is covered."""
    batch = make(2)
    at = data.draw(st.integers(17, len(batch) - 1))
    batch[at] ^= 1 << data.draw(st.integers(0, 7))
    assert refused(batch) is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("number", range(8))
def test_unknown_codec(number: int) -> None:
    """Kafka knows five codecs of the eight that three bits can name."""
    data = edit(make(), 21, ">h", number)
    if number < len(CODECS):
        check(data)
    else:
        assert refused(data) is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


@pytest.mark.parametrize(
    ("count", "delta"), [(0, -1), (-1, -2), (2, 2), (2, 0), (3, 1), (1, -1), (-(1 << 31), (1 << 31) - 1)]
)
def test_count_and_last_offset_delta_must_agree(count: int, delta: int) -> None:
    data = make(2)
    struct.pack_into(">i", data, 23, delta)
    assert refused(edit(data, 57, ">i", count)) is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("base", [1, -1, 1 << 40])
def test_base_offset_of_a_produced_batch_is_0(base: int) -> None:
    assert refused(make(base_offset=base)) is ErrorCode.INVALID_RECORD


def test_control_batches_are_not_for_clients() -> None:
    assert refused(make(attributes=CONTROL)) is ErrorCode.INVALID_RECORD
    idempotent = make(producer_id=1, producer_epoch=0, base_sequence=0, attributes=CONTROL | TRANSACTIONAL)
    assert refused(idempotent) is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize(("epoch", "sequence"), [(-1, 0), (0, -1), (-1, -1), (-(1 << 15), 0), (0, -(1 << 31))])
def test_a_producer_id_needs_epoch_and_sequence(epoch: int, sequence: int) -> None:
    data = make(producer_id=9, producer_epoch=epoch, base_sequence=sequence)
    assert refused(data) is ErrorCode.INVALID_RECORD


def test_epoch_and_sequence_without_a_producer_id_mean_nothing() -> None:
    check(make(producer_epoch=-1, base_sequence=-1))
    check(make(producer_epoch=3, base_sequence=4))


@pytest.mark.parametrize("producer_id", [-2, -(1 << 40), -(1 << 63)])
def test_internal_producer_ids_are_not_for_clients(producer_id: int) -> None:
    """Ids below -1 fence the coordinators' own writes and never expire: a client may not take one."""
    data = make(producer_id=producer_id, producer_epoch=0, base_sequence=0)
    assert refused(data) is ErrorCode.INVALID_RECORD


def test_transactional_needs_a_producer_id() -> None:
    assert refused(make(attributes=TRANSACTIONAL)) is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("log_append_time", [False, True])
def test_only_the_broker_sets_log_append_time(log_append_time: bool) -> None:
    """Kafka's "Producer should not set timestamp type to LogAppendTime", also where the topic has it."""
    rules = BatchRules(log_append_time=log_append_time)
    assert refused(make(attributes=LOG_APPEND_TIME), rules) is ErrorCode.INVALID_TIMESTAMP


def test_only_a_cleaner_sets_a_delete_horizon() -> None:
    """A producer's would have its tombstones removed before readers of the deleted values see them."""
    assert refused(make(attributes=DELETE_HORIZON)) is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("rules", [RULES, BatchRules(timestamp_before_max_ms=0, timestamp_after_max_ms=0)])
def test_the_headers_largest_timestamp_refuses_nothing(rules: BatchRules) -> None:
    """Judged by the header, a batch could not say which record is wrong; a wrong header is corrected."""
    check(make(base_timestamp=NOW_MS + (1 << 40)), rules)
    check(make(base_timestamp=0), rules)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("size", [17, 34, HEADER_BYTES - 1, HEADER_BYTES, 134])
def test_a_message_of_an_old_format_is_invalid_whatever_its_size(magic: int, size: int) -> None:
    """Judge the magic before the length: the shortest has 26 bytes.

    All clients retry CORRUPT_MESSAGE until their time-out, none INVALID_RECORD."""
    data = struct.pack(">qiIb", 0, size - 12, 0, magic).ljust(size, b"v")
    fault = header_fault(memoryview(data))
    assert fault is not None
    assert fault.code is ErrorCode.INVALID_RECORD
    with pytest.raises(RequestError, match=f"magic {magic}"):
        parse_batch(memoryview(data))


def test_a_batch_of_magic_2_that_is_cut_short_is_corrupt() -> None:
    data = make()
    for size in (1, 16, 17, HEADER_BYTES - 1):
        fault = header_fault(memoryview(data)[:size])
        assert fault is not None
        assert fault.code is ErrorCode.CORRUPT_MESSAGE
    assert header_fault(memoryview(data)) is None


# ------------------------------------------------------------------------------------- numbering, LogAppendTime


@given(st.integers(0, (1 << 63) - 2), st.integers(0, (1 << 31) - 1))
def test_assign_numbers_in_place_without_touching_the_crc(base: int, epoch: int) -> None:
    """Object and bytes agree, only bytes outside the CRC change, and the CRC stays right."""
    data = make(2)
    before = bytes(data)
    batch = Batch(memoryview(data))
    batch.assign(base, epoch)
    assert bytes(data[17:]) == before[17:]
    assert data[8:12] == before[8:12]
    again = Batch(memoryview(data))
    assert (again.base_offset, again.leader_epoch, again.crc) == (base, epoch, batch.crc)
    assert (batch.base_offset, batch.leader_epoch) == (base, epoch)
    assert again.has_valid_crc


def test_set_append_time_recomputes_the_crc() -> None:
    """Attribute, maximum timestamp and CRC change together, in the object and in the bytes, nothing else does."""
    data = make(2, attributes=3)
    before = bytes(data)
    batch = Batch(memoryview(data))
    batch.set_append_time(NOW_MS + 5)
    again = Batch(memoryview(data))
    assert again.has_valid_crc
    assert again.crc != Batch(memoryview(before)).crc
    assert (again.attributes, again.max_timestamp) == (3 | LOG_APPEND_TIME, NOW_MS + 5)
    assert (batch.attributes, batch.max_timestamp, batch.crc) == (again.attributes, again.max_timestamp, again.crc)
    assert bytes(data[:17] + data[23:35] + data[43:]) == before[:17] + before[23:35] + before[43:]


def test_kafkas_reader_gives_the_append_time_to_every_record() -> None:
    data = build_batch([Record(value=b"a"), Record(value=b"b", timestamp_delta=7)], base_timestamp=NOW_MS)
    Batch(memoryview(data)).set_append_time(NOW_MS + 50)
    (batch,) = read(bytes(data))
    assert [record.timestamp for record in batch] == [NOW_MS + 50, NOW_MS + 50]


@example(MAX_SEQUENCE, 1)
@example(MAX_SEQUENCE, MAX_SEQUENCE)
@given(st.integers(0, MAX_SEQUENCE), st.integers(0, MAX_SEQUENCE))  # few of them wrap, and in some runs none
def test_sequences_wrap_to_0_after_the_largest_int(sequence: int, by: int) -> None:
    """Compute the sequence as Kafka's ``DefaultRecordBatch.incrementSequence`` does."""
    kafkas = by - (MAX_SEQUENCE - sequence) - 1 if sequence > MAX_SEQUENCE - by else sequence + by
    assert increment_sequence(sequence, by) == kafkas


def test_last_sequence_wraps_within_a_batch() -> None:
    batch = Batch(memoryview(make(3, producer_id=1, producer_epoch=0, base_sequence=MAX_SEQUENCE - 1)))
    assert batch.last_sequence == 0


# ----------------------------------------------------------------------------------------------------- splitting


def test_parse_batch_takes_exactly_one() -> None:
    """Parse a partition's records of a produce request: cut short at any byte they are corrupt, with anything behind
    the batch invalid."""
    one = bytes(make(2))
    assert bytes(parse_batch(memoryview(one)).data) == one
    for keep in range(len(one)):
        with pytest.raises(RequestError) as caught:
            parse_batch(memoryview(one)[:keep])
        assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
    for rest in (b"x", one):
        with pytest.raises(RequestError) as caught:
            parse_batch(memoryview(one + rest))
        assert caught.value.code is ErrorCode.INVALID_RECORD


def test_parse_batch_gives_bytes_that_can_be_numbered() -> None:
    """Read-only bytes are copied, others are not."""
    data = make(1)
    parse_batch(memoryview(data)).assign(9, 1)
    assert Batch(memoryview(data)).base_offset == 9
    read_only = bytes(make(1))
    parse_batch(memoryview(read_only)).assign(9, 1)
    assert Batch(memoryview(read_only)).base_offset == 0


def judge_all(data: bytearray) -> None:
    for batch in read_batches(memoryview(data)):
        check_batch(batch, RULES)


@given(st.binary(max_size=400))
def test_random_bytes_raise_nothing_but_request_errors(data: bytes) -> None:
    """Garbage on the produce path always gets an error as response."""
    if not data:
        return judge_all(bytearray())
    with pytest.raises(RequestError):
        judge_all(bytearray(data))
    return None


@given(st.data(), st.booleans())
def test_damaged_batches_raise_nothing_but_request_errors(data: st.DataObject, is_crc_right: bool) -> None:
    """Random overwrites in a right batch, with a CRC made right again half of the time so that the checks behind it
    are reached.  Whatever passes still has the shape that numbering relies on."""
    batch = make(3, producer_id=4, producer_epoch=1, base_sequence=2)
    for at in data.draw(st.lists(st.integers(0, len(batch) - 1), max_size=6)):
        batch[at] = data.draw(st.integers(0, 255))
    if is_crc_right:
        struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[CRC_START:]))
    try:
        judge_all(batch)
    except RequestError:
        return
    passed = Batch(memoryview(batch))
    assert passed.count == passed.last_offset_delta + 1 > 0
    assert passed.base_offset == 0
    assert passed.has_valid_crc


# ----------------------------------------------------------------------------------- independent readers, writers


def read(data: bytes) -> list[list[DefaultRecord]]:
    """Return batches as kafka-python reads them, after it has checked their CRCs."""
    records, found = MemoryRecords(data), []
    while records.has_next():
        batch = records.next_batch()
        assert batch.validate_crc()
        found.append(list(batch))
    return found


HEADERS = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3)
RECORDS = st.builds(
    Record,
    key=st.none() | st.binary(max_size=200),
    value=st.none() | st.binary(max_size=200),
    headers=HEADERS,
    timestamp_delta=st.integers(-(1 << 40), 1 << 40),
)


@given(st.lists(RECORDS, min_size=1, max_size=8), st.integers(0, 1 << 50), st.integers(0, 1 << 41))
def test_kafka_python_reads_what_we_build(records: list[Record], base: int, timestamp: int) -> None:
    """Keys, values, headers, nulls, offsets and timestamps, through a parser that shares no code with ours."""
    data = build_batch(records, base_offset=base, base_timestamp=timestamp)
    (found,) = read(bytes(data))
    assert [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in found] == [
        (base + n, timestamp + r.timestamp_delta, r.key, r.value, list(r.headers)) for n, r in enumerate(records)
    ]
    assert Batch(memoryview(data)).max_timestamp == max(r.timestamp for r in found)


CODEC_PRESENT: dict[str, Callable[[], bool]] = {
    "none": lambda: True,
    "gzip": codec.has_gzip,
    "snappy": codec.has_snappy,
    "lz4": codec.has_lz4,
    "zstd": codec.has_zstd,
}


@pytest.mark.parametrize("number", range(len(CODECS)), ids=CODECS)
@pytest.mark.parametrize("is_idempotent", [False, True])
def test_we_accept_what_kafka_python_builds(number: int, is_idempotent: bool) -> None:
    """Each codec of its build is read; the header says what was put in."""
    if not CODEC_PRESENT[CODECS[number]]():
        pytest.skip(f"kafka-python has no {CODECS[number]} here")
    builder = MemoryRecordsBuilder(2, number, 1 << 20)
    if is_idempotent:
        builder.set_producer_state(1234, 5, 6, False)
    for n in range(10):
        builder.append(NOW_MS + n, b"key", b"x" * 1000, [("h", b"1")])
    builder.close()
    (batch,) = read_batches(memoryview(bytearray(builder.buffer())))
    check_batch(batch, RULES)
    assert (batch.attributes & 7, batch.count, batch.last_offset_delta) == (number, 10, 9)
    assert (batch.base_timestamp, batch.max_timestamp) == (NOW_MS, NOW_MS + 9)
    producer = (1234, 5, 6) if is_idempotent else (-1, -1, -1)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == producer
    assert (number == 0) == (batch.size > 10_000)  # it did compress
    batch.assign(500, 3)
    (found,) = read(bytes(batch.data))
    assert [(r.offset, r.value) for r in found] == [(500 + n, b"x" * 1000) for n in range(10)]


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_varints_are_zig_zag(value: int) -> None:
    """The definition: 7 bits a byte, lowest first, of 0, -1, 1, -2, ..."""
    data = encode_varint(value)
    assert all(byte & 0x80 for byte in data[:-1])
    assert not data[-1] & 0x80
    unsigned = sum((byte & 0x7F) << 7 * n for n, byte in enumerate(data))
    assert value == (unsigned // 2 if unsigned % 2 == 0 else -(unsigned // 2) - 1)


# ------------------------------------------------------------------------------------------------------- the errors


# Kafka's protocol guide, "Error codes": name, code, retriable.
GUIDE = """
UNKNOWN_SERVER_ERROR -1 False, NONE 0 False, OFFSET_OUT_OF_RANGE 1 False, CORRUPT_MESSAGE 2 True,
UNKNOWN_TOPIC_OR_PARTITION 3 True, NOT_LEADER_OR_FOLLOWER 6 True, REQUEST_TIMED_OUT 7 True,
MESSAGE_TOO_LARGE 10 False, INVALID_TIMESTAMP 32 False, UNSUPPORTED_FOR_MESSAGE_FORMAT 43 False,
OUT_OF_ORDER_SEQUENCE_NUMBER 45 False, INVALID_PRODUCER_EPOCH 47 False, KAFKA_STORAGE_ERROR 56 True,
UNKNOWN_PRODUCER_ID 59 False, FENCED_LEADER_EPOCH 74 True, UNSUPPORTED_COMPRESSION_TYPE 76 False,
OFFSET_NOT_AVAILABLE 78 True, INVALID_RECORD 87 False, THROTTLING_QUOTA_EXCEEDED 89 True
"""


@pytest.mark.parametrize("row", [row.strip() for row in GUIDE.split(",")])
def test_codes_are_those_of_kafkas_guide(row: str) -> None:
    """Name, number, and whether clients try again by themselves."""
    name, number, is_retriable = row.split()
    assert ErrorCode[name] == int(number)
    assert ErrorCode[name].is_retriable == (is_retriable == "True")


def test_a_request_error_carries_its_code() -> None:
    error = RequestError(ErrorCode.INVALID_RECORD, "why")
    assert isinstance(error, BmqError)
    assert (error.code, error.message, str(error)) == (ErrorCode.INVALID_RECORD, "why", "INVALID_RECORD: why")

"""The check of a produced batch's records: each row of its table, and lz4 frames as Java's reader takes them."""

from __future__ import annotations

import struct

import pytest

from bmq.core.errors import ErrorCode, RequestError
from bmq.core.records.batch import CODECS, HEADER_BYTES, Batch, BatchRules, Record, build_batch
from bmq.core.records.check import RECORD_ERRORS_MAX, check_records, lz4_fault, stored_fault, unpack
from bmq.core.records.compression import Compression, compress, recompress
from tests.harness.cleaned import cleaned_batch

NOW_MS = 1_000_000
PLAIN = b"records " * 100
LZ4 = CODECS.index("lz4")


def batch(*deltas: int, base_ms: int = NOW_MS) -> Batch:
    """Return a batch with a record of each timestamp, in milliseconds after ``base_ms``."""
    return Batch(memoryview(build_batch([Record(timestamp_delta=each) for each in deltas], base_timestamp=base_ms)))


def check(made: Batch, rules: BatchRules | None = None) -> RequestError | None:
    return check_records(made, made.data[HEADER_BYTES : made.size], rules or BatchRules(), NOW_MS)


def code_of(error: RequestError | None) -> ErrorCode:
    return ErrorCode.NONE if error is None else error.code


# ------------------------------------------------------------------------------------------------------ the records


def test_a_right_batch_is_accepted_with_its_timestamp() -> None:
    made = batch(0, 5, 3)
    before = bytes(made.data)
    assert check(made) is None
    assert bytes(made.data) == before


@pytest.mark.parametrize(
    ("base_ms", "before_max_ms", "after_max_ms", "code"),
    [
        (NOW_MS - 50, 50, 0, ErrorCode.NONE),
        (NOW_MS - 51, 50, 0, ErrorCode.INVALID_TIMESTAMP),
        (NOW_MS + 50, 0, 50, ErrorCode.NONE),
        (NOW_MS + 51, 0, 50, ErrorCode.INVALID_TIMESTAMP),
        (-(1 << 62), (1 << 63) - 1, (1 << 63) - 1, ErrorCode.NONE),
        ((1 << 62), (1 << 63) - 1, (1 << 63) - 1, ErrorCode.NONE),
    ],
)
def test_a_timestamp_may_differ_from_now_by_the_topics_limits(
    base_ms: int, before_max_ms: int, after_max_ms: int, code: ErrorCode
) -> None:
    rules = BatchRules(timestamp_before_max_ms=before_max_ms, timestamp_after_max_ms=after_max_ms)
    assert code_of(check(batch(0, base_ms=base_ms), rules)) is code


def keyed(*keys: bytes | None, delta: int = 0) -> Batch:
    """Return a batch with a record of each key; the last one is ``delta`` ms after NOW_MS."""
    made = [Record(key=each, value=b"v") for each in keys]
    made[-1] = Record(key=keys[-1], value=b"v", timestamp_delta=delta)
    return Batch(memoryview(build_batch(made, base_timestamp=NOW_MS)))


COMPACTED = BatchRules(needs_key=True)
KEYLESS = "Compacted topic cannot accept message without key"


def test_the_records_with_wrong_timestamps_are_named() -> None:
    """KIP-467: a producer fails these records, and knows that the others were not at fault."""
    error = check(batch(0, 7_200_000, 0, 7_200_001))
    assert error is not None
    assert error.code is ErrorCode.INVALID_TIMESTAMP
    assert error.message == "One or more records have been rejected due to invalid timestamp"
    assert [number for number, _ in error.record_errors] == [1, 3]
    assert str(error.record_errors[0][1]).startswith("Timestamp 8200000 of message with offset 1 is out of range.")


def test_a_headers_largest_timestamp_that_is_wrong_itself_is_no_reason() -> None:
    made = batch(0, 5)
    made.set_max_timestamp(NOW_MS + (1 << 40))
    assert check(made) is None
    assert made.max_timestamp == NOW_MS + 5


def test_a_compacted_topic_takes_no_record_without_a_key() -> None:
    error = check(keyed(b"k", None, b"", None), COMPACTED)
    assert error is not None
    assert error.code is ErrorCode.INVALID_RECORD
    assert error.record_errors == [(1, KEYLESS), (3, KEYLESS)]
    assert "2 record errors" in error.message
    assert f"RecordError(batchIndex=1, message='{KEYLESS}')" in error.message
    assert check(keyed(b"k", b""), COMPACTED) is None
    assert check(keyed(None, None)) is None


def test_a_wrong_timestamp_beside_a_missing_key_is_the_batchs_error() -> None:
    """Follow Kafka: a record without a key is named for that alone."""
    error = check(keyed(None, b"k", delta=7_200_000), COMPACTED)
    assert error is not None
    assert error.code is ErrorCode.INVALID_TIMESTAMP
    assert [(number, text == KEYLESS) for number, text in error.record_errors] == [(0, True), (1, False)]
    error = check(keyed(b"k", None, delta=7_200_000), COMPACTED)
    assert error is not None
    assert (error.code, error.record_errors) == (ErrorCode.INVALID_RECORD, [(1, KEYLESS)])


def test_the_bad_records_that_are_named_are_bounded() -> None:
    error = check(keyed(*[None] * (RECORD_ERRORS_MAX + 5)), COMPACTED)
    assert error is not None
    assert [number for number, _ in error.record_errors] == list(range(RECORD_ERRORS_MAX))
    assert f"due to {RECORD_ERRORS_MAX + 5} record errors" in error.message
    assert error.message.count("RecordError(") == 3


def test_with_log_append_time_no_timestamp_is_wrong_and_the_header_stays() -> None:
    made = batch(0, base_ms=5)
    made.set_max_timestamp(77)
    rules = BatchRules(log_append_time=True, timestamp_before_max_ms=0, timestamp_after_max_ms=0)
    assert check(made, rules) is None
    assert made.max_timestamp == 77


def test_a_wrong_largest_timestamp_of_the_header_is_corrected_in_place() -> None:
    made = batch(0, 9, 4)
    made.set_max_timestamp(NOW_MS + 1_000)
    assert check(made) is None
    assert (made.max_timestamp, Batch(made.data).max_timestamp) == (NOW_MS + 9, NOW_MS + 9)


def test_bytes_behind_the_records_are_invalid() -> None:
    made = batch(0, 1)
    plain = memoryview(bytes(made.data[HEADER_BYTES : made.size]) + b"?")
    assert code_of(check_records(made, plain, BatchRules(), NOW_MS)) is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("keep", [0, 1, 5])
def test_records_that_end_early_are_invalid(keep: int) -> None:
    made = batch(0, 1)
    plain = made.data[HEADER_BYTES : HEADER_BYTES + keep]
    assert code_of(check_records(made, plain, BatchRules(), NOW_MS)) is ErrorCode.INVALID_RECORD


def test_offset_deltas_other_than_0_1_2_are_invalid() -> None:
    made = batch(0, 1)
    body = bytes(made.data[HEADER_BYTES : made.size])
    half = len(body) // 2
    swapped = memoryview(body[half:] + body[:half])
    error = check_records(made, swapped, BatchRules(), NOW_MS)
    assert code_of(error) is ErrorCode.INVALID_RECORD


# ------------------------------------------------------------------------------------------------------ compression


@pytest.mark.parametrize("codec", CODECS)
def test_records_of_each_codec_are_unpacked(codec: str) -> None:
    made = batch(0, 1, 2)
    plain = bytes(made.data[HEADER_BYTES : made.size])
    packed = Batch(memoryview(recompress(made, Compression(codec, {"lz4": 9, "zstd": 3}.get(codec, -1)))))
    unpacked = unpack(packed)
    assert isinstance(unpacked, memoryview)
    assert bytes(unpacked) == plain


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_records_that_cannot_be_decompressed_are_invalid(codec: str) -> None:
    made = batch(0, 1)
    made.attributes |= CODECS.index(codec)
    error = unpack(made)
    assert isinstance(error, RequestError)
    assert error.code is ErrorCode.INVALID_RECORD


def test_records_that_decompress_past_the_limit_are_too_large() -> None:
    made = Batch(memoryview(build_batch([Record(value=bytes(10_000))])))
    size = made.size - HEADER_BYTES
    packed = Batch(memoryview(recompress(made, Compression("zstd", 3))))
    assert isinstance(unpack(packed, bytes_max=size), memoryview)
    error = unpack(packed, bytes_max=size - 1)
    assert isinstance(error, RequestError)
    assert error.code is ErrorCode.MESSAGE_TOO_LARGE


def test_an_lz4_frame_that_java_refuses_is_invalid_though_it_could_be_decompressed() -> None:
    made = Batch(memoryview(recompress(batch(0), Compression("lz4", 9))))
    body = bytes(made.data[HEADER_BYTES : made.size])
    twice = Batch(memoryview(bytearray(bytes(made.data) + body)))
    struct.pack_into(">i", twice.data, 8, len(twice.data) - 12)
    error = unpack(Batch(twice.data))
    assert isinstance(error, RequestError)
    assert error.code is ErrorCode.INVALID_RECORD
    assert "Java's consumers read one" in error.message


# ------------------------------------------------------------------------------------------------------- lz4 frames

MAGIC = bytes.fromhex("04224d18")


def frame(flags: int = 0x60, sizes: int = 0x40, *, head: bytes = b"", tail: bytes = b"") -> bytes:
    """Return a frame of one uncompressed block of four bytes."""
    extra = bytes(8) if flags & 8 else b""
    block = struct.pack("<I", 4 | 1 << 31) + b"data" + (bytes(4) if flags & 16 else b"")
    return head + MAGIC + bytes((flags, sizes)) + extra + b"\0" + block + bytes(4) + tail


@pytest.mark.parametrize(
    "flags", [0x60, 0x68, 0x70, 0x78], ids=["plain", "content size", "block checksums", "size and block checksums"]
)
def test_an_lz4_frame_of_independent_blocks_is_accepted(flags: int) -> None:
    assert lz4_fault(memoryview(frame(flags))) == ""


def test_an_lz4_frame_may_end_with_a_checksum_of_its_content() -> None:
    assert lz4_fault(memoryview(frame(0x64, tail=bytes(4)))) == ""
    assert "in 19" in lz4_fault(memoryview(frame(0x64)))


def test_bmqs_own_lz4_frames_are_accepted() -> None:
    made = bytes(compress(Compression("lz4", 9), memoryview(PLAIN)))
    assert lz4_fault(memoryview(made)) == ""


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"", "no lz4 frame begins here"),
        (frame()[:6], "no lz4 frame begins here"),
        (frame(head=b"?"), "no lz4 frame begins here"),
        (frame(0x40), "independent blocks only"),
        (frame(0x20), "independent blocks only"),
        (frame(0x61), "independent blocks only"),
        (frame(0x62), "independent blocks only"),
        (frame(sizes=0x30), "unknown block size 3"),
        (frame(sizes=0x80), "unknown block size 8"),
        (frame()[:-1], "ends early"),
        (frame()[:9], "ends early"),
        (frame(tail=b"?"), "Java's consumers read one"),
        (frame() * 2, "Java's consumers read one"),
    ],
)
def test_an_lz4_frame_that_javas_reader_refuses_is_named(data: bytes, fault: str) -> None:
    assert fault in lz4_fault(memoryview(data))


@pytest.mark.parametrize("kept", [(), (0,), (2,), (0, 2), (0, 1, 2)])
def test_a_stored_batch_may_lack_records(kept: tuple[int, ...]) -> None:
    made = Batch(memoryview(bytearray(cleaned_batch(bytes(batch(0, 5, 9).data), kept))))
    before = bytes(made.data)
    assert stored_fault(made) == ""
    assert bytes(made.data) == before
    if 0 < len(kept) < 3:
        assert code_of(check(made)) is (ErrorCode.NONE if kept == (0,) else ErrorCode.INVALID_RECORD)


@pytest.mark.parametrize(("count", "says"), [(4, "4 records do not fit last offset delta 2"), (2, "record 2 of 2")])
def test_a_stored_batch_has_the_records_that_its_header_counts(count: int, says: str) -> None:
    made = batch(0, 5, 9)
    struct.pack_into(">i", made.data, 57, count)
    assert stored_fault(Batch(made.data)).startswith(says)

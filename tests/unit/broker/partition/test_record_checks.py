"""Batches whose records are not what their header says: refused with Kafka's code, before anything is stored."""

from __future__ import annotations

import asyncio
import gc
import struct
import time
import tracemalloc
import zlib
from collections.abc import Callable
from functools import cache
from typing import Any

import cramjam
import pytest
from crc32c import crc32c

from bmq.broker.partition import record_checks
from bmq.broker.partition.recompress import Outcome
from bmq.core.errors import ErrorCode
from bmq.core.records import check
from bmq.core.records.batch import HEADER_BYTES, Batch, BatchRules, Record, build_batch, encode_varint
from bmq.core.records.compression import Compression, recompress
from bmq.core.records.walk import Walker
from tests.simulation.world import read_log
from tests.unit.broker.world import idempotent, world

pytestmark = pytest.mark.slow

COMPILED = Walker()
assert COMPILED.load_compiled()


@pytest.fixture(params=["compiled", "in Python"], autouse=True)
def walker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Walker:
    """Run each test twice, with the compiled walker of records and with Python's."""
    chosen = COMPILED if request.param == "compiled" else Walker()
    monkeypatch.setattr(record_checks, "WALKER", chosen)
    monkeypatch.setattr(check, "WALKER", chosen)
    return chosen


def forged(
    records: bytes | bytearray | memoryview,
    count: int = 1,
    *,
    codec: int = 0,
    base_timestamp: int = 1000,
    max_timestamp: int = 1000,
) -> bytes:
    """Return a batch with a correct header and CRC around any bytes."""
    out = build_batch([Record()])[:HEADER_BYTES] + records
    struct.pack_into(">i", out, 8, len(out) - 12)
    struct.pack_into(">hiqq", out, 21, codec, count - 1, base_timestamp, max_timestamp)
    struct.pack_into(">i", out, 57, count)
    struct.pack_into(">I", out, 17, crc32c(memoryview(out)[21:]))
    return bytes(out)


def body(*values: bytes | None) -> bytes:
    return bytes(build_batch([Record(value=value) for value in values])[HEADER_BYTES:])


def lz4(data: bytes, *, is_checked: bool = False) -> bytes:
    """Compress ``data`` into the frame that librdkafka and aiokafka make."""
    compressor = cramjam.lz4.Compressor(level=1, content_checksum=is_checked, block_linked=False)
    compressor.compress(data)
    return bytes(compressor.finish())


ONE, FIVE = body(b"v"), body(b"1", b"2", b"3", b"4", b"5")
INVALID_RECORD, INVALID_TIMESTAMP = ErrorCode.INVALID_RECORD, ErrorCode.INVALID_TIMESTAMP

TABLE = [
    ("declares 2^31-1", forged(ONE, 2**31 - 1), INVALID_RECORD),
    ("declares 5, holds 1", forged(ONE, 5), INVALID_RECORD),
    ("declares 1, holds 5", forged(FIVE, 1), INVALID_RECORD),
    ("random bytes", forged(bytes(range(100, 180))), INVALID_RECORD),
    ("no records", forged(b""), INVALID_RECORD),
    ("record length -1", forged(encode_varint(-1) + ONE[1:]), INVALID_RECORD),
    ("record length 2^31-1", forged(encode_varint(2**31 - 1) + ONE[1:]), INVALID_RECORD),
    ("2^31-1 headers", forged(encode_varint(11) + ONE[1:-1] + encode_varint(2**31 - 1)), INVALID_RECORD),
    ("offset deltas 0, 0", forged(ONE + ONE, 2), INVALID_RECORD),
    ("no end of timestamps", forged(ONE, max_timestamp=-1, base_timestamp=1 << 62), INVALID_TIMESTAMP),
    *((f"{name} garbage", forged(b"\x00garbage" * 5, codec=codec), INVALID_RECORD)
      for codec, name in enumerate(("gzip", "snappy", "lz4", "zstd"), 1)),
    ("lz4, dependent blocks", forged(bytes(cramjam.lz4.compress(body(b"v" * 100_000))), codec=3), INVALID_RECORD),
    ("lz4, two frames", forged(lz4(body(b"v", b"w")[:9]) + lz4(body(b"v", b"w")[9:]), 2, codec=3), INVALID_RECORD),
    ("lz4, no end mark", forged(lz4(ONE)[:-4], codec=3), INVALID_RECORD),
    *((f"{name}, declares 5", bytes(recompress(Batch(memoryview(bytearray(forged(ONE, 5)))), Compression(name, level))),
       INVALID_RECORD) for name, level in (("gzip", 6), ("snappy", 0), ("lz4", 9), ("zstd", 3))),
]  # fmt: skip


@pytest.mark.parametrize(("data", "code"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
@pytest.mark.parametrize("acks", [-1, 1])
async def test_a_batch_with_wrong_records_is_refused_and_nothing_of_it_stored(
    data: bytes, code: ErrorCode, acks: int
) -> None:
    """Nothing of it is stored, and the next batch of its partition is."""

    async with world() as w:
        w.topic()
        part = await w.produce_one(data, acks=acks)
        assert (ErrorCode(part.error_code), part.base_offset) == (code, -1)
        assert (await w.produce_one(idempotent(0))).base_offset == 0
        assert len(await read_log(w.fs, 1, w.path())) == 1


@pytest.mark.parametrize("is_checked", [False, True])
async def test_lz4_frames_of_other_clients_are_taken(is_checked: bool) -> None:
    async with world() as w:
        w.topic()
        for values in ((b"v",), tuple(b"%d" % n * 5000 for n in range(50))):
            data = forged(lz4(body(*values), is_checked=is_checked), len(values), codec=3)
            assert (await w.produce_one(data)).error_code == 0


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd", "uncompressed"])
async def test_large_batches_are_checked_off_the_loop_in_their_order(codec: str) -> None:
    """Batches too large for the loop are checked off it, in the order of the requests, with the same verdicts."""
    calls = 0

    async def elsewhere(call: Callable[[], Outcome]) -> Outcome:
        nonlocal calls
        calls += 1
        await asyncio.sleep(0.01)
        return call()

    async with world(offload=elsewhere) as w:
        w.topic(max_message_bytes=str(10 << 20))
        level = {"gzip": 1, "lz4": 9, "zstd": 3}.get(codec, 0)
        compression = Compression("none" if codec == "uncompressed" else codec, level)
        values = [b"x" * 900_000] * 3
        sent = []
        for number in range(6):
            plain = forged(body(*values), 5 if number == 3 else 3)
            sent.append(w.produce({("orders", 0): recompress(Batch(memoryview(bytearray(plain))), compression)}))
        sent.append(w.produce({("orders", 0): idempotent(0)}))
        parts = [(await each)[0] for each in sent]
        assert [part.error_code for part in parts] == [0, 0, 0, INVALID_RECORD, 0, 0, 0]
        assert [part.base_offset for part in parts] == [0, 3, 6, -1, 9, 12, 15]
        assert calls == 7, "what comes behind a large one waits for it"


@pytest.mark.parametrize("claimed", [-1, 500, 10**9])
@pytest.mark.parametrize("codec", ["none", "zstd"])
async def test_a_largest_timestamp_that_is_not_the_headers_is_corrected(claimed: int, codec: str) -> None:
    """Correct the header as Kafka's broker does: retention and lookups by time use the header's timestamp."""

    async with world() as w:
        w.topic()
        plain = forged(body(b"v"), base_timestamp=2000, max_timestamp=claimed)
        sent = recompress(Batch(memoryview(bytearray(plain))), Compression(codec, 3))
        assert (await w.produce_one(sent)).error_code == 0
        (stored,) = await read_log(w.fs, 1, w.path())
        assert stored.max_timestamp == 2000
        assert stored.has_valid_crc


async def test_a_topic_that_stamps_batches_asks_no_record_for_its_time() -> None:
    async with world() as w:
        w.topic(message_timestamp_type="LogAppendTime")
        assert (await w.produce_one(forged(ONE, base_timestamp=1 << 62, max_timestamp=1 << 62))).error_code == 0


@cache
def bombs() -> dict[str, bytes]:
    """Return small batches that decompress to over 256 MB, or claim that they do, by codec."""
    zeros = bytes(16 << 20)
    packer = zlib.compressobj(9, wbits=31)
    gzip = b"".join(packer.compress(zeros) for _ in range(20)) + packer.flush()
    return {
        "gzip": forged(gzip, codec=1),
        "snappy": forged(b"\xff\xff\xff\x7f" + b"\x00" * 10, codec=2),
        "zstd": forged(bytes(cramjam.zstd.compress(bytes(300 << 20), level=1)), codec=4),
    }


async def test_batches_that_decompress_to_too_much_leave_no_memory_behind() -> None:
    """Refused again and again, on a topic with its own codec and on one without, they take no memory."""

    async with world() as w:
        w.topic()
        w.topic("packed", compression_type="lz4")
        made = bombs()
        expected = {"gzip": ErrorCode.MESSAGE_TOO_LARGE, "snappy": INVALID_RECORD, "zstd": ErrorCode.MESSAGE_TOO_LARGE}
        gc.collect()
        gc.disable()
        tracemalloc.start()
        try:
            for topic in ("orders", "packed"):
                for name, data in made.items():
                    part = (await w.produce({(topic, 0): data}))[0]
                    assert part.error_code == expected[name], name
            left, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            gc.enable()
        assert left < 16 << 20


async def test_gzip_of_empty_members_is_refused_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each member costs a decompressor: past 1,024 the batch is refused, whatever follows."""
    member = zlib.compressobj(9, wbits=31).flush()
    data = forged(member * 100_000, codec=1)
    members = 0
    make = zlib.decompressobj

    def counted(*arguments: Any) -> Any:
        nonlocal members
        members += 1
        return make(*arguments)

    monkeypatch.setattr(zlib, "decompressobj", counted)
    async with world() as w:
        w.topic(max_message_bytes=str(10 << 20))
        assert (await w.produce_one(data)).error_code == INVALID_RECORD
        assert members == 1024
        several = zlib.compress(ONE, wbits=31)
        assert (await w.produce_one(forged(member + several + member, codec=1))).error_code == 0


async def test_batches_of_a_closed_connection_are_not_checked() -> None:
    """Close the client's connection: its batches that no thread has begun are dropped."""
    done: list[int] = []

    async def slowly(call: Callable[[], Outcome]) -> Outcome:
        done.append(1)
        await asyncio.sleep(0.1)
        return call()

    async with world(offload=slowly) as w:
        w.topic(compression_type="zstd")
        await w.owner()
        for number in range(3):
            w.produce({("orders", 0): idempotent(number)})
        await asyncio.sleep(0.001)
        w.client.close()
        await asyncio.sleep(1)
        assert len(done) == 1
        assert (await w.produce_one(idempotent(0, producer_id=8), acks=1)).base_offset == 1


def small_records(size: int) -> tuple[bytes, int]:
    """Return as many records as fit into ``size`` bytes, each of seven to nine bytes, and their count."""
    out, count = bytearray(), 0
    while len(out) < size - 10:
        fields = b"\x00\x00" + encode_varint(count) + b"\x01\x01\x00"
        out += encode_varint(len(fields)) + fields
        count += 1
    return bytes(out), count


def small_headers(size: int) -> tuple[bytes, int]:
    """Return one record with headers of two bytes each (no name, no value), and the count 1."""
    count = size // 2 - 20
    fields = b"\x00\x00\x00\x01\x01" + encode_varint(count) + b"\x00\x01" * count
    return encode_varint(len(fields)) + fields, 1


@pytest.mark.parametrize("codec", ["none", "gzip", "lz4", "zstd"])
@pytest.mark.parametrize("worst", [small_records, small_headers])
def test_the_worst_bytes_stop_the_loop_for_less_than_50_ms(
    worst: Callable[[int], tuple[bytes, int]], codec: str, walker: Walker
) -> None:
    """The thread's own processor time of what is checked at once, at the limits; what is larger goes elsewhere."""
    limits = record_checks.COMPILED if walker.is_compiled else record_checks.IN_PYTHON
    records, count = worst((limits.plain if codec == "none" else limits.unpacked) - HEADER_BYTES)
    plain = Batch(memoryview(bytearray(forged(records, count))))
    batch = Batch(memoryview(recompress(plain, Compression(codec, {"gzip": 6, "lz4": 9, "zstd": 3}.get(codec, 0)))))
    rules = BatchRules()
    times = []
    for _ in range(3):
        began = time.thread_time()
        is_checked = record_checks.check_at_once(batch, rules, 2000)
        times.append(time.thread_time() - began)
        assert is_checked == (codec == "none" or batch.size <= limits.packed)
    assert min(times) < 0.05
    if codec == "none":
        larger = Batch(memoryview(bytearray(forged(records + bytes(HEADER_BYTES), count))))
        assert not record_checks.check_at_once(larger, rules, 2000)

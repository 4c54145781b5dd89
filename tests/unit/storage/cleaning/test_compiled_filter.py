"""The compiled filter of a round (storage/cleaning/compiled_filter.py, storage/cleaning/kernels.py), against the filter
in Python: on random logs, and on damaged records."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from crc32c import crc32c

from bmq.core import machine_code
from bmq.core.errors import FormatError
from bmq.core.records.batch import (
    CODECS,
    CRC_START,
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    LOG_APPEND_TIME,
    Batch,
    Record,
    build_batch,
)
from bmq.core.records.compression import Compression, recompress
from bmq.core.records.reader import RECORDS_BYTES_MAX
from bmq.storage.cleaning.batch_writer import cut_records
from bmq.storage.cleaning.compiled_filter import COMPILED_FILTERS, CompiledFilters, CompiledRecordFilter
from bmq.storage.cleaning.key_offsets import ENTRY_BYTES
from bmq.storage.cleaning.loops import layout
from bmq.storage.cleaning.record_filter import NOTHING, Kept, PythonRecordFilter, RecordFilter
from bmq.storage.cleaning.retention import NO_HORIZON
from tests.harness.seeds import seeds
from tests.unit.storage.cleaning.logs import BUFFER_BYTES, NOW_MS
from tests.unit.storage.cleaning.random_logs import random_log

pytestmark = pytest.mark.slow

assert COMPILED_FILTERS.load_compiled()
KERNELS: Any = machine_code.load("bmq.storage.cleaning.kernels")
SECRET = bytes(range(16))
HORIZON = NOW_MS + 86_400_000
OFFSETS = 10_000


def compiled(buffer_bytes: int = BUFFER_BYTES, offsets: int = OFFSETS) -> CompiledRecordFilter:
    return COMPILED_FILTERS.new(SECRET, buffer_bytes, offsets)


def batch_of(
    records: Sequence[Record], *, base_offset: int = 0, codec: str = "none", base_timestamp: int = NOW_MS
) -> Batch:
    batch = Batch(memoryview(build_batch(records, base_offset=base_offset, base_timestamp=base_timestamp)))
    return batch if codec == "none" else Batch(memoryview(recompress(batch, Compression(codec, 1))))


def random_record(rng: Random, keys: int) -> Record:
    key = rng.choice([None, b"", b"L" * 70_000, *([b"%d" % rng.randrange(keys) * rng.randrange(1, 9)] * 20)])
    return Record(
        key=key,
        value=None if rng.random() < 0.3 else rng.randbytes(rng.choice([0, 5, 70, 300])),
        headers=[("name", rng.choice([None, b"value"]))] if rng.random() < 0.1 else [],
        timestamp_delta=rng.choice([0, 1, -70, 1 << 20, rng.randrange(-(1 << 40), 1 << 40)]),
    )


def random_batches(rng: Random, count: int, *, keys: int = 30) -> list[Batch]:
    """Return batches of all codecs, some with LogAppendTime, dense from offset 0 on."""
    batches: list[Batch] = []
    for _ in range(count):
        records = [random_record(rng, keys) for _ in range(rng.choice([1, 2, 9, 40]))]
        base_offset = batches[-1].next_offset if batches else 0
        batch = batch_of(records, base_offset=base_offset, codec=rng.choice(CODECS))
        if rng.random() < 0.2:
            batch.set_append_time(NOW_MS + 5)
        batches.append(batch)
    return batches


def play(
    records: RecordFilter,
    batches: Sequence[Batch],
    *,
    first_dirty: int = 0,
    keeps_tombstones: bool = True,
    horizon: int = NO_HORIZON,
) -> tuple[list[Kept], int]:
    """Return what a round's filter keeps of each batch, and the number of passes."""
    numbers = [sum(batch.count for batch in batches[:at]) for at in range(len(batches))]
    passes = 1
    while True:
        for batch in batches:
            if batch.next_offset > first_dirty:
                records.map_batch(batch, first_dirty)
        if records.needs_marks:
            for batch, number in zip(batches, numbers, strict=True):
                records.mark_batch(batch, number)
        if not records.next_pass():
            break
        passes += 1
    kept = [
        records.keep(batch, number, keeps_tombstones=keeps_tombstones, horizon=horizon)
        for batch, number in zip(batches, numbers, strict=True)
    ]
    return [Kept(each.records, each.tombstones, bytes(each.data)) for each in kept], passes


def both(batches: Sequence[Batch], *, buffer_bytes: int, **how: Any) -> tuple[list[Kept], int]:
    """Return what both filters keep, and the passes of the compiled one."""
    found, passes = play(compiled(buffer_bytes), batches, **how)
    expected, _ = play(PythonRecordFilter(BUFFER_BYTES), batches, **how)
    assert found == expected
    return found, passes


# ------------------------------------------------------------------------------------------------------------ the hash


def sip_hash(data: bytes, secret: bytes = SECRET) -> bytes:
    words = KERNELS.sip_hash(np.frombuffer(data, np.uint8), *struct.unpack("<QQ", secret))
    return struct.pack("<QQ", *words)


def test_the_hash_is_siphash_2_4_with_128_bits() -> None:
    """The vectors are those of the reference implementation: key 00 to 0f, input 00, 01, ... of 0 to 63 bytes."""
    for size, expected in (
        (0, "a3817f04ba25a8e66df67214c7550293"),
        (1, "da87c1d86b99af44347659119b22fc45"),
        (7, "a1f1ebbed8dbc153c0b84aa61ff08239"),
        (8, "3b62a9ba6258f5610f83e264f31497b4"),
        (15, "5493e99933b0a8117e08ec0f97cfc3d9"),
        (63, "5150d1772f50834a503e069a973fbd7c"),
    ):
        assert sip_hash(bytes(range(size))).hex() == expected
    vectors = b"".join(sip_hash(bytes(range(size))) for size in range(64))
    assert hashlib.sha256(vectors).hexdigest() == "ecfaa9fe47ff788fa834a9863ea2715a2880cd37d2b8c3c194402838428119b9"


def test_the_secret_of_the_round_is_the_key_of_its_hashes() -> None:
    for secret in (SECRET, b"another secret!!"):
        records: Any = COMPILED_FILTERS.new(secret, BUFFER_BYTES, 4)
        records.map_batch(batch_of([Record(key=b"a key of 19 bytes..")], base_offset=7), 0)
        (entry,) = [entry for entry in records._table.reshape(-1, 3).tolist() if entry[2]]
        assert struct.pack("<QQ", *entry[:2]) == sip_hash(b"a key of 19 bytes..", secret)
        assert entry[2] == 8


# ------------------------------------------------------------------------------------------------------------ equality


@pytest.mark.parametrize("seed", seeds(12, 300))
def test_both_filters_keep_the_same_of_random_batches(seed: int) -> None:
    rng = Random(seed)
    batches = random_batches(rng, rng.choice([1, 4, 12]))
    horizon = rng.choice([NO_HORIZON, HORIZON, NOW_MS])
    how = {"horizon": horizon, "keeps_tombstones": rng.random() < 0.7}
    first_dirty = rng.choice([0, rng.randrange(batches[-1].next_offset)])
    found, _ = both(batches, buffer_bytes=BUFFER_BYTES, first_dirty=first_dirty, **how)
    # The next round has batches with missing records and horizons; its map takes several passes.
    left = [Batch(memoryview(each.data)) for each in found if each.data]
    first_new = left[-1].next_offset if left else 0
    for batch in random_batches(rng, 4):
        batch.assign(batch.base_offset + first_new, 0)
        left.append(batch)
    entries = rng.choice([2, 5, 12])
    _, passes = both(left, buffer_bytes=entries * ENTRY_BYTES, first_dirty=rng.choice([0, first_new]), **how)
    assert passes > 1


@pytest.mark.parametrize("seed", seeds(6, 100))
def test_both_filters_keep_the_same_of_random_logs(seed: int) -> None:
    rng = Random(seed)
    batches = [batch for batch in random_log(rng, 60).batches if not batch.is_control]
    for buffer_bytes in (BUFFER_BYTES, 4 * ENTRY_BYTES):
        both(batches, buffer_bytes=buffer_bytes, horizon=HORIZON)


def test_a_map_of_one_key_takes_a_pass_for_each_key() -> None:
    batches = [batch_of([Record(key=b"%d" % (at % 9))], base_offset=at) for at in range(30)]
    found, passes = both(batches, buffer_bytes=2 * ENTRY_BYTES)
    assert [each.records for each in found] == [0] * 21 + [1] * 9
    assert passes == 9


def test_a_pass_fills_at_least_a_quarter_of_the_map() -> None:
    batches = [batch_of([Record(key=b"%d" % (100 * at + n)) for n in range(100)]) for at in range(40)]
    for at, batch in enumerate(batches):
        batch.assign(100 * at, 0)
    _, passes = play(compiled(1_000 * ENTRY_BYTES), batches)
    assert 4_000 / 900 <= passes <= 4_000 / 225


def test_a_header_that_promises_many_records_costs_no_memory() -> None:
    batch = batch_of([Record(key=b"a", value=b"1")])
    struct.pack_into(">i", batch.data, 23, 0x7FFFFFFF)
    struct.pack_into(">i", batch.data, 57, 0x7FFFFFFF)
    batch = Batch(batch.data)
    records = compiled()
    before = records.mark_bytes
    for call in calls(records, batch):
        with pytest.raises(FormatError, match="record 1 of 2147483647"):
            call()
    assert records.mark_bytes == before


def test_marks_grow_with_the_records() -> None:
    batches = [batch_of([Record(key=b"%d" % (n % 7)) for n in range(9_000)]) for _ in range(9)]
    for at, batch in enumerate(batches):
        batch.assign(9_000 * at, 0)
    records = compiled(4 * ENTRY_BYTES)
    found, passes = play(records, batches)
    assert passes > 1
    assert [each.records for each in found] == [0] * 8 + [7]
    assert 81_000 / 8 <= records.mark_bytes <= 2 * 81_000 / 8


# ------------------------------------------------------------------------------------------------------------ the bytes


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_that_stays_is_its_own_bytes(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = batch_of([Record(key=b"a", value=b"1" * 100), Record(key=b"b", value=None)], codec=codec)
    records = compiled()
    records.map_batch(batch, 0)
    monkeypatch.delattr("bmq.storage.cleaning.compiled_filter.pack_records")
    kept = records.keep(batch, 0, keeps_tombstones=True, horizon=NO_HORIZON)
    assert kept == Kept(2, 1, batch.data)
    assert isinstance(kept.data, memoryview)
    assert kept.data.obj is batch.data.obj


def test_no_bytes_are_left_of_a_batch_without_records() -> None:
    first, second = (batch_of([Record(key=b"a")], base_offset=offset) for offset in range(2))
    records = compiled()
    records.map_batch(second, 0)
    assert records.keep(first, 0, keeps_tombstones=True, horizon=HORIZON) == NOTHING
    assert records.keep(second, 1, keeps_tombstones=False, horizon=HORIZON) == NOTHING


def test_batches_that_were_written_are_not_touched_by_the_next() -> None:
    batches = [batch_of([Record(key=b"a"), Record(key=b"b%d" % at, value=b"%d" % at * 9)]) for at in range(4)]
    for at, batch in enumerate(batches):
        batch.assign(2 * at, 0)
    records = compiled()
    for batch in batches:
        records.map_batch(batch, 0)
    kept = [records.keep(batch, 0, keeps_tombstones=True, horizon=NO_HORIZON) for batch in batches[:3]]
    for at, each in enumerate(kept):
        (record,) = cut_records(Batch(memoryview(each.data)))
        assert record.key == b"b%d" % at


@pytest.mark.parametrize("attributes", [0, LOG_APPEND_TIME])
def test_the_largest_timestamp_is_that_of_the_records_that_stay(attributes: int) -> None:
    batch = batch_of([Record(key=b"a", timestamp_delta=50), Record(key=b"b", timestamp_delta=-7), Record(key=b"a")])
    if attributes:
        batch.set_append_time(NOW_MS + 99)
    (kept,), _ = both([batch], buffer_bytes=BUFFER_BYTES)
    assert Batch(memoryview(kept.data)).max_timestamp == NOW_MS + (99 if attributes else 0)


# ----------------------------------------------------------------------------------------------------------- the bounds


def test_the_map_is_as_large_as_its_log_and_never_larger_than_the_buffer() -> None:
    assert layout.ENTRY_BYTES == ENTRY_BYTES == 24
    assert compiled(BUFFER_BYTES, 1 << 40).table_bytes == BUFFER_BYTES // 24 * 24
    assert compiled(BUFFER_BYTES, 100).table_bytes == 200 * 24
    assert compiled(BUFFER_BYTES, 0).table_bytes == 2 * 24
    with pytest.raises(ValueError, match="room for one key"):
        compiled(47)


def test_keys_that_share_a_hash_and_exceed_the_buffer_are_an_error() -> None:
    batch = batch_of([Record(key=b"a")])
    records: Any = compiled(2 * ENTRY_BYTES)
    records.map_batch(batch, 0)
    records._table[records._table != 0] += np.uint64(1)  # another key, whose first word is that of the key "b"
    records._table[records._table.nonzero()[0][0]] = struct.unpack_from("<Q", sip_hash(b"b"))[0]
    with pytest.raises(MemoryError, match="more than 1 keys share half of their hash"):
        records.map_batch(batch_of([Record(key=b"b")], base_offset=1), 0)


def test_records_that_need_more_than_the_limit_are_refused() -> None:
    batch = batch_of([Record(key=b"a", value=bytes(1000))], codec="zstd")
    records = CompiledRecordFilter(SECRET, BUFFER_BYTES, OFFSETS, 1_000)
    for call in calls(records, batch):
        with pytest.raises(FormatError, match=r"the batch at offset 0 cannot be cleaned: zstd .* limit of 1000 bytes"):
            call()


# ----------------------------------------------------------------------------------------------------------- the damage


def calls(records: RecordFilter, batch: Batch) -> list[Any]:
    """Return the calls that read the batch."""
    return [
        lambda: records.map_batch(batch, 0),
        lambda: records.mark_batch(batch, 0),
        lambda: records.keep(batch, 0, keeps_tombstones=True, horizon=HORIZON),
    ]


def damaged(batch: Batch, body: bytes, count: int, behind: bytes) -> Batch:
    """Return the batch with other bytes for its records; ``behind`` follows the batch in memory."""
    data = bytearray(batch.data[:HEADER_BYTES]) + body
    struct.pack_into(">i", data, 8, len(data) - LENGTH_OVERHEAD)
    struct.pack_into(">i", data, 57, count)
    struct.pack_into(">I", data, 17, crc32c(memoryview(data)[CRC_START:]))
    return Batch(memoryview(bytes(data) + behind)[: len(data)])


def refused(call: Any) -> str:
    """Return the start of the call's FormatError, "" without one."""
    try:
        call()
    except FormatError as error:
        return str(error).partition(":")[0]
    return ""


def check_verdict(batch: Batch) -> str:
    """Check that the filters agree about the batch in each call.  Return the start of the error, "" if it is right."""
    python = PythonRecordFilter(BUFFER_BYTES)
    expected = refused(lambda: list(cut_records(batch)))
    records = compiled(BUFFER_BYTES, 1_000)
    assert [refused(call) for call in calls(records, batch)] == [expected] * 3
    if not expected:
        found, wanted = (
            each.keep(batch, 0, keeps_tombstones=True, horizon=NO_HORIZON) for each in (compiled(), python)
        )
        assert found == wanted
        assert refused(lambda: play(compiled(), [batch])) == ""
    return expected


def mutations(rng: Random, body: bytes, count: int) -> Iterator[bytes]:
    for _ in range(count):
        data = bytearray(body)
        for _ in range(rng.choice([1, 1, 1, 2, 5])):
            data[rng.randrange(len(data))] = rng.choice([0, 1, 2, 0x7F, 0x80, 0xFE, 0xFF, rng.randrange(256)])
        yield bytes(data)


RIGHT = batch_of(
    [
        Record(key=b"a", value=b"1", headers=[("h", b"x")], timestamp_delta=1 << 40),
        Record(key=None, value=b"22", timestamp_delta=-5),
        Record(key=b"", value=None),
        Record(key=b"k" * 70, value=b"v" * 200),
    ]
)
BODY = bytes(RIGHT.data[HEADER_BYTES:])


@pytest.mark.parametrize("behind", [b"", bytes(64), b"\x02" * 64, b"\x80" * 64, b"\xff" * 64])
def test_every_truncation_is_refused_whatever_follows_in_memory(behind: bytes) -> None:
    for size in range(len(BODY)):
        assert check_verdict(damaged(RIGHT, BODY[:size], 4, behind)) == "the batch at offset 0 cannot be cleaned"
    assert check_verdict(damaged(RIGHT, BODY, 4, behind)) == ""
    for count in (-1, 1, 3, 5, 1 << 30):
        assert check_verdict(damaged(RIGHT, BODY, count, behind)) != ""
    for body, count in ((b"", -1), (b"", 0), (BODY, 0)):
        assert check_verdict(damaged(RIGHT, body, count, behind)) == ""
    assert check_verdict(damaged(RIGHT, BODY + b"\0", 4, behind)) != ""


def test_a_number_that_ends_in_the_next_record_is_refused() -> None:
    """The size of the first record's value would be below 0, which is null, with a byte of the second record."""
    body = bytes.fromhex("0a 00 00 00 01 81  0c 00 00 02 01 01 00")
    assert check_verdict(damaged(RIGHT, body, 2, b"")) == "the batch at offset 0 cannot be cleaned"
    body = bytes.fromhex("0a 00 00 00 01 01  0c 00 00 02 01 01 00")
    assert check_verdict(damaged(RIGHT, body, 2, b"")) == ""


@pytest.mark.parametrize("seed", seeds(4, 200))
def test_both_filters_judge_damaged_records_alike(seed: int) -> None:
    rng = Random(seed)
    verdicts = {check_verdict(damaged(RIGHT, body, 4, b"\x02" * 64)) for body in mutations(rng, BODY, 250)}
    assert verdicts == {"", "the batch at offset 0 cannot be cleaned"}


@pytest.mark.parametrize("codec", CODECS[1:])
def test_both_filters_judge_damaged_compression_alike(codec: str) -> None:
    rng = Random(codec)
    batch = Batch(memoryview(recompress(RIGHT, Compression(codec, 1))))
    verdicts = {
        check_verdict(damaged(batch, body, 4, b"")) for body in mutations(rng, bytes(batch.data[HEADER_BYTES:]), 60)
    }
    assert "the batch at offset 0 cannot be cleaned" in verdicts


# ----------------------------------------------------------------------------------------------------------- the loader


def test_there_is_no_compiled_filter_without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    filters = CompiledFilters()
    assert not filters.load_compiled()
    assert not filters.is_compiled


def test_the_machine_code_is_kept() -> None:
    for kernel in (KERNELS.map_records, KERNELS.mark_records, KERNELS.keep_records, KERNELS.sip_hash):
        assert len(kernel.signatures) == 1
        assert kernel.stats.cache_path


def test_machine_code_of_other_parts_is_not_loaded() -> None:
    parts = machine_code.digest("bmq.storage.cleaning.loops")
    for name in ("map_records", "mark_records", "keep_records", "sip_hash"):
        folder = Path(getattr(KERNELS, name).stats.cache_path)
        assert [*folder.glob(f"kernels.{name}-{parts}-*.nbi")], folder


def test_a_filter_has_kafkas_limit_of_a_batch() -> None:
    records: Any = compiled()
    assert records._records.bytes_max == RECORDS_BYTES_MAX

"""The decoder gives, record for record, what kafka-python reads from the same bytes; and builds what is asked only."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bmq.core.model import PartitionKey, SegmentName
from bmq.core.records.batch import CODECS, Batch
from bmq.core.records.compression import Compression, recompress
from bmq.spark.decoding import columns as columns_module
from bmq.spark.decoding import decoder as decode_module
from bmq.spark.decoding.decoder import COLUMNS, BatchDecoder, DecodeOptions, read_segment, schema
from bmq.storage.checkpoint import AbortedTransaction, Checkpoint
from bmq.storage.segment import encode_idx
from tests.unit.spark.batches import (
    NOW,
    PARTITION,
    TOPIC,
    Item,
    Row,
    built,
    changed,
    empty,
    marker,
    plain,
    read_by_kafka,
    rows_of,
)

pytestmark = pytest.mark.slow

_nullable = st.none() | st.binary(max_size=40) | st.binary(min_size=120, max_size=300)
_headers = st.lists(st.tuples(st.text(max_size=6), st.none() | st.binary(max_size=140)), max_size=3)


@st.composite
def items(draw: st.DrawFn) -> list[Item]:
    """Draw a batch's records; gaps between offsets are as compaction leaves them."""
    delta, found = draw(st.integers(0, 2)), []
    for _ in range(draw(st.integers(1, 8))):
        time = draw(st.integers(0, 1 << 50))
        found.append(Item(delta, draw(_nullable), draw(_nullable), draw(_headers), time))
        delta += draw(st.sampled_from([1, 1, 1, 2, 70]))
    return found


@st.composite
def segments(draw: st.DrawFn) -> bytes:
    data, offset = b"", draw(st.integers(0, 1 << 40))
    for _ in range(draw(st.integers(1, 6))):
        offset += draw(st.sampled_from([0, 0, 3]))
        if draw(st.integers(0, 7)) == 0:
            data += empty(offset, 4)
        else:
            codec = draw(st.integers(0, 4))
            append_time = draw(st.sampled_from([None, None, NOW]))
            data += built(draw(items()), offset, codec, append_time=append_time)
        offset = Batch(memoryview(data)[_last(data) :]).next_offset
    return data


def _last(data: bytes) -> int:
    at = 0
    while at + Batch(memoryview(data)[at:]).size < len(data):
        at += Batch(memoryview(data)[at:]).size
    return at


def table(
    data: bytes, columns: Sequence[str] = COLUMNS, aborted: Sequence[tuple[int, int]] = (), **options: Any
) -> Any:
    wanted = DecodeOptions(columns=tuple(columns), **options)
    return read_segment(data, wanted, topic=TOPIC, partition=PARTITION, aborted=aborted)


@pytest.mark.parametrize("codec", [codec for codec in CODECS if codec != "none"])
def test_an_empty_batch_with_compressed_bytes_holds_nothing(codec: str) -> None:
    """Read it as Kafka's consumers do, which look at no bytes of a batch that counts no records."""
    packed = bytes(recompress(Batch(memoryview(built([Item(0)], 4))), Compression(codec)))
    data = changed(packed, last_delta=2, count=0)
    whole = data + built([Item(0)], 7)
    found = rows_of(read_segment(whole, DecodeOptions(columns=COLUMNS)))
    assert [row.offset for row in found] == [7]


def offsets(data: bytes, **options: Any) -> list[int]:
    return [int(value) for value in table(data, ("offset",), **options).column("offset").to_pylist()]


def test_the_schema_is_that_of_sparks_kafka_source() -> None:
    entry = pa.struct([("key", pa.string()), ("value", pa.binary())])
    assert schema(COLUMNS) == pa.schema(
        [
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("us", tz="UTC")),
            ("timestampType", pa.int32()),
            ("headers", pa.list_(entry)),
        ]
    )
    assert table(plain(0)).schema == schema(COLUMNS)
    with pytest.raises(ValueError, match="no column 'nothing'"):
        schema(("offset", "nothing"))


@given(segments())
@settings(max_examples=60)
def test_all_columns_as_kafka_python_reads_them(data: bytes) -> None:
    assert rows_of(table(data)) == read_by_kafka(data)


@given(segments(), st.data())
@settings(max_examples=60)
def test_any_columns_of_any_range(data: bytes, draw: st.DataObject) -> None:
    """The rows are the same whichever shortcut a choice of columns opens."""
    every = read_by_kafka(data)
    first = every[0].offset if every else 0
    names = draw.draw(st.lists(st.sampled_from(COLUMNS), unique=True))
    start = first + draw.draw(st.integers(-2, 40))
    end = start + draw.draw(st.integers(0, 60) | st.just(1 << 50))
    times = [None, NOW, *(row.timestamp // 1000 for row in every)]
    since, until = draw.draw(st.sampled_from(times)), draw.draw(st.sampled_from(times))
    wanted = [
        row
        for row in every
        if start <= row.offset < end
        and (since is None or row.timestamp >= since * 1000)
        and (until is None or row.timestamp < until * 1000)
    ]
    options: dict[str, Any] = {
        "start_offset": max(start, 0),
        "end_offset": end,
        "start_timestamp": since,
        "end_timestamp": until,
    }
    found = table(data, names, **options)
    assert found.num_rows == len(wanted)
    assert found.column_names == names
    full = rows_of(table(data, **options))
    assert full == wanted
    for name in names:
        assert found.column(name).equals(table(data, **options).column(name))


@pytest.mark.parametrize("codec", range(5), ids=CODECS)
def test_big_records_of_each_codec(codec: int) -> None:
    big = bytes(range(256)) * 40_000  # more than a buffer of the decoder
    data = (
        plain(0, codec=codec) + built([Item(0, None, big), Item(1, big[:-1], None)], 3, codec) + plain(5, codec=codec)
    )
    assert rows_of(table(data)) == read_by_kafka(data)


@pytest.mark.parametrize("codec", CODECS)
def test_the_framing_of_javas_clients(codec: str) -> None:
    """The framing has snappy's blocks, each behind its length."""
    data = bytes(recompress(Batch(memoryview(plain(0, 2000))), Compression(codec, {"gzip": 6, "lz4": 9}.get(codec, 3))))
    assert rows_of(table(data)) == read_by_kafka(plain(0, 2000))


def test_append_time_beside_create_time_in_one_record_batch() -> None:
    data = plain(0, codec=3) + plain(3, append_time=NOW - 5) + plain(6, codec=4, append_time=NOW - 4)
    (batch,) = table(data).to_batches()
    assert batch.column("timestampType").to_pylist() == [0] * 3 + [1] * 6
    assert batch.column("timestamp").cast(pa.int64())[3:].to_pylist() == [(NOW - 5) * 1000] * 3 + [(NOW - 4) * 1000] * 3
    assert offsets(data, end_timestamp=NOW - 4) == [3, 4, 5]


def test_a_batch_larger_than_a_record_batch_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (columns_module, decode_module):
        monkeypatch.setattr(module, "ROWS_MAX", 4)
        monkeypatch.setattr(module, "BYTES_MAX", 100)
    headers = [("h" * 60, b"x")]
    data = (
        plain(0, 2) + built([Item(i, b"k", b"v" * (i * 9), headers if i % 3 else ()) for i in range(11)], 2) + plain(13)
    )
    decoder = BatchDecoder(TOPIC, PARTITION, DecodeOptions(columns=COLUMNS), where="x")
    batches = list(decoder.decode(data, 0))
    assert rows_of(batches) == read_by_kafka(data)
    assert max(batch.num_rows for batch in batches) <= 4
    values = [sum(map(len, batch.column("value").to_pylist())) for batch in batches if batch.num_rows > 1]
    assert max(values) <= 100
    counts = BatchDecoder(TOPIC, PARTITION, DecodeOptions(columns=()), where="x").decode(data, 0)
    assert sum(batch.num_rows for batch in counts) == 16


def test_many_batches_pass_through_a_small_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_module, "BATCHES_MAX", 3)
    data = b"".join(plain(base, codec=base % 5) for base in range(0, 60, 3))
    assert rows_of(table(data)) == read_by_kafka(data)


def test_a_file_in_parts() -> None:
    parts = [plain(base, codec=base % 5) for base in range(0, 60, 3)]
    decoder = BatchDecoder(TOPIC, PARTITION, DecodeOptions(columns=COLUMNS, start_offset=4, end_offset=50), where="x")
    found: list[Row] = []
    for index in range(0, len(parts), 4):
        found += rows_of(list(decoder.decode(memoryview(b"".join(parts[index : index + 4])), 0)))
    assert found == read_by_kafka(b"".join(parts))[4:50]
    assert list(decoder.decode(b"", 0)) == []


def test_what_a_header_tells_needs_no_records() -> None:
    """Spoil the compressed body: fields of the header are returned without decompressing it."""
    spoiled = bytearray(plain(0, 5, codec=4))
    spoiled[61:] = bytes(len(spoiled) - 61)
    append_time = bytearray(spoiled)
    batch = Batch(memoryview(append_time))
    batch.set_append_time(NOW)
    assert offsets(bytes(append_time), start_offset=1, end_offset=4) == [1, 2, 3]
    assert table(bytes(append_time), ()).num_rows == 5
    assert table(bytes(append_time), ("topic", "timestampType", "timestamp")).num_rows == 5
    with pytest.raises(decode_module.CorruptSegment):
        table(bytes(append_time), ("value",))


def test_behind_the_last_offset_nothing_is_looked_at() -> None:
    """Leftovers of a failed write may end anywhere."""
    data = plain(0) + plain(3) + plain(6)[:50]
    assert offsets(data, end_offset=6) == list(range(6))
    assert offsets(data, end_offset=5) == list(range(5))


def test_times_and_names_that_arrow_cannot_tell() -> None:
    far = built([Item(0, timestamp=1 << 60), Item(1, headers=[("é", b"x")])])
    decoder = BatchDecoder(TOPIC, PARTITION, DecodeOptions(columns=COLUMNS), where="x")
    first, second = rows_of(list(decoder.decode(far, 0)))
    assert first.timestamp == (2**63 - 1) // 1000 * 1000
    assert second.headers == (("é", b"x"),)
    assert decoder.replaced == 1
    latin = bytearray(built([Item(0, headers=[("no", b""), ("né", b"x")])]))
    at = latin.index("né".encode())
    latin[at + 1 : at + 3] = b"\xe9\xe9"
    decoder = BatchDecoder(TOPIC, PARTITION, DecodeOptions(columns=COLUMNS), where="x")
    (row,) = rows_of(list(decoder.decode(changed(bytes(latin)), 0)))
    assert row.headers == (("no", b""), ("n\ufffd\ufffd", b"x"))
    assert decoder.replaced == 1


# ------------------------------------------------------------------------------------------------- transactions


@given(st.lists(st.tuples(st.integers(1, 3), st.sampled_from(["data", "data", "commit", "abort"])), max_size=25))
@settings(max_examples=60)
def test_aborted_transactions_of_producers_that_interleave(steps: list[tuple[int, str]]) -> None:
    """Interleave transactions of three producers with plain records; every transaction is decided in the end."""
    data, offset = b"", 0
    seen: set[int] = set()
    open_offsets: dict[int, list[int]] = {}
    aborted: list[tuple[int, int]] = []
    for producer, step in [*steps, *((producer, "abort") for producer in (3, 1, 2))]:
        if step == "data":
            data += plain(offset, 2, codec=producer, producer_id=producer, is_transactional=True)
            data += plain(offset + 2, 1, producer_id=producer)
            open_offsets.setdefault(producer, []).extend((offset, offset + 1))
            seen.add(offset + 2)
            offset += 3
        elif (written := open_offsets.pop(producer, None)) is not None:
            data += marker(offset, producer, is_commit=step == "commit")
            offset += 1
            if step == "commit":
                seen.update(written)
            else:
                aborted.append((producer, written[0]))
    assert offsets(data, aborted=aborted) == sorted(seen)
    assert offsets(data, aborted=aborted, committed=False) == [row.offset for row in read_by_kafka(data)]


def test_control_batches_of_another_kind_are_no_records() -> None:
    leader = built([Item(0, b"\0\0\0\2", b"leader change")], 3)
    data = plain(0) + changed(leader, attributes=0x20) + plain(4)
    for committed in (True, False):
        assert offsets(data, committed=committed) == [0, 1, 2, 4, 5, 6]


# ------------------------------------------------------------------------------------------------- files


def test_a_file_tells_its_place_and_its_aborted_transactions(tmp_path: Path) -> None:
    folder = tmp_path / TOPIC / str(uuid.UUID(int=7)) / str(PARTITION)
    folder.mkdir(parents=True)
    name = SegmentName(0, 1, 0)
    data = plain(0, producer_id=9, is_transactional=True) + marker(3, 9, is_commit=False) + plain(4)
    path = folder / f"{name}.log"
    path.write_bytes(data)
    every = read_by_kafka(data)
    assert rows_of(read_segment(path)) == every  # open: nothing is known of transactions
    checkpoint = Checkpoint(
        key=PartitionKey(uuid.UUID(int=7), PARTITION), segment=name, position=len(data), end_offset=7, log_start=0,
        is_closed=True, max_timestamp=NOW, max_timestamp_offset=0, aborted=(AbortedTransaction(9, 0, 3, 0),),
    )  # fmt: skip
    path.with_suffix(".idx").write_bytes(encode_idx(checkpoint))
    assert rows_of(read_segment(str(path))) == every[3:]
    other = tmp_path / "any.log"
    other.write_bytes(data)
    assert set(read_segment(other).column("topic").to_pylist()) == {""}
    (tmp_path / "none.log").write_bytes(b"")
    assert read_segment(tmp_path / "none.log").num_rows == 0


@pytest.mark.parametrize("codec", range(len(CODECS)))
def test_what_is_given_out_are_copies(codec: int) -> None:
    """The bytes' memory is used again for others, while Spark may not have sent what was made of them."""
    data = bytearray(plain(0, 50, codec) + plain(50, 50, codec))
    expected = rows_of(read_segment(bytes(data)))
    found = list(BatchDecoder("", 0, DecodeOptions(columns=COLUMNS), where="test").decode(data, 0))
    data[:] = bytes(len(data))
    assert rows_of(pa.Table.from_batches(found)) == expected

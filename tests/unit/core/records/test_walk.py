"""The walk over records (core/records/walk.py, core/records/kernels.py): both implementations, held against each other
and against kafka-python's and aiokafka's parsers, on right bytes and on mutated ones."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AioBatch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch as KafkaBatch

from bmq.core.errors import FormatError
from bmq.core.records.batch import HEADER_BYTES, Batch, Record, build_batch, encode_record, encode_varint
from bmq.core.records.reader import read_records, read_varint
from bmq.core.records.walk import Fault, Walk, Walker, walk_python
from tests.harness.seeds import example_count

pytestmark = pytest.mark.slow

ALL = (-(1 << 63), (1 << 63) - 1)
COMPILED = Walker()
assert COMPILED.load_compiled()
IN_PYTHON = Walker()

payloads = st.one_of(st.none(), st.binary(max_size=200))
records = st.builds(
    Record,
    key=payloads,
    value=payloads,
    headers=st.lists(st.tuples(st.text(max_size=8), st.one_of(st.none(), st.binary(max_size=80))), max_size=3),
    timestamp_delta=st.integers(-(1 << 40), 1 << 40),
)


def both(
    data: bytes,
    count: int,
    base: int = 0,
    bounds: tuple[int, int] = ALL,
    *,
    needs_key: bool = False,
    missing: int = 0,
) -> Walk:
    """Return the verdict on which both agree."""
    compiled = COMPILED.walk(memoryview(data), count, base, *bounds, needs_key, missing)
    assert compiled == IN_PYTHON.walk(memoryview(data), count, base, *bounds, needs_key, missing)
    return compiled


def body(*made: Record) -> bytes:
    return bytes(build_batch(made)[HEADER_BYTES:])


def without_attributes(data: bytearray) -> bytearray:
    """Clear the attributes of valid records: Kafka ignores the byte, the other parsers take it for a varint."""
    at = 0
    while at < len(data):
        length, at = read_varint(memoryview(data), at)
        data[at] = 0
        at += length
    return data


@settings(deadline=None, max_examples=example_count(33, 1_000))
@given(st.lists(records, min_size=1, max_size=20), st.integers(-(1 << 62), 1 << 62))
def test_right_batches_are_right(made: list[Record], base: int) -> None:
    largest = max(-1, *(base + record.timestamp_delta for record in made))
    assert both(body(*made), len(made), base) == (Fault.FINE, len(made), largest)


@settings(deadline=None, max_examples=example_count(75, 3_000))
@given(st.lists(records, min_size=1, max_size=6), st.integers(1, 8), st.data())
def test_mutated_batches_get_one_verdict(made: list[Record], count: int, data: st.DataObject) -> None:
    """Bytes are changed, dropped and repeated, and the count lies: both agree, and what they pass is read by others."""
    bad = bytearray(body(*made))
    for _ in range(data.draw(st.integers(0, 3), "mutations")):
        at = data.draw(st.integers(0, len(bad) - 1), "at") if bad else 0
        match data.draw(st.integers(0, 2), "kind"):
            case 0 if bad:
                bad[at] = data.draw(st.integers(0, 255), "byte")
            case 1:
                bad[at:at] = bytes(data.draw(st.lists(st.integers(0, 255), max_size=6), "inserted"))
            case _:
                del bad[at : at + data.draw(st.integers(1, 6), "dropped")]
    verdict = both(bytes(bad), count)
    if verdict.fault == Fault.FINE:
        whole = build_batch(made[:1] * count)[:HEADER_BYTES] + without_attributes(bad)
        whole[8:12] = (len(whole) - 12).to_bytes(4, "big")
        ours = list(read_records(Batch(memoryview(whole))))
        assert len(ours) == count
        if not any("\\x" in name for record in ours for name, _ in record.headers):  # not UTF-8: Kafka does not mind
            for parser in (KafkaBatch, AioBatch):
                assert len(list(parser(bytes(whole)))) == count


@settings(deadline=None, max_examples=example_count(75, 3_000))
@given(st.binary(max_size=400), st.integers(1, 1 << 31))
def test_any_bytes_get_one_verdict(data: bytes, count: int) -> None:
    both(data, count)


@settings(deadline=None, max_examples=example_count(75, 3_000))
@given(st.lists(records, min_size=1, max_size=6), st.integers(0, 400), st.integers(0, 255))
def test_what_our_reader_refuses_is_refused(made: list[Record], at: int, byte: int) -> None:
    bad = bytearray(build_batch(made))
    bad[HEADER_BYTES + at % (len(bad) - HEADER_BYTES)] = byte
    try:
        list(read_records(Batch(memoryview(bad))))
    except FormatError:
        assert both(bytes(bad[HEADER_BYTES:]), len(made)).fault != Fault.FINE


@settings(deadline=None)
@given(st.integers(*ALL), st.integers(-(1 << 63), (1 << 63) - 1))
@example(ALL[1], 1)
@example(ALL[0], -1)
def test_timestamps_wrap_as_javas_do(base: int, delta: int) -> None:
    """The sum of base and delta is a Java long, whatever they are."""
    encoded = b"\x00" + encode_varint(delta) + encode_varint(0) + encode_varint(-1) * 2 + encode_varint(0)
    total = (base + delta + (1 << 63)) % (1 << 64) - (1 << 63)
    assert both(encode_varint(len(encoded)) + encoded, 1, base).max_timestamp == max(-1, total)


RIGHT = body(Record(key=b"k", value=b"v", headers=[("h", b"x")]), Record(value=b"w"))


@pytest.mark.parametrize(
    ("data", "count", "fault", "number"),
    [
        (RIGHT, 2, Fault.FINE, 2),
        (RIGHT, 1, Fault.BATCH_END, 1),
        (RIGHT, 3, Fault.NUMBER, 2),
        (RIGHT, 2**31 - 1, Fault.NUMBER, 2),
        (b"", 1, Fault.NUMBER, 0),
        (encode_varint(-1), 1, Fault.LENGTH, 0),
        (encode_varint(2**31 - 1) + RIGHT[1:], 2, Fault.LENGTH, 0),
        (b"\x80" * 6 + RIGHT, 2, Fault.NUMBER, 0),
        (body(Record()) * 2, 2, Fault.OFFSET_DELTA, 1),
        (encode_varint(6) + b"\x00\x00\x00\x05\x01\x00", 1, Fault.FIELD, 0),
        (encode_varint(6) + b"\x00\x00\x00\x01\x01\x7e", 1, Fault.HEADERS, 0),
        (encode_varint(7) + b"\x00\x00\x00\x01\x01\x00\x00", 1, Fault.RECORD_END, 0),
    ],
)
def test_each_fault(data: bytes, count: int, fault: Fault, number: int) -> None:
    assert both(data, count)[:2] == (fault, number)


def at_deltas(*deltas: int) -> bytes:
    encoded = [encode_record(delta, Record(key=b"k")) for delta in deltas]
    return b"".join(encode_varint(len(each)) + each for each in encoded)


@settings(deadline=None, max_examples=example_count(50, 2_000))
@given(st.lists(st.integers(-2, 8), max_size=6), st.integers(0, 6))
@example([0, 2, 4], 2)
@example([2, 3, 4], 2)
@example([0, 2, 2], 1)
@example([0, 3], 1)
def test_offset_deltas_rise_within_the_offsets_of_the_batch(deltas: list[int], missing: int) -> None:
    """A stored batch of ``count`` records may lack ``missing``; a produced batch lacks none."""
    found = both(at_deltas(*deltas), len(deltas), missing=missing)
    rises = all(low < high for low, high in pairwise([-1, *deltas]))
    is_right = rises and (not deltas or deltas[-1] < len(deltas) + missing)
    assert (found.fault == Fault.FINE) == is_right
    if not is_right:
        assert found.fault == Fault.OFFSET_DELTA
    if deltas != list(range(len(deltas))):
        assert both(at_deltas(*deltas), len(deltas)).fault == Fault.OFFSET_DELTA


def test_timestamps_are_judged_last() -> None:
    """Kafka collects them, and meets broken structure first; -1 means that a record has none."""
    data = body(Record(timestamp_delta=50), Record(timestamp_delta=-1), Record(timestamp_delta=7))
    assert both(data, 3, 0, (0, 49)) == (Fault.TIMESTAMP, 0, 50)
    assert both(data, 3, 0, (8, 50)) == (Fault.TIMESTAMP, 2, 50)
    assert both(data, 3, 0, (0, 50)) == (Fault.FINE, 3, 50)
    assert both(data + b"x", 3, 0, (0, 49)).fault == Fault.BATCH_END


@settings(deadline=None, max_examples=example_count(50, 2_000))
@given(
    st.lists(records, min_size=1, max_size=20),
    st.integers(*ALL),
    st.tuples(st.integers(*ALL), st.integers(*ALL)),
    st.booleans(),
    st.integers(1, 25),
)
@example([Record(key=b"k", timestamp_delta=7), Record(), Record(key=b"")], 0, (0, 5), True, 1)
def test_bad_records_are_found_and_named_alike(
    made: list[Record], base: int, bounds: tuple[int, int], needs_key: bool, limit: int
) -> None:
    """The verdict is that of the first bad record, TIMESTAMP before KEY; both name the same records, up to a limit."""
    data, earliest, latest = body(*made), *bounds
    verdict = both(data, len(made), base, bounds, needs_key=needs_key)
    keyless = [number for number, record in enumerate(made) if needs_key and record.key is None]
    times = [(base + record.timestamp_delta + (1 << 63)) % (1 << 64) - (1 << 63) for record in made]
    untimely = [at for at, time in enumerate(times) if not (time == -1 or earliest <= time <= latest)]
    of_time = [number for number in untimely if number not in keyless]
    if of_time:
        assert verdict[:2] == (Fault.TIMESTAMP, of_time[0])
    elif keyless:
        assert verdict[:2] == (Fault.KEY, keyless[0])
    else:
        assert verdict.fault == Fault.FINE
    named = COMPILED.bad_records(memoryview(data), len(made), base, *bounds, needs_key, limit)
    assert named == IN_PYTHON.bad_records(memoryview(data), len(made), base, *bounds, needs_key, limit)
    bad = sorted({*keyless, *of_time})
    assert named == (len(bad), [(number, number in keyless, times[number]) for number in bad[:limit]])


def test_a_walk_in_python_is_there_without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    walker = Walker()
    assert not walker.load_compiled()
    assert not walker.is_compiled
    assert walker.walk(memoryview(RIGHT), 2, 0, *ALL) == walk_python(RIGHT, 2, 0, *ALL)


def test_the_machine_code_is_kept() -> None:
    from bmq.core.records import kernels

    each: list[Any] = [kernels.walk, kernels.bad_records]
    for kernel in each:
        assert len(kernel.signatures) == 1
        assert kernel.stats.cache_path

"""``python -m bench.decode``: the decoder alone on one core, beside aiokafka's parser in C, both into Arrow.

Batches are of 16 KB before compression, Kafka's default ``batch.size``; values are of words, so that lz4 can compress
them.  Each figure is the best of alternating rounds: other work on the machine makes a round slower, never faster.
MB/s are of records before compression.  Times are CPU seconds of this process.
"""

from __future__ import annotations

import argparse
import random
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
from aiokafka.record.memory_records import MemoryRecords

from bmq.core.records.batch import Batch, Record, build_batch
from bmq.core.records.compression import Compression, recompress
from bmq.spark.decoding.decoder import COLUMNS, BatchDecoder, DecodeOptions, schema

BATCH_BYTES = 16 << 10
KEY_BYTES = 10
NOW = 1_700_000_000_000
LZ4_LEVEL = 9  # Kafka's default
WANTED = {"all columns": COLUMNS, "offset, value": ("offset", "value"), "offset": ("offset",), "count": ()}


@dataclass(frozen=True, slots=True)
class Sample:
    """A segment in memory."""

    record_bytes: int
    codec: str
    data: bytes
    rows: int
    plain_bytes: int


def sample(record_bytes: int, codec: str, size: int) -> Sample:
    """Return a segment of ``size`` bytes of records, before compression."""
    chance = random.Random(record_bytes)
    words = [bytes(chance.choices(b"abcdefghijklmnopqrstuvwxyz", k=5)) + b" " for _ in range(2000)]
    count = BATCH_BYTES // record_bytes
    out, rows, plain_bytes = bytearray(), 0, 0
    while plain_bytes < size:
        values = [
            b"".join(chance.choices(words, k=record_bytes // 6))[: record_bytes - KEY_BYTES] for _ in range(count)
        ]
        records = [Record(key=b"%0*d" % (KEY_BYTES, i), value=v, timestamp_delta=i) for i, v in enumerate(values)]
        batch = build_batch(records, base_timestamp=NOW)
        plain_bytes += len(batch)
        if codec != "none":
            batch = recompress(Batch(memoryview(batch)), Compression(codec, LZ4_LEVEL))
        struct.pack_into(">q", batch, 0, rows)
        out += batch
        rows += count
    return Sample(record_bytes, codec, bytes(out), rows, plain_bytes)


def by_decoder(data: bytes, columns: tuple[str, ...]) -> int:
    """Decode a segment with BMQ's decoder and return the number of rows."""
    decoder = BatchDecoder("flights", 0, DecodeOptions(columns=columns), where="bench")
    return sum(batch.num_rows for batch in decoder.decode(data, 0))


def by_aiokafka(data: bytes, columns: tuple[str, ...]) -> int:
    """Parse as a program of one's own would: the parser's records into lists, these into Arrow.  Returns the rows."""
    records = MemoryRecords(data)
    rows = 0
    lists: tuple[list[object], ...] = ([], [], [], [], [])
    keys, values, offsets, times, headers = lists
    while (batch := records.next_batch()) is not None:
        assert batch.validate_crc()
        for record in batch:
            rows += 1
            offsets.append(record.offset)
            if len(columns) < 2:
                continue
            values.append(record.value)
            if len(columns) > 2:
                keys.append(record.key)
                times.append(record.timestamp * 1000)
                headers.append(record.headers or None)
        if len(offsets) >= 1 << 16:
            _arrays(lists)
    _arrays(lists)
    return rows


def _arrays(lists: tuple[list[object], ...]) -> None:
    """Make the arrays of a record batch, and drop them."""
    types = schema(COLUMNS)
    for name, column in zip(("key", "value", "offset", "timestamp", "headers"), lists, strict=True):
        if column:
            pa.array(column, types.field(name).type)
    if count := len(lists[0]):
        for constant, kind in (("flights", pa.string()), (0, pa.int32()), (0, pa.int32())):
            pa.repeat(pa.scalar(constant, kind), count)
    for column in lists:
        column.clear()


def seconds(work: Callable[[bytes, tuple[str, ...]], int], case: Sample, columns: tuple[str, ...]) -> float:
    """Return the CPU seconds of decoding a segment, whose number of rows is checked."""
    began = time.process_time()
    rows = work(case.data, columns)
    took = time.process_time() - began
    assert rows == case.rows, (rows, case.rows)
    return took


def measure(case: Sample, columns: tuple[str, ...], rounds: int) -> tuple[float, float]:
    """Return the seconds of the decoder and of aiokafka, each at its best."""
    small = Sample(case.record_bytes, case.codec, *_first(case, 8 << 20))
    ours, theirs = [], []
    for _ in range(rounds):
        ours.append(seconds(by_decoder, case, columns))
        theirs.append(seconds(by_aiokafka, small, columns) * case.rows / small.rows)
    return min(ours), min(theirs)


def _first(case: Sample, size: int) -> tuple[bytes, int, int]:
    """Return fewer batches, of about ``size`` bytes, for the slower one."""
    end = rows = 0
    while end < min(size * len(case.data) // case.plain_bytes, len(case.data)):
        batch = Batch(memoryview(case.data)[end:])
        end += batch.size
        rows += batch.count
    return case.data[:end], rows, case.plain_bytes * rows // case.rows


def import_seconds() -> float:
    """Return the seconds of a fresh Python that loads the decoder: an executor's wait when the machine code is kept."""
    program = "import time; t = time.perf_counter(); import bmq.spark.decoding.decoder; print(time.perf_counter() - t)"
    command = [sys.executable, "-c", program]
    return min(float(subprocess.run(command, check=True, capture_output=True).stdout) for _ in range(3))


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.decode", description=__doc__)
    parser.add_argument("--mb", type=int, default=64, help="of records, before compression (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="the best of so many counts (default: %(default)s)")
    arguments = parser.parse_args()
    print("record  codec  wanted            M records/s    MB/s   aiokafka M/s   times")
    for record_bytes in (100, 1000):
        for codec in ("none", "lz4"):
            case = sample(record_bytes, codec, arguments.mb << 20)
            for name, columns in WANTED.items():
                ours, theirs = measure(case, columns, arguments.rounds)
                millions, others = case.rows / ours / 1e6, case.rows / theirs / 1e6
                figures = (
                    f"{millions:>14.1f} {case.plain_bytes / ours / 1e6:>7.0f} {others:>14.2f} {theirs / ours:>7.0f}"
                )
                print(f"{record_bytes:>4} B  {codec:<5}  {name:<14} {figures}")
    print(f"import of the decoder, machine code kept: {import_seconds():.2f} s")


if __name__ == "__main__":
    main()

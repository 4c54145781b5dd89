"""``python -m bench.record_check [--pairs 12]``: checking produced records, alone and as a part of the produce path.

The first table is the check alone, of batches of 10,000 records of 100 bytes: CPU microseconds a batch, the median of
rounds.  The second runs the whole produce path of one process over storage in memory (request bytes in, response bytes
out) in alternating pairs, with the check and without: the ratio of the times, its median and its spread.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable, Sequence

from bmq.broker.partition import owner as owner_module
from bmq.broker.partition.record_checks import check_at_once
from bmq.core.records import check as record_check
from bmq.core.records.batch import CODECS, Batch, BatchRules, Record, build_batch
from bmq.core.records.check import check_records, unpack
from bmq.core.records.compression import Compression, recompress
from bmq.core.records.walk import Walker
from tests.unit.broker.world import World, world

NOW = 1_700_000_000_000
LEVELS = {"gzip": 6, "lz4": 9, "zstd": 3}
RULES = BatchRules()
SHAPES = ((1, 100), (100, 100), (10_000, 100), (1, 100_000))


def make(count: int, size: int) -> bytearray:
    """Return a batch of ``count`` records of about ``size`` bytes."""
    words = b"the quick brown fox jumps over the lazy dog 0123456789 "
    values = [(words[n % 40 :] + words * (size // len(words) + 1))[: size - 10] for n in range(count)]
    records = [Record(key=b"%010d" % n, value=value, timestamp_delta=n % 50) for n, value in enumerate(values)]
    return build_batch(records, base_timestamp=NOW)


def packed(count: int, size: int, codec: str) -> Batch:
    """Return such a batch, compressed by ``codec``."""
    plain = Batch(memoryview(make(count, size)))
    return Batch(memoryview(recompress(plain, Compression(codec, LEVELS.get(codec, 0)))))


def median_us(call: Callable[[], object], rounds: int) -> float:
    """Return the median of a call's CPU time, in microseconds."""
    times = []
    for _ in range(rounds):
        began = time.process_time()
        call()
        times.append(time.process_time() - began)
    return statistics.median(times) * 1e6


def alone(rounds: int) -> None:
    """Print the table of the check alone, and leave the compiled walk in use."""
    compiled = Walker()
    began = time.perf_counter()
    compiled.load_compiled()
    print(f"loading the compiled walk: {time.perf_counter() - began:.2f} s\n")
    print("| 10,000 x 100 B | bytes | decompress, us | walk compiled, us | walk in Python, us | CRC, us |")
    print("| --- | --- | --- | --- | --- | --- |")
    for codec in CODECS:
        print(row(codec, (compiled, Walker()), rounds))
    vars(record_check)["WALKER"] = compiled


def row(codec: str, walkers: Sequence[Walker], rounds: int) -> str:
    """Return one line of that table."""
    batch = packed(10_000, 100, codec)
    plain = unpack(batch)
    assert isinstance(plain, memoryview)
    found = []
    for walker in walkers:
        vars(record_check)["WALKER"] = walker
        assert check_records(batch, plain, RULES, NOW) is None
        found.append(median_us(lambda: check_records(batch, plain, RULES, NOW), rounds))
    unpacking = median_us(lambda: unpack(batch), rounds) if codec != "none" else 0.0
    crc = median_us(lambda: batch.has_valid_crc, rounds)
    return f"| {codec} | {batch.size} | {unpacking:.0f} | {found[0]:.0f} | {found[1]:.0f} | {crc:.0f} |"


async def produce(w: World, data: bytes, requests: int) -> float:
    """Return the CPU seconds of so many requests, eight in flight at a time."""
    began = time.process_time()
    for _ in range(requests // 8):
        responses = await asyncio.gather(*(w.produce({("orders", 0): data}) for _ in range(8)))
        assert not any(response[0].error_code for response in responses)
    return time.process_time() - began


def unchecked(batch: Batch, rules: BatchRules, now_ms: int) -> bool:
    """Accept any batch, in place of the check."""
    return True


async def paired(pairs: int) -> None:
    """Print the table of the produce path with the check and without."""
    check = check_at_once
    print("\n| records | bytes | codec | us a request, unchecked | with the check: ratio | spread |")
    print("| --- | --- | --- | --- | --- | --- |")
    for codec in ("none", "lz4"):
        for count, size in SHAPES:
            data = bytes(packed(count, size, codec).data)
            requests = max(16, min(1600, (8 << 20) // len(data) // 8 * 8))
            ratios, base = [], []
            for _ in range(pairs):
                took = []
                for is_checked in (False, True):
                    vars(owner_module)["check_at_once"] = check if is_checked else unchecked
                    async with world() as w:
                        w.topic(max_message_bytes=str(4 << 20))
                        await w.owner()
                        took.append(await produce(w, data, requests))
                ratios.append(took[1] / took[0])
                base.append(took[0] / requests * 1e6)
            vars(owner_module)["check_at_once"] = check
            print(
                f"| {count} | {size} | {codec} | {statistics.median(base):.0f} | {statistics.median(ratios):.3f}"
                f" | {min(ratios):.3f} to {max(ratios):.3f} |"
            )


def main() -> None:
    """Measure and print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    alone(arguments.rounds)
    asyncio.run(paired(arguments.pairs))


if __name__ == "__main__":
    main()

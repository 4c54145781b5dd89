"""Records that compress as records of applications do: JSON events of a web shop, the same bytes in every run.

Both sides are sent the same file: ``kafka-producer-perf-test --payload-file`` takes its lines in an order that depends
on nothing but their number, and the client in C takes them one after another.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bmq.core.records.compression import Compression, compress

SEED = 20_260_101
FILE_BYTES = 16_000_000
"""Bytes of a file of records: more than any client's processor keeps near."""
RECORDS_MOST = 10_000
RECORDS_LEAST = 8
BATCH_BYTES = 65_536
LEVELS = {"lz4": 9, "zstd": 3}
"""The codecs of the figures, at the default levels of Kafka's clients."""
_BEGINNING_MS = 1_767_225_600_000  # 2026-01-01
_SERVICES = ("checkout", "search", "catalogue", "account", "payment", "delivery")
_PATHS = ("/api/v2/cart", "/api/v2/cart/items", "/api/v2/orders", "/search", "/products", "/login", "/account/address")
_AGENTS = (
    "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/126.0 Safari/537.36",
    "Mozilla/5.0 (iPhone; CPU iPhone OS 17_5 like Mac OS X) AppleWebKit/605.1.15 Mobile/15E148",
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64; rv:127.0) Gecko/20100101 Firefox/127.0",
    "okhttp/4.12.0",
)
_STATUSES = (200, 200, 200, 200, 200, 200, 201, 204, 302, 404, 500)


@dataclass(frozen=True, slots=True)
class Payloads:
    """Records of one size, and the file that has each as a line."""

    path: Path
    values: Sequence[bytes]

    def describe(self) -> dict[str, object]:
        """Return the file's digest, its number of records, and how small each codec makes a batch of 64 KB of them."""
        return {
            "sha256": hashlib.sha256(b"\n".join(self.values)).hexdigest(),
            "records": len(self.values),
            **{codec: round(compressed_share(self.values, codec), 3) for codec in LEVELS},
        }


def write(folder: Path, record_bytes: int) -> Payloads:
    """Write the file of records of this size into ``folder``."""
    values = records(record_bytes, count_of(record_bytes))
    path = folder / f"payloads-{record_bytes}.txt"
    path.write_bytes(b"\n".join(values))
    return Payloads(path, values)


def count_of(record_bytes: int) -> int:
    """Return how many different records of this size there are."""
    return min(RECORDS_MOST, max(RECORDS_LEAST, FILE_BYTES // record_bytes))


def records(record_bytes: int, count: int) -> list[bytes]:
    """Return records of exactly this size: events one after another, the last one cut."""
    made, found = events(random.Random(SEED)), []
    for _ in range(count):
        parts, size = [], -1
        while size < record_bytes:
            parts.append(next(made))
            size += len(parts[-1]) + 1
        found.append(",".join(parts)[:record_bytes].encode())
    return found


def events(source: random.Random) -> Iterator[str]:
    """Yield JSON events in ASCII, without line breaks: ids are random, the other fields have few values."""
    at = _BEGINNING_MS
    while True:
        at += source.randrange(20)
        yield (
            f'{{"ts":{at},"user":{source.randrange(500_000)},"path":"{source.choice(_PATHS)}",'
            f'"status":{source.choice(_STATUSES)},"ms":{source.expovariate(1 / 40):.1f},'
            f'"trace":"{source.getrandbits(64):016x}","service":"{source.choice(_SERVICES)}",'
            f'"bytes":{source.randrange(40_000)},"agent":"{source.choice(_AGENTS)}"}}'
        )


def compressed_share(values: Sequence[bytes], codec: str) -> float:
    """Return the size of a batch of these values under a codec, as a share of its size without one."""
    batch = bytearray()
    for value in values:
        batch += value
        if len(batch) >= BATCH_BYTES:
            break
    return len(compress(Compression(codec, LEVELS[codec]), memoryview(batch))) / len(batch)

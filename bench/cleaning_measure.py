"""Rounds of compaction over one log: by Kafka's cleaner and by BMQ's, each over the same segments.

Both are a round alone, without the wait for it: the map of keys, the cleaned file, its fsync.  BMQ's round is the
broker's, on a local folder (``broker.cleanup.log_cleaner``), without its pauses for producers, and without the swap.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.mover import Mover
from bmq.core.file_access import NO_ACCESS
from bmq.core.records.batch import Batch, Record, build_batch
from bmq.core.records.compression import Compression, recompress
from bmq.storage.cleaning.cleaned_file import ROOM, CleanedFileWriter
from bmq.storage.cleaning.compiled_filter import COMPILED_FILTERS, SECRET_BYTES
from bmq.storage.cleaning.plain_runs import Window
from bmq.storage.cleaning.retention import RoundBounds
from bmq.storage.cleaning.round import CleaningRound, Source
from bmq.storage.cleaning.source_reader import SourceReader
from bmq.storage.filesystem import FileSystem
from bmq.storage.open import open_filesystem
from tests.services import clients
from tests.services.kafka import KAFKA_VERSION, class_path, java_command

BENCH = "round"
SIDES = ("kafka", "bmq")
JAVA_SOURCE = Path(__file__).with_name("java_cleaner")
HEAP_MB = 1024
MAP_BYTES = 128 << 20
"""Memory for keys, of both: log.cleaner.dedupe.buffer.size."""
PIECE_BYTES = 4 << 20
INDEX_INTERVAL_BYTES = 4096
BATCH_BYTES = 16 << 10
SEGMENTS = 4
START_MS = 1_700_000_000_000
DAY_MS = 86_400_000
UPDATES_A_KEY = 4
ZSTD_LEVEL = 3
"""The default level of Kafka's clients and of both cleaners."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The records of a log: their values' bytes, how many are in a batch, the codec."""

    value_bytes: int
    batch_records: int
    codec: str = "none"


SHAPES: Mapping[str, Shape] = {
    "1 KB": Shape(1000, BATCH_BYTES // 1000),
    "1 KB one by one": Shape(1000, 1),
    "100 B": Shape(100, BATCH_BYTES // 100),
    "100 B zstd": Shape(100, BATCH_BYTES // 100, "zstd"),
}


@dataclass(frozen=True, slots=True)
class Log:
    """A log in files: for each segment in ``folder`` its name, bytes and offsets."""

    folder: Path
    segments: tuple[tuple[str, int, Source], ...]

    @property
    def bytes(self) -> int:
        """The bytes of all segments."""
        return sum(length for _, length, _ in self.segments)

    @property
    def end(self) -> int:
        """The offset behind the last record."""
        return self.segments[-1][2].end_offset


def write_log(folder: Path, shape: Shape, megabytes: int) -> Log:
    """Write the segments of a log, the same in every run: each key is updated four times, at places drawn by chance."""
    folder.mkdir(parents=True)
    chance = random.Random(1)
    limit = megabytes * 1_000_000 // SEGMENTS
    keys = max(1, megabytes * 1_000_000 // (shape.value_bytes + 30) // UPDATES_A_KEY)
    segments: list[tuple[str, int, Source]] = []
    offset = 0
    for number in range(SEGMENTS):
        name, base, written = f"{number:06d}.segment", offset, 0
        with (folder / name).open("wb") as file:
            while written < limit:
                data = _batch(shape, chance, keys, offset)
                written += file.write(data)
                offset += shape.batch_records
        segments.append((name, written, Source(base, offset)))
    return Log(folder, tuple(segments))


def _batch(shape: Shape, chance: random.Random, keys: int, offset: int) -> bytes | bytearray:
    records = [
        Record(key=b"key-%012d" % chance.randrange(keys), value=_value(shape, chance))
        for _ in range(shape.batch_records)
    ]
    plain = build_batch(records, base_offset=offset, base_timestamp=START_MS, leader_epoch=1)
    if shape.codec == "none":
        return plain
    return recompress(Batch(memoryview(plain)), Compression(shape.codec, ZSTD_LEVEL))


def _value(shape: Shape, chance: random.Random) -> bytes:
    """Return a value of hexadecimal digits: zstd halves it, about as it does events."""
    return chance.randbytes(shape.value_bytes // 2).hex().encode()


def metrics(log: Log, seconds: float, cpu_s: float, bytes_after: float) -> dict[str, float]:
    """Return the metrics of a round."""
    return {
        "mb_s": log.bytes / 1e6 / seconds,
        "cpu_s_gb": cpu_s / (log.bytes / 1e9),
        "bytes_after_share": bytes_after / log.bytes,
    }


class KafkaCleaner(Mover):
    """``CleanerLoad.java``: one process for all rounds, so that its code is compiled as a broker's is."""

    def clean(self, log: Log) -> dict[str, float]:
        """Clean the log once; return the round's metrics.  Raises NotReady if the program fails."""
        return metrics(log, *self._ask("clean", log.folder, MAP_BYTES, START_MS + DAY_MS))


@contextlib.contextmanager
def kafka_cleaner(folder: Path) -> Iterator[KafkaCleaner]:
    """Start Kafka's cleaner, compiled at the first time, whose log is in ``folder``."""
    libraries = class_path()
    classes = clients.java_classes(f"cleaner-load-{KAFKA_VERSION}", JAVA_SOURCE, libraries)
    command = java_command(heap_mb=HEAP_MB, options=(), log_level="WARN", libraries=f"{classes}:{libraries}")
    with KafkaCleaner("kafka-cleaner", [*command, "CleanerLoad"], folder=folder) as cleaner:
        yield cleaner


class BmqCleaner:
    """BMQ's round in this process: reads by the loop, batches by a thread, as a broker has it."""

    def __init__(self) -> None:
        if not COMPILED_FILTERS.load_compiled():
            raise RuntimeError("BMQ's compiled cleaner needs numba: pip install '.[fast]'")

    def clean(self, log: Log) -> dict[str, float]:
        """Clean the log once; return the round's metrics."""
        return asyncio.run(self._clean(log))

    async def _clean(self, log: Log) -> dict[str, float]:
        fs = await open_filesystem(log.folder.as_uri(), holder="bench")
        try:
            cpu, began = time.process_time(), time.monotonic()
            bytes_after = await self._round(fs, log)
            return metrics(log, time.monotonic() - began, time.process_time() - cpu, bytes_after)
        finally:
            await fs.delete("/bmq")
            await fs.close()

    async def _round(self, fs: FileSystem, log: Log) -> int:
        sources = [source for _, _, source in log.segments]
        files = {source: (name, length) for name, length, source in log.segments}
        cleaning = CleaningRound(
            RoundBounds(first_dirty=0, end=log.end, now_ms=START_MS + DAY_MS, delete_retention_ms=DAY_MS),
            sources,
            aborted=(),
            producers={},
            records=COMPILED_FILTERS.new(os.urandom(SECRET_BYTES), MAP_BYTES, log.end),
        )
        while walk := cleaning.next_walk():
            for source in walk:
                await _pass(fs, files[source], source, cleaning.pass_keys)
        writer = await CleanedFileWriter.create(
            fs, "/bmq", sources_bytes=log.bytes, room=ROOM, interval_bytes=INDEX_INTERVAL_BYTES, access=NO_ACCESS
        )
        cleaning.begin_file(sources, writer.put)
        for source in sources:
            await _pass(fs, files[source], source, cleaning.clean, writer)
        facts = cleaning.end_file()
        await writer.close()
        return facts.bytes_after


async def _pass(
    fs: FileSystem,
    file: tuple[str, int],
    source: Source,
    take: Callable[[Iterable[Batch | Window]], None],
    writer: CleanedFileWriter | None = None,
) -> None:
    """Read a segment, the file of this name and length, piece by piece, and have a thread take its batches."""
    name, length = file
    reader = SourceReader(
        fs,
        f"/{name}",
        base=source.base,
        end_offset=source.end_offset,
        length=length,
        piece_bytes=PIECE_BYTES,
    )

    def compute() -> None:
        take(reader.parts())
        if writer is not None:
            writer.join()

    while not reader.is_over:
        await reader.read()
        await asyncio.to_thread(compute)
        if writer is not None:
            await writer.flush()

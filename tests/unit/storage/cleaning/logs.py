"""Logs for tests of the cleaning: segments of batches, rounds over them, and what readers find."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

from bmq.core.aio.pace import no_pause
from bmq.core.records.batch import CONTROL, TRANSACTIONAL, Batch, Record, build_batch
from bmq.core.records.compression import Compression, recompress
from bmq.core.records.control import EndMarker, Marker, end_record
from bmq.core.records.reader import StoredRecord, read_records
from bmq.storage.checkpoint import AbortedTransaction
from bmq.storage.cleaning.record_filter import PythonRecordFilter, RecordFilter
from bmq.storage.cleaning.retention import ProducerEnd, RoundBounds
from bmq.storage.cleaning.round import CleanedFacts, CleaningRound, Source
from bmq.storage.transactions import Transactions

BUFFER_BYTES = 1 << 20
DAY_MS = 86_400_000
NOW_MS = 1_700_000_000_000


@dataclass
class Log:
    """A log of closed segments: each is a list of batches, dense from ``base`` on."""

    base: int = 0
    segments: list[list[Batch]] = field(default_factory=lambda: [[]])
    epoch: int = 0
    is_cleaned: bool = True
    """A round wrote the segments, so that their delete horizons hold."""
    cleaned: list[CleanedFacts] = field(default_factory=list)
    passes: int = 0
    indexed: dict[int, AbortedTransaction] = field(default_factory=dict)
    """Aborted transactions of indexes that were written with the whole log, by their markers' offsets."""
    dropped: set[int] = field(default_factory=set)
    """Markers' offsets of the aborted transactions that a cleaned index no longer has."""

    @property
    def batches(self) -> list[Batch]:
        return [batch for segment in self.segments for batch in segment]

    @property
    def end(self) -> int:
        return self.batches[-1].next_offset if self.batches else self.base

    @property
    def data(self) -> list[bytes]:
        return [bytes(batch.data) for batch in self.batches]

    def roll(self) -> None:
        """Begin the next segment."""
        if self.segments[-1]:
            self.segments.append([])

    def add(
        self,
        *records: tuple[bytes | None, bytes | None],
        pid: int = -1,
        producer_epoch: int = 0,
        sequence: int = 0,
        timestamp: int = NOW_MS,
        attributes: int = 0,
        codec: str = "none",
    ) -> int:
        """Append a batch; return its base offset.  A batch of a producer id is transactional if it says so."""
        built = build_batch(
            [Record(key=key, value=value, timestamp_delta=at) for at, (key, value) in enumerate(records)],
            base_offset=self.end,
            base_timestamp=timestamp,
            producer_id=pid,
            producer_epoch=producer_epoch if pid >= 0 else -1,
            base_sequence=sequence if pid >= 0 else -1,
            attributes=attributes,
            leader_epoch=self.epoch,
        )
        batch = Batch(memoryview(built))
        if codec != "none":
            batch = Batch(memoryview(recompress(batch, Compression(codec, 3))))
        self.segments[-1].append(batch)
        return int(batch.base_offset)

    def add_transactional(self, pid: int, *records: tuple[bytes | None, bytes | None], sequence: int = 0) -> int:
        """Append data of a transaction."""
        return self.add(*records, pid=pid, sequence=sequence, attributes=TRANSACTIONAL)

    def end_transaction(self, pid: int, marker: Marker = Marker.COMMIT, *, producer_epoch: int = 0) -> int:
        """Append a marker; return its offset."""
        record = end_record(EndMarker(marker, 0))
        built = build_batch(
            [record],
            base_offset=self.end,
            base_timestamp=NOW_MS,
            producer_id=pid,
            producer_epoch=producer_epoch,
            attributes=TRANSACTIONAL | CONTROL,
            leader_epoch=self.epoch,
        )
        self.segments[-1].append(Batch(memoryview(built)))
        return self.end - 1

    @property
    def aborted(self) -> list[AbortedTransaction]:
        """The aborted transactions of the segments' indexes: those of a cleaned file, else those of the batches."""
        transactions = Transactions()
        for batch in self.batches:
            transactions.pass_batch(batch)
        found = {each.last_offset: each for each in transactions.take_aborted()} | self.indexed
        return [each for last, each in sorted(found.items()) if last not in self.dropped]

    def sources(self, end: int) -> list[Source]:
        """Return the segments that end at or below ``end``."""
        found = [segment for segment in self.segments if segment and segment[-1].next_offset <= end]
        return [Source(segment[0].base_offset, segment[-1].next_offset, self.is_cleaned) for segment in found]

    def batches_of(self, sources: Iterable[Source]) -> list[Batch]:
        """Return the batches of the sources."""
        bases = {source.base for source in sources}
        found = [segment for segment in self.segments if segment and segment[0].base_offset in bases]
        return [batch for segment in found for batch in segment]

    def clean(
        self,
        *,
        first_dirty: int = 0,
        end: int | None = None,
        now_ms: int = NOW_MS,
        producers: dict[int, ProducerEnd] | None = None,
        buffer_bytes: int = BUFFER_BYTES,
        group_size: int = 1,
        aborted: Iterable[AbortedTransaction] | None = None,
        files: int | None = None,
        records: RecordFilter | None = None,
        delete_retention_ms: int = DAY_MS,
        pace: Callable[[], None] = no_pause,
    ) -> Log:
        """Return the log after a round, of ``group_size`` segments a file; ``files``: the round ends after so many."""
        sources = self.sources(self.end if end is None else end)
        bounds = RoundBounds(
            first_dirty=first_dirty,
            end=sources[-1].end_offset if sources else self.base,
            now_ms=now_ms,
            delete_retention_ms=delete_retention_ms,
        )
        known = self.aborted if aborted is None else list(aborted)
        cleaning = CleaningRound(
            bounds,
            sources,
            aborted=known,
            producers=producers or {},
            records=PythonRecordFilter(buffer_bytes, pace=pace) if records is None else records,
        )
        while walk := cleaning.next_walk():
            cleaning.pass_keys(self.batches_of(walk))
        after = Log(
            self.base,
            [],
            self.epoch,
            passes=cleaning.passes,
            indexed={each.last_offset: each for each in known},
            dropped=set(self.dropped),
        )
        groups = [sources[at : at + group_size] for at in range(0, len(sources), group_size)]
        taken = groups if files is None else groups[:files]
        for group in taken:
            written: list[bytes] = []
            cleaning.begin_file(group, partial(_append, written))
            cleaning.clean(self.batches_of(group))
            after.cleaned.append(cleaning.end_file())
            after.segments.append([Batch(memoryview(data)) for data in written])
            facts = after.cleaned[-1]
            after.dropped |= {
                each.last_offset
                for each in known
                if facts.base <= each.last_offset < facts.end_offset and each not in facts.aborted
            }
        count = sum(len(group) for group in taken)
        after.segments += [segment for segment in self.segments if segment][count:]
        after.check()
        return after

    def check(self) -> None:
        """Check that every batch is right, and that offsets are dense."""
        due = self.base
        for batch in self.batches:
            assert batch.has_valid_crc
            assert batch.size == len(batch.data)
            assert batch.base_offset == due
            assert batch.count == len(list(read_records(batch)))
            due = batch.next_offset


def _append(written: list[bytes], data: bytes | bytearray | memoryview) -> None:
    written.append(bytes(data))


def records_of(batches: Iterable[Batch]) -> Iterator[StoredRecord]:
    """Yield the records of data."""
    for batch in batches:
        if not batch.is_control:
            yield from read_records(batch)


def keys_and_values(log: Log) -> list[tuple[bytes | None, bytes | None]]:
    return [(record.key, record.value) for record in records_of(log.batches)]


def committed(log: Log) -> list[StoredRecord]:
    """Return what a reader at read_committed gets of the whole log, as Kafka's consumer leaves aborted data out."""
    pending = sorted(log.aborted, key=lambda each: each.first_offset)
    skipped: set[int] = set()
    found: list[StoredRecord] = []
    for batch in log.batches:
        while pending and pending[0].first_offset <= batch.last_offset:
            skipped.add(pending.pop(0).producer_id)
        if batch.is_control:
            if batch.count and next(read_records(batch)).key == b"\0\0\0\0":
                skipped.discard(batch.producer_id)
            continue
        if not (batch.is_transactional and batch.producer_id in skipped):
            found += read_records(batch)
    return found


def last_values(records: Iterable[StoredRecord]) -> dict[bytes, bytes]:
    """Return each key's last value; a tombstone removes the key."""
    values: dict[bytes, bytes] = {}
    for record in records:
        if record.key is None:
            continue
        if record.value is None:
            values.pop(record.key, None)
        else:
            values[record.key] = record.value
    return values


def producers_of(log: Log) -> dict[int, ProducerEnd]:
    """Return the producers' ends as the partition's owner knows them."""
    found: dict[int, ProducerEnd] = {}
    for batch in log.batches:
        if batch.producer_id >= 0 and not batch.is_control:
            found[batch.producer_id] = ProducerEnd(batch.last_offset, batch.producer_epoch)
    return found

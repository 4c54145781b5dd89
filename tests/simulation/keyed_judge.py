"""The judge of one compacted log: its records name themselves, and readers look for each key's last value.

The cleaner may remove a record once a later record below the last stable offset has its key.  So the judge checks, of
each pass of a reader: records are those of the full log, in order; for each key the reader has the last value that the
judge knows, or a later one; a tombstone is there until it is older than ``delete.retention.ms``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from bmq.core.records.batch import Batch, Record
from bmq.core.records.reader import StoredRecord, read_records
from tests.simulation.judge import Judge, encode

ID_HEADER = "id"


@dataclass(slots=True, eq=False)
class Transaction:
    """One transaction of a client: its outcome, and how far its marker has come."""

    is_committed: bool
    is_marker_sent: bool = False
    is_over: bool = False
    """True once its marker was acknowledged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """A record that a client sent: a value of a key, None for a tombstone."""

    key: bytes
    value: bytes | None
    timestamp: int
    transaction: Transaction | None = None

    @property
    def counts(self) -> bool:
        """True if the record is certainly part of the log that a reader at read_committed gets."""
        return self.transaction is None or (self.transaction.is_committed and self.transaction.is_over)

    @property
    def may_count(self) -> bool:
        """True if the record may be part of that log."""
        return self.transaction is None or (self.transaction.is_committed and self.transaction.is_marker_sent)


@dataclass(slots=True, kw_only=True)
class Pass:
    """One pass of a reader over the log from ``start`` on: what it read, to ``end``, and when it began."""

    start: int
    end: int
    began_ms: int
    records: list[StoredRecord] = field(default_factory=list)


@dataclass
class KeyedJudge(Judge):
    """The updates that clients sent, and the offsets at which they stand."""

    delete_retention_ms: int = 0
    sent: dict[bytes, Update] = field(default_factory=dict)
    """By the identity in the record's header."""
    known: dict[int, Update] = field(default_factory=dict)
    """By offset: what was acknowledged, flushed or read."""
    passes: int = 0

    def make(self, producer: int, number: int, update: Update) -> Record:
        """Return the record of an update, which names itself."""
        identity = encode(producer, number)
        self.sent[identity] = update
        return Record(key=update.key, value=update.value, headers=((ID_HEADER, identity),))

    def append(self, offset: int, updates: Sequence[Update]) -> None:
        """Note that a batch of these updates was acknowledged at ``offset``."""
        for at, update in enumerate(updates, offset):
            self._know(at, update)

    def show(self, high_watermark: int) -> None:
        """Note the high watermark of an owner that has opened the log."""
        self.watermark = max(self.watermark, high_watermark)

    def flush(self, batches: Sequence[Batch]) -> None:
        """Note batches that an owner has shown to its readers."""
        for batch in batches:
            self.watermark = max(self.watermark, batch.next_offset)
            for record, update in self.updates([batch]):
                self._know(record.offset, update)

    def move_start(self, log_start: int, wall_ms: int) -> None:
        """Check a log start as for any log, but only by records that no later record replaced.

        A segment expires by the records that a cleaning has left in it.
        """
        last = self._last(1 << 62)
        for offset in range(max(self.start_moved, self.start_asked), log_start):
            update = self.known.get(offset)
            if update is None or update.value is None or last.get(update.key) != offset:
                continue
            age = wall_ms - update.timestamp
            assert 0 <= self.retention_ms < age, f"offset {offset} is {age} ms old, and below the log start {log_start}"
        self.start_moved = max(self.start_moved, log_start)

    def updates(self, batches: Iterable[Batch]) -> list[tuple[StoredRecord, Update]]:
        """Return the records of the batches with what was sent; control records and those of other clients are none."""
        found = list[tuple[StoredRecord, Update]]()
        for batch in batches:
            if batch.is_control or not batch.count:
                continue
            for record in read_records(batch):
                found += [(record, self.sent[value]) for name, value in record.headers if name == ID_HEADER and value]
        return found

    def judge(self, one: Pass, batches: Sequence[Batch], now_ms: int, who: str) -> None:
        """Check a pass of a reader that has read ``batches``, all that it found, up to the watermark."""
        self.passes += 1
        found: dict[bytes, int] = {}
        before = -1
        for record, update in self.updates(batches):
            assert record.offset > before, f"{who}: offset {record.offset} follows {before}"
            before = record.offset
            assert (record.key, record.value) == (update.key, update.value), f"{who}: another record at {before}"
            self._know(record.offset, update)
            if update.may_count and one.start <= record.offset < one.end:
                found[update.key] = record.offset
        took_ms = now_ms - one.began_ms
        for key, due in self._last(one.end).items():
            if due < max(one.start, self.start_moved) or found.get(key, -1) >= due:
                continue
            update = self.known[due]
            text = f"{who} [{one.start}, {one.end}): key {key!r} stands at {due} ({update}), read at {found.get(key)}"
            if update.value is not None:
                raise AssertionError(f"{text}: a last value is gone")
            age_ms = now_ms - update.timestamp
            assert age_ms > self.delete_retention_ms, f"{text}: a tombstone is gone after {age_ms} ms"
            is_late = took_ms >= self.delete_retention_ms
            assert found.get(key) is None or is_late, f"{text}: a value is read, and its tombstone is not"

    def _last(self, end: int) -> dict[bytes, int]:
        """Return, for each key, the last offset below ``end`` that certainly counts."""
        return {update.key: at for at, update in sorted(self.known.items()) if at < end and update.counts}

    def _know(self, offset: int, update: Update) -> None:
        known = self.known.setdefault(offset, update)
        assert known is update, f"offset {offset} had {known}, and has {update}"

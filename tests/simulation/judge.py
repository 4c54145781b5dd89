"""The judge of one partition's log: acknowledged and read batches, which name themselves, and a reader of its own."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

from bmq.core.model import PartitionKey, SegmentName
from bmq.core.records.batch import HEADER_BYTES, Batch, Record, build_batch
from bmq.storage import layout
from bmq.storage.filesystem import FileSystem
from bmq.storage.layout import PartitionPath

KEY = PartitionKey(uuid.UUID(int=0x600D), 0)
PATH = PartitionPath("orders", str(KEY.topic_id), 0)
ID = struct.Struct(">16sQ")
MARK = b"who:"


@dataclass(slots=True)
class Sent:
    """A batch by its producer and number; ``offset`` once acknowledged."""

    producer: int
    number: int
    offset: int | None = None


@dataclass
class Judge:
    """The responses that clients got and the batches that readers saw."""

    acked: list[Sent] = field(default_factory=list)
    seen: dict[int, bytes] = field(default_factory=dict)
    watermark: int = 0
    start_confirmed: int = 0
    start_asked: int = 0
    start_moved: int = 0
    """The furthest log start of any owner, also one that was never confirmed."""
    retention_ms: int = -1
    flushed: dict[int, int] = field(default_factory=dict)
    """The timestamp of each batch that an owner had flushed, by its offset (one record a batch)."""
    copies_asked: dict[tuple[str, bytes], int] = field(default_factory=dict)
    """By process and batch: how many copies a batch is to have when that process acknowledges it, if more than one."""
    copies_flushed: dict[tuple[str, int, int], int] = field(default_factory=dict)
    """By process, epoch and offset: how many copies a batch had when that owner acknowledged it."""

    def ask_copies(self, process: str, batch: bytes, copies: int) -> None:
        """Note that ``process`` has accepted a batch that needs so many copies."""
        if copies > 1:
            self.copies_asked[process, batch] = min(copies, self.copies_asked.get((process, batch), copies))

    def lower_copies(self, copies: int) -> None:
        """Lower the setting: from now on no batch needs more copies."""
        for key, asked in self.copies_asked.items():
            self.copies_asked[key] = min(asked, copies)

    def check_copies(self, process: str, batch: Batch, copies: int) -> None:
        """Check that a batch that ``process`` acknowledges has no fewer copies than were asked for."""
        asked = self.copies_asked.get((process, identity(batch)), 1)
        assert copies >= asked, f"{process} acknowledges {batch!r} with {copies} copies of {asked}"
        self.copies_flushed[process, batch.leader_epoch, batch.base_offset] = copies

    def doubt(self, process: str) -> None:
        """Forget what ``process`` has flushed: it was for fewer copies than are asked for now."""
        self.copies_flushed = {key: copies for key, copies in self.copies_flushed.items() if key[0] != process}

    def acknowledge(self, sent: Sent, offset: int) -> None:
        assert sent.offset is None or sent.offset == offset, f"{sent} was answered {offset} the second time"
        if sent.offset is None:
            sent.offset = offset
            self.acked.append(sent)

    def flush(self, batches: Sequence[Batch]) -> None:
        """Note batches that an owner has shown to its readers."""
        for batch in batches:
            self.flushed[batch.base_offset] = batch.max_timestamp

    def show(self, high_watermark: int) -> None:
        """Note the high watermark of an owner that has opened the log: nothing to check for plain logs."""

    def move_start(self, log_start: int, wall_ms: int) -> None:
        """Check that an owner whose clock never showed more than ``wall_ms`` may move the log start."""
        for offset in range(max(self.start_moved, self.start_asked), log_start):
            timestamp = self.flushed.get(offset)
            if timestamp is None:
                continue  # found by a takeover: its producer was never answered, and the judge knows no timestamp
            age = wall_ms - timestamp
            assert 0 <= self.retention_ms < age, f"offset {offset} is {age} ms old, and below the log start {log_start}"
        self.start_moved = max(self.start_moved, log_start)

    def see(self, batches: list[Batch], watermark: int) -> None:
        """Check that the batches that a reader got below ``watermark`` have not changed since they were first seen."""
        self.watermark = max(self.watermark, watermark)
        for batch in batches:
            content = identity(batch)
            known = self.seen.setdefault(batch.base_offset, content)
            assert known == content, f"offset {batch.base_offset} changed after it was visible"

    def check(self, batches: list[Batch], idempotent: set[int], log_start: int = 0) -> None:
        """Check the final log, read from ``log_start`` on, against all acknowledgements and reads."""
        offset = log_start
        at: dict[int, bytes] = {}
        order: dict[int, list[int]] = {}
        for batch in batches:
            assert batch.base_offset == offset, f"gap: {batch!r} stands where offset {offset} should"
            offset = batch.next_offset
            at[batch.base_offset] = identity(batch)
            producer, number = decode(batch)
            order.setdefault(producer, []).append(number)
        for sent in self.acked:
            assert sent.offset is not None
            if sent.offset < log_start:
                continue
            assert sent.offset in at, f"acknowledged {sent} is gone: the log ends at {offset}"
            assert at[sent.offset] == encode(sent.producer, sent.number), f"{sent} is not what stands at its offset"
        for seen, content in self.seen.items():
            assert seen < log_start or at.get(seen) == content, f"offset {seen} was visible and is gone or changed"
        assert offset >= self.watermark, f"the watermark was {self.watermark}, the log ends at {offset}"
        for producer, numbers in order.items():
            if producer in idempotent:
                assert numbers == sorted(set(numbers)), f"producer {producer}: doubled or out of order: {numbers}"


def encode(producer: int, number: int) -> bytes:
    return ID.pack(producer.to_bytes(16), number)


def make(producer: int, number: int, *, pid: int, size: int, timestamp: int = 0) -> memoryview:
    """One batch of one record that names itself; ``pid`` -1 without idempotence."""
    value = MARK + encode(producer, number) + b"." * size
    epoch = 0 if pid >= 0 else -1
    sequence = number if pid >= 0 else -1
    return memoryview(
        build_batch(
            [Record(value=value)],
            base_timestamp=timestamp,
            producer_id=pid,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
    )


def identity(batch: Batch) -> bytes:
    """Return the identity that the batch's one record contains."""
    data = bytes(batch.data)
    at = data.index(MARK) + len(MARK)
    return data[at : at + ID.size]


def decode(batch: Batch) -> tuple[int, int]:
    producer, number = ID.unpack(identity(batch))
    return int.from_bytes(producer), number


async def read_log(fs: FileSystem, limit: int, path: PartitionPath = PATH, *, start: int = 0) -> list[Batch]:
    """Return the batches of [start, limit), or from the first one left.

    A reader of its own, written from rule 5 alone (docs/design/rules.md): names, not records, not the code under test.
    """
    names: list[SegmentName] = []
    async for status in fs.list(path.folder):
        parsed = layout.parse_segment(layout.base_name(status.path))
        if parsed is not None and parsed[1] == "log":
            names.append(parsed[0])
    names.sort(key=lambda name: (name.epoch, name.n, name.cleaning))
    batches: list[Batch] = []
    for at, name in enumerate(names):
        end = min([limit, *(later.base for later in names[at + 1 :])])
        if end <= start:
            continue
        offset, position = name.base, 0
        data = b""
        while offset < end:
            if len(data) < HEADER_BYTES or len(data) < Batch(memoryview(data)).size:
                more = await fs.read(path.log(name), position + len(data), 1 << 16)
                assert more, f"{name} ends at {offset}, it should reach {end}"
                data += more
                continue
            batch = Batch(memoryview(data))
            batch = Batch(memoryview(data[: batch.size]))
            assert batch.has_valid_crc, f"bad CRC in {name} at {position}"
            assert batch.base_offset == offset, f"{batch!r} in {name} where {offset} should stand"
            if batch.next_offset > start:
                batches.append(batch)
            position, data, offset = position + batch.size, data[batch.size :], batch.next_offset
    return batches

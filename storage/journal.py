"""A broker's journal: the checkpoints of all its partitions, in one open file at a time.

``/journals/<incarnation>-<n>.jnl`` is a sequence of records, readable from either end::

    magic    4s   b"JRN1"
    type     u8   1 checkpoint, 2 snapshot begins, 3 snapshot ends, 4 probe of storage; others are skipped
    length   u32  of the payload
    payload
    crc      u32  CRC-32C of type, length and payload
    length   u32  again
    magic    4s   b"1NRJ"

A file begins with a snapshot: a full checkpoint of every partition that the broker holds.  When it has grown past
``roll_bytes`` (and past a few times its snapshot) the next file is begun.  Once the next file holds its whole snapshot,
the last file but one may be deleted.  Records are parsed backwards from the end, so that a recovery decodes what it
needs and no more; a torn end is stepped over.  A checkpoint is written only after its data is flushed.  So every
readable record is true: also a record of a fenced broker, and a record whose own flush was never acknowledged.

The writer is ``storage.journal_writer``.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Container, Iterator, Sequence
from dataclasses import replace

from crc32c import crc32c

from bmq.core.aio.steps import Steps, finish_steps, run_in_steps
from bmq.core.aio.turns import Turns
from bmq.core.errors import FormatError
from bmq.core.logging.fields import fields
from bmq.core.model import PartitionKey
from bmq.storage import layout
from bmq.storage.checkpoint import (
    Checkpoint,
    decode_key,
    decode_steps,
    merge,
)
from bmq.storage.filesystem import (
    CorruptData,
    FileSystem,
    NoSuchFile,
)

_log = logging.getLogger(__name__)

CHECKPOINT, SNAPSHOT_BEGIN, SNAPSHOT_END, PROBE = 1, 2, 3, 4
MAGIC, _END_MAGIC = b"JRN1", b"1NRJ"
HEAD = struct.Struct(">4sBI")
_TAIL = struct.Struct(">II4s")
OVERHEAD = HEAD.size + _TAIL.size
RECORDS_A_TURN = 500
"""Records parsed between two pauses, at up to 20 us each."""
PRODUCERS_MERGED_A_TURN = 100_000
"""Producers merged between two pauses: each delta walks over all known producers, at 0.1 us each."""
RECORD_BYTES_MAX = 256 << 20  # a full checkpoint of a segment of 1 GB and 100,000 producers is about 15 MB


def frame(kind: int, payload: bytes) -> bytes:
    """Return a journal record of this type around ``payload``."""
    head = HEAD.pack(MAGIC, kind, len(payload))
    return head + payload + _TAIL.pack(crc32c(payload, crc32c(head[4:])), len(payload), _END_MAGIC)


def read_backwards(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Give (type, payload) of each record, last first.  Bytes that are not a record are stepped over."""
    end = len(data)
    text = bytes(data)
    while end >= OVERHEAD:
        record = record_before(data, end)
        if record is None:
            hit = text.rfind(_END_MAGIC, 0, end - 1)
            if hit < 0:
                return
            end = hit + len(_END_MAGIC)
            continue
        kind, payload, end = record
        yield kind, payload


def record_before(data: memoryview, end: int) -> tuple[int, memoryview, int] | None:
    """Return (type, payload, start) of the record that ends at ``end``; None if no right record does."""
    crc, length, magic = _TAIL.unpack_from(data, end - _TAIL.size)
    start = end - OVERHEAD - length
    if magic != _END_MAGIC or start < 0:
        return None
    head_magic, kind, head_length = HEAD.unpack_from(data, start)
    if head_magic != MAGIC or head_length != length:
        return None
    payload = data[start + HEAD.size : end - _TAIL.size]
    if crc32c(payload, crc32c(data[start + 4 : start + HEAD.size])) != crc:
        return None
    return kind, payload, start


def read_forwards(data: memoryview) -> tuple[list[tuple[int, memoryview]], int]:
    """Return (type, payload) of each whole record, first first, and how many bytes were consumed.

    A reader that follows a journal goes on there.  Bytes that are not a record are stepped over.  The beginning of a
    record is not consumed, since its rest may follow.  But if a whole record follows it, its length is damaged, and it
    is stepped over.
    """
    records = []
    text = bytes(data)
    start, begun = 0, -1  # begun: the position of a record that does not end here
    while len(data) - start >= OVERHEAD:
        magic, _, length = HEAD.unpack_from(data, start)
        end = start + OVERHEAD + length
        record = None
        if magic == MAGIC and length <= RECORD_BYTES_MAX:
            if end <= len(data):
                record = record_before(data, end)
            elif begun < 0:
                begun = start
        if record is not None and record[2] == start:
            records.append(record[:2])
            start, begun = end, -1
            continue
        hit = text.find(MAGIC, start + 1)
        start = hit if hit >= 0 else len(data) - len(MAGIC) + 1  # it may begin in the last bytes
    return records, start if begun < 0 else begun


class JournalView:
    """The last checkpoint of each partition in one journal file.

    ``has_snapshot``: the file holds its whole snapshot.  ``faults`` describes the records that could not be decoded
    although their CRC is right: another version wrote them, or a bug.
    """

    def __init__(
        self, checkpoints: dict[PartitionKey, Checkpoint], *, has_snapshot: bool, faults: Sequence[str] = ()
    ) -> None:
        self.checkpoints = checkpoints
        self.has_snapshot = has_snapshot
        self.faults = faults

    @classmethod
    def parse(cls, data: memoryview, wanted: Container[PartitionKey] | None = None) -> JournalView:
        """Parse a journal file, newest record first.

        The deltas of a partition are kept until its full checkpoint is met, and are then merged with it.  Only the
        ``wanted`` partitions are decoded; None: all.  A record that cannot be decoded is passed over, and the
        checkpoint before it is used; of the deltas behind it only the log start is used.
        """
        return finish_steps(cls.parse_steps(data, wanted))

    @classmethod
    def parse_steps(cls, data: memoryview, wanted: Container[PartitionKey] | None = None) -> Steps[JournalView]:
        """Do the same as ``parse``, with a pause after some records, and within those of many producers."""
        deltas: dict[PartitionKey, list[Checkpoint]] = {}
        done: dict[PartitionKey, Checkpoint] = {}
        log_starts: dict[PartitionKey, int] = {}
        faults: list[str] = []
        has_snapshot = False
        turns = Turns(RECORDS_A_TURN)
        for kind, payload in read_backwards(data):
            if turns.is_over():
                yield
            if kind == SNAPSHOT_END:
                has_snapshot = True
            elif kind == CHECKPOINT:
                try:
                    key = decode_key(payload)
                except FormatError as error:
                    faults.append(str(error))
                    continue
                if key in done or (wanted is not None and key not in wanted):
                    continue
                chain = deltas.setdefault(key, [])
                try:
                    checkpoint = yield from decode_steps(payload)
                except FormatError as error:
                    faults.append(f"{key}: {error}")
                    log_starts[key] = max([log_starts.get(key, 0), *(delta.log_start for delta in chain)])
                    chain.clear()
                    continue
                if checkpoint.is_full:
                    merged = yield from _merge_all(checkpoint, chain)
                    done[key] = replace(merged, log_start=max(merged.log_start, log_starts.get(key, 0)))
                elif not chain or chain[-1].segment == checkpoint.segment:
                    chain.append(checkpoint)
        return cls(done, has_snapshot=has_snapshot, faults=faults)


def _merge_all(full: Checkpoint, newest_first: list[Checkpoint]) -> Steps[Checkpoint]:
    turns = Turns(PRODUCERS_MERGED_A_TURN)
    for delta in reversed(newest_first):
        if delta.segment == full.segment:
            if turns.is_over(len(full.producers)):
                yield
            full = merge(full, delta)
    return full


async def read_journals(
    fs: FileSystem,
    incarnation: str,
    wanted: Container[PartitionKey] | None = None,
    *,
    passes_damaged: bool = False,
) -> dict[PartitionKey, Checkpoint]:
    """Return the last checkpoint of every partition (of the ``wanted`` ones) in a broker's journals.

    All files count, and the later checkpoint of each partition wins.  The newest file is not enough: its snapshot may
    be torn, and a whole snapshot has only the partitions that the broker held when it was written.  If the broker had
    lost partitions by then (it was paused, and resumed), their last checkpoints are in an older file.

    Raises CorruptData if a file has no sound replica; with ``passes_damaged`` it is passed over.
    """
    found: dict[PartitionKey, Checkpoint] = {}
    done: set[int] = set()
    while True:
        is_complete = True
        for n in sorted(set(await journal_numbers(fs, incarnation)) - done, reverse=True):
            try:
                data = memoryview(await _read_all(fs, layout.journal(incarnation, n)))
                view = await run_in_steps(JournalView.parse_steps(data, wanted))
            except NoSuchFile:
                is_complete = False  # deleted by a roll since the listing: a newer one has its snapshot, list again
                continue
            except CorruptData as error:
                if not passes_damaged:
                    raise
                _log.error(
                    "a journal is damaged and passed over, log starts that it alone had are lost",
                    extra=fields(path=layout.journal(incarnation, n), error=error),
                )
                done.add(n)
                continue
            done.add(n)
            if view.faults:
                _log.warning(
                    "%d checkpoints of a journal cannot be decoded, those before them are used",
                    len(view.faults),
                    extra=fields(path=layout.journal(incarnation, n), error=view.faults[0]),
                )
            for key, checkpoint in view.checkpoints.items():
                if key not in found or found[key].order < checkpoint.order:
                    found[key] = checkpoint
        if is_complete:
            return found


async def journal_numbers(fs: FileSystem, incarnation: str) -> list[int]:
    """Return the numbers of a broker's journal files, in ascending order."""
    numbers = []
    async for status in fs.list(layout.JOURNALS, after=f"{incarnation}-"):
        parsed = layout.parse_journal(layout.base_name(status.path))
        if parsed is None or parsed[0] != incarnation:
            break  # names are in order: the incarnation's journals stand together
        numbers.append(parsed[1])
    return numbers


async def _read_all(fs: FileSystem, path: str) -> bytes:
    """Read everything visible of a file.  A journal is bounded by its roll, so this is too (rule 8)."""
    parts: list[bytes] = []
    position = 0
    while True:
        part = await fs.read(path, position, 4 << 20)
        if not part:
            return b"".join(parts)
        parts.append(part)
        position += len(part)

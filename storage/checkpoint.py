"""The checkpoint of a partition: its content and its format.

A checkpoint is a fact about flushed data: it bounds recovery, and it says how far a reader without a broker may read.
It stays true for ever, whichever process wrote it, so it needs no fence.  A *full* one stands alone; a *delta* adds
index entries and changed producers to the one before it of the same segment.

::

    magic     u8    'F' full | 'D' delta
    flags     u8    1: the segment is closed
    topic id  16s   partition u32
    segment   base i64, epoch u32, n u32
    position  i64   bytes flushed           end offset     i64   log start  i64
    max ts    i64   its offset i64          largest timestamp in the segment, and the first offset that carries it
    open txn  i64   first offset of the oldest open transaction, -1 for none
    counts    u32 index entries, u32 epochs, u32 producers, u32 aborted transactions
    index     (offset i64, position i64, max timestamp so far i64) each
    epochs    (epoch i32, start offset i64) each: leader epochs that begin in this segment
    producers see ``_put_producer``
    aborted   (producer id i64, first i64, last i64, last stable i64) each

All numbers are big-endian.  The surrounding file gives length and CRC.
"""

from __future__ import annotations

import struct
import uuid
from array import array
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import attrgetter

from bmq.core.aio.steps import Steps, batched, finish_steps
from bmq.core.errors import FormatError
from bmq.core.model import PartitionKey, SegmentName

_HEAD = struct.Struct(">BB16sI qII qqq qq q IIII".replace(" ", ""))
_EPOCH = struct.Struct(">iq")
_ABORTED = struct.Struct(">qqqq")
_PRODUCER = struct.Struct(">qhiqqB")
_BATCH = struct.Struct(">iqiq")
_FULL, _DELTA = ord("F"), ord("D")
_LAST_OFFSET = attrgetter("last_offset")
INDEX_ENTRY_BYTES = 24
PRODUCERS_A_STEP = 1_000
"""Producers between two pauses, at 5 to 10 us each.

A partition may have a hundred thousand within ``producer.id.expiration.ms``.
"""


@dataclass(slots=True)  # not frozen, though never changed: it is made for each batch, and freezing costs more than that
class ProducerBatch:
    """One of a producer's last five batches.  ``timestamp`` is in milliseconds."""

    base_sequence: int
    base_offset: int
    last_delta: int
    timestamp: int


@dataclass(slots=True)
class ProducerState:
    """The state of one producer id.

    A state is never changed: each accepted batch makes a new state.  ``last_timestamp`` is the wall time (milliseconds)
    at which the partition's owner last received a batch of the producer.  ``txn_start`` is the first offset of its open
    transaction, -1 for none.  ``coordinator_epoch`` is from its last marker, -1 before the first.
    """

    producer_id: int
    epoch: int
    coordinator_epoch: int
    last_timestamp: int
    txn_start: int
    batches: tuple[ProducerBatch, ...]


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    """An aborted transaction, as Kafka's ``AbortedTxn`` has it.  Offsets are inclusive."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


@dataclass(frozen=True, slots=True)
class Cleaned:
    """The facts of a cleaned segment that its index adds to the checkpoint (format 2 of ``.idx``).

    ``clean_to``: no record of the segment has a later record with its key below this offset, which may lie behind the
    segment's end.  ``horizon``: the earliest delete horizon of a batch (milliseconds), -1 for none.  ``bytes_before``,
    ``bytes_after``: lengths of the sources, and of this segment when it was cleaned.  ``tombstones``, ``markers``:
    numbers of records without a value, and of control batches, that are left.  ``modified_ms``: the time of the last
    source's file, for records without timestamps: no cleaning makes them younger.  Fields are -1 if they are not known,
    as after a repair.
    """

    clean_to: int = -1
    horizon: int = -1
    bytes_before: int = -1
    bytes_after: int = -1
    tombstones: int = -1
    markers: int = -1
    modified_ms: int = -1


UNKNOWN_CLEANED = Cleaned()
"""The facts of a cleaned segment whose index was lost: the segment counts as dirty, and is cleaned again."""


@dataclass(slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint's fields, which the module's picture explains.

    ``index`` is flat: offset, position, max timestamp so far, repeated.  ``aborted`` has the transactions whose abort
    markers are in this segment, in the order of the markers.  ``knows_producers`` is False if ``producers`` was not
    read, or was lost with an index: such a checkpoint is never written.

    ``cleaned`` is None but for the index of a cleaned segment.  The ``epochs`` of such an index are the lists of all
    sources together, also where no batch of an epoch is left.
    """

    key: PartitionKey
    segment: SegmentName
    position: int
    end_offset: int
    log_start: int
    is_full: bool = True
    is_closed: bool = False
    max_timestamp: int = -1
    max_timestamp_offset: int = -1
    first_open_txn: int = -1
    index: array[int] = field(default_factory=lambda: array("q"))
    epochs: tuple[tuple[int, int], ...] = ()
    producers: tuple[ProducerState, ...] = ()
    knows_producers: bool = True
    aborted: tuple[AbortedTransaction, ...] = ()
    cleaned: Cleaned | None = None

    @property
    def order(self) -> tuple[int, int, int, int, int]:
        """The sort key: a later checkpoint of a partition compares greater, across journals and owners.

        A cleaned segment was closed before it was cleaned, so its index is later than any checkpoint of its sources.
        """
        return (*self.segment.order, self.end_offset, self.log_start)


def encode(checkpoint: Checkpoint) -> bytes:
    """Return the checkpoint's bytes, in the format of the module's picture."""
    return finish_steps(encode_steps(checkpoint))


def encode_steps(checkpoint: Checkpoint) -> Steps[bytes]:
    """Do the same as ``encode``, with a pause after each ``PRODUCERS_A_STEP`` producers."""
    assert checkpoint.knows_producers
    out = bytearray(
        _HEAD.pack(
            _FULL if checkpoint.is_full else _DELTA,
            int(checkpoint.is_closed),
            checkpoint.key.topic_id.bytes,
            checkpoint.key.partition,
            *checkpoint.segment[:3],
            checkpoint.position,
            checkpoint.end_offset,
            checkpoint.log_start,
            checkpoint.max_timestamp,
            checkpoint.max_timestamp_offset,
            checkpoint.first_open_txn,
            len(checkpoint.index) // 3,
            len(checkpoint.epochs),
            len(checkpoint.producers),
            len(checkpoint.aborted),
        )
    )
    out += big_endian(checkpoint.index)
    for epoch in checkpoint.epochs:
        out += _EPOCH.pack(*epoch)
    out += yield from encode_producers(checkpoint.producers)
    for aborted in checkpoint.aborted:
        out += _ABORTED.pack(aborted.producer_id, aborted.first_offset, aborted.last_offset, aborted.last_stable_offset)
    return bytes(out)


def decode_key(data: memoryview) -> PartitionKey:
    """Return the partition of an encoded checkpoint without decoding the rest.

    A journal holds thousands of checkpoints, and a recovery needs a few.  Raises FormatError if the bytes end early.
    """
    if len(data) < _HEAD.size:
        raise FormatError(f"a checkpoint of {len(data)} bytes")
    return PartitionKey(uuid.UUID(bytes=bytes(data[2:18])), struct.unpack_from(">I", data, 18)[0])


def encoded_bytes(checkpoint: Checkpoint) -> int:
    """Return the length of ``encode``'s result, some twenty times as fast as it."""
    return (
        _HEAD.size
        + segment_bytes(checkpoint)
        + len(checkpoint.epochs) * _EPOCH.size
        + len(checkpoint.producers) * _PRODUCER.size
        + sum(len(state.batches) for state in checkpoint.producers) * _BATCH.size
    )


def segment_bytes(checkpoint: Checkpoint) -> int:
    """Return the bytes of the lists that grow with the segment: index entries and aborted transactions."""
    return len(checkpoint.index) // 3 * INDEX_ENTRY_BYTES + len(checkpoint.aborted) * _ABORTED.size


def decode(data: memoryview) -> Checkpoint:
    """Return the checkpoint that ``encode`` wrote.  Raises FormatError if the bytes are not a checkpoint."""
    return finish_steps(decode_steps(data))


def decode_steps(data: memoryview, *, with_producers: bool = True) -> Steps[Checkpoint]:
    """Do the same as ``decode``, with a pause after each ``PRODUCERS_A_STEP`` producers.

    ``with_producers`` False leaves the producers out, which readers do not need.
    """
    try:
        return (yield from _decode(data, with_producers=with_producers))
    except (struct.error, IndexError) as error:
        raise FormatError(f"checkpoint ends early: {error}") from error


def _decode(data: memoryview, *, with_producers: bool) -> Steps[Checkpoint]:
    head = _HEAD.unpack_from(data)
    kind, flags, topic_id, partition, base, epoch, n = head[:7]
    position, end_offset, log_start, max_ts, max_ts_offset, open_txn = head[7:13]
    entries, epochs, producers, aborted = head[13:]
    if kind not in (_FULL, _DELTA):
        raise FormatError(f"checkpoint kind {kind}")
    at = _HEAD.size
    if len(data) - at < entries * INDEX_ENTRY_BYTES:
        raise FormatError("checkpoint index ends early")
    index = from_big_endian(data[at : at + entries * INDEX_ENTRY_BYTES])
    at += entries * INDEX_ENTRY_BYTES
    epoch_list = tuple(_EPOCH.unpack_from(data, at + i * _EPOCH.size) for i in range(epochs))
    at += epochs * _EPOCH.size
    states: list[ProducerState] = []
    for number in range(producers):
        if number and number % PRODUCERS_A_STEP == 0:
            yield
        if with_producers:
            state, at = _get_producer(data, at)
            states.append(state)
        else:
            at += _PRODUCER.size + data[at + _PRODUCER.size - 1] * _BATCH.size
    if at > len(data):
        raise FormatError("checkpoint producers end early")
    aborted_list = tuple(
        AbortedTransaction(*_ABORTED.unpack_from(data, at + i * _ABORTED.size)) for i in range(aborted)
    )
    return Checkpoint(
        key=PartitionKey(uuid.UUID(bytes=topic_id), partition),
        segment=SegmentName(base, epoch, n),
        position=position,
        end_offset=end_offset,
        log_start=log_start,
        is_full=kind == _FULL,
        is_closed=bool(flags & 1),
        max_timestamp=max_ts,
        max_timestamp_offset=max_ts_offset,
        first_open_txn=open_txn,
        index=index,
        epochs=epoch_list,
        producers=tuple(states),
        knows_producers=with_producers,
        aborted=aborted_list,
    )


def _put_producer(out: bytearray, state: ProducerState) -> None:
    """Append a producer's state to ``out``.

    ::

        id i64, epoch i16, coordinator epoch i32, last timestamp i64, txn start i64, count u8, then each batch:
            base sequence i32, base offset i64, last delta i32, timestamp i64
    """
    out += _PRODUCER.pack(
        state.producer_id,
        state.epoch,
        state.coordinator_epoch,
        state.last_timestamp,
        state.txn_start,
        len(state.batches),
    )
    for batch in state.batches:
        out += _BATCH.pack(batch.base_sequence, batch.base_offset, batch.last_delta, batch.timestamp)


def _get_producer(data: memoryview, at: int) -> tuple[ProducerState, int]:
    producer_id, epoch, coordinator_epoch, timestamp, txn_start, count = _PRODUCER.unpack_from(data, at)
    at += _PRODUCER.size
    batches = tuple(ProducerBatch(*_BATCH.unpack_from(data, at + i * _BATCH.size)) for i in range(count))
    return (
        ProducerState(producer_id, epoch, coordinator_epoch, timestamp, txn_start, batches),
        at + count * _BATCH.size,
    )


def encode_producers(states: Iterable[ProducerState]) -> Steps[bytes]:
    """Return ``states`` in the format of a checkpoint, one after another, with a pause after each PRODUCERS_A_STEP."""
    parts: list[bytearray] = []
    for part in batched(states, PRODUCERS_A_STEP):
        if parts:
            yield
        out = bytearray()
        for state in part:
            _put_producer(out, state)
        parts.append(out)
    return b"".join(parts)


def decode_producers(data: memoryview) -> Steps[list[ProducerState]]:
    """Return the states that ``encode_producers`` wrote, with pauses as it makes them.

    Raises FormatError if the bytes end early.
    """
    states: list[ProducerState] = []
    at = 0
    try:
        while at < len(data):
            if states and len(states) % PRODUCERS_A_STEP == 0:
                yield
            state, at = _get_producer(data, at)
            states.append(state)
    except struct.error as error:
        raise FormatError(f"producers end early: {error}") from error
    return states


def merge(older: Checkpoint, newer: Checkpoint) -> Checkpoint:
    """Return ``older`` and a later delta of the same segment as one checkpoint.

    They may overlap: a journal's new file begins with a snapshot, and deltas that were made before it or across it
    follow.
    """
    assert not newer.is_full
    assert newer.segment == older.segment
    reached = older.index[-2] if older.index else -1
    fresh = newer.index[bisect_right(newer.index[1::3], reached) * 3 :]
    decided = older.aborted[-1].last_offset if older.aborted else -1  # both lists are in the order of the markers
    aborted = newer.aborted[bisect_right(newer.aborted, decided, key=_LAST_OFFSET) :]
    is_later = newer.end_offset >= older.end_offset
    latest = newer if is_later else older
    producers = {state.producer_id: state for state in older.producers}
    if is_later:
        producers.update((state.producer_id, state) for state in newer.producers)
    return Checkpoint(
        key=older.key,
        segment=older.segment,
        position=latest.position,
        end_offset=latest.end_offset,
        log_start=max(older.log_start, newer.log_start),
        is_full=older.is_full,
        is_closed=older.is_closed or newer.is_closed,
        max_timestamp=latest.max_timestamp,
        max_timestamp_offset=latest.max_timestamp_offset,
        first_open_txn=latest.first_open_txn,
        index=older.index + fresh,
        epochs=older.epochs + tuple(e for e in newer.epochs if e not in older.epochs),
        producers=tuple(producers.values()),
        knows_producers=older.knows_producers and newer.knows_producers,
        aborted=older.aborted + aborted,
    )


def big_endian(values: array[int]) -> bytes:
    """Return the array's 64-bit numbers in network byte order."""
    copy = array("q", values)
    copy.byteswap()
    return copy.tobytes()


def from_big_endian(data: memoryview) -> array[int]:
    """Return the 64-bit numbers that ``big_endian`` wrote."""
    values = array("q")
    values.frombytes(data)
    values.byteswap()
    return values

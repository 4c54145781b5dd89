"""Damage in a segment's bytes, and where right ones continue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from bmq.core.records.batch import HEADER_BYTES, Batch
from bmq.core.records.cursor import find_batch, is_batch
from bmq.spark.decoding import compiled
from bmq.spark.decoding.corrupt import CorruptSegment as CorruptSegment

if TYPE_CHECKING:
    from bmq.spark.decoding import kernels
else:
    kernels = compiled.load()

_SEARCH_BYTES = 4 << 20  # searched at first for the next right batch
FAULTS = {
    kernels.TORN: "the bytes end in a batch",
    kernels.BATCH_LENGTH: "no batch begins here: its length field is too small",
    kernels.NO_MAGIC: "no batch begins here: the magic is not 2",
    kernels.DISORDER: "the batch's base offset is out of order",
    kernels.RECORD_LENGTH: "its length does not fit the batch",
    kernels.NUMBER: "a number does not end",
    kernels.OFFSET_DELTA: "its offset delta is out of order",
    kernels.BYTES_LENGTH: "the length of a field does not fit the record",
    kernels.HEADER_COUNT: "its count of headers does not fit the record",
    kernels.HEADER_NAME: "a header's name has an invalid length",
    kernels.RECORD_END: "its fields end before it does",
    kernels.BATCH_END: "bytes follow the last record",
}


@dataclass(slots=True)
class Corrupt:
    """A count of the batches and bytes that were skipped."""

    batches: int = 0
    bytes: int = 0


class Damage(NamedTuple):
    """Bytes [at, stop) of a chunk that are left out; offset ``due`` is the least that may follow them."""

    at: int
    stop: int
    offset: int
    due: int
    fault: str

    @classmethod
    def of(cls, header: list[int], fault: str) -> Damage:
        """Return the damage of one batch whose frame is right."""
        at, offset = header[kernels.POSITION], header[kernels.BASE_OFFSET]
        return cls(at, at + header[kernels.SIZE], offset, offset + header[kernels.LAST_DELTA] + 1, fault)


def misplaced(view: memoryview, at: int, fault: int, due: int) -> Damage:
    """Return the damage at ``at``, where no batch begins, or one that does not belong there."""
    if fault != kernels.DISORDER:
        return Damage(at, next_batch(view, at, due), due, due, FAULTS[fault])
    batch = Batch(view[at : at + HEADER_BYTES])
    if batch.base_offset < due:  # perhaps the one before was the wrong one: continue from here
        due = max(batch.next_offset, 0)
    return Damage(at, at + batch.size, batch.base_offset, due, FAULTS[fault])


def next_batch(view: memoryview, at: int, due: int) -> int:
    """Return the position of the next right batch after the bad one at ``at``, or the end.

    Batches inside the bad batch do not count if its length leads to a right one: a record's value may well be a whole
    batch.
    """
    if len(view) - at >= HEADER_BYTES:
        follower = at + int(Batch(view[at : at + HEADER_BYTES]).size)
        if at + HEADER_BYTES <= follower == len(view):
            return follower
        if at + HEADER_BYTES <= follower < len(view) and is_batch(view[follower:]):
            return follower
    room = _SEARCH_BYTES
    while True:  # in ever larger windows, since each is copied
        found = find_batch(view[at + 1 : at + 1 + room], max(due, 0))
        if found is not None:
            return at + 1 + found
        if at + 1 + room >= len(view):
            return len(view)
        room *= 4

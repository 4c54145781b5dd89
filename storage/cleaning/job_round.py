"""A round by a job outside the brokers: facts from a partition's owner for the job, and drafts for the owner.

The owner plans the round, and swaps; the job reads the sources and writes the drafts, with as many machines as it has::

    owner   plan: the round's bounds, the aborted transactions, the ends of producers       ``RoundPlan``
    job     drafts in a folder of its own, beside the segments                              ``draft_folder``
    owner   swap: checks that the sources are the files that the job read, in order         ``sources_digest``

The job names a group of sources by a digest: a group may have thousands of files.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

from bmq.core.errors import FormatError
from bmq.core.model import SegmentName
from bmq.storage.checkpoint import AbortedTransaction
from bmq.storage.cleaning.retention import ProducerEnd, RoundBounds

if TYPE_CHECKING:
    from bmq.core.rpc.messages.broker import BeginCleaningResponse

DRAFT_FOLDER = ".compact-"
"""The beginning of the name of a job's folder; the job's id follows."""
JOB = re.compile(r"[a-z0-9-]{1,64}", re.ASCII)
"""The form of a job's id."""
GROUPS_MAX = 64
"""Most groups of one request to swap: some seconds of calls to the namespace."""
SWAP_WITHIN_MS = 172_800_000
"""Longest time from a plan to its last swap: 48 hours.  Delete horizons of the drafts count from its end."""
NOTHING_TO_CLEAN = "nothing can be cleaned now"
"""The beginning of the owner's refusal where the log needs no job; all other refusals are failures of the job."""
_ABORTED = struct.Struct(">qqqq")
_PRODUCER = struct.Struct(">qqh")


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundPlan:
    """The plan of a round over a partition's closed segments with offsets [``start``, ``end``).

    Below ``first_dirty`` no key has two records.  ``now_ms`` is the time of the cleaning.  Drafts are swapped until
    ``swap_until_ms``, no later.  ``aborted`` has every aborted transaction with data below ``end``.  ``segment_bytes``:
    most bytes of the sources of one cleaned segment, but for a single source.  All times are wall times.
    """

    start: int
    first_dirty: int
    end: int
    now_ms: int
    swap_until_ms: int
    delete_retention_ms: int
    segment_bytes: int
    index_interval_bytes: int
    clean_bytes: int
    dirty_bytes: int
    aborted: tuple[AbortedTransaction, ...]
    producers: Mapping[int, ProducerEnd]

    def bounds(self, first_dirty: int) -> RoundBounds:
        """Return the bounds of a round over this plan's sources, or over some of them."""
        return RoundBounds(
            first_dirty=first_dirty,
            end=self.end,
            now_ms=self.now_ms,
            delete_retention_ms=self.delete_retention_ms,
            swap_until_ms=self.swap_until_ms,
        )


class RoundNumbers(TypedDict):
    """The numbers of a ``RoundPlan``.  The owner's response and the console's facts have the same names."""

    start: int
    """First offset of the sources."""
    first_dirty: int
    """Offset below which no key has two records."""
    end: int
    """Offset behind the last source."""
    now_ms: int
    """Time of the cleaning."""
    swap_until_ms: int
    """Latest time of a swap; delete horizons count from it."""
    delete_retention_ms: int
    segment_bytes: int
    """Most bytes of the sources of one cleaned segment, but for a single source."""
    index_interval_bytes: int
    clean_bytes: int
    dirty_bytes: int


def numbers_of(plan: RoundPlan | BeginCleaningResponse) -> RoundNumbers:
    """Return the numbers of a plan, or of an owner's response."""
    return RoundNumbers(
        start=plan.start,
        first_dirty=plan.first_dirty,
        end=plan.end,
        now_ms=plan.now_ms,
        swap_until_ms=plan.swap_until_ms,
        delete_retention_ms=plan.delete_retention_ms,
        segment_bytes=plan.segment_bytes,
        index_interval_bytes=plan.index_interval_bytes,
        clean_bytes=plan.clean_bytes,
        dirty_bytes=plan.dirty_bytes,
    )


def draft_folder(folder: str, job: str) -> str:
    """Return the folder of the job's drafts in a partition's folder.  ``job``: see ``JOB``."""
    return f"{folder}/{DRAFT_FOLDER}{job}"


def sources_digest(sources: Iterable[tuple[SegmentName, int]]) -> str:
    """Return the digest of a group's files, from their names and lengths in order: 64 hexadecimal digits."""
    digest = hashlib.sha256()
    for name, length in sources:
        digest.update(b"%s %d\n" % (str(name).encode(), length))
    return digest.hexdigest()


def pack_aborted(aborted: Iterable[AbortedTransaction]) -> bytes:
    """Return the transactions as bytes: producer id, first, last and last stable offset, 8 bytes each."""
    return b"".join(
        _ABORTED.pack(one.producer_id, one.first_offset, one.last_offset, one.last_stable_offset) for one in aborted
    )


def unpack_aborted(data: bytes) -> tuple[AbortedTransaction, ...]:
    """Do the reverse of ``pack_aborted``.  Raises FormatError."""
    _require_whole(data, _ABORTED, "aborted transactions")
    return tuple(AbortedTransaction(*row) for row in _ABORTED.iter_unpack(data))


def pack_producers(ends: Mapping[int, ProducerEnd]) -> bytes:
    """Return the ends as bytes: producer id and last offset of 8 bytes each, epoch of 2."""
    return b"".join(_PRODUCER.pack(producer_id, end.last_offset, end.epoch) for producer_id, end in ends.items())


def unpack_producers(data: bytes) -> dict[int, ProducerEnd]:
    """Do the reverse of ``pack_producers``.  Raises FormatError."""
    _require_whole(data, _PRODUCER, "ends of producers")
    return {producer_id: ProducerEnd(last, epoch) for producer_id, last, epoch in _PRODUCER.iter_unpack(data)}


def _require_whole(data: bytes, row: struct.Struct, what: str) -> None:
    if len(data) % row.size:
        raise FormatError(f"{len(data)} bytes of {what}: {row.size} are expected for each")

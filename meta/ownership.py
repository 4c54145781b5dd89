"""The record of a partition: its owner, and the segments that are not certainly closed; a key per partition.

The record is the truth that fences owners: it is only ever written by a commit that compares the revision its writer
read (rules 3, 4 and 7).  It changes with a segment or an owner, never with a produce.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from bmq.core.errors import FormatError
from bmq.core.model import PartitionKey, SegmentName
from bmq.meta.kv import Compare, KeyValue, Put

FORMAT = 1
NEVER = (-1, -1)
"""``PartitionRecord.last`` of a partition in which no segment was ever registered."""
N_MAX = (1 << 31) - 1
"""Number above that of any registration: ``PartitionRecord.last`` of a record whose writer did not keep it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentEntry:
    """A registered segment, with all that a process needs to find and fence it.

    ``spare`` is the path it was created under, ``holder`` and ``file_id`` its lease.  ``length`` and ``end_offset`` are
    -1 until it is certainly closed.  A single closed entry, the newest, is kept to lead to its ``.idx``.  Only the
    entry of a segment that ``bmq cluster rebuild`` found on storage has a cleaning number in its name.
    """

    name: SegmentName
    spare: str
    holder: str
    file_id: int
    length: int = -1
    end_offset: int = -1

    @property
    def is_closed(self) -> bool:
        """True if the segment is certainly closed."""
        return self.length >= 0

    def closed(self, length: int, end_offset: int) -> SegmentEntry:
        """Return the entry of the segment once it is closed, at this length in bytes and end offset."""
        return replace(self, length=length, end_offset=end_offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """The replacement of closed segments by a cleaned segment, registered before ``draft`` gets the name ``name``.

    ``draft`` is the path of the complete and closed file; its index is at ``draft_index``.  The partition's next owner
    completes the swap, or finds that the draft is gone.  So no process gives a draft its name later unnoticed.
    """

    name: SegmentName
    draft: str
    draft_index: str

    @property
    def drafts(self) -> tuple[str, str]:
        """The paths of both drafts."""
        return self.draft, self.draft_index


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRecord:
    """A partition's record.  ``owner`` is a broker incarnation, "" after a planned hand-over.

    ``segments`` are in registration order.  ``journals`` are the incarnations whose journals may hold the last
    checkpoint; an owner appends itself when it claims and drops the others when its own checkpoint is durable.

    ``is_settled``: after a planned hand-over, the index of the last closed segment has all facts about the log. So
    journals need not be read: a live broker's journal is long, and grows all the time.

    ``last`` is the (epoch, n) of the last segment that was registered, or above it.  No file on storage has a later
    final name (rule 3), unless the store is older than storage.  ``segments`` does not show it, since segments without
    data leave the record.

    ``swap`` is the replacement of segments that is under way; None if there is none.
    """

    epoch: int = 0
    owner: str = ""
    segments: tuple[SegmentEntry, ...] = ()
    journals: tuple[str, ...] = ()
    is_settled: bool = False
    last: tuple[int, int] = NEVER
    swap: Swap | None = None

    @property
    def last_registered(self) -> tuple[int, int]:
        """The (epoch, n) after which no segment was registered."""
        return max((self.last, *(entry.name.registration for entry in self.segments)))


def partitions_prefix(cluster: str) -> str:
    """Return the prefix of all partition records."""
    return f"/{cluster}/partitions/"


def partition_key(cluster: str, key: PartitionKey) -> str:
    return f"{partitions_prefix(cluster)}{key.topic_id}/{key.partition:08d}"


def encode(record: PartitionRecord) -> bytes:
    raw: dict[str, object] = {
        "format": FORMAT,
        "epoch": record.epoch,
        "owner": record.owner,
        "journals": record.journals,
        "segments": [
            [
                *entry.name[:3],
                entry.spare,
                entry.holder,
                entry.file_id,
                entry.length,
                entry.end_offset,
                *((entry.name.cleaning,) if entry.name.cleaning else ()),
            ]
            for entry in record.segments
        ],
    }
    if record.is_settled:
        raw["settled"] = True
    raw["last"] = record.last
    if record.swap is not None:
        raw["swap"] = [*record.swap.name, record.swap.draft, record.swap.draft_index]
    return json.dumps(raw, separators=(",", ":")).encode()


def decode(data: bytes) -> PartitionRecord:
    """Return the record in ``data``.  Raises FormatError if it is not a record, or one of a later format."""
    try:
        raw = json.loads(data)
        if raw["format"] != FORMAT:
            raise FormatError(f"partition record of format {raw['format']}: this version reads {FORMAT}")
        epoch = _integer(raw["epoch"])
        last = raw.get("last")  # absent in a record of an earlier version: it registered under its epoch at most
        return PartitionRecord(
            epoch=epoch,
            last=(epoch, N_MAX) if last is None else _order(*last),
            owner=_text(raw["owner"]),
            journals=tuple(map(_text, raw["journals"])),
            is_settled=bool(raw.get("settled", False)),
            swap=_swap(*raw["swap"]) if "swap" in raw else None,
            segments=tuple(
                SegmentEntry(
                    name=SegmentName(_integer(base), _integer(epoch), _integer(n), *_cleaning(*cleaning)),
                    spare=_text(spare),
                    holder=_text(holder),
                    file_id=_integer(file_id),
                    length=_integer(length),
                    end_offset=_integer(end_offset),
                )
                for base, epoch, n, spare, holder, file_id, length, end_offset, *cleaning in raw["segments"]
            ),
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FormatError(f"not a partition record: {data[:80]!r} ({error})") from error


def _swap(base: object, epoch: object, n: object, cleaning: object, draft: object, index: object) -> Swap:
    name = SegmentName(_integer(base), _integer(epoch), _integer(n), _integer(cleaning))
    return Swap(name=name, draft=_text(draft), draft_index=_text(index))


def _cleaning(cleaning: object = 0) -> tuple[int]:
    return (_integer(cleaning),)


def _order(epoch: object, n: object) -> tuple[int, int]:
    return _integer(epoch), _integer(n)


def _integer(value: object) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is not a whole number")
    return value


def _text(value: object) -> str:
    if type(value) is not str:
        raise TypeError(f"{value!r} is not a text")
    return value


@dataclass(frozen=True, slots=True)
class Stored:
    """The result of a write after which the store has the wanted record."""

    revision: int


@dataclass(frozen=True, slots=True)
class WriteRefused:
    """The result of a write that another process's write preceded: the record that the store has."""

    record: PartitionRecord
    revision: int


async def read(kv: KeyValue, key: str) -> tuple[PartitionRecord, int]:
    """Return the record and its revision; an empty record at revision 0 if the partition never had an owner.

    Raises KvError, and FormatError if the record cannot be decoded.
    """
    entry = await kv.get(key)
    return (PartitionRecord(), 0) if entry is None else (decode(entry.value), entry.revision)


async def store(kv: KeyValue, key: str, record: PartitionRecord, revision: int) -> Stored | WriteRefused:
    """Write ``record`` if the key is still at ``revision``.

    After KvUnknown call again with the same arguments.  If the first commit did happen, the second is refused, but the
    record found is equal to ``record``, and the result is Stored.  Raises KvError, and FormatError if the record found
    cannot be decoded: nothing was written then.
    """
    wanted = encode(record)
    done = await kv.commit([Compare(key, revision)], [Put(key, wanted)])
    if done.succeeded:
        return Stored(done.revision)
    found = done.current[key]
    if found is None:
        return WriteRefused(PartitionRecord(), 0)
    if found.value == wanted:
        return Stored(found.revision)
    return WriteRefused(decode(found.value), found.revision)

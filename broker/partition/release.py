"""What the owner that lets go of a partition tells the next one, so that this one need not ask for it.

All of it can be had otherwise: the record from the store, the index from storage, and where neither helps the log is
recovered as after a death.  So a word that is late, or wrong, costs time: the claim compares the revision, and an index
is believed only if it is that of the record's last segment, in every number.
"""

from __future__ import annotations

from typing import NamedTuple

from bmq.core.rpc.message_fields import Release
from bmq.meta import ownership
from bmq.meta.ownership import PartitionRecord, SegmentEntry
from bmq.storage.checkpoint import Checkpoint
from bmq.storage.segment import decode_idx

INDEX_BYTES_MAX = 128 << 10
"""A longer index is written before the partition is let go of: that of a segment of 128 MB has 50 KB."""


class ReleaseNote(NamedTuple):
    """``revision`` is -1 where the record is not known; ``last_index`` is empty where it stands on storage."""

    record: PartitionRecord = PartitionRecord()
    revision: int = -1
    last_index: bytes = b""

    @property
    def found(self) -> tuple[PartitionRecord, int] | None:
        """The record and its revision, as if they had just been read; None if they are not known.

        A record that somebody released has an epoch.  Claimed without its segments, the log would begin anew.
        """
        return (self.record, self.revision) if self.revision >= 0 and self.record.epoch > 0 else None

    def checkpoint(self, last: SegmentEntry) -> Checkpoint | None:
        """What the index says of the last segment, None if it says nothing.  FormatError."""
        if not self.last_index:
            return None
        said = decode_idx(self.last_index)
        is_same = (said.segment, said.position, said.end_offset) == (last.name, last.length, last.end_offset)
        return said if is_same else None

    def release(self) -> Release:
        return Release(self.revision, ownership.encode(self.record), self.last_index)

    @classmethod
    def of(cls, release: Release) -> ReleaseNote:
        """FormatError when its record is none."""
        return cls(ownership.decode(release.record), release.revision, release.last_index)


NOTHING = ReleaseNote()
"""It was ours, and there is nothing to tell of it."""

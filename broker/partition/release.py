"""Release note: facts that the outgoing owner sends to its successor, which then need not read them.

All of them are elsewhere too: the record in the metadata store, the index on storage. If neither helps, the log is
recovered as after a death. So a late, lost or wrong note only costs time. The claim compares the record's revision. An
index is used only if all its numbers are the numbers of the record's last segment.
"""

from __future__ import annotations

from typing import NamedTuple

from bmq.core.rpc.messages.broker import Release
from bmq.meta import ownership
from bmq.meta.ownership import PartitionRecord, SegmentEntry
from bmq.storage.checkpoint import Checkpoint
from bmq.storage.segment import decode_idx


class ReleaseNote(NamedTuple):
    """The facts of one release.

    ``revision`` is -1 if the record is not known; ``last_index`` is empty if the index is on storage.
    """

    record: PartitionRecord = PartitionRecord()
    revision: int = -1
    last_index: bytes = b""

    @property
    def found(self) -> tuple[PartitionRecord, int] | None:
        """The record and its revision, as if they had just been read; None if they are not known.

        A released record always has an epoch above 0. Claimed without its segments, the log would begin again at offset
        0.
        """
        return (self.record, self.revision) if self.revision >= 0 and self.record.epoch > 0 else None

    def checkpoint(self, last: SegmentEntry) -> Checkpoint | None:
        """Return the note's index of the segment ``last``; None if the note has none, or that of another segment.

        Raises FormatError if the index is damaged.
        """
        if not self.last_index:
            return None
        noted = decode_idx(self.last_index)
        is_same = (noted.segment, noted.position, noted.end_offset) == (last.name, last.length, last.end_offset)
        return noted if is_same else None

    def release(self) -> Release:
        """Return the message that carries the note to the successor."""
        return Release(self.revision, ownership.encode(self.record), self.last_index)

    @classmethod
    def of(cls, release: Release) -> ReleaseNote:
        """Return the note that a message carries. Raises FormatError if its record cannot be decoded."""
        return cls(ownership.decode(release.record), release.revision, release.last_index)


NOTHING = ReleaseNote()
"""Empty note: this broker was the owner, and has no facts to pass on."""

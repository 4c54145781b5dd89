"""The segment to be opened next, on its way from a spare file to a registered name: pure (rule 3).

``create`` under a spare name, perhaps ahead of need -> ``ready`` -> ``register`` its final name in the partition's
record -> ``name``: rename the file -> ``named``: it may be written.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum

from bmq.broker import events as ev
from bmq.broker.events import Effect
from bmq.broker.files.chunk_sizes import FIRST_FLUSH_BYTES_MAX, chunk_for
from bmq.broker.partition.checkpointer import OpenSegment
from bmq.core.model import SegmentName
from bmq.meta.ownership import SegmentEntry

_MB = 1 << 20


class Spare(Enum):
    """The state of the spare file."""

    NONE = "none"
    CREATING = "being created"
    READY = "ready"


def whole_mb(size: int) -> int:
    """Return ``size`` rounded up to whole MB.

    HDFS has a smallest block (dfs.namenode.fs-limits.min-block-size, 1 MB), and blocks consist of whole checksum
    chunks.
    """
    return -(-size // _MB) * _MB


def block_for(last_bytes: int, first_block_bytes: int, block_bytes: int, segment_bytes: int) -> int:
    """Return the block size, in bytes, of the file that follows a segment of ``last_bytes``: the most it can hold.

    HDFS reserves as much room on each of its datanodes.
    """
    most = min(block_bytes, whole_mb(segment_bytes))
    return most if last_bytes * 2 > first_block_bytes else min(first_block_bytes, most)


class SegmentRoll:
    """The next segment of one partition."""

    __slots__ = (
        "_entry",
        "_flush_bytes",
        "_n",
        "_naming",
        "_registering",
        "_serial",
        "block_bytes",
        "copies",
        "last_bytes",
        "spare",
    )

    def __init__(self) -> None:
        self.spare = Spare.NONE
        self.block_bytes = 0  # of the spare
        self.copies = 0  # of the spare, once it is ready
        self._entry: SegmentEntry | None = None  # the spare's, once it is ready
        self._registering: SegmentEntry | None = None
        self._naming: SegmentEntry | None = None
        self._n = 0  # segments registered in this epoch
        self._serial = 0  # spares requested
        self._flush_bytes = 0  # mean size of the last segment's flushes; 0 if unknown
        self.last_bytes = 0  # length of the last segment

    def __repr__(self) -> str:
        return f"<SegmentRoll spare={self.spare.value} registering={self._registering} naming={self._naming}>"

    @property
    def is_registering(self) -> bool:
        """True while the segment's registration in the record is under way."""
        return self._registering is not None

    @property
    def is_chosen(self) -> bool:
        """True once the segment has its name, until it is opened under it."""
        return self._registering is not None or self._naming is not None

    @property
    def being_named(self) -> SegmentEntry | None:
        """The segment that is being renamed to its final name, if any."""
        return self._naming

    # ------------------------------------------------------------------------------------------------------ the spare

    @property
    def unused(self) -> SegmentEntry | None:
        """The spare, if it is ready; else None."""
        return self._entry

    def create(
        self,
        epoch: int,
        block_bytes: int,
        first_bytes: int,
        copies: int,
        least_bytes: int = 0,
        after: tuple[int, int] | None = None,
    ) -> Effect:
        """Return the effect that creates a spare.

        ``first_bytes``: size of the first batch that waits for it, 0 if none does. ``copies``: datanodes it must have
        at least. ``least_bytes``: the smallest block that does where storage has no room for more; 0: no smaller one.
        ``after``: the partition's last registration, if its folder was not looked at yet.
        """
        self.spare, self.block_bytes = Spare.CREATING, block_bytes
        self._serial += 1
        flush_bytes = self._flush_bytes or min(first_bytes, FIRST_FLUSH_BYTES_MAX)
        least_bytes = min(least_bytes, block_bytes)
        return ev.CreateSpare(epoch, self._serial, block_bytes, chunk_for(flush_bytes), copies, least_bytes, after)

    def found(self, last_bytes: int) -> None:
        """Note the length of the last segment that a takeover found, for the block of the next segment."""
        self.last_bytes = last_bytes

    def learn(self, segment: OpenSegment) -> None:
        """Note the size of ``segment`` and of its flushes, for the block and the chunks of the next one."""
        self.last_bytes = segment.position
        if segment.flushes:
            self._flush_bytes = segment.position // segment.flushes

    def ready(self, entry: SegmentEntry, copies: int, block_bytes: int = 0) -> None:
        """Note the spare that was created, on ``copies`` datanodes; ``block_bytes`` if its block is smaller, else 0."""
        assert self.spare is Spare.CREATING
        self.spare, self._entry, self.copies = Spare.READY, entry, copies
        self.block_bytes = block_bytes or self.block_bytes

    def failed(self) -> None:
        """Note that the spare could not be created."""
        self.spare, self._entry = Spare.NONE, None

    def drop(self) -> list[Effect]:
        """Give up the spare, if it is ready; return the effects."""
        if self.spare is not Spare.READY:
            return []
        assert self._entry is not None
        entry, self._entry, self.spare = self._entry, None, Spare.NONE
        return [ev.DropSpare(entry)]

    def has_given_up(self, spare: str, serial: int) -> bool:
        """Return whether this owner's file at this path, with this serial, is left from an attempt that is over.

        The caller excludes the files that the record lists. While a spare is being created, no file counts as left: the
        creation may take a file that was made ahead (``broker.files.precreated``).
        """
        used = (self._entry, self._registering, self._naming)
        if self.spare is Spare.CREATING or any(entry is not None and entry.spare == spare for entry in used):
            return False
        return 0 < self._serial >= serial

    # ------------------------------------------------------------------------------------------------------- its name

    def register(self, base: int, epoch: int) -> SegmentEntry:
        """Return the spare's entry with its final name, which the record must list before the file has it."""
        assert self._entry is not None
        entry = replace(self._entry, name=SegmentName(base, epoch, self._n))
        self._n += 1
        self.spare, self._entry = Spare.NONE, None
        self._registering = entry
        return entry

    def name(self) -> Effect:
        """Return the effect that renames the spare: the record lists its name."""
        assert self._registering is not None
        self._naming, self._registering = self._registering, None
        return ev.NameSegment(self._naming)

    def naming(self, name: SegmentName) -> SegmentEntry | None:
        """Return the entry of the segment that is being renamed if it has this name, else None."""
        return self._naming if self._naming is not None and self._naming.name == name else None

    def named(self) -> None:
        """Note that the segment has its name, or was given up: either way the next one may be created."""
        self._naming = None

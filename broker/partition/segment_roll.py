"""The segment to be opened next, on its way from a spare file to a name: pure (rule 3).

``create`` under a spare name, which may be ahead of need -> ``ready`` -> ``register`` its final name in the partition's
record -> ``name`` it -> ``named``: it may be written.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum

from bmq.broker.partition import events as ev
from bmq.broker.partition.checkpointer import OpenSegment
from bmq.broker.partition.events import Effect
from bmq.core.model import SegmentName
from bmq.meta.ownership import SegmentEntry

_MB = 1 << 20
CHUNK_BYTES_MIN = 512
CHUNK_BYTES_MAX = 65_536
FIRST_FLUSH_BYTES_MAX = 16 << 10
"""What a partition's first batch is believed about the flushes to come: a chunk of 4 KB, so that flushes that turn out
small resend little."""


class Spare(Enum):
    """The file that it is to be."""

    NONE = "none"
    CREATING = "being created"
    READY = "ready"


def chunk_for(flush_bytes: int) -> int:
    """HDFS's checksum chunk for flushes of this size: a power of two from 512 to 64 KB, at most a quarter of them.

    A wide chunk costs less per byte, but every flush that ends inside one resends what the chunk holds already.
    """
    chunk = CHUNK_BYTES_MIN
    while chunk * 8 <= flush_bytes and chunk < CHUNK_BYTES_MAX:
        chunk *= 2
    return chunk


def whole_mb(size: int) -> int:
    """Rounded up: HDFS has a smallest block (dfs.namenode.fs-limits.min-block-size, 1 MB), of whole checksum chunks."""
    return -(-size // _MB) * _MB


def block_for(last_bytes: int, first_block_bytes: int, block_bytes: int, segment_bytes: int) -> int:
    """How long the file may become that follows a segment of ``last_bytes``; HDFS reserves as much on its datanodes."""
    most = min(block_bytes, whole_mb(segment_bytes))
    return most if last_bytes * 2 > first_block_bytes else min(first_block_bytes, most)


class SegmentRoll:
    """One partition's."""

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
        self._serial = 0  # spares asked for
        self._flush_bytes = 0  # usual size, as the last segment saw it; 0 when unknown
        self.last_bytes = 0  # that the last segment took

    def __repr__(self) -> str:
        return f"<NextSegment spare={self.spare.value} registering={self._registering} naming={self._naming}>"

    @property
    def is_registering(self) -> bool:
        return self._registering is not None

    @property
    def is_chosen(self) -> bool:
        """It has a name, and is about to be opened under it."""
        return self._registering is not None or self._naming is not None

    # ------------------------------------------------------------------------------------------------------ the spare

    @property
    def unused(self) -> SegmentEntry | None:
        """The spare, if it is ready."""
        return self._entry

    def create(self, epoch: int, block_bytes: int, first_bytes: int, copies: int) -> Effect:
        """``first_bytes``: size of the first batch that waits for it, 0 when none does; ``copies``: that it needs."""
        self.spare, self.block_bytes = Spare.CREATING, block_bytes
        self._serial += 1
        flush_bytes = self._flush_bytes or min(first_bytes, FIRST_FLUSH_BYTES_MAX)
        return ev.CreateSpare(epoch, self._serial, block_bytes, chunk_for(flush_bytes), copies)

    def learn(self, segment: OpenSegment) -> None:
        """How large ``segment`` and its flushes have become, for the block and the chunks of the one to come."""
        self.last_bytes = segment.position
        if segment.flushes:
            self._flush_bytes = segment.position // segment.flushes

    def ready(self, entry: SegmentEntry, copies: int) -> None:
        assert self.spare is Spare.CREATING
        self.spare, self._entry, self.copies = Spare.READY, entry, copies

    def failed(self) -> None:
        self.spare, self._entry = Spare.NONE, None

    def drop(self) -> list[Effect]:
        """Give up the spare, if it is ready."""
        if self.spare is not Spare.READY:
            return []
        assert self._entry is not None
        entry, self._entry, self.spare = self._entry, None, Spare.NONE
        return [ev.DropSpare(entry)]

    # ------------------------------------------------------------------------------------------------------- its name

    def register(self, base: int, epoch: int) -> SegmentEntry:
        """The spare gets its name, and has to be in the record before it has it on storage."""
        assert self._entry is not None
        entry = replace(self._entry, name=SegmentName(base, epoch, self._n))
        self._n += 1
        self.spare, self._entry = Spare.NONE, None
        self._registering = entry
        return entry

    def name(self) -> Effect:
        """The record lists it."""
        assert self._registering is not None
        self._naming, self._registering = self._registering, None
        return ev.NameSegment(self._naming)

    def naming(self, name: SegmentName) -> SegmentEntry | None:
        """The segment if it is the one that is being named."""
        return self._naming if self._naming is not None and self._naming.name == name else None

    def named(self) -> None:
        """It has its name, or is given up: it is the next one no more."""
        self._naming = None

"""Runs of plain batches: a round passes a run in one call, without work in Python for a batch.

The reader of a source shows a window: bytes from the beginning of a batch on, of which nothing is checked.  The round
has a ``RunFilter`` pass as many batches as are plain; the next batch is read, checked and judged alone.  A window may
end anywhere.  A batch is plain if nothing but its records decides what becomes of it, and nothing is wrong with it:

=============  =======================================================================================
of a batch     plain
=============  =======================================================================================
form           magic 2; the window has all its bytes; the CRC is right
offsets        dense: the first is due, the last is below the end of the source
attributes     LogAppendTime and delete horizon alone: no codec, no transaction, no control batch
records        right, or none at all
=============  =======================================================================================

When files are written, also:

=============  =======================================================================================
leader epoch   that of the batch before: headers alone tell where an epoch begins
producer       the batch is not the last data of a producer that the owner knows: its header may stay
=============  =======================================================================================
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from bmq.core.records.batch import ATTRIBUTES_LOW, DELETE_HORIZON, HEADER_BYTES, LOG_APPEND_TIME

WINDOW_BYTES = 256 << 10
"""Most bytes of a window: a millisecond of work or less, so that a round's pauses and its end are not late."""
_PLAIN_ATTRIBUTES = LOG_APPEND_TIME | DELETE_HORIZON


class Window:
    """Bytes ``data`` of a source from a batch on, of which ``passed`` bytes are passed: whole plain batches.

    The first batch is due at ``offset``, the next one at ``next_offset``.  The source ends at ``end_offset``.
    """

    __slots__ = ("data", "end_offset", "next_offset", "offset", "passed")

    def __init__(self, data: memoryview, offset: int, end_offset: int) -> None:
        self.data = data
        self.offset = self.next_offset = offset
        self.end_offset = end_offset
        self.passed = 0

    def take(self, passed: int, next_offset: int) -> None:
        """Pass the first ``passed`` bytes."""
        self.passed, self.next_offset = passed, next_offset


class KeptRun(NamedTuple):
    """The rest of a run of ``records`` records: the bytes of whole batches, with ``kept`` records.

    ``tombstones`` counts kept records; ``earliest_horizon`` is NO_HORIZON, or the earliest delete horizon of batches
    with tombstones.  ``written_to``: the offset behind the last batch of ``data``, ``gap_from`` without data.
    """

    records: int
    kept: int
    tombstones: int
    earliest_horizon: int
    data: bytes
    written_to: int


class RunRules(NamedTuple):
    """The rules of a run as files are written.

    Its batches end at ``end_offset`` at the latest, and are of one leader epoch.  Offsets from ``gap_from`` on are not
    written yet.  A delete horizon up to ``now_ms`` is over.  A batch with tombstones and without a horizon gets
    ``new_horizon``: see ``retention``.  ``is_cleaned``: a round wrote the segment.  In another segment a horizon is a
    producer's, and the run ends before its batch.
    """

    end_offset: int
    epoch: int
    gap_from: int
    now_ms: int
    new_horizon: int
    is_cleaned: bool


class RunFilter(Protocol):
    """The part of a round's filter for runs: ``CompiledRecordFilter``, whose module imports this module.

    Each call passes as much of the window as is plain, maybe nothing.
    """

    def map_run(self, window: Window, first_dirty: int) -> int:
        """Map the keys of the records at or past ``first_dirty``; return the number of records passed.

        Raises MemoryError as ``RecordFilter.map_batch`` does.
        """

    def keep_run(self, window: Window, number: int, rules: RunRules) -> KeptRun:
        """Return what stays of batches; ``number`` is how many records the walk passed before."""


def may_be_plain(data: memoryview, at: int) -> bool:
    """Return whether a header begins at ``at`` whose attributes are those of a plain batch."""
    return len(data) - at >= HEADER_BYTES and not data[at + ATTRIBUTES_LOW] & ~_PLAIN_ATTRIBUTES

"""Ownership numbers of shards: each assignment of a shard has a higher number than all assignments before it.

::

    bit 30 ........ 17   16 ............... 0
    the rebuild count    assignments under it

Coordinators' logs are fenced by the number, and transaction markers carry it in an int32 as the coordinator's epoch.
Partitions keep the epoch of the last marker and refuse lower ones.  A rebuilt store knows nothing of earlier
assignments, so its numbers begin above those of all stores before it, by the rebuild count of ``cluster.json``.  A
store whose numbers were counted without the rebuild count goes on from them: its next number is higher.

**The ends of the bits.**  A shard with more than 131,071 assignments under one rebuild count has numbers of the next
rebuild count.  It is served: in a running store a number must rise, and nothing more.  A rebuilt store would begin
below these numbers.  So the leader's log warns, and says how often ``bmq cluster rebuild`` must then be run.  At the
end of an int32 the leader leaves the shard with its last owner, since an epoch cannot be higher.
"""

from __future__ import annotations

COUNT_BITS = 17
LAST = (1 << 31) - 1
"""The highest number: the rebuild count has 14 bits (``storage.cluster_files.REBUILD_COUNT_MAX``)."""


def next_number(before: int, rebuild_count: int) -> int | None:
    """Return the number of a shard's next assignment, after number ``before`` (0 for none); None if none is left."""
    number = max(before, rebuild_count << COUNT_BITS) + 1
    return number if number <= LAST else None


def has_next(before: int) -> bool:
    """Return True if the shard can be assigned once more after number ``before``, under any rebuild count."""
    return before < LAST


def is_past_its_count(number: int, rebuild_count: int) -> bool:
    """Return True if a store of the next rebuild count may give the number again."""
    return number >> COUNT_BITS > rebuild_count

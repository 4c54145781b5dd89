"""Sizes and places that the loops of a cleaning share with their callers; without numba."""

from __future__ import annotations

WORDS = 3
"""Words of an entry of the map."""
ENTRY_BYTES = 8 * WORDS

# The state of a map: a pass takes the keys whose first word of the hash is in [LOW, LAST].  A group of records follows.
KEY_0, KEY_1, COUNT, COUNT_MAX, LOW, LAST, GROUP_AT = range(7)
FIRST, SECOND, OFFSET, NUMBER, TIMESTAMP, IS_TOMBSTONE, READ, GROUPED = range(8)
GROUP_END = GROUP_AT + 32 * GROUPED
STATE = GROUP_END
"""Words of the state."""

# As in ``core.records.walk.Fault``, and another: the smallest range of hashes has more keys than the map has room for.
FINE, LENGTH, VARINT, OFFSET_DELTA, FIELD, BATCH_END = 0, 1, 2, 3, 4, 7
FULL = 10

RECORD_BYTES_MIN = 6
"""Bytes of the smallest record: length, attributes, two deltas, two null fields."""
REBASED_BYTES_MAX = 13
"""Bytes by which a record may grow with another base timestamp: its delta by 9, its length by 4."""
GAP_BYTES = 61
"""Bytes of a batch without records: its header."""
NO_HORIZON = -1
NO_TIMESTAMP = -1

"""The largest block that storage is asked for, after it had no room for a larger one: pure, time as an argument.

The NameNode counts all recently allocated blocks as large as the block that is requested now.  Datanodes keep a whole
block free for every open file.  So storage that has no room for a thousand blocks of 128 MB may have it for a thousand
of 4 MB, and quiet partitions need no more.  A smaller block comes before the bound on open files is lowered
(``broker.files.open_file_limit``), since partitions then need not take turns.
"""

from __future__ import annotations

STEP = 4
"""A block that storage has no room for is followed by one of this fraction of it."""
KEPT_MS = 10_000
"""Time after a refusal in which no larger block is asked for: three heartbeats of a datanode, by which the NameNode
learns of room.  Each try of a larger one costs it a file."""


class BlockCeiling:
    """The ceiling of one broker."""

    __slots__ = ("_ceiling", "_until_ms")

    def __init__(self) -> None:
        self._ceiling = 0
        self._until_ms = -1

    def __repr__(self) -> str:
        return f"<BlockCeiling {self._ceiling} until {self._until_ms}>"

    def fit(self, block_bytes: int, least_bytes: int, now_ms: int) -> int:
        """Return the size to ask for where ``block_bytes`` is wanted: less while a ceiling is in force."""
        if now_ms >= self._until_ms:
            return block_bytes
        return max(min(block_bytes, self._ceiling), min(block_bytes, least_bytes))

    def refused(self, block_bytes: int, now_ms: int) -> None:
        """Note that storage had no room for a block of this size."""
        ceiling = block_bytes // STEP >> 20 << 20
        self._ceiling = ceiling if now_ms >= self._until_ms else min(self._ceiling, ceiling)
        self._until_ms = now_ms + KEPT_MS

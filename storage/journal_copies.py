"""The copies that a journal's files are to have, and when one with fewer is replaced (docs/design/places.md).  Pure.

A journal's broker and its last node may be one machine, and partitions are not taken over while their last broker's
journal cannot be read.  If live datanodes have no room, a file has fewer copies after a while.  A file with fewer, for
that reason or another, is replaced as soon as storage offers more.
"""

from __future__ import annotations

import math

from bmq.core.aio.backoff import Backoff
from bmq.storage.filesystem import CreateOptions

PATIENCE_S = 5.0
"""The time for which the next file waits for room for all its copies.

It is more than a datanode's heartbeat (3 s), which reports freed room to the NameNode.  Takeovers wait as long.
"""
FULLER_S = Backoff(5.0, 60.0)
"""The time from a file with fewer copies to the next try to replace it.

The first is short, since this process may merely have been cut off from the other datanodes for a moment.  Then it
doubles each time.
"""


class JournalCopies:
    """The copies of one journal's open file and of its next one.  Times are seconds of one clock."""

    __slots__ = ("_fuller_at", "_fuller_tries", "_no_room_since")

    def __init__(self) -> None:
        self._no_room_since: float | None = None  # when storage first had no room for the next file
        self._fuller_at = math.inf  # when to try to replace a file with fewer copies
        self._fuller_tries = 0  # of files in a row that have fewer copies

    def __repr__(self) -> str:
        return f"<JournalCopies no_room_since={self._no_room_since} fuller_at={self._fuller_at}>"

    @property
    def has_all(self) -> bool:
        """True if the open file has as many copies as it is to have."""
        return self._fuller_at == math.inf

    def is_fuller_due(self, now: float) -> bool:
        """Return whether it is time to try to replace the open file by one with more copies."""
        return now >= self._fuller_at

    def waits_for_all(self, now: float) -> bool:
        """Return whether the next file is to have all its copies; False if storage has lacked room for a while."""
        return self._no_room_since is None or now - self._no_room_since < PATIENCE_S

    def no_room(self, now: float) -> None:
        """Note that storage had no room for the next file."""
        if self._no_room_since is None:
            self._no_room_since = now

    def begun(self, copies: int, options: CreateOptions) -> bool:
        """Note that the next file is the open one now, with so many copies (0: storage has no datanodes).

        Returns whether these are all; if not, ``plan_fuller`` is to be called.
        """
        self._no_room_since = None
        if copies >= options.replication or (options.all_copies and not copies):
            self._fuller_at, self._fuller_tries = math.inf, 0
            return True
        return False

    def plan_fuller(self, now: float) -> float:
        """Plan the next try to replace the open file by one with more copies, and return its time."""
        self._fuller_tries += 1
        self._fuller_at = now + FULLER_S.pause(self._fuller_tries)
        return self._fuller_at

"""How much one response about several groups may carry.

A request of a few kilobytes can ask for gigabytes: a group may have 64 MB of members' metadata, or a hundred thousand
offsets with 4 KB of metadata each.  So a response is full at some size, and the groups that have no room are answered
COORDINATOR_LOAD_IN_PROGRESS: every client asks for those alone again.
"""

from __future__ import annotations

RESPONSE_BYTES_MAX = 16 << 20
"""100,000 groups of 100 bytes and a few large ones.  One group is told of whatever it has."""
NO_ROOM = "the response is full: ask for fewer groups at a time"


class ResponseRoom:
    """Counts the bytes of one response."""

    __slots__ = ("left",)

    def __init__(self, size: int = RESPONSE_BYTES_MAX) -> None:
        self.left = size

    @property
    def is_full(self) -> bool:
        return self.left <= 0

    def take(self, size: int) -> None:
        """Of a group that is told of; the last one may be larger than what is left."""
        self.left -= size

"""The bound of a response about several groups.

A request of a few kilobytes can ask for gigabytes: a group may have 64 MB of members' metadata, or a hundred thousand
offsets with 4 KB of metadata each.  So a response is full at some size, and the groups without room in it get
COORDINATOR_LOAD_IN_PROGRESS: every client asks for those alone again.
"""

from __future__ import annotations

RESPONSE_BYTES_MAX = 16 << 20
"""Bytes after which a response is full: 100,000 groups of 100 bytes and a few large ones.  The first group is always
described in full."""
NO_ROOM = "the response is full: ask for fewer groups at a time"


class ResponseRoom:
    """Count of the bytes that are left in one response."""

    __slots__ = ("left",)

    def __init__(self, size: int = RESPONSE_BYTES_MAX) -> None:
        self.left = size

    @property
    def is_full(self) -> bool:
        """True if no further group may be described."""
        return self.left <= 0

    def take(self, size: int) -> None:
        """Count ``size`` bytes of a described group; the last group may be larger than the room left."""
        self.left -= size

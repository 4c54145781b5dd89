"""The previous owner of a partition, as far as a takeover must know it: pure."""

from __future__ import annotations

from bmq.meta.ownership import PartitionRecord


class Predecessor:
    """The predecessor's journals, and the attempts to read its log. Times are monotonic ms."""

    __slots__ = ("_unreadable_ms", "_unreadable_since_ms", "is_settled", "journals", "passes_damaged")

    def __init__(self, unreadable_ms: int) -> None:
        self._unreadable_ms = unreadable_ms
        self._unreadable_since_ms: int | None = None
        self.journals: tuple[str, ...] = ()
        """Brokers whose journals may hold checkpoints of the log."""
        self.is_settled = False
        """True if, by its record, no journal need be read."""
        self.passes_damaged = False
        """True for the last attempt of a takeover, which skips damaged journals: they are hints."""

    def __repr__(self) -> str:
        return f"<Predecessor journals={self.journals} unreadable_since={self._unreadable_since_ms}>"

    @property
    def is_unreadable(self) -> bool:
        """True if storage responds to the takeover, but does not return bytes that should exist."""
        return self._unreadable_since_ms is not None

    def read(self, record: PartitionRecord) -> None:
        """Note the record that the predecessor left."""
        self.journals, self.is_settled = record.journals, record.is_settled

    def unreadable(self, now_ms: int) -> bool:
        """Note that an attempt did not get the log's bytes; return whether it was the last attempt.

        After ``unreadable_ms`` of failures one last attempt follows.
        """
        if self._unreadable_since_ms is None:
            self._unreadable_since_ms = now_ms
        was_last = self.passes_damaged
        self.passes_damaged = now_ms - self._unreadable_since_ms >= self._unreadable_ms
        return was_last

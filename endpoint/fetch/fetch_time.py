"""The time that one fetch has: the client's ``max_wait_ms``, and longer while a partition has no owner.  Pure.

A planned move leaves a partition without an owner for a moment.  A fetch whose time ends in that moment could return
only NOT_LEADER_OR_FOLLOWER, and librdkafka then fetches the partition again only after ``fetch.error.backoff.ms``
(500 ms).  So a fetch without records waits for an owner for ``patience_s``, counted from when it first missed one.
"""

from __future__ import annotations

OWNER_PATIENCE_S = 1.0
"""Twice the move of 1,000 partitions (docs/design/hand-over.md), and far below any client's request time-out."""
READ_AGAIN_S = 0.1
"""Time from a read whose owner did not respond to the next try, unless an event comes earlier."""


class FetchTime:
    """One fetch's deadline and its patience for missing owners.  Times are seconds on the loop's clock."""

    __slots__ = ("_is_lost", "_patience_s", "_since", "deadline")

    def __init__(self, deadline: float, patience_s: float) -> None:
        self.deadline = deadline
        self._patience_s = patience_s
        self._since: float | None = None
        self._is_lost = False

    def __repr__(self) -> str:
        return f"<FetchTime {self.deadline:.3f} waits since {self._since} is_lost={self._is_lost}>"

    @property
    def is_lost(self) -> bool:
        """True if a read from storage failed because an owner did not respond, and is to be repeated."""
        return self._is_lost

    def on_check(self, now: float, *, waits: bool, reads: bool) -> None:
        """Handle that the changed partitions were checked.

        ``waits``: some of them wait for their owner; ``reads``: some are to be read from storage.
        """
        self._is_lost &= reads
        if not (waits or self._is_lost):
            self._since = None
        elif self._since is None:
            self._since = now

    def on_read(self, began: float, *, is_lost: bool) -> None:
        """Handle the end of a read from storage that began at ``began``.

        ``is_lost``: it failed because an owner did not respond.
        """
        self._is_lost = is_lost
        if is_lost and self._since is None:
            self._since = began

    def is_up(self, now: float) -> bool:
        """Return whether the client's own time has passed."""
        return now >= self.deadline

    def is_patient(self, now: float) -> bool:
        """Return whether there is still time to wait for a missing owner."""
        return self._since is not None and now < self._since + self._patience_s

    def next_check_at(self, now: float) -> float:
        """Return when to check the partitions again if no event comes earlier."""
        end = self.deadline
        if now >= end and self._since is not None:
            end = max(end, self._since + self._patience_s)
        return min(end, now + READ_AGAIN_S) if self._is_lost else end

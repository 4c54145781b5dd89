"""Partitions that wait for the metadata store, so that its trouble is not taken for storage's.

Pure, with time as an argument.  A partition waits from the first call that the store does not answer, or refuses as
unavailable, to the first that it answers.  So a pause between two tries is waiting too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar


class StoreWaiter(Protocol):
    """A partition that can wait for the store."""

    @property
    def unflushed_bytes(self) -> int:
        """Bytes accepted and not yet acknowledged by storage."""


W = TypeVar("W", bound=StoreWaiter)


class StoreWaits(Generic[W]):
    """The partitions of one broker that wait for the store, since when and why.

    Call ``asked`` before a call to the store, then ``answered`` or ``failed``; ``forget`` when the partition ends.
    """

    def __init__(self, limit_ms: int) -> None:
        self._limit_ms = limit_ms
        self._since_ms: dict[W, int] = {}
        self._why = ""
        self._is_reported = False

    def __repr__(self) -> str:
        return f"<StoreWaits {len(self._since_ms)} why={self._why!r}>"

    def __len__(self) -> int:
        return len(self._since_ms)

    @property
    def unflushed_bytes(self) -> int:
        """Bytes accepted by partitions that cannot flush them before the store answers."""
        return sum(waiting.unflushed_bytes for waiting in self._since_ms)

    @property
    def trouble(self) -> str:
        """Reason why partitions wait for the store, from the report of it until none waits; else ""."""
        return (self._why or "no answer") if self._is_reported and self._since_ms else ""

    def asked(self, waiting: W, now_ms: int) -> None:
        """Count the partition as waiting from now, if it does not wait already."""
        self._since_ms.setdefault(waiting, now_ms)

    def answered(self, waiting: W) -> None:
        """Count the partition as waiting no longer."""
        self._since_ms.pop(waiting, None)

    def failed(self, why: str) -> None:
        """Remember why a call failed; its partition goes on waiting."""
        self._why = why

    def forget(self, waitings: Iterable[W]) -> None:
        """Drop partitions that have ended."""
        for waiting in waitings:
            self._since_ms.pop(waiting, None)

    def report(self, now_ms: int) -> str:
        """Return why partitions wait for the store, once per time of trouble: when one has waited for the limit.

        Returns "" at all other times.  The trouble ends when no partition waits.
        """
        is_long = any(now_ms - since >= self._limit_ms for since in self._since_ms.values())
        if is_long and not self._is_reported:
            self._is_reported = True
            return self._why or "no answer"
        if not self._since_ms and self._is_reported:
            self._is_reported, self._why = False, ""
        return ""

"""Partitions that wait for the metadata store: with its trouble, storage has nothing to do.  Pure, time as an argument.

A partition waits from the first call that the store does not answer, or refuses as unavailable, to the first that it
answers.  So a pause between two tries is waiting too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar


class Waiting(Protocol):
    """A partition, as far as its waiting goes."""

    @property
    def unflushed_bytes(self) -> int:
        """Accepted, and not acknowledged."""


W = TypeVar("W", bound=Waiting)


class StoreWaits(Generic[W]):
    """``asked`` before a call to the store, then ``answered`` or ``failed``; ``forget`` when the partition ends."""

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
        """Accepted by partitions that can do nothing with it before the store answers."""
        return sum(waiting.unflushed_bytes for waiting in self._since_ms)

    @property
    def trouble(self) -> str:
        """Return why the store is waited for, once that was reported and until nothing waits; else ""."""
        return (self._why or "no answer") if self._is_reported and self._since_ms else ""

    def asked(self, waiting: W, now_ms: int) -> None:
        self._since_ms.setdefault(waiting, now_ms)

    def answered(self, waiting: W) -> None:
        self._since_ms.pop(waiting, None)

    def failed(self, why: str) -> None:
        """It goes on waiting."""
        self._why = why

    def forget(self, waitings: Iterable[W]) -> None:
        for waiting in waitings:
            self._since_ms.pop(waiting, None)

    def report(self, now_ms: int) -> str:
        """Return why the store is waited for, once for each time of trouble, else nothing."""
        is_long = any(now_ms - since >= self._limit_ms for since in self._since_ms.values())
        if is_long and not self._is_reported:
            self._is_reported = True
            return self._why or "no answer"
        if not self._since_ms and self._is_reported:
            self._is_reported, self._why = False, ""
        return ""

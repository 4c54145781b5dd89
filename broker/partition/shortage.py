"""Shortage of datanodes for min.insync.replicas, and whether produces then wait or are refused: pure."""

from __future__ import annotations


class Shortage:
    """One partition's shortage: noticed when a segment's file got fewer datanodes than requested.

    Times are monotonic ms.
    """

    __slots__ = ("_hold_ms", "_since_ms", "_try_ms", "is_refusing")

    def __init__(self, hold_ms: int) -> None:
        self._hold_ms = hold_ms
        self._since_ms: int | None = None
        self._try_ms = 0
        self.is_refusing = False
        """True once the shortage has lasted ``hold_ms``: produces are refused instead of held."""

    def __repr__(self) -> str:
        return f"<Shortage since={self._since_ms} is_refusing={self.is_refusing}>"

    @property
    def is_noticed(self) -> bool:
        """True while storage, as far as is known, gives too few datanodes."""
        return self._since_ms is not None

    def notice(self, now_ms: int, again_ms: int) -> None:
        """Note that another attempt got too few datanodes; a refused batch may cause the next after ``again_ms``."""
        if self._since_ms is None:
            self._since_ms = now_ms
        self._try_ms = now_ms + again_ms
        self.is_refusing = now_ms - self._since_ms >= self._hold_ms

    def may_try(self, now_ms: int) -> bool:
        """Return whether a refused batch is reason for another attempt now."""
        return self.is_refusing and now_ms >= self._try_ms

    def end(self) -> None:
        """Note that storage gives enough datanodes, as far as is known, or that fewer are needed now."""
        self._since_ms, self.is_refusing = None, False

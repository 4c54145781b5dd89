"""Fewer nodes on storage than min.insync.replicas asks for: whether produces wait for more, or are refused.  Pure."""

from __future__ import annotations


class Shortage:
    """One partition's.  Noticed when a segment's file was to have ``copies`` nodes and got fewer."""

    __slots__ = ("_hold_ms", "_since_ms", "_try_ms", "is_refusing")

    def __init__(self, hold_ms: int) -> None:
        self._hold_ms = hold_ms
        self._since_ms: int | None = None
        self._try_ms = 0
        self.is_refusing = False
        """It has lasted for so long that nothing is held any more."""

    def __repr__(self) -> str:
        return f"<Shortage since={self._since_ms} is_refusing={self.is_refusing}>"

    @property
    def is_noticed(self) -> bool:
        return self._since_ms is not None

    def notice(self, now_ms: int, again_ms: int) -> None:
        """Another try failed; the next one is due ``again_ms`` later."""
        if self._since_ms is None:
            self._since_ms = now_ms
        self._try_ms = now_ms + again_ms
        self.is_refusing = now_ms - self._since_ms >= self._hold_ms

    def may_try(self, now_ms: int) -> bool:
        """Whether a refused batch is reason to look again."""
        return self.is_refusing and now_ms >= self._try_ms

    def end(self) -> None:
        """There are enough nodes, as far as is known."""
        self._since_ms, self.is_refusing = None, False

"""The live datanodes that refuse blocks for want of room, and the times since when they do."""

from __future__ import annotations

from collections.abc import Iterable

FORGET_S = 600.0
"""Seconds after which a node's last refusal is forgotten: the next one has another cause."""


class RefusingNodes:
    """One process's view of them.  Every time is in seconds of one monotonic clock.

    A datanode does not say what takes its room: open files, which will be closed, or files of other users of the disk.
    So it is given ``hope_s`` in which the brokers close files; if it has accepted no block in that time, closing more
    does not help.
    """

    def __init__(self, hope_s: float) -> None:
        self._hope_s = hope_s
        self._refused: dict[str, tuple[float, float]] = {}  # first and last time; bounded by the cluster's datanodes

    def __repr__(self) -> str:
        return f"<RefusingNodes {sorted(self._refused)}>"

    def refused(self, names: Iterable[str], now: float) -> list[str]:
        """Note that these nodes refused a block; return the nodes that may accept a block when other files are
        closed."""
        for name in [name for name, (_, last) in self._refused.items() if now - last > FORGET_S]:
            del self._refused[name]
        hopeful = []
        for name in sorted(names):
            first, _ = self._refused.get(name, (now, now))
            self._refused[name] = first, now
            if now - first < self._hope_s:
                hopeful.append(name)
        return hopeful

    def took(self, names: Iterable[str]) -> None:
        """Note that these nodes accepted a block."""
        if self._refused:
            for name in names:
                self._refused.pop(name, None)

"""The times for which partitions had no acknowledgement.  Pure."""

from __future__ import annotations


class Pauses:
    """The longest time between two acknowledgements of one partition, in windows: up to a kill, and from it on.

    Other partitions continue when one owner is killed, so the count of all records would not show it.
    """

    def __init__(self, partitions: int) -> None:
        self.longest = [0.0]
        """Longest pause by window, in seconds."""
        self._partitions = partitions
        self._acknowledged_at: dict[int, float] = {}

    def on_acknowledged(self, partition: int, now: float) -> None:
        """Note an acknowledgement.  A pause counts in the window where it ends, so one that a kill falls into is the
        kill's."""
        pause = now - self._acknowledged_at.get(partition, now)
        self._acknowledged_at[partition] = now
        if pause > self.longest[-1]:
            self.longest[-1] = pause

    def open_window(self) -> None:
        """Begin the next window, at a kill."""
        self.longest.append(0.0)

    def all_acknowledged_since(self, moment: float) -> bool:
        """Return whether every partition has had an acknowledgement after ``moment``."""
        return len(self._acknowledged_at) == self._partitions and min(self._acknowledged_at.values()) > moment

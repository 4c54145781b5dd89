"""How long partitions went without an acknowledgement.  Pure."""

from __future__ import annotations


class Pauses:
    """The longest time between two acknowledgements of one partition, in windows: up to a kill, and from it on.

    Other partitions go on when one owner dies, so the count of all records would show nothing of it.
    """

    def __init__(self, partitions: int) -> None:
        self.longest = [0.0]
        """By window, in seconds."""
        self._partitions = partitions
        self._heard_at: dict[int, float] = {}

    def heard(self, partition: int, now: float) -> None:
        """An acknowledgement has come.  A pause counts where it ends, so one that a kill falls into is the kill's."""
        pause = now - self._heard_at.get(partition, now)
        self._heard_at[partition] = now
        if pause > self.longest[-1]:
            self.longest[-1] = pause

    def open_window(self) -> None:
        self.longest.append(0.0)

    def all_heard_since(self, moment: float) -> bool:
        """Has every partition been heard of after that?"""
        return len(self._heard_at) == self._partitions and min(self._heard_at.values()) > moment

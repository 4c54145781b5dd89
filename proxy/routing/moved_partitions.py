"""Partitions with a recent move from this process to another, and the connections with a hint about the move.  Pure.

Both tables are bounded.  A partition without an entry costs one look-up, and nothing while the table is empty.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from bmq.core.model import PartitionKey
from bmq.core.net.request import Client

LASTS_S: Final = 600.0
"""Seconds in the table: twice the default of ``metadata.max.age.ms``, the age at which clients ask for Metadata."""
MOVED_MAX: Final = 100_000
"""Partitions in the table; the longest known moves are dropped first."""
QUERIES_MAX: Final = 1_000
"""Queries for an epoch that are under way at once."""
QUERY_AGAIN_S: Final = 1.0
"""Pause after a query without a result."""
TOLD_MAX: Final = 1_000
"""Partitions remembered for one connection.  A connection that has been told of more gets no further hint."""
UNKNOWN: Final = 0
"""Epoch before the new owner has sent its own; an owner's epoch is 1 or more."""


class _Moved:
    __slots__ = ("ends_at", "epoch", "is_asked", "least", "owner", "retry_at")

    def __init__(self, ends_at: float) -> None:
        self.ends_at = ends_at
        self.owner = ""
        """Incarnation of the owner with ``epoch``, which sends the epoch on request."""
        self.epoch = UNKNOWN
        self.least = UNKNOWN + 1
        """Least epoch of the present owner: earlier owners had lower epochs."""
        self.is_asked = False
        self.retry_at = 0.0


class MovedPartitions:
    """The moved partitions, in the order of their moves, each with its epoch at its present owner."""

    def __init__(self) -> None:
        self._moved: dict[PartitionKey, _Moved] = {}
        self._asked = 0

    def __len__(self) -> int:
        return len(self._moved)

    def __contains__(self, key: PartitionKey) -> bool:
        return key in self._moved

    def left(self, key: PartitionKey, now: float) -> None:
        """Note that the partition has moved away from this process."""
        self.remove(key)
        self._moved[key] = _Moved(now + LASTS_S)
        if len(self._moved) > MOVED_MAX:
            self.remove(next(iter(self._moved)))

    def remove(self, key: PartitionKey) -> None:
        """Forget the partition: it is back, or its move was long ago."""
        moved = self._moved.pop(key, None)
        if moved is not None:
            self._settle(moved)

    def expire(self, now: float) -> None:
        """Forget the moves of more than LASTS_S ago."""
        while self._moved:
            key, oldest = next(iter(self._moved.items()))
            if oldest.ends_at > now:
                return
            self.remove(key)

    def epoch(self, key: PartitionKey, owner: str) -> int:
        """Return the partition's epoch at this owner; UNKNOWN until the owner has sent it."""
        moved = self._moved.get(key)
        return moved.epoch if moved is not None and moved.owner == owner else UNKNOWN

    def begin_query(self, key: PartitionKey, owner: str, now: float) -> bool:
        """Return whether the owner is to be asked for the epoch now.  The query then counts as under way."""
        moved = self._moved.get(key)
        if moved is None:
            return False
        if moved.owner != owner:
            self._settle(moved)
            moved.owner, moved.epoch, moved.retry_at = owner, UNKNOWN, 0.0
        if moved.is_asked or moved.epoch != UNKNOWN or now < moved.retry_at or self._asked >= QUERIES_MAX:
            return False
        moved.is_asked = True
        self._asked += 1
        return True

    def end_query(self, key: PartitionKey, owner: str, epoch: int, now: float) -> bool:
        """Take the owner's epoch, UNKNOWN if it sent none.  Return whether the epoch is known now.

        An epoch below an earlier owner's is out of date, and is not taken.
        """
        moved = self._moved.get(key)
        if moved is None or moved.owner != owner or not moved.is_asked:
            return False
        self._settle(moved)
        if epoch < moved.least:
            moved.retry_at = now + QUERY_AGAIN_S
            return False
        moved.epoch, moved.least = epoch, epoch + 1
        return True

    def _settle(self, moved: _Moved) -> None:
        if moved.is_asked:
            moved.is_asked = False
            self._asked -= 1


class _Connection:
    __slots__ = ("epochs", "unsubscribe")

    def __init__(self, unsubscribe: Callable[[], None]) -> None:
        self.epochs: dict[PartitionKey, int] = {}
        self.unsubscribe = unsubscribe


class ToldConnections:
    """The hints sent so far, by connection: the latest epoch of each partition."""

    def __init__(self) -> None:
        self._connections: dict[Client, _Connection] = {}

    def __len__(self) -> int:
        """Return the number of connections."""
        return len(self._connections)

    def may_tell(self, client: Client, key: PartitionKey, epoch: int, moved: MovedPartitions) -> bool:
        """Return whether the connection may get a hint of this epoch: it had none, and there is room to remember it."""
        told = self._connections.get(client)
        if told is None:
            return not client.is_closed
        if key in told.epochs:
            return told.epochs[key] < epoch
        if len(told.epochs) >= TOLD_MAX:
            told.epochs = {known: at for known, at in told.epochs.items() if known in moved}
        return len(told.epochs) < TOLD_MAX

    def tell(self, client: Client, key: PartitionKey, epoch: int) -> None:
        """Note that the connection gets a hint of this epoch."""
        told = self._connections.get(client)
        if told is None:
            unsubscribe = client.on_close(lambda: self._forget(client))
            told = self._connections[client] = _Connection(unsubscribe)
        told.epochs[key] = epoch

    def clear(self) -> None:
        """Forget all connections: no partition is in the table of moves any more."""
        connections, self._connections = self._connections, {}
        for told in connections.values():
            told.unsubscribe()

    def _forget(self, client: Client) -> None:
        self._connections.pop(client, None)

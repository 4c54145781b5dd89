"""Who may append to a coordinator's log: the fence of stale coordinators, kept by the broker that owns the partition.

Two numbers come with every append.  ``epoch`` names the ownership of the *partition* that the log was opened under;
``ownership`` that of the *shard*, raised by the controller with each assignment.  While a partition is open here, the
largest shard ownership that has opened it is kept, and the holder (a connection, or a handle in this process) that
opened it last:

* a smaller ownership is refused (NOT_COORDINATOR): a newer coordinator has opened the log, and its barrier is in it;
* another epoch is refused (NOT_LEADER_OR_FOLLOWER): the log was opened at an earlier owner.  The numbers die with the
  ownership of the partition, and need not be durable: whoever opens the log here, stale or not, appends a barrier
  first, and whoever opens it later replays all of that (``coordinator.shard.log``);
* appends count only from the holder that opened the log last, and none after one that failed.  What was still in the
  socket of a connection that broke would else land behind the barrier of the same coordinator's next ``open``: in the
  log, but not in its memory.
"""

from __future__ import annotations

from collections.abc import Callable

from bmq.core.errors import ErrorCode, RequestError
from bmq.core.model import PartitionKey


class _Opened:
    """A log as it was opened last."""

    __slots__ = ("end", "epoch", "holder", "is_good", "ownership")

    def __init__(self, epoch: int, ownership: int, holder: object, end: Callable[[], None]) -> None:
        self.epoch = epoch
        self.ownership = ownership
        self.holder = holder
        self.end = end
        self.is_good = True


class ShardFence:
    """One broker's; holds something for open partitions of one topic only."""

    def __init__(self) -> None:
        self._opened: dict[PartitionKey, _Opened] = {}

    def __repr__(self) -> str:
        return f"<ShardFence {len(self._opened)}>"

    def __len__(self) -> int:
        return len(self._opened)

    def open(
        self, key: PartitionKey, epoch: int, ownership: int, holder: object, end: Callable[[], None] | None = None
    ) -> None:
        """``holder`` appends from here on, and nobody else.  RequestError NOT_COORDINATOR when it is stale.

        ``end`` is called when another takes its place, or the partition has left this process.
        """
        earlier = self._opened.get(key)
        if earlier is not None:
            if earlier.epoch == epoch and ownership < earlier.ownership:
                raise RequestError(ErrorCode.NOT_COORDINATOR, f"{key} was opened under ownership {earlier.ownership}")
            earlier.end()
        self._opened[key] = _Opened(epoch, ownership, holder, end or _nothing)

    def check(self, key: PartitionKey, epoch: int, ownership: int, holder: object) -> None:
        """RequestError unless ``holder`` may append now; ``epoch`` is the partition's, as its appends say."""
        opened = self._opened.get(key)
        if opened is None or opened.epoch != epoch:
            raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{key} is not open here under epoch {epoch}")
        if ownership < opened.ownership:
            raise RequestError(ErrorCode.NOT_COORDINATOR, f"{key} was opened under ownership {opened.ownership}")
        if not opened.is_good or opened.holder is not holder or ownership != opened.ownership:
            raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{key} has to be opened again")

    def failed(self, key: PartitionKey, holder: object) -> None:
        """One of the holder's appends was refused or lost: none may follow it."""
        opened = self._opened.get(key)
        if opened is not None and opened.holder is holder:
            opened.is_good = False

    def closed(self, key: PartitionKey) -> None:
        """The partition has left this process: what was seen counts no more."""
        opened = self._opened.pop(key, None)
        if opened is not None:
            opened.end()


def _nothing() -> None:
    """A connection needs no telling: its next append is refused."""

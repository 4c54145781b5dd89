"""The fence that keeps stale coordinators from a shard's log, held by the broker that owns the log's partition.

Two numbers come with every append.  ``epoch`` is that of the *partition*'s ownership under which the log was opened;
``ownership`` is that of the *shard*, raised by the controller with each assignment.  While a partition is open here,
the fence keeps the largest shard ownership that has opened it.  It also keeps the holder that opened it last (a
connection, or a handle in this process):

* a smaller ownership is refused (NOT_COORDINATOR): a newer coordinator has opened the log, and its barrier is in it;
* another epoch is refused (NOT_LEADER_OR_FOLLOWER): the log was opened at an earlier owner.  The numbers end with the
  ownership of the partition, and need not be durable.  Every coordinator that opens the log here, stale or not, appends
  a barrier first, and the next coordinator replays the log up to its own barrier (``coordinator.shard.log``);
* only the holder that opened the log last may append, and not after one of its appends failed.  Otherwise bytes still
  in the socket of a broken connection could be appended behind the barrier of the same coordinator's next ``open``.
  They would be in the log, but not in the coordinator's memory.
"""

from __future__ import annotations

from collections.abc import Callable

from bmq.core.aio.subscribers import no_op
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.model import PartitionKey


class _Opened:
    """The last opening of a log."""

    __slots__ = ("end", "epoch", "holder", "is_good", "ownership")

    def __init__(self, epoch: int, ownership: int, holder: object, end: Callable[[], None]) -> None:
        self.epoch = epoch
        self.ownership = ownership
        self.holder = holder
        self.end = end
        self.is_good = True


class ShardFence:
    """One broker's fence of shard logs.  Bounded by the open partitions of coordinators' topics."""

    def __init__(self) -> None:
        self._opened: dict[PartitionKey, _Opened] = {}

    def __repr__(self) -> str:
        return f"<ShardFence {len(self._opened)}>"

    def __len__(self) -> int:
        return len(self._opened)

    def open(
        self, key: PartitionKey, epoch: int, ownership: int, holder: object, end: Callable[[], None] = no_op
    ) -> None:
        """Make ``holder`` the only one that may append from here on.

        ``end`` is called when another holder opens the log, or the partition has left this process; a holder that may
        try to append then needs none, since that is refused.  Raises RequestError NOT_COORDINATOR if the holder is
        stale.
        """
        earlier = self._opened.get(key)
        if earlier is not None:
            if earlier.epoch == epoch and ownership < earlier.ownership:
                raise RequestError(ErrorCode.NOT_COORDINATOR, f"{key} was opened under ownership {earlier.ownership}")
            earlier.end()
        self._opened[key] = _Opened(epoch, ownership, holder, end)

    def check(self, key: PartitionKey, epoch: int, ownership: int, holder: object) -> None:
        """Check that ``holder`` may append now; ``epoch`` is the partition's, as the append carries it.

        Raises RequestError NOT_COORDINATOR for a smaller ownership, NOT_LEADER_OR_FOLLOWER if the log has to be opened
        (again).
        """
        opened = self._opened.get(key)
        if opened is None or opened.epoch != epoch:
            raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{key} is not open here under epoch {epoch}")
        if ownership < opened.ownership:
            raise RequestError(ErrorCode.NOT_COORDINATOR, f"{key} was opened under ownership {opened.ownership}")
        if not opened.is_good or opened.holder is not holder or ownership != opened.ownership:
            raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{key} has to be opened again")

    def failed(self, key: PartitionKey, holder: object) -> None:
        """Refuse further appends of the holder until it opens the log again: one was refused or lost."""
        opened = self._opened.get(key)
        if opened is not None and opened.holder is holder:
            opened.is_good = False

    def closed(self, key: PartitionKey) -> None:
        """Forget the partition, which has left this process, and call its holder's ``end``."""
        opened = self._opened.pop(key, None)
        if opened is not None:
            opened.end()

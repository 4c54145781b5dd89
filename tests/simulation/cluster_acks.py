"""The owners' own acknowledgements, also those that no client received.

A partition has one owner.  So each offset is acknowledged once, the offsets of one owner begin where those of the one
before end or later, and once a higher epoch has acknowledged anything no lower one does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bmq.core.model import PartitionKey
from bmq.core.records.batch import Batch
from bmq.endpoint.partitions import FlushListener


@dataclass(frozen=True, slots=True)
class _Last:
    """The end of the acknowledged offsets, and the owner that acknowledged last."""

    end: int = 0
    epoch: int = -1
    owner: str = ""


class OneOwner:
    """The acknowledgements of all partitions of a cluster; ``tell`` is called with each breach."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.owners = 0
        """The number of times that a partition had another owner that acknowledged something."""
        self._tell = tell
        self._last: dict[PartitionKey, _Last] = {}

    def watched(self, listener: FlushListener, owner: str) -> FlushListener:
        """Return a listener that notes each flush before ``listener`` gets it."""
        return _Watched(self, listener, owner)

    def acknowledged(self, key: PartitionKey, batches: Sequence[Batch], owner: str) -> None:
        last = self._last.get(key, _Last())
        for batch in batches:
            if batch.base_offset < last.end or batch.leader_epoch < last.epoch:
                self._tell(f"{key}: {owner} acknowledges {batch!r} after {last}")
            elif batch.leader_epoch == last.epoch and owner != last.owner:
                self._tell(f"{key}: {owner} and {last.owner} both have epoch {last.epoch}")
            self.owners += owner != last.owner
            last = _Last(batch.next_offset, batch.leader_epoch, owner)
        self._last[key] = last


class _Watched:
    """One process's flush listener."""

    def __init__(self, acks: OneOwner, listener: FlushListener, owner: str) -> None:
        self._acks = acks
        self._listener = listener
        self._owner = owner
        self.opened, self.closed, self.log_start_moved = listener.opened, listener.closed, listener.log_start_moved

    def flushed(self, key: PartitionKey, batches: Sequence[Batch], high_watermark: int) -> None:
        self._acks.acknowledged(key, batches, self._owner)
        self._listener.flushed(key, batches, high_watermark)

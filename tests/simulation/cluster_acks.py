"""The owners' own acknowledgements, also those that no client received.

A partition has one owner at a time.  So each offset is acknowledged once, each epoch by one process, and the offsets of
a higher epoch begin where those of every lower one end, or later.  That holds for offsets, not for times: a process
that hung may have all datanodes' answers in its socket when it wakes, and acknowledge what its successor found since.
Such a batch lies in the log; one that the successor did not find lies where a higher epoch has written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bmq.core.model import PartitionKey
from bmq.core.records.batch import Batch
from bmq.endpoint.partitions import FlushListener
from bmq.storage.aborted import StableMove


@dataclass(slots=True)
class _Span:
    """The offsets that one epoch has acknowledged."""

    owner: str
    begin: int
    end: int


class OneOwner:
    """The acknowledgements of all partitions of a cluster; ``tell`` is called with each breach."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.owners = 0
        """The number of times that a partition had another owner that acknowledged something."""
        self.late = 0
        """The number of batches that an owner acknowledged after its successor had acknowledged something."""
        self._tell = tell
        self._spans: dict[PartitionKey, dict[int, _Span]] = {}

    def watch(self, listener: FlushListener, owner: str) -> None:
        """Note each flush before ``listener`` gets it."""
        flushed = listener.flushed

        def noted(
            key: PartitionKey, batches: Sequence[Batch], high_watermark: int, move: StableMove | None = None
        ) -> None:
            self.acknowledged(key, batches, owner)
            flushed(key, batches, high_watermark, move)

        listener.flushed = noted  # type: ignore[method-assign]

    def acknowledged(self, key: PartitionKey, batches: Sequence[Batch], owner: str) -> None:
        """Take note of what ``owner`` acknowledges."""
        spans = self._spans.setdefault(key, {})
        for batch in batches:
            lower = [span for epoch, span in spans.items() if epoch < batch.leader_epoch]
            higher = [span for epoch, span in spans.items() if epoch > batch.leader_epoch]
            own = spans.get(batch.leader_epoch)
            if own is None:
                before = max(lower, key=lambda span: span.end, default=None)
                self.owners += before is None or before.owner != owner
                own = spans[batch.leader_epoch] = _Span(owner, batch.base_offset, batch.base_offset)
            if own.owner != owner:
                self._tell(f"{key}: {owner} and {own.owner} both have epoch {batch.leader_epoch}")
            if batch.base_offset < max(span.end for span in (own, *lower)):
                self._tell(f"{key}: {owner} acknowledges {batch!r} where {own} and {lower} have acknowledged")
            if any(span.begin < batch.next_offset for span in higher):
                self._tell(f"{key}: {owner} acknowledges {batch!r} late, where its successors wrote: {higher}")
            self.late += bool(higher)
            own.end = batch.next_offset

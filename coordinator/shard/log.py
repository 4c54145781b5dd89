"""What a shard needs of its partition of ``__consumer_offsets``: the seam to whoever owns that partition.

**Fencing.**  A shard first appends a barrier batch, replays up to it, and only then serves.  ``ShardLogs.open`` gives
a log that is bound to one ownership (``epoch``); opening a later one ends it.  The order of the log decides the rest:

* What a stale shard got in before the barrier lies below it, and is replayed.  It may have been answered: it counts.
* What a stale shard sends after the barrier is refused by the log, so it is never answered as done.

Batches carry no producer id.  In one process the handle itself is the fence: it is refused once the partition has a
later owner, or was opened again.  With coordinators apart from brokers the request carries the shard's ownership
number beside the batch, and the owner of the partition refuses a number lower than the largest that has opened the
log there.  It takes appends from the connection that opened the log last and from no other, so that of one ownership,
too, nothing follows a barrier but what was sent after it.
The number need not be durable: a stale shard that gets a *new* owner to accept it must first append a barrier there,
and whoever appends the later barrier sees all of it.  An internal producer id inside the batch would say the same in
fewer bits (the producer epoch has 15), but Kafka's own loader takes every batch of ``__consumer_offsets`` with a
producer id for a transactional one (``CoordinatorLoaderImpl``, ``OffsetMetadataManager.replay``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol


class ShardLog(Protocol):
    """One partition of ``__consumer_offsets``, as its owner of one epoch gives it.  Properties cost no call."""

    @property
    def epoch(self) -> int:
        """The ownership that it is bound to: grows with every ``open`` that follows a change of owner."""

    @property
    def is_open(self) -> bool:
        """Appends may still succeed."""

    @property
    def log_start(self) -> int: ...

    @property
    def high_watermark(self) -> int: ...

    @property
    def max_batch_bytes(self) -> int:
        """The largest batch taken: the topic's ``max.message.bytes``."""

    def append(self, batch: bytearray) -> asyncio.Future[int]:
        """The base offset, once flushed.  RequestError, now or in the future, when it is refused or its fate unknown.

        Appends take effect in the order of the calls, and none after one that failed.  The bytes are the log's.
        """

    async def read(self, offset: int, max_bytes: int) -> bytes:
        """Whole batches below the watermark, the first of which holds ``offset``; at least one if there is one,
        else nothing.  RequestError when the partition or its storage cannot serve it now."""

    async def confirm(self) -> None:
        """RequestError unless the owner of the partition says that an append would still be taken.

        The handle has ended if it would not.
        """

    async def delete_before(self, offset: int) -> None:
        """Move the log start.  RequestError."""

    def end(self) -> None:
        """Take no more appends; ``closed`` is told, once.  Idempotent."""


class ShardLogs(Protocol):
    """All of them."""

    async def open(self, partition: int, ownership: int, timeout_s: float, closed: Callable[[], None]) -> ShardLog:
        """The log, once its partition is in WRITE.  Ends the handle of an earlier ``open`` of the same or a lower
        ``ownership``.  NOT_COORDINATOR, and only then, when a higher one has opened it.

        ``closed`` runs once, from the loop, when the handle takes no more appends; it may be done already when that
        is heard.  RequestError when it takes longer or cannot come.
        """

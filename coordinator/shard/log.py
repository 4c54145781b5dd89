"""Interface of a shard to its log, a partition of its kind's topic, in whichever process that partition's owner runs.

**Fencing.**  A shard first appends a barrier batch, replays up to it, and only then serves.  ``ShardLogs.open`` returns
a log that is bound to an ownership (``epoch``); opening the log with a later ownership ends it.  The order of the log
decides the rest:

* A batch that a stale shard appended before the barrier lies below it and is replayed.  It counts: its client may have
  got a response.
* A batch that a stale shard sends after the barrier is refused by the log, so its client never gets a success.

No batch names a producer for the fence.  In one process the handle itself is the fence: it is refused once the
partition has a later owner, or was opened again.  If coordinators and brokers are separate processes, the request has
the shard's ownership number beside the batch.  The owner of the partition refuses a number lower than the highest that
has opened the log there.  It takes appends only from the connection that opened the log last.  So within an ownership,
too, only bytes that were sent after a barrier follow the barrier.

The number need not be durable.  If a *new* owner accepts a stale shard, the shard must first append a barrier there,
and the shard with the later barrier replays all of it.  A producer id inside the batch would do the same in fewer bits
(a producer epoch has 15).  But Kafka's own loader takes every batch of ``__consumer_offsets`` with a producer id for a
transactional batch (``CoordinatorLoaderImpl``, ``OffsetMetadataManager.replay``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from bmq.meta.shard_kinds import ShardId


class ShardLog(Protocol):
    """The partition of a shard, bound to a single owner's epoch.  Properties need no I/O."""

    @property
    def epoch(self) -> int:
        """The partition's epoch that the log is bound to; higher after each change of owner."""

    @property
    def is_open(self) -> bool:
        """True while appends may succeed."""

    @property
    def log_start(self) -> int: ...

    @property
    def high_watermark(self) -> int: ...

    @property
    def max_batch_bytes(self) -> int:
        """The largest batch that is accepted: the topic's ``max.message.bytes``."""

    def append(self, batch: bytearray) -> asyncio.Future[int]:
        """Append a batch; the future has its base offset once it is flushed.

        Appends take effect in the order of the calls, and none after one that failed.  The caller must not use
        ``batch`` afterwards.  Raises RequestError, here or in the future, if the batch is refused or its fate unknown.
        """

    async def read(self, offset: int, max_bytes: int) -> bytes:
        """Return whole batches below the high watermark, from the one that has ``offset`` on; empty if there is none.

        The first batch is returned even if it is larger than ``max_bytes``.  Raises RequestError if the partition or
        its storage cannot serve the read now.
        """

    async def confirm(self) -> None:
        """Ask the owner of the partition to confirm that it would accept an append.

        Raises RequestError if it does not confirm; the handle has ended if the owner refuses.
        """

    async def delete_before(self, offset: int) -> None:
        """Move the log's start to ``offset``.  Raises RequestError if that fails."""

    def end(self) -> None:
        """Accept no more appends, and let ``closed`` be called (see ``ShardLogs.open``).  Idempotent."""


class ShardLogs(Protocol):
    """Logs of all shards."""

    async def open(self, shard: ShardId, ownership: int, timeout_s: float, closed: Callable[[], None]) -> ShardLog:
        """Wait until the partition is in WRITE, and return its log.

        Ends the handle of an earlier ``open`` with the same or a lower ``ownership``.  ``closed`` is called once, from
        the event loop, after the handle has ended.  Raises RequestError if the log cannot be opened in time:
        NOT_COORDINATOR if, and only if, a higher ownership has opened it.
        """

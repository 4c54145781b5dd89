"""Snapshot of a shard: its live keys, appended again among the normal writes; then the log's start moves there.

Writes need not stop meanwhile.  The keys are listed in the same step in which the first record is handed to the writer:

==============================  =======================================================================
a key that                      is in the log after that point
==============================  =======================================================================
is live then                    with its value at the time when it is appended again
is written later                with that write
is deleted later                with its tombstone
==============================  =======================================================================

So nothing before the batch with the first record is needed any more, except records of open transactions.  Their end
may lie behind the whole snapshot.  So the log's start does not pass the first batch of a transaction that is open when
the snapshot begins.  A snapshot that fails half-way does no harm: it has only repeated values (``Repeated``).
"""

from __future__ import annotations

from typing import Any

from bmq.coordinator.shard.active import ActiveShard
from bmq.coordinator.shard.log import ShardLog
from bmq.coordinator.shard.log_records import KeyValue


async def take_snapshot(serving: ActiveShard[Any], log: ShardLog, barrier: KeyValue, chunk_bytes: int) -> int:
    """Append ``barrier`` and the live keys, move the log's start, and return the bytes written.

    Raises RequestError if the log fails.
    """
    await serving.writer.room()
    start = -1
    written = size = 0
    opened = list(serving.open_transactions())  # in the step in which the first record is handed over
    chunk: list[KeyValue] = [barrier]
    for record in serving.state.live_records():
        chunk.append(record)
        size += sum(len(part or b"") for part in record)
        if size >= chunk_bytes:
            base = await serving.rewrite(chunk)
            start = base if start < 0 else start
            written, size, chunk = written + size, 0, []
    if chunk:
        base = await serving.rewrite(chunk)
        start = base if start < 0 else start
    for transaction in opened:  # handed to the writer before the snapshot: their first batches are durable by now
        assert transaction.first_offset >= 0, transaction
        start = min(start, transaction.first_offset)
    await log.delete_before(max(start, log.log_start))
    return written + size

"""The snapshot of a shard: its live keys, appended anew among the normal writes; then the log may start there.

Correct at every moment, without a pause: the keys are listed in the same step in which the first of them is handed
to the writer.  A key that lives then is appended again after that point, with its value of that later moment; a key
written later lies behind it anyhow; one that goes away has its tombstone behind it.  So everything before the batch
with the first record is needed no more.  A snapshot that breaks off has only written what was so already.
"""

from __future__ import annotations

from bmq.coordinator.shard.active import ActiveShard
from bmq.coordinator.shard.log import ShardLog
from bmq.coordinator.shard.records import CoordinatorRecord, OffsetRecord, encode


def barrier_record(partition: int) -> CoordinatorRecord:
    """A record that changes nothing, to us and to Kafka's tools: it deletes an offset of a group without a name."""
    return OffsetRecord("", "", partition, None)


async def take_snapshot(serving: ActiveShard, log: ShardLog, partition: int, chunk_bytes: int) -> int:
    """Append the live keys and move the log start; the bytes written.  RequestError when the log fails."""
    await serving.writer.room()
    start = -1
    written = size = 0
    chunk: list[CoordinatorRecord] = [barrier_record(partition)]
    for record in serving.state.live_records():
        chunk.append(record)
        size += sum(len(part or b"") for part in encode(record))
        if size >= chunk_bytes:
            base = await serving.rewrite(chunk)
            start = base if start < 0 else start
            written, size, chunk = written + size, 0, []
    if chunk:
        base = await serving.rewrite(chunk)
        start = base if start < 0 else start
    await log.delete_before(start)
    return written + size

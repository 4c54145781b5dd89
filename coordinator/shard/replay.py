"""Replay of a shard's log, in turns of the event loop: first the last value of each key, then the state from these.

Of each key only the last record counts, as in Kafka's compacted topics.  So records are first reduced to the last value
of each key, as bytes, and only these values are decoded.  A hundred commits of a group cost no more decoding than a
single commit.  The memory is that of the live keys, and of tombstones since the log's start, which a snapshot moves
(``snapshot``).
"""

from __future__ import annotations

from bmq.coordinator.records import decode
from bmq.coordinator.shard.log import ShardLog
from bmq.coordinator.shard.state import ShardState
from bmq.core.aio.turns import Turns, next_turn
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.records.batch import Batch
from bmq.core.records.cursor import read_batches
from bmq.core.records.reader import read_records


class Replay:
    """Progress of one replay of ``log``, from its start.

    ``offset`` is the next to be read, ``bytes_read`` counts the batches read so far, and ``live_bytes`` the keys and
    values applied so far, without tombstones.
    """

    def __init__(self, log: ShardLog, read_bytes: int) -> None:
        self.offset = log.log_start
        self.bytes_read = 0
        self.live_bytes = 0
        self._log = log
        self._read_bytes = read_bytes
        self._values: dict[bytes, bytes | None] = {}
        self._turns = Turns()

    async def read(self, end: int) -> None:
        """Read the records before offset ``end``.

        Raises RequestError if the log cannot be read or ends before, FormatError if a batch is damaged.
        """
        while self.offset < end:
            data = await self._log.read(self.offset, self._read_bytes)
            if not data:
                message = f"the log ends at offset {self.offset}, though it must reach {end}"
                raise RequestError(ErrorCode.KAFKA_STORAGE_ERROR, message)
            for batch in read_batches(memoryview(data)):
                await self._take(batch)
            self.bytes_read += len(data)
            await next_turn()  # reads that are served from a cache do not give up the loop

    async def apply(self, state: ShardState) -> None:
        """Apply to ``state`` what was read since the last call.  Raises FormatError if a record cannot be decoded."""
        values, self._values = self._values, {}
        for key, value in values.items():
            if self._turns.is_over():
                await next_turn()
            state.apply(decode(key, value))
            if value is not None:
                self.live_bytes += len(key) + len(value)

    async def _take(self, batch: Batch) -> None:
        if not batch.is_control and batch.next_offset > self.offset:
            for record in read_records(batch):
                if self._turns.is_over():
                    await next_turn()
                if record.offset >= self.offset and record.key is not None:
                    self._values[record.key] = record.value
        self.offset = max(self.offset, batch.next_offset)

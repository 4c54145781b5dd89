"""Replay of a shard's log, in turns of the event loop.

A state says whether only the last record of each key counts (``ShardState.is_by_key``), as in Kafka's compacted topics.
Records are then first reduced to the last value of each key, as bytes, and only these values are decoded.  A hundred
commits of a group cost no more decoding than a single commit.  The memory is that of the live keys, and of tombstones
since the log's start, which a snapshot moves (``snapshot``).  A batch that names a producer, with records or the end
of a transaction, comes in the order of the log, after the reduced values of the batches before it.  Every other state
gets each record in the order of the log, with the producer of its batch, control records among them.
"""

from __future__ import annotations

from bmq.coordinator.shard.log import ShardLog
from bmq.coordinator.shard.log_records import REPEATING, BatchProducer, producer_of
from bmq.coordinator.shard.state import ShardState
from bmq.core.aio.steps import run_in_steps
from bmq.core.aio.turns import Turns, next_turn
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.records.batch import Batch
from bmq.core.records.cursor import read_batches
from bmq.core.records.reader import StoredRecord, read_records


class Replay:
    """Progress of one replay of ``log``, from its start, into ``state``.

    ``offset`` is the next to be read, and ``bytes_read`` counts the batches read so far.
    """

    def __init__(self, log: ShardLog, state: ShardState, read_bytes: int) -> None:
        self.offset = log.log_start
        self.bytes_read = 0
        self._log = log
        self._state = state
        self._read_bytes = read_bytes
        self._values: dict[bytes, bytes | None] = {}  # of a run that is not applied yet, of a state by key
        self._deleted: set[bytes] = set()  # keys that the run deletes, if a batch before it named a producer
        self._sizes: dict[bytes, int] = {}  # bytes of the last value of each key that is applied in order
        self._has_producers = False  # a batch that names a producer was read
        self._live_bytes = 0
        self._turns = Turns()

    @property
    def live_bytes(self) -> int:
        """Approximate bytes of the live keys and values, without tombstones."""
        return self._live_bytes + sum(self._sizes.values())

    async def read(self, end: int) -> None:
        """Read the records before offset ``end``, and apply them.

        Raises RequestError if the log cannot be read or ends before, FormatError if a batch is damaged or a record
        cannot be decoded.
        """
        while self.offset < end:
            data = await self._log.read(self.offset, self._read_bytes)
            if not data:
                message = f"the log ends at offset {self.offset}, though it must reach {end}"
                raise RequestError(ErrorCode.KAFKA_STORAGE_ERROR, message)
            await next_turn()  # all shards of a process are loaded at once: each has turns of its own
            for batch in read_batches(memoryview(data)):
                await self._take(batch)
            self.bytes_read += len(data)
        await self._apply_last_values()

    async def _take(self, batch: Batch) -> None:
        if batch.next_offset > self.offset:
            producer = producer_of(batch)
            if self._state.is_by_key and producer is None:
                await self._note_values(batch)
            else:
                self._has_producers = self._has_producers or producer is not None
                await self._apply_last_values()
                await self._apply(batch, producer)
        self.offset = max(self.offset, batch.next_offset)

    async def _apply(self, batch: Batch, producer: BatchProducer | None) -> None:
        for record in read_records(batch):
            if self._turns.is_over():
                await next_turn()
            if record.offset >= self.offset and record.key is not None:
                await self._apply_record(record, REPEATING if producer is None and record.headers else producer)

    async def _apply_record(self, record: StoredRecord, producer: BatchProducer | None) -> None:
        assert record.key is not None
        steps = self._state.replay(record.key, record.value, producer)
        if steps is not None:
            await run_in_steps(steps)
        self._note_size(record.key, record.value)

    def _note_size(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            self._sizes.pop(key, None)
        else:
            self._sizes[key] = len(key) + len(value)

    async def _note_values(self, batch: Batch) -> None:
        for record in read_records(batch):
            if self._turns.is_over():
                await next_turn()
            if record.offset >= self.offset and record.key is not None:
                if record.headers:
                    await self._apply_last_values()
                    await self._apply_record(record, REPEATING)
                    continue
                if record.value is None and self._has_producers:
                    self._deleted.add(record.key)
                self._values[record.key] = record.value

    async def _apply_last_values(self) -> None:
        if not self._values:
            return
        values, self._values = self._values, {}
        deleted, self._deleted = self._deleted, set()
        for key, value in values.items():
            if self._turns.is_over():
                await next_turn()
            if value is not None and key in deleted:
                self._state.replay(key, None, None)
            self._state.replay(key, value, None)
            if self._has_producers:
                self._note_size(key, value)
            elif value is not None:
                self._live_bytes += len(key) + len(value)

"""Writer of a shard's records: one batch is in flight; records that come meanwhile go into the next (group commit).

An operation may name a producer: its records are then a batch of their own, which names it.  Transactions need such
batches: the records of one producer and epoch are decided together, and a batch is in the log wholly or not at all.

Operations complete in order, each when all of its records are durable.  After an append that fails nothing more is
written: the fate of its batch is unknown, so the shard must be loaded again.  An operation whose batch the log refuses
for its producer ends with the log's error, and its client does not try again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from bmq.coordinator.shard.log import ShardLog
from bmq.coordinator.shard.log_records import REPEATED_HEADERS, BatchProducer, KeyValue, Repeated
from bmq.core.aio.byte_budget import ByteBudget
from bmq.core.clock import Clock
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.records.batch import HEADER_BYTES, Record, build_batch

BATCH_BYTES = 192 << 10
"""Most bytes of a batch of several records: thousands of small records, which are encoded in one turn of the event
loop. A batch of a single record may be larger, up to what the log accepts."""
QUEUE_BYTES_MAX = 16 << 20
"""Bytes of records that wait for the log.  At this bound operations wait before they decide anything."""
_RECORD_OVERHEAD = 32  # most bytes of the varints around key and value

REFUSED_PRODUCER = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED})
"""Errors by which the log refuses a batch for its producer.  Such a batch is not in the log."""

Done = Callable[[RequestError | None], None]
"""Called with the error of an operation, None if all its records are durable."""


class ShardWrite:
    """Records that were written together.

    ``first_batch`` is the base offset of the batch with the first of them; -1 until that is durable, and without
    records.  ``batch`` has all of them if they are a batch of their own; ``records`` is then empty.
    """

    __slots__ = ("at", "batch", "done", "first_batch", "records", "subject")

    def __init__(self, records: Sequence[KeyValue], subject: str, done: Done, batch: bytearray | None = None) -> None:
        self.records = records
        self.batch = batch
        self.subject = subject
        self.done = done
        self.at = 0  # number of records that are in a batch already
        self.first_batch = -1

    @property
    def has_records(self) -> bool:
        return bool(self.records) or self.batch is not None


class Writer:
    """Writer of one shard under one ownership.

    ``flushed`` is called after each flush, with the time of the clock at which the batch was sent; ``failed`` once,
    with the failure, after all operations have ended with NOT_COORDINATOR.
    """

    def __init__(
        self,
        log: ShardLog,
        clock: Clock,
        *,
        flushed: Callable[[float], None],
        failed: Callable[[RequestError], None],
    ) -> None:
        self.bytes_appended = 0
        self._log = log
        self._clock = clock
        self._on_flushed = flushed
        self._on_failed = failed
        self._queue: deque[ShardWrite] = deque()
        self._budget = ByteBudget(QUEUE_BYTES_MAX)
        self._finishing: list[ShardWrite] = []  # operations whose last record is in the batch in flight
        self._is_in_flight = False
        self._is_scheduled = False
        self._open_writes: dict[str, int] = {}  # subject -> operations with records that are not durable
        self._error: RequestError | None = None

    def fits(self, record: KeyValue) -> bool:
        """Return True if the log accepts a batch of this record alone."""
        return HEADER_BYTES + _size(record) <= self._log.max_batch_bytes

    def write(
        self, records: Sequence[KeyValue], subject: str, done: Done, producer: BatchProducer | None = None
    ) -> ShardWrite:
        """Queue records of a ``subject``, such as a group.

        ``done`` is called later, never before this returns; without records, after earlier ones.  With a ``producer``
        the records, at least one, are a batch of their own.  Raises RequestError MESSAGE_TOO_LARGE, and queues nothing,
        if the log does not accept such a batch.
        """
        batch = None if producer is None else self._own_batch(records, producer)
        operation = ShardWrite(records, subject, done) if batch is None else ShardWrite((), subject, done, batch)
        if self._error is not None:
            asyncio.get_running_loop().call_soon(done, self._error)
            return operation
        self._queue.append(operation)
        self._budget.take(sum(map(_size, records)) if batch is None else len(batch))
        if operation.has_records:
            self._open_writes[subject] = self._open_writes.get(subject, 0) + 1
        if not self._is_in_flight and not self._is_scheduled:  # other records of this turn go into the same batch
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._send_scheduled)
        return operation

    def has_open_writes(self, subject: str) -> bool:
        """Return True if records of the subject are not durable yet."""
        return subject in self._open_writes

    @property
    def has_room(self) -> bool:
        """True if the queue is below its bound."""
        return self._budget.has_room

    @property
    def is_blocked(self) -> bool:
        """True if ``room`` would wait or raise."""
        return self._error is not None or not self.has_room

    async def room(self) -> None:
        """Wait until the queue is below its bound.  Raises RequestError if the writer has failed."""
        await self._budget.room()
        if self._error is not None:
            raise self._error

    def batches_of(self, records: Sequence[KeyValue]) -> Iterator[slice]:
        """Yield parts of ``records``, each of the size of a batch.  Every record must fit by itself."""
        begin, size, limit = 0, HEADER_BYTES, min(BATCH_BYTES, self._log.max_batch_bytes)
        for at, record in enumerate(records):
            if at > begin and size + _size(record) > limit:
                yield slice(begin, at)
                begin, size = at, HEADER_BYTES
            size += _size(record)
        yield slice(begin, len(records))

    def fail(self, error: RequestError) -> None:
        """Write no more, and end all operations with NOT_COORDINATOR.  The batch in flight may still become durable.

        The error is COORDINATOR_NOT_AVAILABLE if storage has fewer datanodes than the log's min.insync.replicas.
        """
        if self._error is not None:
            return
        is_short = error.code is ErrorCode.NOT_ENOUGH_REPLICAS
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE if is_short else ErrorCode.NOT_COORDINATOR
        self._error = RequestError(code, error.message)
        is_refused = error.code in REFUSED_PRODUCER and any(each.batch is not None for each in self._finishing)
        operations = [*self._finishing, *self._queue]
        self._finishing, self._queue = [], deque()
        self._open_writes.clear()
        for number, operation in enumerate(operations):
            operation.done(error if is_refused and not number else self._error)
        self._budget.give_back(self._budget.used)
        self._on_failed(error)

    def _send_scheduled(self) -> None:
        self._is_scheduled = False
        self._send()

    def _send(self) -> None:
        if self._error is not None or not self._queue or self._is_in_flight:
            return
        batch, finished, partial = self._take()
        if batch is None:  # only operations without records, and all before them are durable
            self._finish(finished)
            return
        size = len(batch)
        starting = [each for each in (*finished, *partial) if each.first_batch < 0]
        self._finishing = finished
        self._is_in_flight = True
        sent_s = self._clock.monotonic()
        try:
            future = self._log.append(batch)
        except RequestError as error:
            self._is_in_flight = False
            self.fail(error)
            return
        future.add_done_callback(lambda done: self._flushed(done, size, starting, sent_s))

    def _own_batch(self, records: Sequence[KeyValue], producer: BatchProducer) -> bytearray:
        """Return the batch of one operation.  Raises RequestError MESSAGE_TOO_LARGE if the log does not accept it."""
        assert records, "an operation without records needs no batch"
        batch = self._build(records, producer)
        if len(batch) > self._log.max_batch_bytes:
            message = f"a batch of {len(batch)} bytes is larger than max.message.bytes, {self._log.max_batch_bytes}"
            raise RequestError(ErrorCode.MESSAGE_TOO_LARGE, message)
        return batch

    def _build(self, records: Sequence[KeyValue], producer: BatchProducer | None = None) -> bytearray:
        made = [
            Record(key=each[0], value=each[1], headers=REPEATED_HEADERS if type(each) is Repeated else ())
            for each in records
        ]
        if producer is None:
            return build_batch(made, base_timestamp=self._clock.now_ms())
        return build_batch(
            made,
            base_timestamp=self._clock.now_ms(),
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            attributes=producer.attributes,
        )

    def _take(self) -> tuple[bytearray | None, list[ShardWrite], list[ShardWrite]]:
        """Take the next batch from the queue: the batch of one operation, or the records of several.

        Returns the batch, None without records, then the operations that end with it, and the operation, if any, of
        which more records follow.
        """
        records: list[KeyValue] = []
        finished: list[ShardWrite] = []
        limit = min(BATCH_BYTES, self._log.max_batch_bytes)
        size = HEADER_BYTES
        while self._queue:
            operation = self._queue[0]
            if operation.batch is not None:
                if records:
                    break  # it is the next batch
                self._budget.give_back(len(operation.batch))
                finished.append(self._queue.popleft())
                return operation.batch, finished, []
            while operation.at < len(operation.records):
                record = operation.records[operation.at]
                if records and size + _size(record) > limit:
                    return self._build(records), finished, [operation] if operation.at else []
                records.append(record)
                size += _size(record)
                self._budget.give_back(_size(record))
                operation.at += 1
            finished.append(self._queue.popleft())
        return self._build(records) if records else None, finished, []

    def _flushed(self, done: asyncio.Future[int], size: int, starting: list[ShardWrite], sent_s: float) -> None:
        self._is_in_flight = False
        if self._error is not None:
            if not done.cancelled():
                done.exception()  # retrieved and ignored: its operations have ended already
            return
        error = asyncio.CancelledError() if done.cancelled() else done.exception()
        if error is not None:
            code = error.code if isinstance(error, RequestError) else ErrorCode.KAFKA_STORAGE_ERROR
            self.fail(RequestError(code, f"an append to the shard's log failed: {error!r}"))
            return
        self.bytes_appended += size
        base = done.result()
        for operation in starting:
            operation.first_batch = base
        finished, self._finishing = self._finishing, []
        self._finish(finished)
        self._on_flushed(sent_s)
        self._send()

    def _finish(self, operations: list[ShardWrite]) -> None:
        for operation in operations:
            if operation.has_records:
                left = self._open_writes[operation.subject] - 1
                if left:
                    self._open_writes[operation.subject] = left
                else:
                    del self._open_writes[operation.subject]
        for operation in operations:
            operation.done(None)


def _size(record: KeyValue) -> int:
    key, value = record
    return len(key) + len(value or b"") + _RECORD_OVERHEAD

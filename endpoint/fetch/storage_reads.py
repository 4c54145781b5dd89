"""Reads of partitions' records from storage, for fetches whose records are no longer in the tail cache."""

from __future__ import annotations

import asyncio
import logging

from bmq.core.aio.tasks import cancel_and_wait
from bmq.core.clock import Clock
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.logging.fields import fields
from bmq.core.metrics.counters import Histogram
from bmq.core.model import PartitionKey
from bmq.core.tracing import Tracer, Value
from bmq.endpoint.fetch.context import FetchContext
from bmq.endpoint.fetch.memory_budget import Reservation
from bmq.endpoint.fetch.partition_read import PartitionRead
from bmq.endpoint.partitions import Owners
from bmq.meta.catalog import Catalog
from bmq.storage.aborted_reader import AbortedReader
from bmq.storage.filesystem import StorageError
from bmq.storage.layout import PartitionPath
from bmq.storage.log_reader import LogReader, LogSlice, OffsetNotFound
from bmq.storage.segment_cursor import MissingRecords

_log = logging.getLogger(__name__)


class StorageReads:
    """The reads from storage of one fetch service."""

    def __init__(
        self, context: FetchContext, catalog: Catalog, owners: Owners, clock: Clock, tracer: Tracer | None = None
    ) -> None:
        self._context = context
        self._catalog = catalog
        self._owners = owners
        self._clock = clock
        self._tracer = tracer
        self._late: dict[asyncio.Task[LogSlice | ErrorCode], Reservation] = {}
        self.read_ms = Histogram()
        """Milliseconds that reads of one partition, from storage or from its cached blocks, took."""

    async def close(self) -> None:
        """Cancel the reads for which no fetch waits, and wait for their end."""
        await cancel_and_wait(*self._late)

    async def read(self, result: PartitionRead, gate: asyncio.Semaphore) -> LogSlice | ErrorCode:
        """Return the records that ``result`` found on storage, or the error of this partition alone."""
        key, topic = result.key, result.topic
        assert key is not None
        assert topic is not None
        path = PartitionPath(topic.name, str(topic.topic_id), key.partition)
        try:
            try:
                return await self._read_from(self._context.reader(key, path), result, gate)
            except (OffsetNotFound, MissingRecords):
                self._context.drop_reader(key)
                return await self._read_from(self._context.reader(key, path), result, gate)
        except RequestError as error:
            return _fetch_code(error)
        except (OffsetNotFound, MissingRecords) as error:
            return await self._missing(key, result.offset, error)
        except StorageError as error:
            _log.warning(
                "records cannot be read from storage now: their readers get KAFKA_STORAGE_ERROR, and try again",
                extra=fields(topic=topic.name, partition=key.partition, error=error),
            )
            return ErrorCode.KAFKA_STORAGE_ERROR

    async def _read_from(self, reader: LogReader, result: PartitionRead, gate: asyncio.Semaphore) -> LogSlice:
        async with gate:
            began = self._clock.monotonic()
            view = result.view
            assert view is not None
            active = await view.ask_active_segment() if result.asks else result.active_segment
            recent = view.recent_aborted  # as it is when the active segment is known: no older
            held = self._context.tails.held(result.key) if result.key is not None else None
            if result.wants_aborted:
                records = await AbortedReader(reader).read(
                    result.offset, result.limit, result.end, result.marks[0], active=active, recent=recent, held=held
                )
            else:
                records = await reader.read_slice(result.offset, result.limit, result.end, active=active, held=held)
            took_s = self._clock.monotonic() - began
            self.read_ms.observe(took_s * 1000)
            if self._tracer is not None:
                self._trace_read(self._tracer, result, took_s, records.size)
            return records

    def _trace_read(self, tracer: Tracer, result: PartitionRead, took_s: float, size: int) -> None:
        assert result.topic is not None
        attributes: dict[str, Value] = {
            "messaging.destination.name": result.topic.name,
            "messaging.destination.partition.id": str(result.wanted.partition),
            "messaging.kafka.offset": result.offset,
            "bmq.bytes": size,
        }
        tracer.stage("read", took_s, attributes)

    async def _missing(self, key: PartitionKey, offset: int, error: Exception) -> ErrorCode:
        """Return the error for an offset that storage does not have, by the owner's offsets (rule 2).

        If the offset is within the owner's log, its bytes are lost: CORRUPT_MESSAGE, which no client ignores silently.
        """
        owner = self._owners.get(key)
        if owner is None:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        try:
            ends = await owner.ends()
        except RequestError as refusal:
            return _fetch_code(refusal)
        if offset < ends.log_start:
            return ErrorCode.OFFSET_OUT_OF_RANGE
        if offset >= ends.high_watermark:
            return ErrorCode.OFFSET_NOT_AVAILABLE
        topic = self._catalog.by_id(key.topic_id)
        _log.error(
            "records are gone from storage, consumers that read them get CORRUPT_MESSAGE: put the file back, or skip"
            " them by DeleteRecords or another offset (offsets %d to %d should be there)",
            ends.log_start,
            ends.high_watermark,
            extra=fields(
                topic=topic.name if topic is not None else str(key.topic_id), partition=key.partition, error=error
            ),
        )
        return ErrorCode.CORRUPT_MESSAGE

    def adopt(self, task: asyncio.Task[LogSlice | ErrorCode], reservation: Reservation) -> None:
        """Let a read, for which its fetch no longer waits, go on and fill the block cache.

        Its reservation, released when it ends, bounds such reads.
        """
        self._late[task] = reservation
        task.add_done_callback(self._late_ended)

    def _late_ended(self, task: asyncio.Task[LogSlice | ErrorCode]) -> None:
        self._late.pop(task).release()


def _fetch_code(error: RequestError) -> ErrorCode:
    """Return the code for a partition of a Fetch whose owner did not respond.

    An owner that does not respond in time is REQUEST_TIMED_OUT in Produce.  Kafka's Fetch has no such code: Java's
    consumer throws IllegalStateException (FetchCollector), librdkafka passes it to the application.  Both look for the
    leader again after NOT_LEADER_OR_FOLLOWER.
    """
    return ErrorCode.NOT_LEADER_OR_FOLLOWER if error.code == ErrorCode.REQUEST_TIMED_OUT else error.code

"""A reader of some partitions' records for the console: the newest or the oldest of them all, within bounds.

Records of several partitions are merged by time.  Any partition could hold all of the wanted records, but usually every
partition holds its share.  So the reader takes a few records of every partition.  Then it takes more of the partitions
that may hold further records, twice as many each time.

| records | read | next |
|---|---|---|
| the newest | backward from the end, in windows | the end |
| from an offset or a time | forward | the first record that was not returned |

At READ_COMMITTED the end is the last stable offset, and records of aborted transactions are left out, as Kafka's
clients do.  At READ_UNCOMMITTED the end is the high watermark.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from bmq.console import payloads
from bmq.console.kafka import Requests, check
from bmq.console.payloads import Payload, Schemas
from bmq.console.schema_registry import SchemaRegistry
from bmq.console.schemas import schema_id
from bmq.console.state import TopicFacts
from bmq.core.aio.turns import next_turn
from bmq.core.errors import ErrorCode, FormatError, RequestError
from bmq.core.records.batch import NO_PRODUCER_ID, Batch
from bmq.core.records.control import Marker, marker_of
from bmq.core.records.cursor import read_batches
from bmq.core.records.isolation import Aborted
from bmq.core.records.reader import StoredRecord, read_records
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.fetch_client import READ_COMMITTED, READ_UNCOMMITTED
from bmq.core.wire.messages import ListOffsetsRequest

PARALLEL = 4
FETCH_BYTES = 1 << 20
BATCH_BYTES_MAX = 32 << 20
"""Most bytes of a decompressed batch; a larger one is an error."""
SCAN_BYTES_MAX = 16 << 20
"""Bytes after which no more is read of a partition, at most a batch later; a search for a key goes on from ``next``."""
ANSWER_BYTES_MAX = 8 << 20
"""Bytes of keys, values and headers after which no more records are shown, at most a record later."""
SCHEMAS_MAX = 50
"""Most schemas looked up for one fetch of a partition; records with further ones are shown without their schema."""
READ_S = 15.0
FIRST_SHARES = 2
"""Even shares of the limit that are read of each partition at first."""
NARROWER = 4
"""Divisor of a window that holds more than ``SCAN_BYTES_MAX`` before its newest record."""
LATEST, EARLIEST = "latest", "earliest"
_LATEST, _EARLIEST = -1, -2


class Wanted(NamedTuple):
    """Records that a request asks for.

    ``offset`` is a number, ``LATEST`` or ``EARLIEST``; ``timestamp``, in ms, takes precedence over it.
    """

    offset: int | str
    timestamp: int | None
    key: bytes | None
    limit: int
    format: str
    shown_bytes: int
    isolation_level: int

    @property
    def is_newest(self) -> bool:
        """True if the newest records are wanted, from the newest to older ones."""
        return self.timestamp is None and self.offset == LATEST


class Found:
    """One partition's records, by offset, and the offsets of further records: ``low`` of older, ``next`` of newer.

    ``end`` is the end of the records that may be shown at the isolation level.
    """

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.log_start = self.high_watermark = self.last_stable_offset = -1
        self.end = self.next = self.low = -1
        self.records: list[dict[str, Any]] = []
        self.read = 0
        """Records read so far; fewer may be left in ``records``."""
        self.error = ""

    def facts(self) -> dict[str, Any]:
        """Return the partition's facts, without the records, as JSON."""
        return {
            "partition": self.partition,
            "log_start": _known(self.log_start),
            "high_watermark": _known(self.high_watermark),
            "last_stable_offset": _known(self.last_stable_offset),
            "next": _known(self.next),
            "error": self.error,
        }


class RecordsFound(NamedTuple):
    """The records in their order, and the facts of each partition.  ``has_more``: there are further ones."""

    records: Sequence[dict[str, Any]]
    partitions: Sequence[Found]
    has_more: bool


class RecordsReader:
    """Reader of partitions of one topic, ``PARALLEL`` at a time."""

    def __init__(self, requests: Requests, topic: TopicFacts, wanted: Wanted, registry: SchemaRegistry | None) -> None:
        self._registry = registry if wanted.format in (payloads.AUTO, payloads.REGISTRY) else None
        self._requests = requests
        self._topic = topic
        self._topic_id = UUID(topic["topic_id"])
        self._wanted = wanted
        self._answer_bytes = ANSWER_BYTES_MAX
        self._share = wanted.limit
        self._turns = asyncio.Semaphore(PARALLEL)

    async def read_all(self, numbers: Sequence[int]) -> RecordsFound:
        """Return the records of these partitions, and for each the error if it cannot be read.

        Raises RequestError if no partition can be read, and no records were read before the errors.
        """
        limit = self._wanted.limit
        founds = active = [Found(number) for number in numbers]
        deadline = asyncio.get_running_loop().time() + READ_S
        self._share = min(limit, max(1, FIRST_SHARES * limit // len(founds)))
        while active:
            self._answer_bytes = ANSWER_BYTES_MAX // len(active)
            errors = await asyncio.gather(*(self._read(found, deadline) for found in active))
            failed = [error for error in errors if error is not None]
            if len(failed) == len(founds) and not any(found.records for found in founds):
                raise failed[0]
            records = self._choose(founds)
            if self._share == limit:
                break
            self._share = min(limit, 2 * self._share)
            active = [found for found in founds if self._may_have_more(found, records)]
        is_newest = self._wanted.is_newest
        more = (found.low > found.log_start if is_newest else found.next < found.end for found in founds)
        return RecordsFound(records, founds, any(more))

    def _choose(self, founds: Sequence[Found]) -> list[dict[str, Any]]:
        """Return the records that come first in the order that is wanted, and leave only these in ``founds``."""
        is_newest = self._wanted.is_newest
        records = [record for found in founds for record in found.records]
        records.sort(key=_time_of, reverse=is_newest)
        chosen: list[dict[str, Any]] = []
        size = 0
        for record in records:
            if len(chosen) == self._wanted.limit or size >= ANSWER_BYTES_MAX:
                break
            chosen.append(record)
            size += _size(record)
        kept = {(record["partition"], record["offset"]) for record in chosen}
        for found in founds:
            left = [each["offset"] for each in found.records if (found.partition, each["offset"]) not in kept]
            found.records = [each for each in found.records if (found.partition, each["offset"]) in kept]
            if left and is_newest:
                found.low = max(left) + 1
            elif left:
                found.next = min(left)
        return chosen

    def _may_have_more(self, found: Found, chosen: Sequence[Mapping[str, Any]]) -> bool:
        """Return whether further records of the partition may belong to the wanted ones.

        False if a read record of the partition was left out: further records lie beyond it.
        """
        is_newest = self._wanted.is_newest
        is_read = found.low <= found.log_start if is_newest else found.next >= found.end
        if found.error or is_read or len(found.records) < found.read:
            return False
        if len(chosen) < self._wanted.limit or not found.records:
            return True
        edge, last = (_time_of(each)[0] for each in (found.records[0 if is_newest else -1], chosen[-1]))
        return bool(edge >= last if is_newest else edge <= last)

    # ------------------------------------------------------------------------------------------------ one partition

    async def _read(self, found: Found, deadline: float) -> RequestError | None:
        try:
            async with self._turns, asyncio.timeout_at(deadline):
                if found.next < 0:
                    await self._begin(found)
                await (self._read_back(found) if self._wanted.is_newest else self._read_on(found))
        except RequestError as error:
            found.error = f"{error.code.name}: {error.message}" if error.message else error.code.name
            return error
        except TimeoutError:
            found.error = f"not read within {READ_S:g} s; ask again from next"
            if found.next < 0:
                return RequestError(ErrorCode.REQUEST_TIMED_OUT, found.error)
        return None

    async def _begin(self, found: Found) -> None:
        """Set the partition's ends, and the first offset to be read, within them."""
        wanted, number = self._wanted, found.partition
        found.log_start = await self._offset(number, _EARLIEST)
        end = await self._offset(number, _LATEST)
        if wanted.isolation_level == READ_COMMITTED:
            found.last_stable_offset = end
            found.high_watermark = await self._offset(number, _LATEST, READ_UNCOMMITTED)
        else:
            found.high_watermark = end
        start = found.end = found.low = end
        if wanted.timestamp is not None:
            offset = await self._offset(number, wanted.timestamp)
            start = min(offset, found.end) if offset >= 0 else found.end
        elif isinstance(wanted.offset, int):
            start = min(max(wanted.offset, found.log_start), found.end)
        elif wanted.offset == EARLIEST:
            start = found.log_start
        found.next = start

    async def _read_on(self, found: Found) -> None:
        """Read forward from ``next`` until the partition has its share; keep the records read when the time is up."""
        read_bytes = shown = 0
        while found.read < self._share and read_bytes < SCAN_BYTES_MAX and shown < self._answer_bytes:
            if found.next >= found.end:
                return
            span = _Span(found.next, found.end, self._share - found.read, self._answer_bytes - shown)
            part = await self._fetch(found.partition, span)
            if part is None:
                return
            found.next = part.reached
            found.records += part.records
            found.read += len(part.records)
            read_bytes += part.read_bytes
            shown += part.shown_bytes

    async def _read_back(self, found: Found) -> None:
        """Read the window before ``low``, with which the partition has its share; a smaller one if it is too large."""
        end = found.low
        size = self._share - (found.end - end)
        while size > 0:
            start = max(found.log_start, end - size)
            window = await self._window(found.partition, start, end)
            if window.is_read or size == 1:
                found.low = window.start
                found.records[:0] = window.records
                found.read += len(window.records)
                return
            size = max(1, size // NARROWER)

    async def _window(self, partition: int, start: int, end: int) -> _Window:
        """Return the wanted records from ``start`` up to ``end``, without the oldest if the response has no room."""
        records: deque[dict[str, Any]] = deque()
        due, read_bytes, shown = start, 0, 0
        while due < end and read_bytes < SCAN_BYTES_MAX:
            part = await self._fetch(partition, _Span(due, end, None, self._answer_bytes))
            if part is None:
                break
            due = part.reached
            read_bytes += part.read_bytes
            if part.is_cut:
                records.clear()
                shown, start = 0, part.records[0]["offset"]
            records.extend(part.records)
            shown += part.shown_bytes
            while shown > self._answer_bytes and len(records) > 1:
                shown -= _size(records.popleft())
                start = records[0]["offset"]
        return _Window(records, start, due >= end)

    async def _fetch(self, partition: int, span: _Span) -> _Part | None:
        """Return the wanted records of one fetch at the begin of ``span``; None if the fetch has none."""
        level = self._wanted.isolation_level
        fetched = await self._requests.fetch(self._topic_id, partition, span.start, FETCH_BYTES, level)
        if not fetched.records_size:
            return None
        data = _Data(b"".join(fetched.records), fetched.aborted or ())
        try:
            schemas = await self._schemas(data, span)
            return await asyncio.to_thread(_decode, data, span, self._wanted, partition, schemas)
        except FormatError as error:
            raise RequestError(ErrorCode.CORRUPT_MESSAGE, f"at offset {span.start}: {error}") from None
        except RequestError as error:  # of a batch
            raise RequestError(error.code, f"at offset {span.start}: {error.message}") from None

    async def _schemas(self, data: _Data, span: _Span) -> Schemas:
        """Return the schemas of the records in ``data`` that may be shown."""
        if self._registry is None:
            return payloads.NO_SCHEMAS
        ids = await asyncio.to_thread(_schema_ids, data, span, self._wanted)
        return await self._registry.find(ids)

    async def _offset(self, number: int, timestamp: int, isolation_level: int | None = None) -> int:
        """Return the partition's offset for ``timestamp``, by default at the isolation level that is wanted."""
        level = self._wanted.isolation_level if isolation_level is None else isolation_level
        found = await list_offsets(self._requests, {self._topic["name"]: [number]}, timestamp, level)
        code, offset = found[self._topic["name"], number]
        check(code, f"the offsets of partition {number} cannot be read now")
        return offset


class _Data(NamedTuple):
    """The batches of one fetch, and (producer id, first offset) of the aborted transactions among them."""

    batches: bytes
    aborted: Sequence[tuple[int, int]]

    def read(self) -> Iterator[tuple[Batch, bool]]:
        """Yield each batch before a damaged batch, and whether it belongs to an aborted transaction.

        A fetch returns the bytes of storage unchecked.  Raises FormatError if the first batch is damaged.
        """
        aborted = Aborted(self.aborted)
        is_first = True
        for batch in read_batches(memoryview(self.batches)):
            if not batch.has_valid_crc and not is_first:
                return  # the next fetch begins with it
            if not batch.has_valid_crc:
                raise FormatError(
                    f"the batch up to offset {batch.last_offset} is damaged, its CRC does not match; `bmq segment"
                    " verify` shows the fault, `bmq segment repair TOPIC PARTITION --all` what can be kept"
                )
            is_first = False
            last, is_aborted = batch.next_offset - 1, False
            if not batch.is_control:
                is_aborted = batch.is_transactional and aborted.hides(batch.producer_id, last)
            elif marker_of(batch) is Marker.ABORT:
                aborted.end(batch.producer_id, last)
            yield batch, is_aborted


class _Part(NamedTuple):
    """The wanted records of one fetch, the offset up to which they were read, and the bytes read and shown.

    ``is_cut``: the oldest records were left out.
    """

    records: Sequence[dict[str, Any]]
    reached: int
    read_bytes: int
    shown_bytes: int
    is_cut: bool = False


class _Window(NamedTuple):
    """Records before an offset, and the offset of the first.  ``is_read``: they were read up to that offset."""

    records: Sequence[dict[str, Any]]
    start: int
    is_read: bool


class _Span(NamedTuple):
    """Offsets of which records are decoded: the first ``limit``, or without one the newest.

    ``bytes_max``: bytes of the response that they may take, at most a record more; it leaves out the newest records, or
    without a limit the oldest.
    """

    start: int
    end: int
    limit: int | None
    bytes_max: int


def _time_of(record: Mapping[str, Any]) -> tuple[int, int, int]:
    return record["timestamp"], record["offset"], record["partition"]


def _known(offset: int) -> int | None:
    return offset if offset >= 0 else None


def _decode(data: _Data, span: _Span, wanted: Wanted, partition: int, schemas: Schemas) -> _Part:
    """Return the wanted records of the span."""
    records: deque[dict[str, Any]] = deque()
    due, size, is_cut, read_bytes = span.start, 0, False, len(data.batches)
    for batch, is_aborted in data.read():
        if is_aborted:
            due = max(due, min(batch.next_offset, span.end))
            continue
        for record in read_records(batch, bytes_max=BATCH_BYTES_MAX):
            if record.offset < due:
                continue
            if record.offset >= span.end:
                return _Part(records, span.end, read_bytes, size, is_cut)
            if span.limit is not None and (len(records) >= span.limit or size >= span.bytes_max):
                return _Part(records, due, read_bytes, size)
            due = record.offset + 1
            if wanted.key is not None and record.key != wanted.key:
                continue
            shown = _record(record, partition, wanted, schemas, batch)
            records.append(shown)
            size += _size(shown)
            while span.limit is None and size > span.bytes_max and len(records) > 1:
                size -= _size(records.popleft())
                is_cut = True
        due = max(due, batch.next_offset)
    return _Part(records, due, read_bytes, size, is_cut)


def _schema_ids(data: _Data, span: _Span, wanted: Wanted) -> Collection[int]:
    """Return the schema ids in the wanted records of the span, ``SCHEMAS_MAX`` at most."""
    ids: dict[int, None] = {}
    count = 0
    for batch, is_aborted in data.read():
        if is_aborted:
            continue
        for record in read_records(batch, bytes_max=BATCH_BYTES_MAX):
            if not span.start <= record.offset < span.end or (wanted.key is not None and record.key != wanted.key):
                continue
            if span.limit is not None and count >= span.limit:
                return ids
            count += 1
            for number in map(schema_id, (record.key, record.value)):
                if number is not None and len(ids) < SCHEMAS_MAX:
                    ids[number] = None
    return ids


def _record(record: StoredRecord, partition: int, wanted: Wanted, schemas: Schemas, batch: Batch) -> dict[str, Any]:
    def show(data: bytes | None) -> Payload:
        return payloads.show(data, wanted.format, wanted.shown_bytes, schemas)

    return {
        "partition": partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": show(record.key),
        "value": show(record.value),
        "headers": [
            {"key": name, "value": payloads.show(value, _header_format(wanted.format), wanted.shown_bytes)}
            for name, value in record.headers
        ],
        "is_control": batch.is_control,
        "marker": marker_of(batch).value if batch.is_control else None,
        "producer_id": batch.producer_id if batch.producer_id != NO_PRODUCER_ID else None,
    }


def _header_format(wanted: str) -> str:
    """Return the format for headers, which have no schemas."""
    return payloads.AUTO if wanted == payloads.REGISTRY else wanted


def _size(record: Mapping[str, Any]) -> int:
    """Return about the bytes of a record in the response."""
    parts = [record["key"], record["value"], *(header["value"] for header in record["headers"])]
    return 200 + sum(100 + len(part["text"] or "") for part in parts) + sum(len(h["key"]) for h in record["headers"])


async def list_offsets(
    requests: Requests,
    topics: Mapping[str, Sequence[int]],
    timestamp: int,
    isolation_level: int = READ_UNCOMMITTED,
) -> dict[tuple[str, int], tuple[int, int]]:
    """Return the error code and the offset of each partition for ``timestamp``, by ListOffsets.

    The timestamp -1 stands for the high watermark, at READ_COMMITTED the last stable offset; -2 for the log's start.
    """
    message = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation_level,
        topics=[
            ListOffsetsRequest.ListOffsetsTopic(
                name=name,
                partitions=[
                    ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition(
                        partition_index=number, current_leader_epoch=-1, timestamp=timestamp
                    )
                    for number in numbers
                ],
            )
            for name, numbers in topics.items()
        ],
    )
    await next_turn()  # 10,000 partitions take some 10 ms here, on their way and below
    response = await requests.send(ApiKey.LIST_OFFSETS, 7, message)
    await next_turn()
    return {
        (topic.name, part.partition_index): (part.error_code, part.offset)
        for topic in response.topics
        for part in topic.partitions
    }

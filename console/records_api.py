"""Handlers of ``/api/v1/topics/{name}/records``: read records of some partitions, and produce one.

Records are read by Fetch, so they come from the caches of this process or from storage, as for a consumer that reads
up to the high watermark.  A response is bounded in records, in bytes read and shown, and in time; it has the `next`
offset of each partition, to continue from.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from aiohttp import web
from kafka.partitioner.default import murmur2

from bmq.console import payloads
from bmq.console.access.access import ACCESS
from bmq.console.kafka import Requests, check
from bmq.console.operations import NotPossible
from bmq.console.payloads import Payload, Schemas
from bmq.console.queries import NUMBER, BodyField, Query, choice_of, parse_number, read_body
from bmq.console.schema_registry import SchemaRegistry
from bmq.console.schemas import schema_id
from bmq.console.state import ConsoleState, TopicFacts
from bmq.core.errors import ErrorCode, FormatError, RequestError
from bmq.core.records.batch import Record, build_batch
from bmq.core.records.cursor import read_batches
from bmq.core.records.reader import StoredRecord, read_records
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.messages import ListOffsetsRequest

RECORDS_MAX = 1_000
PARTITIONS_MAX = 100
"""Most partitions that one request reads."""
PARALLEL = 4
FETCH_BYTES = 1 << 20
BATCH_BYTES_MAX = 32 << 20
"""Most bytes of a decompressed batch; a larger one is an error."""
SCAN_BYTES_MAX = 16 << 20
"""Bytes after which no more is read of a partition, at most a batch later; a search for a key goes on from `next`."""
SHOWN_BYTES = 16 << 10
SHOWN_BYTES_MAX = 1 << 20
ANSWER_BYTES_MAX = 8 << 20
"""Bytes of keys, values and headers after which no more records are shown, at most a record later."""
SCHEMAS_MAX = 50
"""Most schemas looked up for one fetch of a partition; records with further ones are shown without their schema."""
READ_S = 15.0
PRODUCE_BYTES_MAX = 2 << 20
LATEST, EARLIEST = "latest", "earliest"
_LATEST, _EARLIEST = -1, -2
_LONG_MAX = (1 << 63) - 1
_HEADERS = BodyField(
    'a list of {"key": text, "value": text or null}',
    lambda value: (
        isinstance(value, list)
        and all(
            isinstance(each, dict)
            and set(each) == {"key", "value"}
            and isinstance(each["key"], str)
            and (each["value"] is None or isinstance(each["value"], str))
            for each in value
        )
    ),
)
_ANY_TEXT = BodyField("a text", lambda value: isinstance(value, str))
_PRODUCE = {
    "partition": NUMBER.optional(),
    "key": _ANY_TEXT.optional(),
    "value": _ANY_TEXT.optional(),
    "headers": _HEADERS.optional(()),
    "key_format": choice_of(*payloads.WRITTEN_FORMATS).optional(payloads.TEXT),
    "value_format": choice_of(*payloads.WRITTEN_FORMATS).optional(payloads.TEXT),
}
_PARAMETERS = ("partition", "offset", "timestamp", "key", "key_format", "limit", "format", "bytes")


class _Wanted(NamedTuple):
    """Records that a request asks for.

    `offset` is a number, `LATEST` or `EARLIEST`; `timestamp`, in ms, takes precedence over it.
    """

    offset: int | str
    timestamp: int | None
    key: bytes | None
    limit: int
    format: str
    shown_bytes: int


class _Found:
    """One partition's records, and the next offset."""

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.log_start = self.high_watermark = self.next = -1
        self.records: list[dict[str, Any]] = []
        self.error = ""

    def facts(self) -> dict[str, Any]:
        """Return the partition's facts, without the records, as JSON."""
        return {
            "partition": self.partition,
            "log_start": _known(self.log_start),
            "high_watermark": _known(self.high_watermark),
            "next": _known(self.next),
            "error": self.error,
        }


class RecordsApi:
    """Handlers of records."""

    def __init__(self, state: ConsoleState) -> None:
        self._state = state

    async def read(self, request: web.Request) -> object:
        """Return records of the requested partitions, by time."""
        topic = find_topic(self._state, request.match_info["name"])
        query = Query(request, _PARAMETERS)
        wanted = _wanted(query)
        numbers = _partitions(query, topic, wanted)
        each = wanted._replace(limit=max(1, wanted.limit // len(numbers)))
        registry = self._state.registry
        if wanted.format == payloads.REGISTRY and registry is None:
            text = "format=registry: no schema registry is set; schema_registry_url names one"
            raise NotPossible(400, "no_schema_registry", text)
        reader = _Reader(request[ACCESS].kafka, topic, each, ANSWER_BYTES_MAX // len(numbers), registry)
        found = await reader.read_all(numbers)
        records = [record for part in found for record in part.records]
        records.sort(key=lambda record: (record["timestamp"], record["partition"], record["offset"]))
        return {"topic": topic["name"], "records": records, "partitions": [part.facts() for part in found]}

    async def produce(self, request: web.Request) -> object:
        """Append one record; return its partition, offset and timestamp."""
        topic = find_topic(self._state, request.match_info["name"])
        body = await read_body(request, _PRODUCE, PRODUCE_BYTES_MAX)
        if topic["is_internal"]:
            raise NotPossible(400, "internal_topic", f"{topic['name']} is internal: only coordinators write to it")
        key = payloads.parse(body["key"], body["key_format"], "key")
        value = payloads.parse(body["value"], body["value_format"], "value")
        number = body["partition"]
        if number is None:
            count = topic["partitions"]
            number = partition_of(key, count) if key is not None else self._state.pick(count)
        check_partition(topic, number)
        headers = [(each["key"], _encoded(each["value"])) for each in body["headers"]]
        now_ms = self._state.now_ms()
        batch = build_batch([Record(key=key, value=value, headers=headers)], base_timestamp=now_ms)
        offset = await request[ACCESS].kafka.produce(UUID(topic["topic_id"]), number, memoryview(batch))
        return {"topic": topic["name"], "partition": number, "offset": offset, "timestamp": now_ms}


def find_topic(state: ConsoleState, name: str) -> TopicFacts:
    """Return the topic's facts.  Raises NotPossible (404) if it does not exist."""
    topic = state.find_topic(name)
    if topic is None:
        raise NotPossible(404, "unknown_topic", f"there is no topic {name!r}")
    return topic


def check_partition(topic: TopicFacts, number: int) -> None:
    """Raise NotPossible (404) if the topic has no such partition."""
    if not 0 <= number < topic["partitions"]:
        last = topic["partitions"] - 1
        text = f"topic {topic['name']} has the partitions 0 to {last}, not {number}"
        raise NotPossible(404, "unknown_partition", text)


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition that Kafka's default partitioner chooses for `key`."""
    return int(murmur2(key) & 0x7FFFFFFF) % partitions


def _encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _known(offset: int) -> int | None:
    return offset if offset >= 0 else None


def _wanted(query: Query) -> _Wanted:
    offset: int | str = query.text("offset", LATEST)
    if isinstance(offset, str) and offset not in (LATEST, EARLIEST):
        offset = parse_number("offset", offset, 0, _LONG_MAX)
    key = None
    if query.is_given("key"):
        key = payloads.parse(query.text("key"), query.choice("key_format", payloads.WRITTEN_FORMATS), "key")
    return _Wanted(
        offset=offset,
        timestamp=query.number("timestamp", 0, 0, _LONG_MAX) if query.is_given("timestamp") else None,
        key=key,
        limit=query.number("limit", 50, 1, RECORDS_MAX),
        format=query.choice("format", payloads.FORMATS),
        shown_bytes=query.number("bytes", SHOWN_BYTES, 1, SHOWN_BYTES_MAX),
    )


def _partitions(query: Query, topic: TopicFacts, wanted: _Wanted) -> Sequence[int]:
    """Return the partitions to read: the given one, else the one that Kafka's clients choose for the key, else all.

    Raises NotPossible: 404 if the given one does not exist, 400 if all are too many.
    """
    if query.is_given("partition"):
        number = query.number("partition", 0, 0, _LONG_MAX)
        check_partition(topic, number)
        return (number,)
    if wanted.key is not None:
        return (partition_of(wanted.key, topic["partitions"]),)
    if topic["partitions"] > PARTITIONS_MAX:
        text = f"topic {topic['name']} has {topic['partitions']} partitions: give one with partition=N"
        raise NotPossible(400, "wrong_parameter", text)
    return range(topic["partitions"])


class _Reader:
    """Reader of partitions of one topic, `PARALLEL` at a time."""

    def __init__(
        self,
        requests: Requests,
        topic: TopicFacts,
        wanted: _Wanted,
        answer_bytes: int,
        registry: SchemaRegistry | None,
    ) -> None:
        self._registry = registry if wanted.format in (payloads.AUTO, payloads.REGISTRY) else None
        self._requests = requests
        self._topic = topic
        self._topic_id = UUID(topic["topic_id"])
        self._wanted = wanted
        self._answer_bytes = answer_bytes
        self._turns = asyncio.Semaphore(PARALLEL)

    async def read_all(self, numbers: Sequence[int]) -> list[_Found]:
        """Return the records of each partition, or the error why it cannot be read.

        Raises RequestError if no partition can be read.
        """
        founds = [_Found(number) for number in numbers]
        deadline = asyncio.get_running_loop().time() + READ_S
        errors = await asyncio.gather(*(self._read(found, deadline) for found in founds))
        failed = [error for error in errors if error is not None]
        if len(failed) == len(founds):
            raise failed[0]
        return founds

    async def _read(self, found: _Found, deadline: float) -> RequestError | None:
        try:
            async with self._turns, asyncio.timeout_at(deadline):
                await self._read_partition(found)
        except RequestError as error:
            found.error = f"{error.code.name}: {error.message}" if error.message else error.code.name
            return error
        except TimeoutError:
            found.error = f"not read within {READ_S:g} s; ask again from next"
            if found.next < 0:
                return RequestError(ErrorCode.REQUEST_TIMED_OUT, found.error)
        return None

    async def _read_partition(self, found: _Found) -> None:
        wanted, number = self._wanted, found.partition
        found.log_start = await self._offset(number, _EARLIEST)
        found.high_watermark = await self._offset(number, _LATEST)
        found.next = await self._start(found)
        read_bytes = shown = 0
        while found.next < found.high_watermark and read_bytes < SCAN_BYTES_MAX and shown < self._answer_bytes:
            fetched = await self._requests.fetch(self._topic_id, number, found.next, FETCH_BYTES)
            if not fetched.records_size:
                return
            read_bytes += fetched.records_size
            data = b"".join(fetched.records)
            left = wanted.limit - len(found.records)
            try:
                schemas = await self._schemas(data, found.next, left)
                records, found.next, size = await asyncio.to_thread(
                    _decode, data, found.next, left, wanted, number, self._answer_bytes - shown, schemas
                )
            except FormatError as error:
                raise RequestError(ErrorCode.CORRUPT_MESSAGE, f"at offset {found.next}: {error}") from None
            except RequestError as error:  # of a batch
                raise RequestError(error.code, f"at offset {found.next}: {error.message}") from None
            found.records += records
            shown += size
            if len(found.records) >= wanted.limit:
                return

    async def _schemas(self, data: bytes, start: int, limit: int) -> Schemas:
        """Return the schemas of the records in `data` that may be shown."""
        if self._registry is None:
            return payloads.NO_SCHEMAS
        ids = await asyncio.to_thread(_schema_ids, data, start, limit, self._wanted)
        return await self._registry.find(ids)

    async def _start(self, found: _Found) -> int:
        """Return the first offset to read, within the log; for `LATEST`, so that the newest records are read."""
        wanted = self._wanted
        if wanted.timestamp is not None:
            offset = await self._offset(found.partition, wanted.timestamp)
            return offset if offset >= 0 else found.high_watermark
        if wanted.offset == EARLIEST:
            return found.log_start
        if wanted.offset == LATEST:
            return max(found.log_start, found.high_watermark - wanted.limit)
        assert isinstance(wanted.offset, int)
        return min(max(wanted.offset, found.log_start), found.high_watermark)

    async def _offset(self, number: int, timestamp: int) -> int:
        found = await list_offsets(self._requests, {self._topic["name"]: [number]}, timestamp)
        code, offset = found[self._topic["name"], number]
        check(code, f"the offsets of partition {number} cannot be read now")
        return offset


def _decode(
    data: bytes, start: int, limit: int, wanted: _Wanted, partition: int, bytes_max: int, schemas: Schemas
) -> tuple[list[dict[str, Any]], int, int]:
    """Return the wanted records from `start` on, the offset after the last one that was read, and the bytes shown."""
    records: list[dict[str, Any]] = []
    due, size = start, 0
    for batch in read_batches(memoryview(data)):
        for record in read_records(batch, bytes_max=BATCH_BYTES_MAX):
            if record.offset < due:
                continue
            if len(records) >= limit or size >= bytes_max:
                return records, due, size
            due = record.offset + 1
            if wanted.key is None or record.key == wanted.key:
                shown = _record(record, partition, wanted, schemas, is_control=batch.is_control)
                records.append(shown)
                size += _size(shown)
        due = max(due, batch.next_offset)
    return records, due, size


def _schema_ids(data: bytes, start: int, limit: int, wanted: _Wanted) -> Collection[int]:
    """Return the schema ids in the first `limit` wanted records from `start` on, `SCHEMAS_MAX` at most."""
    ids: dict[int, None] = {}
    count = 0
    for batch in read_batches(memoryview(data)):
        for record in read_records(batch, bytes_max=BATCH_BYTES_MAX):
            if record.offset < start or (wanted.key is not None and record.key != wanted.key):
                continue
            if count >= limit:
                return ids
            count += 1
            for number in map(schema_id, (record.key, record.value)):
                if number is not None and len(ids) < SCHEMAS_MAX:
                    ids[number] = None
    return ids


def _record(
    record: StoredRecord, partition: int, wanted: _Wanted, schemas: Schemas, *, is_control: bool
) -> dict[str, Any]:
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
        "is_control": is_control,
    }


def _header_format(wanted: str) -> str:
    """Return the format for headers, which have no schemas."""
    return payloads.AUTO if wanted == payloads.REGISTRY else wanted


def _size(record: Mapping[str, Any]) -> int:
    """Return about the bytes of a record in the response."""
    parts = [record["key"], record["value"], *(header["value"] for header in record["headers"])]
    return 200 + sum(100 + len(part["text"] or "") for part in parts) + sum(len(h["key"]) for h in record["headers"])


async def list_offsets(
    requests: Requests, topics: Mapping[str, Sequence[int]], timestamp: int
) -> dict[tuple[str, int], tuple[int, int]]:
    """Return the error code and the offset of each partition for `timestamp`, by ListOffsets.

    The timestamp -1 stands for the end of the log, -2 for its start.
    """
    message = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=0,
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
    response = await requests.send(ApiKey.LIST_OFFSETS, 7, message)
    return {
        (topic.name, part.partition_index): (part.error_code, part.offset)
        for topic in response.topics
        for part in topic.partitions
    }

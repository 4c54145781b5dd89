"""Handlers of ``/api/v1/topics/{name}/records``: read records of some partitions, and produce one.

Records are read by Fetch, so they come from the caches of this process or from storage, as for a consumer of the
isolation level that is asked for.  A response is bounded in records, in bytes read and shown, and in time; it has the
``next`` offset of each partition, to continue from.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from aiohttp import web
from kafka.partitioner.default import murmur2

from bmq.console import payloads
from bmq.console.access.access import ACCESS
from bmq.console.operations import NotPossible
from bmq.console.queries import NUMBER, BodyField, Query, choice_of, parse_number, read_body
from bmq.console.records_reader import EARLIEST, LATEST, RecordsReader, Wanted
from bmq.console.state import ConsoleState, TopicFacts
from bmq.core.records.batch import Record, build_batch
from bmq.core.wire.fetch_client import READ_COMMITTED, READ_UNCOMMITTED

RECORDS_MAX = 1_000
PARTITIONS_MAX = 100
"""Most partitions that one request reads."""
SHOWN_BYTES = 16 << 10
SHOWN_BYTES_MAX = 1 << 20
PRODUCE_BYTES_MAX = 2 << 20
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
_LEVELS = {"read_committed": READ_COMMITTED, "read_uncommitted": READ_UNCOMMITTED}
"""Kafka's ``isolation.level`` of a consumer, the default first: a page shows no records that were taken back."""
_PARAMETERS = ("partition", "offset", "timestamp", "key", "key_format", "limit", "format", "bytes", "isolation_level")


class RecordsApi:
    """Handlers of records."""

    def __init__(self, state: ConsoleState) -> None:
        self._state = state

    async def read(self, request: web.Request) -> object:
        """Return records of the requested partitions, by time: the newest first, or from a place the oldest first."""
        topic = find_topic(self._state, request.match_info["name"])
        query = Query(request, _PARAMETERS)
        wanted = _wanted(query)
        numbers = _partitions(query, topic, wanted)
        registry = self._state.registry
        if wanted.format == payloads.REGISTRY and registry is None:
            text = "format=registry: no schema registry is set; schema_registry_url names one"
            raise NotPossible(400, "no_schema_registry", text)
        found = await RecordsReader(request[ACCESS].kafka, topic, wanted, registry).read_all(numbers)
        return {
            "topic": topic["name"],
            "searched": _searched(query, wanted, numbers),
            "records": found.records,
            "partitions": [part.facts() for part in found.partitions],
            "has_more": found.has_more,
        }

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
    """Return the partition that Kafka's default partitioner chooses for ``key``."""
    return int(murmur2(key) & 0x7FFFFFFF) % partitions


def _encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _wanted(query: Query) -> Wanted:
    # The newest records are as many offsets as the limit: a key is seldom among them.
    offset: int | str = query.text("offset", EARLIEST if query.is_given("key") else LATEST)
    if isinstance(offset, str) and offset not in (LATEST, EARLIEST):
        offset = parse_number("offset", offset, 0, _LONG_MAX)
    key = None
    if query.is_given("key"):
        key = payloads.parse(query.text("key"), query.choice("key_format", payloads.WRITTEN_FORMATS), "key")
    return Wanted(
        offset=offset,
        timestamp=query.number("timestamp", 0, 0, _LONG_MAX) if query.is_given("timestamp") else None,
        key=key,
        limit=query.number("limit", 50, 1, RECORDS_MAX),
        format=query.choice("format", payloads.FORMATS),
        shown_bytes=query.number("bytes", SHOWN_BYTES, 1, SHOWN_BYTES_MAX),
        isolation_level=_LEVELS[query.choice("isolation_level", tuple(_LEVELS))],
    )


def _searched(query: Query, wanted: Wanted, numbers: Sequence[int]) -> str:
    """Return the part of the topic that a search for a key covers, in words; empty without a key."""
    if wanted.key is None:
        return ""
    if wanted.is_newest:
        start = f"the newest {wanted.limit} offsets alone"
    elif wanted.timestamp is not None:
        start = "the records from the given time on"
    else:
        start = (
            f"the records from {'the earliest offset' if wanted.offset == EARLIEST else f'offset {wanted.offset}'} on"
        )
    if query.is_given("partition"):
        return f"{start}, of partition {numbers[0]}"
    return (
        f"{start}, of partition {numbers[0]}, where Kafka's default partitioner puts the key; if the producer chose"
        " partitions itself, give partition=N"
    )


def _partitions(query: Query, topic: TopicFacts, wanted: Wanted) -> Sequence[int]:
    """Return the partitions to read: the given partition, else the key's partition by Kafka's clients, else all.

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

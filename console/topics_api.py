"""Handlers of ``/api/v1/topics``: read, create, alter and delete topics, with their configs, partitions and segments.

Changes are Kafka's requests to this process (``console.kafka``), so they have the same effects and refusals as for
Kafka's clients.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from aiohttp import web

from bmq.console.access.access import ACCESS, RequestAccess
from bmq.console.kafka import check
from bmq.console.listing import Columns, cut
from bmq.console.operations import NotPossible, RateFacts
from bmq.console.queries import FLAG, NAMES, NUMBER, PAGE, PAGE_MAX, TEXT, TEXTS, Query, read_body
from bmq.console.records_api import check_partition, find_topic
from bmq.console.state import ConsoleState, ListedTopic
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.messages import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
)

TIMEOUT_MS = 30_000
"""Time-out of changes; Kafka's default of request.timeout.ms."""
RATED_MAX = 10_000
"""Most topics that are sorted by their rates: every proxy must return the rates of all of them, 20 bytes a topic."""
TOO_MANY_TOPICS = "too_many_topics"
_COLUMNS: Columns[ListedTopic] = {
    "name": lambda topic: topic.name,
    "partitions": lambda topic: topic.partitions,
    "replication_factor": lambda topic: topic.replication_factor,
    "configs": lambda topic: len(topic.configs),
}
_RATE_COLUMNS = ("records_in", "bytes_in", "bytes_out")
_TOPIC_RESOURCE = 2
_SET, _DELETE = 0, 1
_SOURCES = {
    1: "DYNAMIC_TOPIC_CONFIG",
    2: "DYNAMIC_BROKER_CONFIG",
    3: "DYNAMIC_DEFAULT_BROKER_CONFIG",
    4: "STATIC_BROKER_CONFIG",
    5: "DEFAULT_CONFIG",
}
_TYPES = {1: "BOOLEAN", 2: "STRING", 3: "INT", 4: "SHORT", 5: "LONG", 6: "DOUBLE", 7: "LIST", 8: "CLASS", 9: "PASSWORD"}
_CREATE = {
    "name": TEXT,
    "partitions": NUMBER.optional(-1),
    "replication_factor": NUMBER.optional(-1),
    "configs": TEXTS.optional({}),
    "dry_run": FLAG.optional(False),
}
_ALTER = {"set": TEXTS.optional({}), "delete": NAMES.optional(()), "dry_run": FLAG.optional(False)}
_ADD = {"partitions": NUMBER, "dry_run": FLAG.optional(False)}


class TopicsApi:
    """Handlers of topics."""

    def __init__(self, state: ConsoleState) -> None:
        self._state = state

    async def list_topics(self, request: web.Request) -> object:
        """Return a page of the topics; with ``rates``, or sorted by them, with their traffic."""
        query = Query(request, ("after", "internal", "limit", "rates", "search", "skip", "sort"))
        order, page = query.ordered_page((*_COLUMNS, *_RATE_COLUMNS), PAGE_MAX)
        matching = await matching_topics(self._state, query, request[ACCESS])
        rates: Mapping[str, RateFacts | None] = {}
        if order.by in _RATE_COLUMNS:
            rates = await self._state.topic_rates(_few_enough(matching))
        columns: Columns[ListedTopic] = {**_COLUMNS, **{by: partial(_rate, rates, by) for by in _RATE_COLUMNS}}
        shown, following = await asyncio.to_thread(cut, matching, columns, order, page)
        if query.flag("rates") and order.by not in _RATE_COLUMNS:
            rates = await self._state.topic_rates([topic.name for topic in shown])
        topics = [facts for topic in shown if (facts := self._state.find_topic(topic.name)) is not None]
        for facts in topics:
            facts["rates"] = rates.get(facts["name"]) if query.flag("rates") else None
        partitions = sum(topic.partitions for topic in matching)
        return {"topics": topics, "total": len(matching), "partitions": partitions, "next": following}

    async def list_sizes(self, request: web.Request) -> object:
        """Return a page of the topics with their bytes on storage, the largest first unless ``sort`` says otherwise."""
        query = Query(request, ("after", "internal", "limit", "search", "skip", "sort"))
        order, page = query.ordered_page((*_COLUMNS, "bytes"), sort="-bytes")
        matching, sizes = await matching_topics(self._state, query, request[ACCESS]), await self._state.topic_sizes()
        columns: Columns[ListedTopic] = {**_COLUMNS, "bytes": lambda topic: sizes.by_topic.get(topic.name)}
        shown, following = await asyncio.to_thread(cut, matching, columns, order, page)
        return {
            "topics": [
                {
                    "name": topic.name,
                    "partitions": topic.partitions,
                    "replication_factor": topic.replication_factor,
                    "is_internal": topic.is_internal,
                    "configs": topic.configs,
                    "bytes": sizes.by_topic.get(topic.name),
                }
                for topic in shown
            ],
            "total": len(matching),
            "bytes": sum(sizes.by_topic.get(topic.name, 0) for topic in matching),
            "partitions_unknown": sizes.partitions_unknown,
            "silent": sizes.silent,
            "next": following,
        }

    async def describe(self, request: web.Request) -> object:
        query = Query(request, ("after", "limit"))
        after = query.number("after", -1, -1, 1 << 31)
        details = await self._state.topic(request.match_info["name"], after, query.number("limit", PAGE, 1, PAGE_MAX))
        if details is None:
            raise NotPossible(404, "unknown_topic", f"there is no topic {request.match_info['name']!r}")
        return details

    async def configs(self, request: web.Request) -> object:
        name = self._name(request)
        Query(request, ())
        resource = DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=_TOPIC_RESOURCE, resource_name=name, configuration_keys=None
        )
        message = DescribeConfigsRequest(resources=[resource], include_synonyms=True, include_documentation=True)
        (result,) = (await request[ACCESS].kafka.send(ApiKey.DESCRIBE_CONFIGS, 4, message)).results
        check(result.error_code, result.error_message)
        return {"topic": name, "configs": [_config(each) for each in result.configs]}

    async def segments(self, request: web.Request) -> object:
        """Return a page of the partition's segment files, by offset, with the datanodes of their blocks."""
        topic = find_topic(self._state, request.match_info["name"])
        number = partition_in(request)
        check_partition(topic, number)
        return await self._state.segments(topic["name"], number, Query(request, ("after", "limit")).page(PAGE))

    # ----------------------------------------------------------------------------------------------------------- acts

    async def create(self, request: web.Request) -> object:
        body = await read_body(request, _CREATE)
        configs = [
            CreateTopicsRequest.CreatableTopic.CreatableTopicConfig(name=name, value=value)
            for name, value in body["configs"].items()
        ]
        topic = CreateTopicsRequest.CreatableTopic(
            name=body["name"], num_partitions=_count(body["partitions"]),
            replication_factor=min(_count(body["replication_factor"]), 32_767), assignments=[], configs=configs,
        )  # fmt: skip
        message = CreateTopicsRequest(topics=[topic], timeout_ms=TIMEOUT_MS, validate_only=body["dry_run"])
        (result,) = (await request[ACCESS].kafka.send(ApiKey.CREATE_TOPICS, 7, message)).topics
        check(result.error_code, result.error_message)
        return {
            "name": result.name,
            "partitions": result.num_partitions,
            "replication_factor": result.replication_factor,
            "dry_run": body["dry_run"],
        }

    async def alter(self, request: web.Request) -> object:
        """Set and delete configs of the topic, all or none.  Its other configs stay."""
        name, body = self._name(request), await read_body(request, _ALTER)
        if not body["set"] and not body["delete"]:
            raise NotPossible(400, "wrong_value", 'nothing to do: name configs in "set" or "delete"')
        configs = [_alterable(key, _SET, value) for key, value in body["set"].items()]
        configs += [_alterable(key, _DELETE, None) for key in body["delete"]]
        resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
            resource_type=_TOPIC_RESOURCE, resource_name=name, configs=configs
        )
        message = IncrementalAlterConfigsRequest(resources=[resource], validate_only=body["dry_run"])
        (result,) = (await request[ACCESS].kafka.send(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, message)).responses
        check(result.error_code, result.error_message)
        return {"topic": name, "dry_run": body["dry_run"]}

    async def add_partitions(self, request: web.Request) -> object:
        """Raise the topic's number of partitions to ``partitions`` in all."""
        name, body = self._name(request), await read_body(request, _ADD)
        topic = CreatePartitionsRequest.CreatePartitionsTopic(
            name=name, count=_count(body["partitions"]), assignments=None
        )
        message = CreatePartitionsRequest(topics=[topic], timeout_ms=TIMEOUT_MS, validate_only=body["dry_run"])
        (result,) = (await request[ACCESS].kafka.send(ApiKey.CREATE_PARTITIONS, 3, message)).results
        check(result.error_code, result.error_message)
        return {"topic": name, "partitions": body["partitions"], "dry_run": body["dry_run"]}

    async def delete(self, request: web.Request) -> object:
        """Delete the topic and all of its records."""
        name = self._name(request)
        topic = DeleteTopicsRequest.DeleteTopicState(name=name, topic_id=None)
        message = DeleteTopicsRequest(topics=[topic], timeout_ms=TIMEOUT_MS)
        (result,) = (await request[ACCESS].kafka.send(ApiKey.DELETE_TOPICS, 6, message)).responses
        check(result.error_code, result.error_message)
        return {"topic": name}

    def _name(self, request: web.Request) -> str:
        return find_topic(self._state, request.match_info["name"])["name"]


async def matching_topics(state: ConsoleState, query: Query, access: RequestAccess) -> Sequence[ListedTopic]:
    """Return the topics that the client may describe and that match ``search`` and ``internal``, in any order."""
    search, has_internal = query.text("search").lower(), query.flag("internal", default=True)
    known = await access.visible(state.topics(), lambda topic: access.may_describe_topic(topic.name))
    if not search and has_internal:
        return known

    def matching() -> Sequence[ListedTopic]:
        return [each for each in known if search in each.name.lower() and (has_internal or not each.is_internal)]

    return await asyncio.to_thread(matching)


def _few_enough(topics: Sequence[ListedTopic]) -> Sequence[str]:
    """Return the names of ``topics``.  Raises NotPossible (400) if there are too many to read their rates."""
    if len(topics) > RATED_MAX:
        text = f"{len(topics)} topics match, and up to {RATED_MAX} are sorted by their rates"
        raise NotPossible(400, TOO_MANY_TOPICS, f"{text}: search for some, or sort by another column")
    return [topic.name for topic in topics]


def _rate(rates: Mapping[str, RateFacts | None], by: str, topic: ListedTopic) -> float | None:
    of_topic: Mapping[str, Any] | None = rates.get(topic.name)
    return None if of_topic is None else of_topic[by]


def partition_in(request: web.Request) -> int:
    """Return the partition's number in the path.  Raises NotPossible (404) if it is not a number."""
    text = request.match_info["partition"]
    if not (text.isascii() and text.isdecimal()) or len(text) > 10:
        raise NotPossible(404, "unknown_partition", f"{text[:80]!r} is not a partition's number")
    return int(text)


def _count(number: int) -> int:
    """Return ``number``, at most the largest of 32 bits, which the handler refuses as too many."""
    return min(number, (1 << 31) - 1)


def _alterable(name: str, operation: int, value: str | None) -> Any:
    return IncrementalAlterConfigsRequest.AlterConfigsResource.AlterableConfig(
        name=name, config_operation=operation, value=value
    )


def _config(config: Any) -> Mapping[str, Any]:
    return {
        "name": config.name,
        "value": config.value,
        "source": _SOURCES.get(config.config_source, str(config.config_source)),
        "is_read_only": config.read_only,
        "is_sensitive": config.is_sensitive,
        "type": _TYPES.get(config.config_type, str(config.config_type)),
        "documentation": config.documentation,
        "synonyms": [
            {"name": each.name, "value": each.value, "source": _SOURCES.get(each.source, str(each.source))}
            for each in config.synonyms
        ],
    }

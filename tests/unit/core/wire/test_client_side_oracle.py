"""Produce and Fetch as BMQ's client writes them, read by kio and kafka-python, and responses that kio writes as a
server, read by BMQ."""

from __future__ import annotations

import random
from typing import Any
from uuid import UUID

import pytest

from bmq.core.wire.fetch import ABORTED_TAG, FetchPartition
from bmq.core.wire.fetch_client import FETCH_VERSION, decode_fetch_response, encode_fetch_request
from bmq.core.wire.primitives import tags
from bmq.core.wire.produce_client import PRODUCE_VERSION, decode_produce_response, encode_produce_request
from tests.unit.core.wire import oracle
from tests.unit.core.wire.profile import with_random


def read_back(name: str, version: int, data: bytes) -> oracle.Values:
    """Return the values that kafka-python decodes, after kio has read all of ``data`` too."""
    oracle.kio_read(name, version, data)
    kind = oracle.kafka_class(name)
    return oracle.of_kafka(kind, version, kind.decode(data, version=version))


@pytest.mark.slow
@with_random(few=60, many=2_000)
def test_produce_requests(rng: random.Random) -> None:
    values = oracle.sample(rng, "ProduceRequest", PRODUCE_VERSION)
    values["transactional_id"] = None  # a client of BMQ sends none
    topics = [
        (topic["topic_id"], [(each["index"], memoryview(each["records"] or b"")) for each in topic["partition_data"]])
        for topic in values["topic_data"]
    ]
    data = b"".join(encode_produce_request(values["acks"], values["timeout_ms"], topics))
    for topic in values["topic_data"]:
        for each in topic["partition_data"]:
            each["records"] = each["records"] or b""
    assert read_back("ProduceRequest", PRODUCE_VERSION, data) == values


@pytest.mark.slow
@with_random(few=60, many=2_000)
def test_produce_responses(rng: random.Random) -> None:
    values = oracle.sample(rng, "ProduceResponse", PRODUCE_VERSION)
    data = oracle.kio_bytes("ProduceResponse", PRODUCE_VERSION, values)
    decoded = decode_produce_response(memoryview(data))
    fields = (
        ("partition", "index"),
        ("error_code", "error_code"),
        ("base_offset", "base_offset"),
        ("append_time", "log_append_time_ms"),
        ("log_start", "log_start_offset"),
        ("error_message", "error_message"),
    )
    assert [(topic.topic_id, _rows(topic.partitions, [ours for ours, _ in fields])) for topic in decoded] == [
        (topic["topic_id"], _picked(topic["partition_responses"], [theirs for _, theirs in fields]))
        for topic in values["responses"]
    ]


@pytest.mark.slow
@with_random(few=60, many=2_000)
def test_fetch_requests(rng: random.Random) -> None:
    values = oracle.sample(rng, "FetchRequest", FETCH_VERSION)
    wanted = [
        (
            topic["topic_id"],
            [
                FetchPartition(
                    each["partition"],
                    each["current_leader_epoch"],
                    each["fetch_offset"],
                    each["last_fetched_epoch"],
                    each["partition_max_bytes"],
                )
                for each in topic["partitions"]
            ],
        )
        for topic in values["topics"]
    ]
    forgotten: list[tuple[UUID, list[int]]] = [
        (topic["topic_id"], topic["partitions"]) for topic in values["forgotten_topics_data"]
    ]
    names = ("session_id", "session_epoch", "max_wait_ms", "min_bytes", "max_bytes")
    limits = {name: values[name] for name in names}
    data = b"".join(encode_fetch_request(topics=wanted, forgotten=forgotten, **limits))
    tag = tags([(ABORTED_TAG, b"")])
    assert data.endswith(tag)
    read = read_back("FetchRequest", FETCH_VERSION, data[: -len(tag)] + tags([]))  # kio refuses tags that it lacks
    assert {name: read[name] for name in names} == limits
    assert (read["isolation_level"], read["rack_id"], read["cluster_id"]) == (0, "", None)
    columns = ["partition", "current_leader_epoch", "fetch_offset", "last_fetched_epoch", "partition_max_bytes"]
    assert [(topic["topic_id"], _picked(topic["partitions"], columns)) for topic in read["topics"]] == wanted
    assert [(topic["topic_id"], topic["partitions"]) for topic in read["forgotten_topics_data"]] == forgotten


@pytest.mark.slow
@with_random(few=60, many=2_000)
def test_fetch_responses(rng: random.Random) -> None:
    values = oracle.sample(rng, "FetchResponse", FETCH_VERSION)
    body = memoryview(oracle.kio_bytes("FetchResponse", FETCH_VERSION, values))
    decoded = decode_fetch_response(body)
    assert (decoded.error_code, decoded.session_id) == (values["error_code"], values["session_id"])
    fields = (
        ("partition", "partition_index"),
        ("error_code", "error_code"),
        ("high_watermark", "high_watermark"),
        ("last_stable_offset", "last_stable_offset"),
        ("log_start", "log_start_offset"),
    )
    expected = values["responses"]
    assert [(topic.topic_id, _rows(topic.partitions, [ours for ours, _ in fields])) for topic in decoded.topics] == [
        (topic["topic_id"], _picked(topic["partitions"], [theirs for _, theirs in fields])) for topic in expected
    ]
    assert [[b"".join(each.records) for each in topic.partitions] for topic in decoded.topics] == [
        [each["records"] or b"" for each in topic["partitions"]] for topic in expected
    ]
    assert [[each.aborted for each in topic.partitions] for topic in decoded.topics] == [
        [_transactions(each["aborted_transactions"]) for each in topic["partitions"]] for topic in expected
    ]


def _transactions(rows: Any) -> list[tuple[int, int]] | None:
    return None if rows is None else [(each["producer_id"], each["first_offset"]) for each in rows]


def _rows(objects: Any, names: list[str]) -> list[tuple[Any, ...]]:
    return [tuple(getattr(each, name) for name in names) for each in objects]


def _picked(rows: Any, names: list[str]) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in names) for row in rows]

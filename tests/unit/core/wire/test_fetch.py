"""Fetch by hand says the same, byte for byte, as kio's and kafka-python's codecs."""

from __future__ import annotations

import random
import struct
from typing import Any
from uuid import UUID

import pytest

from bmq.core.errors import FormatError
from bmq.core.wire.fetch import FetchedPartition, FetchedTopic, FetchPartition, encode_fetch, parse_fetch
from bmq.core.wire.primitives import NodeEndpoint
from tests.unit.core.wire import oracle
from tests.unit.core.wire.profile import with_random

pytestmark = pytest.mark.slow

VERSIONS = oracle.versions("Fetch")


@with_random(few=60, many=2_000)
@pytest.mark.parametrize("version", VERSIONS)
def test_requests(version: int, rng: random.Random) -> None:
    values = oracle.sample(rng, "FetchRequest", version)
    data = oracle.kio_bytes("FetchRequest", version, values)
    asked = parse_fetch(memoryview(bytearray(data)), version)
    for name in ("max_wait_ms", "min_bytes", "max_bytes", "isolation_level"):
        assert getattr(asked, name) == values[name]
    assert asked.session_id == values.get("session_id", 0)
    assert asked.session_epoch == values.get("session_epoch", -1)
    assert asked.rack_id == values.get("rack_id", "")
    assert asked.cluster_id == values.get("cluster_id")
    state = values.get("replica_state") or {"replica_id": values.get("replica_id", -1), "replica_epoch": -1}
    assert (asked.replica_id, asked.replica_epoch) == (state["replica_id"], state["replica_epoch"])
    key, other = ("topic", "topic_id") if version < 13 else ("topic_id", "topic")
    identity = {"topic": "name", "topic_id": "topic_id"}
    for topics, expected in (
        (asked.topics, values["topics"]),
        (asked.forgotten, values.get("forgotten_topics_data", [])),
    ):
        assert [getattr(topic, identity[key]) for topic in topics] == [topic[key] for topic in expected]
        assert all(getattr(topic, identity[other]) is None for topic in topics)
    assert [topic.partitions for topic in asked.topics] == [
        [
            FetchPartition(
                each["partition"],
                each.get("current_leader_epoch", -1),
                each["fetch_offset"],
                each.get("last_fetched_epoch", -1),
                each["partition_max_bytes"],
            )
            for each in topic["partitions"]
        ]
        for topic in values["topics"]
    ]
    assert [list(topic.partitions) for topic in asked.forgotten] == [
        topic["partitions"] for topic in values.get("forgotten_topics_data", [])
    ]


@with_random(few=30, many=1_000)
@pytest.mark.parametrize("version", VERSIONS)
def test_kafka_python_writes_the_same_requests(version: int, rng: random.Random) -> None:
    values = oracle.sample(rng, "FetchRequest", version)
    assert oracle.kio_bytes("FetchRequest", version, values) == oracle.kafka_bytes("FetchRequest", version, values)


def test_tagged_partitions_among_plain_ones() -> None:
    """The quick way, for partitions without tags, must not be taken when any has some."""
    plain = {
        "partition": 1,
        "current_leader_epoch": 2,
        "fetch_offset": 3,
        "last_fetched_epoch": 4,
        "log_start_offset": -1,
        "partition_max_bytes": 5,
        "replica_directory_id": UUID(int=0),
        "high_watermark": (1 << 63) - 1,
    }
    tagged = {**plain, "replica_directory_id": UUID(int=7), "high_watermark": 9}
    for partitions in ([plain] * 3, [plain, tagged, plain], [tagged, plain], [plain, tagged], [tagged] * 2):
        values = {
            "cluster_id": None,
            "replica_state": None,
            "max_wait_ms": 1,
            "min_bytes": 1,
            "max_bytes": 1,
            "isolation_level": 0,
            "session_id": 0,
            "session_epoch": -1,
            "topics": [{"topic_id": UUID(int=1), "partitions": partitions}],
            "forgotten_topics_data": [],
            "rack_id": "a",
        }
        asked = parse_fetch(memoryview(oracle.kio_bytes("FetchRequest", 18, values)), 18)
        assert asked.topics[0].partitions == [FetchPartition(1, 2, 3, 4, 5)] * len(partitions)
        assert asked.rack_id == "a"


def pieces(rng: random.Random, records: bytes) -> list[memoryview]:
    """Return the records as a cache holds them: several views, some of them empty."""
    cuts = sorted(rng.randint(0, len(records)) for _ in range(rng.randrange(3)))
    view = memoryview(records)
    return [view[start:end] for start, end in zip([0, *cuts], [*cuts, len(records)], strict=True)]


def fetched(rng: random.Random, values: oracle.Values) -> list[FetchedTopic]:
    def pair(struct_values: Any, *names: str) -> tuple[int, int] | None:
        return (struct_values[names[0]], struct_values[names[1]]) if struct_values else None

    return [
        FetchedTopic(
            topic.get("topic"),
            topic.get("topic_id"),
            [
                FetchedPartition(
                    each["partition_index"],
                    each["error_code"],
                    each["high_watermark"],
                    each["last_stable_offset"],
                    each.get("log_start_offset", 99),  # not sent in versions that lack it
                    pieces(rng, each["records"]),
                    len(each["records"]),
                    None
                    if each["aborted_transactions"] is None
                    else [(one["producer_id"], one["first_offset"]) for one in each["aborted_transactions"]],
                    each.get("preferred_read_replica", 99),
                    pair(each.get("diverging_epoch"), "epoch", "end_offset"),
                    pair(each.get("current_leader"), "leader_id", "leader_epoch"),
                )
                for each in topic["partitions"]
            ],
        )
        for topic in values["responses"]
    ]


def response_values(rng: random.Random, version: int) -> oracle.Values:
    """Return sample values as a broker sends them: records are empty rather than null, and no snapshot is referred
    to."""
    values = oracle.sample(rng, "FetchResponse", version)
    for topic in values["responses"]:
        for each in topic["partitions"]:
            each["records"] = each["records"] or b""
            if version >= 12:
                each["snapshot_id"] = None
    return values


@with_random(few=60, many=2_000)
@pytest.mark.parametrize("version", VERSIONS)
def test_responses(version: int, rng: random.Random) -> None:
    values = response_values(rng, version)
    response = encode_fetch(
        version,
        77,
        fetched(rng, values),
        error_code=values.get("error_code", 0),
        session_id=values.get("session_id", 0),
        throttle_ms=values["throttle_time_ms"],
        endpoints=[NodeEndpoint(**node) for node in values.get("node_endpoints", ())],
    )
    expected = oracle.kio_bytes("FetchResponse", version, values)
    assert expected == oracle.kafka_bytes("FetchResponse", version, values)
    data = b"".join(response.buffers)
    assert data == struct.pack(">i", 77) + b"\0" * (version >= 12) + expected
    assert response.size == len(data)


@pytest.mark.parametrize("version", VERSIONS)
def test_record_buffers_go_out_untouched(version: int) -> None:
    released: list[bool] = []
    records = [bytearray(b"batch %d" % n) for n in range(6)]
    topics = [
        FetchedTopic("t", UUID(int=1), [FetchedPartition(n, 0, 9, 9, 0, records[2 * n : 2 * n + 2]) for n in range(3)])
    ]
    response = encode_fetch(version, 1, topics, release=lambda: released.append(True))
    assert [buffer for buffer in response.buffers if any(buffer is each for each in records)] == records
    assert len(response.buffers) == len(records) + 4 - (version < 12)  # nothing follows the last records before 12
    assert response.release is not None
    response.release()
    assert released == [True]


def test_partitions_without_records_take_one_buffer() -> None:
    topics = [FetchedTopic("t", None, [FetchedPartition(n) for n in range(100)])]
    assert len(encode_fetch(12, 1, topics).buffers) == 1


def test_golden_request_version_4() -> None:
    """Fields of the protocol guide: replica_id, max_wait_ms, min_bytes, max_bytes, isolation_level, topics."""
    text = "ffffffff 000001f4 00000001 03200000 01 00000001 0001 74 00000001 00000003 0000000000000007 00100000"
    asked = parse_fetch(memoryview(bytes.fromhex(text)), 4)
    assert (asked.replica_id, asked.max_wait_ms, asked.min_bytes, asked.max_bytes) == (-1, 500, 1, 50 << 20)
    assert (asked.isolation_level, asked.session_id, asked.session_epoch) == (1, 0, -1)
    assert [(topic.name, topic.partitions) for topic in asked.topics] == [
        ("t", [FetchPartition(3, -1, 7, -1, 1 << 20)])
    ]


def test_golden_response_version_12() -> None:
    partition = FetchedPartition(2, 0, 7, 6, 5, [b"RECORDS"], current_leader=(3, 4))
    data = b"".join(encode_fetch(12, 1, [FetchedTopic("t", None, [partition])], session_id=9).buffers)
    assert data == bytes.fromhex(
        "00000001 00"  # correlation id, tagged fields
        "00000000 0000 00000009"  # throttle time, error, session
        "02 02 74 02"  # one topic "t" of one partition
        "00000002 0000 0000000000000007 0000000000000006 0000000000000005"
        "00 ffffffff"  # null aborted transactions, no preferred replica
        "08 5245434f524453"  # records
        "01 01 09 00000003 00000004 00"  # tag 1, current leader
        "00 00"  # tagged fields of the topic and of the response
    )


HEAD_4 = "ffffffff 000001f4 00000001 03200000 00"
HEAD_12 = "ffffffff 000001f4 00000001 03200000 00 00000000 ffffffff"


@pytest.mark.parametrize(
    ("version", "text"),
    [
        (4, HEAD_4 + "ffffffff"),  # null topics
        (4, HEAD_4 + "7fffffff"),  # two billion topics
        (4, HEAD_4 + "00000001 ffff 00000000"),  # a topic without a name
        (4, HEAD_4 + "00000001 0001 74 00000002 00000003 0000000000000007 00100000"),  # one partition of two
        (12, HEAD_12 + "ffffffff0f"),  # four billion topics
        (12, HEAD_12 + "02 02 74 01 00 02 02 74 ffffffff0f"),  # four billion forgotten partitions
        (12, HEAD_12 + "01 01 00"),  # a null rack
        (12, HEAD_12 + "01 01 01 01 00 03 026174"),  # a cluster id shorter than its tagged field
        (13, HEAD_12 + "02 0011223344556677"),  # a topic id that is cut short
        (15, HEAD_12[8:] + "01 01 01 01 01 04 00000001"),  # a replica state that is cut short
    ],
)
def test_malformed(version: int, text: str) -> None:
    with pytest.raises(FormatError):
        parse_fetch(memoryview(bytes.fromhex(text)), version)

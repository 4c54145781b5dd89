"""Produce by hand says the same, byte for byte, as kio's and kafka-python's codecs."""

from __future__ import annotations

import random
import struct
from uuid import UUID

import pytest

from bmq.core.errors import FormatError
from bmq.core.wire.primitives import NodeEndpoint
from bmq.core.wire.produce import PartitionAnswer, TopicAnswer, encode_produce, expects_response, parse_produce
from tests.unit.core.wire import oracle
from tests.unit.core.wire.profile import with_random

pytestmark = pytest.mark.slow

VERSIONS = oracle.versions("Produce")


@with_random(few=60, many=2_000)
@pytest.mark.parametrize("version", VERSIONS)
def test_requests(version: int, rng: random.Random) -> None:
    values = oracle.sample(rng, "ProduceRequest", version)
    data = oracle.kio_bytes("ProduceRequest", version, values)
    assert data == oracle.kafka_bytes("ProduceRequest", version, values)
    asked = parse_produce(memoryview(bytearray(data)), version)
    assert {
        "transactional_id": asked.transactional_id,
        "acks": asked.acks,
        "timeout_ms": asked.timeout_ms,
        "topic_data": [
            {
                **({"name": topic.name} if version < 13 else {"topic_id": topic.topic_id}),
                "partition_data": [{"index": index, "records": records} for index, records in topic.partitions],
            }
            for topic in asked.topics
        ],
    } == values
    assert all((topic.name is None) == (version >= 13) == (topic.topic_id is not None) for topic in asked.topics)


def in_frame(body: bytes, version: int, client_id: bytes | None, *, key: int = 0) -> memoryview:
    """Return the frame of a request, without its size; its flexible header has a tagged field."""
    size = -1 if client_id is None else len(client_id)
    head = struct.pack(">hhih", key, version, 7, size) + (client_id or b"")
    return memoryview(head + (b"\x01\x05\x01x" if version >= 9 else b"") + body)


@with_random(few=60, many=2_000)
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("acks", [0, 1, -1])
def test_a_request_with_acks_0_expects_no_response(version: int, acks: int, rng: random.Random) -> None:
    values = {**oracle.sample(rng, "ProduceRequest", version), "acks": acks}
    body = oracle.kio_bytes("ProduceRequest", version, values)
    for client_id in (None, b"", b"a-producer"):
        assert expects_response(in_frame(body, version, client_id)) is (acks != 0)
        assert expects_response(in_frame(body, version, client_id, key=1))


@pytest.mark.parametrize(
    "data", [b"", b"\0", bytes(7), bytes(9), b"\0\0\0\x09" + bytes(4) + b"\x7f\xff", bytes(3) + b"\x0b" + b"\xff" * 40]
)
def test_a_malformed_request_expects_a_response(data: bytes) -> None:
    assert expects_response(memoryview(data))


def test_records_are_writable_slices_of_the_frame() -> None:
    values = {
        "transactional_id": None,
        "acks": -1,
        "timeout_ms": 30_000,
        "topic_data": [{"name": "t", "partition_data": [{"index": 0, "records": b"RECORDS"}]}],
    }
    frame = bytearray(oracle.kio_bytes("ProduceRequest", 9, values))
    ((_, records),) = parse_produce(memoryview(frame), 9).topics[0].partitions
    assert records is not None
    records[:3] = b"rec"
    assert b"recORDS" in frame


def answers(values: oracle.Values, version: int) -> list[TopicAnswer]:
    return [
        TopicAnswer(
            topic.get("name"),
            topic.get("topic_id"),
            [
                PartitionAnswer(
                    each["index"],
                    each["error_code"],
                    each["base_offset"],
                    each["log_append_time_ms"],
                    each.get("log_start_offset", 99),  # not sent in versions that lack it, and so the others
                    each.get("error_message", None if version >= 8 else "not sent"),
                    [
                        (error["batch_index"], error["batch_index_error_message"])
                        for error in each.get("record_errors", ())
                    ],
                    (leader["leader_id"], leader["leader_epoch"]) if (leader := each.get("current_leader")) else None,
                )
                for each in topic["partition_responses"]
            ],
        )
        for topic in values["responses"]
    ]


@with_random(few=60, many=2_000)
@pytest.mark.parametrize("version", VERSIONS)
def test_responses(version: int, rng: random.Random) -> None:
    values = oracle.sample(rng, "ProduceResponse", version)
    endpoints = [NodeEndpoint(**node) for node in values.get("node_endpoints", ())]
    response = encode_produce(version, 77, answers(values, version), values["throttle_time_ms"], endpoints)
    expected = oracle.kio_bytes("ProduceResponse", version, values)
    assert expected == oracle.kafka_bytes("ProduceResponse", version, values)
    data = b"".join(response.buffers)
    assert data == struct.pack(">i", 77) + b"\0" * (version >= 9) + expected
    assert response.size == len(data)


@pytest.mark.parametrize("version", VERSIONS)
def test_what_a_version_lacks_is_left_out(version: int) -> None:
    topics = [TopicAnswer("t", UUID(int=1), [PartitionAnswer(0, 87, -1, -1, -1, "no", [(3, None)], (1, 2))])]
    data = b"".join(encode_produce(version, 1, topics, 0, [NodeEndpoint(1, "h", 9092)]).buffers)
    entity = oracle.kio_read("ProduceResponse", version, data[5 if version >= 9 else 4 :])
    (partition,) = entity.responses[0].partition_responses
    assert partition.error_code == 87
    if version >= 8:
        assert partition.error_message == "no"
        assert [(each.batch_index, each.batch_index_error_message) for each in partition.record_errors] == [(3, None)]
    if version >= 10:
        assert (partition.current_leader.leader_id, partition.current_leader.leader_epoch) == (1, 2)
        assert entity.node_endpoints[0].host == "h"


def test_golden_request_version_3() -> None:
    """Fields of the protocol guide: transactional_id, acks, timeout_ms, [name, [index, records]]."""
    text = "ffff ffff 00001388 00000001 0001 74 00000002 00000000 00000003 616263 00000001 ffffffff"
    asked = parse_produce(memoryview(bytes.fromhex(text)), 3)
    assert (asked.transactional_id, asked.acks, asked.timeout_ms) == (None, -1, 5_000)
    assert [(topic.name, topic.partitions) for topic in asked.topics] == [("t", [(0, memoryview(b"abc")), (1, None)])]


def test_golden_response_version_9() -> None:
    data = b"".join(encode_produce(9, 1, [TopicAnswer("t", None, [PartitionAnswer(2, 0, 5, -1, 3)])]).buffers)
    assert data == bytes.fromhex(
        "00000001 00"  # correlation id, tagged fields
        "02 02 74 02"  # one topic "t" of one partition
        "00000002 0000 0000000000000005 ffffffffffffffff 0000000000000003"
        "01 00 00"  # no record errors, null message, tagged fields
        "00 00000000 00"  # tagged fields of the topic, throttle time, tagged fields
    )


@pytest.mark.parametrize(
    ("version", "text"),
    [
        (3, "ffff ffff 00001388 ffffffff"),  # null topics
        (3, "ffff ffff 00001388 7fffffff"),  # two billion topics
        (3, "ffff ffff 00001388 00000001 ffff 00000000"),  # a topic without a name
        (3, "ffff ffff 00001388 00000001 0001 74 7fffffff 00000000"),  # two billion partitions
        (3, "ffff ffff 00001388 00000001 0001 74 00000001 00000000 7fffffff 61"),  # records past the end
        (9, "00 ffff 00001388 02 02 74 02 00000000 8080808010 00 00 00"),  # records of four gigabytes
        (9, "00 ffff 00001388 02 02 74 02 00000000 00 ffffffffff"),  # a varint without end
        (13, "00 ffff 00001388 02 0011223344556677"),  # a topic id that is cut short
    ],
)
def test_malformed(version: int, text: str) -> None:
    with pytest.raises(FormatError):
        parse_produce(memoryview(bytes.fromhex(text)), version)

"""Produce and Fetch as one process asks another: what one side writes the other reads, and cut bytes are refused."""

from __future__ import annotations

import uuid

import pytest

from bmq.core.errors import ErrorCode, FormatError
from bmq.core.net.request import Response
from bmq.core.wire.fetch import FetchedPartition, FetchedTopic, FetchPartition, encode_fetch, parse_fetch
from bmq.core.wire.fetch_client import FETCH_VERSION, decode_fetch_response, encode_fetch_request
from bmq.core.wire.primitives import response_header
from bmq.core.wire.produce import PartitionAnswer, TopicAnswer, encode_produce, parse_produce
from bmq.core.wire.produce_client import PRODUCE_VERSION, decode_produce_response, encode_produce_request

ONE, TWO = uuid.UUID(int=1), uuid.UUID(int=2)


def body_of(answer: Response) -> memoryview:
    return memoryview(b"".join(answer.buffers)[len(response_header(0, flexible=True)) :])


def test_produce_requests_keep_their_records_buffers() -> None:
    records = [memoryview(bytes([number]) * size) for number, size in enumerate((1, 200, 70_000))]
    topics = [(ONE, [(3, records[0]), (4, records[1]), (4, records[1])]), (TWO, [(0, records[2])])]
    buffers = encode_produce_request(-1, 500, topics, [(ONE, 4)])
    assert all(any(buffer is each for buffer in buffers) for each in records)
    asked = parse_produce(memoryview(b"".join(buffers)), PRODUCE_VERSION)
    assert (asked.acks, asked.timeout_ms, asked.transactional_id) == (-1, 500, None)
    assert [(topic.topic_id, topic.partitions) for topic in asked.topics] == topics
    assert [topic.restarts for topic in asked.topics] == [{1}, ()], "the first of the two, by its position"
    assert asked.held_ms == -1


@pytest.mark.parametrize("held_ms", [0, 1, 5_000])
def test_a_produce_request_says_how_long_it_may_yet_be_held(held_ms: int) -> None:
    topics = [(ONE, [(3, memoryview(b"x"))])]
    body = memoryview(b"".join(encode_produce_request(-1, 500, topics, (), held_ms)))
    assert parse_produce(body, PRODUCE_VERSION).held_ms == held_ms


def test_produce_responses() -> None:
    answers = [
        TopicAnswer(
            None,
            ONE,
            [
                PartitionAnswer(0, ErrorCode.NONE, 12, 34, 5),
                PartitionAnswer(
                    1, ErrorCode.INVALID_RECORD, error_message="no", batch_index_errors=[(0, "x"), (1, None)]
                ),
            ],
        ),
        TopicAnswer(None, TWO, [PartitionAnswer(7, ErrorCode.NOT_LEADER_OR_FOLLOWER, current_leader=(3, 4))]),
    ]
    body = body_of(encode_produce(PRODUCE_VERSION, 0, answers))
    told = decode_produce_response(body)
    assert [topic.topic_id for topic in told] == [ONE, TWO]
    fields = ("partition", "error_code", "base_offset", "append_time", "log_start", "error_message")
    assert [[tuple(getattr(each, name) for name in fields) for each in topic.partitions] for topic in told] == [
        [(0, 0, 12, 34, 5, None), (1, ErrorCode.INVALID_RECORD, -1, -1, -1, "no")],
        [(7, ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, -1, -1, None)],
    ]
    for size in range(len(body)):
        with pytest.raises(FormatError):
            decode_produce_response(body[:size])


def test_fetch_requests() -> None:
    wanted = [FetchPartition(3, 5, 1 << 40, -1, 1 << 20), FetchPartition(4, -1, 0, -1, 7)]
    buffers = encode_fetch_request(
        session_id=9,
        session_epoch=2,
        topics=[(ONE, wanted)],
        forgotten=[(TWO, [1, 2])],
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=1 << 23,
    )
    asked = parse_fetch(memoryview(b"".join(buffers)), FETCH_VERSION)
    assert [(topic.topic_id, topic.partitions) for topic in asked.topics] == [(ONE, wanted)]
    assert [(topic.topic_id, list(topic.partitions)) for topic in asked.forgotten] == [(TWO, [1, 2])]
    assert (asked.session_id, asked.session_epoch, asked.replica_id, asked.isolation_level) == (9, 2, -1, 0)
    assert (asked.max_wait_ms, asked.min_bytes, asked.max_bytes) == (500, 1, 1 << 23)


def test_fetch_responses_are_views_of_their_frame() -> None:
    topics = [
        FetchedTopic(
            None,
            ONE,
            [
                FetchedPartition(0, 0, 30, 29, 2, [b"abc", b"de"]),
                FetchedPartition(1, ErrorCode.NOT_LEADER_OR_FOLLOWER, diverging_epoch=(1, 2)),
                FetchedPartition(2, 0, 8, 8, 0, [b"f"], aborted=[(4, 5), (6, 7)]),
            ],
        )
    ]
    body = body_of(encode_fetch(FETCH_VERSION, 0, topics, session_id=77))
    told = decode_fetch_response(body)
    assert (told.error_code, told.session_id, told.topics[0].topic_id) == (0, 77, ONE)
    fields = ("partition", "error_code", "high_watermark", "last_stable_offset", "log_start")
    assert [tuple(getattr(each, name) for name in fields) for each in told.topics[0].partitions] == [
        (0, 0, 30, 29, 2),
        (1, ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, -1, -1),
        (2, 0, 8, 8, 0),
    ]
    assert [[bytes(data) for data in each.records] for each in told.topics[0].partitions] == [[b"abcde"], [], [b"f"]]
    (records,) = told.topics[0].partitions[0].records
    assert isinstance(records, memoryview)
    assert records.obj is body.obj
    for size in range(len(body)):
        with pytest.raises(FormatError):
            decode_fetch_response(body[:size])

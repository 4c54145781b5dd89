"""Fetch as one process sends it to another: the other reads what was written, and cut bytes are refused."""

from __future__ import annotations

import uuid

import pytest

from bmq.core.errors import ErrorCode, FormatError
from bmq.core.net.request import Response
from bmq.core.wire.fetch import FetchedPartition, FetchedTopic, FetchPartition, encode_fetch, parse_fetch
from bmq.core.wire.fetch_client import FETCH_VERSION, READ_COMMITTED, decode_fetch_response, encode_fetch_request
from bmq.core.wire.primitives import response_header

ONE = uuid.UUID(int=1)


TWO = uuid.UUID(int=2)


def body_of(response: Response) -> memoryview:
    return memoryview(b"".join(response.buffers)[len(response_header(0, flexible=True)) :])


def test_fetch_requests_are_read_as_written() -> None:
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
    assert asked.wants_aborted


def test_a_reader_of_committed_records_asks_for_kafkas_list_alone() -> None:
    buffers = encode_fetch_request(
        session_id=0,
        session_epoch=-1,
        topics=[],
        forgotten=[],
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=1 << 23,
        isolation_level=READ_COMMITTED,
    )
    asked = parse_fetch(memoryview(b"".join(buffers)), FETCH_VERSION)
    assert (asked.isolation_level, asked.wants_aborted) == (1, False)


def test_whole_aborted_transactions_come_beside_other_tags_and_a_consumer_asks_for_none() -> None:
    parts = [
        FetchedPartition(0, 0, 9, 9, 0, [b"abc"], whole_aborted=b"x" * 300, current_leader=(1, 2)),
        FetchedPartition(1, 0, 9, 9, 0, [b"de"], diverging_epoch=(1, 2)),
        FetchedPartition(2, 0, 9, 9, 0, whole_aborted=b"y"),
    ]
    response = decode_fetch_response(body_of(encode_fetch(FETCH_VERSION, 0, [FetchedTopic(None, ONE, parts)])))
    assert [each.whole_aborted for each in response.topics[0].partitions] == [b"x" * 300, b"", b"y"]
    consumer = b"\0\0\0\0\0\0\0\1\0\0\0\1\0" + b"\0\0\0\0\xff\xff\xff\xff" + b"\1\1\1\0"
    assert not parse_fetch(memoryview(consumer), FETCH_VERSION).wants_aborted


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
    decoded = decode_fetch_response(body)
    assert (decoded.error_code, decoded.session_id, decoded.topics[0].topic_id) == (0, 77, ONE)
    fields = ("partition", "error_code", "high_watermark", "last_stable_offset", "log_start")
    assert [tuple(getattr(each, name) for name in fields) for each in decoded.topics[0].partitions] == [
        (0, 0, 30, 29, 2),
        (1, ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, -1, -1),
        (2, 0, 8, 8, 0),
    ]
    assert [[bytes(data) for data in each.records] for each in decoded.topics[0].partitions] == [[b"abcde"], [], [b"f"]]
    assert [each.aborted for each in decoded.topics[0].partitions] == [None, None, [(4, 5), (6, 7)]]
    (records,) = decoded.topics[0].partitions[0].records
    assert isinstance(records, memoryview)
    assert records.obj is body.obj
    for size in range(len(body)):
        with pytest.raises(FormatError):
            decode_fetch_response(body[:size])

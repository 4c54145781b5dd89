"""Produce as one process sends it to another: the other reads what was written, and cut bytes are refused."""

from __future__ import annotations

import uuid

import pytest

from bmq.core.errors import ErrorCode, FormatError
from bmq.core.net.request import Response
from bmq.core.wire.primitives import response_header
from bmq.core.wire.produce import PartitionAnswer, TopicAnswer, encode_produce, parse_produce
from bmq.core.wire.produce_client import PRODUCE_VERSION, decode_produce_response, encode_produce_request

ONE = uuid.UUID(int=1)


TWO = uuid.UUID(int=2)


def body_of(response: Response) -> memoryview:
    return memoryview(b"".join(response.buffers)[len(response_header(0, flexible=True)) :])


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


def test_produce_responses_are_read_as_written_and_refused_if_cut() -> None:
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
    decoded = decode_produce_response(body)
    assert [topic.topic_id for topic in decoded] == [ONE, TWO]
    fields = ("partition", "error_code", "base_offset", "append_time", "log_start", "error_message")
    assert [[tuple(getattr(each, name) for name in fields) for each in topic.partitions] for topic in decoded] == [
        [(0, 0, 12, 34, 5, None), (1, ErrorCode.INVALID_RECORD, -1, -1, -1, "no")],
        [(7, ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, -1, -1, None)],
    ]
    assert [list(each.batch_index_errors) for topic in decoded for each in topic.partitions] == [
        [],
        [(0, "x"), (1, None)],
        [],
    ]
    for size in range(len(body)):
        with pytest.raises(FormatError):
            decode_produce_response(body[:size])

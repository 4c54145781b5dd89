"""DescribeTransactions with the errors of markers: for this project's clients, and for clients of Kafka."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from kafka.protocol.admin.transactions import DescribeTransactionsResponse as OfKafka
from kafka.protocol.api_header import ResponseClassRegistry

from bmq.core.wire import messages as m
from bmq.core.wire.codec_client import decode_response, encode_response_body

KEY = m.DescribeTransactionsRequest.API_KEY


def response(of: Any = m.DescribeTransactionsResponse, **more: Any) -> Any:
    topic = of.TransactionState.TopicData(topic="orders", partitions=[1, 2], **more)
    state = of.TransactionState(
        error_code=0, transactional_id="t", transaction_state="PrepareCommit", transaction_timeout_ms=1,
        transaction_start_time_ms=2, producer_id=3, producer_epoch=4, topics=[topic],
    )  # fmt: skip
    return of(throttle_time_ms=0, transaction_states=[state])


@pytest.mark.parametrize("errors", [[], ["", "NOT_LEADER_OR_FOLLOWER"]])
def test_errors_of_markers_cross_the_wire(errors: list[str]) -> None:
    body = bytes(encode_response_body(response(marker_errors=errors), 0))
    for found in (decode_response(KEY, 0, memoryview(body)), m.DescribeTransactionsResponse.decode(body, version=0)):
        (topic,) = found.transaction_states[0].topics
        assert (topic.topic, topic.partitions, topic.marker_errors) == ("orders", [1, 2], errors)


def test_without_errors_the_bytes_are_kafkas() -> None:
    body = bytes(encode_response_body(response(), 0))
    assert bytes(encode_response_body(response(marker_errors=[]), 0)) == body
    assert bytes(encode_response_body(response(OfKafka), 0)) == body


def test_clients_of_kafka_skip_the_errors() -> None:
    body = bytes(encode_response_body(response(marker_errors=["", "NOT_LEADER_OR_FOLLOWER"]), 0))
    state = OfKafka.decode(body, version=0).transaction_states[0]
    assert (state.transactional_id, state.producer_epoch, state.topics[0].partitions) == ("t", 4, [1, 2])


def test_the_command_line_reads_responses_with_the_errors() -> None:
    """Look the class up by the API's key, as kafka-python's client does."""
    header = SimpleNamespace(request_api_key=KEY, request_api_version=0)
    body = bytes(encode_response_body(response(marker_errors=["", "refused"]), 0))
    found = ResponseClassRegistry.get_response_class(header).decode(body, version=0)
    assert found.transaction_states[0].topics[0].marker_errors == ["", "refused"]

"""DescribeTransactions with the errors of markers: for this project's clients, and for clients of Kafka."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.protocol.admin.transactions import DescribeTransactionsResponse as OfKafka
from kafka.protocol.api_header import ResponseClassRegistry

from bmq.core.wire import messages as m
from bmq.core.wire.codec_client import decode_response, encode_response_body
from bmq.core.wire.describe_transactions_message import errors_of, forget_errors

KEY = m.DescribeTransactionsRequest.API_KEY


ERRORS: dict[str, Any] = {"marker_errors": ["NOT_LEADER_OR_FOLLOWER"], "marker_error_of": [-1, 0]}


def response(
    of: Any = m.DescribeTransactionsResponse, *, marker_error_of: Sequence[int] | None = None, **more: Any
) -> Any:
    places = {} if marker_error_of is None else {"marker_error_of": marker_error_of}
    topic = of.TransactionState.TopicData(topic="orders", partitions=[1, 2], **places)
    state = of.TransactionState(
        error_code=0, transactional_id="t", transaction_state="PrepareCommit", transaction_timeout_ms=1,
        transaction_start_time_ms=2, producer_id=3, producer_epoch=4, topics=[topic],
        **more,
    )  # fmt: skip
    return of(throttle_time_ms=0, transaction_states=[state])


@pytest.mark.parametrize(("fields", "errors"), [({}, ["", ""]), (ERRORS, ["", "NOT_LEADER_OR_FOLLOWER"])])
def test_errors_of_markers_cross_the_wire(fields: Any, errors: list[str]) -> None:
    body = bytes(encode_response_body(response(**fields), 0))
    for found in (decode_response(KEY, 0, memoryview(body)), m.DescribeTransactionsResponse.decode(body, version=0)):
        (state,) = found.transaction_states
        (topic,) = state.topics
        assert (topic.topic, topic.partitions, errors_of(state, topic)) == ("orders", [1, 2], errors)


@pytest.mark.parametrize(
    ("places", "errors"), [([], ["", ""]), ([0], ["a", ""]), ([7, -7], ["", ""]), ([0, -1, 0], ["a", ""])]
)
def test_places_of_a_wrong_response_are_no_errors(places: list[int], errors: list[str]) -> None:
    (state,) = response(marker_errors=["a"], marker_error_of=places).transaction_states
    assert errors_of(state, state.topics[0]) == errors


def test_errors_of_topics_that_are_taken_out_are_forgotten() -> None:
    (state,) = response(marker_errors=["a", "b", "c"], marker_error_of=[1, -1]).transaction_states
    forget_errors(state)
    assert state.marker_errors == ["", "b", ""]
    assert errors_of(state, state.topics[0]) == ["b", ""]


def test_without_errors_the_bytes_are_kafkas() -> None:
    body = bytes(encode_response_body(response(), 0))
    assert bytes(encode_response_body(response(marker_errors=[], marker_error_of=[]), 0)) == body
    assert bytes(encode_response_body(response(OfKafka), 0)) == body


def test_clients_of_kafka_skip_the_errors() -> None:
    body = bytes(encode_response_body(response(**ERRORS), 0))
    state = OfKafka.decode(body, version=0).transaction_states[0]
    assert (state.transactional_id, state.producer_epoch, state.topics[0].partitions) == ("t", 4, [1, 2])


def test_the_command_line_reads_responses_with_the_errors() -> None:
    """Look the class up by the API's key, as kafka-python's client does."""
    header = SimpleNamespace(request_api_key=KEY, request_api_version=0)
    body = bytes(encode_response_body(response(**ERRORS), 0))
    found = ResponseClassRegistry.get_response_class(header).decode(body, version=0)
    assert found.transaction_states[0].topics[0].marker_error_of == [-1, 0]

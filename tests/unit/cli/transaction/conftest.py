"""A server with transactions, for the tests of `bmq transaction`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from kafka.protocol.admin.transactions import (
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
)
from kafka.protocol.producer import InitProducerIdRequest
from kafka.protocol.producer.transaction import WriteTxnMarkersRequest

from bmq.core.errors import ErrorCode
from bmq.core.wire.messages import (
    DescribeProducersResponse,
    DescribeTransactionsResponse,
    InitProducerIdResponse,
    ListTransactionsResponse,
    WriteTxnMarkersResponse,
)
from tests.unit.cli.fake_admin import NODES, FakeAdmin, FakePartition


@dataclass
class FakeTransaction:
    producer_id: int
    state: str = "Ongoing"
    epoch: int = 0
    partitions: dict[str, list[int]] = field(default_factory=dict)
    marker_errors: list[str] = field(default_factory=list)
    marker_error_of: dict[str, list[int]] = field(default_factory=dict)


@dataclass
class FakeProducer:
    """A producer with a transaction open in a partition."""

    producer_id: int
    start_offset: int
    last_timestamp: int = 0
    epoch: int = 0
    coordinator_epoch: int = -1


class FakeServer:
    """Transactional ids of one server, and producers of partitions, behind the five APIs."""

    def __init__(self) -> None:
        self.ids: dict[str, FakeTransaction] = {}
        self.producers: dict[tuple[str, int], list[FakeProducer]] = {}
        self.errors: list[ErrorCode] = []
        """Errors of the next responses, in their order."""
        self.asked: list[Any] = []

    def run(self, send: Callable[..., Any], *arguments: Any) -> Any:
        return send(*arguments)

    def send(self, request: Any, server: int = NODES[0]) -> Any:
        self.asked.append(request)
        code = self.errors.pop(0) if self.errors else ErrorCode.NONE
        match request:
            case ListTransactionsRequest():
                return self._list(request, server, code)
            case DescribeTransactionsRequest():
                return self._describe(request.transactional_ids[0], code)
            case InitProducerIdRequest():
                return self._init(request.transactional_id, code)
            case DescribeProducersRequest():
                return self._describe_producers(request, code)
            case WriteTxnMarkersRequest():
                return self._write_marker(request, code)
        raise AssertionError(request)

    def _list(self, request: Any, server: int, code: ErrorCode) -> Any:
        state = ListTransactionsResponse.TransactionState
        states = [
            state(transactional_id=name, producer_id=each.producer_id, transaction_state=each.state)
            for name, each in self.ids.items()
            if server == NODES[0] and not code
            if not request.state_filters or each.state in request.state_filters
            if not request.producer_id_filters or each.producer_id in request.producer_id_filters
        ]
        return ListTransactionsResponse(error_code=code, unknown_state_filters=[], transaction_states=states)

    def _describe(self, name: str, code: ErrorCode) -> Any:
        state = DescribeTransactionsResponse.TransactionState
        each = self.ids.get(name)
        if each is None:
            code = code or ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
            each = FakeTransaction(-1, "")
        topics = [
            state.TopicData(topic=topic, partitions=indexes, marker_error_of=each.marker_error_of.get(topic, []))
            for topic, indexes in each.partitions.items()
        ]
        found = state(
            error_code=code,
            transactional_id=name,
            transaction_state=each.state,
            transaction_timeout_ms=60_000,
            transaction_start_time_ms=1_000 if topics else -1,
            producer_id=each.producer_id,
            producer_epoch=each.epoch,
            topics=topics,
            marker_errors=each.marker_errors,
        )
        return DescribeTransactionsResponse(throttle_time_ms=0, transaction_states=[found])

    def _init(self, name: str, code: ErrorCode) -> Any:
        each = self.ids[name]
        if not code:
            each.epoch, each.state, each.partitions = each.epoch + 1, "Empty", {}
        return InitProducerIdResponse(
            throttle_time_ms=0, error_code=code, producer_id=each.producer_id, producer_epoch=each.epoch
        )

    def _describe_producers(self, request: Any, code: ErrorCode) -> Any:
        topic = DescribeProducersResponse.TopicResponse
        partition = topic.PartitionResponse
        return DescribeProducersResponse(
            throttle_time_ms=0,
            topics=[
                topic(
                    name=asked.name,
                    partitions=[
                        partition(
                            partition_index=index,
                            error_code=code,
                            error_message=None,
                            active_producers=[
                                partition.ProducerState(
                                    producer_id=each.producer_id,
                                    producer_epoch=each.epoch,
                                    last_sequence=0,
                                    last_timestamp=each.last_timestamp,
                                    coordinator_epoch=each.coordinator_epoch,
                                    current_txn_start_offset=each.start_offset,
                                )
                                for each in self.producers.get((asked.name, index), [])
                            ],
                        )
                        for index in asked.partition_indexes
                    ],
                )
                for asked in request.topics
            ],
        )

    def _write_marker(self, request: Any, code: ErrorCode) -> Any:
        (marker,) = request.markers
        (topic,) = marker.topics
        (index,) = topic.partition_indexes
        held = self.producers[topic.name, index]
        if not code:
            held[:] = [each for each in held if each.producer_id != marker.producer_id]
        result = WriteTxnMarkersResponse.WritableTxnMarkerResult
        of_topic = result.WritableTxnMarkerTopicResult
        partition = of_topic.WritableTxnMarkerPartitionResult(partition_index=index, error_code=code)
        return WriteTxnMarkersResponse(
            markers=[result(producer_id=marker.producer_id, topics=[of_topic(name=topic.name, partitions=[partition])])]
        )


@pytest.fixture
def server(admin: FakeAdmin) -> FakeServer:
    made = FakeServer()
    admin._manager = made
    admin.add_topic("orders", FakePartition(), FakePartition())
    return made

"""The last errors of brokers, read from the log of kafka-python's own sender."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
from kafka import TopicPartition
from kafka.errors import KafkaConnectionError, NotEnoughReplicasError, NotLeaderForPartitionError
from kafka.producer.sender import Sender

from bmq.cli.records.broker_errors import BrokerErrors
from bmq.core.errors import ErrorCode

FOUR = TopicPartition("orders", 4)
EXPIRED = f"Expiring 1 record(s) for {FOUR}: 30000 ms has passed since batch creation"


def fail_with(error: Exception, key: TopicPartition = FOUR) -> None:
    """Have kafka-python's sender handle a broker's error that it tries again after."""

    def ignore(*arguments: object) -> None:
        """Nothing is sent."""

    sender = SimpleNamespace(
        _can_split=lambda batch, error: False,
        _is_retention_based_unknown_producer_id=lambda batch, error, start: False,
        _can_retry=lambda batch, error: True,
        _transaction_manager=None,
        _accumulator=SimpleNamespace(reenqueue=ignore),
        _maybe_remove_from_inflight_batches=ignore,
        _record_retries=ignore,
        _metadata=SimpleNamespace(request_update=ignore),
        config={"retries": 9, "guarantee_message_order": False},
    )
    Sender._dispatch_error(sender, SimpleNamespace(topic_partition=key, attempts=1), error, None)


def test_the_last_error_of_a_partition_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    errors = BrokerErrors()
    with errors.kept():
        fail_with(NotLeaderForPartitionError())
        fail_with(NotEnoughReplicasError())
        fail_with(NotLeaderForPartitionError(), TopicPartition("orders", 3))
    assert errors.code_for(EXPIRED) == ErrorCode.NOT_ENOUGH_REPLICAS
    assert not caplog.records, "they are not printed"


def test_what_is_no_brokers_error_is_not_kept() -> None:
    errors = BrokerErrors()
    with errors.kept():
        fail_with(KafkaConnectionError())
        fail_with(NotEnoughReplicasError(), TopicPartition("orders", 3))
    assert errors.code_for(EXPIRED) is None
    fail_with(NotEnoughReplicasError())
    assert errors.code_for(EXPIRED) is None, "the log is read only while a command produces"
    assert not logging.getLogger("kafka.producer.sender").filters

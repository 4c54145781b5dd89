"""``min.insync.replicas`` on a real HDFS of three datanodes, two of which are killed and come back."""

from __future__ import annotations

import time
from pathlib import Path

from confluent_kafka import KafkaError, Message, Producer

from tests.integration.conftest import HdfsFactory
from tests.integration.load import create_topic
from tests.services.bmq import BmqServer

TOPIC = "orders"
TIMEOUT_S = 120.0


def send(bootstrap: str) -> tuple[int, int]:
    """Produce one record with acks=all, without a retry; return (error code, offset)."""
    said: list[tuple[KafkaError | None, Message]] = []
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "retries": 0, "message.timeout.ms": 30_000})
    producer.produce(TOPIC, b"v", on_delivery=lambda error, message: said.append((error, message)))
    assert producer.flush(60) == 0
    ((error, message),) = said
    offset = message.offset()
    return (error.code() if error is not None else 0), (-1 if offset is None else offset)


def test_rule_1_two_of_three_datanodes_die(hdfs_new: HdfsFactory, tmp_path: Path) -> None:
    hdfs = hdfs_new(datanodes=3)
    environment = {"BMQ_MIN_INSYNC_REPLICAS": "2"}
    with BmqServer(f"{hdfs.root}/min-insync", folder=tmp_path, environment=environment) as server:
        create_topic(server.bootstrap, TOPIC, 1)
        assert send(server.bootstrap) == (0, 0)
        for index in (0, 1):
            hdfs.kill_datanode(index)
        # The first may be in the log: it was sent to a pipeline that broke.  Nothing else is.
        first, *others = [send(server.bootstrap)[0] for _ in range(3)]
        assert first in (KafkaError.NOT_ENOUGH_REPLICAS, KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
        assert others == [KafkaError.NOT_ENOUGH_REPLICAS] * 2
        hdfs.restart_datanode(0)
        deadline = time.monotonic() + TIMEOUT_S
        code, offset = send(server.bootstrap)
        while code:
            assert code == KafkaError.NOT_ENOUGH_REPLICAS
            assert time.monotonic() < deadline, "two datanodes are back, and produces are refused"
            code, offset = send(server.bootstrap)
        assert offset == (2 if first == KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND else 1)

"""Transactional ids that one user may own: what real clients see past the bound, and Kafka's tools on the records."""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from kafka import KafkaProducer
from kafka.errors import KafkaError as PythonKafkaError

from tests.integration.load import create_topic
from tests.services.bmq import BmqServer
from tests.services.kafka_tools import run_tool

TOPIC = "orders"
TIMEOUT_S = 60.0
REFUSED_S = 2.0
"""Time-out of calls that fail: librdkafka asks again until then."""
_HTTP = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[BmqServer]:
    with BmqServer(tmp_path.as_uri(), folder=tmp_path) as one:
        create_topic(one.bootstrap, TOPIC, 1)
        yield one


def set_bound(server: BmqServer, bound: int) -> None:
    program = str(Path(sys.executable).with_name("bmq"))
    command = [program, "quota", "set", "--bootstrap-server", server.bootstrap, "--user-default"]
    subprocess.run([*command, f"max_transactional_ids={bound}"], check=True, timeout=TIMEOUT_S)


def producer_of(server: BmqServer, transactional_id: str) -> Producer:
    return Producer({"bootstrap.servers": server.bootstrap, "transactional.id": transactional_id, "log_level": 0})


def refused(server: BmqServer) -> int:
    with _HTTP.open(f"{server.http}/metrics", timeout=TIMEOUT_S) as response:
        text = response.read().decode()
    name = "bmq_user_transactional_ids_refused_total"
    (count,) = re.findall(rf"^{name}(?:\{{[^}}]*\}})? ([0-9.e+]+)", text, re.MULTILINE)
    return int(float(count))


def test_transactional_ids_of_a_user_are_bounded_and_ids_that_exist_go_on(server: BmqServer) -> None:
    set_bound(server, 1)
    first, second = producer_of(server, "first"), producer_of(server, "second")
    first.init_transactions(TIMEOUT_S)
    with pytest.raises(KafkaException) as raised:
        second.init_transactions(REFUSED_S)
    error = raised.value.args[0]
    assert isinstance(error, KafkaError)
    assert (error.code(), error.fatal()) == (KafkaError.POLICY_VIOLATION, False)
    assert refused(server) >= 1

    python = KafkaProducer(bootstrap_servers=server.bootstrap, transactional_id="third")
    with pytest.raises(PythonKafkaError, match="olicy"):
        python.init_transactions()
    python.close(timeout=REFUSED_S)

    java = run_tool(
        "ProducerPerformance", "--topic", TOPIC, "--num-records", "1", "--record-size", "10", "--throughput", "-1",
        "--transactional-id", "fourth", "--transaction-duration-ms", "100",
        "--producer-props", f"bootstrap.servers={server.bootstrap}", codes=(0, 1),
    )  # fmt: skip
    assert "Unexpected error in InitProducerIdResponse; Request parameters do not satisfy" in java.stdout + java.stderr

    first.begin_transaction()
    first.produce(TOPIC, b"value")
    first.commit_transaction(TIMEOUT_S)
    producer_of(server, "first").init_transactions(TIMEOUT_S)
    set_bound(server, 2)
    second.init_transactions(TIMEOUT_S)

    shown = run_tool(
        "ConsoleConsumer", "--bootstrap-server", server.bootstrap, "--topic", "__transaction_state", "--from-beginning",
        "--formatter", "org.apache.kafka.tools.consumer.TransactionLogMessageFormatter", "--timeout-ms", "5000",
    ).stdout  # fmt: skip
    assert set(re.findall(r'"transactionalId": ?"(\w+)"', shown)) == {"first", "second"}

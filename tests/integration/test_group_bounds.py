"""Groups that one user may own: what real clients see past ``max_groups``, and Kafka's tools on the groups' records."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from kafka import KafkaConsumer
from kafka.errors import PolicyViolationError

from tests.integration.load import create_topic
from tests.services.bmq import BmqServer
from tests.services.kafka_tools import run_tool

TOPIC = "orders"
TIMEOUT_S = 60.0
_HTTP = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[BmqServer]:
    with BmqServer(tmp_path.as_uri(), folder=tmp_path) as one:
        create_topic(one.bootstrap, TOPIC, 1)
        yield one


def bmq(server: BmqServer, group: str, action: str, *words: str) -> str:
    """Run a command of ``bmq``, and return what it prints."""
    program = str(Path(sys.executable).with_name("bmq"))
    command = [program, group, action, "--bootstrap-server", server.bootstrap, *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=TIMEOUT_S).stdout


def consumer(server: BmqServer, group: str) -> Consumer:
    settings = {"bootstrap.servers": server.bootstrap, "group.id": group, "enable.auto.commit": False, "log_level": 0}
    return Consumer(settings)


def commit(server: BmqServer, group: str) -> KafkaError | None:
    """Commit an offset as a consumer that assigns partitions to itself, and return the error."""
    client = consumer(server, group)
    try:
        client.commit(offsets=[TopicPartition(TOPIC, 0, 7)], asynchronous=False)
    except KafkaException as error:
        found = error.args[0]
        assert isinstance(found, KafkaError)
        return found
    finally:
        client.close()
    return None


def refused(server: BmqServer) -> int:
    with _HTTP.open(f"{server.http}/metrics", timeout=TIMEOUT_S) as response:
        text = response.read().decode()
    (count,) = re.findall(r"^bmq_user_groups_refused_total(?:\{[^}]*\})? ([0-9.e+]+)", text, re.MULTILINE)
    return int(float(count))


def test_groups_of_a_user_are_bounded_and_a_deleted_one_makes_room(server: BmqServer) -> None:
    bmq(server, "quota", "set", "--user-default", "max_groups=1")
    assert re.search(r"max_groups +1\b", bmq(server, "quota", "list"))
    assert commit(server, "first") is None
    error = commit(server, "second")
    assert error is not None
    assert (error.code(), error.retriable()) == (KafkaError.POLICY_VIOLATION, False)
    assert refused(server) == 1

    member = consumer(server, "second")
    member.subscribe([TOPIC])
    deadline = time.monotonic() + TIMEOUT_S
    seen = None
    while seen is None or seen.error() is None:
        assert time.monotonic() < deadline, "the consumer reports no error"
        seen = member.poll(1.0)
    joined = seen.error()
    assert joined is not None
    assert joined.code() == KafkaError.POLICY_VIOLATION
    assert "JoinGroup failed" in joined.str()

    python = KafkaConsumer(TOPIC, bootstrap_servers=server.bootstrap, group_id="third")
    with pytest.raises(PolicyViolationError):
        python.poll(timeout_ms=int(TIMEOUT_S * 1000))
    python.close()

    java = run_tool(
        "ConsoleConsumer", "--bootstrap-server", server.bootstrap, "--topic", TOPIC, "--group", "fourth",
        "--timeout-ms", str(int(TIMEOUT_S * 1000)), codes=(0, 1),
    )  # fmt: skip
    assert "Unexpected error in join group response" in java.stdout + java.stderr

    assert commit(server, "first") is None, "a group that exists goes on"
    bmq(server, "group", "delete", "first")
    while not member.assignment():
        assert time.monotonic() < deadline, "the consumer does not join the group that it may create now"
        member.poll(0.5)
    member.close()


def test_kafkas_tools_read_the_records_of_groups_with_a_principal(server: BmqServer) -> None:
    assert commit(server, "simple") is None
    member = consumer(server, "members")
    member.subscribe([TOPIC])
    deadline = time.monotonic() + TIMEOUT_S
    while not member.assignment():
        assert time.monotonic() < deadline
        member.poll(0.5)
    shown = run_tool(
        "ConsoleConsumer", "--bootstrap-server", server.bootstrap, "--topic", "__consumer_offsets", "--from-beginning",
        "--formatter", "org.apache.kafka.tools.consumer.GroupMetadataMessageFormatter", "--timeout-ms", "5000",
    ).stdout  # fmt: skip
    member.close()
    groups = dict(_records(shown))
    assert (groups["simple"]["version"], groups["simple"]["data"]["members"]) == (4, [])
    assert groups["members"]["version"] == 4
    (stored,) = groups["members"]["data"]["members"]
    assert stored["clientHost"] == "/127.0.0.1"


def _records(text: str) -> Iterator[tuple[str, Any]]:
    """Yield the group and the value of each record that the formatter printed, without anything between them."""
    at, decoder = 0, json.JSONDecoder()
    while text[at:].strip():
        found, at = decoder.raw_decode(text, at)
        at += len(text[at:]) - len(text[at:].lstrip())
        yield found["key"]["data"]["group"], found["value"]

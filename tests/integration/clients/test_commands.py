"""`bmq topic`, `bmq group` and `bmq cluster` against a running server, and against Apache Kafka just the same."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from bmq.cli.admin_client import run
from tests.integration.clients.endpoint import Endpoint
from tests.unit.cli.fake_admin import parse

pytestmark = pytest.mark.clients

Tell = Callable[..., list[dict[str, Any]]]
FIRST_MS = 1_700_000_000_000


@pytest.fixture
def tell(endpoint: Endpoint, capsys: pytest.CaptureFixture[str]) -> Tell:
    """Return a function that runs a command, which must succeed, and returns its lines of JSON."""

    def command(*words: str) -> list[dict[str, Any]]:
        status = run(parse(*words, "--json", "--timeout", "30", "--bootstrap-server", endpoint.bootstrap))
        out, err = capsys.readouterr()
        assert (status, err) == (0, "")
        return [json.loads(line) for line in out.splitlines()]

    return command


@pytest.fixture
def refused(endpoint: Endpoint, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Return a function that runs a command, which must fail, and returns its standard error."""

    def command(*words: str) -> str:
        assert run(parse(*words, "--timeout", "30", "--bootstrap-server", endpoint.bootstrap)) == 1
        return capsys.readouterr().err

    return command


@pytest.fixture
def name() -> str:
    return f"commands-{uuid.uuid4().hex[:10]}"


def fill(endpoint: Endpoint, topic: str, records: int) -> None:
    """Produce records with timestamps a second apart, all to partition 0."""
    producer = Producer({"bootstrap.servers": endpoint.bootstrap})
    for number in range(records):
        producer.produce(topic, value=b"v", partition=0, timestamp=FIRST_MS + number * 1_000)
    assert producer.flush(30) == 0


def test_topic_from_creation_to_deletion(
    endpoint: Endpoint, tell: Tell, refused: Callable[..., str], name: str
) -> None:
    (created,) = tell("topic", "create", name, "--partitions", "2", "--config", "max.message.bytes=20000")
    assert (created["created"], created["partitions"]) == (True, 2)
    assert "TOPIC_ALREADY_EXISTS" in refused("topic", "create", name)
    assert name in {each["topic"] for each in tell("topic", "list")}
    fill(endpoint, name, 10)
    (described,) = tell("topic", "describe", name)
    assert described["topic_id"] == created["topic_id"]
    assert described["configs"] == {"max.message.bytes": "20000"}
    first, second = described["partitions"]
    assert (first["earliest"], first["latest"], second["latest"]) == (0, 10, 0)
    assert first["leader"] is not None
    assert first["leader_epoch"] is not None
    assert first["bytes"] > 0
    tell("topic", "alter", name, "--partitions", "3", "--config", "retention.ms=123456789")
    tell("topic", "alter", name, "--delete-config", "max.message.bytes")
    (described,) = tell("topic", "describe", name)
    assert (len(described["partitions"]), described["configs"]) == (3, {"retention.ms": "123456789"})
    assert "INVALID_PARTITIONS" in refused("topic", "alter", name, "--partitions", "1")
    assert "INVALID_CONFIG" in refused("topic", "alter", name, "--config", "retention.ms=soon")
    tell("topic", "delete", name)
    assert "UNKNOWN_TOPIC_OR_PARTITION" in refused("topic", "describe", name)


@pytest.mark.smoke
def test_group_from_its_first_commit_to_its_deletion(
    endpoint: Endpoint, tell: Tell, refused: Callable[..., str], name: str
) -> None:
    assert "there is no such group" in refused("group", "describe", name)
    tell("topic", "create", name, "--partitions", "1")
    fill(endpoint, name, 10)
    consumer = Consumer(
        {
            "bootstrap.servers": endpoint.bootstrap,
            "group.id": name,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    try:
        consumer.subscribe([name])
        got = 0
        while got < 4:
            message = consumer.poll(30)
            assert message is not None, "no record came within 30 s"
            got += message.error() is None
        consumer.commit(offsets=[TopicPartition(name, 0, 4)], asynchronous=False)
        assert {"group": name, "state": "Stable"}.items() <= next(
            each for each in tell("group", "list") if each["group"] == name
        ).items()
        (described,) = tell("group", "describe", name)
        (member,) = described["members"]
        assert member["partitions"] == [{"topic": name, "partition": 0}]
        (offset,) = described["offsets"]
        assert (offset["committed"], offset["latest"], offset["lag"]) == (4, 10, 6)
        assert offset["member_id"] == member["member_id"]
        assert "stop its consumers first" in refused("group", "delete", name)
        assert "stop its consumers" in refused(
            "group", "reset-offsets", name, "--all-topics", "--to-latest", "--execute"
        )
    finally:
        consumer.close()
    targets = {("--to-latest",): 10, ("--shift-by", "-3"): 7, ("--to-datetime", "2023-11-14T22:13:25"): 5,
               ("--to-earliest",): 0, ("--to-offset", "99"): 10}  # fmt: skip
    for target, expected in targets.items():
        (planned,) = tell("group", "reset-offsets", name, "--topic", name, *target)
        assert (planned["new"], planned["executed"]) == (expected, False), target
        tell("group", "reset-offsets", name, "--topic", name, *target, "--execute")
        (described,) = tell("group", "describe", name)
        assert described["offsets"][0]["committed"] == expected, target
    tell("group", "delete", name)
    assert "there is no such group" in refused("group", "describe", name)
    tell("topic", "delete", name)


def test_cluster(endpoint: Endpoint, tell: Tell, name: str) -> None:
    tell("topic", "create", name, "--partitions", "1")
    (status,) = tell("cluster", "status")
    tell("topic", "delete", name)
    assert endpoint.bootstrap in {f"{each['host']}:{each['port']}" for each in status["brokers"]}
    assert status["controller_id"] in {each["node_id"] for each in status["brokers"]}
    # BMQ names a proxy for each partition, whether or not a broker owns it.
    assert status["partitions_without_leader"] == (None if endpoint.target.startswith("bmq") else 0)
    configs = {each["config"]: each for each in tell("cluster", "configs", "--all")}
    assert configs["offsets.topic.num.partitions"]["value"] == "4"
    assert "log.retention.ms" in configs
    assert set(configs) > {each["config"] for each in tell("cluster", "configs")}

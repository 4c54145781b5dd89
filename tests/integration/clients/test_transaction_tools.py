"""Kafka's tools with transactions: what an operator sees of them, and Kafka's own transactional programs."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.integration.clients.endpoint import Endpoint
from tests.integration.clients.story import new_name
from tests.integration.clients.transaction_rows import one, transactions, transactions_tool
from tests.integration.clients.transaction_story import PARTITIONS, committed, end, ends, send_plain, values_of
from tests.integration.clients.transactional.base import SENTINEL
from tests.integration.clients.transactional.confluent import ConfluentTransactional, ConfluentTransactor
from tests.integration.load import create_topic
from tests.services.kafka_tools import run_tool

pytestmark = pytest.mark.clients

OPEN = 4
"""Records of the open transaction in each of its partitions."""
COPIED = 120
COPY_BATCH = 20
PERFORMED = 2_000


@pytest.fixture
def topic(endpoint: Endpoint) -> str:
    topic = new_name("tools")
    create_topic(endpoint.bootstrap, topic, PARTITIONS)
    return topic


@pytest.fixture
def transactional_id() -> str:
    return new_name("tool-id")


@pytest.fixture
def producer(endpoint: Endpoint, topic: str, transactional_id: str) -> Iterator[ConfluentTransactor]:
    """Yield a producer with an open transaction in partitions 0 and 1, behind a committed record in each partition."""
    send_plain(endpoint.bootstrap, topic, {place: [b"before"] for place in range(PARTITIONS)})
    made = ConfluentTransactor(endpoint.bootstrap, transactional_id, 60_000)
    made.begin()
    made.send(topic, {place: [b"open"] * OPEN for place in (0, 1)})
    yield made
    made.close()


def test_list_and_describe(
    endpoint: Endpoint, topic: str, producer: ConfluentTransactor, transactional_id: str
) -> None:
    """An open transaction is listed as Ongoing and described with its partitions; then as CompleteCommit."""
    listed = one(transactions(endpoint.bootstrap, "list"), TransactionalId=transactional_id)
    assert listed["TransactionState"] == "Ongoing"
    (described,) = transactions(endpoint.bootstrap, "describe", "--transactional-id", transactional_id)
    assert described["TransactionState"] == "Ongoing"
    assert described["ProducerId"] == listed["ProducerId"]
    assert described["CoordinatorId"] == listed["Coordinator"]
    assert described["TransactionTimeoutMs"] == "60000"
    assert set(described["TopicPartitions"].split(",")) == {f"{topic}-0", f"{topic}-1"}
    place = ("--topic", topic, "--partition", "1")
    written = one(transactions(endpoint.bootstrap, "describe-producers", *place), ProducerId=listed["ProducerId"])
    assert written["CurrentTransactionStartOffset"] == "1"
    assert written["LastSequence"] == str(OPEN - 1)
    producer.commit()
    listed = one(transactions(endpoint.bootstrap, "list"), TransactionalId=transactional_id)
    assert listed["TransactionState"] == "CompleteCommit"
    written = one(transactions(endpoint.bootstrap, "describe-producers", *place), ProducerId=listed["ProducerId"])
    assert written["CurrentTransactionStartOffset"] == "None"


def test_filters_of_the_list(endpoint: Endpoint, producer: ConfluentTransactor, transactional_id: str) -> None:
    """List by the time since the begin and by a pattern of the whole id; an invalid pattern is refused."""
    assert producer.producer is not None

    def listed(*arguments: str) -> set[str]:
        return {row["TransactionalId"] for row in transactions(endpoint.bootstrap, "list", *arguments)}

    pattern = ("--transactional-id-pattern", f"{transactional_id[:-1]}.")
    assert listed(*pattern, "--duration-filter", "0") == {transactional_id}
    assert listed(*pattern, "--duration-filter", "3600000") == set()
    assert listed("--transactional-id-pattern", transactional_id[:-1]) == set()
    refused = transactions_tool(endpoint.bootstrap, "list", "--transactional-id-pattern", "[", codes=(1,))
    assert "INVALID_REGULAR_EXPRESSION" in refused.stderr


def test_abort_refuses_an_offset_at_which_no_transaction_begins(endpoint: Endpoint, topic: str) -> None:
    where = ("--topic", topic, "--partition", "0", "--start-offset", "99")
    refused = transactions_tool(endpoint.bootstrap, "abort", *where, codes=(1,))
    assert "Could not find any open transactions starting at offset 99" in refused.stderr


def test_unknown_id(endpoint: Endpoint) -> None:
    unknown = ("describe", "--transactional-id", new_name("unknown"))
    refused = transactions_tool(endpoint.bootstrap, *unknown, codes=(1,))
    assert "the ID could not be found" in refused.stderr


def test_find_hanging(endpoint: Endpoint, topic: str, producer: ConfluentTransactor) -> None:
    """A transaction that its coordinator knows is not hanging, however long it is open."""
    assert producer.producer is not None
    wanted = ("find-hanging", "--topic", topic, "--max-transaction-timeout", "0")
    assert transactions(endpoint.bootstrap, *wanted) == []


def test_abort(endpoint: Endpoint, topic: str, producer: ConfluentTransactor) -> None:
    """An operator ends the transaction in one partition, by its start: readers go on there and nowhere else."""
    end(endpoint.bootstrap, topic)
    assert producer.producer is not None
    transactions(endpoint.bootstrap, "abort", "--topic", topic, "--partition", "0", "--start-offset", "1")
    everything = ends(endpoint.bootstrap, topic, "read_uncommitted")
    assert ends(endpoint.bootstrap, topic, "read_committed") == everything | {1: 1}


def test_force_terminate(endpoint: Endpoint, topic: str, producer: ConfluentTransactor, transactional_id: str) -> None:
    """An operator ends a transaction by its id: all partitions go on, without its records."""
    end(endpoint.bootstrap, topic)
    assert producer.producer is not None
    transactions(endpoint.bootstrap, "forceTerminateTransaction", "--transactionalId", transactional_id)
    found = ConfluentTransactional(endpoint.bootstrap).read(topic, PARTITIONS, is_committed=True)
    assert found == {place: [b"before"] for place in range(PARTITIONS)}


def test_console_consumer(endpoint: Endpoint, topic: str, producer: ConfluentTransactor) -> None:
    """--isolation-level decides whether the console shows records of an aborted transaction."""
    producer.abort()
    end(endpoint.bootstrap, topic)

    def show(isolation: str, count: int) -> list[str]:
        arguments = ("--topic", topic, "--from-beginning", "--isolation-level", isolation, "--max-messages", str(count))
        return sorted(run_tool("ConsoleConsumer", "--bootstrap-server", endpoint.bootstrap, *arguments).lines)

    last = [SENTINEL.decode()] * PARTITIONS
    plain = sorted(["before"] * PARTITIONS + last)
    assert show("read_committed", len(plain)) == plain
    assert show("read_uncommitted", len(plain) + 2 * OPEN) == sorted([*plain, *["open"] * 2 * OPEN])


def test_features(endpoint: Endpoint) -> None:
    """The feature of transactions is described, in force at the highest level."""
    described = run_tool("FeatureCommand", "--bootstrap-server", endpoint.bootstrap, "describe").stdout
    pattern = (
        r"Feature: transaction\.version\s+SupportedMinVersion: 0\s+SupportedMaxVersion: ([12])\s+"
        r"FinalizedVersionLevel: \1\s"
    )
    assert re.search(pattern, described), described


def test_copier(endpoint: Endpoint, topic: str, transactional_id: str) -> None:
    """Kafka's system-test program copies with random aborts: each record is in the sink once."""
    sink, group = new_name("sink"), new_name("group")
    create_topic(endpoint.bootstrap, sink, PARTITIONS)
    source = values_of("copied", COPIED)
    send_plain(endpoint.bootstrap, topic, source)
    run_tool(
        "TransactionalMessageCopier", "--broker-list", endpoint.bootstrap, "--input-topic", topic,
        "--input-partition", "0", "--output-topic", sink, "--consumer-group", group,
        "--transactional-id", transactional_id, "--transaction-size", str(COPY_BATCH), "--enable-random-aborts",
        "--group-mode", "--use-group-metadata",
    )  # fmt: skip
    assert committed(endpoint.bootstrap, group, topic) == dict.fromkeys(range(PARTITIONS), COPIED)
    end(endpoint.bootstrap, sink)
    found = ConfluentTransactional(endpoint.bootstrap).read(sink, PARTITIONS, is_committed=True)
    copied = sorted(value for each in found.values() for value in each)
    assert copied == sorted(value for each in source.values() for value in each)


def test_performance(endpoint: Endpoint, topic: str, transactional_id: str) -> None:
    """The producer that benchmarks use, with transactions of 50 ms: all of its records are committed."""
    sent = run_tool(
        "ProducerPerformance", "--topic", topic, "--num-records", str(PERFORMED), "--record-size", "10",
        "--throughput", "4000", "--transactional-id", transactional_id, "--transaction-duration-ms", "50",
        "--command-property", f"bootstrap.servers={endpoint.bootstrap}",
    )  # fmt: skip
    assert re.search(rf"^{PERFORMED} records sent", sent.stdout, re.MULTILINE)
    end(endpoint.bootstrap, topic)
    found = ConfluentTransactional(endpoint.bootstrap).read(topic, PARTITIONS, is_committed=True)
    assert sum(map(len, found.values())) == PERFORMED
    assert (
        one(transactions(endpoint.bootstrap, "list"), TransactionalId=transactional_id)["TransactionState"]
        == "CompleteCommit"
    )

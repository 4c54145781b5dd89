"""Story of transactions, which every client library with transactions is put through.

A test file of a library is this class with the library.  Names are new in each test.
"""

from __future__ import annotations

from collections import Counter

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.integration.clients.drivers.base import OPERATION_TIMEOUT_S, ClientError
from tests.integration.clients.endpoint import Endpoint
from tests.integration.clients.levels import DEFAULT_LEVEL, set_level
from tests.integration.clients.story import new_name
from tests.integration.clients.transactional.base import SENTINEL, Fenced, Loop, Transactional, transformed
from tests.integration.load import create_topic
from tests.services.processes import wait_for

PARTITIONS = 3
RECORDS = 5
"""Records of a transaction in each partition."""
SHORT_MS = 1_500
"""Time-out of a transaction that nobody ends."""
TRANSFORMED = 200
BATCH = 20

Values = dict[int, list[bytes]]


def values_of(name: str, count: int = RECORDS) -> Values:
    return {place: [b"%s-%d-%d" % (name.encode(), place, at) for at in range(count)] for place in range(PARTITIONS)}


def joined(*parts: Values) -> Values:
    return {place: [value for part in parts for value in part[place]] for place in range(PARTITIONS)}


def send_plain(bootstrap: str, topic: str, values: Values) -> None:
    """Produce without a transaction."""
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    errors: list[object] = []
    for place, each in values.items():
        for value in each:
            producer.produce(
                topic, value, partition=place, on_delivery=lambda error, _: errors.append(error) if error else None
            )
    assert producer.flush(OPERATION_TIMEOUT_S) == 0
    assert not errors


def end(bootstrap: str, topic: str) -> None:
    """Put the sentinel behind everything."""
    send_plain(bootstrap, topic, {place: [SENTINEL] for place in range(PARTITIONS)})


def ends(bootstrap: str, topic: str, isolation: str) -> dict[int, int]:
    """Return the end of each partition for readers of this isolation level."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "ends", "isolation.level": isolation, "log_level": 0}
    consumer = Consumer(settings)
    try:
        places = [TopicPartition(topic, place) for place in range(PARTITIONS)]
        found = {each.partition: consumer.get_watermark_offsets(each, OPERATION_TIMEOUT_S) for each in places}
    finally:
        consumer.close()
    assert None not in found.values(), found
    return {place: offsets[1] for place, offsets in found.items()}


def committed(bootstrap: str, group: str, topic: str) -> dict[int, int]:
    """Return the group's stable offsets."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    places = [TopicPartition(topic, place) for place in range(PARTITIONS)]
    wanted = [ConsumerGroupTopicPartitions(group, places)]
    found = admin.list_consumer_group_offsets(wanted, require_stable=True)[group].result(OPERATION_TIMEOUT_S)
    return {each.partition: each.offset for each in found.topic_partitions if each.offset >= 0}


class TransactionStory:
    """The tests; a subclass names its library in ``library``."""

    library: type[Transactional]
    level = DEFAULT_LEVEL
    """The level of transaction.version in these tests."""

    @pytest.fixture(autouse=True)
    def skip_lacking(self, request: pytest.FixtureRequest) -> None:
        """Skip a test of something that this library does not have."""
        reason = request.cls.library.lacks.get(request.node.originalname.removeprefix("test_"))
        if reason:
            pytest.skip(reason)

    @pytest.fixture
    def topic(self, endpoint: Endpoint) -> str:
        topic = new_name("txn")
        create_topic(endpoint.bootstrap, topic, PARTITIONS)
        return topic

    def test_commit_and_abort(self, client: Transactional, endpoint: Endpoint, topic: str) -> None:
        """One producer commits, aborts and commits again: committed readers see two transactions, others see three."""
        producer = client.transactor(new_name("id"))
        for name, is_commit in (("one", True), ("two", False), ("three", True)):
            producer.begin()
            producer.send(topic, values_of(name))
            producer.commit() if is_commit else producer.abort()
        producer.close()
        end(endpoint.bootstrap, topic)
        one, two, three = values_of("one"), values_of("two"), values_of("three")
        assert client.read(topic, PARTITIONS, is_committed=True) == joined(one, three)
        assert client.read(topic, PARTITIONS, is_committed=False) == joined(one, two, three)

    def test_open_transaction_hides_what_follows(self, client: Transactional, endpoint: Endpoint, topic: str) -> None:
        """Committed readers end before an open transaction, though later records are there; its end moves them on."""
        send_plain(endpoint.bootstrap, topic, values_of("before"))
        producer = client.transactor(new_name("id"))
        producer.begin()
        producer.send(topic, values_of("open"))
        end(endpoint.bootstrap, topic)
        assert ends(endpoint.bootstrap, topic, "read_committed") == dict.fromkeys(range(PARTITIONS), RECORDS)
        assert ends(endpoint.bootstrap, topic, "read_uncommitted") == dict.fromkeys(range(PARTITIONS), 2 * RECORDS + 1)
        assert client.read(topic, PARTITIONS, is_committed=False) == joined(values_of("before"), values_of("open"))
        producer.commit()
        producer.close()
        assert client.read(topic, PARTITIONS, is_committed=True) == joined(values_of("before"), values_of("open"))

    def test_second_instance_fences_the_first(self, client: Transactional, endpoint: Endpoint, topic: str) -> None:
        """A second producer of the id aborts what the first has open, and the first can commit nothing more."""
        transactional_id = new_name("id")
        first = client.transactor(transactional_id)
        first.begin()
        first.send(topic, values_of("first"))
        second = client.transactor(transactional_id)
        with pytest.raises(Fenced):
            first.commit()
        second.begin()
        second.send(topic, values_of("second"))
        second.commit()
        second.close()
        first.close()
        end(endpoint.bootstrap, topic)
        assert client.read(topic, PARTITIONS, is_committed=True) == values_of("second")

    def test_offsets_move_with_the_transaction(self, client: Transactional, endpoint: Endpoint, topic: str) -> None:
        """A group's offsets are those of the last committed transaction; an abort leaves them."""
        group = new_name("group")
        send_plain(endpoint.bootstrap, topic, values_of("source", 9))
        producer = client.transactor(new_name("id"))
        for offset, is_commit in ((3, True), (7, False)):
            producer.begin()
            producer.send_offsets(group, topic, dict.fromkeys(range(PARTITIONS), offset))
            producer.commit() if is_commit else producer.abort()
            assert committed(endpoint.bootstrap, group, topic) == dict.fromkeys(range(PARTITIONS), 3)
        producer.close()

    def test_level_changes_while_open(self, client: Transactional, endpoint: Endpoint, topic: str) -> None:
        """The level changes in the middle of each transaction: the producer ends it, and goes on with the next."""
        producer, group = client.transactor(new_name("id")), new_name("group")
        has_offsets = "offsets_move_with_the_transaction" not in client.lacks
        names = [f"level{number}" for number in range(4)]
        for number, name in enumerate(names):
            producer.begin()
            producer.send(topic, values_of(name))
            set_level(endpoint.bootstrap, self.level if number % 2 else 3 - self.level)
            if has_offsets:
                producer.send_offsets(group, topic, dict.fromkeys(range(PARTITIONS), number))
            producer.abort() if number == 2 else producer.commit()
        producer.close()
        end(endpoint.bootstrap, topic)
        kept = [values_of(name) for number, name in enumerate(names) if number != 2]
        assert client.read(topic, PARTITIONS, is_committed=True) == joined(*kept)
        assert client.read(topic, PARTITIONS, is_committed=False) == joined(*map(values_of, names))
        if has_offsets:
            assert committed(endpoint.bootstrap, group, topic) == dict.fromkeys(range(PARTITIONS), 3)

    def test_time_out(self, client: Transactional, endpoint: Endpoint, topic: str) -> None:
        """A transaction that nobody ends is aborted in time: readers go on, and its producer can commit nothing."""
        producer = client.transactor(new_name("id"), timeout_ms=SHORT_MS)
        producer.begin()
        producer.send(topic, values_of("late"))
        end(endpoint.bootstrap, topic)

        def is_aborted() -> bool:
            bootstrap = endpoint.bootstrap
            return ends(bootstrap, topic, "read_committed") == ends(bootstrap, topic, "read_uncommitted")

        wait_for(is_aborted, "the abort by time-out", timeout_s=OPERATION_TIMEOUT_S)
        with pytest.raises(ClientError):
            producer.commit()
        producer.close()
        assert client.read(topic, PARTITIONS, is_committed=True) == {place: [] for place in range(PARTITIONS)}
        assert client.read(topic, PARTITIONS, is_committed=False) == values_of("late")

    def test_transform(self, client: Transactional, endpoint: Endpoint, topic: str) -> None:
        """Consume, transform and produce, with aborts: the output is each input record once, in order."""
        sink, group = new_name("sink"), new_name("group")
        create_topic(endpoint.bootstrap, sink, PARTITIONS)
        source = values_of("source", TRANSFORMED)
        send_plain(endpoint.bootstrap, topic, source)
        count = PARTITIONS * TRANSFORMED
        loop = Loop(topic, sink, group, new_name("id"), PARTITIONS, count, BATCH)
        transactions = client.transform(loop)
        assert transactions > 1
        end(endpoint.bootstrap, sink)
        model = {
            place: [transformed(place, at, value) for at, value in enumerate(each)] for place, each in source.items()
        }
        assert client.read(sink, PARTITIONS, is_committed=True) == model
        assert committed(endpoint.bootstrap, group, topic) == dict.fromkeys(range(PARTITIONS), TRANSFORMED)
        times = Counter(value for each in client.read(sink, PARTITIONS, is_committed=False).values() for value in each)
        assert max(times.values()) > 1, "nothing was aborted"
